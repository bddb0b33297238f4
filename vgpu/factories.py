"""Tensors made on the GPU, or moved there whole: factories, `*_like`, `new_*`, `torch.tensor`.

Not here: `.to()` and the other methods of a tensor (`vgpu.function_mode`), which use `to_device` of this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.utils._device

from vgpu import transfers
from vgpu.residency import CPU_DEVICE, CUDA_DEVICE
from vgpu.state import THREAD

if TYPE_CHECKING:
    from vgpu.function_mode import FunctionMode

_INVALID_ORDINAL = "CUDA error: invalid device ordinal"
_T = torch.Tensor


def wants_cuda(device: Any) -> bool:
    """Whether a device argument means the GPU; raises RuntimeError for a GPU that is not there."""
    if device is None:
        return False
    if isinstance(device, int):
        kind, index = "cuda", device
    else:
        parsed = device if isinstance(device, torch.device) else torch.device(device)
        kind, index = parsed.type, parsed.index or 0
    if kind == "cuda" and index != 0:
        raise RuntimeError(_INVALID_ORDINAL)
    return kind == "cuda"


def factory(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`torch.zeros(..., device="cuda")` and the like, also under a default device or a device context."""
    device = kwargs.get("device")
    if device is None:
        device = torch.utils._device.CURRENT_DEVICE
    on_gpu = wants_cuda(device)
    if "out" in kwargs and kwargs["out"] is not None:
        return func(*args, **kwargs)
    return create(mode, func, args, kwargs, on_gpu, device)


def create(
    mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], on_gpu: bool, device: Any
) -> Any:
    pinned = bool(kwargs.pop("pin_memory", False))
    kwargs["device"] = mode.real_device if on_gpu else CPU_DEVICE if device is None else device
    generator = kwargs.get("generator")
    if generator is not None and (generator.device.type == "cuda") != on_gpu:
        wanted = "cuda" if on_gpu else "cpu"
        raise RuntimeError(f"Expected a '{wanted}' device type for generator but found '{generator.device.type}'")
    if on_gpu and not mode.gpu.values:
        kwargs.pop("generator", None)
    before, THREAD.target = THREAD.target, on_gpu
    try:
        result = func(*args, **kwargs)
    finally:
        THREAD.target = before
    if pinned and not on_gpu:
        mode.gpu.registry.pin(result)
    return result


def like(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`zeros_like`, `new_zeros`: on the GPU when the model tensor is, unless a device is named."""
    device = kwargs.get("device")
    model: Any = args[0] if args else kwargs["input"]
    if device is None and not kwargs.get("pin_memory"):
        return func(*args, **kwargs)
    on_gpu = wants_cuda(device) if device is not None else mode.has(model)
    return create(mode, func, args, kwargs, on_gpu, device)


def from_data(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`torch.tensor`, `as_tensor`, `asarray`: made on the host, then copied."""
    device = kwargs.pop("device", None)
    data = args[0] if args else kwargs.get("data")
    if isinstance(data, _T):
        if device is None and torch.utils._device.CURRENT_DEVICE is None and not mode.has(data):
            return func(*args, **kwargs)
        target = device if device is not None else CUDA_DEVICE if mode.has(data) else CPU_DEVICE
        moved = data.detach() if func is torch.tensor else data
        moved = to_device(mode, moved, wants_cuda(target), kwargs.get("dtype"), copy=func is torch.tensor)
        return moved.requires_grad_() if kwargs.get("requires_grad") else moved
    if device is None:
        device = torch.utils._device.CURRENT_DEVICE
    learns = kwargs.pop("requires_grad", False)
    pinned = kwargs.pop("pin_memory", False)
    on_gpu = wants_cuda(device)
    result = func(*args, device=CPU_DEVICE if on_gpu or device is None else device, **kwargs)
    if on_gpu:
        result = transfers.move(mode.gpu, result, to_device=True)
    elif pinned:
        mode.gpu.registry.pin(result)
    return result.requires_grad_() if learns else result


def new_tensor(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    device = kwargs.pop("device", None)
    on_gpu = wants_cuda(device) if device is not None else mode.has(args[0])
    kwargs.setdefault("dtype", args[0].dtype)
    return from_data(mode, torch.tensor, args[1:], {**kwargs, "device": CUDA_DEVICE if on_gpu else CPU_DEVICE})


def normal(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`torch.normal` is a factory only when its mean and deviation are numbers."""
    if any(isinstance(value, _T) for value in (*args, *kwargs.values())):
        return func(*args, **kwargs)
    return factory(mode, func, args, kwargs)


def to_device(
    mode: FunctionMode, tensor: Any, on_gpu: bool, dtype: Any = None, *, copy: bool = False, **options: Any
) -> Any:
    """A tensor on the wanted device, itself where nothing has to change."""
    if mode.has(tensor) == on_gpu:
        if dtype is None and not copy:
            return tensor
        chosen = {key: value for key, value in options.items() if key == "memory_format"}
        return tensor.to(dtype or tensor.dtype, copy=copy, **chosen)
    return transfers.transfer(mode.gpu, tensor, to_device=on_gpu, dtype=dtype, **options)
