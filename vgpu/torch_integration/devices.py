"""Device arguments: which virtual GPU `"cuda"`, `"cuda:1"`, `1` or a `torch.device` means.

Not here: what is then done on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from vgpu.runtime.faults import cuda_error
from vgpu.runtime.thread_state import THREAD

__all__ = ["cuda_error", "gpu_at", "place"]

if TYPE_CHECKING:
    from vgpu.runtime.gpu import VirtualGPU
    from vgpu.runtime.machine import Machine


def gpu_at(machine: Machine, index: int) -> VirtualGPU:
    """The GPU of an index; raises torch.AcceleratorError, as CUDA does, where there is none."""
    if machine.is_open:
        machine.choose()
    if not machine.sees_any:
        machine.require_usable()
    if not 0 <= index < len(machine.gpus):
        raise cuda_error("invalid device ordinal", "GPU device may be out of range, do you have enough GPUs?\n")
    return machine.gpus[index]


def place(machine: Machine, device: Any) -> VirtualGPU | None:
    """The GPU that a device argument means, None for every other device (None included); "cuda" is the current GPU."""
    if device is None:
        return None
    if isinstance(device, int):
        return gpu_at(machine, device)
    parsed = device if isinstance(device, torch.device) else torch.device(device)
    if parsed.type != "cuda":
        return None
    if machine.is_open:
        machine.choose()
    if not machine.sees_any:
        machine.require_usable()
    return machine.gpus[THREAD.device] if parsed.index is None else gpu_at(machine, parsed.index)
