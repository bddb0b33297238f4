"""What several criteria of Lab 2 send to their probes, and what these report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from gradebox.run.input_generator import InputGenerator
from gradebox.sandbox.probe_types import Array, ProbeInputs
from grader.shared.readings import ProductCount

PRECISIONS = ("float32", "float16", "bfloat16")
NOT_GIVEN = "not given"
"""The value of a dimension for an argument that a call leaves at its default."""
OR_NOT = (NOT_GIVEN, "given")

DIGITS = 1438
"""Images that a training on the handwritten digits goes through."""
DIGITS_EPOCHS = 6


class AmpResult(TypedDict, total=False):
    """An `AmpTraining` that a submission returned: each field may be anything that JSON can say.

    If it is none, there is only `wrong_return`, the reason (`grader.shared.results`).
    """

    wrong_return: str
    device: object
    dtype: object
    losses: object
    optimizer_steps: object
    skipped_steps: object
    final_scale: object
    seconds: object
    peak_bytes: object


@dataclass(frozen=True)
class ForwardPass:
    """What a model noted in a forward pass."""

    samples: int
    training: list[bool]
    """Of each module, whether it was in training mode."""
    gradients: bool
    """Whether a graph was recorded."""
    dtypes: list[str]
    """Of the parameters."""
    parameters: list[float]
    """All that are trained."""


@dataclass(frozen=True)
class BackwardPass:
    """What passed the middle of a model in a backward pass."""

    autocast: bool
    largest: float
    """The largest gradient, without its sign."""


@dataclass(frozen=True, kw_only=True)
class DigitsReply:
    """What was observed of a training on digits."""

    accuracy: float
    """The share of all digits that the trained model gets right, in float32 on the CPU."""
    products: list[ProductCount] = field(default_factory=list)
    """The matrix products of the submission's training."""


@dataclass(frozen=True, kw_only=True)
class DigitsReference(ProbeInputs[DigitsReply], probe="lab2.shared.digits_reference"):
    """A training on the handwritten digits, by a loop of the course in float32."""

    first: Array
    """Weights of the classifier's first layer."""
    second: Array
    order: Array
    """Of the images."""
    epochs: int


@dataclass(frozen=True, kw_only=True)
class Digits(ProbeInputs[DigitsReply], probe="lab2.shared.digits"):
    """The same training by `train_with_amp`, from the same weights."""

    first: Array
    second: Array
    order: Array
    epochs: int
    dtype: str


def digits(generator: InputGenerator) -> DigitsReference:
    """A training on the handwritten digits of this grading, the same in each precision: one reference serves all."""
    generator = generator.shared("lab2.digits")
    hidden = generator.odd(61, 83)
    return DigitsReference(
        first=generator.normal(hidden, 64) / np.float32(8),
        second=generator.normal(10, hidden) / np.float32(8),
        order=np.array(generator.shuffled(list(range(DIGITS)))),
        epochs=DIGITS_EPOCHS,
    )


@dataclass(frozen=True, kw_only=True)
class ClearedDigits(ProbeInputs[DigitsReply], probe="lab2.shared.cleared_digits"):
    """`Digits` with gradients that are cleared after each step, as a control experiment."""

    first: Array
    second: Array
    order: Array
    epochs: int
    dtype: str


@dataclass(frozen=True)
class PassesReply:
    """What was observed of a training whose loader has new batches in each pass."""

    batches: list[int]
    """Those that passed the model in training, in order: of the loader's first pass 0, 1, ..., then they go on."""
    weight: Array | None
    """What `Passes.weight` became by `train_with_amp`."""


@dataclass(frozen=True, kw_only=True)
class Passes(ProbeInputs[PassesReply], probe="lab2.shared.passes"):
    """A training by `train_with_amp`, `train_unstable` or `measure_accuracies`."""

    function: str
    weight: Array
    """Of a classifier of three classes; the last column is its bias."""
    seed: int
    """Of what is in the batches (`batch_of`)."""
    batches: int
    """Of one pass."""
    epochs: int


def passes(generator: InputGenerator, function: str) -> Passes:
    """The training of this grading."""
    generator = generator.shared("lab2.passes")
    return Passes(
        function=function,
        weight=generator.normal(_CLASSES, _PIXELS + 1) * np.float32(0.05),
        seed=generator.integer(0, 2**31),
        batches=generator.integer(2, 4),
        epochs=generator.integer(2, 3),
    )


BATCH_STEP = 1 / 64
"""Between the first pixels of two batches, by which a model knows them: float16 holds each."""
_SAMPLES, _PIXELS, _CLASSES = 5, 64, 3


def batch_of(seed: int, number: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Images [samples, 64] and classes of a batch, by its number: the same in the probe and in the judge."""
    drawn = np.random.default_rng([seed, number])
    images = (drawn.integers(0, 32, (_SAMPLES, _PIXELS)) * BATCH_STEP).astype(np.float32)
    images[:, 0] = number * BATCH_STEP
    return images, drawn.integers(0, _CLASSES, _SAMPLES)


SPACES = ()
WITHOUT = {
    Passes.probe: "which batches a training sees; lab2.scaling.train draws the rest",
    ClearedDigits.probe: "the digits again, as a control experiment",
    DigitsReference.probe: "our own training, without the submission",
    Digits.probe: "one training on real data per precision, for its accuracy alone",
}
