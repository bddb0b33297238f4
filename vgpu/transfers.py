"""Tensors that move between the host and the virtual GPU, with autograd following them back.

Not here: `copy_` between existing tensors, which the dispatch mode sees.
"""

from __future__ import annotations

from typing import Any

import torch

from vgpu import shapes_only
from vgpu.gpu import VirtualGPU
from vgpu.state import attached


def _require_gpu() -> VirtualGPU:
    gpu = attached()
    if gpu is None:
        raise RuntimeError("a gradient crossed to or from a virtual GPU that is no longer attached")
    return gpu


class ToCopy(torch.autograd.Function):
    """`aten::_to_copy` between devices; its gradient takes the way back (ToCopyBackward0 in PyTorch)."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, to_device: bool, dtype: Any, options: dict[str, Any]) -> torch.Tensor:
        ctx.to_device, ctx.dtype = to_device, tensor.dtype
        return move(_require_gpu(), tensor, to_device=to_device, dtype=dtype, **options)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (gradient,) = gradients
        back = move(_require_gpu(), gradient, to_device=not ctx.to_device, dtype=ctx.dtype)
        return back, None, None, None


def transfer(
    gpu: VirtualGPU, tensor: torch.Tensor, *, to_device: bool, dtype: torch.dtype | None = None, **options: Any
) -> torch.Tensor:
    """A copy of `tensor` on the other device; differentiable where autograd records."""
    if tensor.requires_grad and torch.is_grad_enabled():
        result: torch.Tensor = ToCopy.apply(tensor, to_device, dtype, options)
        return result
    return move(gpu, tensor, to_device=to_device, dtype=dtype, **options)


def move(
    gpu: VirtualGPU,
    tensor: torch.Tensor,
    *,
    to_device: bool,
    dtype: torch.dtype | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format = torch.preserve_format,
) -> torch.Tensor:
    """The copy itself. A change of dtype happens at the source (CopyKernel.cu, `copy_requires_temporaries`)."""
    dtype = dtype or tensor.dtype
    with torch._C.DisableTorchFunction(), torch.no_grad():
        moved = tensor.numel() * dtype.itemsize
        if to_device:
            with torch._C._DisableTorchDispatch():
                if gpu.values:
                    result = tensor.detach().to(dtype, copy=True, memory_format=memory_format)
                else:
                    result = torch.empty_like(tensor, dtype=dtype, device="meta", memory_format=memory_format)
            gpu.start()
            gpu.registry.add(result)
            pinned = gpu.registry.is_pinned(tensor)
            gpu.transfer(moved, to_device=True, pinned=pinned, non_blocking=non_blocking)
            return result
        if dtype != tensor.dtype:
            tensor = tensor.detach().to(dtype)
        with torch._C._DisableTorchDispatch():
            result = tensor.detach().clone(memory_format=memory_format) if gpu.values else shapes_only.zeros(tensor)
        # A non-blocking copy to the host lands in pinned memory (Copy.cpp, `_to_copy`).
        if non_blocking:
            gpu.registry.pin(result)
        gpu.transfer(moved, to_device=False, pinned=non_blocking, non_blocking=non_blocking)
        if not non_blocking:
            gpu.clock.advance(gpu.spec.synchronize_seconds)
        return result
