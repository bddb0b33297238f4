"""Probes of Lab 3's measurements of steps whose time is known.

What knows those times is a module that is not imported here (`reference_run.py`).
"""

from __future__ import annotations

import functools
import mmap
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import torch
import torch.distributed as dist

from gradebox.sandbox.probe_loader import Student
from grader.lab3.scaling.cases.measuring import CallReply, Measured, MeasuredPoint, MeasuredReply, Several, SeveralReply
from grader.lab3.shared.cases.modules import SCALING
from grader.lab3.shared.probes.launch import forget_ranks
from grader.shared.probes.groups import in_group as belongs_to_group
from grader.shared.probes.handed_out import slow_optimizers, square_layers, waiting_batches
from grader.shared.probes.kept import function
from grader.shared.probes.record import VirtualGpu
from grader.shared.probes.support import fields, sequence
from labkit.device import open_device
from labkit.results import ScalingPoint
from vgpu.device.kernel_work import KernelWork
from vgpu.torch_integration.attach import current

_MOST_RANKS = 8
_FLOPS, _PRODUCTS = 2 * 2048**2, 11
"""FLOPs of a product of one sample in a layer of the default model, and products of a step: its input has no gradient.
"""
_Batch = tuple[torch.Tensor, torch.Tensor]


def several(student: Student, inputs: Several) -> SeveralReply:
    """`measure_scaling` on a machine with two virtual GPUs, once for each call; ranks are copies of this process.

    Each time the points that it returned, and how many steps rank 0's GPU made, by the number of ranks.
    """
    torch.set_num_threads(1)
    forget_ranks()
    measure = student.module(SCALING).measure_scaling
    # Shared with the ranks; rank 0 of one job after the other writes there.
    counts, samples = (memoryview(mmap.mmap(-1, (_MOST_RANKS + 1) * 8)).cast("q") for _ in range(2))

    @function
    def count(_: int, __: int, work: KernelWork, end: float, ___: float) -> float:
        flops = 0.0 if work.product is None else work.product.flops
        if flops >= _FLOPS and dist.is_initialized() and dist.get_rank() == 0:
            size = dist.get_world_size()
            counts[size] += 1
            samples[size] = round(flops / _FLOPS)
        return end

    def ignore(*_: object) -> None:
        pass

    replies = []
    with open_device("vgpu:T4", values=False, gpus=2):
        for gpu in cast("VirtualGpu", current()).machine.gpus:
            gpu.queue.observer = SimpleNamespace(submitted=count, opened=ignore, levelled=ignore, held=ignore)
        for call in inputs.calls:
            before = counts.tolist()
            points = sequence(measure(**call, start_method="fork"), "measure_scaling()")
            replies.append(
                CallReply(
                    points=[fields(point, ScalingPoint, "measure_scaling()") for point in points],
                    steps={str(size): (counts[size] - before[size]) / _PRODUCTS for size in call["world_sizes"]},
                    samples={str(size): samples[size] for size in call["world_sizes"]},
                )
            )
    return SeveralReply(replies=replies)


def measured(student: Student, inputs: Measured) -> MeasuredReply:
    """`measure_rank` of this rank, whose loader and GPU have figures of their own; then what it must not accept, and
    a loader that fails."""
    batch_size = inputs.batch_size
    own = batch_size // student.ranks if inputs.kind == "strong" else batch_size
    measure = functools.partial(
        student.module(SCALING).measure_rank,
        student.rank,
        student.ranks,
        device="cuda",
        steps=inputs.steps,
        warmup=inputs.warmup,
    )
    taken = 0

    def counted(batches: Iterator[_Batch]) -> Iterator[_Batch]:
        nonlocal taken
        for batch in batches:
            taken += 1
            yield batch

    load, first = inputs.load_seconds[student.rank], inputs.first_seconds[student.rank]
    with slow_optimizers(inputs.optimizer_cycles):
        returned = measure(
            f"{student.rendezvous}-measure",
            kind=inputs.kind,
            batch_size=batch_size,
            model=square_layers(inputs.width, inputs.layers),
            batches=counted(waiting_batches(own, inputs.width, load, first)),
        )
    point = cast("MeasuredPoint", fields(returned, ScalingPoint, "measure_rank()"))
    in_group, taken_then = belongs_to_group(), taken
    wrong = [("kind='week'", "week", batch_size)]
    if student.ranks > 1:
        uneven = own * student.ranks + 1
        wrong.append((f"batch_size={uneven}, strong", "strong", uneven))
    refused = {}
    for index, (what, bad_kind, bad_size) in enumerate(wrong):
        try:
            measure(
                f"{student.rendezvous}-wrong{index}",
                kind=bad_kind,
                batch_size=bad_size,
                model=square_layers(8, 1),
                batches=waiting_batches(own, 8, 0.0),
            )
        except Exception as error:
            refused[what] = isinstance(error, ValueError)
        else:
            refused[what] = False
    failed = ""
    try:
        measure(
            f"{student.rendezvous}-broken",
            kind=inputs.kind,
            batch_size=batch_size,
            model=square_layers(8, 1),
            batches=_fails(),
        )
    except Exception as error:
        failed = type(error).__name__
    return MeasuredReply(
        point=point,
        in_group=in_group,
        taken=taken_then,
        expected=2 * (inputs.warmup + inputs.steps),
        refused=refused,
        failed=failed,
        in_group_after_failure=belongs_to_group(),
    )


def _fails() -> Iterator[_Batch]:
    """A loader that does not get as far as its first batch."""
    yield from ()
    raise LookupError("the first batch cannot be read")
