"""Which machine is attached: what the two modes and the patches share.

Not here: what the calling thread is doing (`vgpu.runtime.thread_state`), and any behaviour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpu.runtime.operations.registries import registries
from vgpu.runtime.thread_state import THREAD

if TYPE_CHECKING:
    from vgpu.runtime.gpu import VirtualGPU
    from vgpu.runtime.machine import Machine

_machines: list[Machine] = []


def machine() -> Machine | None:
    """The machine that is attached now, or None."""
    return _machines[-1] if _machines else None


def attached() -> VirtualGPU | None:
    """The calling thread's current virtual GPU (`torch.cuda.current_device()`), or None when none is attached."""
    if not _machines:
        return None
    gpus = _machines[-1].gpus
    # A thread may have chosen its device under an earlier machine that had more of them.
    return gpus[THREAD.device if THREAD.device < len(gpus) else 0]


def push(machine: Machine) -> None:
    """A machine is attached, perhaps inside another attachment."""
    _machines.append(machine)
    registries.append(machine.registry)


def pop(machine: Machine) -> None:
    """A machine has been left: the one that was attached before is so again."""
    if machine in _machines:
        _machines.remove(machine)
        registries.remove(machine.registry)
