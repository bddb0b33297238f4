"""The probe of trainings whose loader has other batches in each epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from gradebox.sandbox.probe_loader import Student
from grader.lab2.passes.cases import Passes, PassesReply
from grader.lab2.shared.probes import AMP, one_thread
from grader.shared.probes.calls import on_device

_STEP = 1 / 64
"""Between the pixels of two batches: float16 holds each."""
_SAMPLES = 5

Batch = tuple[Tensor, Tensor]


class Turning:
    """A loader each pass of which has batches of its own, that say which they are."""

    def __init__(self, batches: int) -> None:
        self.batches, self.passes = batches, 0

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[Batch]:
        first = self.passes * self.batches
        self.passes += 1
        return iter([_batch(number) for number in range(first, first + self.batches)])


def _batch(number: int) -> Batch:
    return torch.full((_SAMPLES, 1, 8, 8), number * _STEP), torch.zeros(_SAMPLES, dtype=torch.int64)


def trained(student: Student, inputs: Passes) -> PassesReply:
    """The model notes what it is trained on, whoever fetched it."""
    one_thread()
    torch.manual_seed(0)
    seen: list[int] = []
    train: dict[str, Callable[[], object]] = {
        "train_with_amp": lambda: student.module(AMP).train_with_amp(
            _noting(_classifier(), seen).to(student.device), Turning(inputs.batches), inputs.epochs
        ),
        "train_unstable": lambda: _train_unstable(student, inputs, seen),
        "measure_accuracies": lambda: student.module("lab2_mixed_precision.precision_comparison").measure_accuracies(
            lambda: _noting(_classifier(), seen),
            Turning(inputs.batches),
            [_batch(0)],
            dtypes=[torch.float32],
            epochs=inputs.epochs,
            **on_device(student),
        ),
    }
    train[inputs.function]()
    return PassesReply(batches=seen)


def _train_unstable(student: Student, inputs: Passes, seen: list[int]) -> object:
    module = student.module("lab2_mixed_precision.stability_tests")
    model = _noting(module.UnstableModel(1.0), seen).to(student.device)
    return module.train_unstable(model, Turning(inputs.batches), inputs.epochs)


def _classifier() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))


def _noting(model: nn.Module, seen: list[int]) -> nn.Module:
    def note(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        if module.training:
            seen.append(round(float(arguments[0].flatten()[0]) / _STEP))

    model.register_forward_pre_hook(note)
    return model
