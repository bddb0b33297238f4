"""16-bit operations computed in FP32 and rounded, and FP32 products with TF32 operands.

Tensor cores accumulate in FP32 (NVIDIA A100 whitepaper), and a CPU's native FP16 product is hundreds of times slower
than its FP32 one, so this is both the faithful and the fast way. Not here: which dtype an operation runs in
(`vgpu.torch_integration.autocast`) and recurrent layers (`vgpu.torch_integration.kernels.recurrent`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from vgpu.device.spec import Spec
from vgpu.runtime.operations.operation import Operation

LOW = (torch.float16, torch.bfloat16, torch.complex32)
# Their second result (the log of the softmax's sums) stays in FP32 on CUDA too.
_KEEPS_SECOND = "_scaled_dot_product_flash_attention_for_cpu"

_WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64}


def _raise(value: Any, wide: Mapping[torch.dtype, torch.dtype]) -> Any:
    if isinstance(value, torch.Tensor):
        dtype = wide.get(value.dtype)
        return value if dtype is None else value.to(dtype)
    if isinstance(value, (list, tuple)):
        return [_raise(item, wide) for item in value]
    return value


def low_dtype(inputs: Sequence[torch.Tensor]) -> torch.dtype | None:
    """The first 16-bit dtype among the inputs, or None."""
    for tensor in inputs:
        if tensor.dtype in LOW:
            return tensor.dtype
    return None


def compute(
    operation: Operation,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dtype: torch.dtype,
    wide: Mapping[torch.dtype, torch.dtype] = MappingProxyType(_WIDE),
) -> Any:
    """Run an operation on operands in the low precision `dtype`: FP32 inside, rounded to `dtype` outside."""
    kwargs = dict(kwargs)
    out = kwargs.pop("out", None)
    out_dtype = kwargs.pop("out_dtype", None)
    if operation.overload._overloadname.startswith("dtype"):  # mm.dtype, bmm.dtype: the result's dtype is an argument
        out_dtype = next(value for value in args if isinstance(value, torch.dtype))
        args = [value for value in args if not isinstance(value, torch.dtype)]
    narrow = {wide[dtype]: out_dtype or kwargs.get("dtype") or dtype, torch.complex64: torch.complex32}
    if dtype == torch.complex32:
        narrow[torch.float32] = torch.float16
    target = out if out is not None else args[0] if operation.mutates else None
    function: Callable[..., Any] = operation.overload
    if target is not None or out_dtype is not None:
        packet = getattr(torch.ops.aten, operation.base)
        name = re.sub(r"(^|_)out$", "", operation.overload._overloadname)
        function = getattr(packet, name if name in packet.overloads() and out_dtype is None else "default")
    raised = {key: _raise(item, wide) for key, item in kwargs.items()}
    result = function(*[_raise(item, wide) for item in args], **raised)
    if target is not None:
        if target.shape != result.shape:
            target.resize_(result.shape)
        return target.copy_(result)
    if isinstance(result, torch.Tensor):
        return result.to(narrow.get(result.dtype, result.dtype))
    keep = 1 if operation.base == _KEEPS_SECOND else len(result)
    return tuple(
        item.to(narrow.get(item.dtype, item.dtype)) if index < keep and isinstance(item, torch.Tensor) else item
        for index, item in enumerate(result)
    )


# ---- TF32 ------------------------------------------------------------------------------------------------------------

_precision_of = torch._C._get_fp32_precision_getter
# TF32 keeps 10 of FP32's 23 bits of mantissa; cvt.rna.tf32.f32 rounds to nearest, ties away from zero (PTX ISA).
_HALF_STEP, _KEPT_BITS = 1 << 12, ~((1 << 13) - 1)


def tf32_allowed(switch: str) -> bool:
    """Whether FP32 operations of a kind ("matmul", "conv", "rnn") may use TF32.

    Every spelling ends there: `torch.backends.fp32_precision` and below, `allow_tf32`, and
    `torch.set_float32_matmul_precision` (aten/src/ATen/Context.cpp, `float32Precision`).
    """
    return bool(_precision_of("cuda", switch) == "tf32")


def may_use_tf32(operation: Operation, dtype: torch.dtype) -> bool:
    """Whether this is an FP32 product for which the program allows TF32."""
    # `tf32_allowed`, written out: this is part of every product.
    switch = operation.tf32_switch
    return dtype is torch.float32 and switch != "" and bool(_precision_of("cuda", switch) == "tf32")


def uses_tf32(operation: Operation, dtype: torch.dtype, spec: Spec) -> bool:
    """The same, where the GPU has it."""
    return "tf32" in spec.peak_flops and may_use_tf32(operation, dtype)


def to_tf32(tensor: torch.Tensor) -> torch.Tensor:
    """The nearest TF32 values, in a new FP32 tensor."""
    return tensor.view(torch.int32).add(_HALF_STEP).bitwise_and_(_KEPT_BITS).view(torch.float32)


def with_tf32_operands(operation: Operation, args: Sequence[Any]) -> list[Any]:
    """The arguments with the product's operands rounded to TF32; the sum stays FP32 on tensor cores."""
    changed = list(args)
    for place in operation.tf32_operands:
        value = changed[place]
        if isinstance(value, torch.Tensor) and value.dtype == torch.float32 and value.layout is torch.strided:
            changed[place] = to_tf32(value)
    return changed
