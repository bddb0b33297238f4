"""What the two modes and the patches share: which GPU is attached, and what the calling thread is doing.

Not here: any behaviour.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vgpu.gpu import VirtualGPU


class ThreadState(threading.local):
    """Per thread: the device that a factory call asked for, and the current stream.

    `target` is True (GPU) or False (host) inside a Python-level factory call, else None.
    """

    target: bool | None = None
    stream: int = 0


THREAD = ThreadState()
_attached: list[VirtualGPU] = []


def attached() -> VirtualGPU | None:
    """The virtual GPU that is attached now, or None."""
    return _attached[-1] if _attached else None


def set_attached(gpu: VirtualGPU | None) -> None:
    """Record the attached GPU (None: detached)."""
    _attached.clear()
    if gpu is not None:
        _attached.append(gpu)
