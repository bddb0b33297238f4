"""A probe of Lab 1's benchmark on a CPU whose products wait: its seconds are those on the wall."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch.library import Library, get_kernel

from gradebox.sandbox.probe_loader import Student
from grader.lab1.measurements.cases import SlowCpu, SlowCpuReply
from grader.lab1.shared.cases.products import Result
from grader.shared.probes.kept import function, nap, notes
from grader.shared.probes.support import fields
from labkit.results import MatmulResult

_PRODUCTS = tuple(f"aten::{name}{form}" for name in ("mm", "bmm", "addmm", "baddbmm") for form in ("", ".out"))


@contextmanager
def _waiting_products(wait: Callable[[], None], note: Callable[[float], None]) -> Iterator[None]:
    """Every product of the CPU sleeps first, in any thread and mode, and its seconds are noted.

    PyTorch's own kernels are replaced: a mode would be on a stack that a submission may read.
    """
    library = Library("aten", "IMPL")
    for name in _PRODUCTS:
        library.impl(name.partition("::")[2], _waiting(name, wait, note), "CPU", with_keyset=True, allow_override=True)
    try:
        yield
    finally:
        library._destroy()


def _waiting(name: str, wait: Callable[[], None], note: Callable[[float], None]) -> Callable[..., object]:
    kernel = get_kernel(name, "CPU")

    @function
    def product(keys: torch._C.DispatchKeySet, *args: object, **kwargs: object) -> object:
        begin = time.perf_counter()
        wait()
        result = kernel.call_boxed(keys, *args, **kwargs)
        note(time.perf_counter() - begin)
        return result

    return product


def slow_cpu(student: Student, inputs: SlowCpu) -> SlowCpuReply:
    """`benchmark_matmul` on the CPU; what it says, and how long each product took."""
    torch.set_num_threads(1)
    wait, size, iterations, warmup = nap(inputs.nap_seconds), inputs.size, inputs.iterations, inputs.warmup
    del inputs  # no frame below this one shows for how long products wait
    note, noted = notes()
    run = student.module("lab1_gpu_basics.benchmark").benchmark_matmul
    with _waiting_products(wait, note):
        returned = run("cpu", size, iterations, warmup=warmup)
    result = fields(returned, MatmulResult, f"benchmark_matmul('cpu', {size})")
    return SlowCpuReply(result=cast("Result", result), took=noted())
