"""Keeps up the illusion in Python: device names in calls, `.device`, `.cuda()`, factories, autocast.

It sees each call of a torch function or tensor method before autograd does. Not here: what operations do to residency
and time (`vgpu.dispatch_mode`), and functions that take no tensor and are no factory (`vgpu.patches`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.utils._device
from torch.overrides import TorchFunctionMode

from vgpu import attention, autocast, factories
from vgpu.errors import Unsupported
from vgpu.gpu import VirtualGPU
from vgpu.residency import CPU_DEVICE, CUDA_DEVICE

Handler = Callable[["FunctionMode", Any, tuple[Any, ...], dict[str, Any]], Any]
_T = torch.Tensor


class FunctionMode(TorchFunctionMode):
    """One instance per GPU; entered once per thread."""

    def __init__(self, gpu: VirtualGPU) -> None:
        super().__init__()
        self.gpu = gpu
        self.has = gpu.registry.has
        self.weights = autocast.WeightCache()
        self.real_device = CPU_DEVICE if gpu.values else torch.device("meta")

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        handler = HANDLERS.get(func)
        if handler is not None:
            return handler(self, func, tuple(args), dict(kwargs) if kwargs else {})
        return func(*args, **kwargs) if kwargs else func(*args)


def _to(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, *rest = args
    other = rest[0] if rest else kwargs.get("other")
    if isinstance(other, _T):
        kwargs.pop("other", None)
        positional = dict(zip(("non_blocking", "copy"), rest[1:], strict=False))
        return factories.to_device(mode, tensor, mode.has(other), other.dtype, **{**positional, **kwargs})
    copy = kwargs.pop("copy", False) or (len(rest) > 3 and rest[3]) or (
        len(rest) > 2 and isinstance(rest[0], torch.dtype) and rest[2]
    )  # fmt: skip
    device, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*rest[:3], **kwargs)
    if device is None or device.type not in ("cuda", "cpu"):
        if copy:
            kwargs["copy"] = copy
        return func(tensor, *rest[:3], **kwargs)
    options: dict[str, Any] = {"non_blocking": non_blocking}
    if memory_format is not None:
        options["memory_format"] = memory_format
    return factories.to_device(mode, tensor, factories.wants_cuda(device), dtype, copy=copy, **options)


def _cuda(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, *rest = args
    device = rest[0] if rest else kwargs.pop("device", None)
    if device is not None and not factories.wants_cuda(device):
        raise RuntimeError(f"Invalid device, must be cuda device, but got {device}")
    if len(rest) > 1:
        kwargs["non_blocking"] = rest[1]
    return factories.to_device(mode, tensor, True, **kwargs)


def _cpu(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return factories.to_device(mode, args[0], False, **kwargs)


def _type(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, *rest = args
    wanted = rest[0] if rest else kwargs.pop("dtype", None)
    if wanted is None:
        name: str = torch._C._TensorBase.type(tensor)
        return name.replace("torch.meta.", "torch.").replace("torch.", "torch.cuda.", 1) if mode.has(tensor) else name
    if isinstance(wanted, torch.dtype):
        return func(tensor, wanted, **kwargs)
    text = wanted if isinstance(wanted, str) else f"{wanted.__module__}.{wanted.__name__}"
    plain = text.replace("torch.cuda.", "torch.", 1)
    sample = torch._C._TensorBase.type(torch.empty(0, device=CPU_DEVICE), plain)
    return factories.to_device(mode, tensor, text.startswith("torch.cuda."), sample.dtype, **kwargs)


def _type_as(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    other = args[1] if len(args) > 1 else kwargs["other"]
    return factories.to_device(mode, args[0], mode.has(other), other.dtype)


def _device(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return CUDA_DEVICE if mode.has(args[0]) else func(*args)


def _is_cuda(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return mode.has(args[0])


def _is_elsewhere(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return False if mode.has(args[0]) else func(*args)


def _get_device(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return 0 if mode.has(args[0]) else func(*args)


def _numpy(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not mode.has(args[0]):
        return func(*args, **kwargs)
    if kwargs.get("force"):
        return factories.to_device(mode, args[0].detach(), False).numpy(force=True)
    raise TypeError(
        "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
    )


def _tolist(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    return func(factories.to_device(mode, tensor.detach(), False)) if mode.has(tensor) else func(tensor)


def _pin(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    if mode.has(tensor):
        raise RuntimeError(f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned")
    if mode.gpu.registry.is_pinned(tensor):
        return tensor
    copy = tensor.clone()
    mode.gpu.registry.pin(copy)
    return copy


def _is_pinned(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return mode.gpu.registry.is_pinned(args[0])


def _dropout(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """CUDA's dropout saves a mask of one byte per element (Dropout.cpp, `is_fused_kernel_acceptable`)."""
    values = dict(zip(("input", "p", "train"), args, strict=False)) | kwargs
    tensor, share, train = values["input"], values["p"], values["train"]
    if mode.has(tensor) and train and 0 < share < 1 and tensor.numel():
        return torch.native_dropout(tensor, share, True)[0]
    return func(*args, **kwargs)


