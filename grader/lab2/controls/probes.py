"""Probes of control experiments: gradients are cleared after each optimizer step, or a student's tools replaced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest import mock

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from gradebox.sandbox.probe_loader import Student
from grader.lab2.comparison.cases.measuring import Accuracies, AccuraciesReply
from grader.lab2.comparison.probes import measuring
from grader.lab2.controls.cases import ClearedAccuracies, ClearedDigits, UnstableStepsWithTools, UnstableWithTools
from grader.lab2.shared import probes
from grader.lab2.shared.cases import Digits, DigitsReply
from grader.lab2.stability import probes as stability
from grader.lab2.stability.cases.unstable import Unstable, UnstableReply, UnstableSteps, UnstableStepsReply


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


def find_nonfinite(model: nn.Module) -> list[str]:
    """Names of the parameters whose gradients are not finite."""
    gradients = ((name, parameter.grad) for name, parameter in model.named_parameters())
    return [name for name, gradient in gradients if gradient is not None and not torch.isfinite(gradient).all()]


def trace_nonfinite(model: nn.Module, inputs: Tensor, *, dtype: torch.dtype = torch.float16) -> str | None:
    """The first module of the unstable model to return something that is not finite: it has no buffers, and no
    module of it returns anything but a tensor.
    """
    names: list[str] = []

    def watch(name: str, module: nn.Module) -> torch.utils.hooks.RemovableHandle:
        def note(_: nn.Module, arguments: object, output: Tensor) -> None:
            if not torch.isfinite(output).all():
                names.append(name)

        return module.register_forward_hook(note)

    handles = [watch(name, module) for name, module in model.named_modules()]
    try:
        with torch.no_grad(), torch.autocast(inputs.device.type, dtype=dtype, enabled=dtype != torch.float32):
            model(inputs)
    finally:
        for handle in handles:
            handle.remove()
    return names[0] if names else None


class DynamicLossScale:
    """The loss scale by the rule of its docstring."""

    def __init__(
        self,
        initial_scale: float = 2.0**16,
        *,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
    ) -> None:
        self.scale = float(initial_scale)
        self.growth_factor, self.backoff_factor = growth_factor, backoff_factor
        self.growth_interval = growth_interval
        self._good_steps = 0

    def update(self, overflow: bool) -> None:
        """A step has ended, with or without an overflow."""
        self._good_steps = 0 if overflow else self._good_steps + 1
        if overflow:
            self.scale *= self.backoff_factor
        elif self._good_steps == self.growth_interval:
            self.scale, self._good_steps = self.scale * self.growth_factor, 0


_TOOLS = {tool.__name__: tool for tool in (find_nonfinite, trace_nonfinite, DynamicLossScale)}


@contextmanager
def _replaced(student: Student, names: Sequence[str]) -> Iterator[None]:
    """The student's training uses the course's tools of these names, wherever it imports its own from."""
    tools = {name: _TOOLS[name] for name in names}
    modules = [student.module(stability.STABILITY), student.module(stability.NUMERICS)]
    patches = [
        mock.patch.object(module, name, tool)
        for module in modules
        for name, tool in tools.items()
        if hasattr(module, name)
    ]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


def unstable(student: Student, inputs: UnstableWithTools) -> UnstableReply:
    """`train_unstable` on digits."""
    fields = inputs.fields_by_name()
    with _replaced(student, fields.pop("replaced")):
        return stability.unstable(student, Unstable(**fields))


def unstable_steps(student: Student, inputs: UnstableStepsWithTools) -> UnstableStepsReply:
    """`train_unstable` of given weights."""
    fields = inputs.fields_by_name()
    with _replaced(student, fields.pop("replaced")):
        return stability.unstable_steps(student, UnstableSteps(**fields))
