"""Values that CUDA's kernels compute differently, where C++ leaves a result undefined.

| what | CPU | CUDA | source |
|---|---|---|---|
| integers divided by zero | an error | all bits set; int64, dividend from 0 to 2^32 - 1: the lower 32 bits | (1) |
| remainder of integers by zero | an error | the same | (1) |
| float to int32, int64, out of range | the smallest integer | the nearest integer of the type | (2) |
| float to int16 | the lower bits | the nearest integer of the type | (2) |
| float to int8 | the lower bits | the lower bits of the nearest int16 | (2) |
| NaN to an integer | the smallest, or 0 | 0; from or to 64 bits the smallest of 32 or 64 bits | (2) |
| float to uint8 | by way of int64 | by way of int64, which saturates | (2), c10/util/TypeCast.h |

(1) PyTorch's test/test_binary_ufuncs.py, `test_fmod_remainder_by_zero_integral`, states it of remainders on NVIDIA's
cards. Quotients are modelled after it: both come from one division. (2) PTX ISA, `cvt`: conversions from floats to
integers saturate, and what they make of NaN. Not here: dtypes that CUDA refuses
(`vgpu.runtime.operations.cuda_dtypes`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from vgpu.runtime.operations.operation import Operation

_BY_ZERO = "ZeroDivisionError"
_DIVISIONS = ("div", "floor_divide", "remainder", "fmod")
_LOWER_32 = (1 << 32) - 1
_INTEGERS = {torch.int8: 16, torch.int16: 16, torch.int32: 32, torch.int64: 64, torch.uint8: 64}
"""Bits of the integer that a float is converted to first."""


def is_division_by_zero(operation: Operation, error: Exception) -> bool:
    """Whether the CPU refuses a division of integers that CUDA carries out."""
    return str(error) == _BY_ZERO and operation.base in _DIVISIONS


def divide(operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor:
    """A division of integers, with what CUDA makes of zero."""
    options = {key: value for key, value in kwargs.items() if key != "out"}
    dividend, divisor = (torch.as_tensor(value) for value in args[:2])
    dtype = torch.result_type(*args[:2])
    packet = getattr(torch.ops.aten, operation.base)
    zero = divisor == 0
    safe = torch.where(zero, 1, divisor).to(dtype)
    mode = {"rounding_mode": options["rounding_mode"]} if "rounding_mode" in options else {}
    values = (packet.Tensor_mode if mode else packet.Tensor if "Tensor" in packet.overloads() else packet.default)(
        dividend.to(dtype), safe, **mode
    )
    ones = torch.full_like(values, 255 if dtype == torch.uint8 else -1)
    if dtype == torch.int64:
        ones = torch.where((dividend >= 0) & (dividend <= _LOWER_32), _LOWER_32, ones)
    if _rounds_down(operation, mode):
        ones = ones - (dividend < 0).to(dtype)  # `div_floor_integer`: signs differ, and the remainder is not zero
    result = torch.where(zero, ones, values)
    target = kwargs.get("out", args[0] if operation.mutates else None)
    return result if target is None else target.resize_(result.shape).copy_(result)


def _rounds_down(operation: Operation, mode: Mapping[str, Any]) -> bool:
    return operation.base == "floor_divide" or mode.get("rounding_mode") == "floor"


def conversion(operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.dtype | None:
    """The integers' dtype, if a copy converts floats to integers."""
    source = args[1] if operation.base == "copy_" else args[0]
    dtype = args[0].dtype if operation.base == "copy_" else kwargs.get("dtype")
    return dtype if dtype in _INTEGERS and source.is_floating_point() else None


def convert(source: torch.Tensor, result: torch.Tensor) -> None:
    """Correct what the CPU made of floats that are not in the range of the integers in `result`."""
    bits = _INTEGERS[result.dtype]
    limit = 2.0 ** (bits - 1)
    exact = source.detach().double().expand(result.shape)
    strange = ~((exact > -limit - 1) & (exact < limit)) if bits < 64 else ~(exact.abs() < limit)
    if not strange.any():
        return
    least = -(1 << (bits - 1))
    wide = source.dtype == torch.float64 or bits == 64
    of_nan = (least if result.dtype != torch.int32 else -(1 << 31)) if wide else 0
    values = torch.where(exact > 0, -least - 1, least)
    result[strange] = torch.where(exact.isnan(), of_nan, values).to(result.dtype)[strange]
