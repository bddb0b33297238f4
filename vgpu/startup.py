"""What the first who uses a GPU makes, in its time, while other threads wait: the CUDA context, and libraries' handles.

Not here: workspaces (`vgpu.memory.workspaces`), and who asks (`vgpu.gpu`).
"""

from __future__ import annotations

from collections.abc import Hashable

from vgpu.spec import Spec
from vgpu.timing.clock import HostClock
from vgpu.timing.turns import ThreadClock

_CONTEXT = "context"
_LIBRARIES = {"blas": "cuBLAS", "cudnn": "cuDNN"}


class Startup:
    """That of one GPU, in this process."""

    def __init__(self, spec: Spec, clock: HostClock, loaded: set[str]) -> None:
        """`loaded` are the libraries that the process has loaded, for any GPU."""
        self._spec = spec
        self._clock = clock
        self._loaded = loaded
        self._ready_at: dict[Hashable, float] = {}
        # What is being made: by which thread, and who waits for it.
        self._making: dict[Hashable, tuple[ThreadClock, list[ThreadClock]]] = {}
        self._handles: set[tuple[str, bool]] = set()

    @property
    def has_begun(self) -> bool:
        """Whether there is a context, or will be."""
        return _CONTEXT in self._ready_at

    def forked(self) -> None:
        """In a child process there is nothing of it."""
        self._ready_at.clear()
        self._making.clear()

    def context(self) -> None:
        """Create the CUDA context, or wait for it."""
        self._make(_CONTEXT, self._spec.context_seconds, "CUDA context", "context")

    def handle(self, library: str, *, backward: bool) -> None:
        """A handle of cuBLAS ("blas") or cuDNN ("cudnn"), for the program's threads or for autograd's."""
        handle = (library, backward)
        if handle in self._handles:
            return
        whole = self._spec.blas_handle_seconds if library == "blas" else self._spec.cudnn_handle_seconds
        # Loading the library is the expensive part, and done once per process.
        first = library not in self._loaded
        self._loaded.add(library)
        seconds, key = (whole, library) if first else (whole / 10, f"{library} again")
        self._make(handle, seconds, f"{_LIBRARIES[library]} handle", key)
        self._handles.add(handle)

    def _make(self, what: Hashable, seconds: float, name: str, key: str) -> None:
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
        elif what not in self._making or not mine.takes_part:
            self._clock.wait_until(self._ready_at[what], name)
        elif self._making[what][0] is not mine:  # else a signal handler or a finalizer of the thread that makes it
            self._clock.turns.prepare(mine)
            self._making[what][1].append(mine)
            self._clock.block()
