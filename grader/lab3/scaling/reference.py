"""What Lab 3's scaling analysis must say of steps: profiles whose answer is known by how they were made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradebox.run.input_generator import InputGenerator
from grader.lab3.scaling.cases.analysis import (
    RANKS,
    Bottlenecks,
    Profile,
    loose_profile,
    profile,
    profiles_of,
    uneven_profile,
)
from grader.shared.dimensions import Case, Dimension, Space

LOSSES = ("communication", "data", "imbalance")
"""What a step can lose, in the order in which equal losses are named."""
DEFAULT_THRESHOLD = 0.2


def split(profile: Mapping[str, Any]) -> dict[str, float]:
    """A step's four parts in seconds, by the rule that the hand-out states.

    `Any`: the profile may be one of the results of a submission.
    """
    data, compute, communication = (
        np.asarray(profile[f"{name}_seconds"], dtype=np.float64) for name in ("data", "compute", "communication")
    )
    return {
        "communication": float(communication.min()),
        "data": float(data.mean()),
        "imbalance": float((data + compute).max() - (data + compute).mean()),
        "compute": float(compute.mean()),
    }


def bottleneck(parts: Mapping[str, float], threshold: float = DEFAULT_THRESHOLD) -> str:
    """The largest loss, if it is so large a share of the step; otherwise "compute"."""
    name = max(LOSSES, key=lambda loss: parts[loss])
    return name if parts[name] >= threshold * sum(parts.values()) else "compute"


def shared_steps(generator: InputGenerator) -> list[tuple[Profile, float]]:
    """Steps of one rank and of several, and the share of communication that was put into each."""
    made = []
    for imbalance in (0.0, 0.0, 0.3):
        share, ranks = generator.uniform(0.05, 0.5), generator.integer(2, 6)
        lost = imbalance * (1 - share)
        made.append((profile(generator, ranks=ranks, communication=share, data=0.1, imbalance=lost), share))
    for ranks in (1, generator.odd(3, 7)):
        share = generator.uniform(0.05, 0.5)
        made.append((uneven_profile(generator, ranks=ranks, communication=share), share))
    measured = loose_profile(generator, ranks=generator.integer(3, 6))
    parts = split(measured)
    return [*made, (measured, parts["communication"] / sum(parts.values()))]


@dataclass(frozen=True)
class Named:
    """A step, the threshold that is given, and its bottleneck."""

    profile: Profile
    threshold: float | None
    name: str


def _largest(case: Case) -> str:
    threshold = DEFAULT_THRESHOLD if case["threshold"] is None else case["threshold"]
    name = bottleneck(split(case["profile"]), threshold)
    return "none" if name == "compute" else name


_LOSS = Dimension("loss", (*LOSSES, "none"), _largest)
_RANKS = {"one": 1, "two": 2, "more": 5}
_DRAWN: dict[str, Sequence[object]] = {
    _LOSS.name: _LOSS.values,
    "threshold": (None, 0.1, 0.3),
    RANKS.name: RANKS.values,
}
"""What decides on the bottleneck: the largest loss, if any, the limit, and the number of ranks."""
_APART = {("loss=imbalance", "ranks=one"): "one rank waits for nobody"}
SPACES = (
    Space(
        probes=(Bottlenecks.probe,),
        cases=profiles_of,
        dimensions=(
            _LOSS,
            Dimension(
                "threshold",
                ("the default", "given"),
                lambda case: "the default" if case["threshold"] is None else "given",
            ),
            RANKS,
        ),
        apart=_APART,
    ),
)
"""Here, and not in `cases.py`, for submissions may see what probes import: whoever reads the bottleneck of a step has
solved the task."""


def named_steps(generator: InputGenerator) -> list[Named]:
    """Steps with a bottleneck and without one, at the default threshold and at others."""
    made = []
    for name in generator.shuffled([*LOSSES, "compute"] * 2):
        # At least 0.3 for the culprit, 0.27 at most for one that is above the limit of 0.2, too, 0.1 for the third.
        shares = {each: generator.uniform(0.02, 0.1) for each in LOSSES}
        if name != "compute":
            second = generator.shuffled([each for each in LOSSES if each != name])[0]
            shares |= {second: generator.uniform(0.22, 0.27), name: generator.uniform(0.3, 0.45)}
        made.append(Named(profile(generator, ranks=generator.integer(2, 6), **shares), None, name))
    culprit = generator.shuffled(LOSSES)[0]
    shares = dict.fromkeys(LOSSES, 0.03) | {culprit: 0.12}
    for least in generator.shuffled([0.08, 0.16]):
        made.append(Named(profile(generator, ranks=3, **shares), least, culprit if least < 0.12 else "compute"))
    for row in generator.cases(_DRAWN, 3, _can_be):
        loss, least, ranks = row["loss"], row["threshold"], _RANKS[row["ranks"]]
        # A loss of 0.24 is above the default limit of 0.2, and above or below one that is given.
        shares = dict.fromkeys(LOSSES, 0.03) | ({loss: 0.24} if loss != "none" else {})
        shares |= {"imbalance": 0.0} if ranks == 1 else {}
        name = "compute" if least == 0.3 or loss == "none" else loss
        made.append(Named(profile(generator, ranks=ranks, **shares), least, name))
    return [*made, *generator.shuffled(_tied(generator))]


def _can_be(row: Mapping[str, object]) -> bool:
    """Whether the values of a row can be together."""
    values = {f"{name}={value}" for name, value in row.items()}
    return not any(values.issuperset(pair) for pair in _APART)


def _tied(generator: InputGenerator) -> list[Named]:
    """Steps with equal losses, or with one just at the threshold.

    Every figure is a power of two, so that everybody who computes it gets the same.
    """
    unit = 2.0 ** generator.integer(-9, 0)

    def of(data: Sequence[float], compute: Sequence[float], communication: Sequence[float]) -> Profile:
        return {
            "data_seconds": [unit * figure for figure in data],
            "compute_seconds": [unit * figure for figure in compute],
            "communication_seconds": [unit * figure for figure in communication],
        }

    return [
        Named(of([0.25], [0.5], [0.25]), 0.125, "communication"),
        Named(of([0.25, 0.25], [0.25, 0.75], [0.5, 0.0]), 0.125, "data"),
        Named(of([0.0, 0.0], [0.25, 0.75], [0.75, 0.25]), 0.125, "communication"),
        Named(of([0.25], [0.75], [0.0]), 0.25, "data"),
        Named(of([0.0], [0.75], [0.25]), 0.25, "communication"),
        Named(of([0.0], [0.96875], [0.03125]), 0.0, "communication"),
    ]
