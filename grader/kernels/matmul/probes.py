"""Calls `matmul`: results, what its kernels did, the times of tiles, which it takes, and what it refuses."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from gradebox.sandbox.measuring import measures
from gradebox.sandbox.probe_loader import Student
from grader.kernels.matmul import cases as data
from grader.kernels.shared.cases import Refusals
from grader.kernels.shared.probes.refusals import endings
from grader.kernels.shared.probes.watching import laid_out, observe
from grader.shared.probes.calls import on_device
from grader.shared.probes.record import mark, reading
from grader.shared.probes.support import fields, plain, sequence
from labkit.results import Tiles, TileTiming

MODULE = "kernels_exercise.matmul"
_CALLS = 7


def matmul(student: Student, *, cases: Sequence[data.Case], a: Tensor, b: Tensor) -> data.Runs:
    """`matmul` of the first [m, k] of `a` and [k, n] of `b`, for each case."""
    function = student.module(MODULE).matmul
    runs = []
    for case in cases:
        left = laid_out(a[: case["m"], : case["k"]], case["dtype"], student.device, case["left"])
        right = laid_out(b[: case["k"], : case["n"]], case["dtype"], student.device, case["right"])
        named = {"tiles": Tiles(**case["tiles"])} if case["tiles"] else {}
        runs.append(observe(student, partial(function, left, right, **named), "matmul()"))
    return {"runs": runs}


@measures("time")
def timings(student: Student, *, sizes: Sequence[int], candidates: Sequence[data.Tiles], dtype: str) -> data.Timings:
    """`time_tiles` of these candidates, and the device's seconds of each, from its timeline."""
    module = student.module(MODULE)
    kind = getattr(torch, dtype)
    tiles = [Tiles(**candidate) for candidate in candidates]
    begun = 0 if student.gpu is None else mark(student.gpu)
    timed = sequence(module.time_tiles(*sizes, tiles, dtype=kind, **on_device(student)), "time_tiles()")
    flops: Any = None if student.gpu is None else reading(student.gpu, "all_flops", begun)
    rows = [fields(row, TileTiming, f"time_tiles()[{index}]") for index, row in enumerate(timed)]
    m, n, k = sizes
    a, b = (torch.randn(shape, device=student.device, dtype=kind) for shape in ((m, k), (k, n)))
    seconds = [_seconds(student, partial(module.matmul, a, b, tiles=size)) for size in tiles]
    return {"rows": cast(list[data.TimingRow], rows), "device_seconds": seconds, "flops": flops}


def _seconds(student: Student, call: Callable[[], object]) -> Any:
    """Of the slowest kernel of a call that has been made before; on a real GPU the median of some calls."""
    call()
    if student.gpu is None:
        return statistics.median(_event_seconds(call) for _ in range(_CALLS))
    begun = mark(student.gpu)
    call()
    return reading(student.gpu, "longest", begun)  # a number for the judge


def _event_seconds(call: Callable[[], object]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def choice(student: Student, *, sizes: Sequence[Sequence[int]], dtype: str) -> data.Choice:
    """For each size: launches of a first and of a second `matmul`, seconds of the latter, and with each of TILES."""
    module = student.module(MODULE)
    kind = getattr(torch, dtype)
    tiles = [plain(size, "TILES") for size in sequence(module.TILES, "TILES")]
    runs: list[data.ChoiceRun] = []
    for m, n, k in sizes:
        a, b = (torch.randn(shape, device=student.device, dtype=kind) for shape in ((m, k), (k, n)))
        first, second = (observe(student, partial(module.matmul, a, b), "matmul()") for _ in range(2))
        each = [observe(student, partial(module.matmul, a, b, tiles=size), "matmul()") for size in module.TILES]
        runs.append(
            {
                "first": first["runs"],
                "second": second["runs"],
                "seconds": second["seconds"],
                "each": [observed["seconds"] for observed in each],
                "launches": [observed["runs"] for observed in each],
            }
        )
    return {"tiles": tiles, "runs": runs}


def refusals(student: Student) -> Refusals:
    """What `matmul` and `time_tiles` say to what does not fit."""
    module, zeros = student.module(MODULE), partial(torch.zeros, device=student.device)
    return endings(
        student,
        {
            "matmul() of [2, 3] and [4, 2]": lambda: module.matmul(zeros(2, 3), zeros(4, 2)),
            "matmul() of a matrix and a vector": lambda: module.matmul(zeros(2, 3), zeros(3)),
            "matmul() of float32 and float16": lambda: module.matmul(zeros(2, 3), zeros(3, 2, dtype=torch.float16)),
            "time_tiles(0, 16, 16)": lambda: module.time_tiles(0, 16, 16, device=student.device),
            "time_tiles() of no candidates": lambda: module.time_tiles(16, 16, 16, [], device=student.device),
        },
        {"matmul() of [1, 1] and [1, 1]": lambda: module.matmul(zeros(1, 1), zeros(1, 1))},
    )
