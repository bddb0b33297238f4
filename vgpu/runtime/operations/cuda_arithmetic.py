"""Arithmetic that CUDA's kernels do in another order than the CPU's, so that values differ in their last bit or more.

| what | CPU | CUDA | source |
|---|---|---|---|
| floats divided by a number | a quotient | a product with the rounded reciprocal | BinaryDivTrueKernel.cu |
| the same, rounded to zero | likewise | likewise: 41 / 41 is 0 | BinaryDivTruncKernel.cu |
| a list divided by a number | a quotient | a product with the FP64 reciprocal | ForeachBinaryOpScalar.cu |
| bins of `histc` | by edges in FP64 | (x - min) * bins / (max - min), in the dtype | SummaryOps.cu, `getBin` |
| zero clamped by zero, or compared with it | the first operand | +0 is greater than -0 | TensorCompare.cu, `::max` |

Not here: values that C++ leaves undefined (`vgpu.runtime.operations.cuda_values`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from vgpu.runtime.operations import bindings
from vgpu.runtime.operations.registries import registries

_aten = torch.ops.aten
_THRESHOLD, _THRESHOLD_ = bindings.of_threshold()
_LOW = (torch.float16, torch.bfloat16)
_SINGLE = (torch.float32, *_LOW)
_FLOATS = (torch.float32, torch.float64, *_LOW)


def quotient(overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Floats divided by a number, or by one in a tensor on the CPU; NotImplemented for other divisions."""
    dividend, divisor, mode = args[0], args[1], kwargs.get("rounding_mode")
    if not isinstance(dividend, torch.Tensor) or dividend.layout is not torch.strided or mode == "floor":
        return NotImplemented
    dtype = torch.result_type(dividend, divisor)
    if isinstance(divisor, torch.Tensor):
        if divisor.dim() or divisor.is_complex() or (registries and registries[-1].has(divisor)):
            return NotImplemented
        divisor = divisor.item()
    if mode is None and not dtype.is_floating_point and not dtype.is_complex:
        dtype = torch.get_default_dtype()
    target = kwargs.get("out", dividend if overload._schema.is_mutable else None)
    if dtype not in _FLOATS or isinstance(divisor, complex) or abs(math.frexp(divisor)[0]) == 0.5:
        return NotImplemented  # by powers of two, both are exact
    if target is not None and (target.dtype != dtype or target.layout is not torch.strided):
        return NotImplemented
    inverse = _reciprocal(divisor, single=dtype != torch.float64)
    wide = dividend.float() if dtype in _LOW else dividend.to(dtype)
    result = _aten.mul.Tensor(wide, inverse)
    if mode == "trunc":
        result = result.trunc_()
    result = result.to(dtype)
    return result if target is None else (target if target is dividend else target.resize_(result.shape)).copy_(result)


def _reciprocal(number: float, *, single: bool) -> float:
    """In FP32 or FP64; a quotient of two FP32 numbers in FP64, rounded, is the one in FP32."""
    divisor = _single(number) if single else float(number)
    if not divisor:
        return math.copysign(math.inf, divisor)
    return _single(1.0 / divisor) if single else 1.0 / divisor


def _single(number: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", number))[0])
    except OverflowError:
        return math.copysign(math.inf, number)


def list_quotient(overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """`foreach_tensor_div_scalar_kernel_cuda`: a product with `scalar_reciprocal`."""
    if overload._overloadname != "Scalar" or isinstance(args[1], complex):
        return NotImplemented
    multiply = _aten._foreach_mul_ if overload._schema.is_mutable else _aten._foreach_mul
    return multiply.Scalar(args[0], _reciprocal(args[1], single=False))


def histogram(overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """`_histc_cuda`: the bounds in the data's dtype, integers in INT64; values outside of them are left out."""
    given = dict(zip(("self", "bins", "min", "max"), args, strict=False)) | dict(kwargs)
    data, bins, low, high = given["self"], given.get("bins", 100), given.get("min", 0), given.get("max", 0)
    if bins <= 0 or data.dtype in _LOW or data.is_complex():
        return NotImplemented
    kind = data.dtype if data.is_floating_point() else torch.int64
    values = data.detach().reshape(-1).to(kind)
    bounds = torch.tensor([low, high]).to(kind)
    if bounds[0] == bounds[1] and values.numel():
        bounds = torch.stack([values.min(), values.max()])
    if bounds[0] == bounds[1]:
        bounds = bounds + torch.tensor([-1, 1], dtype=kind)
    if kind.is_floating_point and not bounds.isfinite().all():
        raise RuntimeError(f"range of [{bounds[0].item():g}, {bounds[1].item():g}] is not finite")
    if not bounds[0] < bounds[1]:
        raise RuntimeError("max must be larger than min")
    inside = values[(values >= bounds[0]) & (values <= bounds[1])]
    scaled, width = (inside - bounds[0]) * bins, bounds[1] - bounds[0]
    places = (scaled / width if kind.is_floating_point else scaled // width).to(torch.int64).clamp_(max=bins - 1)
    counts = torch.bincount(places, minlength=bins).to(data.dtype)
    out = kwargs.get("out")
    return counts if out is None else out.resize_(counts.shape).copy_(counts)


def positive_zero(overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Clamped from below by zero: `::max` of FP32 takes +0 from -0 and +0, where the CPU's keeps its operand."""
    data, bound = args[0], 0
    if "relu" not in overload._schema.name:
        bound = args[1] if len(args) > 1 else kwargs.get("min", kwargs.get("min_val"))
    if type(bound) not in (int, float) or bound != 0 or data.dtype not in _SINGLE or data.layout is not torch.strided:
        return NotImplemented
    return overload(*args, **kwargs).add_(0.0)


def rectified(overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """`relu`, which is clamped by zero: a threshold has the same values, with +0 at once."""
    data = args[0]
    if kwargs or data.dtype not in _SINGLE or data.layout is not torch.strided:
        return positive_zero(overload, args, kwargs)
    return (_THRESHOLD_ if overload._schema.is_mutable else _THRESHOLD)(data, 0, 0)


def extreme(overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """`maximum` and `minimum`: +0 is greater than -0 (MaxMinElementwiseKernel.cu, `::max`)."""
    left, right = args
    if not isinstance(right, torch.Tensor) or left.dtype not in _SINGLE or right.dtype not in _SINGLE:
        return NotImplemented
    result = overload(*args, **kwargs)
    zero = result == 0
    if zero.any():
        both = torch.logical_and if "maximum" in overload._schema.name else torch.logical_or
        negative = both(left.signbit(), right.signbit()).expand_as(result)[zero]
        result[zero] = torch.where(negative, -0.0, 0.0).to(result.dtype)
    return result


def bags(overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The first bag begins with the first index, whatever its offset says (EmbeddingBag.cu)."""
    offsets = args[2]
    if not offsets.numel() or offsets[0] == 0:
        return NotImplemented
    offsets = offsets.clone()
    offsets[0] = 0
    return overload(*args[:2], offsets, *args[3:], **kwargs)
