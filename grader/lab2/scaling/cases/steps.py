"""Inputs of trainings by the document's call: default overflows, and gradients that float16 does not hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gradebox.run.input_generator import InputGenerator
from gradebox.sandbox.probe_types import Array, ProbeInputs
from grader.lab2.shared.cases import AmpResult


@dataclass(frozen=True, kw_only=True)
class StepsReply:
    """What was observed of a training; the fields are those of `RunReport`."""

    result: AmpResult
    before: list[list[float]]
    after: list[float]
    frozen: list[float]
    products: list[str]
    """Dtypes of the matrix products."""


@dataclass(frozen=True, kw_only=True)
class Steps(ProbeInputs[StepsReply], probe="lab2.scaling.steps"):
    """A linear classifier, trained in float16 with the arguments of the document and no others."""

    weight: Array
    inputs: Array
    labels: Array
    sizes: list[int]
    overflows_in_forward: Sequence[int] = ()
    epochs: int = 1


@dataclass(frozen=True)
class DefaultOverflow:
    """A training at the default scale in which some batches overflow."""

    steps: Steps
    overflows: list[bool]
    """Of each batch of an epoch."""


_FAR = 5e4
"""Times the other inputs: outputs are some hundred, and their gradients overflow once they are scaled."""


def default_overflow(generator: InputGenerator) -> DefaultOverflow:
    """Two epochs of batches, of which one overflows in forward and one in backward only."""
    generator = generator.shared("lab2.default overflow")
    features, classes, batches = generator.odd(5, 9), generator.odd(3, 7), generator.integer(5, 8)
    sizes, epochs = [generator.odd(3, 7) for _ in range(batches)], 2
    in_forward, in_backward = generator.shuffled(range(1, batches - 1))[:2]  # steps are taken before and after
    weight = generator.normal(classes, features) * np.float32(0.3)
    # So small that nothing else overflows at the default scale.
    inputs = generator.normal(sum(sizes), features) * np.float32(0.02)
    labels = np.array([generator.integer(0, classes - 1) for _ in range(sum(sizes))])
    # Of these the loss is finite, and only the gradients are not.
    rows = slice(sum(sizes[:in_backward]), sum(sizes[: in_backward + 1]))
    inputs[rows] *= _FAR
    labels[rows] = (inputs[rows] @ weight.T).argmin(axis=1)
    steps = Steps(
        weight=weight, inputs=inputs, labels=labels, sizes=sizes, overflows_in_forward=[in_forward], epochs=epochs
    )
    return DefaultOverflow(steps, [index in (in_forward, in_backward) for index in range(batches)])


def small_gradients(generator: InputGenerator) -> Steps:
    """One step from inputs that are the smallest numbers float16 has: gradients are far below them."""
    features, classes, samples = generator.odd(9, 15), generator.odd(3, 7), generator.odd(15, 31)
    weight = generator.normal(classes, features) * np.float32(0.3)
    inputs = np.asarray(generator.rng.integers(1, 3, (samples, features)) * 2.0**-24, dtype=np.float32)
    labels = np.array([generator.integer(0, classes - 1) for _ in range(samples)])
    return Steps(weight=weight, inputs=inputs, labels=labels, sizes=[samples])


WITHOUT = {Steps.probe: "the document's call, whose other inputs are those of lab2.scaling.train"}
