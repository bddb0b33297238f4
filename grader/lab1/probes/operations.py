"""Probes of Lab 1's profiler: steps whose operations are known, on the GPU and on the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gradebox.sandbox.measuring import measures
from grader.shared.probes.calls import on_device
from grader.shared.probes.endings import ending
from grader.shared.probes.record import mark, reading
from grader.shared.probes.support import fields, sequence
from labkit.results import OperationTime

PROFILER = "lab1_gpu_basics.profiler"
_ALL_KERNELS = 10**9
_TINY_SIZE = 8
_BUSY_SIZE = 4000
"""Kernels on so many rows and columns take longer than some steps' launches."""


@measures("time")
def operations(
    student: Any,
    *,
    size: int,
    repeats: dict[str, int],
    beside: dict[str, int],
    steps: int,
    warmup: int,
    indexed: bool,
) -> dict[str, Any]:
    """`profile_operations` on a step whose operations are known: each name of `repeats` runs that often.

    Work that nobody has waited for is queued before. Of `exp` every second call is of a smaller tensor; `sin` and
    `tanh` are of a tiny one; one operation launches nothing.

    Args:
        beside: operations that run after them, and how often.
        indexed: the GPU is named with its index.
    """
    repeats = {**repeats, **beside}
    left, small, tiny = (torch.rand(side, side, device=student.device) for side in (size, size // 2, _TINY_SIZE))
    run: dict[str, Callable[[int], object]] = {
        "mm": lambda _: torch.matmul(left, left),  # which calls mm
        "exp": lambda index: torch.exp(small if index % 2 else left),
        "sin": lambda _: torch.sin(tiny),
        "tanh": lambda _: torch.tanh(tiny),
    }
    calls = 0

    def step() -> None:
        nonlocal calls
        calls += 1
        left.view(-1)
        for name, count in repeats.items():
            for index in range(count):
                run[name](index)

    profile = student.module(PROFILER).profile_operations
    for name in repeats:  # to load a library takes the host so long that the work queued below would be done
        run[name](0)
    elsewhere = torch.rand(_BUSY_SIZE, _BUSY_SIZE, device=student.device)
    for _ in range(20):
        torch.cos(elsewhere)
    before = mark(student.gpu) if student.gpu is not None else 0
    place = {"device": f"{student.device}:0"} if indexed else on_device(student)
    told = sequence(profile(step, steps=steps, warmup=warmup, **place), "profile_operations()")
    rows = [fields(row, OperationTime, f"profile_operations()[{index}]") for index, row in enumerate(told)]
    truth = None
    if student.gpu is not None:
        names = [f"aten::{name}" for name in repeats]
        truth = reading(student.gpu, "operations", before, names=names, last=steps * sum(repeats.values()))
    recorded = student.gpu is not None or any(row["device_seconds"] != 0 for row in rows) or _records_kernels(tiny)
    return {"operations": rows, "steps_run": calls, "truth": truth, "recorded": recorded}


def _records_kernels(tensor: torch.Tensor) -> bool:
    """Whether PyTorch's profiler sees kernels here: a driver or a container may keep that from it."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        torch.sin(tensor)
        torch.cuda.synchronize()
    return any(event.device_time_total > 0 for event in profiler.key_averages())


def on_cpu(student: Any, *, size: int, steps: int, warmup: int, refused: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`profile_operations` on a CPU, of operations that call others: `matmul` calls `mm`, `softmax` calls `_softmax`.

    Args:
        refused: arguments that make no sense.
    """
    torch.set_num_threads(1)
    left = torch.rand(size, size)
    took: list[float] = []

    def step() -> None:
        begin = time.perf_counter()
        torch.softmax(left[:8], dim=-1)
        torch.matmul(left, left)
        took.append(time.perf_counter() - begin)

    profile = student.module(PROFILER).profile_operations
    told = sequence(profile(step, device="cpu", steps=steps, warmup=warmup), "profile_operations()")
    steps_run = len(took)
    return {
        "operations": [fields(row, OperationTime, f"profile_operations()[{i}]") for i, row in enumerate(told)],
        "steps_run": steps_run,
        "step_seconds": took[-steps:],
        "endings": [ending(lambda: profile(step, **{"device": "cpu", **case})) for case in refused],  # noqa: B023
    }


def slowest(
    student: Any, *, cases: Sequence[Sequence[Sequence[Any]]], counts: Sequence[int | None], refused: Sequence[int]
) -> dict[str, Any]:
    """The names that `slowest` gives for made-up operations (name, CPU seconds, device seconds), case by case.

    Args:
        counts: how many it is asked for; None: it is not told.
    """
    choose = student.module(PROFILER).slowest
    made = [
        [OperationTime(name=name, calls=1, cpu_seconds=cpu, device_seconds=device) for name, cpu, device in case]
        for case in cases
    ]
    names = []
    for rows, count in zip(made, counts, strict=True):
        told = sequence(choose(rows) if count is None else choose(rows, count), "slowest()")
        names.append([fields(row, OperationTime, f"slowest()[{index}]")["name"] for index, row in enumerate(told)])
    return {"names": names, "endings": [ending(lambda: choose(made[0], count)) for count in refused]}  # noqa: B023
