"""How even the device's pace is: the same kernel, and the same launches of the host, many times over."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from gradebox.sandbox.measuring import measures
from gradebox.sandbox.probe_loader import Student

_ROUNDS = 40
_LAUNCHES = 100
_WARM_UP_SECONDS = 0.1
"""An idle GPU needs this long to reach its clock."""


@measures("time")
def repeated(student: Student) -> dict[str, list[float]]:
    """Seconds of each round by CUDA's events (`device_seconds`) and by the host's clock (`host_seconds`)."""
    matrix = torch.randn(2048, 2048, device=student.device)
    little = torch.zeros(16, device=student.device)
    begun = time.perf_counter()
    while time.perf_counter() - begun < _WARM_UP_SECONDS:
        matrix @ matrix
        torch.cuda.synchronize()

    def launch() -> None:
        for _ in range(_LAUNCHES):
            little.add_(1.0)

    return {
        "device_seconds": [_device_seconds(lambda: matrix @ matrix) for _ in range(_ROUNDS)],
        "host_seconds": [_host_seconds(launch) for _ in range(_ROUNDS)],
    }


def _device_seconds(run: Callable[[], object]) -> float:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    stop.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(stop)) / 1e3


def _host_seconds(run: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun
