"""What `nn.DataParallel` does in C++ (torch/csrc/cuda/comm.cpp): scatter, gather and broadcast among the GPUs.

PyTorch's own code does the rest: replicas, one thread per GPU, the sum of the gradients. Not here: processes
(`DistributedDataParallel`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.cuda.nccl
import torch.nn.parallel._functions
from torch._utils import _flatten_dense_tensors, _take_tensors, _unflatten_dense_tensors

from vgpu.runtime.machine import Machine
from vgpu.runtime.patching import PatchSet
from vgpu.torch_integration.devices import gpu_at


def install(patches: PatchSet, machine: Machine) -> None:
    """Replace the C++ functions; sums of gradients then go by peer copies instead of NCCL, as PyTorch also can."""

    def on(index: int) -> torch.device:
        return gpu_at(machine, index).device

    def scatter(tensor: torch.Tensor, devices: Sequence[int], sizes: Any, dim: int, streams: Any = None) -> list[Any]:
        chunks = tensor.split(list(sizes), dim) if sizes is not None else tensor.chunk(len(devices), dim)
        return [_copy(chunk, on(index), stream) for chunk, index, stream in _beside(chunks, devices, streams)]

    def scatter_out(tensor: torch.Tensor, out: Sequence[torch.Tensor], dim: int, streams: Any = None) -> list[Any]:
        chunks = tensor.split([target.shape[dim] for target in out], dim)
        return [target.copy_(chunk, non_blocking=True) for target, chunk in zip(out, chunks, strict=True)]

    def gather(tensors: Sequence[torch.Tensor], dim: int, destination: int | None = None) -> torch.Tensor:
        device = (
            torch.device("cpu")
            if destination == -1
            else on(torch.cuda.current_device() if destination is None else destination)
        )
        sizes = list(tensors[0].shape)
        sizes[dim] = sum(tensor.shape[dim] for tensor in tensors)
        return gather_out(tensors, torch.empty(sizes, dtype=tensors[0].dtype, device=device), dim)

    def gather_out(tensors: Sequence[torch.Tensor], out: torch.Tensor, dim: int) -> torch.Tensor:
        parts = out.split([tensor.shape[dim] for tensor in tensors], dim)
        for part, tensor in zip(parts, tensors, strict=True):
            part.copy_(tensor, non_blocking=True)
        return out

    def broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> list[torch.Tensor]:
        return [tensor.to(on(index), non_blocking=True) for index in devices]

    def broadcast_out(tensor: torch.Tensor, out: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [target.copy_(tensor, non_blocking=True) for target in out]

    def broadcast_coalesced(
        tensors: Sequence[torch.Tensor], devices: Sequence[int], buffer_size: int
    ) -> list[list[torch.Tensor]]:
        """In buckets, one copy each; the first device keeps the tensors themselves."""
        copies = [list(tensors)] + [[] for _ in devices[1:]]
        order = {id(tensor): place for place, tensor in enumerate(tensors)}
        for others, index in zip(copies[1:], devices[1:], strict=True):
            others.extend(tensors)
            for bucket in _take_tensors(tensors, buffer_size):
                flat = _flatten_dense_tensors(bucket).to(on(index), non_blocking=True)
                for tensor, copy in zip(bucket, _unflatten_dense_tensors(flat, bucket), strict=True):
                    others[order[id(tensor)]] = copy.data
        return copies

    functions = {
        "_scatter": scatter, "_scatter_out": scatter_out, "_gather": gather, "_gather_out": gather_out,
        "_broadcast": broadcast, "_broadcast_out": broadcast_out, "_broadcast_coalesced": broadcast_coalesced,
    }  # fmt: skip
    for name, function in functions.items():
        patches.set(torch._C, name, function)
    patches.set(torch.cuda.nccl, "is_available", lambda tensors: False)
    # PyTorch keeps the streams it copies on: those of this machine must not outlive it.
    patches.set(torch.nn.parallel._functions, "_streams", None)


def _beside(chunks: Sequence[torch.Tensor], devices: Sequence[int], streams: Any) -> list[tuple[Any, int, Any]]:
    return list(zip(chunks, devices, streams or [None] * len(devices), strict=False))


def _copy(chunk: torch.Tensor, device: torch.device, stream: Any) -> torch.Tensor:
    if stream is None:
        return chunk.to(device, non_blocking=True)
    with torch.cuda.stream(stream):
        return chunk.to(device, non_blocking=True)
