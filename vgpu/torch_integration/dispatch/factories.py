"""Tensors made on a GPU, or moved there whole: factories, `*_like`, `new_*`, `torch.tensor`.

Not here: `.to()` and the other methods of a tensor (`vgpu.torch_integration.dispatch.function_mode`), which use
`to_device` of this module.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.utils._device

from vgpu.runtime.gpu import VirtualGPU
from vgpu.runtime.memory.residency import CPU_DEVICE
from vgpu.runtime.random.generator import CudaGenerator
from vgpu.runtime.thread_state import HOST, THREAD
from vgpu.runtime.unsupported import unsupported
from vgpu.torch_integration.devices import place
from vgpu.torch_integration.dispatch import sparse, transfers
from vgpu.torch_integration.handling_mode import HandlingMode

_T = torch.Tensor


def factory(mode: HandlingMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`torch.zeros(..., device="cuda")` and the like, also under a default device or a device context."""
    device = kwargs.get("device")
    if device is None:
        device = torch.utils._device.CURRENT_DEVICE
    gpu = place(mode.machine, device)
    if "out" in kwargs and kwargs["out"] is not None:
        return func(*args, **kwargs)
    return create(mode, func, args, kwargs, gpu, device)


def create(
    mode: HandlingMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], gpu: VirtualGPU | None, device: Any
) -> Any:
    """Call a factory function so that its result is on `gpu`, or on `device` where that is None."""
    pinned = bool(kwargs.pop("pin_memory", False))
    if pinned and gpu is not None:
        raise RuntimeError("Only dense CPU tensors can be pinned")
    kwargs["device"] = mode.real_device if gpu is not None else CPU_DEVICE if device is None else device
    check_generator(kwargs.get("generator"), gpu)
    if gpu is not None and not mode.machine.values:
        kwargs.pop("generator", None)
    before, THREAD.target = THREAD.target, HOST if gpu is None else gpu.index
    try:
        result = func(*args, **kwargs)
    finally:
        THREAD.target = before
    if pinned and gpu is None:
        mode.registry.pin(result)
    return result


def check_generator(generator: torch.Generator | None, gpu: VirtualGPU | None) -> None:
    """A generator for an operation on `gpu`: only the type of the device has to agree (ATen/core/Generator.h)."""
    device_type = "cpu" if gpu is None else "cuda"
    if generator is not None and generator.device.type != device_type:
        raise RuntimeError(f"Expected a '{device_type}' device type for generator but found '{generator.device.type}'")
    if isinstance(generator, CudaGenerator):
        THREAD.generator = generator  # in the dispatch mode it is only PyTorch's generator


