"""Probes of Lab 2's loss scale by hand and of the training of the unstable model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from grader.lab2.probes.training import SPOILER, batches, flat, in_dtype, modes, one_thread
from grader.shared.probes.support import fields, made, plain
from labkit import data
from labkit.results import StabilityRun

STABILITY = "lab2_mixed_precision.stability_tests"
BRIGHT = 3e4
"""A pixel that float16 can hold, but not its product with a gradient."""


def loss_scale(student: Any, *, cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`DynamicLossScale` with each case's settings, updated by its overflows; the scale before and after each."""
    scales = []
    for case in cases:
        scale = made(student.module(STABILITY).DynamicLossScale, "DynamicLossScale()", **case["settings"])
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
        scale = None
        if case["scale"] is not None:
            scale = made(module.DynamicLossScale, "DynamicLossScale()", **case["scale"])
        # SGD: to Adam a gradient that was never unscaled looks like any other. At 0.2 outputs stay below 3; from 4 on,
        # the smallest gain that is to be trained in float16 (2^-14) would make them infinite.
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
        told = module.train_unstable(
            model,
            loader,
            case["epochs"],
            optimizer=optimizer,
            **in_dtype(case["dtype"]),
            **({} if scale is None else {"loss_scale": scale}),
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


def steps(
    student: Any,
    *,
    images: Tensor,
    sizes: Sequence[int],
    cases: Sequence[dict[str, Any]],
    **weights: Tensor,
) -> dict[str, Any]:
    """`train_unstable` of a model with these weights and a gain of 1, in evaluation mode at first.

    A case has `arguments` (epochs, dtype), `scale` (settings, or None), `rate` (of SGD; None: no optimizer is given),
    `moved` (true: the model comes on the CPU, and the device is given) and `troubles` (by batch: "bright": one pixel
    makes the gradient of the encoder's weight infinite, and that weight is 0; "spoiled": all pixels are infinite in
    float16).
    """
    one_thread()
    module = student.module(STABILITY)
    runs = []
    for case in cases:
        model = module.UnstableModel(1.0)
        for (_, parameter), name in zip(model.named_parameters(), ("w1", "b1", "w2", "b2"), strict=True):
            parameter.data = weights[name].clone()
        loader = batches(images.clone(), torch.zeros(len(images), dtype=torch.int64), sizes)
        for place, trouble in case.get("troubles", {}).items():
            if trouble == "bright":
                model.encoder[1].weight.data[:, 0] = 0
                loader[int(place)][0][:, 0, 0, 0] = BRIGHT
            else:
                loader[int(place)][0].fill_(SPOILER)
        if not case.get("moved"):
            model.to(student.device)
        model.eval()
        seen: list[bool] = []
        handle = model.register_forward_pre_hook(lambda model, _, seen=seen: seen.append(all(modes(model))))
        options: dict[str, Any] = {
            name: getattr(torch, value) if name == "dtype" else value for name, value in case["arguments"].items()
        }
        if case.get("moved"):
            options["device"] = student.device
        if case.get("rate") is not None:
            options["optimizer"] = torch.optim.SGD(model.parameters(), lr=case["rate"])
        if case.get("scale") is not None:
            options["loss_scale"] = made(module.DynamicLossScale, "DynamicLossScale()", **case["scale"])
        told = module.train_unstable(model, loader, **options)
        handle.remove()
        runs.append(
            {
                "result": fields(told, StabilityRun, "train_unstable()"),
                "training": all(seen),
                "asked": torch.device(student.device).type,
                "places": sorted({parameter.device.type for parameter in model.parameters()}),
                "after": flat(model),
            }
        )
    return {"runs": runs}
