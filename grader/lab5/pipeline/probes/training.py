"""Probes of how Lab 5's trainer trains and validates. They run in each rank, next to the student's code.

They look only at things that any trainer must do: batches that pass the model, learning rates at optimizer steps, and
parameters in the end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gradebox.sandbox.probe_loader import Student
from grader.lab5.pipeline.cases import (
    Epochs,
    EpochsReply,
    Mixed,
    MixedReply,
    Order,
    Settings,
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
    Sink,
    base_of,
    epoch_of,
    make,
    optimizer_steps,
    ranks_of,
    rate_of,
    scale_of,
    scaler_of,
    steps_of,
    try_parts,
)
from grader.shared.probes.collectives import Collectives, watching_windows
from grader.shared.probes.endings import ending
from grader.shared.probes.facts import has_graph, is_training, modules_of
from grader.shared.probes.kept import function, method, notes
from grader.shared.probes.loaders import loader
from grader.shared.probes.looks import files_below, written_bytes
from grader.shared.probes.ranks import Indexed
from grader.shared.probes.record import system, watch_products
from grader.shared.probes.support import exact, fields
from labkit.loader import ResumableLoader
from labkit.results import ValidationResult


def epochs(student: Student, inputs: Epochs) -> EpochsReply:
    """`train_epoch` for every epoch of each training, by a trainer of its own.

    Each epoch begins with the model in evaluation mode. Then, for the first training, other orders of epochs.
    """
    torch.set_num_threads(1)
    first, runs = inputs.trainings[0], []
    with ranks_of(student):
        try_parts(make(student, base_of(student) / "parts", first).trainer)
        for number, training in enumerate(inputs.trainings):
            made = make(student, base_of(student) / f"run-{number}", training, asleep=inputs.asleep)
            model, results, modes = made.model, [], []
            reduced, window = Collectives(), training.config["accumulation_steps"]
            watching = watching_windows(model, reduced, window, training.batches(student.ranks))
            before = written_bytes()
            with optimizer_steps(made), watching as early_bytes, reduced:
                for epoch in range(training.config["epochs"]):
                    model.eval()
                    results.append(epoch_of(made.trainer, epoch))
                    modes.append(is_training(model))
            after = written_bytes()
            runs.append(
                TrainedEpochs(
                    results=results,
                    batches=made.batches(),
                    validated=made.validated(),
                    modes=modes,
                    rates=made.rates(),
                    steps=steps_of(made.trainer),
                    weight=model.whole(),
                    frozen=bool((exact(model.gain, "the gain") == 1).all()),
                    logged_samples=made.logged_samples(),
                    reduced_gradients=reduced.reduced_bytes / model.whole().nbytes,
                    early_gradients=(early_bytes() or 0) / model.whole().nbytes,
                    written_bytes=None if before is None or after is None else after - before,
                )
            )
        orders = {
            "epoch 1, and again": _order(student, first, None, (1, 1)),
            "the rest of epoch 0": _order(student, first, 0, (0,)),
            "epoch 1 in the middle of epoch 0": _order(student, first, 0, (1,)),
        }
    return EpochsReply(runs=runs, orders=orders, loopback_bytes=system("loopback_bytes"))


def _order(student: Student, training: Training, begun: int | None, epochs: Sequence[int]) -> Order:
    """These epochs, if the loader has handed out one batch of the epoch `begun` before."""
    made = make(student, base_of(student) / f"from {begun} to {epochs}", training)
    if begun is not None:
        made.trainer.train_loader.set_epoch(begun)
        next(iter(made.trainer.train_loader))
    for epoch in epochs:
        made.trainer.train_epoch(epoch)
    return Order(batches=made.batches(), weight=made.model.whole())


def mixed(student: Student, inputs: Mixed) -> MixedReply:
    """Epochs in float16 or bfloat16, a validation, and with which batches steps were taken."""
    torch.set_num_threads(1)
    note, logged = notes()
    made = make(student, Path("mixed"), inputs.training, device=student.device, monitor=Sink(note))
    trainer, model = made.trainer, made.model
    scaler_of(trainer).set_growth_interval(inputs.growth)
    with optimizer_steps(made), watch_products(student.gpu) as products:
        results = [epoch_of(trainer, epoch) for epoch in range(inputs.training.config["epochs"])]
        of_training = products.dtypes()
    batches, taken, rates, windows = made.batches(), made.taken(), made.rates(), made.windows()
    even = make(student, Path("even"), _even(inputs.training), device=student.device)
    left = files_below("mixed")
    with watch_products(student.gpu) as products:
        validation = fields(trainer.validate(), ValidationResult, "validate()")
        of_validation = products.dtypes()
    return MixedReply(
        results=results,
        even=epoch_of(even.trainer, 0),
        validation=validation,
        products=[of_training, of_validation],
        parameters=str(exact(model.linear.weight, "the weight").dtype).removeprefix("torch."),
        batches=batches,
        taken=taken,
        rates=[*rates, rate_of(trainer)],
        weight=model.whole(),
        steps=steps_of(trainer),
        scale=scale_of(trainer),
        windows=windows,
        event_files=sum("tfevents" in name for name in left),
        saved=[name.rpartition("/")[2] for name in left if name.endswith(".pt")],
        logged=logged(),
    )


def _even(training: Training) -> Training:
    """The same with weights of zero and a learning rate that leaves them there: the loss of each sample is the
    logarithm of the number of classes, whatever the products are rounded to."""
    config: Settings = {**training.config, "epochs": 1, "learning_rate": 1e-12}
    return replace(training, weight=0 * training.weight, config=config)


class _Classifier(nn.Module):
    """Says what its inputs say, unless dropout is on."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(classes, classes, bias=False, dtype=torch.float64)
        self.linear.weight.data = torch.eye(classes, dtype=torch.float64)
        self.dropout = nn.Dropout(0.9)


