"""What handlers of functions are given: the machine, its registry, and what all of its GPUs share.

A handler takes (mode, function, arguments, keywords), and answers in the function's place. Not here: which function has
which (`vgpu.torch_integration.dispatch.function_mode`).
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.overrides
from torch.overrides import TorchFunctionMode

from vgpu.runtime.gpu import VirtualGPU
from vgpu.runtime.machine import Machine
from vgpu.runtime.memory.residency import CPU_DEVICE
from vgpu.torch_integration import autocast


class HandlingMode(TorchFunctionMode):
    """A function mode of one machine; the one that has the handlers is `FunctionMode`."""

    gpu: VirtualGPU
    """Any of the GPUs, for what they share."""
    real_device: torch.device

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine
        self.registry = machine.registry
        self.has = machine.registry.has
        self.weights = autocast.WeightCache()

    def host_reads(self, tensor: torch.Tensor) -> None:
        """Something that is no operation reads a tensor of the host."""
        watch = self.machine.watch
        if watch is not None and watch.has_copies:
            watch.host_operation([tensor], [])

    def begin(self) -> None:
        """Know which machine it is."""
        self.gpu = self.machine.gpus[0]
        self.real_device = CPU_DEVICE if self.machine.values else torch.device("meta")


def seen_by(mode: TorchFunctionMode) -> AbstractContextManager[Any]:
    """The function mode is on inside, once: entered twice, it would take its own calls for the program's."""
    is_on = any(other is mode for other in torch.overrides._get_current_function_mode_stack())
    return contextlib.nullcontext() if is_on else mode
