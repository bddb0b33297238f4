"""What the notebook of the exercise "sharding" runs on virtual GPUs, one call per rank; the student's modules by name.

Given programs that note what a rank holds, sends, and when. Not for measuring on a real GPU.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from labkit import models
from labkit.device import Ran, record_of


def state_bytes(rank: int, world_size: int, init_method: str, *, module: str, rows: Sequence[int]) -> int:
    """What a rank holds more after a step of AdamW, by the student's `ShardedOptimizer` in `module`.

    Args:
        rank, world_size, init_method: as every function of a rank has them.
        module: where the class is.
        rows: of each parameter, [rows, 1024] in float32.
    """
    kind: Any = importlib.import_module(module).ShardedOptimizer
    _join(rank, world_size, init_method)
    parameters = [nn.Parameter(torch.zeros(count, 1024, device="cuda")) for count in rows]
    before = _allocated()
    optimizer = kind(parameters, torch.optim.AdamW, lr=1e-3)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    held = _allocated() - before
    dist.destroy_process_group()
    return held


def fsdp_step(
    rank: int, world_size: int, init_method: str, *, module: str, width: int, layers: int, options: dict[str, Any]
) -> list[Ran]:
    """The third training step of a transformer under the student's `shard` in `module`, seen from this rank's GPU.

    Args:
        rank, world_size, init_method: as every function of a rank has them.
        module: where `shard` is.
        width: of the transformer, as `layers`.
        layers: blocks, each of them sharded by itself.
        options: of `shard`.
    """
    shard: Any = importlib.import_module(module).shard
    _join(rank, world_size, init_method)
    model = models.TinyTransformer(width=width, layers=layers)
    model = shard(model, list(model.blocks), **options)
    tokens = torch.zeros(8, 64, dtype=torch.long, device="cuda")
    marked = 0
    for _ in range(3):
        torch.cuda.synchronize()
        marked = len(record_of(rank) or ())
        model(tokens).sum().backward()
        model.zero_grad()
    torch.cuda.synchronize()
    record = record_of(rank) or []
    dist.destroy_process_group()
    return record[marked:]


def parallel_layer(rank: int, world_size: int, init_method: str, *, module: str, hidden: int) -> tuple[float, int, int]:
    """How far the student's `ParallelMLP` in `module` is from the whole layers, and its messages forward and backward.

    Args:
        rank, world_size, init_method: as every function of a rank has them.
        module: where the class is.
        hidden: features, a multiple of the ranks.

    Returns:
        The largest difference of an output, and the bytes of all messages forward, and backward.
    """
    kind: Any = importlib.import_module(module).ParallelMLP
    _join(rank, world_size, init_method)
    torch.manual_seed(0)
    up, down = nn.Linear(64, hidden), nn.Linear(hidden, 64)
    x = torch.randn(32, 64)
    with torch.no_grad():
        expected = down(nn.functional.gelu(up(x)))
    mlp = kind(up, down)
    inputs = x.cuda().requires_grad_()
    marks = [len(record_of(rank) or ())]
    output: Tensor = mlp(inputs)
    marks.append(len(record_of(rank) or ()))
    output.sum().backward()
    torch.cuda.synchronize()
    record = record_of(rank) or []
    difference = float((output.detach().cpu() - expected).abs().max())
    dist.destroy_process_group()
    return difference, _message_bytes(record[marks[0] : marks[1]]), _message_bytes(record[marks[1] :])


def _message_bytes(record: list[Ran]) -> int:
    return sum(kernel.bytes for kernel in record if is_message(kernel))


def is_message(kernel: Ran) -> bool:
    """Whether it is a collective."""
    return kernel.name.startswith("ncclDevKernel")


def _join(rank: int, world_size: int, init_method: str) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=init_method, rank=rank, world_size=world_size)


def _allocated() -> int:
    gc.collect()
    return int(torch.cuda.memory_allocated())
