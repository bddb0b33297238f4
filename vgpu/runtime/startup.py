"""What the first who needs it makes, in its time, while other threads wait: CUDA contexts, libraries, their handles.

Not here: workspaces (`vgpu.runtime.memory.workspaces`), and who asks (`vgpu.runtime.gpu`).
"""

from __future__ import annotations

from collections.abc import Hashable

from vgpu.device.spec import Spec
from vgpu.runtime.host_clock import HostClock
from vgpu.runtime.thread_scheduler import ThreadClock

_LIBRARIES = {"blas": "cuBLAS", "cudnn": "cuDNN"}


class Once:
    """What a process makes once, for all its GPUs."""

    def __init__(self, clock: HostClock) -> None:
        self._clock = clock
        self._ready_at: dict[Hashable, float] = {}
        # What is being made: by which thread, and who waits for it.
        self._making: dict[Hashable, tuple[ThreadClock, list[ThreadClock]]] = {}

    def __contains__(self, what: Hashable) -> bool:
        """Whether it is there, or will be."""
        return what in self._ready_at

    def forget(self, what: Hashable) -> None:
        """It is not there, as in a child process."""
        self._ready_at.pop(what, None)
        self._making.pop(what, None)

    def make(self, what: Hashable, seconds: float, name: str, key: str) -> bool:
        """Make it in `seconds`, or wait for who does; whether the calling thread has made it.

        `name` is that of the host's span, `key` says what of the card decides how long it takes.
        """
        mine = self._clock.mine()
        if what not in self._ready_at:
            self._ready_at[what] = mine.now + seconds
            making = self._making[what] = (mine, [])
            try:
                self._clock.spend(seconds, "start", name, key)
            finally:
                self._making.pop(what, None)
                for waiting in making[1]:
                    self._clock.call(waiting)
            return True
        if what not in self._making or not mine.takes_part:
            self._clock.wait_until(self._ready_at[what], name)
        elif self._making[what][0] is not mine:  # else a signal handler or a finalizer of the thread that makes it
            self._clock.scheduler.prepare(mine)
            self._making[what][1].append(mine)
            self._clock.block()
        return False


class Startup:
    """What is made for one GPU."""

    def __init__(self, spec: Spec, once: Once, index: int) -> None:
        self._spec = spec
        self._once = once
        self._index = index
        self.handles: set[tuple[str, bool]] = set()
        """That there are: library, and whether autograd's thread has made it."""

    @property
    def has_begun(self) -> bool:
        """Whether there is a context, or will be."""
        return ("context", self._index) in self._once

    def forked(self) -> None:
        """In a child process there is no context."""
        self._once.forget(("context", self._index))

    def context(self) -> None:
        """Create the CUDA context, or wait for it."""
        self._once.make(("context", self._index), self._spec.context_seconds, "CUDA context", "context")

    def handle(self, library: str, *, backward: bool) -> None:
        """A handle of cuBLAS ("blas") or cuDNN ("cudnn"), for the program's threads or for autograd's.

        Loading the library is the expensive part, and done once per process.
        """
        handle = (library, backward)
        if handle in self.handles:
            return
        whole = self._spec.blas_handle_seconds if library == "blas" else self._spec.cudnn_handle_seconds
        name = f"{_LIBRARIES[library]} handle"
        if not self._once.make(library, whole, name, library) and handle not in self.handles:
            self._once.make((library, backward, self._index), whole / 10, name, f"{library} again")
        self.handles.add(handle)
