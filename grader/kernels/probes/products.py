"""Probes of the matrix product: results, what its kernels did, the times of tiles and which of them it takes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradebox.sandbox.measuring import measures
from grader.kernels.probes.watching import laid_out, observe
from grader.shared.probes.calls import on_device
from grader.shared.probes.record import mark, reading
from grader.shared.probes.support import fields, plain, sequence
from labkit.results import Tiles, TileTiming

MODULE = "kernels_exercise.matmul"
_CALLS = 7


def matmul(student: Any, *, cases: Sequence[dict[str, Any]], a: Tensor, b: Tensor) -> dict[str, Any]:
    """`matmul` of the first [m, k] of `a` and [k, n] of `b`, for each case: `dtype`, layouts, `tiles`."""
    function = student.module(MODULE).matmul
    runs = []
    for case in cases:
        left = laid_out(a[: case["m"], : case["k"]], case["dtype"], student.device, case["left"])
        right = laid_out(b[: case["k"], : case["n"]], case["dtype"], student.device, case["right"])
        named = {"tiles": Tiles(**case["tiles"])} if case["tiles"] else {}
        runs.append(observe(student, lambda: function(left, right, **named), "matmul()"))  # noqa: B023
    return {"runs": runs}


@measures("time")
def timings(student: Any, *, sizes: Sequence[int], candidates: Sequence[dict[str, int]], dtype: str) -> dict[str, Any]:
    """`time_tiles` of these candidates, and the device's seconds of each, from its timeline."""
    module = student.module(MODULE)
    kind = getattr(torch, dtype)
    tiles = [Tiles(**one) for one in candidates]
    told = sequence(module.time_tiles(*sizes, tiles, dtype=kind, **on_device(student)), "time_tiles()")
    rows = [fields(row, TileTiming, f"time_tiles()[{index}]") for index, row in enumerate(told)]
    m, n, k = sizes
    a, b = (torch.randn(shape, device=student.device, dtype=kind) for shape in ((m, k), (k, n)))
    took = [_seconds(student, lambda: module.matmul(a, b, tiles=one)) for one in tiles]  # noqa: B023
    return {"rows": rows, "device_seconds": took}


def _seconds(student: Any, call: Any) -> Any:
    """Of the slowest kernel of a call that has been made before; on a real GPU the median of some calls."""
    call()
    if student.gpu is None:
        return statistics.median(_event_seconds(call) for _ in range(_CALLS))
    begun = mark(student.gpu)
    call()
    return reading(student.gpu, "longest", begun)


def _event_seconds(call: Any) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def choice(student: Any, *, sizes: Sequence[Sequence[int]], dtype: str) -> dict[str, Any]:
    """For each size: launches of a first and of a second `matmul`, seconds of the latter, and with each of TILES."""
    module = student.module(MODULE)
    kind = getattr(torch, dtype)
    tiles = [plain(one, "TILES") for one in sequence(module.TILES, "TILES")]
    runs = []
    for m, n, k in sizes:
        a, b = (torch.randn(shape, device=student.device, dtype=kind) for shape in ((m, k), (k, n)))
        first, second = (observe(student, lambda: module.matmul(a, b), "matmul()") for _ in range(2))  # noqa: B023
        each = [observe(student, lambda: module.matmul(a, b, tiles=one), "matmul()") for one in module.TILES]  # noqa: B023
        runs.append(
            {
                "launches": [len(first["runs"]), len(second["runs"])],
                "seconds": second["seconds"],
                "each": [one["seconds"] for one in each],
            }
        )
    return {"tiles": tiles, "runs": runs}
