"""A probe of Lab 1's benchmark on a CPU whose products wait: its seconds are those on the wall."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from grader.shared.probes.kept import nap, notes
from grader.shared.probes.support import fields
from grader.shared.probes.threads import in_every_thread
from labkit.results import MatmulResult

_PRODUCTS = {"mm", "bmm", "addmm", "baddbmm"}


class _Waiting(TorchDispatchMode):
    """Every product sleeps first, and its seconds are noted."""

    def __init__(self, wait: Any, note: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._wait, self._note = wait, note

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ not in _PRODUCTS:
            return func(*args, **(kwargs or {}))
        begin = time.perf_counter()
        self._wait()
        result = func(*args, **(kwargs or {}))
        self._note(time.perf_counter() - begin)
        return result


def matmul(student: Any, *, size: int, iterations: int, warmup: int, nap_seconds: float) -> dict[str, Any]:
    """`benchmark_matmul` on the CPU; what it says, and how long each product took."""
    torch.set_num_threads(1)
    wait = nap(nap_seconds)
    del nap_seconds
    note, noted = notes()
    run = student.module("lab1_gpu_basics.benchmark").benchmark_matmul
    with in_every_thread(lambda: _Waiting(wait, note)):
        told = run("cpu", size, iterations, warmup=warmup)
    return {"result": fields(told, MatmulResult, f"benchmark_matmul('cpu', {size})"), "took": noted()}
