"""A probe of Lab 1's benchmark on a CPU whose products wait: its seconds are those on the wall."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from gradebox.sandbox.probe_loader import Student
from grader.lab1.measurements.cases import SlowCpu, SlowCpuReply
from grader.lab1.shared.cases.products import Result
from grader.shared.probes.kept import nap, notes
from grader.shared.probes.support import fields
from grader.shared.probes.threads import in_every_thread
from labkit.results import MatmulResult

_PRODUCTS = {"mm", "bmm", "addmm", "baddbmm"}


class _Waiting(TorchDispatchMode):
    """Every product sleeps first, and its seconds are noted."""

    def __init__(self, wait: Callable[[], None], note: Callable[[float], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._wait, self._note = wait, note

    def __torch_dispatch__(
        self,
        func: OpOverload[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        if func._can_decompose():  # in inference mode no autograd layer has taken it apart
            with self:
                return func.decompose(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ not in _PRODUCTS:
            return func(*args, **(kwargs or {}))
        begin = time.perf_counter()
        self._wait()
        result = func(*args, **(kwargs or {}))
        self._note(time.perf_counter() - begin)
        return result


def slow_cpu(student: Student, inputs: SlowCpu) -> SlowCpuReply:
    """`benchmark_matmul` on the CPU; what it says, and how long each product took."""
    torch.set_num_threads(1)
    wait, size, iterations, warmup = nap(inputs.nap_seconds), inputs.size, inputs.iterations, inputs.warmup
    del inputs  # no frame below this one shows for how long products wait
    note, noted = notes()
    run = student.module("lab1_gpu_basics.benchmark").benchmark_matmul
    with in_every_thread(lambda: _Waiting(wait, note)):
        returned = run("cpu", size, iterations, warmup=warmup)
    result = fields(returned, MatmulResult, f"benchmark_matmul('cpu', {size})")
    return SlowCpuReply(result=cast("Result", result), took=noted())
