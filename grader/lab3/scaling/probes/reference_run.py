"""The steps of Lab 3's scaling analysis, timed by ourselves: no other probe imports this.

Ranks of a virtual machine share one virtual time, so the seconds of a step are known; everything here is simulated.
"""

from __future__ import annotations

import contextlib
import statistics
import time

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradebox.sandbox.probe_loader import Student
from grader.lab3.scaling.cases.measuring import Steps, Timed, TimedReply
from grader.lab3.scaling.cases.mistakes import TimedWrongly
from grader.shared.probes.handed_out import slow_optimizers, square_layers, waiting_batches
from grader.shared.probes.ranks import group


def timed(student: Student, inputs: Timed) -> TimedReply:
    """Whole steps, and their parts without exchange."""
    return _timed(student, inputs)


def timed_wrongly(student: Student, inputs: TimedWrongly) -> TimedReply:
    """The same, measured with a mistake."""
    return _timed(student, inputs, inputs.mistake)


def _timed(student: Student, inputs: Steps, mistake: str = "") -> TimedReply:
    own = inputs.batch_size // student.ranks if inputs.kind == "strong" else inputs.batch_size
    middle = statistics.fmean if mistake == "averaged" else statistics.median
    torch.cuda.set_device(student.rank)
    with group(student, "reference", backend="nccl"), slow_optimizers(inputs.optimizer_cycles):
        model = square_layers(inputs.width, inputs.layers).cuda()
        replica = DistributedDataParallel(model, device_ids=[student.rank])
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        load, first = inputs.load_seconds[student.rank], inputs.first_seconds[student.rank]
        batches = waiting_batches(own, inputs.width, load, first)

        def now() -> float:
            if mistake != "device_not_waited_for":
                torch.cuda.synchronize()
            return time.perf_counter()

        def times(module: DistributedDataParallel, *, exchanged: bool, warmup: int) -> tuple[float, float]:
            arrivals, rests = [], []
            with contextlib.nullcontext() if exchanged else module.no_sync():
                for _ in range(warmup + inputs.steps):
                    start = now()
                    samples, targets = (tensor.cuda() for tensor in next(batches))
                    arrived = now()
                    optimizer.zero_grad()
                    nn.functional.mse_loss(module(samples), targets).backward()
                    backward = now() if mistake == "optimizer_left_out" else 0.0
                    optimizer.step()
                    arrivals.append(arrived - start)
                    rests.append((backward or now()) - arrived)
            return middle(arrivals[warmup:]), middle(rests[warmup:])

        whole = times(replica, exchanged=mistake != "whole_without_exchange", warmup=inputs.warmup)
        data, compute = times(
            replica,
            exchanged=mistake == "parts_with_exchange",
            warmup=0 if mistake == "parts_without_warmup" else inputs.warmup,
        )
        del replica
    return TimedReply(
        batch_size=own * student.ranks,
        step_seconds=whole[1] if mistake == "batch_left_out" else sum(whole),
        data_seconds=data,
        compute_seconds=compute,
    )
