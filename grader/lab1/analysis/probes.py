"""Probes of Lab 1's conclusions, from made-up measurements, and of its profiler."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import cast

import torch

from gradebox.sandbox.measuring import measures
from gradebox.sandbox.probe_loader import Student
from grader.lab1.analysis.cases import (
    Bottlenecks,
    BottlenecksReply,
    Bounds,
    BoundsReply,
    CpuProfileReply,
    Crossover,
    CrossoverReply,
    Operation,
    PeakShares,
    PeakSharesReply,
    ProfileOnCpu,
    ProfileOnGpu,
    ProfileReply,
    RecordedOperations,
    Slowest,
    SlowestReply,
)
from grader.lab1.shared.probes.benchmark import BENCHMARK
from grader.lab1.shared.probes.plots import comparison
from grader.shared.probes.calls import on_device
from grader.shared.probes.endings import ending
from grader.shared.probes.kept import function, notes
from grader.shared.probes.record import mark, reading
from grader.shared.probes.support import fields, mapping, plain, sequence
from labkit.results import STAGES, MemoryProfile, OperationTime, StageMemory

MEMORY = "lab1_gpu_basics.memory_profiling"
PROFILER = "lab1_gpu_basics.profiler"
_TINY_SIZE = 8
_BUSY_SIZE = 4000
"""Kernels on so many rows and columns take longer than some steps' launches."""


def crossover(student: Student, inputs: Crossover) -> CrossoverReply:
    """`find_crossover` on each case."""
    find = student.module(BENCHMARK).find_crossover
    return CrossoverReply(
        sizes=[
            plain(find([comparison(int(size), cpu, gpu) for size, cpu, gpu in case]), "find_crossover()")
            for case in inputs.cases
        ]
    )


def bounds(student: Student, inputs: Bounds) -> BoundsReply:
    """`classify_bound` with each case's arguments, and with those that make no sense."""
    classify = student.module(BENCHMARK).classify_bound
    return BoundsReply(
        bounds=[plain(classify(**case), "classify_bound()") for case in inputs.cases],
        endings=[ending(functools.partial(classify, **case)) for case in inputs.refused],
    )


def peak_shares(student: Student, inputs: PeakShares) -> PeakSharesReply:
    """`peak_share` of results that took these seconds, and with peaks that make no sense."""
    share = student.module(BENCHMARK).peak_share
    results = [comparison(int(case["size"]), 1.0, case["seconds"]).gpu for case in inputs.cases]
    peaks = [case["peak_tflops"] for case in inputs.cases]
    return PeakSharesReply(
        shares=[plain(share(result, peak), "peak_share()") for result, peak in zip(results, peaks, strict=True)],
        endings=[ending(functools.partial(share, comparison(64, 1.0, 1e-3).gpu, peak)) for peak in inputs.refused],
    )


def bottlenecks(student: Student, inputs: Bottlenecks) -> BottlenecksReply:
    """`find_bottleneck` and `stage_increases` on made-up profiles."""
    module = student.module(MEMORY)
    profiles = [
        MemoryProfile(
            device="cuda",
            dtype="float32",
            stages=tuple(
                StageMemory(stage=stage, allocated_bytes=held, reserved_bytes=taken, peak_bytes=peak)
                for stage, peak, held, taken in zip(STAGES, *figures, strict=True)
            ),
        )
        for figures in zip(inputs.peaks, inputs.allocated, inputs.reserved, strict=True)
    ]
    return BottlenecksReply(
        stages=[plain(module.find_bottleneck(profile), "find_bottleneck()") for profile in profiles],
        increases=[_items(module.stage_increases(profile)) for profile in profiles],
    )


def _items(returned: object) -> list[object]:
    """A dict as pairs in its order."""
    return [plain(pair, "stage_increases()") for pair in mapping(returned, "stage_increases()").items()]


