"""Products in 16 bits, computed in FP32 and rounded.

Tensor cores accumulate in FP32 (NVIDIA A100 whitepaper), and a CPU's native FP16 product is hundreds of times slower
than its FP32 one, so this is both the faithful and the fast way. Not here: which dtype an operation runs in
(`vgpu.autocast`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from vgpu.operations import Operation

LOW = (torch.float16, torch.bfloat16)
PRODUCTS = {
    "mm", "addmm", "_addmm_activation", "bmm", "baddbmm", "mv", "addmv", "dot", "vdot", "addr", "addbmm",
    "convolution", "convolution_overrideable", "convolution_backward",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward",
}  # fmt: skip
# Their second result (the log of the softmax's sums) stays in FP32 on CUDA too.
_KEEPS_SECOND = "_scaled_dot_product_flash_attention_for_cpu"


def _raise(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in LOW else value


def compute(operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: torch.dtype) -> Any:
    """Run a product whose operands are in the low precision `dtype`: FP32 inside, rounded to `dtype` outside."""
    kwargs = dict(kwargs)
    out = kwargs.pop("out", None)
    function: Callable[..., Any] = operation.overload
    target = out if out is not None else args[0] if operation.mutates else None
    if target is not None:
        function = getattr(torch.ops.aten, operation.base).default
    kwargs.pop("out_dtype", None)
    result = function(*[_raise(item) for item in args], **{key: _raise(item) for key, item in kwargs.items()})
    if target is not None:
        if target.shape != result.shape:
            target.resize_(result.shape)
        return target.copy_(result)
    if isinstance(result, torch.Tensor):
        return result.to(dtype)
    keep = 1 if operation.base == _KEEPS_SECOND else len(result)
    return tuple(
        item.to(dtype) if index < keep and isinstance(item, torch.Tensor) else item for index, item in enumerate(result)
    )
