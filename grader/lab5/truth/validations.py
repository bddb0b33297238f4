"""Validations of every kind: outputs that are given, how the ranks share them, which targets count; and the truth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradebox.fresh import Fresh
from grader.lab5.truth.tokens import IGNORED, cross_entropy
from grader.shared.cases import full_rows

DIMENSIONS: dict[str, tuple[Any, ...]] = {
    "ranks": (1, 2),
    "kind": ("classes", "sequences", "numbers"),
    "counted": ("all", "some", "a batch without"),
    "shares": ("equal", "unequal", "a rank without"),
    "dtype": ("float64", "float32", "bfloat16"),
}
_SIZES = {
    (1, "equal"): [[3, 3, 3]],
    (1, "unequal"): [[5, 2, 4, 1]],
    (2, "equal"): [[3, 3], [3, 3]],
    (2, "unequal"): [[5, 2, 1], [4]],
    (2, "a rank without"): [[], [4, 2, 3]],
}


@dataclass(frozen=True)
class Validation:
    """Outputs by sample, one rank's samples after the other's, in batches of `sizes[rank]`."""

    outputs: Any
    """[N, classes], or [N, length, classes] of sequences."""
    targets: Any
    sizes: list[list[int]]
    dtype: str

    def given(self) -> dict[str, Any]:
        """The probe's arguments."""
        return {**vars(self)}

    @property
    def ranks(self) -> int:
        return len(self.sizes)

    @property
    def numbers(self) -> bool:
        return bool(np.issubdtype(np.asarray(self.targets).dtype, np.floating))

    def told(self) -> str:
        """In words, for messages."""
        kind = "numbers" if self.numbers else "sequences" if np.asarray(self.targets).ndim > 1 else "classes"
        ignored = "" if self.numbers else f", {int((np.asarray(self.targets) == IGNORED).sum())} of them {IGNORED}"
        return f"validate() in {self.dtype} on batches of {self.sizes} samples by rank, targets are {kind}{ignored}"

    def truth(self) -> tuple[int, float, float | None]:
        """What counts, its mean loss, and the share of it that is right."""
        outputs, targets = np.asarray(self.outputs, np.float64), np.asarray(self.targets)
        if self.numbers:
            return len(targets), float(0.5 * np.square(outputs - targets).sum(axis=1).mean()), None
        counts = targets != IGNORED
        losses, _ = cross_entropy(outputs[counts], targets[counts])
        right = float(np.mean(outputs[counts].argmax(axis=1) == targets[counts]))
        return int(counts.sum()), float(losses.mean()), right if targets.ndim == 1 else None


def draw(fresh: Fresh) -> list[Validation]:
    """Four of them, some on one rank and the others on two."""
    return [_validation(fresh, row) for row in full_rows(fresh, DIMENSIONS, 4, _can_be)]


def _can_be(row: Mapping[str, Any]) -> bool:
    """All numbers count; and one rank without samples has nothing to validate."""
    whole = row["kind"] != "numbers" or row["counted"] == "all"
    return whole and (row["ranks"], row["shares"]) != (1, "a rank without")


def _validation(fresh: Fresh, row: dict[str, Any]) -> Validation:
    sizes = _SIZES[row["ranks"], row["shares"]]
    samples, classes, length = sum(map(sum, sizes)), fresh.integer(3, 4), fresh.integer(2, 4)
    shape = (samples, length) if row["kind"] == "sequences" else (samples,)
    # To the last bit in bfloat16, too, and no two classes alike.
    quarters = np.array([fresh.integer(-15, 14) for _ in range(int(np.prod(shape)) * classes)])
    outputs = quarters.reshape(*shape, classes) / 4 + np.arange(classes) / 64
    if row["kind"] == "numbers":
        targets: Any = np.array([fresh.integer(-15, 15) for _ in range(samples * classes)]).reshape(samples, -1) / 4
        return Validation(outputs.astype(np.float32), targets.astype(np.float32), sizes, row["dtype"])
    targets = np.array([fresh.integer(0, classes - 1) for _ in range(int(np.prod(shape)))]).reshape(shape)
    if row["counted"] == "some":
        targets.reshape(-1)[1::2] = IGNORED
    elif row["counted"] == "a batch without":
        targets[: next(batches[0] for batches in sizes if batches)] = IGNORED
    return Validation(outputs.astype(np.float32), targets, sizes, row["dtype"])