@measures("time")
def profile_on_gpu(student: Student, inputs: ProfileOnGpu) -> ProfileReply:
    """`profile_operations` on a step whose operations are known.

    Work that nobody has waited for is queued before. Of `exp` every second call is of a smaller tensor; `sin` and
    `tanh` are of a tiny one; some operations launch nothing.
    """
    repeats, steps, size = {**inputs.repeats, **inputs.beside}, inputs.steps, inputs.size
    left, small, tiny = (torch.rand(side, side, device=student.device) for side in (size, size // 2, _TINY_SIZE))
    run: dict[str, Callable[[int], object]] = {
        "mm": lambda _: torch.matmul(left, left),  # which calls mm
        "exp": lambda index: torch.exp(small if index % 2 else left),
        "sin": lambda _: torch.sin(tiny),
        "tanh": lambda _: torch.tanh(tiny),
    }
    look: dict[str, Callable[[], object]] = {
        "detach": left.detach,
        "diagonal": left.diagonal,
        "expand": lambda: left.expand(2, -1, -1),
        "permute": lambda: left.permute(1, 0),
        "select": lambda: left.select(0, 0),
        "slice": lambda: left[1:],
        "squeeze": left.squeeze,
        "transpose": lambda: left.transpose(0, 1),
        "unfold": lambda: left.unfold(0, 2, 1),
        "unsqueeze": lambda: left.unsqueeze(0),
        "view": lambda: left.view(-1),
    }
    note, noted = notes()

    @function
    def step() -> None:
        note(None)
        for name, count in inputs.without_kernel.items():
            for _ in range(count):
                look[name]()
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
    place = {"device": f"{student.device}:0"} if inputs.indexed else on_device(student)
    rows = _operations(profile(step, steps=steps, warmup=inputs.warmup, **place))
    device_record = None
    if student.gpu is not None:
        names = [f"aten::{name}" for name in repeats]
        device_record = cast(
            "RecordedOperations",  # the judge gets it
            reading(student.gpu, "operations", before, names=names, last=steps * sum(repeats.values())),
        )
    recorded = student.gpu is not None or any(row["device_seconds"] != 0 for row in rows) or _records_kernels(tiny)
    return ProfileReply(operations=rows, steps_run=len(noted()), device_record=device_record, recorded=recorded)


def _operations(returned: object) -> list[Operation]:
    return [
        cast("Operation", fields(row, OperationTime, f"profile_operations()[{index}]"))
        for index, row in enumerate(sequence(returned, "profile_operations()"))
    ]


def _records_kernels(tensor: torch.Tensor) -> bool:
    """Whether PyTorch's profiler sees kernels here: a driver or a container may keep that from it."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        torch.sin(tensor)
        torch.cuda.synchronize()
    return any(event.device_time_total > 0 for event in profiler.key_averages())


def profile_on_cpu(student: Student, inputs: ProfileOnCpu) -> CpuProfileReply:
    """`profile_operations` on a CPU, of operations that call others: `matmul` calls `mm`, `softmax` `_softmax`."""
    torch.set_num_threads(1)
    left = torch.rand(inputs.size, inputs.size)
    note, noted = notes()

    @function
    def step() -> None:
        begin = time.perf_counter()
        torch.softmax(left[:8], dim=-1)
        torch.matmul(left, left)
        note(time.perf_counter() - begin)

    profile = student.module(PROFILER).profile_operations
    returned = profile(step, device="cpu", steps=inputs.steps, warmup=inputs.warmup)
    took = noted()
    return CpuProfileReply(
        operations=_operations(returned),
        steps_run=len(took),
        step_seconds=took[-inputs.steps :],
        endings=[ending(functools.partial(profile, step, **{"device": "cpu", **case})) for case in inputs.refused],
    )


def slowest(student: Student, inputs: Slowest) -> SlowestReply:
    """The names that `slowest` gives for made-up operations, case by case."""
    choose = student.module(PROFILER).slowest
    made = [
        [OperationTime(name=name, calls=1, cpu_seconds=cpu, device_seconds=device) for name, cpu, device in case]
        for case in inputs.cases
    ]
    names: list[list[object]] = []
    for rows, count in zip(made, inputs.counts, strict=True):
        chosen = sequence(choose(rows) if count is None else choose(rows, count), "slowest()")
        names.append([fields(row, OperationTime, f"slowest()[{index}]")["name"] for index, row in enumerate(chosen)])
    return SlowestReply(
        names=names, endings=[ending(functools.partial(choose, made[0], count)) for count in inputs.refused]
    )
