"""Given: the clock and the memory of a device, read as Lab 1 taught it, and the names of precisions.

Nothing to write here.
"""

import time

import torch

PRECISIONS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
"""What this lab trains in, by the name that results have."""


def now(device: torch.device) -> float:
    """The clock in seconds, read when the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def reset_peak(device: torch.device) -> None:
    """The peak begins again, from what is allocated now; nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int | None:
    """Most bytes allocated since the last reset; None on a CPU, whose memory PyTorch does not count."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def dtype_name(dtype: torch.dtype) -> str:
    """A dtype as results name it: "float16"."""
    return str(dtype).removeprefix("torch.")
