"""Operations on lists of tensors that one launch cannot do: on several GPUs, or of several dtypes.

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
    "_foreach_add": "add", "_foreach_sub": "sub", "_foreach_mul": "mul", "_foreach_div": "div", "_foreach_pow": "pow",
    "_foreach_maximum": "clamp_min", "_foreach_clamp_min": "clamp_min", "_foreach_minimum": "clamp_max",
    "_foreach_clamp_max": "clamp_max",
}  # fmt: skip


def groups(registry: Registry[VirtualGPU], args: Sequence[Any]) -> list[list[int]]:
    """The positions of a list operation's first list, grouped by GPU."""
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


def is_slow(operation: Operation, args: Sequence[Any]) -> bool:
    """Whether CUDA calls the single operation for each tensor because of dtypes."""
    if operation.base not in _SINGLE or len(args) < 2:
        return False
    tensors, other = (args[0], args[1]) if isinstance(args[0], (list, tuple)) else (args[1], args[0])
    dtype = tensors[0].dtype
    if dtype is torch.bool:
        return True
    for tensor in tensors:
        if tensor.dtype != dtype:
            return True
    others = other if isinstance(other, (list, tuple)) else (other,)
    return any(_promotes(dtype, value) for value in others)


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
    name = _SINGLE[operation.base]
    if name == "div" and operation.overload._overloadname == "Scalar" and args[1]:
        name, args = "mul", (args[0], 1.0 / args[1])  # `foreach_tensor_div_scalar_kernel_cuda`
    name += "_" if operation.mutates else ""
    single = getattr(torch.ops.aten, name)
    count = len(next(value for value in args if isinstance(value, (list, tuple))))

    def chosen(value: Any, index: int) -> Any:
        return value[index] if isinstance(value, (list, tuple)) else value

    results = [single(*(chosen(value, index) for value in args), **kwargs) for index in range(count)]
    return None if operation.mutates else results
