"""What the two modes and the patches share: the machine that is attached, and what the calling thread is doing.

Not here: any behaviour.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vgpu.gpu import VirtualGPU
    from vgpu.machine import Machine

# The value of `THREAD.target` for a factory call that asked for the host.
HOST = -1


class ThreadState(threading.local):
    """Per thread: the current device, the current stream of each device, and the device that a factory call asked for.

    `target` is the index of a GPU, or HOST, inside a Python-level factory call, else None. A new thread starts on
    device 0 and the default streams (CUDA C++ Programming Guide, "Device Selection").
    """

    device: int = 0
    target: int | None = None
    generator: Any = None
    """The GPU's generator that the operation which is being called was given (`vgpu.random.generator`)."""

    def __init__(self) -> None:
        self.streams: dict[int, int] = {}

    def reset(self) -> tuple[int, int | None, dict[int, int]]:
        """As in a new thread; returns what was there before, for `restore`."""
        before = self.device, self.target, self.streams
        self.device, self.target, self.streams = 0, None, {}
        return before

    def restore(self, before: tuple[int, int | None, dict[int, int]]) -> None:
        """As it was before `reset`."""
        self.device, self.target, self.streams = before


THREAD = ThreadState()
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


def pop(machine: Machine) -> None:
    """A machine has been left: the one that was attached before is so again."""
    if machine in _machines:
        _machines.remove(machine)
