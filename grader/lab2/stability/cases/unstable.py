"""Inputs of the training of the unstable model: single steps, and whole trainings on digits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from gradebox.run.input_generator import InputGenerator
from gradebox.sandbox.probe_types import Array, ProbeInputs
from grader.lab2.shared.cases import DIGITS, NOT_GIVEN, OR_NOT, PRECISIONS
from grader.lab2.stability.cases.loss_scale import ScaleSettings
from grader.shared.dimensions import Dimension, Space

# --- train_unstable, step by step -------------------------------------------------------------------------------------


class StabilityResult(TypedDict):
    """A `StabilityRun` that a submission returned: each field may be anything that JSON can say."""

    device: object
    dtype: object
    gain: object
    losses: object
    scales: object
    optimizer_steps: object
    skipped_steps: object
    nonfinite_parameters: object
    nonfinite_layer: object


class UnstableArguments(TypedDict, total=False):
    """Arguments of `train_unstable`: those that are there."""

    dtype: str
    epochs: int


WEIGHTS = ("w1", "b1", "w2", "b2")
"""Of encoder and decoder."""


@dataclass(frozen=True, kw_only=True)
class StepsCase:
    """One training of the unstable model with a gain of 1."""

    arguments: UnstableArguments
    scale: ScaleSettings | None = None
    """Of a `DynamicLossScale`; None: none is given."""
    rate: float | None = None
    """Of SGD; None: no optimizer is given."""
    turned: bool = False
    """Epochs after the first go through the batches in the reverse order."""
    device_given: bool = False
    """The model comes on the CPU, and the device is an argument."""
    overflows: Mapping[str, str] | None = None
    """By position of the batch, where it overflows. "backward": one pixel makes the gradient of the encoder's weight
    infinite, and that weight is 0. "decoder": only the
    gradient of the decoder's weight is, which is 0. "forward": all pixels but those of its first image are infinite in
    float16."""

    @property
    def skipped(self) -> int | None:
        """The position of the one batch that overflows."""
        return next((int(position) for position in self.overflows or {}), None)


@dataclass(frozen=True, kw_only=True)
class StepsRun:
    """What one training came to."""

    result: StabilityResult
    training: bool
    """Whether all modules were in training mode in each forward pass."""
    device: str
    """Where it was to run."""
    places: list[str]
    """Where the parameters are afterwards."""
    after: list[float]


@dataclass(frozen=True)
class UnstableStepsReply:
    """What each training came to."""

    runs: list[StepsRun]


@dataclass(frozen=True, kw_only=True)
class UnstableSteps(ProbeInputs[UnstableStepsReply], probe="lab2.stability.unstable.steps"):
    """Trainings of the unstable model from these weights; it comes in evaluation mode."""

    weights: dict[str, Array]
    """By `WEIGHTS`."""
    images: Array
    sizes: list[int]
    cases: list[StepsCase]


UNSTABLE = Space(
    probes=(UnstableSteps.probe,),
    cases=lambda request: request.params["cases"],
    dimensions=(
        Dimension("dtype", PRECISIONS, lambda case: case["arguments"].get("dtype", "float16")),
        Dimension("optimizer", ("default", "SGD"), lambda case: "default" if case["rate"] is None else "SGD"),
        Dimension("scale", ("none", "given"), lambda case: "given" if case["scale"] else "none"),
        Dimension(
            "device", ("of the model", "given"), lambda case: "given" if case["device_given"] else "of the model"
        ),
        Dimension("epochs", OR_NOT, lambda case: OR_NOT["epochs" in case["arguments"]]),
        Dimension(
            "overflow",
            ("none", "backward", "forward"),
            lambda case: next(iter((case["overflows"] or {}).values()), "none"),
        ),
    ),
    apart={
        ("overflow=backward", "dtype=float32"): "only float16 overflows in backward at that scale",
        ("overflow=backward", "dtype=bfloat16"): "only float16 overflows in backward at that scale",
        **{
            (
                "overflow=backward",
                f"{name}={value}",
            ): "which parameters overflow there is known of one scale; the rest is asked with what overflows in forward"
            for name, value in (
                ("optimizer", "default"),
                ("scale", "none"),
                ("device", "given"),
                ("epochs", NOT_GIVEN),
            )
        },
    },
)


@dataclass(frozen=True)
class DrawnSteps:
    """The trainings of this grading, by what they are about."""

    inputs: UnstableSteps
    exact: Sequence[StepsCase]
    """In float32, with Adam and with SGD."""
    overflowing: Sequence[StepsCase]
    """In float16, in backward first and in forward first."""
    others: Sequence[StepsCase]
    """In the other precisions: what overflows in forward in float16 does so in backward only."""
    crossed: Sequence[StepsCase]
    """In which whatever a caller chooses meets everything else."""


def unstable_steps(generator: InputGenerator) -> DrawnSteps:
    """Trainings whose single steps are judged."""
    sizes = [generator.odd(7, 9), generator.odd(9, 11), generator.odd(3, 5)]
    weights: dict[str, NDArray[np.float32]] = {
        "w1": generator.normal(32, 64) * np.float32(0.1),
        "b1": generator.normal(32) * np.float32(0.1),
        "w2": generator.normal(64, 32) * np.float32(0.2),
        "b2": generator.normal(64) * np.float32(0.1),
    }
    images = generator.normal(sum(sizes), 1, 8, 8) * np.float32(0.5)
    float32: UnstableArguments = {"dtype": "float32", "epochs": generator.integer(2, 3)}
    rate = generator.uniform(0.05, 0.2)
    exact = [
        StepsCase(arguments=float32, device_given=True),
        StepsCase(arguments=float32, rate=rate, scale={"initial_scale": 2.0 ** generator.integer(3, 8)}),
    ]
    overflowing = [
        StepsCase(
            arguments={"epochs": 2},
            turned=True,
            rate=1e-4,
            scale={"initial_scale": 4.0},
            overflows={"0": "backward", "1": "forward"},
        ),
        StepsCase(
            arguments={},
            rate=1e-4,
            scale={"initial_scale": 2.0**12},
            overflows={"0": "forward", "1": "decoder"},
        ),
    ]
    # Forward overflows there in float16 only, backward at this scale in every precision.
    others = [
        StepsCase(
            arguments={"epochs": 1, "dtype": dtype},
            rate=1e-9,
            scale={"initial_scale": 2.0**127},
            overflows={"0": "forward"},
        )
        for dtype in ("bfloat16", "float32")
    ]
    rows = generator.cases(UNSTABLE.values({"overflow": ("none", "forward")}), 2, _allowed)
    crossed = [_crossed(generator, row) for row in rows]
    inputs = UnstableSteps(
        weights=dict(weights), images=images, sizes=sizes, cases=[*exact, *overflowing, *others, *crossed]
    )
    return DrawnSteps(inputs, exact, overflowing, others, crossed)


def _allowed(row: Mapping[str, str]) -> bool:
    return row["overflow"] == "none" or row["dtype"] == "float16"


def _crossed(generator: InputGenerator, row: Mapping[str, str]) -> StepsCase:
    arguments: UnstableArguments = {"dtype": row["dtype"]}
    if row["epochs"] == "given":
        arguments["epochs"] = generator.integer(1, 3)
    return StepsCase(
        arguments=arguments,
        device_given=row["device"] == "given",
        rate=generator.uniform(0.05, 0.2) if row["optimizer"] == "SGD" else None,
        scale={"initial_scale": 2.0 ** generator.integer(3, 8)} if row["scale"] == "given" else None,
        overflows={str(generator.integer(0, 2)): row["overflow"]} if row["overflow"] != "none" else None,
    )


# --- train_unstable on digits -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class GainCase:
    """One training of the unstable model on digits."""

    gain: float
    dtype: str
    scale: ScaleSettings | None
    epochs: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class GainRun:
    """What one training came to."""

    result: StabilityResult
    finite: bool
    """Whether the weights were, before and after each step."""
    moves: int
    """How often the weights changed."""
    names: list[str]
    """Of the parameters."""
    before: float | None
    """The model's loss over all samples in float32, as the course measures it; None if it is no number."""
    after: float | None


