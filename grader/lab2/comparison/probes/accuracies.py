"""Probes of Lab 2's accuracies on handwritten digits: what the student measured, and what the course measures."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gradebox.sandbox.probe_loader import Student
from grader.lab2.comparison.cases.measuring import (
    Accuracies,
    AccuraciesReference,
    AccuraciesReply,
    ReferenceAccuracies,
    TrainedModel,
)
from grader.lab2.comparison.probes.measuring import COMPARISON, TRAINING_BATCH, Batch, reporting
from grader.lab2.shared.probes import classifier, dtype_of, one_thread
from grader.shared.probes.calls import on_device
from grader.shared.probes.facts import dtype, is_training
from grader.shared.probes.kept import function, notes
from grader.shared.probes.record import watch_products
from grader.shared.probes.support import mapping, plain
from labkit import data


def _digits(order: Tensor, wrong: Tensor) -> tuple[list[Batch], list[Batch]]:
    """Training batches in this order, and test batches in which some labels (`wrong`, one per image) are shifted."""
    images, labels = data.load("digits").tensors
    train = [(images[part], labels[part]) for part in order.split(TRAINING_BATCH)]
    images, labels = data.load("digits", split="test").tensors
    return train, list(zip(images.split(57), ((labels + wrong) % 10).split(57), strict=True))


def accuracies(student: Student, inputs: Accuracies) -> AccuraciesReply:
    """`measure_accuracies` on the handwritten digits, some of the test labels being wrong."""
    one_thread()
    train, test = _digits(inputs.order, inputs.wrong)
    note, noted = notes()

    created = itertools.count()

    @function
    def create_model() -> nn.Module:
        number = next(created)
        return reporting(
            classifier(inputs.first, inputs.second),
            lambda model, output: note((number, is_training(model), plain(dtype(output), ""))),
        )

    dtypes = [dtype_of(name) for name in inputs.precisions]
    with watch_products(student.gpu) as products:
        returned = student.module(COMPARISON).measure_accuracies(
            create_model, train, test, dtypes=dtypes, epochs=inputs.epochs, **on_device(student)
        )
        flops = products.flops()
    # Models may all be created before the first is trained, so a pass belongs to its model, not to the newest one.
    passes: dict[int, list[tuple[bool, str]]] = {}
    for number, training, name in noted():
        passes.setdefault(number, []).append((training, name))
    models = [
        TrainedModel(
            training=sorted({dtype for training, dtype in each if training}),
            evaluation=sorted({dtype for training, dtype in each if not training}),
            batches=sum(training for training, _ in each),
        )
        for each in passes.values()
    ]
    by_name: dict[str, object] = plain(mapping(returned, "measure_accuracies()"), "measure_accuracies()")
    return AccuraciesReply(accuracies=by_name, models=models, product_flops=flops)


def accuracies_reference(student: Student, inputs: AccuraciesReference) -> ReferenceAccuracies:
    """In a child without any student's code: the accuracies on the test images, and on the others."""
    one_thread()
    train, test = _digits(inputs.order, inputs.wrong)
    model = classifier(inputs.first, inputs.second)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(inputs.epochs):
        for images, labels in train:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    return ReferenceAccuracies(test=_accuracy(model, test), train=_accuracy(model, train))


def _accuracy(model: nn.Module, batches: Sequence[Batch]) -> float:
    with torch.no_grad():
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in batches)
    return right / sum(len(y) for _, y in batches)
