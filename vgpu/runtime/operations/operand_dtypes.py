"""Operands whose dtypes CUDA refuses and the CPU takes: parameters of another dtype, 16 bits, truth values.

Each was read from PyTorch's CUDA host code (`vgpu.tools.cuda_rules.stand_in`). Not here: dtypes that the generated
tables refuse (`vgpu.runtime.operations.cuda_dtypes`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from vgpu.runtime.operations.cuda_dtypes import DTYPE_NAMES

Check = Callable[[Sequence[Any], Mapping[str, Any]], None]
_NAMES = {torch.float16: "Half", torch.bfloat16: "BFloat16", torch.float32: "Float", torch.float64: "Double"}


def alike(*places: int) -> Check:
    """The arguments at these places, if they are there, have the dtype of the first argument."""

    def check(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        expected = args[0].dtype
        for place in places:
            other = args[place] if place < len(args) else None
            if isinstance(other, torch.Tensor) and other.dtype != expected and {expected, other.dtype} <= _NAMES.keys():
                raise RuntimeError(f"expected scalar type {_NAMES[expected]} but found {_NAMES[other.dtype]}")

    return check


def no_16_bits(kernel: str) -> Check:
    """The first argument is no float of 16 bits."""

    def check(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if args[0].dtype in (torch.float16, torch.bfloat16):
            raise NotImplementedError(f"\"{kernel}\" not implemented for '{_NAMES[args[0].dtype]}'")

    return check


def no_bool(kernel: str) -> Check:
    """Not all operands are truth values. The generated tables have no calls with `True` for a number."""

    def check(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        operands = [value for value in (*args, *kwargs.values()) if isinstance(value, (torch.Tensor, int, float))]
        if all(value.dtype == torch.bool if isinstance(value, torch.Tensor) else value is True or value is False
               for value in operands):  # fmt: skip
            raise NotImplementedError(f"\"{kernel}\" not implemented for 'Bool'")

    return check


def clamp(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """TensorCompare.cu: two bounds in tensors, or bounds that are numbers; one in a tensor is a maximum or minimum."""
    tensors = sum(isinstance(value, torch.Tensor) for value in (*args, *kwargs.values()))
    if tensors != 2:
        no_bool("clamp_cuda" if tensors > 2 else "clamp_scalar_cuda")(args, kwargs)


def batch_norm(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Normalization.cpp (CUDA), `_batch_norm_impl_index`: 16-bit data may have FP32 parameters; both are alike.

    cuDNN gets calls with all of them, except in BF16, and wants running statistics of the weight's dtype. PyTorch's own
    kernels take any.
    """
    data, weight, bias, mean = args[:4]
    low = data.dtype in (torch.float16, torch.bfloat16)
    wide = torch.float32 if low else data.dtype
    if isinstance(weight, torch.Tensor) and weight.dtype not in (data.dtype, wide):
        _refuse("weight", wide, weight)
    if isinstance(bias, torch.Tensor):
        allowed = (data.dtype, wide) if weight is None else (weight.dtype,)
        if bias.dtype not in allowed:
            _refuse("bias", allowed[-1], bias)
    given = all(isinstance(value, torch.Tensor) for value in (weight, bias, mean))
    if given and data.dtype != torch.bfloat16 and weight.dtype == wide and mean.dtype != wide:
        raise RuntimeError(
            "Expected tensor for argument #2 'weight' to have the same type as tensor for argument #4 'running_mean'; "
            f"but type {_type(weight)} does not equal {_type(mean)} (while checking arguments for cudnn_batch_norm)"
        )


def batch_norm_backward(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """`batch_norm_backward_cuda`: with a weight of 16 bits, running statistics of 16 bits."""
    data, weight, mean = args[1:4]
    if not isinstance(weight, torch.Tensor) or not isinstance(mean, torch.Tensor):
        return
    if weight.dtype == data.dtype != mean.dtype and weight.dtype in (torch.float16, torch.bfloat16):
        _refuse("running_mean", weight.dtype, mean)


def _refuse(name: str, expected: torch.dtype, value: torch.Tensor) -> None:
    raise RuntimeError(f"Expected {name} to have type {DTYPE_NAMES[expected]} but got {DTYPE_NAMES[value.dtype]}")


def _type(tensor: torch.Tensor) -> str:
    name = DTYPE_NAMES[tensor.dtype]
    return f"CUDA{name}Type" if name == "BFloat16" else f"torch.cuda.{name}Tensor"


def transformed(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """CuFFTPlanCache.h: which dtypes cuFFT has, and the sides that it takes in half precision."""
    tensor, dims = args[0], list(args[1])
    if tensor.dtype == torch.bfloat16:
        raise RuntimeError("cuFFT doesn't support tensor of type: BFloat16")
    if tensor.dtype in (torch.float16, torch.complex32) and dims:
        sides = [tensor.shape[dim] for dim in dims]
        if len(args) > 3 and not isinstance(args[3], bool):  # `_fft_c2r` is given the result's last side
            sides[-1] = args[3]
        require_powers_of_two(sides)


def require_powers_of_two(sides: Sequence[int]) -> None:
    """For a transform in half precision."""
    if any(side & (side - 1) for side in sides):
        raise RuntimeError(
            "cuFFT only supports dimensions whose sizes are powers of two when computing in half precision, "
            f"but got a signal size of{list(sides)}"
        )


def rates(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Distributions.cu, `launch_poisson_cuda_kernel`: the CPU rounds numbers of whole rates as well."""
    if not args[0].is_floating_point():
        raise NotImplementedError(f"\"poisson_cuda\" not implemented for '{DTYPE_NAMES[args[0].dtype]}'")
