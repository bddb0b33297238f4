"""How the workloads set precision and read the clock, as the published measurements did."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

DTYPES = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "amp_fp16": torch.float16,
    "amp_bf16": torch.bfloat16,
    "o2": torch.float16,
}


def dtype_of(precision: str) -> torch.dtype:
    """The low precision that a name stands for; FP32 for the others."""
    return DTYPES.get(precision, torch.float32)


def is_amp(precision: str) -> bool:
    """Whether the workload runs under autocast."""
    return precision.startswith("amp")


def allow_tf32(precision: str) -> None:
    """PyTorch's switches: "tf32" sets both, "fp32" none, others leave the default (convolutions only)."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision != "fp32"


def device_seconds(call: Callable[[], object], times: int = 10, warmup: int = 3) -> float:
    """Seconds of a call between two CUDA events, as the mean of `times` calls after `warmup` untimed ones."""
    for _ in range(warmup):
        call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(times):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / times


def wall_seconds(call: Callable[[], object], times: int = 3, warmup: int = 3) -> float:
    """Seconds of a call by the host's clock, the device waited for before and after."""
    for _ in range(warmup):
        call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / times
