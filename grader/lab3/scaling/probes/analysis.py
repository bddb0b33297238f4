"""Probes of Lab 3's scaling analysis: what it says of measurements that are made up."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gradebox.sandbox.probe_loader import Student
from grader.lab3.scaling.cases.analysis import (
    Bottlenecks,
    BottlenecksReply,
    Plot,
    Plotted,
    PlottedReply,
    Point,
    Profile,
    Ratios,
    RatiosReply,
    Shares,
    SharesReply,
)
from grader.lab3.shared.cases.modules import SCALING
from grader.shared.probes.endings import refused as is_refused
from grader.shared.probes.figures import watch_png
from grader.shared.probes.ink import seen
from grader.shared.probes.support import mapping, plain
from labkit.results import ScalingPoint, StepProfile

_MOST_RANKS = 8
_Batch = tuple[torch.Tensor, torch.Tensor]


def _profile(profile: Profile) -> StepProfile:
    return StepProfile(
        data_seconds=tuple(profile["data_seconds"]),
        compute_seconds=tuple(profile["compute_seconds"]),
        communication_seconds=tuple(profile["communication_seconds"]),
    )


def _points(points: Sequence[Point]) -> list[ScalingPoint]:
    return [
        ScalingPoint(
            device=point["device"],
            backend=point["backend"],
            kind=point["kind"],
            world_size=point["world_size"],
            batch_size=point["batch_size"],
            step_seconds=point["step_seconds"],
            samples_per_second=point["samples_per_second"],
            profile=_profile(point["profile"]),
        )
        for point in points
    ]


def ratios(student: Student, inputs: Ratios) -> RatiosReply:
    """`speedup` and `efficiency` of made-up points, and of those among which this kind has no single process."""
    module, kind = student.module(SCALING), inputs.kind
    points = _points(inputs.points)
    answers = {
        name: plain(mapping(getattr(module, name)(points, kind), f"{name}()"), f"{name}(points, {kind!r})")
        for name in ("speedup", "efficiency")
    }
    without = [point for point in points if point.world_size > 1 or point.kind != kind]
    functions = (module.speedup, module.efficiency)
    refused = [is_refused(functools.partial(function, without, kind)) for function in functions]
    return RatiosReply(answers=answers, refused=refused)


def plotted(student: Student, inputs: Plotted) -> PlottedReply:
    """`plot_scaling` of made-up points, and of those of one kind alone: what is drawn, by the data's own numbers."""
    module = student.module(SCALING)
    points = _points(inputs.points)
    plots: list[Plot] = []
    for chosen in (points, [point for point in points if point.kind == points[0].kind]):
        path = Path(f"scaling{len(plots)}.png")
        with watch_png(_drawn) as figures:
            returned = module.plot_scaling(chosen, path)
        shown = [*itertools.chain(*figures)]
        plots.append(
            Plot(
                returned_path=str(returned) == str(path),
                written=path.is_file(),
                drawn=[drawn for _, drawn, _ in shown],
                visible=[visible for _, _, visible in shown],
                labels=[label for label, _, _ in shown],
            )
        )
    return PlottedReply(plots=plots)


def _drawn(figure: Any) -> list[tuple[str, list[list[float]], list[list[float]]]]:
    """The data in a figure, with what a legend calls it: lines, groups of markers and of bars; all, and what is within
    the limits of the axes.

    `Any`: matplotlib's annotations promise all that NumPy would take for an array.
    """
    from matplotlib.collections import PathCollection

    drawn = []
    for axes in figure.axes:
        if not axes.get_visible():
            continue
        inked = {id(artist) for artist in seen(axes)}
        groups: list[tuple[object, Any, float]] = [
            (line.get_label(), line.get_xydata(), 0.0) for line in axes.lines if id(line) in inked
        ]
        groups += [
            (each.get_label(), each.get_offsets(), 0.0)
            for each in axes.collections
            if isinstance(each, PathCollection) and id(each) in inked
        ]
        for group in axes.containers:
            # Containers of error bars and stems hold lines, which are among the axes' own.
            bars = [bar for bar in group if hasattr(bar, "get_height") and id(bar) in inked]
            middle = bars[0].get_width() / 2 if bars else 0.0
            groups.append((group.get_label(), [[bar.get_x(), bar.get_height()] for bar in bars], middle))
        limits = [sorted(axes.get_xlim()), sorted(axes.get_ylim())]
        for label, data, middle in groups:
            points = np.asarray(data, dtype=float).reshape(-1, 2).tolist()
            drawn.append((str(label), points, [[x, y] for x, y in points if _is_within([x + middle, y], limits)]))
    return drawn


def _is_within(point: list[float], limits: list[list[float]]) -> bool:
    """Whether a point is where something can be seen, or at the edge."""
    return all(
        low - 1e-6 * (high - low) <= value <= high + 1e-6 * (high - low)
        for value, (low, high) in zip(point, limits, strict=True)
    )


def shares(student: Student, inputs: Shares) -> SharesReply:
    """`communication_share` and `split_step` of made-up profiles."""
    module = student.module(SCALING)
    profiles = [_profile(profile) for profile in inputs.profiles]
    parts = [mapping(module.split_step(profile), "split_step()") for profile in profiles]
    return SharesReply(
        shares=[plain(module.communication_share(profile), "communication_share()") for profile in profiles],
        parts=[plain(each, "split_step()") for each in parts],
        order=[list(each) for each in parts],
    )


def bottlenecks(student: Student, inputs: Bottlenecks) -> BottlenecksReply:
    """`name_bottleneck` of made-up profiles, with the default threshold or another."""
    module = student.module(SCALING)
    names = []
    for profile, threshold in zip(inputs.profiles, inputs.thresholds, strict=True):
        options = {} if threshold is None else {"threshold": threshold}
        names.append(plain(module.name_bottleneck(_profile(profile), **options), "name_bottleneck()"))
    return BottlenecksReply(names=names)
