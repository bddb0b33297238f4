"""The simulated machine: its virtual GPUs, the links between them, and what they share - clock, host, registry.

Not here: one GPU's queue and memory (`vgpu.runtime.gpu`), and communication between processes.
"""

from __future__ import annotations

from multiprocessing.connection import Connection

import torch

from vgpu.device.kernel_work import PEER, KernelWork
from vgpu.device.recording.file import Recording
from vgpu.device.remote import Line
from vgpu.device.spec import Interconnect, Spec
from vgpu.device.timestamps import start_of
from vgpu.runtime.gpu import Views, VirtualGPU
from vgpu.runtime.hazards.watch import Watch
from vgpu.runtime.host_clock import HostClock
from vgpu.runtime.memory.categories import Ledger
from vgpu.runtime.memory.residency import InnerRegistry, Registry
from vgpu.runtime.recorder import Recorder
from vgpu.runtime.startup import Once
from vgpu.runtime.visible_devices import VisibleDevices

_PEER_COPY = "Memcpy PtoP (Device -> Device)"


class Machine:
    """Equal virtual GPUs in one process. Times are virtual seconds since attach."""

    spec: Spec
    interconnect: Interconnect

    def __init__(self, *, outer: Machine | None = None) -> None:
        """A machine without a GPU, until it `become`s another; `outer` is the one that is attached already."""
        self.clock = HostClock()
        self.registry: Registry[VirtualGPU] = Registry() if outer is None else InnerRegistry(outer.registry)
        self.gpus: tuple[VirtualGPU, ...] = ()
        # All GPUs by their number on the computer, and the choice among them while it is open.
        self.cards: tuple[VirtualGPU, ...] = ()
        self.visible: VisibleDevices
        self.sees_any = True
        self.is_open = True
        self.values = True
        self.ledger = Ledger(self.registry.block_of, lambda: [gpu.memory for gpu in self.gpus])
        self.recorder: Recorder | None = None
        self.views: Views | None = None
        self.host_slowdowns: list[tuple[int, float]] = []
        self.once = Once(self.clock)
        # This process's rank in the default process group, once there is one, and the number of ranks.
        self.rank: int | None = None
        self.ranks = 1
        self.in_bad_fork = False
        self.is_initialized = False
        # `torch.cuda.set_sync_debug_mode`: 0 nothing, 1 a warning, 2 an error when the host waits for the device.
        self.sync_debug_mode = 0
        # With shapes only a copy to existing host memory writes zeros there, unless PyTorch itself needs what it sent.
        self.keeps_host_values = False
        # Who looks for races between streams and copies, once there may be one.
        self.watch: Watch | None = None

    def become(self, spec: Spec, *, gpus: int, interconnect: Interconnect, values: bool) -> None:
        """Be a machine of `gpus` of these GPUs, once. Raises ValueError for no GPU."""
        if isinstance(gpus, bool) or not isinstance(gpus, int) or gpus < 1:
            raise ValueError(f"gpus = {gpus!r}: a machine has at least one GPU")
        self.spec = spec
        self.values = values
        self.interconnect = interconnect
        self.gpus = self.cards = tuple(VirtualGPU(self, index) for index in range(gpus))
        self.visible = VisibleDevices([gpu.uuid for gpu in self.gpus])

    def watched(self) -> Watch:
        """Who looks for races, from now on."""
        if self.watch is None:
            self.watch = Watch(self)
        return self.watch

    def record(self) -> Recorder:
        """Write down what happens from now on; before the program uses a GPU."""
        self.recorder = Recorder(self.clock, [gpu.queue for gpu in self.gpus])
        self.recorder.start()
        return self.recorder

    def recording(self, program: str) -> Recording:
        """What was written down so far. Raises ValueError where `record` was not called."""
        if self.recorder is None:
            raise ValueError("this machine was not recorded")
        samples = [sample for gpu in self.gpus for sample in gpu.memory_timeline]
        return Recording(
            gpu=self.spec.name, interconnect=self.interconnect.name, gpus=len(self.gpus), rank=self.rank,
            ranks=self.ranks, program=program, torch=torch.__version__,
            seconds=max([self.clock.now, *(gpu.queue.ready_at() for gpu in self.gpus)]),
            allocated_bytes=max((sample.allocated_bytes for sample in samples), default=0),
            reserved_bytes=max((sample.reserved_bytes for sample in samples), default=0),
            works=tuple(self.recorder.works), entries=list(self.recorder.entries),
        )  # fmt: skip

    def host_operation(self) -> None:
        """One more operation on the host: a host hiccup may hit it."""
        if self.host_slowdowns:
            due = [seconds for left, seconds in self.host_slowdowns if left == 0]
            self.host_slowdowns = [(left - 1, seconds) for left, seconds in self.host_slowdowns if left > 0]
            self.clock.advance(sum(due))

    def forked(self) -> None:
        """This process is a fork: the GPUs of a parent that has used them are out of its reach."""
        self.clock.forked()
        used = [gpu.forked() for gpu in self.gpus]
        if any(used):
            self.in_bad_fork = True
            self.is_initialized = False

    def move_to(self, connection: Connection) -> None:
        """The devices are in another process from now on (`vgpu.device.service`), at the other end of `connection`."""
        line = Line(connection)
        for gpu in self.gpus:
            gpu.move_to(line)

    def device_count(self) -> int:
        """How many GPUs the program sees; nothing is decided by asking (torch/cuda/__init__.py, `device_count`)."""
        if not self.gpus or not self.is_open:
            return len(self.gpus) if self.sees_any else 0
        return len(self.visible.read())

    def choose(self) -> None:
        """The driver is asked for the first time: CUDA_VISIBLE_DEVICES counts as it is now, and never again."""
        if not self.is_open or not self.gpus:
            return
        self.is_open = False
        seen = self.visible.read()
        if len(seen) == len(self.gpus) and list(seen) == sorted(seen):
            return
        hidden = [number for number in range(len(self.gpus)) if number not in seen]
        for gpu, number in zip(self.gpus, (*seen, *hidden), strict=True):
            gpu.number = number
        self.cards = tuple(sorted(self.gpus, key=lambda gpu: gpu.number))
        self.sees_any = bool(seen)
        if seen:
            self.gpus = self.gpus[: len(seen)]

    def physical_number(self, gpu: VirtualGPU) -> int:
        """A GPU's number on the computer, of which a process may see only some."""
        has_chosen = self.gpus != self.cards
        return gpu.number if has_chosen else self.visible.physical(gpu.index)

    def initialise(self) -> None:
        """What `torch.cuda._lazy_init` does; raises as `require_usable`."""
        self.require_usable()
        self.is_initialized = True

    def require_usable(self) -> None:
        """Raise as `torch.cuda._lazy_init` does in a forked child of a process that has used CUDA, or without a GPU."""
        if not self.gpus:
            raise RuntimeError("no virtual GPU has begun yet: this process, or one above it, has only prepared one")
        if self.is_open:
            self.choose()
        if not self.sees_any:
            raise RuntimeError("No CUDA GPUs are available")
        if self.in_bad_fork:
            raise RuntimeError(
                "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the "
                "'spawn' start method"
            )

    def peer_copy(self, source: VirtualGPU, target: VirtualGPU, moved: int) -> None:
        """A copy from one GPU to another keeps both current streams busy; the host goes on.

        It runs on the source's stream, after what is queued on both (Copy.cu, `copy_device_to_device`: a two-way
        barrier before the copy, and the target's stream waits for its end).
        """
        source.start()
        target.start()
        source.queue.hold_until(source.stream, target.queue.ready_at(target.stream))
        work = KernelWork(_PEER_COPY, moved, kind=PEER)
        source.launch(work)
        end = source.queue.ready_at(source.stream)
        target.queue.hold_until(target.stream, start_of(end, source.queue.pricing.seconds(work)))
        target.launch(work, host_seconds=0.0)
        if self.watch is not None:
            self.watch.stream_waits(source, source.stream, self.watch.point(target, target.stream))
            self.watch.stream_waits(target, target.stream, self.watch.point(source, source.stream))
