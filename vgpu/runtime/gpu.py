"""A virtual GPU: one object that holds its queue, memory and history, and that programs may ask.

Not here: how operations get to it (`vgpu.torch_integration.dispatch.dispatch_mode`,
`vgpu.torch_integration.dispatch.function_mode`) and the patches of `torch.cuda`.
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import torch

from vgpu.device import cost
from vgpu.device.kernel_work import COPY, TO_DEVICE, TO_HOST, KernelWork
from vgpu.device.pricing import Pricing
from vgpu.device.queue import ON_HOST, DeviceQueue, Kernel, Queue, Slowdown
from vgpu.device.recording.file import Recording
from vgpu.device.remote import Line, RemoteQueue
from vgpu.device.spec import Interconnect, Spec
from vgpu.runtime import audit_events, caller
from vgpu.runtime.audit_events import READ_EVENT
from vgpu.runtime.faults import Fault, launch_blocking
from vgpu.runtime.hazards.watch import Hazard, Watch
from vgpu.runtime.host_clock import HostClock
from vgpu.runtime.memory import categories
from vgpu.runtime.memory.categories import Ledger
from vgpu.runtime.memory.device_memory import DeviceMemory, MemorySample
from vgpu.runtime.memory.residency import Registry
from vgpu.runtime.memory.workspaces import Workspaces
from vgpu.runtime.operations import copies, kernel_cost, traffic
from vgpu.runtime.operations.operation import Operation
from vgpu.runtime.random import generator
from vgpu.runtime.recorder import Recorder
from vgpu.runtime.startup import Once, Startup
from vgpu.runtime.thread_state import THREAD

# What the queries that return at once cost on the host (cudaEventQuery, cudaStreamQuery): modelled.
QUERY_SECONDS = 5e-7
# What PyTorch says where a card has no FP8 (aten/src/ATen/native/cuda/ScaledBlas.cpp).
_NO_FLOAT8 = (
    "torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9, or ROCm MI300+ "
    "[simulated by vgpu]"
)
# Bound here: a program may replace `sys.audit`.
_audit = sys.audit


class Host(Protocol):
    """What the GPUs of a machine share (`vgpu.runtime.machine.Machine`)."""

    spec: Spec
    values: bool
    clock: HostClock
    registry: Registry[VirtualGPU]
    ledger: Ledger
    interconnect: Interconnect
    host_slowdowns: list[tuple[int, float]]
    once: Once
    sync_debug_mode: int
    is_initialized: bool
    keeps_host_values: bool
    recorder: Recorder | None
    watch: Watch | None
    gpus: tuple[VirtualGPU, ...]
    rank: int | None
    ranks: int
    views: Views | None

    def physical_number(self, gpu: VirtualGPU) -> int:
        """A GPU's number on the computer, of which a process may see only some."""

    def require_usable(self) -> None:
        """Raise where CUDA cannot be used."""

    def watched(self) -> Watch:
        """Who looks for races between streams and copies, from now on."""

    def record(self) -> Recorder:
        """Write down what happens from now on."""

    def move_to(self, connection: Connection) -> None:
        """The devices are in another process from now on."""

    def recording(self, program: str) -> Recording:
        """What was written down so far."""


class Views(Protocol):
    """How people look at what a GPU has done (`vgpu.runtime.views.views`)."""

    def summary(self, gpu: VirtualGPU, count: int) -> str:
        """Text for `VirtualGPU.summary`."""

    def save_picture(self, gpu: VirtualGPU, path: Path, **window: Any) -> Path:
        """A file for `VirtualGPU.save_picture`."""

    def save_trace(self, gpu: VirtualGPU, path: Path, **window: Any) -> Path:
        """A file for `VirtualGPU.save_trace`."""


