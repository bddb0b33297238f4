"""The truth about steps of several ranks: synthetic profiles whose answer is known by how they were made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradebox.fresh import Fresh

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


def profile(fresh: Fresh, *, ranks: int, communication: float, data: float, imbalance: float) -> Profile:
    """A step of which these shares are lost, and the rest is computation; one rank, not the first, is the slow one.

    What the other ranks wait for it looks like communication.
    """
    step = fresh.log_uniform(1e-3, 1.0)
    compute = step * (1 - communication - data - imbalance)
    slow = fresh.integer(1, ranks - 1)
    # The slowest rank has `imbalance` more than the mean, so the others have less.
    extra = [-imbalance * step / (ranks - 1)] * ranks
    extra[slow] = imbalance * step
    computes = [compute + each for each in extra]
    return {
        "data_seconds": [step * data] * ranks,
        "compute_seconds": computes,
        "communication_seconds": [step - step * data - each for each in computes],
    }


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
