"""Probes of Lab 2's numerical tools: formats, softmax, finding and naming what is not finite."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from grader.lab2.probes.training import flat, modes
from grader.shared.probes.record import watch_names
from grader.shared.probes.support import fields, plain, sequence, tensor
from labkit.results import NumberFormat

NUMERICS = "lab2_mixed_precision.numerics"
_VALUES = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
_LARGE = 3e38
"""So near to the largest number of float32 that neither a sum nor a norm of some of them is finite."""


def formats(student: Any) -> dict[str, Any]:
    """What `describe_formats` says."""
    told = sequence(student.module(NUMERICS).describe_formats(), "describe_formats()")
    return {"formats": [fields(row, NumberFormat, f"describe_formats()[{i}]") for i, row in enumerate(told)]}


def softmax(student: Any, *, cases: Sequence[dict[str, Any]], **inputs: Tensor) -> dict[str, Any]:
    """`stable_softmax` of the tensor that each case names, in the case's dtype and along its dim, if it has one.

    `turned`: its first and its last dimension are exchanged, so that it does not lie in memory in one piece.
    """
    results = []
    with watch_names(student.gpu) as names:
        for case in cases:
            x = inputs[case["name"]].to(student.device, getattr(torch, case["dtype"]))
            if case.get("turned"):
                x = x.transpose(0, -1)
            before = x.clone()
            told = student.module(NUMERICS).stable_softmax(x, *([case["dim"]] if "dim" in case else []))
            told = tensor(told, "stable_softmax()")
            # As float64, which every dtype here fits into; the dtype it came in is told beside it.
            values = told.detach().cpu().double()
            same = bool(torch.equal(x, before))
            results.append({"dtype": plain(told.dtype, ""), "values": values, "unchanged": same})
        ran = names.containing("softmax")
    return {"results": results, "softmaxes": ran}


class Block(nn.Module):
    """Linear layers one after the other, told by name; then the block's own doing, which no layer of it sees.

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

    def forward(self, x: Any) -> Any:
        x = x[0] if isinstance(x, tuple) else x
        for layer in self.children():
            x = layer(x)
        x = x * self.own if self.own != 1 else x
        return {"tensor": x, "pair": (x, x), "nested": (x, (x, x * self.side))}[self.form]


class Network(nn.Module):
    """Blocks one after the other, beside a batch norm that counts and averages in training mode; then its own doing."""

    def __init__(self, blocks: dict[str, Block], width: int, *, own: float) -> None:
        super().__init__()
        self.averages = nn.BatchNorm1d(width)
        for name, block in blocks.items():
            self.add_module(name, block)
        self.blocks, self.own = list(blocks), own

    def forward(self, x: Any) -> Any:
        self.averages(x)
        for name in self.blocks:
            x = self.get_submodule(name)(x)
        x = x[0] if isinstance(x, tuple) else x
        return x * self.own if self.own != 1 else x


class Failing(nn.Module):
    """A layer that cannot be run."""

    def forward(self, x: Any) -> Any:
        raise RuntimeError("this layer cannot be run")


def _network(blocks: dict[str, Sequence[str]], width: int, case: dict[str, Any]) -> Network:
    """Blocks of these layers; `case` may have `factors` of layers, `owns` of blocks (the model itself is ""), `form`
    and `side`."""
    factors, owns = case.get("factors", {}), case.get("owns", {})
    made = {}
    for name, layers in blocks.items():
        local = {layer: factors.get(f"{name}.{layer}", 1.0) for layer in layers}
        own = float(owns.get(name, 1.0))
        made[name] = Block(layers, width, local, own=own, form=case.get("form", "tensor"), side=case.get("side", 1.0))
    return Network(made, width, own=float(owns.get("", 1.0)))


