"""What CUDA's kernels for sparse COO and for quantised tensors refuse, in the words of PyTorch's host code.

The tables of `vgpu.runtime.operations.cuda_dtypes` know dense tensors only. Sources: SparseCUDATensorMath.cu,
SoftMax.cu (sparse), and quantized/affine_quantizer.cpp, whose kernels for less than a byte are the CPU's alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from vgpu.runtime.operations.cuda_dtypes import DTYPE_NAMES

_COO = torch.sparse_coo
_FULL = {torch.float32, torch.float64, torch.complex64, torch.complex128}
_NAMES = {torch.quint4x2: "QUInt4x2", torch.quint2x4: "QUInt2x4"}
_NO_STUB = (
    'false INTERNAL ASSERT FAILED at "aten/src/ATen/native/DispatchStub.cpp", please report a bug to PyTorch. '
    "DispatchStub: missing kernel for cuda"
)


def require_addmm(args: Sequence[Any], kwargs: Mapping[str, Any], kernel: str = "addmm_sparse_cuda") -> None:
    """Refuse the product of one COO tensor and a dense one in 16 bits; an empty one is no work for a kernel."""
    sparse: list[torch.Tensor] = []
    for value in args:  # part of every product
        if isinstance(value, torch.Tensor) and value.layout is _COO:
            sparse.append(value)
    if len(sparse) == 1 and sparse[0].dtype not in _FULL and sparse[0]._nnz():
        raise NotImplementedError(f"\"{kernel}\" not implemented for '{DTYPE_NAMES[sparse[0].dtype]}'")


def require_bmm(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """The same for batches."""
    require_addmm(args, kwargs, "bmm_sparse_cuda")


OF_PRODUCTS = (require_addmm, require_bmm)
"""Those that accept all strided tensors."""


def require_softmax(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse a softmax of sparse values in 16 bits or integers."""
    dtype = args[0].dtype
    if dtype not in _FULL and args[0]._nnz():
        raise NotImplementedError(f"\"softmax\" not implemented for '{DTYPE_NAMES[dtype]}'")


def require_whole_bytes(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse to quantise to 4 or 2 bits, with one scale or one for each channel."""
    below = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.dtype) and value in _NAMES]
    if below and isinstance(args[1], torch.Tensor) and args[1].dim():
        kernel, dtype = "quantize_tensor_per_channel_float_qparams_cuda", _NAMES[below[0]]
        raise NotImplementedError(f"\"{kernel}\" not implemented for '{dtype}'")
    if below:
        raise RuntimeError(_NO_STUB)


def require_no_reduction(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse the one operation on compressed tensors for which only the CPU has a kernel (`sparse.mm(reduce=)`)."""
    raise NotImplementedError(
        "Could not run 'aten::_sparse_mm_reduce_impl' with arguments from the 'SparseCsrCUDA' backend. This could be "
        "because the operator doesn't exist for this backend, or was omitted during the selective/custom build "
        "process (if using custom build)."
    )
