"""Probes of Lab 2's numerical tools: formats, softmax, gradients, what is not finite, and the loss scale."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from gradebox.sandbox.probe_loader import Student
from grader.lab2.shared.probes import dtype_of, flat, modes
from grader.lab2.stability.cases.gradients import Classify, ClassifyReply
from grader.lab2.stability.cases.loss_scale import LossScales, LossScalesReply, Refused, RefusedReply
from grader.lab2.stability.cases.softmax import Softmax, SoftmaxReply, SoftmaxResult
from grader.lab2.stability.cases.tools import (
    Blocks,
    FailingTrace,
    FormatsReply,
    Nonfinite,
    NonfiniteReply,
    Trace,
    TracedCase,
    TraceNonfinite,
    TraceReply,
)
from grader.shared.probes.endings import refused as is_refused
from grader.shared.probes.facts import attributes_of, buffers_of, gradient, hooks_of, parameters_of
from grader.shared.probes.kept import function, notes
from grader.shared.probes.record import mark, reading, watch_names, without_backward
from grader.shared.probes.support import fields, made, plain, sequence, tensor
from labkit.results import NumberFormat

NUMERICS = "lab2_mixed_precision.numerics"
STABILITY = "lab2_mixed_precision.stability_tests"
_VALUES = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_LARGE = 3e38
"""So near to the largest number of float32 that neither a sum nor a norm of some of them is finite."""

Output: TypeAlias = "Tensor | tuple[Tensor, Output]"
"""What a block of a network returns."""


def formats(student: Student) -> FormatsReply:
    """What `describe_formats` says."""
    rows = sequence(student.module(NUMERICS).describe_formats(), "describe_formats()")
    described = [fields(row, NumberFormat, f"describe_formats()[{i}]") for i, row in enumerate(rows)]
    return FormatsReply(described)  # type: ignore[arg-type]


def softmax(student: Student, inputs: Softmax) -> SoftmaxReply:
    """`stable_softmax` of the tensor that each case names, in the case's dtype and along its dim, if it has one."""
    results = []
    with watch_names(student.gpu) as names, without_backward("stable_softmax()"):
        for case in inputs.cases:
            x: Tensor = inputs.tensors[case.name].to(student.device, dtype_of(case.dtype))
            if case.transposed:
                x = x.transpose(0, -1)
            before, begun = x.clone(), None if student.gpu is None else mark(student.gpu)
            returned = student.module(NUMERICS).stable_softmax(x, *([] if case.dim is None else [case.dim]))
            copied: Any = None if begun is None else reading(student.gpu, "copied_bytes", begun)
            output = tensor(returned, "stable_softmax()")
            values, unchanged = output.detach().cpu().double(), bool(torch.equal(x, before))
            results.append(
                SoftmaxResult(
                    dtype=plain(output.dtype, ""),
                    values=values,
                    unchanged=unchanged,
                    copied_bytes=copied,
                )
            )
        softmaxes, attentions = names.containing("softmax"), names.containing("attention")
    return SoftmaxReply(results=results, softmaxes=softmaxes, attentions=attentions)


class Block(nn.Module):
    """Named linear layers one after the other; then the block's own factor, which no layer of it sees.

    Args:
        names: of the layers.
        width: of the layers.
        factors: by which they multiply, where not 1.
        own: by which the block multiplies the result.
        form: of what it returns: "tensor", "pair", or "nested": (x, (x, side * x)).
        side: for the last one.
    """

    def __init__(
        self, names: Sequence[str], width: int, factors: dict[str, float], *, own: float, form: str, side: float
    ) -> None:
        super().__init__()
        for name in names:
            layer = nn.Linear(width, width, bias=False)
            layer.weight.data = factors.get(name, 1.0) * torch.eye(width)
            self.add_module(name, layer)
        self.own, self.form, self.side = own, form, side

    def forward(self, inputs: Output) -> Output:
        x = inputs[0] if isinstance(inputs, tuple) else inputs
        for layer in self.children():
            x = layer(x)
        x = x * self.own if self.own != 1 else x
        forms: dict[str, Output] = {"tensor": x, "pair": (x, x), "nested": (x, (x, x * self.side))}
        return forms[self.form]


