"""Shapes-only mode (`attach(values=False)`): tensors on the GPU have a shape and a dtype, but no values.

They are meta tensors. `.item()` returns a declared placeholder, `.cpu()` zeros. Not here: any cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from vgpu.runtime.operations import layouts
from vgpu.runtime.operations.operation import Operation, needs_values, number_of
from vgpu.runtime.unsupported import unsupported

# What a value read from the GPU is in shapes-only mode, whatever the program computed.
PLACEHOLDER = 0.0


def placeholder(operation: Operation, tensor: torch.Tensor) -> bool | int | float | complex:
    """The declared placeholder in the tensor's Python type."""
    if operation.base != "_local_scalar_dense" or tensor.dtype == torch.bool:
        return False
    if tensor.dtype.is_complex:
        return complex(PLACEHOLDER)
    return PLACEHOLDER if tensor.dtype.is_floating_point else int(PLACEHOLDER)


def meta_like(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A meta tensor of the same shape and strides."""
    return torch.empty_like(tensor, device="meta", dtype=dtype)


def on_meta(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """CPU tensors next to meta ones (indices, say) become meta; 0-dimensional ones may stay as they are."""

    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value if value.is_meta or value.dim() == 0 else meta_like(value)
        if isinstance(value, (list, tuple)):
            return [move(item) for item in value]
        return value

    return [move(value) for value in args], {key: move(value) for key, value in kwargs.items()}


# (overload, what its arguments look like) -> what its results look like. PyTorch works out a meta result in Python for
# many operations, which costs ten times as much as making a tensor of a known shape.
_known_results: dict[Any, Any] = {}
_MOST_KNOWN = 100_000
_META = torch.device("meta")
# Asking `isinstance` of what is no plain tensor costs more than the rest of a look (PyTorch's metaclass answers).
_PLAIN_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter))
_SCALARS = frozenset((int, bool, type(None), torch.dtype, str, torch.device))


def compute(operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run an operation on meta tensors; raises Unsupported where its result's shape depends on values."""
    if operation.is_foreach and operation.mutates and not operation.overload._schema.returns:
        return None  # it only writes to tensors that have no values; some of these have no meta kernel
    # `_unsafe_view` is no view by its schema, but its result has its input's storage.
    if operation.is_view or operation.is_metadata or operation.may_resize:
        return _infer(operation, args, kwargs)
    inputs: list[torch.Tensor] = []
    floats = operation.shaped_by_floats
    try:
        # Operations are made once and kept: their identity says which one it is.
        key: Any = number_of(operation), _signature(args, inputs, floats)
        if kwargs:
            key = *key, _signature(tuple(kwargs.items()), inputs, floats)
        known = _known_results.get(key)
    except TypeError:  # an argument that cannot be hashed, such as a generator or a script object
        return _infer(operation, args, kwargs)
    if known is not None:
        if known[0] == "new":  # nearly all
            return torch.empty_strided(known[1], known[2], dtype=known[3], device=_META)
        return _rebuild(known, inputs)
    result = _infer(operation, args, kwargs)
    if len(_known_results) < _MOST_KNOWN:
        _known_results[key] = _describe(result, inputs)
    return result


def _signature(values: Sequence[Any], inputs: list[torch.Tensor], floats: bool) -> Any:
    """What decides the result's shape; floats (a learning rate, which changes at every step) only where they do."""
    parts: list[Any] = []
    for value in values:
        kind = type(value)
        if kind in _PLAIN_TENSORS:
            inputs.append(value)
            parts.append((value.shape, value.stride(), value.dtype, value.is_meta))
        elif kind is float and not floats:
            parts.append(float)
        elif kind in _SCALARS:
            # 1, 1.0 and True are equal keys, but not equal arguments.
            parts.append((kind, value))
        elif isinstance(value, torch.Tensor):
            inputs.append(value)
            parts.append((value.shape, value.stride(), value.dtype, value.is_meta))
        elif isinstance(value, (list, tuple)):
            parts.append(_signature(value, inputs, floats))
        else:
            parts.append((kind, value))
    return tuple(parts)


def _describe(result: Any, inputs: list[torch.Tensor]) -> Any:
    if isinstance(result, torch.Tensor):
        for index, tensor in enumerate(inputs):
            if tensor is result:
                return ("input", index)
        return ("new", result.shape, result.stride(), result.dtype)
    if isinstance(result, (list, tuple)):
        return ("many", type(result), [_describe(item, inputs) for item in result])
    return ("value", result)


def _rebuild(known: Any, inputs: list[torch.Tensor]) -> Any:
    kind = known[0]
    if kind == "new":
        return torch.empty_strided(known[1], known[2], dtype=known[3], device=_META)
    if kind == "input":
        return inputs[known[1]]
    if kind == "many":
        return known[1](_rebuild(item, inputs) for item in known[2])
    return known[1]


def _infer(operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if "device" in kwargs and kwargs["device"] is not None and kwargs["device"].type != "meta":
        kwargs = {**kwargs, "device": torch.device("meta")}
    if operation.depends_on_data and needs_values(operation, args):
        raise unsupported("results that depend on values, with shapes only", operation.name)
    if operation.one_dtype:
        _require_one_dtype(operation, args, kwargs)
    try:
        result = operation.overload(*args, **kwargs)
        return result if not operation.is_convolution else layouts.of_results(operation.base, args, result)
    except NotImplementedError as error:
        detail = f"{operation.name}: {str(error).splitlines()[0]}"
        raise unsupported("operations without a rule for shapes", detail) from error


def _require_one_dtype(operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """PyTorch's rules for meta tensors let operands of a product differ; its kernels do not, and say it here."""
    widened = kwargs.get("out_dtype") or any(isinstance(value, torch.dtype) for value in args)
    if len({value.dtype for value in args if isinstance(value, torch.Tensor)}) > 1 and not widened:
        little = [
            torch.zeros([1] * value.dim(), dtype=value.dtype) if isinstance(value, torch.Tensor) else value
            for value in args
        ]
        getattr(torch.ops.aten, operation.base).default(*little)


def skip(operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor:
    """A large product of CPU tensors, whose values nobody asked for: zeros of the right shape, in `out` if given."""
    moved = [meta_like(value) if isinstance(value, torch.Tensor) else value for value in args]
    out = kwargs.get("out")
    if out is None and operation.mutates:  # addmm_ and baddbmm_ write into their first argument
        out = args[0]
    if out is None:
        return zeros(operation.overload(*moved, **kwargs))
    shape = out.shape
    if "out" in kwargs:
        shape = operation.overload(*moved, **{**kwargs, "out": meta_like(out)}).shape
    target: torch.Tensor = out if out.shape == shape else out.resize_(shape)
    return target.zero_()


def zeros(described: torch.Tensor) -> torch.Tensor:
    """Zeros on the CPU in the shape of a meta tensor; pages are only touched when somebody reads them."""
    if described.numel() == 0:
        return torch.zeros(described.shape, dtype=described.dtype)
    flat = torch.frombuffer(bytearray(described.numel() * described.element_size()), dtype=described.dtype)
    return flat.view(described.shape)
