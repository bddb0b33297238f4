"""Matrix products of 16-bit numbers with a result in 32 bits: `torch.mm(a, b, out_dtype=torch.float32)` and its kind.

Source: ATen/native/cuda/Blas.cpp, `_mm_dtype_out_cuda` and those next to it. The CPU has no such kernel; it multiplies
the widened operands. Not here: what they cost (`vgpu.runtime.operations.products`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from vgpu.runtime.gpu import VirtualGPU

_TENSORS = {"mm": 2, "bmm": 2, "addmm": 3, "baddbmm": 3}
_HALVES = (torch.float16, torch.bfloat16)


def _kernel(name: str) -> Callable[[VirtualGPU, Sequence[Any], Mapping[str, Any]], Any]:
    count = _TENSORS[name]
    overload = getattr(torch.ops.aten, name).default

    def widened(gpu: VirtualGPU, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Raises RuntimeError for a result that is neither the operands' dtype nor float32 of 16-bit ones."""
        options = dict(kwargs)
        dtype = args[count] if len(args) > count else options.pop("out_dtype")
        tensors = args[:count]
        if dtype != tensors[-1].dtype and not (dtype == torch.float32 and tensors[-1].dtype in _HALVES):
            raise RuntimeError("out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs")
        target = options.pop("out", None)
        result = overload(*(tensor.to(dtype) for tensor in tensors), **options)
        return result if target is None else target.resize_(result.shape).copy_(result)

    return widened


KERNELS = {name: _kernel(name) for name in _TENSORS}
