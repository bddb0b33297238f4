"""Probes of Lab 3's scaling analysis: what it says of synthetic measurements, and of steps whose time is known.

What knows those times is a module that is not imported here (`lab3_scaling_truth`). Everything here is simulated.
"""

from __future__ import annotations

import functools
import itertools
import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.modules.module import register_module_forward_pre_hook

from grader.lab3.probes.launch import forget_ranks
from grader.shared.probes.endings import refused as is_refused
from grader.shared.probes.figures import watch_png
from grader.shared.probes.handed_out import square_layers, waiting_batches
from grader.shared.probes.support import fields, mapping, plain, sequence
from labkit.device import open_device
from labkit.results import ScalingPoint, StepProfile

SCALING = "lab3_distributed.scaling_analysis"
_MOST_RANKS = 8


def _profile(values: dict[str, Any]) -> StepProfile:
    return StepProfile(**{name: tuple(numbers) for name, numbers in values.items()})


def _point(values: dict[str, Any]) -> ScalingPoint:
    return ScalingPoint(**{**values, "profile": _profile(values["profile"])})


def analyse(student: Any, *, points: Sequence[dict[str, Any]], kinds: Sequence[str]) -> dict[str, Any]:
    """`speedup` and `efficiency` of made-up points, for each kind; and where the first kind has no single process."""
    module = student.module(SCALING)
    made = [_point(point) for point in points]
    answers = {}
    for kind in kinds:
        answers[kind] = {
            name: plain(mapping(getattr(module, name)(made, kind), f"{name}()"), f"{name}(points, {kind!r})")
            for name in ("speedup", "efficiency")
        }
    without = [point for point in made if point.world_size > 1 or point.kind != kinds[0]]
    functions = (module.speedup, module.efficiency)
    refused = [is_refused(functools.partial(function, without, kinds[0])) for function in functions]
    return {"answers": answers, "refused": refused}


