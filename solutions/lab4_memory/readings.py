"""Given: the clock and the memory of a device, read as Lab 1 taught it.

Nothing to write here.
"""

import statistics
import time
from collections.abc import Callable

import torch


def median_seconds(work: Callable[[], object], device: str, *, steps: int, warmup: int) -> float:
    """Median seconds of one call of `work`, each timed from an idle device to an idle device.

    After `warmup` untimed calls the peak of the device's memory is reset, so that it is the peak of the timed ones.
    """
    for _ in range(warmup):
        work()
    reset_peak(device)
    seconds = []
    for _ in range(steps):
        start = now(device)
        work()
        seconds.append(now(device) - start)
    return statistics.median(seconds)


def now(device: str) -> float:
    """The clock in seconds, read when the device is idle."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def allocated_bytes(device: str) -> int | None:
    """Bytes allocated on the device; None on a CPU, whose memory PyTorch does not count."""
    return torch.cuda.memory_allocated(device) if torch.device(device).type == "cuda" else None


def requested_bytes(device: str) -> int:
    """Bytes that live tensors on a GPU asked for, without what the allocator added to round them up."""
    return int(torch.cuda.memory_stats(device).get("requested_bytes.all.current", 0))


def reset_peak(device: str) -> None:
    """The peak begins again, from what is allocated now; nothing on a CPU."""
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: str) -> int | None:
    """Most bytes allocated since the last reset; None on a CPU."""
    return torch.cuda.max_memory_allocated(device) if torch.device(device).type == "cuda" else None
