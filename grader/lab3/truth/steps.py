"""The truth about steps of several ranks: synthetic profiles whose answer is known by how they were made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradebox.run.input_generator import InputGenerator

Profile = dict[str, list[float]]


def split(profile: Mapping[str, Any]) -> dict[str, float]:
    """A step's four parts in seconds, by the rule that the hand-out states."""
    data, compute, communication = (
        np.asarray(profile[f"{name}_seconds"], dtype=np.float64) for name in ("data", "compute", "communication")
    )
    return {
        "communication": float(communication.min()),
        "data": float(data.mean()),
        "imbalance": float((data + compute).max() - (data + compute).mean()),
        "compute": float(compute.mean()),
    }


def profile(generator: InputGenerator, *, ranks: int, communication: float, data: float, imbalance: float) -> Profile:
    """A step of which these shares are lost, and the rest is computation; of several ranks one, not the first, is the
    slow one.

    What the other ranks wait for it looks like communication.
    """
    step = generator.log_uniform(1e-3, 1.0)
    compute = step * (1 - communication - data - imbalance)
    if ranks == 1:
        return {
            "data_seconds": [step * data],
            "compute_seconds": [compute],
            "communication_seconds": [step * communication],
        }
    slow = generator.integer(1, ranks - 1)
    # The slowest rank has `imbalance` more than the mean, so the others have less.
    extra = [-imbalance * step / (ranks - 1)] * ranks
    extra[slow] = imbalance * step
    computes = [compute + each for each in extra]
    return {
        "data_seconds": [step * data] * ranks,
        "compute_seconds": computes,
        "communication_seconds": [step - step * data - each for each in computes],
    }


def uneven_profile(generator: InputGenerator, *, ranks: int, communication: float) -> Profile:
    """A step whose ranks differ in data and in compute, of which this share is communication proper."""
    work = [(generator.uniform(0.1, 1.0), generator.uniform(0.1, 1.0)) for _ in range(ranks)]
    scale = generator.log_uniform(1e-3, 1.0)
    slowest = max(data + compute for data, compute in work)
    step = slowest / (1 - communication)
    return {
        "data_seconds": [scale * data for data, _ in work],
        "compute_seconds": [scale * compute for _, compute in work],
        "communication_seconds": [scale * (step - data - compute) for data, compute in work],
    }


def tied_profiles(generator: InputGenerator) -> list[tuple[Profile, float, str]]:
    """Profiles with equal losses, or one just at the threshold, the threshold, and the bottleneck.

    Every figure is a power of two, so that whoever computes it finds the same.
    """
    unit = 2.0 ** generator.integer(-9, 0)

    def of(data: Sequence[float], compute: Sequence[float], communication: Sequence[float]) -> Profile:
        named = {"data": data, "compute": compute, "communication": communication}
        return {f"{name}_seconds": [unit * figure for figure in figures] for name, figures in named.items()}

    return [
        (of([0.25], [0.5], [0.25]), 0.125, "communication"),
        (of([0.25, 0.25], [0.25, 0.75], [0.5, 0.0]), 0.125, "data"),
        (of([0.0, 0.0], [0.25, 0.75], [0.75, 0.25]), 0.125, "communication"),
        (of([0.25], [0.75], [0.0]), 0.25, "data"),
        (of([0.0], [0.75], [0.25]), 0.25, "communication"),
        (of([0.0], [0.96875], [0.03125]), 0.0, "communication"),
    ]


def point(kind: str, size: int, batch: int, seconds: float, given: Profile) -> dict[str, Any]:
    """A `ScalingPoint` as plain values."""
    return {
        "device": "cuda",
        "backend": "nccl",
        "kind": kind,
        "world_size": size,
        "batch_size": batch,
        "step_seconds": seconds,
        "samples_per_second": batch / seconds,
        "profile": given,
    }
