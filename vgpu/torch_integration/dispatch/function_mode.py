"""Keeps up the illusion in Python: device names in calls, `.device`, `.cuda()`, factories, autocast.

It sees each call of a torch function or tensor method before autograd does. Not here: what operations do to residency
and time (`vgpu.torch_integration.dispatch.dispatch_mode`), and functions that take no tensor and are no factory
(`vgpu.torch_integration.patches`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.utils._device

from vgpu.runtime.memory.residency import CPU_DEVICE
from vgpu.runtime.operations import composites, scalar_checks
from vgpu.runtime.unsupported import unsupported
from vgpu.torch_integration import autocast
from vgpu.torch_integration.devices import place
from vgpu.torch_integration.dispatch import extensions, factories, gradients, index_sequences, substitutes
from vgpu.torch_integration.handling_mode import HandlingMode
from vgpu.torch_integration.kernels import attention, fused_layers, recurrent

Handler = Callable[["FunctionMode", Any, tuple[Any, ...], dict[str, Any]], Any]
_T = torch.Tensor
_is_any_autocast_enabled = torch._C._is_any_autocast_enabled
# PyTorch names these for attributes (`.grad`, `.device`) although they override nothing.
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
# Host time that a profile takes for an operation around others, at its beginning and at its end: modelled.
_CALL_SECONDS = 5e-7


class FunctionMode(HandlingMode):
    """One instance per machine; entered once per thread."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if types and not _PLAIN.issuperset(types) and torch._C._is_torch_function_enabled():
            # A subclass that overrides torch functions comes first, and asks again for its parts.
            return NotImplemented
        recorder = self.gpu.recorder
        if recorder is None:
            # `_call`, written out: this is part of every call of a torch function.
            handler = HANDLERS.get(func)
            if handler is None or (handler is _autocast and not _is_any_autocast_enabled()):
                return func(*args, **kwargs) if kwargs else func(*args)
            if not self._is_left_alone(args):
                return handler(self, func, tuple(args), dict(kwargs) if kwargs else {})
            return func(*args, **kwargs) if kwargs else func(*args)
        name = composites.name_of(func)
        if name:
            start = self.gpu.clock.now
            self.gpu.clock.advance(_CALL_SECONDS)
            result = self._call(func, args, kwargs)
            self.gpu.clock.advance(_CALL_SECONDS)
            recorder.host(name, start)
            return result
        return self._call(func, args, kwargs)

    def _call(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Any:
        handler = HANDLERS.get(func)
        if handler is not None and not self._is_left_alone(args):
            return handler(self, func, tuple(args), dict(kwargs) if kwargs else {})
        return func(*args, **kwargs) if kwargs else func(*args)

    def _is_left_alone(self, args: Sequence[Any]) -> bool:
        """Whether it is about fake tensors, which keep their device by themselves."""
        first = args[0] if args else None
        if type(first) is not _T and isinstance(first, _T) and extensions.are_fake((type(first),)):
            return True
        return extensions.fake_mode_is_on() and not (isinstance(first, _T) and self.has(first))


def _to(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, *rest = args
    other = rest[0] if rest else kwargs.get("other")
    if isinstance(other, _T):
        kwargs.pop("other", None)
        positional = dict(zip(("non_blocking", "copy"), rest[1:], strict=False))
        return factories.to_device(mode, tensor, mode.registry.gpu_of(other), other.dtype, **{**positional, **kwargs})
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
    return factories.to_device(mode, tensor, place(mode.machine, device), dtype, copy=copy, **options)


def _cuda(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, *rest = args
    device = rest[0] if rest else kwargs.pop("device", None)
    gpu = place(mode.machine, "cuda" if device is None else device)
    if gpu is None:
        raise RuntimeError(f"Invalid device, must be cuda device, but got {device}")
    if len(rest) > 1:
        kwargs["non_blocking"] = rest[1]
    return factories.to_device(mode, tensor, gpu, **kwargs)


def _cpu(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return factories.to_device(mode, args[0], None, **kwargs)


def _type(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, *rest = args
    new_type = rest[0] if rest else kwargs.pop("dtype", None)
    if new_type is None:
        name: str = torch._C._TensorBase.type(tensor)
        return name.replace("torch.meta.", "torch.").replace("torch.", "torch.cuda.", 1) if mode.has(tensor) else name
    if isinstance(new_type, torch.dtype):
        return func(tensor, new_type, **kwargs)
    text = new_type if isinstance(new_type, str) else f"{new_type.__module__}.{new_type.__name__}"
    plain = text.replace("torch.cuda.", "torch.", 1)
    sample = torch._C._TensorBase.type(torch.empty(0, device=CPU_DEVICE), plain)
    # A type names no index: a tensor on some GPU stays there, another goes to the current one
    # (`THPVariable_type` in tools/autograd/templates/python_variable_methods.cpp).
    target = None
    if text.startswith("torch.cuda."):
        target = mode.registry.gpu_of(tensor) or place(mode.machine, "cuda")
    return factories.to_device(mode, tensor, target, sample.dtype, **kwargs)


def _type_as(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    other = args[1] if len(args) > 1 else kwargs["other"]
    return factories.to_device(mode, args[0], mode.registry.gpu_of(other), other.dtype)


def _device(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    gpu = mode.registry.gpu_of(args[0])
    return func(*args) if gpu is None else gpu.device


def _is_cuda(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return mode.has(args[0])


def _is_elsewhere(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return False if mode.has(args[0]) else func(*args)


def _get_device(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    gpu = mode.registry.gpu_of(args[0])
    return func(*args) if gpu is None else gpu.index


def _numpy(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    gpu = mode.registry.gpu_of(args[0])
    if gpu is None:
        mode.host_reads(args[0])
        return func(*args, **kwargs)
    if kwargs.get("force"):
        return factories.to_device(mode, args[0].detach(), None).numpy(force=True)
    raise TypeError(
        f"can't convert {gpu.device} device type tensor to numpy. "
        "Use Tensor.cpu() to copy the tensor to host memory first."
    )


def _tolist(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    if mode.has(tensor):
        return func(factories.to_device(mode, tensor.detach(), None))
    mode.host_reads(tensor)
    return func(tensor)


def _pin(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    if mode.has(tensor):
        name = _type(mode, _T.type, (tensor,), {})
        raise RuntimeError(f"cannot pin '{name}' only dense CPU tensors can be pinned")
    if mode.registry.is_pinned(tensor):
        return tensor
    copy = tensor.clone()
    mode.registry.pin(copy)
    return copy


def _is_pinned(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return mode.registry.is_pinned(args[0])


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
    gpu = mode.registry.gpu_of(query)
    if gpu is None:
        return func(*args, **kwargs)
    return attention.attention(gpu, *args, **kwargs)


def _autocast(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if torch.is_autocast_enabled("cuda"):
        args, kwargs = autocast.prepare(mode.gpu, mode.weights, func.__name__, args, kwargs)
    if torch.is_autocast_enabled("cpu") and any(isinstance(value, _T) and mode.has(value) for value in args):
        # Autocast of the CPU would act on the CPU tensor underneath.
        torch.set_autocast_enabled("cpu", False)
        try:
            return func(*args, **kwargs)
        finally:
            torch.set_autocast_enabled("cpu", True)
    return func(*args, **kwargs)


def _setitem(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Indices on the CPU are copied to the tensor's GPU first (TensorIndexing.h, `typeConvertIndices`)."""
    tensor, index, value = args
    gpu = mode.registry.gpu_of(tensor)
    if gpu is not None:
        scalar_checks.require_fits(value, tensor.dtype)

        def moved(item: Any) -> Any:
            item = index_sequences.to_tensor(item)
            if isinstance(item, _T) and item.dim() and not mode.has(item):
                return factories.to_device(mode, item, gpu)
            return item

        parts = index_sequences.parts_of(index)
        index = moved(index) if parts is None else type(index)(moved(item) for item in parts)
    return func(tensor, index, value)


def _data_ptr(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    block = mode.registry.block_of(args[0]) if mode.has(args[0]) else None
    return func(*args) if block is None else block.address + args[0].storage_offset() * args[0].element_size()


def _refuse(entry: str) -> Handler:
    def handler(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        on_gpu = any(isinstance(value, _T) and mode.has(value) for value in args)
        device = kwargs.get("device", torch.utils._device.CURRENT_DEVICE)
        if on_gpu or place(mode.machine, device) is not None:
            raise unsupported(entry, func.__name__)
        return func(*args, **kwargs)

    return handler


def _set_data(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`tensor.data = other`: with shapes only the two may be a CPU and a meta tensor, which PyTorch cannot mix."""
    tensor, other = args
    if tensor.is_meta != other.is_meta and not mode.machine.values:
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
    table |= {_T.new: factories.legacy_new, _T.new_tensor: factories.new_tensor, torch.normal: factories.normal}
    drawing = ("bernoulli", "multinomial", "poisson", "binomial")
    table |= {getattr(owner, name): factories.draw for owner in (torch, _T) for name in drawing if hasattr(owner, name)}
    filling = ("normal_", "uniform_", "random_", "bernoulli_", "exponential_", "cauchy_", "geometric_", "log_normal_")
    table |= {getattr(_T, name): factories.draw for name in filling}
    table |= {_T.to: _to, _T.cuda: _cuda, _T.cpu: _cpu, _T.type: _type, _T.type_as: _type_as}
    table |= dict(zip(_getters("device", "is_cuda"), (_device, _is_cuda), strict=True))
    table |= dict.fromkeys(_getters("is_cpu", "is_meta"), _is_elsewhere)
    table |= {_T.get_device: _get_device, torch.get_device: _get_device, _T.numpy: _numpy, _T.tolist: _tolist}
    table |= {_T.pin_memory: _pin, _T.is_pinned: _is_pinned, _T.__setitem__: _setitem}
    table |= {torch.dropout: _dropout, _T.data_ptr: _data_ptr, _T.data.__set__: _set_data}  # type: ignore[attr-defined]
    table[torch._C._nn.scaled_dot_product_attention] = _attention
    table |= substitutes.FUNCTIONS
    table |= {getattr(torch, name): recurrent.call for name in recurrent.NAMES}
    table |= {torch._pack_padded_sequence: recurrent.pack, torch._pad_packed_sequence: recurrent.unpack}
    softmaxes = (torch.softmax, torch.log_softmax, _T.softmax, _T.log_softmax)
    table |= dict.fromkeys(softmaxes, fused_layers.softmax) | {torch.rms_norm: fused_layers.rms_norm}
    table[torch._native_multi_head_attention] = fused_layers.multi_head_attention
    table[torch._transformer_encoder_layer_fwd] = fused_layers.encoder_layer
    table[torch._nested_tensor_from_mask_left_aligned] = fused_layers.left_aligned
    table[getattr(_T, "grad").__set__] = gradients.assign  # noqa: B009 - typed as an optional tensor
    table |= dict.fromkeys(_getters("grad"), gradients.read)
    coo, rows, columns = ("indices", "values"), ("crow_indices", "col_indices"), ("ccol_indices", "row_indices")
    compressed = ("compressed_indices", "plain_indices", "values")
    table |= {torch.sparse_coo_tensor: factories.made_sparse(coo)}
    table |= {torch.sparse_compressed_tensor: factories.made_sparse(compressed)}
    for maker, indices in (("csr", rows), ("bsr", rows), ("csc", columns), ("bsc", columns)):
        table[getattr(torch, f"sparse_{maker}_tensor")] = factories.made_sparse((*indices, "values"))
    table |= {_T.to_mkldnn: _refuse("MKL-DNN tensors on the GPU")}
    return table


HANDLERS: dict[Any, Handler] = _build()
