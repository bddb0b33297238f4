"""What calling a module takes the host: the Python of `nn.Module.__call__`, and the look-ups of its parameters.

A container costs as much as a layer: a deep model of small operations is Python before it is anything else. Compiled
code calls no modules. Not here: the operations inside, and hooks, which are the program's own.
"""

from __future__ import annotations

from typing import Any

import torch

from vgpu.device import cost
from vgpu.runtime.attachment import machine as attached_machine
from vgpu.runtime.machine import Machine
from vgpu.runtime.patching import PatchSet
from vgpu.runtime.thread_state import THREAD

_is_compiling = torch.compiler.is_compiling


def install(patches: PatchSet, machine: Machine) -> None:
    """Let every call of a module spend that time on the clock of the thread that calls."""
    call_module = torch.nn.Module.__call__
    spend, seconds = machine.clock.spend, 0.0

    def begin() -> None:
        nonlocal seconds
        seconds = cost.module_seconds(machine.spec)

    patches.at_begin(begin)

    def __call__(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 - what tracebacks name
        if not _is_compiling() and attached_machine() is machine:
            fusion = THREAD.fusion
            if fusion is None or not fusion.is_open:
                spend(seconds, "module", type(self).__name__, "module")
        return call_module(self, *args, **kwargs)

    patches.set(torch.nn.Module, "__call__", __call__)
    patches.rebind(call_module, __call__)  # TorchDynamo takes a short cut past the `__call__` that it knows
