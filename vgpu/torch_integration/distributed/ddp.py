"""What DistributedDataParallel needs: its C++ reducer makes its buckets by itself, on the real device.

Not here: the all-reduce of a bucket, which is a collective like any other (`vgpu.torch_integration.distributed.group`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._C._distributed_c10d as c10d
import torch.distributed as dist

from vgpu.runtime.attachment import machine
from vgpu.runtime.gpu import VirtualGPU
from vgpu.runtime.memory import categories
from vgpu.runtime.unsupported import unsupported
from vgpu.torch_integration.distributed.runner import Flags, sending_for

_verify: Callable[..., Any] = c10d._verify_params_across_processes
# Without its annotations, which not every version of PyTorch has.
_Reducer: Any = c10d.Reducer
_Logger: Any = c10d.Logger


class Reducer(_Reducer):  # type: ignore[misc]
    """DDP's reducer, whose buckets live where the parameters do."""

    def __init__(self, parameters: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> None:
        attached = machine()
        self._home = attached.registry.gpu_of(parameters[0]) if attached is not None else None
        groups = [value for value in (*args, *kwargs.values()) if isinstance(value, c10d.ProcessGroup)]
        self.process_group = groups[0]
        with sending_for(self._home), _adopting(self._home):
            super().__init__(parameters, *args, **kwargs)

    def _rebuild_buckets(self) -> bool:
        """After the first iteration the buckets are made again, in the order in which gradients became ready.

        The first rank sends the others its order in tensors; with shapes only each keeps its own, which is the same.
        """
        if self._home is None:
            return bool(super()._rebuild_buckets())
        attached = self._home.machine
        attached.keeps_host_values = not attached.values
        try:
            with sending_for(self._home), _adopting(self._home):
                return bool(super()._rebuild_buckets())
        finally:
            attached.keeps_host_values = False


class Logger(_Logger):  # type: ignore[misc]
    """DDP's logger, which warns of devices whose time it cannot take: the meta device of shapes-only mode is one."""

    def set_runtime_stats_and_log(self) -> None:
        """Statistics of real time; nobody reads them."""
        attached = machine()
        if attached is None or attached.values:
            super().set_runtime_stats_and_log()


def register_builtin_comm_hook(reducer: Reducer, kind: Any) -> None:
    """The hooks that exist in C++, by their twins in Python: those in C++ need futures that Python cannot make."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    compress = kind == c10d.BuiltinCommHookType.FP16_COMPRESS
    hook = default_hooks.fp16_compress_hook if compress else default_hooks.allreduce_hook
    c10d._register_comm_hook(reducer, reducer.process_group, hook)


class _adopting:  # noqa: N801 - reads as a clause
    """Tensors that C++ code makes by itself inside belong to a GPU (with shapes only: the meta tensors)."""

    def __init__(self, gpu: VirtualGPU | None) -> None:
        self._gpu = gpu

    def __enter__(self) -> None:
        if self._gpu is not None:
            self._before = self._gpu.registry.open_storages()

    def __exit__(self, kind: Any, *error: Any) -> None:
        gpu = self._gpu
        if gpu is None or kind is not None:
            return
        for key, storage in gpu.registry.open_storages().items():
            if key not in self._before and (gpu.machine.values or storage.device.type == "meta"):
                gpu.registry.add_storage(storage, gpu, category=categories.GRADIENTS)


def verify_params_across_processes(process_group: Any, tensors: Sequence[torch.Tensor], logger: Any = None) -> Any:
    """DDP compares the shapes of all parameters; it sends them as tensors on the parameters' device.

    With shapes only they would be lost there: then the ranks compare a description of them.
    """
    attached = machine()
    on_gpu = attached is not None and bool(tensors) and attached.registry.has(tensors[0])
    if attached is None or not on_gpu:
        return _verify(process_group, tensors, logger)
    if len({attached.registry.gpu_of(tensor) for tensor in tensors}) > 1:
        raise unsupported("DistributedDataParallel of a module on several devices")
    Flags.internal += 1
    try:
        with sending_for(attached.registry.gpu_of(tensors[0])):
            if attached.values:
                return _verify(process_group, tensors, logger)
            _compare_shapes(process_group, tensors)
    finally:
        Flags.internal -= 1
    return None


def _compare_shapes(process_group: Any, tensors: Sequence[torch.Tensor]) -> None:
    mine = [tuple(tensor.shape) for tensor in tensors]
    described: list[Any] = [None] * process_group.size()
    dist.all_gather_object(described, mine, group=process_group)
    for rank, theirs in enumerate(described):
        if len(theirs) != len(mine):
            raise RuntimeError(
                "DDP expects same model across all ranks, but "
                f"Rank {process_group.rank()} has {len(mine)} params, while rank {rank} has inconsistent "
                f"{len(theirs)} params."
            )
    for index, (shape, expected) in enumerate(zip(mine, described[0], strict=True)):
        if shape != expected:
            raise RuntimeError(
                f"[{process_group.rank()}]: params[{index}] in this process with sizes {list(shape)} appears not to "
                f"match sizes of the same param in process 0."
            )
