"""What the Python of an optimizer's step takes the host, which goes through its tensors before it launches anything.

Not here: its kernels, which are operations as any other, and the memory that is its own
(`vgpu.runtime.memory.categories`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

from typing import Any

import torch
from torch.optim import optimizer as optimizer_hooks

from vgpu.device import cost
from vgpu.runtime.attachment import machine as attached_machine
from vgpu.runtime.machine import Machine
from vgpu.runtime.patching import PatchSet


def install(patches: PatchSet, machine: Machine) -> None:
    """Let every step of an optimizer of this machine's tensors spend that time."""

    def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        if attached_machine() is not machine:
            return
        with torch._C.DisableTorchFunction():
            tensors = [tensor for group in optimizer.param_groups for tensor in group["params"]]
            gpu = machine.registry.gpu_of(tensors[0]) if tensors else None
            count = sum(tensor.grad is not None for tensor in tensors)
        if gpu is not None:
            name = f"Optimizer.step#{type(optimizer).__name__}.step"
            machine.clock.spend(cost.optimizer_seconds(gpu.spec), "operation", name, "optimizer", times=count)

    patches.on_undo(optimizer_hooks.register_optimizer_step_pre_hook(before_step).remove)
