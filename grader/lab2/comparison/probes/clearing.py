"""Probes of control experiments: trainings in which gradients are cleared after each optimizer step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from gradebox.sandbox.probe_loader import Student
from grader.lab2.comparison.cases.clearing import ClearedAccuracies, ClearedDigits
from grader.lab2.comparison.cases.measuring import Accuracies, AccuraciesReply
from grader.lab2.comparison.probes import measuring
from grader.lab2.shared import probes
from grader.lab2.shared.cases import Digits, DigitsReply


@contextmanager
def _cleared() -> Iterator[None]:
    """No gradient outlives a step of an optimizer in here."""

    def clear(optimizer: torch.optim.Optimizer, *_: object) -> None:
        optimizer.zero_grad()

    handle = register_optimizer_step_post_hook(clear)
    try:
        yield
    finally:
        handle.remove()


def digits(student: Student, inputs: ClearedDigits) -> DigitsReply:
    """`train_with_amp` on digits."""
    with _cleared():
        return probes.digits(student, Digits(**inputs.fields_by_name()))


def accuracies(student: Student, inputs: ClearedAccuracies) -> AccuraciesReply:
    """`measure_accuracies` on digits."""
    with _cleared():
        return measuring.accuracies(student, Accuracies(**inputs.fields_by_name()))
