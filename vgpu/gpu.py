"""The virtual GPU: one object that holds its clocks, memory and history, and that programs may ask.

Not here: how operations get to it (`vgpu.dispatch_mode`, `vgpu.function_mode`) and the patches of `torch.cuda`.
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from vgpu import charges, cost
from vgpu.clock import HostClock
from vgpu.device_queue import DeviceQueue, Kernel, Slowdown
from vgpu.memory import DeviceMemory, MemorySample
from vgpu.operations import Operation
from vgpu.report import summary_text
from vgpu.residency import Registry
from vgpu.spec import Spec
from vgpu.state import THREAD

if TYPE_CHECKING:
    from vgpu.profiler import Recorder

# The seed of CUDA's default generator before anyone sets one (c10::default_rng_seed_val).
_DEFAULT_SEED = 67280421310721
# What the queries that return at once cost on the host (cudaEventQuery, cudaStreamQuery): modelled.
QUERY_SECONDS = 5e-7


class VirtualGPU:
    """A simulated GPU. Times are virtual seconds since attach; everything here is simulated, nothing measured.

    `timeline` lists every kernel and transfer (`Kernel`), `memory_timeline` every change of memory.
    """

    def __init__(self, spec: Spec, *, values: bool) -> None:
        self.spec = spec
        self.values = values
        self.clock = HostClock()
        self.queue = DeviceQueue(self.clock)
        self.memory = DeviceMemory(spec, self.clock)
        self.registry = Registry(self.memory)
        self.generator = torch.Generator(device="cpu")
        self.generator.manual_seed(_DEFAULT_SEED)
        self.recorder: Recorder | None = None
        self.host_slowdowns: list[tuple[int, float]] = []
        self.started = False
        self._handles: set[tuple[str, bool, int]] = set()
        self._workspaces: list[torch.UntypedStorage] = []

    # ---- what a program asks -------------------------------------------------------------------------------------

    @property
    def timeline(self) -> list[Kernel]:
        """Kernels and transfers in the order of their launch (a list that grows: copy it to keep it)."""
        return self.queue.timeline

    @property
    def memory_timeline(self) -> list[MemorySample]:
        """(seconds, allocated bytes, reserved bytes) after every allocation and release."""
        return self.memory.timeline

    @property
    def utilization(self) -> float:
        """Share of the time since attach in which the device was busy (ratio)."""
        elapsed = max(self.clock.now, self.queue.ready_at())
        return self.queue.busy_seconds / elapsed if elapsed else 0.0

    def now(self) -> float:
        """Host time of the calling thread, in virtual seconds since attach. Reading it costs nothing."""
        return self.clock.now

    def summary(self, count: int = 10) -> str:
        """A table of the `count` costliest operations, marked as simulated."""
        return summary_text(self.spec, self.timeline, self.utilization, self.memory.settled(), count)

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
        self.queue.slowdowns.append(Slowdown(factor, after_kernels, count, min_flops, name))

    def inject_host_delay(self, seconds: float, *, after_operations: int = 0) -> None:
        """A hiccup of the host: it loses `seconds` once, before the operation after the next `after_operations`."""
        if seconds < 0 or after_operations < 0:
            raise ValueError("seconds and after_operations must not be negative")
        self.host_slowdowns.append((after_operations, seconds))

    # ---- what the modes and patches tell it ----------------------------------------------------------------------

    def start(self) -> None:
        """The CUDA context, created at first use."""
        if not self.started:
            self.started = True
            self.clock.advance(self.spec.context_seconds)

    def host_operation(self) -> None:
        """One more operation on the host: a host hiccup may hit it."""
        if self.host_slowdowns:
            due = [seconds for left, seconds in self.host_slowdowns if left == 0]
            self.host_slowdowns = [(left - 1, seconds) for left, seconds in self.host_slowdowns if left > 0]
            self.clock.advance(sum(due))

    def synchronize(self, stream: int | None = None) -> None:
        """The host waits for a stream, or for the whole device."""
        self.start()
        begin = self.clock.now
        self.clock.wait_until(self.queue.ready_at(stream))
        self.clock.advance(self.spec.synchronize_seconds)
        if self.recorder is not None:
            self.recorder.host("cudaDeviceSynchronize" if stream is None else "cudaStreamSynchronize", begin)

    def prepare_library(self, operation: Operation) -> None:
        """cuBLAS and cuDNN make a handle per thread at first use; a cuBLAS handle keeps a workspace per stream.

        Autograd's backward pass runs in its own thread on CUDA, so it has its own handle and workspace.
        """
        library = operation.library
        backward = torch._C._current_graph_task_id() != -1
        handle = (library, backward, THREAD.stream if library == "blas" else 0)
        if handle in self._handles:
            return
        if not any(known[:2] == handle[:2] for known in self._handles):
            whole = self.spec.blas_handle_seconds if library == "blas" else self.spec.cudnn_handle_seconds
            # Loading the library is the expensive part, and done once per process.
            first = not any(known[0] == library for known in self._handles)
            self.clock.advance(whole if first else whole / 10)
        self._handles.add(handle)
        if library == "blas" and self.spec.blas_workspace_bytes:
            workspace = torch.UntypedStorage(self.spec.blas_workspace_bytes, device="meta")
            self.registry.add_storage(workspace, THREAD.stream)
            self._workspaces.append(workspace)

    def clear_workspaces(self) -> None:
        """`torch._C._cuda_clearCublasWorkspaces`."""
        self._workspaces.clear()
        self._handles = {handle for handle in self._handles if handle[0] != "blas"}

    def charge(
        self,
        operation: Operation,
        args: Sequence[object],
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
    ) -> None:
        """A kernel of an operation on resident tensors."""
        spec = self.spec
        moved = charges.bytes_of(operation.base, inputs, outputs)
        dtype = _dtype_name(inputs or outputs)
        flops = 0.0
        if operation.is_product:
            product = charges.product_of(operation.base, args, outputs[0] if outputs else None)
            flops = product.flops
            seconds = charges.product_seconds(spec, product, dtype, moved, tf32=_tf32_allowed(operation))
        else:
            seconds = cost.kernel_seconds(spec, flops=0.0, bytes=moved)
        launches = 1
        if operation.is_foreach:
            launches = charges.launches_of(operation.base, args)
            seconds += (launches - 1) * spec.minimum_kernel_seconds
        shapes = tuple([tuple(tensor.shape) for tensor in inputs[:8]])
        self.launch(operation.name, seconds, launches, flops, moved, dtype, shapes)

    def launch(
        self,
        name: str,
        seconds: float,
        launches: int = 1,
        flops: float = 0.0,
        moved: int = 0,
        dtype: str = "float32",
        shapes: tuple[tuple[int, ...], ...] = (),
    ) -> float:
        """Queue a kernel on the calling thread's stream; returns when it ends."""
        launch_seconds = self.spec.launch_seconds * launches
        end = self.queue.launch(name, seconds, launch_seconds, THREAD.stream, flops, moved, dtype, shapes)
        if self.recorder is not None:
            self.recorder.kernel(self.queue.timeline[-1], self.clock.now)
        return end

    def charge_host(
        self,
        operation: Operation,
        args: Sequence[object],
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
    ) -> None:
        """An operation on CPU tensors, by the model of the host."""
        flops = 0.0
        if operation.is_product:
            flops = charges.product_of(operation.base, args, outputs[0] if outputs else None).flops
        moved = charges.bytes_of(operation.base, inputs, outputs)
        begin = self.clock.now
        dtype = _dtype_name(inputs or outputs)
        self.clock.advance(cost.cpu_seconds(self.spec, flops=flops, bytes=moved, dtype=dtype))
        if self.recorder is not None:
            self.recorder.host(operation.name, begin, tuple(tuple(tensor.shape) for tensor in inputs[:8]))

    def charge_metadata(self, operation: Operation) -> None:
        """An operation that only changes a tensor's description: host time, no kernel."""
        begin = self.clock.now
        self.clock.advance(self.spec.metadata_seconds)
        if self.recorder is not None:
            self.recorder.host(operation.name, begin)

    def transfer(self, moved: int, *, to_device: bool, pinned: bool, non_blocking: bool) -> None:
        """A copy between host and device; the host goes on at once only for a non-blocking one of pinned memory."""
        self.start()
        memory = "Pinned" if pinned else "Pageable"
        name = f"Memcpy HtoD ({memory} -> Device)" if to_device else f"Memcpy DtoH (Device -> {memory})"
        seconds = cost.transfer_seconds(self.spec, moved, pinned=pinned)
        end = self.launch(name, seconds, moved=moved)
        if not (non_blocking and pinned):
            self.clock.wait_until(end)


def _dtype_name(tensors: Sequence[torch.Tensor]) -> str:
    """The precision that decides an operation's rate: that of the first floating-point tensor."""
    for tensor in tensors:
        if tensor.dtype.is_floating_point:
            return charges.DTYPE_NAMES.get(tensor.dtype, "float32")
    return charges.DTYPE_NAMES.get(tensors[0].dtype, "float32") if tensors else "float32"


def _tf32_allowed(operation: Operation) -> bool:
    backends = torch.backends
    if operation.base in charges.CONVOLUTIONS:
        return bool(backends.cudnn.allow_tf32)
    return bool(backends.cuda.matmul.allow_tf32)