class Profile(Protocol):
    """An object that sees each kernel and each step of the host while it lasts
    (`vgpu.torch_integration.profiler_events`)."""

    metadata: dict[str, Any]
    memcpy: bool
    """The kernel that comes next is a plain copy within the device."""

    def kernel(self, kernel: Kernel, end: float, index: int = 0) -> None:
        """An operation has launched `kernel` on GPU `index`, and returned at `end`."""

    def host(self, name: str, start: float, shapes: tuple[tuple[int, ...], ...] = ()) -> None:
        """Something has kept the host from `start` until now."""

    def region(self, name: str, start: float) -> None:
        """A block that the program named ends."""


class VirtualGPU:
    """A simulated GPU. Times are virtual seconds since attach; everything here is simulated, nothing measured.

    `timeline` lists every kernel and transfer (`Kernel`), `memory_timeline` every change of memory.
    """

    def __init__(self, machine: Host, index: int) -> None:
        self.machine = machine
        self.index = index
        self.number = index
        """On the computer, of whose GPUs a program may see some only (CUDA_VISIBLE_DEVICES)."""
        self.device = torch.device("cuda", index)
        spec = self.spec = machine.spec
        self.values = machine.values
        # Shared by the GPUs of a machine: the host's clock, and the registry of what lives on which of them.
        self.clock = machine.clock
        self.registry = machine.registry
        self.queue: Queue = DeviceQueue(Pricing(spec, machine.interconnect), index)
        self.memory = DeviceMemory(spec, self.clock, index, self.queue)
        self.workspaces = Workspaces(self)
        self.generator = generator.on(self.device)
        self.recorder: Profile | None = None
        self.started = False
        self.waited_at = -1.0
        """When the host has last waited for the default stream (seconds)."""
        self.fault: Fault | None = None
        self.is_blocking = launch_blocking()
        self._startup = Startup(spec, machine.once, index)
        self.handles = self._startup.handles
        known = audit_events.kernels()
        next(known)
        self.repeats: Callable[[Any], Any] = known.send
        """Kernels that it has run, by what decides them (`vgpu.torch_integration.dispatch.repeats`)."""

    @property
    def uuid(self) -> str:
        """What NVML and the device properties call it by; the digits spell "vgpu"."""
        return f"00000000-0000-0000-0000-76677075{self.number:04x}"

    @property
    def stream(self) -> int:
        """The calling thread's current stream on this GPU."""
        return THREAD.streams.get(self.index, 0)

    # ---- what a program asks -------------------------------------------------------------------------------------

    @property
    def timeline(self) -> list[Kernel]:
        """Kernels and transfers in the order of their launch (a list that grows: copy it to keep it)."""
        return self.queue.timeline

    @property
    def memory_timeline(self) -> list[MemorySample]:
        """(seconds, allocated bytes, reserved bytes) after every allocation and release."""
        return self.memory.timeline

    def memory_by_category(self) -> dict[str, int]:
        """Bytes allocated now, by what they are for (`vgpu.runtime.memory.categories.NAMES`); together all of them."""
        _audit(READ_EVENT, "memory by category")
        self.machine.ledger.look()
        return categories.now(self.memory)

    def peak_by_category(self) -> dict[str, int]:
        """The same at the moment of the peak since the last reset of peak statistics."""
        _audit(READ_EVENT, "memory by category")
        self.machine.ledger.look()
        return categories.at_peak(self.memory)

    @property
    def category_timeline(self) -> list[categories.CategorySample]:
        """The same after every change of memory: (seconds, bytes by category)."""
        _audit(READ_EVENT, "memory by category")
        self.machine.ledger.look()
        return categories.timeline(self.memory)

    @property
    def utilization(self) -> float:
        """Share of the time since attach in which the device was busy (ratio)."""
        _audit(READ_EVENT, "utilization")
        elapsed = max(self.clock.now, self.queue.ready_at())
        return self.queue.busy_seconds / elapsed if elapsed else 0.0

    def now(self) -> float:
        """Host time of the calling thread, in virtual seconds since attach. Reading it costs nothing."""
        _audit(READ_EVENT, "time")
        return self.clock.now

    @property
    def hazards(self) -> list[Hazard]:
        """Races between streams, and with copies, that were found so far on this machine, each once."""
        return [] if self.machine.watch is None else list(self.machine.watch.found)

    def summary(self, count: int = 10) -> str:
        """Where time and memory went, with the `count` costliest operations; plain text, marked as simulated."""
        _audit(READ_EVENT, "time and memory")
        return self._views().summary(self, count)

    def save_picture(
        self,
        path: str | os.PathLike[str],
        *,
        start: float | None = None,
        stop: float | None = None,
        gpus: Sequence[int] | None = None,
    ) -> Path:
        """Draw host launches, kernels, memory and utilisation to a .png, .svg or .pdf file, marked as simulated.

        `start` and `stop` choose a window in seconds since attach, as `now()` gives them; without `start` the creation
        of the CUDA context is left out. With several GPUs those that did something are shown, or the indices in `gpus`.
        Raises ValueError for another suffix or an empty window, Unsupported where matplotlib is not installed.
        """
        return self._views().save_picture(self, Path(path), start=start, stop=stop, gpus=gpus)

    def save_trace(
        self,
        path: str | os.PathLike[str],
        *,
        start: float | None = None,
        stop: float | None = None,
        gpus: Sequence[int] | None = None,
    ) -> Path:
        """Write the same to a .json or .json.gz trace for Perfetto (ui.perfetto.dev) or chrome://tracing."""
        return self._views().save_trace(self, Path(path), start=start, stop=stop, gpus=gpus)

    def _views(self) -> Views:
        views = self.machine.views
        assert views is not None, "vgpu.attach gives each machine its views"
        return views

    def mark_memory(self) -> int:
        """A place in the record of this GPU's memory, where the device is in a process of its own; its number."""
        assert isinstance(self.queue, RemoteQueue), "there is a record of memory in another process only"
        return self.queue.mark_memory(*self.memory.latest())

    def inject_slowdown(
        self,
        factor: float,
        *,
        after_kernels: int = 0,
        min_flops: float = 0.0,
        name: str | None = None,
        count: int = 1,
    ) -> None:
        """A hiccup of the device: kernels launched from now on take `factor` times as long.

        Of the kernels with at least `min_flops` FLOPs (and, if given, that are called `name`, e.g. "aten::mm"), the
        first `after_kernels` are spared and the next `count` are hit. It may be set before the program runs: with
        `min_flops=1e6, after_kernels=20` it hits the 21st product of whatever loop comes, its warm-up included.
        Raises ValueError for a factor that is not positive.
        """
        if factor <= 0 or after_kernels < 0 or count < 1:
            raise ValueError("factor must be positive, after_kernels at least 0 and count at least 1")
        self.queue.slow_down(Slowdown(factor, after_kernels, count, min_flops, name))

    def inject_host_slowdown(self, factor: float, *, min_flops: float = 0.0) -> None:
        """A slow host: products of CPU tensors with at least `min_flops` FLOPs take `factor` times as long from now on.

        Several multiply. Raises ValueError for a factor that is not positive.
        """
        if factor <= 0:
            raise ValueError("factor must be positive")
        self.queue.slow_down(Slowdown(factor, 0, sys.maxsize, min_flops, None, on_host=True))

    def inject_host_delay(self, seconds: float, *, after_operations: int = 0) -> None:
        """A hiccup of the host: it loses `seconds` once, before the operation after the next `after_operations`."""
        if seconds < 0 or after_operations < 0:
            raise ValueError("seconds and after_operations must not be negative")
        self.machine.host_slowdowns.append((after_operations, seconds))

    # ---- calls of the modes and patches ---------------------------------------------------------------------------

    def start(self, *, by_library: bool = False) -> None:
        """The CUDA context, created at first use; NCCL's (`by_library`) leaves PyTorch's own start to come."""
        if not by_library:
            self.machine.is_initialized = True
        if self.started:
            return
        self.machine.require_usable()
        self.memory.begin()
        self._startup.context()
        self.started = True

    def forked(self) -> bool:
        """This process is a fork; returns whether its parent has used the GPU, which is out of reach then."""
        used = self._startup.has_begun
        self._startup.forked()
        if isinstance(self.queue, RemoteQueue):
            self.move_to(None)  # what is at the other end of the line is our parent's
        self.started = False
        return used

    def move_to(self, line: Line | None) -> None:
        """From now on the device is in another process, at the other end of `line`; None: here again, and idle."""
        pricing = Pricing(self.spec, self.machine.interconnect)
        self.queue = DeviceQueue(pricing, self.index) if line is None else RemoteQueue(line, pricing, self.index)
        self.memory.queue = self.queue

    @property
    def slows_the_host(self) -> bool:
        """Whether products of CPU tensors may be slow: who knows is the device, where hiccups are kept."""
        return not isinstance(self.queue, RemoteQueue) or self.queue.line.slows_the_host

    def synchronize(self, stream: int | None = None) -> None:
        """The host waits for a stream, or for the whole device."""
        if THREAD.capture is not None and THREAD.capture.gpu is self:
            THREAD.capture.require_none()
        self.start()
        self.settle()
        name = "cudaDeviceSynchronize" if stream is None else "cudaStreamSynchronize"
        begin = self.clock.now
        recorder = self.machine.recorder
        if recorder is None:
            self.clock.wait_until(self.queue.ready_at(stream), name)
        else:
            recorder.waited_for_device(self.index, stream)
            with recorder.paused():
                self.clock.wait_until(self.queue.ready_at(stream), name)
        self.clock.spend(self.spec.synchronize_seconds, "wait", name, "synchronize")
        self._was_waited_for(stream)
        if self.recorder is not None:
            self.recorder.host(name, begin)
        self.require_sound()

    def fail(self, assertion: str, cause: Exception) -> None:
        """The kernel that comes next on the current stream ends in a device-side assert; the first one counts."""
        if self.fault is None:
            self.fault = Fault(assertion, self.stream, cause)

    def require_sound(self) -> None:
        """Raise torch.AcceleratorError if a kernel has failed by now (CUDA reports it at any later call)."""
        fault = self.fault
        if fault is None:
            return
        if fault.moment is None:
            fault.moment = self.queue.ready_at(fault.stream)
        if fault.moment <= self.clock.now:
            raise fault.error() from fault.cause

    def _was_waited_for(self, stream: int | None) -> None:
        if not stream:
            self.waited_at = self.clock.now
        if self.machine.watch is not None:
            self.machine.watch.host_waits(self, stream)

    def report_wait(self) -> None:
        """An operation makes the host wait for the device (CUDAFunctions.cpp, `warn_or_error_on_sync`)."""
        if self.machine.sync_debug_mode == 1:
            caller.warn("called a synchronizing CUDA operation")
        elif self.machine.sync_debug_mode == 2:
            raise RuntimeError("called a synchronizing CUDA operation")

    def prepare_library(self, operation: Operation) -> None:
        """cuBLAS and cuDNN make a handle per thread at first use; autograd's backward has a thread of its own on CUDA.

        Their workspaces are in `vgpu.runtime.memory.workspaces`.
        """
        self._startup.handle(operation.library, backward=torch._C._current_graph_task_id() != -1)

    def charge(
        self,
        operation: Operation,
        args: Sequence[object],
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
    ) -> None:
        """A kernel of an operation on resident tensors."""
        if operation.base == "_scaled_mm" and "float8" not in self.spec.peak_flops:
            raise RuntimeError(_NO_FLOAT8)
        fusion = THREAD.fusion
        if fusion is not None and fusion.takes(self, operation, args, inputs, outputs):
            return
        queue = self.queue
        with_elements = queue.has_several_streams or queue.observer is not None
        if self.recorder is not None:
            self.recorder.memcpy = copies.is_memcpy(operation, inputs, outputs)
        self.launch(kernel_cost.of_operation(operation, args, inputs, outputs, with_elements=with_elements))

    def settle(self) -> None:
        """Compiled code of the calling thread launches what it still holds back to join it with more."""
        if THREAD.fusion is not None:
            THREAD.fusion.flush()

    def launch(self, work: KernelWork, seconds: float | None = None, *, host_seconds: float | None = None) -> None:
        """Queue work on the calling thread's current stream of this GPU.

        `seconds` are those that it takes, where they are known already; `host_seconds` what its launch takes the host.
        """
        if THREAD.fusion is not None:
            self.settle()
        queue = self.queue
        if host_seconds is None:
            host_seconds = queue.pricing.launch_seconds(work)
        capture = THREAD.capture
        if capture is not None and capture.takes(self, self.stream):
            capture.launched(work, seconds)
            self.clock.advance(host_seconds)
            return
        clock = self.clock.mine()
        begin = clock.now
        stream = THREAD.streams.get(self.index, 0)
        free = queue.submit(work, stream, begin, host_seconds, clock.thread, seconds)
        self.clock.launched(clock, begin + host_seconds, free)
        if self.recorder is not None:
            self.recorder.kernel(queue.last(), clock.now, self.index)
        if self.is_blocking:
            self.clock.wait_until(queue.ready_at(stream), "cudaLaunchKernel")
            self.require_sound()

    def launch_again(self, work: KernelWork, host_seconds: float, stream: int) -> None:
        """`launch` on a GPU whose single kernels nobody looks at, while the thread neither captures nor joins any."""
        clock = self.clock.mine()
        begin = clock.now
        free = self.queue.submit(work, stream, begin, host_seconds, clock.thread)
        self.clock.launched(clock, begin + host_seconds, free)

    def charge_host(
        self,
        operation: Operation,
        args: Sequence[object],
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
    ) -> None:
        """An operation on CPU tensors, by the model of the host."""
        flops = 0.0
        if operation.product is not None:
            flops = operation.product(args, outputs[0] if outputs else None).flops
        moved = traffic.bytes_of(operation, inputs, outputs)
        dtype = kernel_cost.dtype_name(inputs or outputs)
        seconds = cost.cpu_seconds(self.spec, flops=flops, bytes=moved, dtype=dtype)
        if flops and self.slows_the_host:
            seconds = self.queue.slowed(ON_HOST + operation.name, seconds, flops)
        begin = self.clock.spend(seconds, "operation", operation.name)
        if self.recorder is not None:
            self.recorder.host(operation.name, begin, tuple(tuple(tensor.shape) for tensor in inputs[:8]))

    def charge_metadata(self, operation: Operation) -> None:
        """An operation that only changes a tensor's description: host time, no kernel; compiled code has done it."""
        if THREAD.fusion is not None and THREAD.fusion.is_open:
            return
        begin = self.clock.spend(self.spec.metadata_seconds, "metadata", operation.name, "metadata")
        if self.recorder is not None:
            self.recorder.host(operation.name, begin)

    def charge_autocast(self) -> None:
        """Host time of a decision that a tensor must be cast; the cast is an operation."""
        self.clock.spend(cost.autocast_seconds(self.spec), "operation", "autocast", "autocast")

    def transfer(
        self, moved: int, *, to_device: bool, pinned: bool, non_blocking: bool, waits_later: bool = False
    ) -> None:
        """A copy between host and device; the host goes on at once only for a non-blocking one of pinned memory."""
        self.start()
        if THREAD.capture is not None and not (non_blocking and pinned):
            THREAD.capture.require_none()
        if not non_blocking:
            self.report_wait()
        memory = "Pinned" if pinned else "Pageable"
        name = f"Memcpy HtoD ({memory} -> Device)" if to_device else f"Memcpy DtoH (Device -> {memory})"
        self.launch(KernelWork(name, moved, kind=COPY, engine=TO_DEVICE if to_device else TO_HOST, pinned=pinned))
        if not (non_blocking and pinned):
            begin = self.clock.now
            self.clock.wait_until(self.queue.ready_at(self.stream), name)
            self._was_waited_for(self.stream)
            if self.recorder is not None and not waits_later:
                self.recorder.host("cudaStreamSynchronize", begin)
        self.require_sound()