class Network(nn.Module):
    """Blocks one after the other, and a batch norm that counts and averages in training mode; then its own factor."""

    def __init__(self, blocks: dict[str, Block], width: int, *, own: float) -> None:
        super().__init__()
        self.averages = nn.BatchNorm1d(width)
        for name, block in blocks.items():
            self.add_module(name, block)
        self.blocks, self.own = list(blocks), own

    def forward(self, x: Tensor) -> Tensor:
        self.averages(x)
        output: Output = x
        for name in self.blocks:
            output = self.get_submodule(name)(output)
        x = output[0] if isinstance(output, tuple) else output
        return x * self.own if self.own != 1 else x


class Failing(nn.Module):
    """A layer that cannot be run."""

    def forward(self, x: Output) -> Output:
        raise RuntimeError("this layer cannot be run")


def _network(blocks: Blocks, width: int, case: TracedCase) -> Network:
    factors, owns = case.factors or {}, case.owns or {}
    form, side = case.form or "tensor", 1.0 if case.side is None else case.side
    modules = {}
    for name, layers in blocks.items():
        local = {layer: factors.get(f"{name}.{layer}", 1.0) for layer in layers}
        modules[name] = Block(layers, width, local, own=float(owns.get(name, 1.0)), form=form, side=side)
    return Network(modules, width, own=float(owns.get("", 1.0)))


def nonfinite(student: Student, inputs: Nonfinite) -> NonfiniteReply:
    """`find_nonfinite` of layers whose gradients are planted."""
    answers = []
    for case in inputs.cases:
        model = _planted(inputs, case, student.device)
        names = sequence(student.module(NUMERICS).find_nonfinite(model), "find_nonfinite()")
        answers.append(plain(names, "find_nonfinite()"))
    return NonfiniteReply(answers=answers)


