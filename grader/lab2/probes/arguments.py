"""Probes of Lab 2's arguments: what is taken where nothing was given, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from grader.lab2.probes.training import AMP, Watched, flat, linear, one_thread
from grader.shared.probes.calls import on_device
from grader.shared.probes.endings import refused
from grader.shared.probes.support import fields
from labkit.results import AmpTraining, PrecisionResult

STABILITY = "lab2_mixed_precision.stability_tests"
COMPARISON = "lab2_mixed_precision.precision_comparison"


def _arguments(call: dict[str, Any]) -> dict[str, Any]:
    """A call's arguments, with the dtype that is meant."""
    return {name: getattr(torch, value) if name == "dtype" else value for name, value in call.items()}


def train(
    student: Any,
    *,
    weight: Tensor,
    inputs: Tensor,
    labels: Tensor,
    runs: Sequence[dict[str, Any]],
    refusals: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """`train_with_amp` of a linear classifier on one batch, with nothing but each run's arguments.

    Then whether it refuses those of each of `refusals`.
    """
    one_thread()
    module = student.module(AMP)
    found = []
    for run in runs:
        model = Watched(linear(weight), nn.Identity()).to(student.device)
        result = module.train_with_amp(model, [(inputs, labels)], **_arguments(run))
        found.append({"result": fields(result, AmpTraining, "train_with_amp()"), "after": flat(model)})

    def refuse(call: dict[str, Any]) -> object:
        return module.train_with_amp(linear(weight).to(student.device), [(inputs, labels)], **_arguments(call))

    return {"runs": found, "refused": [refused(lambda: refuse(call)) for call in refusals]}  # noqa: B023


def stability_refused(student: Any, *, scales: Sequence[dict[str, Any]], epochs: Sequence[int]) -> dict[str, Any]:
    """Whether `DynamicLossScale` refuses each of `scales`, and `train_unstable` each of `epochs`.

    The caller puts arguments among them that must be taken.
    """
    module = student.module(STABILITY)
    model = module.UnstableModel(1.0).to(student.device)
    loader = [(torch.ones(3, 1, 8, 8), torch.zeros(3, dtype=torch.int64))]
    return {
        "scales": [refused(lambda: module.DynamicLossScale(**one)) for one in scales],  # noqa: B023
        "epochs": [refused(lambda: module.train_unstable(model, loader, one)) for one in epochs],  # noqa: B023
    }


def comparison_refused(
    student: Any, *, compared: Sequence[dict[str, Any]], concluded: Sequence[Sequence[str]]
) -> dict[str, Any]:
    """Whether `compare_precisions` refuses each of `compared`, and `conclude` results of these precisions.

    The caller puts arguments among them that must be taken.
    """
    module = student.module(COMPARISON)

    def compare(call: dict[str, Any]) -> object:
        accuracies = dict.fromkeys(call["precisions"], 0.9)
        counts = {name: call[name] for name in ("steps", "warmup") if name in call}
        batch = torch.ones(4, 8), torch.zeros(4, dtype=torch.int64)
        return module.compare_precisions(
            accuracies, lambda: nn.Linear(8, 3), lambda: batch, **counts, **on_device(student)
        )

    def conclude(names: Sequence[str]) -> object:
        row: dict[str, Any] = {"device": "cuda", "step_seconds": 1.0, "samples_per_second": 4.0}
        return module.conclude([PrecisionResult(**row, dtype=name, peak_bytes=100, accuracy=0.9) for name in names])

    return {
        "compared": [refused(lambda: compare(call)) for call in compared],  # noqa: B023
        "concluded": [refused(lambda: conclude(names)) for names in concluded],  # noqa: B023
    }
