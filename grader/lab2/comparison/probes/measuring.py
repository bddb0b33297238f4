"""Probes of Lab 2's comparison: what the student measured and concluded, and the same measured by the course.

Not for the accuracies on a GPU (`accuracies.py`).
"""

from __future__ import annotations

import functools
import gc
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from gradebox.sandbox.measuring import measures
from gradebox.sandbox.probe_loader import Student
from grader.lab2.comparison.cases.conclusions import Conclude, ConcludeReply
from grader.lab2.comparison.cases.measuring import (
    AccuraciesOnCpuReply,
    Compare,
    CompareArguments,
    ComparedModel,
    ComparedOnCpuReply,
    CompareReference,
    CompareReferenceReply,
    CompareReply,
    Network,
    OptimizerSettings,
    PrecisionRow,
    ReferenceRow,
    Refused,
    RefusedReply,
)
from grader.lab2.shared.probes import dtype_of
from grader.shared.probes.calls import on_device
from grader.shared.probes.card import full_precision
from grader.shared.probes.endings import refused as is_refused
from grader.shared.probes.facts import is_training
from grader.shared.probes.handed_out import linear, zeros
from grader.shared.probes.kept import Noted, function, method, notes
from grader.shared.probes.record import Reported, VirtualGpu, mark, reading
from grader.shared.probes.support import exact, fields, plain, sequence
from labkit.results import PrecisionConclusions, PrecisionResult

COMPARISON = "lab2_mixed_precision.precision_comparison"
_LOSS = "aten::_log_softmax"
"""What a cross entropy runs that is not put together by hand."""
# Bound before a submission runs: what it replaces does not reach it.
_is_grad_enabled = torch.is_grad_enabled
TRAINING_BATCH = 200
"""So few steps that the model is far from done: one that is made only once, and so trained twice as long, reaches
0.058 more (the least of 151 seeds), while bfloat16 and float32 never lie further apart than 0.0084."""

Batch: TypeAlias = tuple[Tensor, Tensor]
"""Inputs and targets."""


