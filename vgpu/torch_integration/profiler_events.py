"""What an active profile sees: operations, kernels, regions, with shapes, memory and stacks where they are asked for.

Not here: PyTorch's classes around it (`vgpu.torch_integration.profiler`), and the history that is always kept
(`vgpu.runtime.views.history`).
"""

from __future__ import annotations

import base64
import io
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vgpu.device.queue import Kernel
from vgpu.runtime.views import history, trace

if TYPE_CHECKING:
    from vgpu.runtime.gpu import VirtualGPU

_PACKAGE = str(Path(__file__).parents[1])
_DEEPEST_STACK = 64
# Ways from a call into the simulation that lie in PyTorch's files; on CUDA they would not be there.
_HOOKS = {"__torch_function__", "__torch_dispatch__"}
# The columns of PyTorch's memory timelines (torch/profiler/_memory_profiler.py, _CATEGORY_TO_INDEX): parameter,
# optimizer state, input, temporary, activation, gradient, autograd detail, unknown.
_COLUMNS = {"parameters": 0, "optimizer_state": 1, "workspaces": 3, "activations": 4, "gradients": 5, "other": 7}
_COLUMN_COUNT = 8


@dataclass(frozen=True, slots=True)
class HostEvent:
    """Something the host did: an operation, a wait, or a named region. Seconds since attach."""

    name: str
    start: float
    end: float
    thread: int
    shapes: tuple[tuple[int, ...], ...] = ()
    kernel: Kernel | None = None
    device: int = 0
    memory_bytes: int = 0
    region: bool = False
    stack: tuple[str, ...] = ()
    on_host: bool = True
    on_device: bool = True
    memcpy: bool = False
    """Its kernel is a copy within the device that CUDA's copy engine makes."""


class Recorder:
    """Collects what happens on a machine's virtual GPUs and its host while a profile is active."""

    def __init__(
        self, gpu: VirtualGPU, *, cpu: bool = True, cuda: bool = True, shapes: bool = False, memory: bool = False,
        stacks: bool = False,
    ) -> None:  # fmt: skip
        self.gpu = gpu
        self.cpu, self.cuda, self.shapes, self.memory, self.stacks = cpu, cuda, shapes, memory, stacks
        self.events: list[HostEvent] = []
        self.metadata: dict[str, Any] = {}
        self.memcpy = False
        self.begin = self.end = gpu.clock.now
        self._gpus = history.gpus_of(gpu)
        self._allocated = [self._bytes(each) for each in self._gpus]

    def attach(self) -> None:
        """Record from now on."""
        self.begin = self.gpu.clock.now
        for each in self._gpus:
            each.recorder = self

    def detach(self) -> None:
        """Wait for the devices, and stop."""
        for each in self._gpus:
            if each.started:
                each.synchronize()
        for each in self._gpus:
            each.recorder = None
        self.end = self.gpu.clock.now

    @staticmethod
    def _bytes(gpu: VirtualGPU) -> int:
        return gpu.memory.settled().current("allocated_bytes")

    def _memory_change(self, index: int) -> int:
        if not self.memory:
            return 0
        allocated = self._bytes(self._gpus[index])
        change, self._allocated[index] = allocated - self._allocated[index], allocated
        return change

    def kernel(self, kernel: Kernel, end: float, index: int = 0) -> None:
        """An operation that launched a kernel (or a transfer) on GPU `index` and returned at `end`."""
        if self.cpu or self.cuda:
            self.events.append(
                HostEvent(
                    trace.host_name(kernel), kernel.launched_at, end, threading.get_ident(),
                    kernel.shapes if self.shapes else (), kernel, index, self._memory_change(index),
                    stack=self._stack(), on_host=self.cpu, on_device=self.cuda, memcpy=self.memcpy,
                )
            )  # fmt: skip
        self.memcpy = False

    def host(self, name: str, start: float, shapes: tuple[tuple[int, ...], ...] = ()) -> None:
        """Something that kept the host from `start` until now."""
        if self.cpu:
            self._add(name, start, shapes if self.shapes else (), region=False)

    def region(self, name: str, start: float) -> None:
        """A block that the program named, from `start` until now."""
        if self.cpu:
            self._add(name, start, (), region=True)

    def _add(self, name: str, start: float, shapes: tuple[tuple[int, ...], ...], *, region: bool) -> None:
        change = sum(self._memory_change(index) for index in range(len(self._gpus))) if not region else 0
        self.events.append(
            HostEvent(
                name, start, self.gpu.clock.now, threading.get_ident(), shapes, memory_bytes=change, region=region,
                stack=self._stack(),
            )
        )  # fmt: skip

    def _stack(self) -> tuple[str, ...]:
        """The program's Python frames, innermost first, as PyTorch writes them: "file(line): function"."""
        if not self.stacks:
            return ()
        lines: list[str] = []
        frame = sys._getframe(1)
        while frame is not None and len(lines) < _DEEPEST_STACK:
            code = frame.f_code
            if not (code.co_filename.startswith(_PACKAGE) or code.co_name in _HOOKS):
                lines.append(f"{code.co_filename}({frame.f_lineno}): {code.co_name}")
            frame = frame.f_back  # type: ignore[assignment]
        return tuple(lines)

    def _run(self, gpus: Sequence[int] | None = None) -> history.History:
        """The time in which it recorded, with the kernels that were launched in it."""
        kernels: list[list[Kernel]] = [[] for _ in self._gpus]
        for event in self.events:
            if event.kernel is not None:
                kernels[event.device].append(event.kernel)
        stop = max(self.end, self.begin + 1e-9)
        return history.record(self.gpu, start=self.begin, stop=stop, gpus=gpus, kernels=kernels)

    def document(self) -> dict[str, Any]:
        """The trace of the time in which it recorded."""
        # Kernels that were launched before the profile began may still run in it; Kineto does not see those either.
        run = self._run()
        return trace.document(self.gpu, run, self.shapes, self.metadata)

    def export_memory(self, path: str | os.PathLike[str], index: int) -> None:
        """PyTorch's memory timeline of GPU `index`: .json, .json.gz or .html."""
        run = self._run([index])
        if str(path).endswith(".html"):
            Path(path).write_text(_page(run), encoding="utf-8")
            return
        (device,) = run.devices
        splits = device.categories or [(sample.seconds, {"other": sample.allocated_bytes}) for sample in device.memory]
        times, sizes = [], []
        for moment, split in splits:
            row = [0] * (1 + _COLUMN_COUNT)
            for name, size in split.items():
                row[1 + _COLUMNS.get(name, _COLUMN_COUNT - 1)] += size
            times.append(round(max(moment, run.start) * 1e6))
            sizes.append(row)
        trace.write([times, sizes], path)


def _page(run: history.History) -> str:
    from vgpu.runtime.views import picture

    picture.require_matplotlib()
    buffer = io.BytesIO()
    picture.draw(run).savefig(buffer, format="png", dpi=120)
    image = base64.b64encode(buffer.getvalue()).decode()
    return (
        '<html><head><meta charset="utf-8"><title>GPU memory timeline (simulated)</title></head>'
        f'<body><img src="data:image/png;base64,{image}" alt="{trace.MARK}"></body></html>\n'
    )
