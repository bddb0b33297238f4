"""The states of `fit`, what validations say, and evaluation mode as a block."""

import enum
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from torch import nn

from labkit.results import ValidationResult


class Phase(enum.Enum):
    BEGIN = "begin"
    DECIDE = "decide"
    TRAIN = "train"
    ASSESS = "assess"
    KEEP = "keep"
    FINISHED = "finished"
    EARLY = "early"
    SIGNAL = "signal"


ENDS = (Phase.FINISHED, Phase.EARLY, Phase.SIGNAL)


class Verdict(NamedTuple):
    best: int | None
    """Position of the lowest loss."""
    in_vain: int
    """Epochs since."""


def judge(validations: Sequence[ValidationResult]) -> Verdict:
    numbers = [(each.loss, at) for at, each in enumerate(validations) if not math.isnan(each.loss)]
    if not numbers:
        return Verdict(None, len(validations))
    best = min(numbers)[1]
    return Verdict(best, len(validations) - 1 - best)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    before = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in before.items():
            module.training = mode
