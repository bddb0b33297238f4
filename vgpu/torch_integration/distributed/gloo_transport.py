"""Moves the values of NCCL's collectives between processes, on gloo: what gloo lacks is made of what it has.

Reductions of 16 bits are done in FP32 and rounded once; everything that does not reduce travels as bytes, so any dtype
does. Gloo gets copies, since its threads keep what they are given for a while, and a GPU tensor's memory must be
released when the program drops it. Not here: time (`vgpu.torch_integration.distributed.channel`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch._C._distributed_c10d as c10d

from vgpu.runtime.unsupported import unsupported
from vgpu.torch_integration.distributed.channel import Channel

_LOW = (torch.float16, torch.bfloat16)
# ncclDataType_t of ProcessGroupNCCL (`ncclDataType` in NCCLUtils / ProcessGroupNCCL.cpp); the rest it refuses.
NCCL_TYPES = {
    torch.int8: "i8", torch.uint8: "u8", torch.bool: "u8", torch.int32: "i32", torch.int64: "i64",
    torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32", torch.float64: "f64",
    torch.float8_e4m3fn: "f8e4m3", torch.float8_e5m2: "f8e5m2",
    torch.float8_e4m3fnuz: "u8", torch.float8_e5m2fnuz: "u8",
}  # fmt: skip
# The reduction's name in NCCL's kernels (src/device/generate.py); an average multiplies before or divides after.
_REDUCTIONS = {"SUM": "Sum", "PRODUCT": "Prod", "MAX": "MinMax", "MIN": "MinMax"}


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in the order of memory, as one dimension that shares the storage."""
    return torch.as_strided(tensor, (tensor.numel(),), (1,), tensor.storage_offset())


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as bytes."""
    return flat(tensor).view(torch.uint8)


def reduction_of(op: Any) -> str:
    """The name of a reduction: "SUM", "AVG", ...; what NCCL or this library cannot do raises."""
    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX"):
        if op == getattr(c10d.ReduceOp, name):
            return name
    for name in ("BAND", "BOR", "BXOR"):
        if op == getattr(c10d.ReduceOp, name):
            raise ValueError(f"Cannot use ReduceOp.{name} with NCCL")
    raise unsupported("ReduceOp.PREMUL_SUM")


def kernel_reduction(name: str, dtype: torch.dtype) -> str:
    """As NCCL's kernels are called."""
    if name == "AVG":
        return "PreMulSum" if dtype.is_floating_point else "SumPostDiv"
    return _REDUCTIONS[name]


def all_reduce(channel: Channel, tensor: torch.Tensor, op: str) -> None:
    """Reduce in place."""
    flat(tensor).copy_(_reduced(channel, flat(tensor).clone(), op))


def _reduced(channel: Channel, values: torch.Tensor, op: str) -> torch.Tensor:
    """The reduction of `values`, which may be overwritten: gloo's threads let go of them at a time of their own."""
    if values.dtype == torch.bool:
        if op == "AVG":
            raise ValueError("Cannot use ReduceOp.AVG with Boolean inputs")
        # A sum of truth values is "any" (ProcessGroupNCCL.cpp, `getNcclReduceOp`).
        values, op = values.view(torch.uint8), {"SUM": "MAX", "PRODUCT": "MIN"}.get(op, op)
    elif values.dtype.is_floating_point and values.dtype.itemsize == 1:
        raise unsupported("reductions of float8", str(values.dtype))
    if values.dtype in _LOW:
        values = values.float()
    averaged = op == "AVG"
    if averaged and values.dtype.is_floating_point:
        values.mul_(1.0 / channel.size)
    if channel.size > 1:
        options = c10d.AllreduceOptions()
        options.reduceOp = getattr(c10d.ReduceOp, "SUM" if averaged else op)
        channel.call("allreduce", lambda: channel.backend.allreduce([values], options))
    if averaged and not values.dtype.is_floating_point:
        values.div_(channel.size, rounding_mode="trunc")
    return values


def reduce(channel: Channel, tensor: torch.Tensor, op: str, root: int) -> None:
    """Reduce to the root; the others keep their values."""
    result = _reduced(channel, flat(tensor).clone(), op)
    if channel.rank == root:
        flat(tensor).copy_(result)


def reduce_scatter(channel: Channel, output: torch.Tensor, parts: Sequence[torch.Tensor], op: str) -> None:
    """Reduce the parts over the ranks; each rank keeps its own."""
    whole = _reduced(channel, torch.cat([flat(part) for part in parts]), op)
    start = sum(part.numel() for part in parts[: channel.rank])
    flat(output).copy_(whole[start : start + output.numel()])


def broadcast(channel: Channel, tensor: torch.Tensor, root: int) -> None:
    """The root's values for all."""
    if channel.size == 1 or not tensor.numel():
        return
    values = as_bytes(tensor).clone()
    options = c10d.BroadcastOptions()
    options.rootRank, options.rootTensor = root, 0
    channel.call("broadcast", lambda: channel.backend.broadcast([values], options))
    if channel.rank != root:
        as_bytes(tensor).copy_(values)


def all_gather(channel: Channel, outputs: Sequence[torch.Tensor], tensor: torch.Tensor) -> None:
    """Everybody's tensor for all. Where the sizes differ, each rank sends in turn, as ProcessGroupNCCL does."""
    if len({output.nbytes for output in outputs}) > 1:
        for source, output in enumerate(outputs):
            if source == channel.rank:
                as_bytes(output).copy_(as_bytes(tensor))
            broadcast(channel, output, source)
        return
    sent = as_bytes(tensor).clone()
    if channel.size == 1 or not tensor.numel():
        as_bytes(outputs[0]).copy_(sent)
        return
    received = [torch.empty_like(sent) for _ in outputs]
    channel.call("allgather", lambda: channel.backend.allgather([received], [sent]))
    for output, values in zip(outputs, received, strict=True):
        as_bytes(output).copy_(values)


def all_to_all(channel: Channel, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
    """Part i of each rank goes to rank i. Ranks without a message of their own take part with empty tensors."""
    sent = torch.cat([as_bytes(part) for part in inputs])
    if channel.size == 1:
        as_bytes(outputs[0]).copy_(sent)
        return
    arriving = torch.empty(sum(part.nbytes for part in outputs), dtype=torch.uint8, device="cpu")
    sizes_in, sizes_out = [part.nbytes for part in inputs], [part.nbytes for part in outputs]
    exchange = getattr(channel.backend, "all_to_all_single", None) or channel.backend.alltoall_base
    channel.call("alltoall", lambda: exchange(arriving, sent, sizes_out, sizes_in, c10d.AllToAllOptions()))
    for output, values in zip(outputs, arriving.split(sizes_out), strict=True):
        as_bytes(output).copy_(values)


def gather(channel: Channel, outputs: Sequence[torch.Tensor], tensor: torch.Tensor, root: int) -> None:
    """Everybody's tensor for the root."""
    nothing = torch.empty(0, dtype=torch.uint8, device="cpu")
    inputs = [tensor if peer == root else nothing for peer in range(channel.size)]
    received = list(outputs) if channel.rank == root else [nothing] * channel.size
    all_to_all(channel, received, inputs)


def scatter(channel: Channel, output: torch.Tensor, inputs: Sequence[torch.Tensor], root: int) -> None:
    """Each rank gets its part of the root's."""
    nothing = torch.empty(0, dtype=torch.uint8, device="cpu")
    sent = list(inputs) if channel.rank == root else [nothing] * channel.size
    received = [output if peer == root else nothing for peer in range(channel.size)]
    all_to_all(channel, received, sent)
