"""What CUDA computes and the CPU underneath has no kernel for: computed in a wider dtype.

What CUDA refuses was refused before (`vgpu.runtime.operations.cuda_dtypes`), so a refusal of the CPU is its own. Not
here: 16-bit operations that the CPU has a kernel for (`vgpu.runtime.operations.precision`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

from vgpu.runtime.operations import precision
from vgpu.runtime.operations.cuda_dtypes import empty_result
from vgpu.runtime.operations.operation import Operation
from vgpu.runtime.unsupported import unsupported

_WIDE = {
    torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64,
    torch.float8_e4m3fn: torch.float32, torch.float8_e5m2: torch.float32, torch.bool: torch.uint8,
    torch.uint16: torch.int32,
}  # fmt: skip
_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_EXACT = 1 << 53
"""Whole numbers up to this one are exact in FP64."""
_LACKS = re.compile(r"\"[^\"]+\" not implemented for '\w+'$")
"""What the CPU says of a dtype that it has no kernel for."""
_KERNEL = re.compile(r"(\"[^\"]+\") not implemented for '\w+'$")
_NOWHERE = "BComplex32"
"""What BF16 and a complex number are promoted to since 2.15: a wider dtype would hide that."""


def compute(
    operation: Operation,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    inputs: Sequence[torch.Tensor],
    error: Exception,
) -> Any:
    """What CUDA returns where the CPU raised `error`; raises `error` again if the CPU lacks no kernel."""
    if _NOWHERE in str(error):
        raise NotImplementedError(_refusal(operation) or str(error)) from error
    if operation.refused and (nothing := _nothing(operation, args, kwargs)) is not None:
        return nothing
    dtype = next((tensor.dtype for tensor in inputs if tensor.dtype in (*_WIDE, *_WHOLE)), None)
    if dtype is None or not _LACKS.match(str(error)):
        raise error
    if dtype in _WHOLE:
        return _in_float64(operation, args, kwargs, dtype)
    try:
        return precision.compute(operation, args, kwargs, dtype, _WIDE)
    except NotImplementedError:
        if dtype != torch.bool:
            raise
        return _in_float64(operation, args, kwargs, dtype)


def _refusal(operation: Operation) -> str:
    """The words in which CUDA's kernel refuses some dtype, for the one that has no kernel anywhere; or ""."""
    texts = (match[1] for text in operation.dtypes.refused.values() if (match := _KERNEL.search(text)))
    kernel = next(texts, "")
    return f"{kernel} not implemented for '{_NOWHERE}'" if kernel else ""


def _nothing(operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result if it is empty; None otherwise. CUDA launches nothing for it, whatever the dtype."""
    result = empty_result(operation.overload, args, kwargs)
    if result is None:
        return None
    written = kwargs.get("out", args[0] if operation.mutates else None)
    if isinstance(written, torch.Tensor):
        return written if written.numel() == 0 else None
    return tree_map(
        lambda item: torch.empty_like(item, device="cpu") if isinstance(item, torch.Tensor) else item, result
    )


def _in_float64(operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: torch.dtype) -> Any:
    """Only the first argument holds the values; others of an integer dtype are indices."""
    values = args[0]
    if operation.mutates or "out" in kwargs or not isinstance(values, torch.Tensor) or values.dtype != dtype:
        raise unsupported("kernels that the CPU underneath lacks", operation.name)
    if dtype == torch.int64 and bool((values.abs() > _EXACT).any()):
        raise unsupported("kernels that the CPU underneath lacks", f"{operation.name} of integers over 2^53")
    result = operation.overload(values.double(), *args[1:], **kwargs)
    items = result if isinstance(result, tuple) else (result,)
    narrow = tuple(item.to(dtype) if item.dtype == torch.float64 else item for item in items)
    return narrow if isinstance(result, tuple) else narrow[0]