def _planted(inputs: Nonfinite, kinds: dict[str, str], device: str) -> nn.Module:
    width = inputs.width
    model = nn.Sequential()
    for name, layers in inputs.blocks.items():
        parts = {layer: nn.Linear(width, width, bias=False) for layer in layers}
        model.add_module(name, nn.Sequential(collections.OrderedDict(parts)))
    model.to(device)
    for name, parameter in model.named_parameters():
        kind = kinds.get(name)
        if kind == "none":
            continue
        gradient = torch.full_like(parameter, _LARGE if kind == "large" else 0.5)
        if kind in _VALUES:
            gradient[width // 2, width // 3] = _VALUES[kind]
        if kind == "weight":
            parameter.data[width // 2, width // 3] = math.inf
        parameter.grad = gradient
    return model


def trace(student: Student, inputs: TraceNonfinite) -> TraceReply:
    """`trace_nonfinite` of networks in mixed modes that have gradients already, and a hook of their own."""
    module = student.module(NUMERICS)
    traces = [_traced(student, module, inputs, case) for case in inputs.cases]
    failures = [_failing_trace(student, module, inputs, training=training) for training in (True, False)]
    return TraceReply(traces=traces, failures=failures)


def _traced(student: Student, module: ModuleType, inputs: TraceNonfinite, case: TracedCase) -> Trace:
    note, ran = notes()
    network = _network(inputs.blocks, inputs.width, case).to(student.device)
    model = _used(network, inputs.blocks, training=case.training, note=note)
    before, hooks = _state(model), hooks_of(model)
    options = {"dtype": dtype_of(case.dtype)} if case.dtype else {}
    name = module.trace_nonfinite(model, inputs.inputs.to(student.device), **options)
    return Trace(
        name=plain(name, "trace_nonfinite()"),
        hooks=hooks_of(model) - hooks,
        changed=_changed(before, model),
        other_modes=any(list(mode) != before.mode for mode in ran()),
    )


def _failing_trace(student: Student, module: ModuleType, inputs: TraceNonfinite, *, training: bool) -> FailingTrace:
    model = _network(inputs.blocks, inputs.width, TracedCase())
    model.get_submodule(list(inputs.blocks)[-1]).add_module("failing", Failing())
    _used(model.to(student.device), inputs.blocks, training=training, note=notes()[0])
    before, hooks = _state(model), hooks_of(model)
    raised = False
    try:
        module.trace_nonfinite(model, inputs.inputs.to(student.device))
    except RuntimeError:
        raised = True
    return FailingTrace(raised=raised, hooks=hooks_of(model) - hooks, changed=_changed(before, model))


def _used(
    model: Network, blocks: Iterable[str], *, training: bool, note: Callable[[tuple[bool, ...]], None]
) -> Network:
    """The model in mixed modes, with gradients, and a hook at its batch norm, which notes the modes of each pass."""
    model.train(training)
    model.get_submodule(next(iter(blocks))).train(not training)
    model.averages.register_forward_hook(function(lambda *_: note(tuple(modes(model)))))
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.5)
    return model


class _State(NamedTuple):
    """All of a model that a diagnosis must leave alone."""

    mode: list[bool]
    parameters: list[float]
    gradients: list[object]
    buffers: list[object]
    attributes: list[object]


def _state(model: nn.Module) -> _State:
    return _State(
        mode=modes(model),
        parameters=flat(model),
        gradients=[None if (found := gradient(each)) is None else found.tolist() for each in parameters_of(model)],
        buffers=[buffer.tolist() for buffer in buffers_of(model)],
        attributes=attributes_of(model),
    )


def _changed(before: _State, model: nn.Module) -> list[str]:
    """What of a model's state is no longer as it was."""
    return [kind for kind, old, new in zip(_State._fields, before, _state(model), strict=True) if old != new]


def classify(student: Student, inputs: Classify) -> ClassifyReply:
    """`classify_gradients` of each case."""
    answers = []
    for case in inputs.cases:
        gradients = {name: value.to(student.device, dtype_of(case.dtype)) for name, value in case.gradients.items()}
        reference = {name: value.to(student.device) for name, value in case.reference.items()}
        options = {} if case.share is None else {"vanished_share": case.share}
        answer = student.module(NUMERICS).classify_gradients(gradients, reference, **options)
        answers.append(plain(answer, "classify_gradients()"))
    return ClassifyReply(answers)


def loss_scale(student: Student, inputs: LossScales) -> LossScalesReply:
    """`DynamicLossScale` with each case's settings, updated by its overflows; the scale before and after each."""
    scales = []
    for case in inputs.cases:
        scale = made(student.module(STABILITY).DynamicLossScale, "DynamicLossScale()", **case.settings)
        values: list[object] = [plain(scale.scale, "DynamicLossScale.scale")]
        for overflow in case.overflows:
            scale.update(bool(overflow))
            values.append(plain(scale.scale, "DynamicLossScale.scale"))
        scales.append(values)
    return LossScalesReply(scales)


def refused(student: Student, inputs: Refused) -> RefusedReply:
    """Whether `DynamicLossScale` and `train_unstable` refuse these arguments."""
    module = student.module(STABILITY)
    model = module.UnstableModel(1.0).to(student.device)
    loader = [(torch.ones(3, 1, 8, 8), torch.zeros(3, dtype=torch.int64))]
    return RefusedReply(
        scales=[is_refused(lambda: module.DynamicLossScale(**settings)) for settings in inputs.scales],  # noqa: B023
        epochs=[is_refused(lambda: module.train_unstable(model, loader, epochs)) for epochs in inputs.epochs],  # noqa: B023
    )
