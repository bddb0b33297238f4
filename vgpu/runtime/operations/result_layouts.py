"""Results that CUDA's kernels lay out in memory otherwise than the CPU's: `view` refuses what only `reshape` takes.

| what | CPU | CUDA | source |
|---|---|---|---|
| padding by reflection or copies, `max_unpool` | channels last stays | contiguous | ReflectionPad.cu, \
MaxUnpooling.cu |
| shuffles of channels and pixels | channels last stays | a permuted copy | PixelShuffle.cpp, ChanelShuffle.cpp |
| FFTs | MKL's order of dimensions | the last transformed dimensions come last | SpectralOps.cpp (CUDA), `_exec_fft` |
| Vh of a singular value decomposition | by columns | by rows | LinearAlgebra.cpp, `_linalg_svd` |

Each was compared with PyTorch's CUDA host code (`vgpu.tools.cuda_rules.stand_in`). Not here: layouts of convolutions
(`vgpu.runtime.operations.layouts`), and of kernels that are written out (`vgpu.torch_integration.kernels`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from vgpu.runtime.operations.layouts import is_channels_last

_MOST_DIMENSIONS = 3
"""That one plan of cuFFT transforms (`cufft_max_ndim`)."""
_Strides = list[int]
_aten = torch.ops.aten
_CUDA = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)


def contiguous(overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Its result in the order of its dimensions."""
    if "out" in kwargs:
        return NotImplemented
    return overload(*args, **kwargs).contiguous()


def composite(overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What PyTorch runs where the CPU alone has a kernel; every wheel contains it.

    Even strides of dimensions of size 1 are CUDA's then.
    """
    if "out" in kwargs:
        return NotImplemented
    return overload.redispatch(_CUDA, *args, **kwargs)


def shuffled_channels(overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """`channel_shuffle`, around the one that is composite."""
    if "out" in kwargs or not args[0].numel():
        return NotImplemented
    return _aten.native_channel_shuffle.default.redispatch(_CUDA, *args, **kwargs)


def suggested(overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The same, or channels last if the first argument is (`suggest_memory_format`)."""
    if is_channels_last(args[0]) or "out" in kwargs:
        return NotImplemented
    return overload(*args, **kwargs).contiguous()


def singular_vectors(overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """`svd_uses_cusolver`: cuSOLVER gives V, by columns."""
    if overload._schema.is_mutable:
        return NotImplemented
    u, s, vh = overload(*args, **kwargs)
    return u, s, vh.contiguous()


def transform(overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """`_fft_r2c_cufft`, `_fft_c2r_cufft` and `_fft_c2c_cufft`."""
    tensor, dims = args[0], list(args[1])
    if "out" in kwargs or not dims or not tensor.numel():
        return NotImplemented
    result = overload(*args, **kwargs)
    kind = overload._schema.name.rpartition("_")[2]
    strides = _STRIDES[kind](tensor, result, dims)
    if list(result.stride()) == strides:
        return result
    return torch.empty_strided(result.shape, strides, dtype=result.dtype, device=result.device).copy_(result)


def _complex(tensor: torch.Tensor, result: torch.Tensor, dims: Sequence[int]) -> _Strides:
    return _in_steps(list(tensor.stride()), result.shape, dims)


def _from_real(tensor: torch.Tensor, result: torch.Tensor, dims: Sequence[int]) -> _Strides:
    """The last dimension first; a result with both sides is filled in afterwards, where it is."""
    strides = list(tensor.stride())
    onesided = list(tensor.shape)
    onesided[dims[-1]] = onesided[dims[-1]] // 2 + 1
    sizes = onesided if len(dims) > 1 else list(result.shape)
    if _at_once(dims):
        return _planned(strides, result.shape, dims)
    strides = _planned(strides, sizes, dims[-1:])
    return _in_steps(strides, onesided, dims[:-1]) if len(dims) > 1 else strides


def _to_real(tensor: torch.Tensor, result: torch.Tensor, dims: Sequence[int]) -> _Strides:
    strides = list(torch.empty(tensor.shape, device="meta").stride())  # of a clone: the plan overwrites its input
    if _at_once(dims):
        return _planned(strides, result.shape, dims)
    if len(dims) > 1:
        strides = _in_steps(list(tensor.stride()), tensor.shape, dims[:-1])
    return _planned(strides, result.shape, dims[-1:])


_STRIDES = {"c2c": _complex, "r2c": _from_real, "c2r": _to_real}


def _at_once(dims: Sequence[int]) -> bool:
    """`use_optimized_cufft_path`."""
    return len(dims) <= _MOST_DIMENSIONS and list(dims[:2]) != [0, 1]


def _in_steps(strides: _Strides, sizes: Sequence[int], dims: Sequence[int]) -> _Strides:
    """Of transforms of up to three dimensions each, those that are closest together in memory first."""
    left = list(dims)
    while left:
        left.sort(key=lambda dim: -strides[dim])
        strides = _planned(strides, sizes, left[-_MOST_DIMENSIONS:])
        del left[-_MOST_DIMENSIONS:]
    return strides


def _planned(strides: _Strides, sizes: Sequence[int], dims: Sequence[int]) -> _Strides:
    """`_exec_fft`: the transformed dimensions are the inner ones, the others in the order of the input."""
    batch = sorted((dim for dim in range(len(strides)) if dim not in dims), key=lambda dim: -strides[dim])
    result, step = [0] * len(strides), 1
    for dim in reversed([*batch, *dims]):
        result[dim] = step
        step *= sizes[dim]
    return result
