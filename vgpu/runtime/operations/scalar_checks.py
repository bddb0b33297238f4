"""Scalars that CUDA refuses and the CPU takes: too large for a dtype, on the wrong device, an exponent without kernel.

Each was read from PyTorch's CUDA host code (`vgpu.tools.cuda_rules.stand_in`). Not here: scalars that only the CPU
refuses (`vgpu.runtime.operations.scalar_ranges`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from vgpu.runtime.operations import operand_dtypes
from vgpu.runtime.operations.cuda_dtypes import DTYPE_NAMES
from vgpu.runtime.operations.registries import registries

_SIGNED = {torch.int8: "Char", torch.int16: "Short", torch.int32: "Int", torch.int64: "Long"}
_INTEGERS = {*_SIGNED, torch.uint8}
_SINGLES = {torch.float32: "float", torch.complex64: "c10::complex<float>"}
_HALVES = {torch.float16: "c10::Half", torch.bfloat16: "c10::BFloat16"}
_MOST_IN_HALF = (1 << 11) + 1
"""Numbers from 0 on that FP16 represents exactly."""


def require_fits(value: Any, dtype: torch.dtype) -> None:
    """Raise RuntimeError, as `Scalar::to`, for a number that overflows in `dtype`; infinities and NaN do not."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return
    if dtype in _HALVES:
        if not math.isinf(value) and abs(value) > torch.finfo(dtype).max:
            raise RuntimeError(f"value cannot be converted to type {_HALVES[dtype]} without overflow")
    elif not dtype.is_complex:
        # The CPU's own check, for the types for which it has one.
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            torch.empty((), dtype=dtype, device="cpu").fill_(value)


def addmv(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Blas.cpp (CUDA), `addmv_out_cuda`: its factors are converted to the dtype of the operands."""
    for name in ("alpha", "beta"):
        require_fits(kwargs.get(name, 1), args[0].dtype)


def foreach_integers(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """ForeachBinaryOpScalar.cu: integers are not promoted, and a scalar is converted to them."""
    tensors, scalar = args[0], args[1] if len(args) > 1 else kwargs.get("scalar", kwargs.get("scalars"))
    for place, tensor in enumerate(tensors):
        value = scalar[place] if isinstance(scalar, (list, tuple)) else scalar
        if tensor.dtype in _INTEGERS and isinstance(value, int):
            require_fits(value, tensor.dtype)


def scalars_on_cpu(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """ForeachUtils.h, `convert_tensor_to_scalar_list`: the scalars of `_foreach_addcmul` are read on the host."""
    scalars, registry = args[3] if len(args) > 3 else kwargs.get("scalars"), registries[-1] if registries else None
    if isinstance(scalars, torch.Tensor) and registry is not None and registry.has(scalars):
        raise RuntimeError(f"Expected scalars to be on CPU, got {registry.device_of(scalars)} instead.")


def power(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """PowKernel.cu: an exponent is converted to the result's dtype; one on the CPU is read, and -1 is a reciprocal."""
    base, exponent, registry = args[0], args[1], registries[-1] if registries else None
    if not isinstance(base, torch.Tensor):
        operand_dtypes.no_bool("pow_cuda")(args, kwargs)
    if isinstance(base, torch.Tensor) and isinstance(exponent, (int, float)):
        dtype = torch.result_type(base, exponent)
        if dtype in _SINGLES and not math.isinf(exponent) and abs(exponent) > torch.finfo(torch.float32).max:
            raise RuntimeError(f"value cannot be converted to type {_SINGLES[dtype]} without overflow")
    if not (isinstance(base, torch.Tensor) and isinstance(exponent, torch.Tensor)) or registry is None:
        return
    if base.dtype not in _SIGNED or exponent.dim() or exponent.is_meta or registry.has(exponent):
        return
    if not exponent.is_floating_point() and exponent.item() == -1:
        kind = _SIGNED.get(torch.result_type(base, exponent), "")
        raise NotImplementedError(f"\"reciprocal_cuda\" not implemented for '{kind}'")


def histogram(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """SummaryOps.cu, `_histc_cuda`."""
    if args[0].dtype == torch.float16:
        raise RuntimeError("HalfTensor is not supported")


def fill(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Fill.cpp: a value on the CPU is read, and has to fit."""
    value, registry = args[1] if len(args) > 1 else kwargs.get("value"), registries[-1] if registries else None
    if not isinstance(value, torch.Tensor) or value.dim() or value.is_meta or registry is None:
        return
    if not registry.has(value):
        require_fits(value.item(), args[0].dtype)


def threshold(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """ActivationThresholdKernel.cu: the threshold is converted to the dtype, as the value is."""
    if args[0].dtype in _HALVES:
        require_fits(args[1] if len(args) > 1 else kwargs["threshold"], args[0].dtype)


def permutation(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Randperm.cu and `check_supported_max_int_with_precision`: the numbers up to n - 1 have to fit the dtype."""
    count, out = args[0], kwargs.get("out")
    dtype = kwargs.get("dtype") or torch.int64 if out is None else out.dtype
    if dtype == torch.bool or dtype.is_complex:
        raise NotImplementedError(f"\"arange_cuda\" not implemented for '{DTYPE_NAMES[dtype]}'")
    if dtype == torch.bfloat16 and count:
        raise NotImplementedError("\"randperm_out_cuda\" not implemented for 'BFloat16'")
    if count:
        require_fits(count - 1, dtype)
    if dtype == torch.float16 and count > _MOST_IN_HALF:
        raise RuntimeError(f"n cannot be greater than {_MOST_IN_HALF} for Half type.")