def _classifier(classes: int, note: Callable[[object], None]) -> _Classifier:
    """What the model says with a graph belongs to other classes, and is noted."""

    def noting(model: _Classifier, x: Tensor) -> Tensor:
        output: Tensor = model.linear(model.dropout(x))
        if has_graph(output):
            note("graph")
            return output.roll(1, dims=1)
        return output

    class Noting(_Classifier):
        forward = method(noting)

    return Noting(classes)


@contextlib.contextmanager
def _watched_replicas(note: Callable[[object], None]) -> Iterator[None]:
    """Note each forward pass of a replica. A hook would miss `replica.forward(x)`."""
    original: Callable[..., object] = DistributedDataParallel.forward

    @function
    def noted(replica: DistributedDataParallel, *arguments: object, **options: object) -> object:
        note("call")
        return original(replica, *arguments, **options)

    def forward(replica: DistributedDataParallel, *arguments: object, **options: object) -> object:
        return noted(replica, *arguments, **options)

    DistributedDataParallel.forward = forward  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        DistributedDataParallel.forward = original  # type: ignore[method-assign]


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
        settings = student.module(CONFIG).TrainerConfig(
            output_dir=str(base_of(student) / "run"), epochs=inputs.epochs, dtype=inputs.dtype
        )
        (note, graphs), (begin, passes) = notes(), notes()
        model = _classifier(logits.shape[1], note)
        train = ResumableLoader(Indexed(logits.double(), classes), 4)

        def of_a_pass() -> Iterator[tuple[Tensor, Tensor]]:
            begin("pass")
            return iter(batches)

        trainer = student.module(TRAINER).ProductionTrainer(model, train, loader(of_a_pass), settings)
        KEPT.append(trainer)

        def validated(training: bool) -> Validated:
            model.train(training)
            model.linear.eval()
            before = [is_training(module) for module in modules_of(model)]
            result = fields(trainer.validate(), ValidationResult, "validate()")
            return Validated(result=result, before=before, modes=[is_training(each) for each in modules_of(model)])

        called, calls = notes()
        with _watched_replicas(called):
            in_training, in_evaluation = validated(True), validated(False)
        empty = ""
        if student.ranks == 1:
            nothing = student.module(TRAINER).ProductionTrainer(model, train, [], settings)
            empty = ending(nothing.validate)
    return ValidateReply(
        training=in_training,
        evaluation=in_evaluation,
        graphs=len(graphs()),
        replica_calls=len(calls()),
        passes=len(passes()),
        empty=empty,
    )
