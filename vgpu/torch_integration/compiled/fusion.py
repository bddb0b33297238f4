"""Kernels of compiled code: neighbouring operations that go over the same elements are one kernel.

As TorchInductor's scheduler does (torch/_inductor/scheduler.py), what is elementwise, a reduction, a copy or a gather
is fused with its neighbours: the kernel reads what comes from outside of it and writes what outlives it. Products and
convolutions stay the library's kernels, sorts and scatters their own. Views, and the host's way to each operation,
cost nothing. Not here: when code is compiled (`vgpu.torch_integration.compiled.regions`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from vgpu.device.kernel_work import KernelWork
from vgpu.runtime.gpu import VirtualGPU
from vgpu.runtime.operations import kernel_cost
from vgpu.runtime.operations.operation import Operation
from vgpu.runtime.thread_state import THREAD

# What stays a kernel of its own: TorchInductor calls ATen's kernel for it, or cannot join it with what follows
# (torch/_inductor/lowering.py, fallbacks; scatters need atomic additions).
_APART = frozenset((
    "sort", "topk", "kthvalue", "median", "mode", "unique", "_unique2", "unique_consecutive", "nonzero", "multinomial",
    "searchsorted", "bincount", "histc", "scatter_add", "scatter_reduce", "index_add", "index_put", "_index_put_impl",
    "embedding_dense_backward", "upsample_bilinear2d", "grid_sampler_2d", "max_pool2d_with_indices_backward",
    "_cudnn_ctc_loss", "_ctc_loss", "cdist", "_fft_r2c", "_fft_c2c", "_fft_c2r",
))  # fmt: skip


class Fusion:
    """Takes the operations of a region of compiled code on one thread, and launches its kernels."""

    def __init__(self, gpu: VirtualGPU, *, replayed: bool) -> None:
        """`replayed`: all kernels are launched at once, as a CUDA graph."""
        self.operations = 0
        self._open = False
        self._in_backward = False
        self._gpu = gpu
        self._replayed = replayed
        self._names: list[str] = []
        self._elements = 0
        self._dtype = "float32"
        self._shapes: tuple[tuple[int, ...], ...] = ()
        self._read: dict[tuple[int, int, int], int] = {}
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}
        self._written: dict[int, int] = {}
        self._flushing = False

    @property
    def is_open(self) -> bool:
        """Whether operations belong to the region: in backward only while that runs, also where it ends by an error."""
        return self._open and (not self._in_backward or torch._C._current_graph_task_id() != -1)

    def takes(
        self,
        gpu: VirtualGPU,
        operation: Operation,
        args: Sequence[Any],
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
    ) -> bool:
        """Whether the operation is launched as part of the region, now or later."""
        if not self.is_open or gpu is not self._gpu:
            self.leave()
            return False
        self.operations += 1
        if operation.product is not None or operation.library or operation.base in _APART or operation.is_foreach:
            self.flush()
            work = kernel_cost.of_operation(operation, args, inputs, outputs, with_elements=False)
            self._launch(work._replace(call=""))
            return True
        elements = max([tensor.numel() for tensor in (*inputs, *outputs)], default=0)
        if self._names and not self._joins(elements, inputs):
            self.flush()
        self._take(operation, elements, inputs, outputs)
        return True

    def _joins(self, elements: int, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether an operation goes over the same elements, or over what the group has reduced them to."""
        if elements == self._elements:
            return True
        return elements < self._elements and bool(inputs) and all(_storage(tensor) in self._made for tensor in inputs)

    def _take(
        self, operation: Operation, elements: int, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> None:
        self._names.append(operation.base.strip("_"))
        if elements > self._elements:
            self._elements = elements
            self._dtype = kernel_cost.dtype_name(inputs or outputs)
            self._shapes = tuple(tuple(tensor.shape) for tensor in inputs[:8])
        made = sum(tensor.nbytes for tensor in outputs)
        outside: set[int] = set()
        for place, tensor in enumerate(inputs):
            storage = _storage(tensor)
            if storage in self._made or (operation.overwrites and any(tensor is output for output in outputs)):
                continue
            outside.add(storage)
            moved = min(tensor.nbytes, tensor.untyped_storage().nbytes())
            if operation.gathers and place == 0:
                moved = min(moved, made)
            self._read[storage, int(tensor.storage_offset()), tensor.numel()] = moved
        for tensor in outputs:
            storage, moved = _storage(tensor), min(tensor.nbytes, tensor.untyped_storage().nbytes())
            if storage in outside:  # in place
                self._written[storage] = max(self._written.get(storage, 0), moved)
            else:
                self._made[storage] = (StorageWeakRef(tensor.untyped_storage()), moved)

    def flush(self) -> None:
        """Launch what waits to be joined by others."""
        if not self._names or self._flushing:
            return
        lasting = sum(moved for reference, moved in self._made.values() if not reference.expired())
        moved = sum(self._read.values()) + sum(self._written.values()) + lasting
        names = list(dict.fromkeys(self._names))
        name = "triton_fused_" + "_".join(names[:4]) + ("" if len(names) <= 4 else f"_{len(names) - 4}_more")
        work = KernelWork(name, moved, self._dtype, self._shapes, cached=True)
        self._names, self._elements, self._shapes = [], 0, ()
        self._read, self._made, self._written = {}, {}, {}
        self._launch(work)

    def _launch(self, work: KernelWork) -> None:
        self._flushing = True
        try:
            self._gpu.launch(work, host_seconds=0.0 if self._replayed else None)
        finally:
            self._flushing = False

    def enter(self, *, in_backward: bool = False) -> None:
        """Operations of this thread belong to the region from now on."""
        if THREAD.fusion is not None and THREAD.fusion is not self:
            THREAD.fusion.flush()
        THREAD.fusion = self
        self._open, self._in_backward = True, in_backward

    def pause(self) -> None:
        """They do not for now; what waits is launched before the next kernel that is not the region's."""
        self._open = False

    def leave(self) -> None:
        """The region is over."""
        self.flush()
        self._open = False
        if THREAD.fusion is self:
            THREAD.fusion = None


def _storage(tensor: torch.Tensor) -> int:
    identity: int = tensor.untyped_storage()._cdata
    return identity
