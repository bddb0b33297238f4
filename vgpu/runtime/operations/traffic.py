"""What a kernel that is no product asks of a card: bytes to move, instructions to run, phases that wait for each other.

A byte that a kernel reads twice counts twice. Sources: the CUDA kernels in aten/src/ATen/native/cuda, named at each
rule. Cycles were fitted to single kernels on an H100 (benchmarks/results/h100.json): they count a multiprocessor's
clock, so that they hold for other cards as far as their multiprocessors do as much in one. Not here: products
(`vgpu.runtime.operations.products`) and seconds (`vgpu.device.cost`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2, prod
from typing import Any

import torch

from vgpu.device.kernel_work import Again, Traffic
from vgpu.runtime.operations.layouts import is_channels_last
from vgpu.runtime.operations.operation import Operation, Tensors, TrafficRule

# Below this the shortest kernel, not the memory, decides: layouts are not looked at.
SMALL_BYTES = 1 << 18
# Vectorised kernels move 16 bytes with each load; where operands are broadcast or laid out differently, each thread
# works out the place of each element (CUDALoops.cuh, `launch_legacy_kernel`), and where both dense sides differ, each
# element takes a sector of the L2 cache, 32 bytes, for itself.
_BROADCAST_CYCLES, _TRANSPOSED_CYCLES = 0.40, 2.2
# Before Hopper a share of the memory's rate says the same better: bytes per element at which half of it remains, fitted
# to benchmarks/published.
_BROADCAST_BYTES, _TRANSPOSED_BYTES = 2.0, 4.0
# Philox and Box-Muller; each thread first finds its place in the sequence (`curand_init`): a phase of its own.
_RANDOM_CYCLES = 0.55
_DROPOUT_CYCLES = 0.42
# A reduction's blocks wait for each other's sums (Reduce.cuh): warps add up along the dense dimension, by shuffles that
# count for each result; along another one each thread adds up a column of its own, and few columns are split.
_SHUFFLE_CYCLES, _COLUMN_CYCLES = 50.0, 0.12
_FEW_RESULTS = 1 << 13
# Rows that a block of threads keeps in shared memory are read once, longer ones once for each sum
# (PersistentSoftmax.cuh, SoftMax.cu: `cunn_SoftMaxForward` and its `Smem`; layer_norm_kernel.cu), from the caches as
# long as they hold what all blocks work on. A multiprocessor has two blocks of 1,024 threads for softmax, and registers
# for twelve of a layer norm's 128.
_ROW_BYTES = 48 * 1024
_SOFTMAX_BLOCKS, _LAYER_NORM_BLOCKS = 2, 12
_SOFTMAX_CYCLES = 0.29
# A thread of `vectorized_layer_norm_kernel` takes four elements, a block 512.
_NORM_BLOCK = 512
# For each time that an element is read or written, forward and backward alike.
_LAYER_NORM_CYCLES, _GROUP_NORM_CYCLES = 0.25, 0.48
# For each element of a result's window.
_POOL_CYCLES, _POOL_BACKWARD_CYCLES = 0.44, 1.25
# cuDNN's kernels of images in NCHW give a channel to a block: a network's first layers, of 64 channels, leave half of a
# large card idle, and most of it with no second block to compute while one waits. Those of NHWC share channels out.
# Cycles for each time that an element is read or written: 512 threads wait some 600 cycles for several loads each.
_BATCH_NORM_CYCLES = 0.29
# PyTorch's own kernels, which weights of 16 bits need (`use_cudnn` in Normalization.cpp), for each element of NHWC:
# forward divides for the running moments (`welford_merge_element`), backward reads more operands instead.
_NATIVE_NORM_CYCLES_LAST = 1.45
# In NCHW they normalise each channel of each image by a block of its own.
_NATIVE_NORM_BLOCK_CYCLES = 170.0

# Rows of whole vectors are selected 16 bytes at a time, others by `indexSelectLargeIndex`, which divides for each
# element: before PyTorch 2.8 all rows, of which an A100 takes 75 billion elements a second (linkedin/Liger-Kernel,
# benchmark/data: rows of 768, and 4 % off for 4,096).
VECTORS_IN_GATHER = True
_VECTOR_BYTES, _SELECT_CYCLES = 16, 2.0
# A loss of classes is added up by one block, of 32 threads before PyTorch 2.8. Each row is two loads from memory, one
# after the other: 16,384 rows took an A100 0.5 ms (the same tables). A block alone has half of what it would need to
# fill a multiprocessor (`vgpu.device.cost`), which counts twice what it waits.
MOST_LOSS_THREADS, _LEAST_LOSS_THREADS = 1024, 32
_LOAD_CYCLES = 700 / 2
_NO_REDUCTION = 0


def bytes_of(operation: Operation, inputs: Tensors, outputs: Tensors) -> int:
    """Bytes read and written, each tensor once."""
    moved = 0
    try:
        for tensor in outputs:
            moved += tensor.nbytes
        if operation.gathers and inputs:
            moved *= 2
            inputs = inputs[1:]
        elif operation.is_like:
            return moved
        elif operation.overwrites:
            inputs = [tensor for tensor in inputs if all(tensor is not written for written in outputs)]
        for tensor in inputs:
            moved += tensor.nbytes
    except RuntimeError:  # a sparse tensor, on the host
        return _bytes_of_sparse([*inputs, *outputs])
    return moved


def _bytes_of_sparse(tensors: Tensors) -> int:
    """With sparse tensors among them: their indices and values."""
    moved = 0
    for tensor in tensors:
        if tensor.layout is torch.strided:
            moved += tensor.nbytes
        else:
            moved += tensor._nnz() * (tensor.element_size() + 8 * tensor.dim())
    return moved


def of_kernel(operation: Operation, args: Sequence[Any], inputs: Tensors, outputs: Tensors) -> Traffic:
    """Of the kernels of an operation that is no product."""
    if operation.traffic is not None:
        try:
            return operation.traffic(args, inputs, outputs)
        except RuntimeError:  # sparse tensors have no `nbytes`; rules are about dense ones
            return Traffic(_bytes_of_sparse([*inputs, *outputs]))
    if operation.elementwise:
        return _of_pointwise(operation, inputs, outputs)
    moved = bytes_of(operation, inputs, outputs)
    if operation.random and outputs:
        return Traffic(moved, _RANDOM_CYCLES * outputs[0].numel(), phases=2)
    if inputs and outputs and not operation.gathers and outputs[0].numel() < inputs[0].numel():
        return _of_reduction(moved, args, inputs[0], outputs[0])
    return Traffic(moved)


# ---- elementwise kernels and copies ----------------------------------------------------------------------------------


def _of_pointwise(operation: Operation, inputs: Tensors, outputs: Tensors) -> Traffic:
    moved = bytes_of(operation, inputs, outputs)
    cycles = 0.0
    if operation.cycles and outputs:
        cycles = operation.cycles * outputs[0].numel()
    if len(inputs) == 2 and inputs[0] is inputs[1] and inputs[0].layout is torch.strided:
        moved -= inputs[1].nbytes  # `x * x` loads x once (an H100 takes as long for it as for `x + 1`)
    if moved <= SMALL_BYTES or not outputs or not inputs:
        return Traffic(moved, cycles)
    result = outputs[0]
    strides, elements = result.stride(), result.numel()
    extra, share, width = 0.0, 1.0, result.element_size()
    for tensor in inputs:
        if tensor.dim() == 0 or tensor is result or tensor.numel() == 1:
            continue
        if tensor.numel() == elements and tensor.stride() == strides:
            continue
        repeated = _repeated_bytes(tensor)
        moved -= repeated
        scattered = not repeated and tensor.numel() == elements and _dense_axis(tensor) != _dense_axis(result)
        extra = max(extra, _TRANSPOSED_CYCLES if scattered else _BROADCAST_CYCLES)
        share = min(share, width / (width + (_TRANSPOSED_BYTES if scattered else _BROADCAST_BYTES)))
    return Traffic(moved, cycles + extra * elements, share=share)


def _repeated_bytes(tensor: torch.Tensor) -> int:
    """Of an expanded tensor: what its shape counts beyond the elements that it has."""
    own = prod([size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride])
    return (tensor.numel() - own) * tensor.element_size()


def _dense_axis(tensor: torch.Tensor) -> int:
    """The axis along which neighbours lie side by side, counted from the last; size 1 does not count."""
    for axis in range(1, tensor.dim() + 1):
        if tensor.stride(-axis) == 1 and tensor.size(-axis) > 1:
            return axis
    return 0


def dropout(args: Sequence[Any], inputs: Tensors, outputs: Tensors) -> Traffic:
    """Result and mask, with a random number for each element (Dropout.cu)."""
    moved = sum([tensor.nbytes for tensor in (inputs[0], *outputs)])
    return Traffic(moved, _DROPOUT_CYCLES * inputs[0].numel(), phases=2)


# ---- kernels whose threads wait for each other -----------------------------------------------------------------------


def _of_reduction(moved: int, args: Sequence[Any], source: torch.Tensor, result: torch.Tensor) -> Traffic:
    dims = args[1] if len(args) > 1 else None
    chosen = [dims] if type(dims) is int else dims if isinstance(dims, (list, tuple)) else []
    dense = source.dim() - _dense_axis(source)
    results = result.numel()
    # The place of the largest comes with its value: twice as much to exchange.
    phases = 2 + (result.dtype is torch.int64)
    if not chosen or any(type(dim) is int and dim % max(source.dim(), 1) == dense for dim in chosen):
        return Traffic(moved, _SHUFFLE_CYCLES * results, phases + (results == 1))
    return Traffic(moved, _COLUMN_CYCLES * source.numel(), phases + (results < _FEW_RESULTS))


def softmax(args: Sequence[Any], inputs: Tensors, outputs: Tensors) -> Traffic:
    """`softmax` and `log_softmax`: the largest, the sum, the quotients; a row that is kept is read once."""
    source, result = inputs[0], outputs[0]
    again = _read_again(source, args[1] if len(args) > 1 else -1, 2)
    return Traffic(source.nbytes + result.nbytes, _SOFTMAX_CYCLES * source.numel(), phases=2, again=again)


def softmax_backward(args: Sequence[Any], inputs: Tensors, outputs: Tensors) -> Traffic:
    """`softmax`: the product of gradient and result is a kernel before (SoftMax.cu, `softmax_backward_cuda_out`)."""
    gradient = inputs[0]
    again = _read_again(gradient, args[2], 1)
    return Traffic(6 * gradient.nbytes, 2 * _SOFTMAX_CYCLES * gradient.numel(), phases=3, again=again)


def log_softmax_backward(args: Sequence[Any], inputs: Tensors, outputs: Tensors) -> Traffic:
    """`log_softmax`: the gradient's sum, then gradient and result again."""
    gradient = inputs[0]
    again = _read_again(gradient, args[2], 1)
    return Traffic(3 * gradient.nbytes, 2 * _SOFTMAX_CYCLES * gradient.numel(), phases=2, again=again)