def draw(mode: HandlingMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`x.normal_()`, `torch.bernoulli(x)`: random numbers for a tensor that is there, perhaps from a generator."""
    if kwargs.get("generator") is not None and args and isinstance(args[0], _T):
        check_generator(kwargs["generator"], mode.registry.gpu_of(args[0]))
    return func(*args, **kwargs)


def like(mode: HandlingMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`zeros_like`, `new_zeros`: on the GPU of the model tensor, unless a device is named."""
    device = kwargs.get("device")
    model: Any = args[0] if args else kwargs["input"]
    if device is None and not kwargs.get("pin_memory"):
        return func(*args, **kwargs)
    gpu = place(mode.machine, device) if device is not None else mode.registry.gpu_of(model)
    return create(mode, func, args, kwargs, gpu, device)


def from_data(mode: HandlingMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`torch.tensor`, `as_tensor`, `asarray`: made on the host, then copied."""
    device = kwargs.pop("device", None)
    data = args[0] if args else kwargs.get("data")
    if isinstance(data, _T):
        home = mode.registry.gpu_of(data)
        if device is None and torch.utils._device.CURRENT_DEVICE is None and home is None:
            return func(*args, **kwargs)
        target = place(mode.machine, device) if device is not None else home
        moved = data.detach() if func is torch.tensor else data
        moved = to_device(mode, moved, target, kwargs.get("dtype"), copy=func is torch.tensor)
        return moved.requires_grad_() if kwargs.get("requires_grad") else moved
    if device is None:
        device = torch.utils._device.CURRENT_DEVICE
    learns = kwargs.pop("requires_grad", False)
    pinned = kwargs.pop("pin_memory", False)
    gpu = place(mode.machine, device)
    result = func(*args, device=CPU_DEVICE if gpu is not None or device is None else device, **kwargs)
    if gpu is not None:
        result = transfers.move(mode.machine, result, gpu)
    elif pinned:
        mode.registry.pin(result)
    return result.requires_grad_() if learns else result


def new_tensor(mode: HandlingMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`tensor.new_tensor(data)`: on the device of the tensor, unless one is named."""
    kwargs.setdefault("dtype", args[0].dtype)
    if kwargs.get("device") is None:
        kwargs["device"] = mode.registry.device_of(args[0])
    return from_data(mode, torch.tensor, args[1:], kwargs)


def legacy_new(mode: HandlingMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`tensor.new(...)`: on the device of the tensor; sizes make memory without values, data is copied."""
    tensor, *rest = args
    device = kwargs.pop("device", None)
    gpu = mode.registry.gpu_of(tensor) if device is None else place(mode.machine, device)
    if gpu is None:
        if mode.has(tensor):  # from a tensor on a GPU, for the CPU
            tensor = torch._C._TensorBase.new_empty(tensor, 0, device=CPU_DEVICE)
        return func(tensor, *rest, **kwargs)
    rest += kwargs.values()
    if tensor.layout is torch.sparse_coo and len(rest) > 1 and isinstance(rest[0], _T):
        return torch.sparse_coo_tensor(*rest)
    if len(rest) == 1 and isinstance(rest[0], _T):
        return rest[0].detach()
    sizes = rest[0] if len(rest) == 1 and isinstance(rest[0], torch.Size) else rest
    if all(type(size) is int for size in sizes):
        return factory(mode, torch.empty, (tuple(sizes) or (0,),), {"dtype": tensor.dtype, "device": gpu.device})
    return from_data(mode, torch.tensor, tuple(rest), {"dtype": tensor.dtype, "device": gpu.device})


def normal(mode: HandlingMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`torch.normal` is a factory only when its mean and deviation are numbers."""
    if any(isinstance(value, _T) for value in (*args, *kwargs.values())):
        return draw(mode, func, args, kwargs)
    return factory(mode, func, args, kwargs)


def made_sparse(names: tuple[str, ...]) -> Any:
    """The handler of a factory of sparse tensors, whose arguments begin with these."""

    def handler(mode: HandlingMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        parts = sparse.parts_of_call(args, kwargs, names)
        values = parts.get(names[-1])
        device = kwargs.get("device")
        if device is None and not isinstance(values, _T):
            device = torch.utils._device.CURRENT_DEVICE
        home = mode.registry.gpu_of(values) if isinstance(values, _T) else None
        gpu = home if device is None else place(mode.machine, device)
        if gpu is None and not any(isinstance(part, _T) and mode.has(part) for part in parts.values()):
            return func(*args, **kwargs)
        sparse.require_values(mode.machine)
        if not parts:
            return create(mode, func, args, kwargs, gpu, device)
        kwargs = {key: value for key, value in kwargs.items() if key not in names and key != "device"}
        dtype = kwargs.pop("dtype", None)
        moved = [
            from_data(mode, torch.as_tensor, (part,), {"device": CPU_DEVICE if gpu is None else gpu.device})
            for part in parts.values()
        ]
        if dtype is not None:
            moved[-1] = moved[-1].to(dtype)
        return func(*moved, *args[len(parts) :], **kwargs)

    return handler


def to_device(
    mode: HandlingMode, tensor: Any, target: VirtualGPU | None, dtype: Any = None, *, copy: bool = False, **options: Any
) -> Any:
    """A tensor on the wanted device (None: the host), itself where nothing has to change."""
    if target is not None and tensor.layout is not torch.strided:
        if tensor.is_mkldnn:
            raise unsupported("MKL-DNN tensors on the GPU")
        sparse.require_values(mode.machine)
    if mode.registry.gpu_of(tensor) is target:
        if dtype is None and not copy:
            return tensor
        chosen = {key: value for key, value in options.items() if key == "memory_format"}
        return tensor.to(dtype or tensor.dtype, copy=copy, **chosen)
    return transfers.transfer(mode.machine, tensor, target, dtype, **options)
