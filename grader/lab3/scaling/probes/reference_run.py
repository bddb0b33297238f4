"""The steps of Lab 3's scaling analysis, timed by ourselves: no other probe imports this.

Ranks of a virtual machine share one virtual time, so the seconds of a step are known; everything here is simulated.
"""

from __future__ import annotations

import statistics
import time

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradebox.sandbox.probe_loader import Student
from grader.lab3.scaling.cases.measuring import Timed, TimedReply
from grader.shared.probes.handed_out import square_layers, waiting_batches
from grader.shared.probes.ranks import group


def timed(student: Student, inputs: Timed) -> TimedReply:
    """Whole steps, and their parts without exchange."""
    own = inputs.batch_size // student.ranks if inputs.kind == "strong" else inputs.batch_size
    torch.cuda.set_device(student.rank)
    with group(student, "reference", backend="nccl"):
        model = square_layers(inputs.width, inputs.layers).cuda()
        replica = DistributedDataParallel(model, device_ids=[student.rank])
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        load, first = inputs.load_seconds[student.rank], inputs.first_seconds[student.rank]
        batches = waiting_batches(own, inputs.width, load, first)

        def now() -> float:
            torch.cuda.synchronize()
            return time.perf_counter()

        def times(module: nn.Module) -> tuple[float, float]:
            arrivals, rests = [], []
            for _ in range(inputs.warmup + inputs.steps):
                start = now()
                samples, targets = (tensor.cuda() for tensor in next(batches))
                arrived = now()
                optimizer.zero_grad()
                nn.functional.mse_loss(module(samples), targets).backward()
                optimizer.step()
                arrivals.append(arrived - start)
                rests.append(now() - arrived)
            return statistics.median(arrivals[inputs.warmup :]), statistics.median(rests[inputs.warmup :])

        whole = sum(times(replica))
        with replica.no_sync():
            data, compute = times(replica)
        del replica
    return TimedReply(batch_size=own * student.ranks, step_seconds=whole, data_seconds=data, compute_seconds=compute)
