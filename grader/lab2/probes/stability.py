"""Probes of Lab 2's numerical tools: formats, softmax, finding and naming what is not finite, loss scale, the model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradebox.sandbox.student import WrongReturn
from grader.lab2.probes.training import batches, flat, one_thread
from grader.shared.probes.support import fields, plain, sequence
from labkit import data
from labkit.results import NumberFormat, StabilityRun

NUMERICS = "lab2_mixed_precision.numerics"
STABILITY = "lab2_mixed_precision.stability_tests"
_VALUES = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf"), "large": 1e30}


def formats(student: Any) -> dict[str, Any]:
    """What `describe_formats` says."""
    told = sequence(student.module(NUMERICS).describe_formats(), "describe_formats()")
    return {"formats": [fields(row, NumberFormat, f"describe_formats()[{i}]") for i, row in enumerate(told)]}


def softmax(student: Any, *, cases: Sequence[dict[str, Any]], **inputs: Tensor) -> dict[str, Any]:
    """`stable_softmax` of the tensor that each case names, in the case's dtype and along its dim."""
    results = []
    for case in cases:
        x = inputs[case["name"]].to(student.device, getattr(torch, case["dtype"]))
        told = student.module(NUMERICS).stable_softmax(x, case["dim"])
        if not isinstance(told, Tensor):
            raise WrongReturn(f"stable_softmax() returned {type(told).__name__}, expected a tensor")
        # As float64, which every dtype here fits into; the dtype it came in is told beside it.
        results.append({"dtype": plain(told.dtype, ""), "values": told.detach().cpu().double()})
    return {"results": results}


class Block(nn.Module):
    """Linear layers one after the other, told by name; the last returns a pair if `pair`."""

    def __init__(self, names: Sequence[str], width: int, factors: dict[str, float], *, pair: bool) -> None:
        super().__init__()
        for name in names:
            layer = nn.Linear(width, width, bias=False)
            layer.weight.data = factors.get(name, 1.0) * torch.eye(width)
            self.add_module(name, layer)
        self.pair = pair

    def forward(self, x: Any) -> Any:
        x = x[0] if isinstance(x, tuple) else x
        for layer in self.children():
            x = layer(x)
        return (x, x) if self.pair else x


class Failing(nn.Module):
    """A layer that cannot be run."""

    def forward(self, x: Any) -> Any:
        raise RuntimeError("this layer cannot be run")


def _network(blocks: dict[str, Sequence[str]], width: int, factors: dict[str, float], *, pair: bool) -> nn.Sequential:
    model = nn.Sequential()
    for name, layers in blocks.items():
        local = {layer: factors.get(f"{name}.{layer}", 1.0) for layer in layers}
        model.add_module(name, Block(layers, width, local, pair=pair))
    return model


def nonfinite(
    student: Any, *, blocks: dict[str, Sequence[str]], width: int, cases: Sequence[dict[str, str]]
) -> dict[str, Any]:
    """`find_nonfinite` of a network whose gradients are planted: each case names parameters and what to put there."""
    answers = []
    for case in cases:
        model = _network(blocks, width, {}, pair=False).to(student.device)
        for name, parameter in model.named_parameters():
            if case.get(name) == "none":
                continue
            gradient = torch.full_like(parameter, 0.5)
            if name in case:
                gradient[width // 2, width // 3] = _VALUES[case[name]]
            parameter.grad = gradient
        told = sequence(student.module(NUMERICS).find_nonfinite(model), "find_nonfinite()")
        answers.append(plain(told, "find_nonfinite()"))
    return {"answers": answers}


def trace(
    student: Any, *, blocks: dict[str, Sequence[str]], width: int, cases: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """`trace_nonfinite` of networks in which some layers multiply by a factor; also of one that fails."""
    module = student.module(NUMERICS)
    answers = []
    for case in cases:
        model = _network(blocks, width, case["factors"], pair=case["pair"]).to(student.device)
        model.train(case["training"])
        before = flat(model)
        inputs = torch.ones(3, width, device=student.device)
        told = module.trace_nonfinite(model, inputs, dtype=getattr(torch, case["dtype"]))
        answers.append(
            {
                "name": plain(told, "trace_nonfinite()"),
                "hooks": _hooks(model),
                "unchanged": flat(model) == before and model.training == case["training"],
            }
        )
    failing = nn.Sequential(nn.Identity(), Failing())
    raised = False
    try:
        module.trace_nonfinite(failing, torch.ones(3, width, device=student.device))
    except RuntimeError:
        raised = True
    return {"answers": answers, "hooks_after_failure": _hooks(failing), "raised": raised}


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
        options = {"vanished_share": case["share"]} if "share" in case else {}
        told = student.module(NUMERICS).classify_gradients(gradients, reference, **options)
        answers.append(plain(told, "classify_gradients()"))
    return {"answers": answers}


def loss_scale(student: Any, *, cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`DynamicLossScale` with each case's settings, updated by its overflows; the scale before and after each."""
    scales = []
    for case in cases:
        scale = student.module(STABILITY).DynamicLossScale(**case["settings"])
        seen = [plain(scale.scale, "DynamicLossScale.scale")]
        for overflow in case["overflows"]:
            scale.update(bool(overflow))
            seen.append(plain(scale.scale, "DynamicLossScale.scale"))
        scales.append(seen)
    return {"scales": scales}


def unstable(student: Any, *, sizes: Sequence[int], order: Tensor, cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`train_unstable` on digits with each case's `gain`, `dtype` and `scale` (settings, or None)."""
    one_thread()
    module = student.module(STABILITY)
    images, labels = data.load("digits").tensors
    loader = batches(images[order], labels[order], sizes)
    runs = []
    for case in cases:
        torch.manual_seed(case["seed"])
        model = module.UnstableModel(case["gain"]).to(student.device)
        before: list[list[float]] = []
        loss = _loss(model, images[order])

        def watch(model: nn.Module, args: object, before: list[list[float]] = before) -> None:
            before.append(flat(model))

        handle = model.register_forward_pre_hook(watch)
        scale = module.DynamicLossScale(**case["scale"]) if case["scale"] is not None else None
        # SGD: to Adam a gradient that was never unscaled looks like any other. At 0.2 outputs stay below 3; from 4 on,
        # the smallest gain that is to be trained in float16 (2^-14) would make them infinite.
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
        told = module.train_unstable(
            model, loader, case["epochs"], dtype=getattr(torch, case["dtype"]), loss_scale=scale, optimizer=optimizer
        )
        handle.remove()
        states = [*before, flat(model)]
        finite = [all(abs(value) < float("inf") for value in state) for state in states]
        runs.append(
            {
                "result": fields(told, StabilityRun, "train_unstable()"),
                "finite": all(finite),
                "moves": sum(one != other for one, other in itertools.pairwise(states)),
                "names": [name for name, _ in model.named_parameters()],
                "before": loss,
                "after": _loss(model, images[order]),
            }
        )
    return {"runs": runs}


def _loss(model: nn.Module, images: Tensor) -> float | None:
    """Of these samples in float32, measured by ourselves; None where it is no number."""
    images = images.to(next(model.parameters()).device)
    with torch.no_grad():
        loss = float(nn.functional.mse_loss(model(images), images))
    return loss if math.isfinite(loss) else None
