"""CUDA graphs: what a stream is asked while it is captured, and asked again by one launch.

Capture runs nothing on the device (CUDA C++ Programming Guide, "CUDA Graphs"): the values that operations compute here
meanwhile are put back where they were written over tensors from outside, and random numbers are not used up. A replay
computes all operations again, from and into the same memory, and submits all kernels with one launch. What outlives the
capture is written; what does not lives for the replay only. Not here: `torch.cuda.CUDAGraph`
(`vgpu.torch_integration.patches.graphs`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from vgpu.device.kernel_work import KernelWork
from vgpu.runtime.gpu import VirtualGPU
from vgpu.runtime.hazards.order import Order, Point
from vgpu.runtime.operations.operation import Operation
from vgpu.runtime.thread_state import THREAD
from vgpu.torch_integration.devices import cuda_error

# Host time of cudaGraphLaunch: modelled; it hardly depends on the number of nodes.
LAUNCH_SECONDS = 1e-5
# `torch.Tensor.set_` compares the devices that a program sees.
_set: Callable[..., torch.Tensor] = torch._C.TensorBase.set_
Compute = Callable[[Operation, Sequence[Any], Mapping[str, Any], list[torch.Tensor], VirtualGPU], Any]
"""How an operation gets its values (`vgpu.torch_integration.dispatch.dispatch_mode`)."""


class _Place(NamedTuple):
    """A tensor in the memory number `memory` that the graph makes."""

    memory: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class _Made(NamedTuple):
    """A result: the number of its memory, and what holds it, if anything still does."""

    memory: int
    holder: StorageWeakRef
    place: _Place


@dataclass(slots=True)
class _Node:
    operation: Operation
    leaves: list[Any]
    structure: Any
    made: list[_Made | None]
    compute: Compute


class Graph:
    """What one capture has noted."""

    def __init__(self, gpu: VirtualGPU, pool: int) -> None:
        self.gpu = gpu
        self._pool = pool
        # The streams that take part: the one that began, and those that wait for one that does. Each must have been
        # waited for in the end.
        self._origin = gpu.stream
        self._streams = {gpu.stream}
        self._order = Order()
        self.is_open = False
        self._works: list[tuple[KernelWork, float | None]] = []
        self._nodes: list[_Node | Callable[[], Any]] = []
        self._memory: dict[int, int] = {}
        self._count = 0
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._random: Any = None

    # ---- while it is captured ----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """From now on the calling thread's work on this GPU is noted."""
        if THREAD.capture is not None:
            raise cuda_error("operation not permitted when stream is capturing")
        self._random = self.gpu.generator.get_state()
        THREAD.capture = self
        self.is_open = True
        self.gpu.memory.begin_private(self._pool)

    def end(self) -> None:
        """What was written over is as it was before, and so are random numbers. Raises for streams left alone."""
        THREAD.capture, self.is_open = None, False
        self.gpu.memory.end_private()
        with beneath():
            for target, values in self._before.values():
                target.copy_(values)
        self._before.clear()
        self.gpu.generator.set_state(self._random)
        joined = self._order.point((self.gpu.index, self._origin))
        for stream in self._streams - {self._origin}:
            here = (self.gpu.index, stream)
            if joined.get(here, 0) < self._order.point(here)[here]:
                self.abandon()
                raise cuda_error("capturing stream has unjoined work")

    @property
    def is_empty(self) -> bool:
        """Whether nothing was noted."""
        return not self._works

    def takes(self, gpu: VirtualGPU, stream: int) -> bool:
        """Whether the work of a stream is noted; that of others runs."""
        return gpu is self.gpu and stream in self._streams

    def point(self, gpu: VirtualGPU, stream: int) -> Point | None:
        """What an event of a stream that takes part stands for."""
        return self._order.point((gpu.index, stream)) if self.takes(gpu, stream) else None

    def stream_waits(self, gpu: VirtualGPU, stream: int, point: Point | None, *, external: bool) -> bool:
        """A stream waits for an event: for one of this capture it takes part from now on; returns whether it does."""
        if point is None:
            if self.takes(gpu, stream) and not external:
                self.require_none("dependency created on uncaptured work in another stream")
            return False
        self._streams.add(stream)
        self._order.stream_waits((gpu.index, stream), point)
        self._order.step((gpu.index, stream))
        return True

    def launched(self, work: KernelWork, seconds: float | None) -> None:
        """The device is asked for work."""
        self._works.append((work, seconds))
        self._order.step((self.gpu.index, self.gpu.stream))

    def require_none(self, error: str = "operation not permitted when stream is capturing") -> None:
        """Nothing that waits for the device may be captured."""
        self.abandon()
        raise cuda_error(error)

    def abandon(self) -> None:
        """The capture has failed."""
        if self.is_open:
            self._streams = {self._origin}
            self.end()
        self._works.clear()
        self._nodes.clear()

    def about_to(self, operation: Operation, args: Sequence[Any]) -> None:
        """An operation is about to be computed: keep what it writes over."""
        if not self.gpu.values:
            return
        for place in operation.written:
            for tensor in tree_leaves(args[place]) if place < len(args) else ():
                if isinstance(tensor, torch.Tensor) and tensor.numel():
                    self._keep(tensor.untyped_storage())

    def computed(
        self, compute: Compute, operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        """An operation was computed; views need not be made again."""
        if not self.gpu.values or operation.is_view:
            return
        leaves, structure = tree_flatten((tuple(args), dict(kwargs)))
        inputs = {leaf.untyped_storage()._cdata for leaf in leaves if isinstance(leaf, torch.Tensor)}
        noted = [self._place_of(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        made = [self._made(leaf, inputs) if isinstance(leaf, torch.Tensor) else None for leaf in tree_leaves(result)]
        self._nodes.append(_Node(operation, noted, structure, made, compute))

    def called(self, compute: Callable[[], Any], tensors: Sequence[torch.Tensor]) -> None:
        """Something other than an operation is about to be computed, and may write to any of these tensors."""
        if not self.gpu.values:
            return
        for tensor in tensors:
            self._keep(tensor.untyped_storage())
        self._nodes.append(compute)

    def _keep(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata not in self._memory and storage._cdata not in self._before:
            with beneath():
                whole = _set(torch.empty(0, dtype=torch.uint8), storage)
                self._before[storage._cdata] = (whole, whole.clone())

    def _place_of(self, tensor: torch.Tensor) -> Any:
        memory = self._memory.get(tensor.untyped_storage()._cdata)
        if memory is None:
            return tensor.detach() if tensor.requires_grad else tensor
        return _Place(memory, tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))

    def _made(self, tensor: torch.Tensor, inputs: set[int]) -> _Made | None:
        storage = tensor.untyped_storage()
        if storage._cdata in inputs:
            return None
        self._count += 1
        self._memory[storage._cdata] = self._count
        return _Made(self._count, StorageWeakRef(storage), self._place_of(tensor))

    # ---- afterwards --------------------------------------------------------------------------------------------------

    def replay(self) -> None:
        """Compute all of it again, and submit all kernels with one launch."""
        gpu = self.gpu
        gpu.start()
        gpu.settle()
        gpu.clock.spend(LAUNCH_SECONDS, "launch", "cudaGraphLaunch", "graph launch")
        clock = gpu.clock.mine()
        for work, seconds in self._works:
            gpu.queue.submit(work, gpu.stream, clock.now, 0.0, clock.thread, seconds)
            if gpu.recorder is not None:
                gpu.recorder.kernel(gpu.queue.last(), clock.now, gpu.index)
        if gpu.values:
            with beneath():
                self._compute()

    def _compute(self) -> None:
        memory: dict[int, torch.UntypedStorage] = {}
        for node in self._nodes:
            if not isinstance(node, _Node):
                node()
                continue
            leaves = [_tensor(leaf, memory) if type(leaf) is _Place else leaf for leaf in node.leaves]
            args, kwargs = tree_unflatten(leaves, node.structure)
            inputs = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            result = node.compute(node.operation, args, kwargs, inputs, self.gpu)
            for made, tensor in zip(node.made, tree_leaves(result), strict=False):
                if made is None or not isinstance(tensor, torch.Tensor):
                    continue
                held = _storage_of(made.holder)
                if held is None:
                    memory[made.memory] = tensor.untyped_storage()
                else:
                    memory[made.memory] = held
                    _tensor(made.place, memory).copy_(tensor)


def _storage_of(holder: StorageWeakRef) -> torch.UntypedStorage | None:
    if holder.expired():
        return None
    storage: Any = torch.UntypedStorage._new_with_weak_ptr(holder.cdata)
    return None if storage is None else storage


def _tensor(place: _Place, memory: Mapping[int, torch.UntypedStorage]) -> torch.Tensor:
    return _set(torch.empty(0, dtype=place.dtype), memory[place.memory], place.offset, place.size, place.stride)


@contextlib.contextmanager
def beneath() -> Iterator[None]:
    """Tensors are those of the CPU in here: no device, no gradient, no time."""
    with (
        torch._C.DisableTorchFunction(),
        torch._C._DisableTorchDispatch(),
        torch.no_grad(),
        torch._C._AutoDispatchBelowAutograd(),
    ):
        yield
