"""Operations on lists of tensors that one launch cannot do: of several devices, dtypes, sizes or layouts.

ForeachUtils.h, `can_use_fast_route`: CUDA then calls the single operation for each tensor, with its promotion and its
refusals. Not here: lists that one launch takes (they are operations like others).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from vgpu.runtime.gpu import VirtualGPU
from vgpu.runtime.memory.residency import Registry
from vgpu.runtime.operations.operation import Operation

_SINGLE = {
    "maximum": "clamp_min", "minimum": "clamp_max", "norm": "linalg_vector_norm", "copy": "copy_", "zero": "zero_",
}  # fmt: skip
_WITH_ONE_NUMBER = ("add", "mul", "div")
"""Their overloads with a tensor want it to hold one number."""
_PROMOTE = {"add", "sub", "mul", "div", "pow", "maximum", "minimum", "clamp_min", "clamp_max"}
_Lists = list[Sequence[torch.Tensor]]


def groups(registry: Registry[VirtualGPU], args: Sequence[Any]) -> list[list[int]]:
    """The positions of a list operation's first list, grouped by GPU: a fused optimizer has one launch for each."""
    found: dict[VirtualGPU | None, list[int]] = {}
    for index, tensor in enumerate(args[0]):
        found.setdefault(registry.gpu_of(tensor), []).append(index)
    return list(found.values())


def by_group(operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any], parts: list[list[int]]) -> Any:
    """One call for each of `groups`."""
    size = len(args[0])
    results: list[Any] = [None] * size
    for indices in parts:

        def chosen(value: Any, indices: list[int] = indices) -> Any:
            is_list = isinstance(value, (list, tuple)) and len(value) == size
            return [value[index] for index in indices] if is_list else value

        part = operation.overload(
            *[chosen(value) for value in args], **{key: chosen(value) for key, value in kwargs.items()}
        )
        for index, value in zip(indices, part or (), strict=False):
            results[index] = value
    return results if results[0] is not None else None


def is_slow(registry: Registry[VirtualGPU], operation: Operation, args: Sequence[Any]) -> bool:
    """Whether CUDA calls the single operation for each tensor; never for a fused optimizer's, which has none."""
    if not operation.base.startswith("_foreach_"):
        return False
    lists: _Lists = [value for value in args if isinstance(value, (list, tuple)) and _holds_tensors(value)]
    if not lists or (operation.base == "_foreach_copy_" and len(lists) > 1):
        return False
    first = lists[0]
    dtype, gpu = first[0].dtype, registry.gpu_of(first[0])
    for tensors in lists:
        for tensor, other in zip(tensors, first, strict=False):
            if tensor.dtype is not dtype or registry.gpu_of(tensor) is not gpu or tensor.shape != other.shape:
                return True
            if tensor.is_contiguous() and other.is_contiguous():
                continue
            if tensor.stride() != other.stride() or not _is_dense(tensor):
                return True
    if dtype is torch.bool:
        return True
    if operation.base.removeprefix("_foreach_") not in _PROMOTE:
        return False
    return any(_promotes(dtype, number) for value in args for number in _numbers(value))


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether it fills its memory, in some order of its dimensions."""
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
                               if size != 1):  # fmt: skip
        if stride != expected:
            return False
        expected *= size
    return True


def _holds_tensors(value: Sequence[Any]) -> bool:
    return bool(value) and isinstance(value[0], torch.Tensor)


def _numbers(value: Any) -> Sequence[Any]:
    if isinstance(value, (list, tuple)):
        return () if _holds_tensors(value) else value
    return (value,)


def _promotes(dtype: torch.dtype, value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.dtype != dtype and value.dim() > 0
    kind = type(value)
    if kind is complex:
        return not dtype.is_complex
    if kind is float:
        return not dtype.is_floating_point and not dtype.is_complex
    return False


def one_by_one(operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any] | None:
    """The single operation for each tensor."""
    base, kind = operation.base.removeprefix("_foreach_").removesuffix("_"), operation.overload._overloadname
    name, arguments, options = _SINGLE.get(base, base), list(args), dict(kwargs)
    if kind == "Tensor" and base in _WITH_ONE_NUMBER and arguments[1].dim():
        raise RuntimeError(
            f"scalar tensor expected to be 0 dim but it has {arguments[1].dim()} dimensions and "
            f"{arguments[1].numel()} elements."
        )
    if base == "div" and kind == "Scalar" and arguments[1]:
        name, arguments = "mul", [arguments[0], 1.0 / arguments[1]]  # `foreach_tensor_div_scalar_kernel_cuda`
    if base in ("addcmul", "addcdiv"):
        factors = arguments.pop(3) if len(arguments) > 3 else options.pop("scalars", options.pop("value", 1))
        options["value"] = factors.tolist() if isinstance(factors, torch.Tensor) else factors
    if base == "norm":
        order = arguments[1] if len(arguments) > 1 else options.pop("ord", 2)
        dtype = arguments[2] if len(arguments) > 2 else options.get("dtype")
        arguments, options = [arguments[0], order, None, False], {"dtype": dtype}
    name += "_" if operation.mutates and not name.endswith("_") else ""
    single = getattr(torch.ops.aten, name)
    count = len(next(value for value in args if isinstance(value, (list, tuple))))
    _require_length(count, base, [*args, *options.values()])

    def chosen(value: Any, index: int) -> Any:
        return value[index] if isinstance(value, (list, tuple)) else value

    results = [
        single(
            *(chosen(value, index) for value in arguments),
            **{key: chosen(value, index) for key, value in options.items()},
        )
        for index in range(count)
    ]
    return None if operation.mutates else results


def _require_length(count: int, base: str, values: Sequence[Any]) -> None:
    """`check_foreach_api_restrictions`."""
    for value in values:
        if not isinstance(value, (list, tuple)) or len(value) == count:
            continue
        if _holds_tensors(value):
            raise RuntimeError(f"Tensor lists must have the same number of tensors, got {count} and {len(value)}")
        if base in ("addcmul", "addcdiv"):
            raise RuntimeError(
                f"Expected length of scalars to match input of length {count} but got {len(value)} instead."
            )
        raise RuntimeError("Tensor list must have same number of elements as scalar list.")
