"""Probes of Lab 2's training of the unstable model: on digits, by steps whose overflows are known, and beside tools."""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from unittest import mock

import torch
from torch import Tensor, nn

from gradebox.sandbox.probe_loader import Student
from grader.lab2.shared.probes import OVERFLOWING_INPUT, batches, dtype_of, flat, in_dtype, modes, one_thread
from grader.lab2.stability.cases.controls import UnstableStepsWithTools, UnstableWithTools
from grader.lab2.stability.cases.loss_scale import ScaleSettings
from grader.lab2.stability.cases.unstable import (
    WEIGHTS,
    GainCase,
    GainRun,
    StepsCase,
    StepsRun,
    Unstable,
    UnstableReply,
    UnstableSteps,
    UnstableStepsReply,
)
from grader.lab2.stability.probes.tools import NUMERICS, STABILITY
from grader.lab2.stability.tools import TOOLS
from grader.shared.probes.kept import function, notes
from grader.shared.probes.loaders import loader as loader_of
from grader.shared.probes.support import exact, fields, made
from labkit import data
from labkit.results import StabilityRun

_BRIGHT_PIXEL, _BRIGHT_IMAGE = 3e4, 1e3
"""Float16 can hold it, but not its product with a gradient."""


def _scale_options(module: ModuleType, settings: ScaleSettings | None) -> dict[str, object]:
    """The argument `loss_scale`, if there are settings for one."""
    return {} if settings is None else {"loss_scale": made(module.DynamicLossScale, "DynamicLossScale()", **settings)}


def digits(student: Student, inputs: Unstable) -> UnstableReply:
    """`train_unstable` on digits."""
    one_thread()
    return UnstableReply([_trained_on_digits(student, inputs, case) for case in inputs.cases])


def _trained_on_digits(student: Student, inputs: Unstable, case: GainCase) -> GainRun:
    module = student.module(STABILITY)
    images, labels = (values[inputs.order] for values in data.load("digits").tensors)
    torch.manual_seed(case.seed)
    model = module.UnstableModel(case.gain).to(student.device)
    note, noted = notes()
    before = _loss(model, images)
    # As one value each: thousands of numbers take long to note.
    handle = model.register_forward_pre_hook(function(lambda model, _: note(array("d", flat(model)).tobytes())))
    options = _scale_options(module, case.scale)
    # SGD: to Adam a gradient that was never unscaled looks like any other. At 0.2 outputs stay below 3; from 4 on,
    # the smallest gain that is to be trained in float16 (2^-14) would make them infinite.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    loader = batches(images, labels, inputs.sizes)
    run = module.train_unstable(model, loader, case.epochs, optimizer=optimizer, **in_dtype(case.dtype), **options)
    handle.remove()
    states: list[bytes] = [*noted(), array("d", flat(model)).tobytes()]
    return GainRun(
        result=fields(run, StabilityRun, "train_unstable()"),  # type: ignore[arg-type]
        finite=all(math.isfinite(value) for state in states for value in array("d", state)),
        moves=sum(earlier != later for earlier, later in itertools.pairwise(states)),
        names=[name for name, _ in model.named_parameters()],
        before=before,
        after=_loss(model, images),
    )


def _loss(model: nn.Module, images: Tensor) -> float | None:
    """Of these samples in float32, measured by ourselves; None if it is no number."""
    images = images.to(next(model.parameters()).device)
    with torch.no_grad():
        loss = float(nn.functional.mse_loss(model(images), images))
    return loss if math.isfinite(loss) else None


def steps(student: Student, inputs: UnstableSteps) -> UnstableStepsReply:
    """`train_unstable` of a model with these weights and a gain of 1, at first in evaluation mode, with gradients."""
    one_thread()
    return UnstableStepsReply([_trained(student, inputs, case) for case in inputs.cases])


def _trained(student: Student, inputs: UnstableSteps, case: StepsCase) -> StepsRun:
    module = student.module(STABILITY)
    model = module.UnstableModel(1.0)
    for (_, parameter), name in zip(model.named_parameters(), WEIGHTS, strict=True):
        parameter.data = inputs.weights[name].clone()
    loader = batches(inputs.images.clone(), torch.zeros(len(inputs.images), dtype=torch.int64), inputs.sizes)
    for position, where in (case.overflows or {}).items():
        if where == "backward":
            model.encoder[1].weight.data[:, 0] = 0
            loader[int(position)][0][:, 0, 0, 0] = _BRIGHT_PIXEL
        elif where == "decoder":
            model.decoder[0].weight.data.zero_()
            loader[int(position)][0].fill_(_BRIGHT_IMAGE)
        else:
            loader[int(position)][0][1:] = OVERFLOWING_INPUT  # the batch's first image alone is harmless
    if not case.device_given:
        model.to(student.device)
    model.eval()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)  # of something before, which counts for nothing
    note, training = notes()
    handle = model.register_forward_pre_hook(function(lambda model, _: note(all(modes(model)))))
    options: dict[str, object] = {
        name: dtype_of(str(value)) if name == "dtype" else value for name, value in case.arguments.items()
    }
    if case.device_given:
        options["device"] = student.device
    if case.rate is not None:
        options["optimizer"] = torch.optim.SGD(model.parameters(), lr=case.rate)
    options |= _scale_options(module, case.scale)
    passes = [loader]
    # In the reverse order once training has begun, as a loader that shuffles has another order.
    turn = model.register_forward_pre_hook(function(lambda *_: passes.append(loader[::-1])))
    run = module.train_unstable(model, loader_of(lambda: iter(passes[-1])) if case.turned else loader, **options)
    handle.remove()
    turn.remove()
    return StepsRun(
        result=fields(run, StabilityRun, "train_unstable()"),  # type: ignore[arg-type]
        training=all(training()),
        device=torch.device(student.device).type,
        places=sorted({exact(parameter, "a parameter").device.type for parameter in model.parameters()}),
        after=flat(model),
    )


@contextmanager
def _replaced(student: Student, names: Sequence[str]) -> Iterator[None]:
    """The student's training uses the course's tools of these names, wherever it imports its own from."""
    tools = {name: TOOLS[name] for name in names}
    modules = [student.module(STABILITY), student.module(NUMERICS)]
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


def digits_with_tools(student: Student, inputs: UnstableWithTools) -> UnstableReply:
    """`train_unstable` on digits."""
    fields = inputs.fields_by_name()
    with _replaced(student, fields.pop("replaced")):
        return digits(student, Unstable(**fields))


def steps_with_tools(student: Student, inputs: UnstableStepsWithTools) -> UnstableStepsReply:
    """`train_unstable` of given weights."""
    fields = inputs.fields_by_name()
    with _replaced(student, fields.pop("replaced")):
        return steps(student, UnstableSteps(**fields))
