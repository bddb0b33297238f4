"""Scalar arguments that the operands' dtype cannot hold: where CUDA's kernels convert them to a wider one.

The CPU's kernels convert to the dtype of the operands, and refuse. CUDA's take floats of 16 bits as FP32 (`opmath_t`)
and `addcmul`'s integers as INT64 (`acc_type`), so the result overflows instead: infinite, or modulo 2^bits. The lists
are those operators of which PyTorch's host code takes such a scalar (`vgpu.tools.cuda_rules.stand_in`). Not here:
scalars that both refuse, `fill_` for example.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from vgpu.runtime.operations.operation import Operation

_REFUSED = re.compile(r"value cannot be converted to type (c10::Half|c10::BFloat16|u?int\d+_t|int) without overflow")
_FLOATS = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
_INTEGERS = dict.fromkeys((torch.int32, torch.int16, torch.int8, torch.uint8), torch.int64)
_AS_FLOAT32 = {
    "add", "sub", "rsub", "clamp", "clamp_min", "clamp_max", "hardtanh", "_foreach_add", "_foreach_sub",
    "_foreach_clamp_min", "_foreach_clamp_max", "_foreach_maximum", "_foreach_minimum", "_foreach_pow",
}  # fmt: skip
_AS_INT64 = {"addcmul", "_foreach_addcmul"}


def wider(operation: Operation, error: Exception) -> Mapping[torch.dtype, torch.dtype]:
    """The dtypes that CUDA's kernel computes in, by those of the operands, if the CPU refused a scalar; or nothing."""
    if _REFUSED.match(str(error)) is None:
        return {}
    return _FLOATS if operation.base in _AS_FLOAT32 else _INTEGERS if operation.base in _AS_INT64 else {}


def compute(
    operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any], wide: Mapping[torch.dtype, torch.dtype]
) -> Any:
    """The result of `operation` in the wider dtypes, in the dtype of its first operand."""
    options = {key: _raised(value, wide) for key, value in kwargs.items() if key != "out"}
    packet = getattr(torch.ops.aten, operation.base)
    name = re.sub(r"(^|_)out$", "", operation.overload._overloadname) or "default"
    result = getattr(packet, name)(*(_raised(value, wide) for value in args), **options)
    first = args[0]
    if isinstance(first, torch.Tensor):
        target = kwargs.get("out", first if operation.mutates else None)
        if target is None:
            dtypes = [value.dtype for value in args if isinstance(value, torch.Tensor) and value.dim() > 0]
            return result.to((dtypes or [first.dtype])[0])
        return target.resize_(result.shape).copy_(result)
    if operation.mutates:
        for tensor, value in zip(first, result, strict=True):
            tensor.copy_(value)
        return None
    return [value.to(tensor.dtype) for tensor, value in zip(first, result, strict=True)]


def _raised(value: Any, wide: Mapping[torch.dtype, torch.dtype]) -> Any:
    if isinstance(value, (list, tuple)):
        return [_raised(item, wide) for item in value]
    return value.to(wide.get(value.dtype, value.dtype)) if isinstance(value, torch.Tensor) else value
