"""Memory that libraries and kernels take for themselves, from the caching allocator: it shows in the peak.

cuBLAS: aten/src/ATen/cuda/CublasHandlePool.cpp. 32 MiB on compute capability 9 and later, else 8 519 680 bytes, or what
CUBLAS_WORKSPACE_CONFIG says; cuBLASLt (a product with a bias) takes 1 MiB, or CUBLASLT_WORKSPACE_SIZE KiB. Before
PyTorch 2.15 each handle (the program's thread, autograd's) keeps one of either per stream; from 2.15 on each call takes
and returns its own (pull request 194311), unless TORCH_CUBLAS_WORKSPACE_CACHE=1, which makes both libraries share one.
cuDNN: the sizes are modelled (`_convolution_bytes`), since NVIDIA does not publish them. Kernels: temporary tensors
inside an operation that the dispatch mode cannot see, from their CUDA sources. Not here: any cost.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Protocol

import torch

from vgpu.device.kernel_work import PRODUCT, KernelWork
from vgpu.device.spec import Spec
from vgpu.runtime.memory import categories
from vgpu.runtime.memory.blocks import Block
from vgpu.runtime.memory.device_memory import DeviceMemory
from vgpu.runtime.operations import kernel_cost, precision, traffic
from vgpu.runtime.operations.operation import Operation
from vgpu.runtime.versions import torch_version

_KIBI = 1024
_LT_BYTES = 1024 * _KIBI
_SCOPED_SINCE = (2, 15)
_WITH_BIAS = {"addmm", "_addmm_activation"}


def blas_bytes(default: int, environment: Mapping[str, str] = os.environ) -> int:
    """`parseChosenWorkspaceSize`: bytes of a cuBLAS workspace."""
    text = environment.get("CUBLAS_WORKSPACE_CONFIG")
    if text is None:
        return default
    pairs = re.findall(r":([0-9]+):([0-9]+)", text)
    if not pairs:
        warnings.warn(
            f"Could not parse CUBLAS_WORKSPACE_CONFIG, using default workspace size of {default} bytes.", stacklevel=2
        )
        return default
    return sum(int(size) * int(count) * _KIBI for size, count in pairs)


def lt_bytes(environment: Mapping[str, str] = os.environ) -> int:
    """`parseCUDABlasLtWorkspaceSize`: bytes of a cuBLASLt workspace."""
    text = environment.get("CUBLASLT_WORKSPACE_SIZE")
    if text is None:
        return _LT_BYTES
    try:
        return int(text) * _KIBI
    except ValueError:
        warnings.warn("invalid CUBLASLT_WORKSPACE_SIZE, using default workspace size of 1024 KiB.", stacklevel=2)
        return _LT_BYTES


def are_cached(environment: Mapping[str, str] = os.environ) -> bool:
    """`isCUDABlasWorkspaceCachingEnabled`."""
    if torch_version() < _SCOPED_SINCE:
        return True
    return environment.get("TORCH_CUBLAS_WORKSPACE_CACHE", "").lower() in ("1", "true", "on", "yes", "y")


class Device(Protocol):
    """A GPU, as far as temporary memory is concerned."""

    spec: Spec
    memory: DeviceMemory

    @property
    def stream(self) -> int:
        """The calling thread's current stream."""

    def launch(self, work: KernelWork) -> None:
        """Queue work there."""

    def synchronize(self, stream: int | None = None) -> None:
        """Wait for it."""


