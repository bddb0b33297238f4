"""`torch.Generator(device="cuda")` and the default generator of each GPU.

Not here: the generator itself (`vgpu.runtime.random.generator`) and which operations draw from it
(`vgpu.torch_integration.dispatch.dispatch_mode`).
"""

from __future__ import annotations

from typing import Any

import torch

from vgpu.runtime.attachment import machine as attached_machine
from vgpu.runtime.machine import Machine
from vgpu.runtime.patching import PatchSet
from vgpu.runtime.random.generator import on
from vgpu.torch_integration.devices import place

_plain = torch.Generator


class _Kind(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _plain)


class Generator(metaclass=_Kind):
    """Stands for `torch.Generator` while a GPU is attached."""

    def __new__(cls, device: Any = "cpu") -> Any:
        machine = attached_machine()
        gpu = None if machine is None else place(machine, device)
        return _plain(device) if gpu is None else on(gpu.device)


def install(patches: PatchSet, machine: Machine) -> None:
    """Show each GPU's generator, and make new ones for a GPU."""
    patches.at_begin(
        lambda: patches.set(torch.cuda, "default_generators", tuple(gpu.generator for gpu in machine.gpus))
    )
    patches.set_existing(torch._C, "_accelerator_getDefaultGenerator", lambda index: machine.gpus[index].generator)
    patches.rebind(_plain, Generator)