def plotted(student: Any, *, points: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`plot_scaling` of made-up points, and of those of one kind alone: what is drawn, by the data's own numbers."""
    module = student.module(SCALING)
    made = [_point(point) for point in points]
    plots: list[dict[str, Any]] = []
    for chosen in (made, [point for point in made if point.kind == made[0].kind]):
        path = Path(f"scaling{len(plots)}.png")
        with watch_png(_drawn) as figures:
            told = module.plot_scaling(chosen, path)
        labels, drawn = zip(*itertools.chain(*figures), strict=True) if any(figures) else ((), ())
        plots.append(
            {"told": str(told) == str(path), "written": path.is_file(), "drawn": [*drawn], "labels": [*labels]}
        )
    return {"plots": plots}


def several(student: Any, *, asked: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`measure_scaling` on a machine with two virtual GPUs, once for each of `asked`; ranks are copies of this process.

    Each time the points that it told, and how often a module was called on rank 0, by the number of ranks.
    """
    torch.set_num_threads(1)
    forget_ranks()
    measure = student.module(SCALING).measure_scaling
    # Shared with the ranks; rank 0 of one job after the other writes there.
    calls = memoryview(mmap.mmap(-1, (_MOST_RANKS + 1) * 8)).cast("q")

    def count(*_: Any) -> None:
        if dist.is_initialized() and dist.get_rank() == 0:
            calls[dist.get_world_size()] += 1

    hook = register_module_forward_pre_hook(count)
    seen = []
    with open_device("vgpu:T4", values=False, gpus=2):
        for arguments in asked:
            before = calls.tolist()
            told = sequence(measure(**arguments, start_method="fork"), "measure_scaling()")
            seen.append(
                {
                    "points": [fields(point, ScalingPoint, "measure_scaling()") for point in told],
                    "calls": {str(size): calls[size] - before[size] for size in arguments["world_sizes"]},
                }
            )
    hook.remove()
    return {"seen": seen}


def _drawn(figure: Any) -> list[tuple[str, list[list[float]]]]:
    """The data in a figure, with what a legend calls it: lines, groups of markers and of bars."""
    from matplotlib.collections import PathCollection

    drawn: list[tuple[Any, Any]] = []
    for axes in figure.axes:
        drawn += [(line.get_label(), line.get_xydata()) for line in axes.lines]
        drawn += [
            (each.get_label(), each.get_offsets()) for each in axes.collections if isinstance(each, PathCollection)
        ]
        for group in axes.containers:
            # Containers of error bars and stems hold lines, which are among the axes' own.
            bars = [bar for bar in group if hasattr(bar, "get_height")]
            drawn.append((group.get_label(), [[bar.get_x(), bar.get_height()] for bar in bars]))
    return [(str(label), np.asarray(points, dtype=float).reshape(-1, 2).tolist()) for label, points in drawn]


def shares(student: Any, *, profiles: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`communication_share` and `split_step` of made-up profiles."""
    module = student.module(SCALING)
    parts = [mapping(module.split_step(_profile(each)), "split_step()") for each in profiles]
    return {
        "shares": [plain(module.communication_share(_profile(each)), "communication_share()") for each in profiles],
        "parts": [plain(each, "split_step()") for each in parts],
        "order": [list(each) for each in parts],
    }


def bottlenecks(
    student: Any, *, profiles: Sequence[dict[str, Any]], thresholds: Sequence[float | None]
) -> dict[str, Any]:
    """`name_bottleneck` of made-up profiles, each with a threshold (None: none given)."""
    module = student.module(SCALING)
    names = []
    for each, threshold in zip(profiles, thresholds, strict=True):
        options = {} if threshold is None else {"threshold": threshold}
        names.append(plain(module.name_bottleneck(_profile(each), **options), "name_bottleneck()"))
    return {"names": names}


def measured(
    student: Any,
    *,
    kind: str,
    batch_size: int,
    width: int,
    layers: int,
    steps: int,
    warmup: int,
    load_seconds: Sequence[float],
    first_seconds: Sequence[Sequence[float]],
) -> dict[str, Any]:
    """`measure_rank` of this rank, whose loader and GPU have figures of their own; then what it must not accept, and
    a loader that fails."""
    own = batch_size // student.ranks if kind == "strong" else batch_size
    measure = functools.partial(
        student.module(SCALING).measure_rank, student.rank, student.ranks, device="cuda", steps=steps, warmup=warmup
    )
    taken = 0

    def counted(batches: Iterator[Any]) -> Iterator[Any]:
        nonlocal taken
        for batch in batches:
            taken += 1
            yield batch

    told = measure(
        f"{student.rendezvous}-measure",
        kind=kind,
        batch_size=batch_size,
        model=square_layers(width, layers),
        batches=counted(waiting_batches(own, width, load_seconds[student.rank], first_seconds[student.rank])),
    )
    seen = {
        "point": fields(told, ScalingPoint, "measure_rank()"),
        "in_group": dist.is_initialized(),
        "taken": taken,
        "asked": 2 * (warmup + steps),
    }
    wrong = [("kind='week'", "week", batch_size)]
    if student.ranks > 1:
        uneven = own * student.ranks + 1
        wrong.append((f"batch_size={uneven}, strong", "strong", uneven))
    refused = {}
    for index, (what, bad_kind, bad_size) in enumerate(wrong):
        try:
            measure(
                f"{student.rendezvous}-wrong{index}",
                kind=bad_kind,
                batch_size=bad_size,
                model=square_layers(8, 1),
                batches=waiting_batches(own, 8, 0.0),
            )
        except Exception as error:
            refused[what] = isinstance(error, ValueError)
        else:
            refused[what] = False
    failed = ""
    try:
        measure(
            f"{student.rendezvous}-broken",
            kind=kind,
            batch_size=batch_size,
            model=square_layers(8, 1),
            batches=_fails(),
        )
    except Exception as error:
        failed = type(error).__name__
    return {**seen, "refused": refused, "failed": failed, "in_group_after_failure": dist.is_initialized()}


def _fails() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """A loader that does not get as far as its first batch."""
    yield from ()
    raise LookupError("the first batch cannot be read")
