"""What notebooks run on virtual GPUs, one call per rank: a training step, a student's accumulation, an all-reduce.

Given programs that note what the device did and when. Not for measuring on a real GPU.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import vgpu

Kind = Literal["forward", "backward", "exchange", "other"]


@dataclass(frozen=True, kw_only=True)
class Span:
    """Something that one GPU did; simulated seconds from the beginning of the record."""

    kind: Kind
    start: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Window:
    """What one rank saw of a call of `train_with_accumulation`."""

    spans: tuple[Span, ...]
    exchanged_bytes: int
    """Of gradients, one count per all-reduce of more than `model_bytes` / 100."""
    model_bytes: int
    optimizer_steps: int
    effective_batch_sizes: tuple[int, ...]
    weights: Tensor
    """All parameters, flat, on the CPU."""


def ddp_step(
    rank: int, world_size: int, init_method: str, *, layers: int, width: int, batch: int, bucket_mb: float
) -> list[Span]:
    """The third training step of a stack of linear layers, forward and backward, seen from this rank's GPU.

    Args:
        rank, world_size, init_method: as every function of a rank has them.
        layers, width: square linear layers without bias, of 4 * width^2 bytes each.
        batch: samples of this rank.
        bucket_mb: how many MiB of gradients DistributedDataParallel collects before it exchanges them.
    """
    gpu = _join(rank, world_size, init_method)
    blocks = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers))).cuda()
    replica = DistributedDataParallel(blocks, device_ids=[rank], bucket_cap_mb=bucket_mb)
    inputs = torch.randn(batch, width, device="cuda")
    for _ in range(3):
        torch.cuda.synchronize()
        begin, first = gpu.now(), len(gpu.timeline)
        blocks.zero_grad()
        loss = replica(inputs).square().mean()
        turn = len(gpu.timeline)
        loss.backward()
    torch.cuda.synchronize()
    spans = _spans(gpu, first, begin, turn)
    del replica
    dist.destroy_process_group()
    return spans


def watch_accumulation(
    rank: int,
    world_size: int,
    init_method: str,
    *,
    module: str,
    function: str,
    batches: Sequence[Sequence[tuple[Tensor, Tensor]]],
    accumulation_steps: int,
    width: int,
    layers: int,
) -> Window:
    """Call a student's `train_with_accumulation` twice and note what the GPU did the second time.

    Args:
        rank, world_size, init_method: as every function of a rank has them.
        module, function: names of what is called.
        batches: one list of pairs (inputs [N, width], targets [N, width]) per rank.
        accumulation_steps: handed on.
        width, layers: of the model, as in `linear_stack`.
    """
    student: Any = getattr(importlib.import_module(module), function)
    gpu = _join(rank, world_size, init_method)
    try:
        stack = linear_stack(width, layers).cuda()
        replica = DistributedDataParallel(stack, device_ids=[rank])
        optimizer = torch.optim.SGD(stack.parameters(), lr=0.1)
        settings: dict[str, Any] = {"optimizer": optimizer, "criterion": nn.functional.mse_loss}
        student(replica, batches[rank], accumulation_steps, **settings)  # warm-up: libraries, buckets
        torch.cuda.synchronize()
        begin, first = gpu.now(), len(gpu.timeline)
        result = student(replica, batches[rank], accumulation_steps, **settings)
        torch.cuda.synchronize()
        spans = _spans(gpu, first, begin, None)
        model_bytes = sum(parameter.nbytes for parameter in stack.parameters())
        sent = [kernel.bytes for kernel in gpu.timeline[first:] if _is_exchange(kernel)]
        weights = torch.cat([parameter.detach().flatten() for parameter in stack.parameters()]).cpu()
        del replica
    finally:
        dist.destroy_process_group()
    return Window(
        spans=tuple(spans),
        exchanged_bytes=sum(count for count in sent if count > model_bytes / 100),
        model_bytes=model_bytes,
        optimizer_steps=result.optimizer_steps,
        effective_batch_sizes=tuple(result.effective_batch_sizes),
        weights=weights,
    )


def all_reduce_seconds(
    rank: int, world_size: int, init_method: str, *, sizes: Sequence[int], switch: bool
) -> list[float]:
    """What an all-reduce takes on this rank's GPU, for buffers of each size.

    Args:
        rank, world_size, init_method: as every function of a rank has them.
        sizes: bytes of a buffer, multiples of 4.
        switch: whether NCCL may let NVLink's switch add (its environment variable NCCL_NVLS_ENABLE).
    """
    os.environ["NCCL_NVLS_ENABLE"] = "1" if switch else "0"
    gpu = _join(rank, world_size, init_method)
    seconds = []
    for size in sizes:
        buffer = torch.empty(size // 4, device="cuda")
        for _ in range(2):  # the first one sets up the communicator
            first = len(gpu.timeline)
            dist.all_reduce(buffer)
            torch.cuda.synchronize()
        seconds += [kernel.seconds for kernel in gpu.timeline[first:] if _is_exchange(kernel)]
        del buffer
    dist.destroy_process_group()
    return seconds


def linear_stack(width: int, layers: int) -> nn.Sequential:
    """Square linear layers without bias, the same weights on every call."""
    made = torch.Generator().manual_seed(3)
    stack = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=made) / width**0.5)
    return stack


def _join(rank: int, world_size: int, init_method: str) -> vgpu.VirtualGPU:
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=init_method, rank=rank, world_size=world_size)
    gpu = vgpu.current()
    if gpu is None:
        raise RuntimeError("this needs virtual GPUs: they record what they did and when")
    return gpu


def _is_exchange(kernel: vgpu.Kernel) -> bool:
    return "all_reduce" in kernel.name or "AllReduce" in kernel.name


def _spans(gpu: vgpu.VirtualGPU, first: int, begin: float, turn: int | None) -> list[Span]:
    """From the timeline's entry `first` on; backward begins at its entry `turn`, if that is known."""
    spans = []
    for index, kernel in enumerate(gpu.timeline[first:], start=first):
        kind: Kind = "other" if turn is None else "forward" if index < turn else "backward"
        if _is_exchange(kernel):
            kind = "exchange"
        spans.append(Span(kind=kind, start=kernel.start - begin, seconds=kernel.seconds))
    return spans