def _read_again(tensor: torch.Tensor, dim: Any, times: int) -> Again | None:
    """What is read so many times more; nothing of a row that lies side by side and fits a block's memory."""
    if type(dim) is not int or tensor.dim() == 0:
        return None
    if dim % tensor.dim() != tensor.dim() - 1:  # no row lies side by side: no cache is known to hold it
        return Again(times * tensor.nbytes, tensor.nbytes, tensor.nbytes)
    row_bytes = tensor.shape[-1] * tensor.element_size()
    if row_bytes <= _ROW_BYTES:
        return None
    return Again(times * tensor.nbytes, tensor.nbytes, _SOFTMAX_BLOCKS * row_bytes)


def layer_norm(args: Sequence[Any], inputs: Tensors, outputs: Tensors) -> Traffic:
    """Layer and RMS norm: moments, then the result (layer_norm_kernel.cu)."""
    source = inputs[0]
    elements, again = _blocks_of_rows(source, args[1], 1)
    return Traffic(2 * source.nbytes, _LAYER_NORM_CYCLES * 2 * elements, phases=2, again=again)


def layer_norm_backward(args: Sequence[Any], inputs: Tensors, outputs: Tensors) -> Traffic:
    """The input's gradient reads input and gradient, and again where a row is long; those of weight and bias read both
    once more, and add up parts."""
    source = inputs[0]
    elements, again = _blocks_of_rows(source, args[2], 2)
    return Traffic(5 * source.nbytes, _LAYER_NORM_CYCLES * 5 * elements, phases=4, again=again)


