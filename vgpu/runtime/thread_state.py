"""What the calling thread is doing: its device and streams, and the device that a factory call asked for.

Not here: which machine is attached (`vgpu.runtime.attachment`), and the thread's time (`vgpu.timing`).
"""

from __future__ import annotations

import threading
from typing import Any

# The value of `THREAD.target` for a factory call that asked for the host.
HOST = -1


class ThreadState(threading.local):
    """Per thread: the current device, the current stream of each device, and the device that a factory call asked for.

    `target` is the index of a GPU, or HOST, inside a Python-level factory call, else None. A new thread starts on
    device 0 and the default streams (CUDA C++ Programming Guide, "Device Selection").
    """

    device: int = 0
    target: int | None = None
    capture: Any = None
    """Notes kernels, while this thread captures a CUDA graph (`vgpu.torch_integration.compiled.graphs`)."""
    fusion: Any = None
    """Joins kernels, while this thread runs compiled code (`vgpu.torch_integration.compiled.fusion`)."""
    entering: Any = None
    """While a backward pass runs on several streams: by node, what makes its streams current
    (`vgpu.torch_integration.patches.backward_streams`)."""
    graphs: int = 0
    """How many graphs PyTorch is tracing (`vgpu.torch_integration.patches.fake_devices`)."""
    tally: Any = None
    """Counts what the programs of a Triton kernel do (`vgpu.torch_integration.compiled.programs`)."""
    scripted: Any = None
    """Follows TorchScript while this thread runs it (`vgpu.torch_integration.patches.torchscript`)."""
    generator: Any = None
    """The GPU's generator that the operation which is being called was given (`vgpu.runtime.random.generator`)."""

    def __init__(self) -> None:
        self.streams: dict[int, int] = {}
        self.stream_notes: list[tuple[int, dict[int, int]]] = []
        """From which node of autograd's graph on which streams were current; empty: default streams."""

    def reset(self) -> tuple[int, int | None, dict[int, int]]:
        """As in a new thread; returns what was there before, for `restore`."""
        before = self.device, self.target, self.streams
        self.device, self.target, self.streams = 0, None, {}
        self.fusion = self.capture = self.tally = None
        self.stream_notes = []
        return before

    def restore(self, before: tuple[int, int | None, dict[int, int]]) -> None:
        """As it was before `reset`."""
        self.device, self.target, self.streams = before


THREAD = ThreadState()