def makers(network: Network) -> tuple[Callable[[], nn.Module], Callable[[], Batch]]:
    """Makers of a model and of a batch. Large, and quick to make: weights and samples are zeros."""

    def create_model() -> nn.Module:
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(network.widths):
            layers += [linear(before, after), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    def create_batch() -> Batch:
        return zeros(network.batch, network.widths[0]), torch.zeros(network.batch, dtype=torch.int64)

    return create_model, create_batch


def reporting(model: nn.Module, report: Callable[[nn.Module, Tensor], object]) -> nn.Module:
    """A model that reports each forward pass, however it is called; a hook would miss `model.forward(x)`.

    Its class is made for it alone, so that no attribute leads to `report`. The class outlives the model, which must not
    be held by it.
    """

    def passed(reporting: Reporting, x: Tensor) -> Tensor:
        output: Tensor = reporting.model(x)
        report(reporting, output)
        return output

    class Reporting(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        forward = method(passed)

    return Reporting(model)


@measures("time")
def compare(student: Student, inputs: Compare) -> CompareReply:
    """`compare_precisions` of a fully connected network, next to the course's own steps on a real card."""
    create, create_batch = makers(inputs.network)
    module = student.module(COMPARISON)
    plan = inputs.plan
    precisions = [name for name, _ in plan.accuracies]
    before = _quartiles(inputs.network, precisions, inputs.reference_steps)
    note, noted = notes()
    created = itertools.count()

    @function
    def create_model() -> nn.Module:
        number = next(created)
        return reporting(
            create(), lambda model, _: note(_Forward(number, place(), is_training(model), _is_grad_enabled()))
        )

    def place() -> int:
        return mark(student.gpu) if student.gpu is not None else 0

    begin = place()
    with _counted_steps(note):
        counts = {"steps": plan.steps, "warmup": plan.warmup}
        returned = module.compare_precisions(
            dict(plan.accuracies), create_model, create_batch, **counts, **on_device(student)
        )
        results = sequence(returned, "compare_precisions()")
    flops: Reported = None if student.gpu is None else reading(student.gpu, "product_flops", begin)
    models = _models(noted(), student.gpu)
    rows = [_row(result, f"compare_precisions()[{i}]") for i, result in enumerate(results)]
    after = _quartiles(inputs.network, precisions, inputs.reference_steps)
    reference_seconds = {name: took + after[name] for name, took in before.items()}
    return CompareReply(rows=rows, models=models, reference_seconds=reference_seconds, product_flops=flops)


class _Forward(NamedTuple):
    """A forward pass."""

    model: int
    """Its number, in the order of creation."""
    place: int
    """In the record, where the pass ends."""
    training: bool
    gradients: bool
    """Whether it can lead to a step."""


class _Update(NamedTuple):
    """Of the loss scale."""


def _models(noted: Sequence[Noted], gpu: VirtualGpu) -> list[ComparedModel]:
    """What was noted, by the model that ran forward last; in the order of their first passes.

    Not by the newest one: models may all be created before the first is measured.
    """
    models: dict[int, ComparedModel] = {}
    begins: list[int] = []
    last = ComparedModel()
    for value in noted:
        if type(value) is _Forward:
            if not value.gradients:  # a look at the model, of which no step comes
                continue
            if value.model not in models:
                models[value.model] = ComparedModel()
                begins.append(value.place)
            last = models[value.model]
            last.forwards += 1
            if value.training not in last.modes:
                last.modes.append(value.training)
        elif type(value) is _Update:
            last.updates += 1
        else:
            last.steps += 1
            if value not in last.optimizers:
                last.optimizers.append(value)
    if gpu is not None and begins:
        ends = [*begins[1:], mark(gpu)]
        for model, begin, end in zip(models.values(), begins, ends, strict=True):
            model.losses = reading(gpu, "dtypes", begin, end, name=_LOSS)  # type: ignore[assignment]
    return list(models.values())


def _row(result: object, what: str) -> PrecisionRow:
    row: PrecisionRow = fields(result, PrecisionResult, what)  # type: ignore[assignment]
    return row


@contextmanager
def _counted_steps(note: Callable[[Noted], None]) -> Iterator[None]:
    """Steps of optimizers and updates of loss scales in the block are noted."""

    @function
    def after_step(optimizer: torch.optim.Optimizer, *_: object) -> None:
        settings = {name: optimizer.defaults.get(name) for name in ("lr", "betas", "eps", "weight_decay")}
        noted: OptimizerSettings = plain({"kind": type(optimizer).__name__, **settings}, "optimizer")
        note(noted)

    update = torch.amp.GradScaler.update

    @function
    def before_update(scaler: torch.amp.GradScaler) -> None:
        if scaler.is_enabled():
            note(_Update())

    @functools.wraps(update)
    def counted(scaler: torch.amp.GradScaler, *arguments: float | Tensor, **options: float | Tensor) -> None:
        before_update(scaler)
        update(scaler, *arguments, **options)

    handle = register_optimizer_step_post_hook(after_step)
    torch.amp.GradScaler.update = counted  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        torch.amp.GradScaler.update = update  # type: ignore[method-assign]
        handle.remove()


def _quartiles(network: Network, precisions: Sequence[str], steps: int) -> dict[str, list[float]]:
    """Quartiles of the seconds of so many steps of the course's own, by precision; nothing for none."""
    if not steps:
        return {}
    quartiles = {}
    for name in precisions:
        with full_precision():
            took = _measure(network, dtype_of(name), steps).seconds
        low, _, high = statistics.quantiles(took, n=4, method="inclusive")
        quartiles[name] = [low, high]
        gc.collect()
    torch.cuda.empty_cache()
    return quartiles


def _on_cpu() -> tuple[Callable[[], list[str]], Callable[[], nn.Module], Batch]:
    """On which devices models ran, as they are made by what follows; and a batch for them."""
    note, noted = notes()

    @function
    def create_model() -> nn.Module:
        return reporting(nn.Linear(4, 3), lambda _, output: note(exact(output, "an output").device.type))

    return lambda: sorted(set(noted())), create_model, (torch.ones(5, 4), torch.zeros(5, dtype=torch.int64))


def compared_on_cpu(student: Student) -> ComparedOnCpuReply:
    """`compare_precisions(..., device="cpu")` next to a GPU."""
    ran, create_model, batch = _on_cpu()
    returned = student.module(COMPARISON).compare_precisions(
        {"float32": 0.9}, create_model, lambda: batch, device="cpu", steps=1, warmup=1
    )
    rows = [_row(result, "compare_precisions()") for result in sequence(returned, "compare_precisions()")]
    return ComparedOnCpuReply(ran=ran(), rows=rows)


def accuracies_on_cpu(student: Student) -> AccuraciesOnCpuReply:
    """`measure_accuracies(..., device="cpu")` next to a GPU."""
    ran, create_model, batch = _on_cpu()
    student.module(COMPARISON).measure_accuracies(
        create_model, [batch], [batch], device="cpu", dtypes=[torch.float32], epochs=1
    )
    return AccuraciesOnCpuReply(ran=ran())


def compare_reference(student: Student, inputs: CompareReference) -> CompareReferenceReply:
    """In a child without any student's code."""
    rows = {}
    for name in inputs.precisions:
        measured = _measure(inputs.network, dtype_of(name), inputs.steps)
        rows[name] = ReferenceRow(step_seconds=statistics.median(measured.seconds), peak_bytes=measured.peak_bytes)
    return CompareReferenceReply(rows=rows)


@dataclass(frozen=True)
class _Measured:
    seconds: list[float]
    """Of each step."""
    peak_bytes: int


def _measure(network: Network, dtype: torch.dtype, steps: int) -> _Measured:
    create_model, create_batch = makers(network)
    torch.cuda.reset_peak_memory_stats()
    model = create_model().cuda()
    optimizer = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)
    inputs, targets = (tensor.cuda() for tensor in create_batch())
    seconds = []
    for _ in range(3 + steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=dtype, enabled=dtype != torch.float32):
            loss = nn.functional.cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return _Measured(seconds[3:], torch.cuda.max_memory_allocated())


def conclude(student: Student, inputs: Conclude) -> ConcludeReply:
    """`conclude` on made-up results."""
    answers = []
    for case in inputs.cases:
        results = [
            PrecisionResult(
                device="cuda",
                dtype=result.dtype,
                step_seconds=result.step_seconds,
                samples_per_second=64 / result.step_seconds,
                peak_bytes=result.peak_bytes,
                accuracy=result.accuracy,
            )
            for result in case.results
        ]
        options = {} if case.accuracy_loss is None else {"accuracy_loss": case.accuracy_loss}
        conclusions = student.module(COMPARISON).conclude(results, **options)
        answers.append(fields(conclusions, PrecisionConclusions, "conclude()"))
    return ConcludeReply(answers)  # type: ignore[arg-type]


def refused(student: Student, inputs: Refused) -> RefusedReply:
    """Whether `compare_precisions` and `conclude` refuse these arguments."""
    module = student.module(COMPARISON)

    def call_compare(call: CompareArguments) -> object:
        batch = torch.ones(4, 8), torch.zeros(4, dtype=torch.int64)
        counts = {name: count for name, count in call.items() if name != "precisions"}
        return module.compare_precisions(
            dict.fromkeys(call["precisions"], 0.9),
            lambda: nn.Linear(8, 3),
            lambda: batch,
            **counts,
            **on_device(student),
        )

    def call_conclude(names: Sequence[str]) -> object:
        return module.conclude(
            [
                PrecisionResult(
                    device="cuda",
                    dtype=name,
                    step_seconds=1.0,
                    samples_per_second=4.0,
                    peak_bytes=100,
                    accuracy=0.9,
                )
                for name in names
            ]
        )

    return RefusedReply(
        compared=[is_refused(lambda: call_compare(call)) for call in inputs.compared],  # noqa: B023
        concluded=[is_refused(lambda: call_conclude(names)) for names in inputs.concluded],  # noqa: B023
    )
