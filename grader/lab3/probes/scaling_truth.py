"""The truth about the steps of Lab 3's scaling analysis, timed by ourselves: no other probe imports this.

Ranks of a virtual machine share one virtual time, so the seconds of a step are known; everything here is simulated.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from grader.shared.probes.handed_out import square_layers, waiting_batches
from grader.shared.probes.ranks import group


def truth(
    student: Any,
    *,
    kind: str,
    batch_size: int,
    width: int,
    layers: int,
    steps: int,
    warmup: int,
    load_seconds: Sequence[float],
    first_seconds: Sequence[Sequence[float]],
) -> dict[str, Any]:
    """The same steps, made and timed by ourselves: whole ones, and their parts without exchange."""
    own = batch_size // student.ranks if kind == "strong" else batch_size
    torch.cuda.set_device(student.rank)
    with group(student, "truth", backend="nccl"):
        model = square_layers(width, layers).cuda()
        replica = DistributedDataParallel(model, device_ids=[student.rank])
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        batches = waiting_batches(own, width, load_seconds[student.rank], first_seconds[student.rank])

        def now() -> float:
            torch.cuda.synchronize()
            return time.perf_counter()

        def times(module: nn.Module) -> tuple[float, float]:
            arrivals, rests = [], []
            for _ in range(warmup + steps):
                start = now()
                inputs, targets = (tensor.cuda() for tensor in next(batches))
                arrived = now()
                optimizer.zero_grad()
                nn.functional.mse_loss(module(inputs), targets).backward()
                optimizer.step()
                arrivals.append(arrived - start)
                rests.append(now() - arrived)
            return statistics.median(arrivals[warmup:]), statistics.median(rests[warmup:])

        whole = sum(times(replica))
        with replica.no_sync():
            data, compute = times(replica)
        del replica
    return {"batch_size": own * student.ranks, "step_seconds": whole, "data_seconds": data, "compute_seconds": compute}
