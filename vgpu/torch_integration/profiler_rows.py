"""What PyTorch's profiler shows of one launch on CUDA: inner operations, the runtime's call, FLOPs.

Sources: aten/src/ATen/native/Convolution.cpp and Normalization.cpp (which operations call which), Kineto's names of the
CUDA runtime's calls, torch/csrc/profiler/util.cpp (`computeFlops`). Not here: PyTorch's classes
(`vgpu.torch_integration.profiler`).
"""

from __future__ import annotations

from math import prod

from vgpu.device.queue import Kernel

# Read without a dispatch on CUDA, so that no row shows them.
UNSEEN = frozenset({"aten::size", "aten::stride", "aten::numel", "aten::dim", "aten::is_contiguous"})
# Operations that have FLOPs by their kernel; those of a convolution are on the row of `aten::conv2d`.
_PRODUCTS = frozenset({"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"})
_ELEMENTWISE = frozenset({"aten::add", "aten::mul"})
# Depthwise convolutions in these are for cuDNN (Convolution.cpp, `use_cudnn_depthwise`).
_NARROW = ("float16", "bfloat16")
# They make their result, and copy into it (TensorConversions.cpp, TensorFactories.cpp).
COPYING = frozenset({"aten::clone", "aten::_to_copy"})
MEMCPY = "Memcpy DtoD (Device -> Device)"
CONVOLUTION, WITH_CONVOLUTION = "aten::convolution", "aten::conv2d"


def operations(kernel: Kernel, name: str) -> tuple[str, ...]:
    """The operations around a launch, the outermost first."""
    shapes = kernel.shapes
    if name == CONVOLUTION and len(shapes) > 1:
        channels, (outer, inner) = shapes[0][1] if len(shapes[0]) > 1 else 1, shapes[1][:2]
        if inner == 1 and channels > 1 and outer % channels == 0 and kernel.dtype not in _NARROW:
            last = "aten::_conv_depthwise2d"
        else:
            last = "aten::cudnn_convolution" if channels % inner == 0 else "aten::cudnn_convolution_transpose"
        return name, "aten::_convolution", last
    if name == "aten::native_batch_norm" and len(shapes) > 2:
        return "aten::_batch_norm_impl_index", "aten::cudnn_batch_norm"
    if name == "aten::native_batch_norm_backward":
        return ("aten::cudnn_batch_norm_backward",)
    if name in COPYING:
        return name, "aten::copy_"
    return (name,)


def runtime_call(kernel: Kernel, *, memcpy: bool = False) -> str:
    """The call of the CUDA runtime, or of the driver, that a launch is; empty for work of libraries."""
    if memcpy or kernel.name.startswith("Memcpy"):
        return "cudaMemcpyAsync"
    if kernel.name.startswith("triton_"):
        return "cuLaunchKernel"
    return "cudaLaunchKernel" if kernel.name.startswith("aten::") else ""


def flops(kernel: Kernel, name: str) -> int | None:
    """FLOPs of an operation's own row; None for operations that PyTorch does not count."""
    if name in _PRODUCTS:
        return int(kernel.flops)
    if name in _ELEMENTWISE and kernel.shapes:
        return prod(kernel.shapes[0])
    return None