def _attention(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    args, kwargs = autocast.prepare(mode.gpu, mode.weights, "scaled_dot_product_attention", args, kwargs)
    query = args[0] if args else kwargs["query"]
    if not mode.has(query):
        return func(*args, **kwargs)
    return attention.attention(mode.gpu, *args, **kwargs)


def _autocast(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if torch.is_autocast_enabled("cuda"):
        args, kwargs = autocast.prepare(mode.gpu, mode.weights, func.__name__, args, kwargs)
    return func(*args, **kwargs)


def _record_stream(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return None


def _data_ptr(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    block = mode.gpu.registry.block_of(args[0]) if mode.has(args[0]) else None
    return func(*args) if block is None else block.address + args[0].storage_offset() * args[0].element_size()


def _refuse(operation: str, instead: str) -> Handler:
    def handler(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        on_gpu = any(isinstance(value, _T) and mode.has(value) for value in args)
        if on_gpu or factories.wants_cuda(kwargs.get("device")):
            raise Unsupported(operation, instead)
        return func(*args, **kwargs)

    return handler


def _set_data(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`tensor.data = other`: with shapes only the two may be a CPU and a meta tensor, which PyTorch cannot mix."""
    tensor, other = args
    if tensor.is_meta != other.is_meta and not mode.gpu.values:
        torch.utils.swap_tensors(tensor, type(tensor)(other.detach(), requires_grad=tensor.requires_grad))
        return None
    return func(tensor, other)


def _getters(*names: str) -> list[Any]:
    return [getattr(_T, name).__get__ for name in names]


def _build() -> dict[Any, Handler]:
    table: dict[Any, Handler] = dict.fromkeys(autocast.functions(autocast.ALL_NAMES), _autocast)
    table |= dict.fromkeys(torch.utils._device._device_constructors(), factories.factory)
    table |= dict.fromkeys((torch.tensor, torch.as_tensor, torch.asarray), factories.from_data)
    likes = ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like")
    table |= {getattr(torch, name): factories.like for name in likes}
    table |= {
        getattr(_T, name): factories.like
        for name in ("new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided")
    }
    table |= {_T.new_tensor: factories.new_tensor, torch.normal: factories.normal}
    table |= {_T.to: _to, _T.cuda: _cuda, _T.cpu: _cpu, _T.type: _type, _T.type_as: _type_as}
    table |= dict(zip(_getters("device", "is_cuda"), (_device, _is_cuda), strict=True))
    table |= dict.fromkeys(_getters("is_cpu", "is_meta"), _is_elsewhere)
    table |= {_T.get_device: _get_device, torch.get_device: _get_device, _T.numpy: _numpy, _T.tolist: _tolist}
    table |= {_T.pin_memory: _pin, _T.is_pinned: _is_pinned, _T.record_stream: _record_stream}
    table |= {torch.dropout: _dropout, _T.data_ptr: _data_ptr, _T.data.__set__: _set_data}  # type: ignore[attr-defined]
    table[torch._C._nn.scaled_dot_product_attention] = _attention
    sparse = _refuse("sparse tensors on the GPU", "use dense tensors, or keep sparse ones on the CPU")
    names = (
        "sparse_coo_tensor",
        "sparse_compressed_tensor",
        "sparse_csr_tensor",
        "sparse_csc_tensor",
        "sparse_bsr_tensor",
    )
    table |= {getattr(torch, name): sparse for name in names}
    table |= dict.fromkeys((_T.to_sparse, _T.to_sparse_csr), sparse)
    table[_T.__dlpack__] = _refuse("DLPack export of GPU tensors", "move the tensor to the CPU first")
    return table


HANDLERS: dict[Any, Handler] = _build()
