"""Inputs of trainings whose loader has other batches in each epoch, as one that shuffles or augments has."""

from __future__ import annotations

from dataclasses import dataclass

from gradebox.run.input_generator import InputGenerator
from gradebox.sandbox.probe_types import ProbeInputs


@dataclass(frozen=True)
class PassesReply:
    """The batches that were trained on, in order: those of the loader's first pass are 0, 1, ..., then go on."""

    batches: list[int]


@dataclass(frozen=True, kw_only=True)
class Passes(ProbeInputs[PassesReply], probe="lab2.passes.trained"):
    """A training by `train_with_amp`, `train_unstable` or `measure_accuracies`."""

    function: str
    batches: int
    """Of one pass."""
    epochs: int


def passes(generator: InputGenerator, function: str) -> Passes:
    """The training of this grading."""
    generator = generator.shared("lab2.passes")
    return Passes(function=function, batches=generator.integer(2, 4), epochs=generator.integer(2, 3))


SPACES = ()
WITHOUT = {Passes.probe: "which batches a training sees; lab2.scaling.train draws the rest"}