@dataclass(frozen=True)
class UnstableReply:
    """What each training came to."""

    runs: list[GainRun]


@dataclass(frozen=True, kw_only=True)
class Unstable(ProbeInputs[UnstableReply], probe="lab2.stability.unstable.digits"):
    """Trainings of the unstable model on digits."""

    sizes: list[int]
    order: Array
    """Of the images."""
    cases: list[GainCase]


_GAINS = {2.0**14: "large", 2.0**-14: "small", 2.0**-20: "very small"}
_ONE_OF_A_KIND = "such a training takes long; lab2.stability.unstable.steps has each scale in each dtype"
GAINS = Space(
    probes=(Unstable.probe,),
    cases=lambda request: request.params["cases"],
    dimensions=(
        Dimension("gain", ("large", "small", "very small"), lambda case: _GAINS[case["gain"]]),
        Dimension("dtype", ("float16", "bfloat16"), lambda case: str(case["dtype"])),
        Dimension("scale", ("none", "given"), lambda case: "given" if case["scale"] else "none"),
    ),
    apart={
        ("gain=large", "dtype=bfloat16"): _ONE_OF_A_KIND,
        ("gain=small", "dtype=bfloat16"): _ONE_OF_A_KIND,
        ("gain=large", "scale=none"): _ONE_OF_A_KIND,
        ("dtype=bfloat16", "scale=given"): _ONE_OF_A_KIND,
    },
)


def unstable(generator: InputGenerator) -> tuple[Unstable, list[GainCase]]:
    """Trainings of this grading, and their cases in another order: that of the check."""
    sizes = [96] * 6 + [generator.odd(21, 61)]
    scale: ScaleSettings = {"initial_scale": 2.0**16, "growth_interval": 1000}
    seed = generator.integer(0, 2**20)
    cases = [
        GainCase(gain=gain, dtype=dtype, scale=scale if is_scaled else None, epochs=epochs, seed=seed)
        for gain, dtype, is_scaled, epochs in (
            (2.0**14, "float16", True, 4),
            (2.0**-14, "float16", True, 4),
            (2.0**-14, "float16", False, 4),
            (2.0**-20, "float16", True, 2),  # no step is ever taken
            (2.0**-20, "bfloat16", False, 4),
            (2.0**-20, "float16", False, 2),
        )
    ]
    places = generator.shuffled(range(len(cases)))
    order = np.array(generator.shuffled(range(DIGITS))[: sum(sizes)])
    return Unstable(sizes=sizes, order=order, cases=[cases[place] for place in places]), cases


SPACES = (UNSTABLE, GAINS)