class Workspaces:
    """The workspaces of one GPU."""

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self.cached = are_cached()
        self.blas_bytes = blas_bytes(gpu.spec.blas_workspace_bytes)
        self.lt_bytes = lt_bytes()
        # (library, backward, stream) -> its block.
        self._kept: dict[tuple[str, bool, int], Block] = {}
        self._tried: set[Any] = set()

    def clear(self) -> None:
        """`torch._C._cuda_clearCublasWorkspaces`."""
        for block in self._kept.values():
            self._gpu.memory.release(block)
        self._kept.clear()

    def use(
        self, operation: Operation, args: Sequence[Any], inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> None:
        """What an operation takes while it runs; its results are allocated already."""
        base = operation.base
        passing: list[int] = []
        if operation.library == "blas":
            # `prepare_matrix_for_cublas`: an operand that is neither row- nor column-major is copied first.
            for tensor in inputs:
                if not tensor.is_contiguous() and not _is_matrix(tensor):
                    passing.append(tensor.nbytes)
            with_bias = base in _WITH_BIAS and _has_epilogue(args)
            if not self.cached:
                size = self.lt_bytes if with_bias else self.blas_bytes
                if size and not passing:
                    self._gpu.memory.pass_through(size, self._gpu.stream, categories.WORKSPACES)
                    return
                passing.append(size)
            else:
                self._keep("lt" if with_bias else "blas")
        elif operation.is_convolution:
            self._convolution(operation, args, inputs, outputs)
        elif base in SCRATCH:
            passing += SCRATCH[base](args, outputs)
        self.take(passing)

    def take(self, sizes: Sequence[int]) -> None:
        """Blocks that live as long as one operation, all at the same time."""
        memory, stream = self._gpu.memory, self._gpu.stream
        if len(sizes) == 1:
            if sizes[0]:
                memory.pass_through(sizes[0], stream, categories.WORKSPACES)
            return
        blocks: list[Block] = []
        try:
            for size in sizes:
                if size:
                    blocks.append(memory.allocate(size, stream, [categories.WORKSPACES]))
        finally:
            for block in blocks:
                memory.release(block)

    def _keep(self, library: str) -> None:
        backward = torch._C._current_graph_task_id() != -1
        # cuBLASLt runs on the cuBLAS handle, which comes with its workspace; from 2.15 on the two share it.
        needed = ["blas"] if library == "blas" or torch_version() >= _SCOPED_SINCE else ["blas", "lt"]
        for kind in needed:
            key = kind, backward, self._gpu.stream
            needed_bytes = self.blas_bytes if kind == "blas" else min(self.lt_bytes, self.blas_bytes)
            kept = self._kept.get(key)
            if needed_bytes and (kept is None or kept.requested_bytes < needed_bytes):
                self._kept[key] = self._gpu.memory.allocate(needed_bytes, self._gpu.stream, [categories.WORKSPACES])
                if kept is not None:
                    self._gpu.memory.release(kept)

    # ---- cuDNN --------------------------------------------------------------------------------------------------

    def _convolution(
        self, operation: Operation, args: Sequence[Any], inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> None:
        backward = operation.base == "convolution_backward"
        dense = args[1] if backward else args[0]
        if torch.backends.cudnn.benchmark:
            shapes = tuple(tuple(tensor.shape) for tensor in inputs)
            key = operation.base, shapes, dense.dtype, dense.stride(), str(args[3:])
            if key not in self._tried:
                self._tried.add(key)
                self._try_algorithms(operation, args, outputs)
        for size in _convolution_bytes(self._gpu, args, outputs, backward=backward):
            self.take([size])

    def _try_algorithms(self, operation: Operation, args: Sequence[Any], outputs: Sequence[torch.Tensor]) -> None:
        """`cudnn.benchmark`: every candidate runs once with the workspace it wants, then the cache is emptied.

        The largest is modelled as the unfolded input of an explicit product (cuDNN's GEMM algorithm), capped by what
        is free (`get_available_workspace`); the time as `benchmark_limit` runs of the kernel.
        """
        gpu = self._gpu
        output = args[0] if operation.base == "convolution_backward" else outputs[0]
        assert operation.product is not None
        product = operation.product(args, outputs[0] if outputs else None)
        unfolded = output.numel() // max(output.shape[1], 1) * product.k * args[1].element_size()
        free = gpu.memory.settled().limit_bytes - gpu.memory.settled().current("reserved_bytes")
        self.take([min(unfolded, max(free, 0))])
        moved = traffic.bytes_of(operation, [], list(outputs))
        dtype = kernel_cost.DTYPE_NAMES.get(output.dtype, "float32")
        limit = torch.backends.cudnn.benchmark_limit or 10
        gpu.launch(
            KernelWork(
                "cudnn::benchmark", moved, dtype, launches=limit, kind=PRODUCT, product=product, ratio=limit,
            )
        )  # fmt: skip
        gpu.synchronize(gpu.stream)
        gpu.memory.empty_cache()


def _is_matrix(tensor: torch.Tensor) -> bool:
    """Whether cuBLAS takes the last two dimensions as they are, perhaps transposed (CUDABlas: leading dimensions)."""
    if tensor.dim() < 2:
        return True
    (rows, columns), (down, across) = tensor.shape[-2:], tensor.stride()[-2:]
    return bool((across == 1 and down >= max(1, columns)) or (down == 1 and across >= max(1, rows)))


def _has_epilogue(args: Sequence[Any]) -> bool:
    """`isInputCompliesAddmmCudaLt` (Blas.cpp): a bias of one dimension is added by cuBLASLt itself."""
    if len(args) < 3:
        return False
    bias, right = args[0], args[2]
    return bool(bias.dim() == 1 and bias.is_contiguous() and right.shape[0] > 1 and right.shape[1] > 1)


def _convolution_bytes(
    gpu: Device, args: Sequence[Any], outputs: Sequence[torch.Tensor], *, backward: bool
) -> list[int]:
    """Workspaces of a convolution's kernels, one after the other. Modelled.

    Tensor-core kernels read NHWC: with NCHW tensors cuDNN makes such copies of what it reads and writes in its
    workspace (NVIDIA, Deep Learning Performance, "Convolutional Layers: Tensor Layouts"). Without tensor cores the
    implicit precomputed GEMM keeps one offset per element of a filter. The gradient of the weight is summed in FP32.
    """
    dense, weight = (args[1], args[2]) if backward else (args[0], args[1])
    output = args[0] if backward else outputs[0]
    low = dense.dtype in (torch.float16, torch.bfloat16)
    major = gpu.spec.compute_capability[0]
    tf32 = dense.dtype == torch.float32 and major >= 8 and precision.tf32_allowed("conv")
    tensor_cores = tf32 or (low and (major >= 8 or (major == 7 and dense.dtype == torch.float16)))
    copied = 0
    if tensor_cores and dense.is_contiguous() and not dense.is_contiguous(memory_format=torch.channels_last):
        copied = dense.nbytes + weight.nbytes + output.nbytes
    offsets = 4 * prod(weight.shape[1:])
    if not backward:
        return [max(copied, offsets)]
    mask = args[10]
    sums = 4 * weight.numel() if low else 0
    return [max(copied, offsets)] * bool(mask[0]) + [max(copied, offsets) + sums] * bool(mask[1])


# ---- temporary tensors inside CUDA's kernels ----------------------------------------------------------------------


def _safe_softmax(args: Sequence[Any], outputs: Sequence[torch.Tensor]) -> list[int]:
    """`_safe_softmax` (SoftMax.cpp): the plain softmax and where rows are masked, next to the result."""
    return [outputs[0].nbytes, args[0].numel()]


def _embedding_backward(args: Sequence[Any], outputs: Sequence[torch.Tensor]) -> list[int]:
    """EmbeddingBackwardKernel.cu: sorted indices, segments, and one partial sum per ten rows or distinct index."""
    gradient, indices, weights = args[0], args[1], args[2]
    count = indices.numel()
    if count <= 3072 and not args[4]:
        return []
    segments = min(count, int(weights))
    partial = count // 10 + segments
    # Half-precision gradients are summed in FP32 (acc_type).
    width = max(gradient.element_size(), 4) * gradient.shape[-1]
    index = indices.element_size()
    return [index * count, index * count, index * count, index * segments, index * segments, index * partial,
            width * partial]  # fmt: skip


def _rounded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _flash_backward(args: Sequence[Any], outputs: Sequence[torch.Tensor]) -> list[int]:
    """flash_api.cpp, `mha_bwd`: FP32 sums of dQ and row sums; dK and dV per query head with grouped heads."""
    query, key = args[1], args[2]
    batch, heads, length, width = query.shape
    rows = _rounded(length, 128)
    rounded = _rounded(width, 32) if width <= 192 else 256
    sizes = [4 * batch * rows * heads * rounded, 4 * batch * heads * rows]
    if key.shape[1] != heads:
        sizes += [query.element_size() * batch * heads * key.shape[2] * width] * 2
    return sizes


def _efficient_backward(args: Sequence[Any], outputs: Sequence[torch.Tensor]) -> list[int]:
    """attention_backward.cu: the row sums `delta`, and FP32 sums of dQ below FP32 (kernel_backward.h)."""
    query = args[1]
    batch, heads, length, width = query.shape
    sizes = [4 * batch * heads * length]
    if query.dtype != torch.float32:
        sizes.append(4 * batch * heads * _rounded(length, 64) * _rounded(width, 64))
    return sizes


SCRATCH: dict[str, Callable[[Sequence[Any], Sequence[torch.Tensor]], list[int]]] = {
    "_safe_softmax": _safe_softmax,
    "embedding_dense_backward": _embedding_backward,
    "_scaled_dot_product_flash_attention_backward": _flash_backward,
    "_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "_scaled_dot_product_cudnn_attention_backward": _efficient_backward,
}
