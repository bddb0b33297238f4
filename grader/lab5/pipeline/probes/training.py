"""Probes of how Lab 5's trainer trains and validates. They run in each rank, next to the student's code.

They look only at things that any trainer must do: batches that pass the model, learning rates at optimizer steps, and
parameters in the end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.optim import optimizer as optimizers

from gradebox.sandbox.probe_loader import Student
from grader.lab5.pipeline.cases import (
    Batches,
    Epochs,
    EpochsReply,
    Mixed,
    MixedReply,
    TrainedEpochs,
    Training,
    Validate,
    Validated,
    ValidateReply,
)
from grader.lab5.pipeline.probes.trainers import (
    CONFIG,
    KEPT,
    TRAINER,
    Model,
    Sink,
    base_of,
    epoch_of,
    make,
    ranks_of,
    rate_of,
    scale_of,
    scaler_of,
    steps_of,
    try_parts,
)
from grader.shared.probes.collectives import Collectives
from grader.shared.probes.endings import ending
from grader.shared.probes.ranks import Indexed
from grader.shared.probes.support import fields
from labkit.loader import ResumableLoader
from labkit.results import ValidationResult


@contextlib.contextmanager
def _optimizer_steps(model: Model) -> Iterator[tuple[list[float], list[int]]]:
    """Of every optimizer step taken in the block: its learning rate, and the batch that passed the model last.

    A fused optimizer is called for a step that overflows, too, and leaves it out by itself: GradScaler gives it
    `found_inf`.
    """
    rates: list[float] = []
    batches: list[int] = []

    def note(optimizer: torch.optim.Optimizer, arguments: object, options: object) -> None:
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is not None and bool(found_inf):
            return
        rates.append(float(optimizer.param_groups[0]["lr"]))
        batches.append(len(model.batches) - 1)

    handle = optimizers.register_optimizer_step_pre_hook(note)
    try:
        yield rates, batches
    finally:
        handle.remove()


def epochs(student: Student, inputs: Epochs) -> EpochsReply:
    """`train_epoch` for every epoch of each training, by a trainer of its own.

    Each epoch begins with the model in evaluation mode. Then, for the first training, other orders of epochs.
    """
    torch.set_num_threads(1)
    first, runs = inputs.trainings[0], []
    with ranks_of(student):
        try_parts(make(student, base_of(student) / "parts", first))
        for number, training in enumerate(inputs.trainings):
            trainer = make(student, base_of(student) / f"run-{number}", training)
            model, results, modes = trainer.model, [], []
            with _optimizer_steps(model) as (rates, _), Collectives() as reduced:
                for epoch in range(training.config["epochs"]):
                    model.eval()
                    results.append(epoch_of(trainer, epoch))
                    modes.append(model.training)
            runs.append(
                TrainedEpochs(
                    results=results,
                    batches=model.batches,
                    validated=len(model.validated),
                    modes=modes,
                    rates=rates,
                    steps=steps_of(trainer),
                    weight=model.whole(),
                    frozen=bool((model.gain == 1).all()),
                    reduced_gradients=reduced.reduced_bytes / model.whole().nbytes,
                )
            )
        orders = {
            "epoch 1, and again": _order(student, first, None, (1, 1)),
            "the rest of epoch 0": _order(student, first, 0, (0,)),
            "epoch 1 in the middle of epoch 0": _order(student, first, 0, (1,)),
        }
    return EpochsReply(runs=runs, orders=orders)


def _order(student: Student, training: Training, begun: int | None, epochs: Sequence[int]) -> Batches:
    """The samples of each batch of these epochs, if the loader has handed out one batch of the epoch `begun` before."""
    trainer = make(student, base_of(student) / f"from {begun} to {epochs}", training)
    if begun is not None:
        trainer.train_loader.set_epoch(begun)
        next(iter(trainer.train_loader))
    for epoch in epochs:
        trainer.train_epoch(epoch)
    return cast(Model, trainer.model).batches


def mixed(student: Student, inputs: Mixed) -> MixedReply:
    """Epochs in float16 or bfloat16, a validation, and with which batches steps were taken."""
    torch.set_num_threads(1)
    sink = Sink()
    trainer = make(student, Path("mixed"), inputs.training, device=student.device, monitor=sink)
    scaler_of(trainer).set_growth_interval(inputs.growth)
    model = trainer.model
    with _optimizer_steps(model) as (rates, batches):
        results = [epoch_of(trainer, epoch) for epoch in range(inputs.training.config["epochs"])]
    in_the_end = [*model.batches]
    event_files = len([*Path("mixed").rglob("*tfevents*")])
    return MixedReply(
        results=results,
        validation=fields(trainer.validate(), ValidationResult, "validate()"),
        products=[sorted(model.products[mode]) for mode in (True, False)],
        parameters=str(model.linear.weight.dtype).removeprefix("torch."),
        batches=in_the_end,
        taken=batches,
        rates=[*rates, rate_of(trainer)],
        weight=model.whole(),
        steps=steps_of(trainer),
        scale=scale_of(trainer),
        event_files=event_files,
        logged=sink.logged,
    )


class _Classifier(nn.Module):
    """Says what its inputs say, unless dropout is on; it counts outputs that hold a graph."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(classes, classes, bias=False, dtype=torch.float64)
        self.linear.weight.data = torch.eye(classes, dtype=torch.float64)
        self.dropout = nn.Dropout(0.9)
        self.graphs = 0

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.linear(self.dropout(x))
        self.graphs += output.requires_grad
        return output


def validate(student: Student, inputs: Validate) -> ValidateReply:
    """`validate` on batches of `sizes[rank]` samples, with the model in training and in evaluation mode.

    The ranks' samples come one after the other. In training mode one of the model's modules is in evaluation mode. One
    rank alone also has nothing to validate.
    """
    torch.set_num_threads(1)
    logits, classes, sizes = inputs.logits, inputs.classes, inputs.sizes
    start, own = sum(map(sum, sizes[: student.rank])), list(sizes[student.rank])
    part = slice(start, start + sum(own))
    batches = list(zip(logits.double()[part].split(own), classes[part].split(own), strict=True)) if own else []
    with ranks_of(student):
        settings = student.module(CONFIG).TrainerConfig(output_dir=str(base_of(student) / "run"), epochs=inputs.epochs)
        model = _Classifier(logits.shape[1])
        train = ResumableLoader(Indexed(logits.double(), classes), 4)
        trainer = student.module(TRAINER).ProductionTrainer(model, train, batches, settings)
        KEPT.append(trainer)

        def validated(training: bool) -> Validated:
            model.train(training)
            model.linear.eval()
            before = [module.training for module in model.modules()]
            result = fields(trainer.validate(), ValidationResult, "validate()")
            return Validated(result=result, before=before, modes=[each.training for each in model.modules()])

        in_training, in_evaluation = validated(True), validated(False)
        empty = ""
        if student.ranks == 1:
            nothing = student.module(TRAINER).ProductionTrainer(model, train, [], settings)
            empty = ending(nothing.validate)
    return ValidateReply(training=in_training, evaluation=in_evaluation, graphs=model.graphs, empty=empty)
