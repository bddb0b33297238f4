"""Given: the same training in three ways on several ranks, and what each rank holds and sends. Nothing to write here.

Not for what is predicted: `analysis.py`.
"""

import datetime
import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW, Optimizer

from labkit import models
from labkit.device import Ran, record_of
from labkit.results import ShardedMemory, ShardingResult

from .fsdp import shard
from .zero import ShardedOptimizer

_STAGES = {"DDP": 0, "ZeRO-1": 1, "FSDP2": 3}
_ROUNDS = {"AllReduce": 2}
"""How many times the bytes of a collective go around a ring, where not once: each rank sends (ranks - 1) / ranks."""
_STEPS, _WARMUP = 3, 2
_TOKENS = 32


@dataclass(frozen=True)
class Predictions:
    """The functions of `analysis.py`: what is measured is compared with them."""

    memory_per_rank: Callable[..., ShardedMemory]
    sent_per_rank: Callable[..., float]
    hidden_share: Callable[[Sequence[tuple[float, float]], Sequence[tuple[float, float]]], float | None]


@dataclass(frozen=True)
class _Measured:
    """What a rank saw of one method."""

    held: int
    peak: int
    seconds: float
    sent: float | None
    hidden: float | None


def measure_rank(
    rank: int, world_size: int, init_method: str, *, predictions: Predictions, width: int, layers: int
) -> list[ShardingResult]:
    """Be one rank of a measurement: train a small transformer in each of the three ways.

    Args:
        rank: this process's number.
        world_size: number of processes, each with a GPU of its own.
        init_method: where they meet.
        predictions: what the results predict.
        width: of the transformer.
        layers: of the transformer.

    Returns:
        A result for each method, of the rank that holds most; what is sent and hidden is the mean of all ranks.
    """
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl", init_method=init_method, rank=rank, world_size=world_size, timeout=datetime.timedelta(minutes=5)
    )
    results = []
    for method, stage in _STAGES.items():
        measured, parameters = _measure(method, rank, width, layers, predictions)
        everybody: list[_Measured] = [measured] * world_size
        dist.all_gather_object(everybody, measured)
        sent = [each.sent for each in everybody if each.sent is not None]
        hidden = [each.hidden for each in everybody if each.hidden is not None]
        held = predictions.memory_per_rank(
            parameters, world_size, stage, parameter_bytes=4, gradient_bytes=4, optimizer_bytes=8
        )
        results.append(
            ShardingResult(
                method=method,
                stage=stage,
                ranks=world_size,
                parameters=parameters,
                held_bytes=max(each.held for each in everybody),
                predicted_held_bytes=held.total_bytes,
                peak_bytes=max(each.peak for each in everybody),
                sent_bytes=statistics.mean(sent) if sent else None,
                predicted_sent_bytes=predictions.sent_per_rank(parameters, world_size, stage, element_bytes=4),
                hidden_share=statistics.mean(hidden) if hidden else None,
                step_seconds=max(each.seconds for each in everybody),
            )
        )
    dist.destroy_process_group()
    return results


def _measure(method: str, rank: int, width: int, layers: int, predictions: Predictions) -> tuple[_Measured, int]:
    torch.manual_seed(0)
    model = models.TinyTransformer(width=width, layers=layers, longest=_TOKENS)
    parameters = models.count_parameters(model)
    before = _allocated()
    trained, optimizer = _prepare(method, model, rank)
    generator = torch.Generator().manual_seed(rank)
    tokens = torch.randint(0, 64, (4, _TOKENS + 1), generator=generator).cuda()
    seconds, peak, marked = [], 0, 0
    for _ in range(_WARMUP + _STEPS):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        marked = len(record_of(rank) or ())
        start = time.perf_counter()
        _loss(trained, tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
        peak = torch.cuda.max_memory_allocated() - before
    record = record_of(rank)
    sent, hidden = (None, None) if record is None else _sent(record[marked:], predictions)
    _loss(trained, tokens).backward()
    return _Measured(_allocated() - before, peak, statistics.median(seconds[_WARMUP:]), sent, hidden), parameters


def _prepare(method: str, model: models.TinyTransformer, rank: int) -> tuple[nn.Module, Optimizer]:
    if method == "FSDP2":
        sharded = shard(model, list(model.blocks))
        return sharded, AdamW(sharded.parameters())
    replica = DistributedDataParallel(model.cuda(), device_ids=[rank], gradient_as_bucket_view=True)
    if method == "DDP":
        return replica, AdamW(model.parameters())
    return replica, ShardedOptimizer(model.parameters(), AdamW)


def _loss(model: Callable[[Tensor], Tensor], tokens: Tensor) -> Tensor:
    return functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def _sent(kernels: Sequence[Ran], predictions: Predictions) -> tuple[float, float | None]:
    """Bytes that this rank sent, and the share of the messages' seconds in which it computed as well."""
    sent, messages, work = 0.0, [], []
    ranks = dist.get_world_size()
    for kernel in kernels:
        if kernel.name.startswith("ncclDevKernel_"):
            kind = kernel.name.split("_")[1]
            # In a ring each rank passes on everything except its share; a message to one other rank it just sends.
            around = _ROUNDS.get(kind, 1) * (ranks - 1) / ranks
            sent += kernel.bytes * (1 if kind == "SendRecv" else around)
            messages.append((kernel.start, kernel.end))
        else:
            work.append((kernel.start, kernel.end))
    return sent, predictions.hidden_share(messages, work) if ranks > 1 else None


def _allocated() -> int:
    """Bytes of tensors that somebody can still reach, without cuBLAS's workspace."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    return int(torch.cuda.memory_allocated())
