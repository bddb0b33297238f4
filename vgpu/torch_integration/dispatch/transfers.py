"""Tensors that move between the host and the virtual GPUs, with autograd following them back.

Not here: `copy_` between existing tensors, which the dispatch mode sees.
"""

from __future__ import annotations

from typing import Any

import torch

from vgpu.runtime.attachment import machine as attached_machine
from vgpu.runtime.gpu import VirtualGPU
from vgpu.runtime.machine import Machine
from vgpu.runtime.operations import shapes_only
from vgpu.runtime.thread_state import THREAD
from vgpu.runtime.unsupported import unsupported
from vgpu.torch_integration.dispatch import extensions, sparse


def _require_machine() -> Machine:
    machine = attached_machine()
    if machine is None:
        raise RuntimeError("a gradient crossed to or from a virtual GPU that is no longer attached")
    return machine


class ToCopy(torch.autograd.Function):
    """`aten::_to_copy` between devices; its gradient takes the way back (ToCopyBackward0 in PyTorch)."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, target: VirtualGPU | None, dtype: Any, options: dict[str, Any]
    ) -> torch.Tensor:
        machine = _require_machine()
        ctx.source, ctx.dtype = machine.registry.gpu_of(tensor), tensor.dtype
        return move(machine, tensor, target, dtype=dtype, **options)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (gradient,) = gradients
        return move(_require_machine(), gradient, ctx.source, dtype=ctx.dtype), None, None, None


def transfer(
    machine: Machine, tensor: torch.Tensor, target: VirtualGPU | None, dtype: torch.dtype | None = None, **options: Any
) -> torch.Tensor:
    """A copy of `tensor` on another device (None: the host); differentiable where autograd records."""
    if extensions.is_distributed((type(tensor),)):
        return _of_parts(machine, tensor, target, dtype, **options)
    if tensor.requires_grad and torch.is_grad_enabled():
        result: torch.Tensor = ToCopy.apply(tensor, target, dtype, options)
        return result
    return move(machine, tensor, target, dtype=dtype, **options)


def _of_parts(
    machine: Machine, tensor: Any, target: VirtualGPU | None, dtype: torch.dtype | None, **options: Any
) -> torch.Tensor:
    """A DTensor whose part is elsewhere; the mesh stays that of the GPUs, as after `_to_copy` in PyTorch."""
    if tensor.requires_grad and torch.is_grad_enabled():
        raise unsupported("a copy of a DTensor to another device that autograd follows; detach it first")
    part = move(machine, tensor.to_local(), target, dtype=dtype, **options)
    made: torch.Tensor = type(tensor)(part, tensor._spec, requires_grad=False)
    return made


def move(
    machine: Machine,
    tensor: torch.Tensor,
    target: VirtualGPU | None,
    *,
    dtype: torch.dtype | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format = torch.preserve_format,
) -> torch.Tensor:
    """The copy itself. A change of dtype happens at the source (CopyKernel.cu, `copy_requires_temporaries`)."""
    source = machine.registry.gpu_of(tensor)
    dtype = dtype or tensor.dtype
    begin = machine.clock.now
    if source is target:  # a gradient that is where it belongs already
        return tensor if dtype == tensor.dtype else tensor.to(dtype)
    if tensor.layout is not torch.strided:
        return sparse.rebuilt(
            tensor.detach(), lambda part: move(machine, part, target, non_blocking=non_blocking), dtype
        )
    with torch._C.DisableTorchFunction(), torch.no_grad():
        if source is not None and dtype != tensor.dtype:
            tensor = tensor.detach().to(dtype)
        if target is None:
            result = _to_host(machine, tensor, source, non_blocking, memory_format)
            _record(source, begin)
            return result
        moved = tensor.numel() * dtype.itemsize
        with torch._C._DisableTorchDispatch():
            if machine.values:
                result = tensor.detach().to(dtype, copy=True, memory_format=memory_format)
            else:
                result = torch.empty_like(tensor, dtype=dtype, device="meta", memory_format=memory_format)
        target.start()
        machine.registry.add(result, target, target.stream)
        if source is None:
            pinned = machine.registry.is_pinned(tensor)
            target.transfer(moved, to_device=True, pinned=pinned, non_blocking=non_blocking)
            watch_copy(target, tensor, result, under_way=pinned and non_blocking, to_host=False)
        else:
            machine.peer_copy(source, target, moved)
        _capture(result, tensor)
        _record(target, begin)
        return result


def _record(gpu: VirtualGPU | None, begin: float) -> None:
    """A profile shows the operation around the copy."""
    if gpu is not None and gpu.recorder is not None:
        gpu.recorder.host("aten::_to_copy", begin)


def _to_host(
    machine: Machine, tensor: torch.Tensor, source: VirtualGPU | None, non_blocking: bool, layout: torch.memory_format
) -> torch.Tensor:
    assert source is not None
    with torch._C._DisableTorchDispatch():
        result = tensor.detach().clone(memory_format=layout) if machine.values else shapes_only.zeros(tensor)
    # A non-blocking copy to the host lands in pinned memory (Copy.cpp, `_to_copy`).
    if non_blocking:
        machine.registry.pin(result)
    source.transfer(tensor.nbytes, to_device=False, pinned=non_blocking, non_blocking=non_blocking)
    watch_copy(source, tensor, result, under_way=non_blocking, to_host=True)
    if not non_blocking:
        machine.clock.advance(machine.spec.synchronize_seconds, "synchronize")
    _capture(result, tensor)
    return result


def watch_copy(gpu: VirtualGPU, source: torch.Tensor, target: torch.Tensor, *, under_way: bool, to_host: bool) -> None:
    """A copy between the host and a GPU; `under_way`: it does not hold the host."""
    machine = gpu.machine
    if under_way:
        machine.watched().copy(gpu, gpu.stream, target if to_host else source, to_host=to_host)
    if machine.watch is not None and machine.watch.follows_streams:
        read, written = ([source], []) if to_host else ([], [target])
        machine.watch.kernel(gpu, gpu.stream, "a copy", read, written)
        if not under_way:
            machine.watch.host_waits(gpu, gpu.stream)


def _capture(result: torch.Tensor, tensor: torch.Tensor) -> None:
    """A copy that a CUDA graph makes is made by its replays, too."""
    if THREAD.capture is not None:
        THREAD.capture.called(lambda: result.copy_(tensor), [])
