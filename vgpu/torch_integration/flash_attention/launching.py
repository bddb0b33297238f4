"""Kernels of FlashAttention-2 on a virtual GPU: what they compute, the memory that they take, and their price.

The price is that of the fused kernel of `scaled_dot_product_attention` (`vgpu.device.attention_cost.efficiency`), for
the entries of the attention matrix that are not masked. Not here: what a kernel computes
(`vgpu.torch_integration.flash_attention.problem`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from vgpu.device.kernel_work import PRODUCT, KernelWork, Product
from vgpu.runtime.attachment import machine as attached_machine
from vgpu.runtime.faults import ILLEGAL_ACCESS
from vgpu.runtime.gpu import VirtualGPU
from vgpu.runtime.machine import Machine
from vgpu.runtime.operations import kernel_cost
from vgpu.runtime.thread_state import THREAD
from vgpu.torch_integration.compiled.graphs import beneath
from vgpu.torch_integration.flash_attention.checks import Sizes
from vgpu.torch_integration.flash_attention.problem import Window

_Tensor = torch.Tensor
Lengths = Sequence[tuple[int, int]]
"""Queries and keys of each sequence."""
# Products per entry of the attention matrix and element of a head's width, forward and backward.
_PRODUCTS = (2.0, 5.0)
# Rows of a block of queries, of a kernel that splits the keys; splits at most (flash_api.cpp, `set_params_splitkv`).
_SPLIT_ROWS, _MOST_SPLITS = 64, 128


def machine() -> Machine:
    """The one that is attached. Raises RuntimeError after the virtual GPU has gone."""
    attached = attached_machine()
    if attached is None:
        raise RuntimeError("flash_attn was imported on a virtual GPU, which is detached now: there is no CUDA device")
    return attached


def gpu_of(tensor: _Tensor) -> VirtualGPU:
    """Where a tensor is that was found to be on a GPU."""
    gpu = machine().registry.gpu_of(tensor)
    assert gpu is not None
    return gpu


@dataclass(frozen=True)
class Launch:
    """One kernel: its work, its tensors, and what computes their values with plain tensors of the CPU."""

    work: KernelWork
    compute: Callable[[], None]
    read: Sequence[_Tensor]
    written: Sequence[_Tensor]
    scratch: Sequence[int] = ()
    """Bytes of temporary tensors."""
    outside: Exception | None = None
    """What the kernel reads or writes beyond its tensors: it fails."""

    def run(self, gpu: VirtualGPU) -> None:
        """Compute the values, queue the kernel. Raises torch.OutOfMemoryError."""
        gpu.start()
        gpu.settle()
        if gpu.fault is not None:
            gpu.require_sound()
        if self.outside is not None:
            gpu.fail(ILLEGAL_ACCESS, self.outside)
        gpu.workspaces.take(self.scratch)
        capture = THREAD.capture
        if capture is not None and capture.takes(gpu, gpu.stream):
            capture.called(self.compute, self.written)
        if gpu.values:
            with beneath():
                self.compute()
        watch = gpu.machine.watch
        if watch is not None and watch.follows_streams:
            watch.kernel(gpu, gpu.stream, self.work.name, self.read, self.written)
        gpu.launch(self.work)


def attention_work(
    name: str, query: _Tensor, lengths: Lengths, sizes: Sizes, window: Window, *, backward: bool = False
) -> KernelWork:
    """The kernel of an attention over these sequences, by what it multiplies and what passes through memory."""
    lengths = [(queries, keys) for queries, keys in lengths if queries > 0 and keys > 0]
    rows, columns = (sum(length[place] for length in lengths) for place in (0, 1))
    entries = [window.seen(queries, keys) for queries, keys in lengths]
    size, width = query.element_size(), sizes.width
    moved = rows * sizes.heads * width * (4 if backward else 2)
    moved += columns * width * (2 * sizes.key_heads + 2 * sizes.heads if backward else 2 * sizes.key_heads)
    moved = size * moved + 4 * sizes.heads * rows
    product = Product(0, 0, 0, 0)
    if sum(entries):
        # As many equal sequences with as many entries; a sequence counts by its share of the work.
        m, n = (_weighted([length[place] for length in lengths], entries) for place in (0, 1))
        times = _PRODUCTS[backward] * sum(entries) / (len(lengths) * m * n)
        batch = len(lengths) * sizes.heads
        product = Product(batch, m, n, width, times, "flash", backward, not window.is_open)
    dtype = kernel_cost.dtype_name([query])
    return KernelWork(name, moved, dtype, (tuple(query.shape),), kind=PRODUCT, product=product)


def _weighted(values: Sequence[int], weights: Sequence[int]) -> int:
    return max(1, round(sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)))


def splits(gpu: VirtualGPU, sizes: Sizes, chosen: int = 0) -> int:
    """Parts of the keys that a kernel for few queries handles beside each other (`num_splits_heuristic`).

    The fewest with 85 % of the best occupancy that any number has, if one part fills less than 80 % of the
    multiprocessors, each of which takes two blocks.
    """
    if chosen >= 1:
        return chosen
    room = 2 * gpu.spec.multiprocessors
    blocks = sizes.batch * sizes.heads * -(-sizes.queries // _SPLIT_ROWS)
    if blocks >= 0.8 * room or not blocks:
        return 1
    parts = -(-sizes.keys // (256 if sizes.width <= 64 else 128 if sizes.width <= 128 else 64))
    occupancy: dict[int, float] = {}
    for number in range(1, min(_MOST_SPLITS, room, parts) + 1):
        if number == 1 or -(-parts // number) != -(-parts // (number - 1)):
            waves = blocks * number / room
            occupancy[number] = waves / -(-blocks * number // room)
    best = max(occupancy.values(), default=0.0)
    return next((number for number, share in occupancy.items() if share >= 0.85 * best), 1)


def split_scratch(number: int, sizes: Sizes) -> list[int]:
    """Bytes of what the parts leave in FP32, before they are combined."""
    if number <= 1:
        return []
    rows = number * sizes.batch * sizes.heads * sizes.queries
    return [4 * rows, 4 * rows * rounded_width(sizes.width)]


def combine(gpu: VirtualGPU, number: int, sizes: Sizes, output: _Tensor) -> None:
    """The kernel that combines the parts."""
    if number > 1:
        moved = sum(split_scratch(number, sizes)) + output.nbytes
        gpu.launch(KernelWork("flash_fwd_splitkv_combine_kernel", moved, kernel_cost.dtype_name([output])))


def rounded_width(width: int) -> int:
    """That a kernel is compiled for."""
    step = 32 if width <= 128 else 64
    return -(-width // step) * step
