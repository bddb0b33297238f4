"""Probes of Lab 3's training: which samples each rank went through, what the replicas became.

Each runs in every rank. They look at what any way of training must do: samples that pass the model, parameters at the
end.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from gradebox.sandbox.observer import SystemReading
from gradebox.sandbox.probe_loader import Student
from grader.lab3.setup.cases.training import Changes, Ending, OnCpuReply, Passed, Train, TrainReply
from grader.lab3.setup.probes.joining import come_together, folder_of, occupy_usual_ports, until, visible_gpus
from grader.lab3.shared.cases.modules import DDP, DEBUGGING
from grader.lab3.shared.probes.models import ForwardPass, Regression, regression
from grader.shared.probes.calls import if_accepted
from grader.shared.probes.collectives import Collectives
from grader.shared.probes.groups import in_group as belongs_to_group
from grader.shared.probes.kept import notes
from grader.shared.probes.looks import exists
from grader.shared.probes.ranks import (
    GPU_TIMEOUT_SECONDS,
    TIMEOUT_SECONDS,
    Indexed,
    failing_loss,
    half_squares,
    numbered,
)
from grader.shared.probes.support import exact, fields, fields_or_reason, plain
from labkit import data, models
from labkit.device import open_device
from labkit.results import DdpTraining

_MESSAGE = 8000
"""Characters of an error's message: that of a loader's worker process is a whole traceback, with the reason at its
end."""

NAP_SECONDS = 0.04, 0.08
"""In the first forward pass, drawn between these; a clock of processor time does not see it."""

_kept: list[object] = []
"""A DistributedDataParallel that dies after its process group hangs now and then: what may hold one lives on here."""


def on_cpu(student: Student) -> OnCpuReply:
    """`train` alone, on the CPU of a machine that has a GPU: what it says of its device.

    And what it says of the accuracy, next to the true one, by which of the two data sets are given.
    """
    torch.set_num_threads(1)
    run = student.module(DDP).train
    samples = [(torch.full((4,), float(number)), torch.tensor(number % 2)) for number in range(8)]
    tests = data.load("digits", split="test")
    few = torch.utils.data.Subset(tests, range(0, len(tests), 7))
    accuracies: dict[str, tuple[object, float]] = {}
    with open_device("vgpu:T4"):
        address = f"{student.rendezvous}-cpu"
        result = run(0, 1, address, device="cpu", model=nn.Linear(4, 2), dataset=samples, epochs=1)
        for name, judged in (("neither", tests), ("test_dataset", few)):
            model = models.mlp()
            address = f"{student.rendezvous}-{name}"
            options = {} if name == "neither" else {name: judged}
            trained = run(0, 1, address, device="cpu", model=model, epochs=1, batch_size=256, **options)
            pairs = zip(*(judged[index] for index in range(len(judged))), strict=True)
            x, targets = (torch.stack([torch.as_tensor(value) for value in part]) for part in pairs)
            with torch.no_grad():
                right = model.float().eval()(x).argmax(dim=1) == targets
            accuracies[name] = fields(trained, DdpTraining, "train()")["accuracy"], float(right.double().mean())
    report = fields(result, DdpTraining, "train()")
    return OnCpuReply(device=report["device"], without_tests=report["accuracy"], accuracies=accuracies)


def train(student: Student, inputs: Train) -> TrainReply:
    """`train` with a model of this rank's own weights; what passed it, what it became, and how it ended.

    The model multiplies its inputs by this rank's factors. Then the same once more for each of `again`, with models
    that are in evaluation mode beforehand; of those, what passed the model. Where the ranks meet the environment says,
    or an `init_method`.
    """
    torch.set_num_threads(1)
    module, _, name = inputs.function.rpartition(".")
    debugging = module == DEBUGGING
    dtype = getattr(torch, inputs.dtype)
    labels = inputs.targets.argmax(dim=1) if inputs.classes else inputs.targets.to(dtype)
    learned = inputs.samples
    samples = numbered(inputs.inputs[:learned]).to(dtype)
    dataset = Indexed(samples, labels[:learned])
    extra: dict[str, object] = {} if inputs.classes else {"criterion": half_squares}
    if inputs.failing == student.rank:
        usual = nn.CrossEntropyLoss() if inputs.classes else half_squares
        extra["criterion"] = failing_loss(usual, 2, f"the loss is {inputs.damage}", inputs.error)
    if inputs.tests:
        extra["test_dataset"] = Indexed(numbered(inputs.inputs[learned:]).to(dtype), labels[learned:])
    occupied = occupy_usual_ports(student.rank) if debugging and inputs.crowded else []
    port = int(os.environ["MASTER_PORT"]) + 1  # the sandbox's is one of the usual ones
    run = getattr(student.module(module), name)
    wait = GPU_TIMEOUT_SECONDS if inputs.kind == "cuda" and student.gpu is None else TIMEOUT_SECONDS
    extra |= if_accepted(run, timeout_seconds=wait + student.ranks + 0.5)
    if inputs.kind != ("cuda" if torch.cuda.is_available() else "cpu"):
        extra["device"] = inputs.kind

    def call(model: Regression, number: int, changes: Changes, **own: object) -> object:
        arguments: dict[str, object] = {**inputs.options, **changes, **own}
        os.environ["MASTER_PORT"] = str(port + number)  # one for each: a rank that is slow to leave meets nobody else
        if arguments.pop("by_address", False):
            arguments["init_method"] = f"{student.rendezvous}-{number}"
        with visible_gpus(torch.cuda.device_count() if inputs.gpus is None else inputs.gpus):
            return run(student.rank, student.ranks, **{"model": model, "dataset": dataset, **extra, **arguments})

    def made(
        note: Callable[[ForwardPass], None], nap_seconds: float = 0.0, hold_up: Callable[[], None] | None = None
    ) -> Regression:
        torch.manual_seed(student.rank + 1)  # what was drawn before must not matter
        model = regression(
            inputs.weights[student.rank],
            inputs.shifts[student.rank],
            note,
            unused=debugging and inputs.unused,
            factors=inputs.factors[student.rank],
            nap_seconds=nap_seconds,
            hold_up=hold_up,
            dtype=dtype,
        )
        _kept.append(model)
        return model

    note, noted = notes()
    model = made(note, random.SystemRandom().uniform(*NAP_SECONDS))
    result, error = None, None
    carried = Collectives()
    if student.rank == student.ranks - 1:
        time.sleep(inputs.late_seconds)
    start = time.perf_counter()
    try:
        with carried:
            result = call(model, 0, {})
    except Exception as caught:
        _kept.append(caught)
        if inputs.failing is None or isinstance(caught, NotImplementedError):
            raise
        error = Ending(type=type(caught).__name__, message=str(caught)[:_MESSAGE])
    whole_seconds = time.perf_counter() - start
    in_group = belongs_to_group()
    forwards: list[ForwardPass] = noted()
    passed = _passed(forwards, model)
    others = []
    for number, changes in enumerate(inputs.again, start=1):
        note, noted = notes()
        other = made(note)
        other.eval()  # training puts it into training mode
        call(other, number, changes)
        others.append(_passed(noted(), other))
    waited = None
    if inputs.patience:
        whole = Indexed(samples, labels[:learned])

        def train_with(note: Callable[[ForwardPass], None], hold_up: Callable[[], None] | None, attempt: int) -> object:
            options = {"timeout_seconds": inputs.patience, "dataset": whole}
            return call(made(note, hold_up=hold_up), len(inputs.again) + 1 + attempt, {"epochs": 1}, **options)

        waited = _wait_for_rank_1(student, inputs.patience, train_with)
    _kept.append(occupied)
    report: dict[str, object] = {}
    if error is None:  # a training without a result is judged by what it did, all the same
        report = (fields_or_reason if result is None else fields)(result, DdpTraining, f"{name}()")
    return TrainReply(
        result=report,
        error=error,
        in_group=in_group,
        samples=passed.samples,
        carried_bytes=carried.carried_bytes,
        loopback_bytes=SystemReading("loopback_bytes"),  # type: ignore[arg-type]
        draws=passed.draws,
        again=others,
        weight=passed.weight,
        shift=model.get_buffer("shift").cpu(),
        place=str(exact(model.linear.weight, "the weight").device),
        dtype=plain(exact(model.linear.weight, "the weight").dtype, ""),
        patience=forwards[0].patience if forwards else 0.0,
        waited=waited,
        begin=start,
        least_seconds=forwards[-1].end - forwards[0].begin if forwards else 0.0,
        whole_seconds=whole_seconds,
    )


_ATTEMPTS = 2
"""On a busy machine ranks may not even meet within so short a time."""


def _wait_for_rank_1(
    student: Student,
    patience: float,
    train_with: Callable[[Callable[[ForwardPass], None], Callable[[], None] | None, int], object],
) -> float | None:
    """Train, and let rank 1 stop in its first forward pass until rank 0 has given up, or waited far too long.

    How long rank 0 waited from the end of its own first forward pass until an error was raised; None: there was none,
    or this is another rank.
    """
    waited = None
    for attempt in range(_ATTEMPTS):
        come_together(f"training-{attempt}", student)
        given_up = folder_of(student) / f"given-up-{attempt}"
        note, noted = notes()
        hold_up = partial(until, partial(exists, given_up), 3 * patience) if student.rank == 1 else None
        try:
            train_with(note, hold_up, attempt)
        except Exception as error:
            _kept.append(error)
            passed = noted()
            if student.rank == 0 and passed:
                waited = time.perf_counter() - passed[0].end
        given_up.touch()
        if dist.is_initialized():
            dist.destroy_process_group()
        came = folder_of(student) / f"came-{attempt}"
        if student.rank == 0 and noted():
            came.touch()
        come_together(f"trained-{attempt}", student)
        if exists(came):
            break
    return waited


def _passed(forwards: Sequence[ForwardPass], model: Regression) -> Passed:
    trained = [each for each in forwards if each.training]
    return Passed(
        samples=[list(each.samples) for each in trained],
        draws=[list(each.draws) for each in trained],
        weight=model.linear.weight.detach().cpu(),
    )
