"""How long something takes on the GPU, for the notebooks that compare. Not for the labs: timing is Lab 1's task."""

import time
from collections.abc import Callable

import torch

_WARMUP = 3


def seconds_of(work: Callable[[], object], calls: int = 4) -> float:
    """Mean seconds of a call: some untimed ones before, and the GPU idle when the clock starts and when it stops."""
    for _ in range(_WARMUP):
        work()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / calls
