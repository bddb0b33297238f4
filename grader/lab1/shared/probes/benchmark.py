"""The probe of `benchmark_matmul`: what it returns beside what the GPU really did."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import quantiles
from typing import cast

import torch

from gradebox.sandbox.measuring import measures
from gradebox.sandbox.probe_loader import Student
from grader.lab1.shared.cases.products import Call, Matmul, MatmulReply, Observation, Result
from grader.shared.probes.card import full_precision, wake
from grader.shared.probes.record import next_stage, reading, watch_products
from grader.shared.probes.support import fields
from labkit.results import MatmulResult

BENCHMARK = "lab1_gpu_basics.benchmark"


@measures("time")
def matmul(student: Student, inputs: Matmul) -> MatmulReply:
    """Each call of `benchmark_matmul` is a stage of its own, with what is queued before it."""
    module = student.module(BENCHMARK)
    observations: list[Observation] = []
    host_seconds = 0.0
    if inputs.with_own_seconds:
        wake()
    for call in inputs.calls:
        device, size = call.get("device", student.device), call["size"]
        dtype = getattr(torch, call.get("dtype", "float32"))
        busy = call.get("busy", inputs.busy_products)
        if inputs.warm:
            _queue_products(device, size, dtype, 3)
            _synchronize()
        # Measured before a first, cold call it would do the student's warm-up for them.
        own_seconds = _own_seconds(size, dtype) if inputs.with_own_seconds and (inputs.warm or observations) else []
        next_stage(student.gpu)
        if busy:
            _queue_products(device, size, dtype, busy)
        place = torch.device(device) if call.get("as_object") else device
        with watch_products(student.gpu) as products:
            begin = time.perf_counter()
            result = called(module.benchmark_matmul, call, place)
            elapsed = time.perf_counter() - begin
            ran = products.counts()
        if inputs.with_own_seconds:
            own_seconds += _own_seconds(size, dtype)
            host_seconds = host_seconds or _host_seconds()
        timed = call.get("iterations", 100)
        idle = None if student.gpu is None else reading(student.gpu, "idle_at_start", 0, size=size, timed=timed)
        observations.append(
            Observation(
                result=cast("Result", fields(result, MatmulResult, f"benchmark_matmul({place!r}, {size})")),
                products=ran,
                own_seconds=own_seconds,
                host_seconds=host_seconds,
                tf32=inputs.with_own_seconds and torch.backends.cuda.matmul.fp32_precision == "tf32",
                elapsed_seconds=elapsed,
                idle_at_start=cast("bool | None", idle),  # the judge gets what it reads
            )
        )
    return MatmulReply(calls=observations)


def called(function: Callable[..., object], call: Call, device: str | torch.device) -> object:
    """What `benchmark_matmul` returns: device and size by their places, as the document calls it, and what else the
    call names."""
    others: dict[str, object] = {name: call[name] for name in ("iterations", "warmup") if name in call}
    if "dtype" in call:
        others["dtype"] = getattr(torch, call["dtype"])
    return function(device, call["size"], **others)


def _queue_products(device: str | torch.device, size: int, dtype: torch.dtype, count: int) -> None:
    left = torch.ones(size, size, device=device, dtype=dtype)
    for _ in range(count):
        torch.mm(left, left)


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


_HELD_CYCLES = 4_000_000
"""Of a kernel that does nothing: two milliseconds or more, in which the host puts ten products behind it."""


def _own_seconds(size: int, dtype: torch.dtype) -> list[float]:
    """Quartiles of the seconds per product on a real GPU, by two methods that are both right.

    Of the products alone, which wait in the queue, so that no launch is in it; and of single products by the host's
    clock, from an idle device to an idle device, watched as the submission's are: on an H100 that takes some 5 % longer
    for products of milliseconds, and 30 to 60 us more for short ones. On a card whose clock changes they lie apart.
    """
    left = torch.randn(size, size, device="cuda").to(dtype)
    right = torch.randn(size, size, device="cuda").to(dtype)
    out = torch.empty_like(left)
    with full_precision():
        for _ in range(10):
            torch.mm(left, right, out=out)
        return [
            *_held_seconds(lambda: torch.mm(left, right, out=out)),
            *_waited_seconds(lambda: torch.mm(left, right)),
        ]


def _host_seconds() -> float:
    """What the host takes for a product that costs the device nothing, watched, from an idle device to an idle one."""
    tiny = torch.ones(16, 16, device="cuda")
    torch.mm(tiny, tiny)
    return max(_waited_seconds(lambda: torch.mm(tiny, tiny)))


def _held_seconds(launch: Callable[[], object], count: int = 10, blocks: int = 5) -> list[float]:
    times: list[float] = []
    for _ in range(blocks):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(_HELD_CYCLES)
        start.record()
        for _ in range(count):
            launch()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop) / 1e3 / count)
    return _quartiles(times)


def _waited_seconds(launch: Callable[[], object], count: int = 9) -> list[float]:
    times: list[float] = []
    with watch_products(None):
        for _ in range(count):
            torch.cuda.synchronize()
            start = time.perf_counter()
            launch()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
    return _quartiles(times)


def _quartiles(times: Sequence[float]) -> list[float]:
    """The lower and the upper one: a median of such times lies between them, whatever a single one was."""
    low, _, high = quantiles(times, n=4, method="inclusive")
    return [low, high]