def _blocks_of_rows(source: torch.Tensor, shape: Any, times: int) -> tuple[int, Again]:
    """Elements with each row rounded up to what a block takes at a time, and what is read so many times more."""
    row = prod(shape) if isinstance(shape, (list, tuple)) else source.shape[-1]
    rows = source.numel() // max(row, 1)
    at_once = _LAYER_NORM_BLOCKS * row * source.element_size()
    return rows * -(-row // _NORM_BLOCK) * _NORM_BLOCK, Again(times * source.nbytes, source.nbytes, at_once)


def group_norm(args: Sequence[Any], inputs: Tensors, outputs: Tensors) -> Traffic:
    """Moments of each group, then an elementwise kernel; images in NHWC are copied first (group_norm_kernel.cu)."""
    source = inputs[0]
    passes, cycles, phases = 3, 3 * _GROUP_NORM_CYCLES, 3
    if not source.is_contiguous():
        passes, cycles, phases = passes + 2, cycles + _TRANSPOSED_CYCLES, phases + 1
    return Traffic(passes * source.nbytes, cycles * source.numel(), phases)


def group_norm_backward(args: Sequence[Any], inputs: Tensors, outputs: Tensors) -> Traffic:
    """Sums over gradient and input, then both again for the gradient (group_norm_kernel.cu)."""
    source = inputs[0]
    return Traffic(5 * source.nbytes, _GROUP_NORM_CYCLES * 5 * source.numel(), phases=4)


def batch_norm(training_at: int | None) -> TrafficRule:
    """Training: once for mean and variance, once to normalise, and the result; evaluation is elementwise."""

    def rule(args: Sequence[Any], inputs: Tensors, outputs: Tensors) -> Traffic:
        if training_at is None or args[training_at]:
            return _of_batch_norm(inputs[0], args[1], 3, backward=False)
        return Traffic(2 * inputs[0].nbytes)

    return rule


def batch_norm_backward(args: Sequence[Any], inputs: Tensors, outputs: Tensors) -> Traffic:
    """Gradient and input are read for the sums, and again for the gradient (Normalization.cuh)."""
    return _of_batch_norm(inputs[0], args[2], 5, backward=True)


def _of_batch_norm(source: torch.Tensor, weight: Any, passes: int, *, backward: bool) -> Traffic:
    channels = source.shape[1] if source.dim() > 1 else 1
    last = source.dim() < 3 or is_channels_last(source)
    elements = source.numel()
    native = isinstance(weight, torch.Tensor) and weight.dtype is source.dtype and source.element_size() == 2
    cycles = 0.0
    if native and last:
        cycles = _NATIVE_NORM_CYCLES_LAST * elements
    elif native:
        cycles = _BATCH_NORM_CYCLES * passes * elements
        if not backward:
            cycles += _NATIVE_NORM_BLOCK_CYCLES * source.shape[0] * channels
    elif not last:
        # cuDNN keeps a channel that fits a block's memory, and reads it once.
        kept = elements // max(channels, 1) * source.element_size() <= _ROW_BYTES
        cycles = _BATCH_NORM_CYCLES * (passes - 1 - backward if kept else passes) * elements
    return Traffic(passes * source.nbytes, cycles, phases=3, blocks=0 if last else channels)


def max_pool(args: Sequence[Any], inputs: Tensors, outputs: Tensors) -> Traffic:
    """Each result looks through its window; places are 64 bits wide (DilatedMaxPool2d.cu)."""
    moved = sum([tensor.nbytes for tensor in (inputs[0], *outputs)])
    return Traffic(moved, _POOL_CYCLES * _windows(outputs[0], args[1]))


def max_pool_backward(args: Sequence[Any], inputs: Tensors, outputs: Tensors) -> Traffic:
    """Each place of the input looks through the windows that it is in; the input itself is not read."""
    gradient = args[0]
    moved = gradient.nbytes * (1 + 8 // gradient.element_size()) + sum([tensor.nbytes for tensor in outputs])
    return Traffic(moved, _POOL_BACKWARD_CYCLES * _windows(gradient, args[2]))


def _windows(result: torch.Tensor, kernel: Sequence[int]) -> int:
    sides = result.dim() - 2
    return result.numel() * (prod(kernel) if len(kernel) > 1 else kernel[0] ** sides)


def sort(args: Sequence[Any], inputs: Tensors, outputs: Tensors) -> Traffic:
    """Radix sort of keys with their 64-bit places: each pass over 8 bits of the key reads and writes both, and one more
    counts (CUB, `DeviceRadixSort`). The share of the memory's rate is that of a million floats on an H100.
    """
    keys = inputs[0]
    moved = (2 * keys.element_size() * (keys.element_size() + 8) + keys.element_size()) * keys.numel()
    return Traffic(moved, share=0.33)


def topk(args: Sequence[Any], inputs: Tensors, outputs: Tensors) -> Traffic:
    """Radix selection reads all again and again until the k-th is known, then gathers (TensorTopK.cu): on an H100 as
    long as nine and a half readings."""
    return Traffic(round(9.5 * inputs[0].nbytes))


def selected_rows(dim_at: int | None) -> TrafficRule:
    """`index_select` along the dimension in argument `dim_at`, and `embedding`, which selects along the first."""

    def rule(args: Sequence[Any], inputs: Tensors, outputs: Tensors) -> Traffic:
        source, result = inputs[0], outputs[0]
        moved = 2 * result.nbytes + sum([tensor.nbytes for tensor in inputs[1:]])
        first = source.dim() == 0 or dim_at is None or args[dim_at] % source.dim() == 0
        row_bytes = prod(source.shape[1:]) * source.element_size()
        if VECTORS_IN_GATHER and first and row_bytes % _VECTOR_BYTES == 0:
            return Traffic(moved)
        return Traffic(moved, _SELECT_CYCLES * result.numel())

    return rule


def nll_loss(args: Sequence[Any], inputs: Tensors, outputs: Tensors) -> Traffic:
    """One block adds up all rows: each thread loads a class, then what it selects (Loss.cu, `..._reduce_...`)."""
    rows, moved = args[1].numel(), sum([tensor.nbytes for tensor in inputs[1:]])
    if args[3] == _NO_REDUCTION:
        return Traffic(moved + 2 * outputs[0].nbytes)
    return Traffic(moved + rows * inputs[0].element_size(), 2 * _LOAD_CYCLES * _rounds(rows), phases=2, blocks=1)


def _rounds(rows: int) -> int:
    """How many rows a thread has of those that one block has (Loss.cu, `nll_loss_threads`)."""
    threads = 1 << round(log2(max(rows // 16, 1)))
    return -(-rows // max(_LEAST_LOSS_THREADS, min(MOST_LOSS_THREADS, threads)))


def nll_loss_backward(args: Sequence[Any], inputs: Tensors, outputs: Tensors) -> Traffic:
    """Zeros, then a number in each row, by one block again; what the loss was of is not read (Loss.cu)."""
    moved, rows = sum([tensor.nbytes for tensor in outputs]), args[2].numel()
    if args[4] == _NO_REDUCTION:
        return Traffic(moved, phases=2)
    return Traffic(moved, _LOAD_CYCLES * _rounds(rows), phases=2, blocks=1)


def nll_loss2d_backward(args: Sequence[Any], inputs: Tensors, outputs: Tensors) -> Traffic:
    """Zeros, with one number for each place; what the loss was of is not read (NLLLoss2d.cu)."""
    return Traffic(sum([tensor.nbytes for tensor in outputs]), phases=2)