def nonfinite(
    student: Any, *, blocks: dict[str, Sequence[str]], width: int, cases: Sequence[dict[str, str]]
) -> dict[str, Any]:
    """`find_nonfinite` of layers whose gradients are planted: each case names parameters and what to put there.

    "weight": the parameter itself is infinite, its gradient is not.
    """
    answers = []
    for case in cases:
        model = nn.Sequential()
        for name, layers in blocks.items():
            parts = {layer: nn.Linear(width, width, bias=False) for layer in layers}
            model.add_module(name, nn.Sequential(collections.OrderedDict(parts)))
        model.to(student.device)
        for name, parameter in model.named_parameters():
            kind = case.get(name)
            if kind == "none":
                continue
            gradient = torch.full_like(parameter, _LARGE if kind == "large" else 0.5)
            if kind in _VALUES:
                gradient[width // 2, width // 3] = _VALUES[kind]
            if kind == "weight":
                parameter.data[width // 2, width // 3] = float("inf")
            parameter.grad = gradient
        told = sequence(student.module(NUMERICS).find_nonfinite(model), "find_nonfinite()")
        answers.append(plain(told, "find_nonfinite()"))
    return {"answers": answers}


def trace(
    student: Any, *, blocks: dict[str, Sequence[str]], width: int, inputs: Tensor, cases: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """`trace_nonfinite` of networks in which some layers or blocks multiply by a factor; also of some that fail.

    Their modules are in mixed modes, there are gradients already, and one of them has a hook of its own.
    """
    module = student.module(NUMERICS)
    answers = []
    for case in cases:
        ran: list[list[bool]] = []
        model = _used(_network(blocks, width, case).to(student.device), blocks, training=case["training"], ran=ran)
        before, hooks = _state(model), _hooks(model)
        options = {"dtype": getattr(torch, case["dtype"])} if "dtype" in case else {}
        told = module.trace_nonfinite(model, inputs.to(student.device), **options)
        answers.append(
            {
                "name": plain(told, "trace_nonfinite()"),
                "hooks": _hooks(model) - hooks,
                "changed": _changed(before, model),
                "other_modes": any(one != before["mode"] for one in ran),
            }
        )
    failures = []
    for training in (True, False):
        model = _network(blocks, width, {})
        model.get_submodule(list(blocks)[-1]).add_module("failing", Failing())
        _used(model.to(student.device), blocks, training=training, ran=[])
        before, hooks = _state(model), _hooks(model)
        raised = False
        try:
            module.trace_nonfinite(model, inputs.to(student.device))
        except RuntimeError:
            raised = True
        failures.append({"raised": raised, "hooks": _hooks(model) - hooks, "changed": _changed(before, model)})
    return {"answers": answers, "failures": failures}


def _used(model: Network, blocks: Iterable[str], *, training: bool, ran: list[list[bool]]) -> Network:
    """The model in mixed modes, with gradients, and a hook at its batch norm, which adds the modes of each pass."""
    model.train(training)
    model.get_submodule(next(iter(blocks))).train(not training)
    model.averages.register_forward_hook(lambda *_: ran.append(modes(model)))
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.5)
    return model


def _state(model: nn.Module) -> dict[str, Any]:
    """All of a model that a diagnosis must leave alone."""
    return {
        "mode": modes(model),
        "parameters": flat(model),
        "gradients": [None if one.grad is None else one.grad.tolist() for one in model.parameters()],
        "buffers": [one.tolist() for one in model.buffers()],
    }


def _changed(before: dict[str, Any], model: nn.Module) -> list[str]:
    """What of a model's state is no longer as it was."""
    after = _state(model)
    return [kind for kind in before if before[kind] != after[kind]]


def _hooks(model: nn.Module) -> int:
    return sum(
        len(hooks)
        for module in model.modules()
        for hooks in (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
    )


def classify(student: Any, *, cases: Sequence[dict[str, Any]], **tensors: Tensor) -> dict[str, Any]:
    """`classify_gradients`: each case names its gradients and references by parameter."""
    answers = []
    for case in cases:
        gradients, reference = (
            {name: tensors[key].to(student.device) for name, key in case[part].items()}
            for part in ("gradients", "reference")
        )
        gradients = {name: value.to(getattr(torch, case["dtype"])) for name, value in gradients.items()}
        options = {"vanished_share": case["share"]} if "share" in case else {}
        told = student.module(NUMERICS).classify_gradients(gradients, reference, **options)
        answers.append(plain(told, "classify_gradients()"))
    return {"answers": answers}
