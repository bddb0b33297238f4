"""Inputs of the checks of training in mixed precision: calls of `train_with_amp` and of `evaluate`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from gradebox.run.input_generator import InputGenerator
from gradebox.sandbox import Request
from gradebox.sandbox.probe_types import Array, ProbeInputs
from grader.lab2.shared.cases import NOT_GIVEN, OR_NOT, PRECISIONS, AmpResult, BackwardPass, ForwardPass
from grader.shared.cases import every_value
from grader.shared.dimensions import Case, Dimension, Space

OTHERS = ("float32", "bfloat16")
"""Precisions that a caller names: float16 is the default."""
ONE_EPOCH = 1
"""Of one batch. One step in float16: what may go wrong between two, the checks of gradient scaling look at."""
SEVERAL_EPOCHS = 3

# --- what runs in which precision -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PrecisionRun:
    """What was observed of a training in one precision."""

    result: AmpResult
    elapsed_seconds: float
    """Of the call, without the work that was in the GPU's queue before it, and without the time that the
    model's way to the device took."""
    products: list[str]
    """Dtypes of the matrix products."""
    product_count: int
    product_flops: int
    log_softmaxes: list[str]
    """Dtypes in which the logarithm of a softmax was computed."""
    logsumexps: list[str]
    """The same of the logarithm of a sum of exponentials, by which some write it."""
    forwards: list[ForwardPass]
    backwards: list[BackwardPass]
    parameters: list[str]
    """Their dtypes, after the training."""
    after: list[float]
    """Their numbers."""
    most_bytes: int
    """The most that was allocated on the GPU when the model looked."""
    peak_bytes: int | None
    """The most that was allocated on a virtual GPU during the call."""
    state: list[str]
    """Dtypes of what the optimizer keeps of each parameter."""
    sure: list[float]
    """What `Precision.sure` became by a training of one step, in 16 bits; else nothing."""

    def largest_peak(self, idle: int) -> float:
        """The most bytes that a peak of this training has; `idle`: those that were freed before it."""
        return 0.9 * idle if self.peak_bytes is None else 1.01 * self.peak_bytes

    @property
    def losses(self) -> list[str]:
        """Dtypes in which a cross entropy was computed, unless it was put together by hand."""
        return sorted({*self.log_softmaxes, *self.logsumexps})


@dataclass(frozen=True, kw_only=True)
class PrecisionReply:
    """The trainings by precision."""

    runs: dict[str, PrecisionRun]
    idle_bytes: int
    """What earlier work had allocated at most, before each training."""
    device: str


@dataclass(frozen=True, kw_only=True)
class Precision(ProbeInputs[PrecisionReply], probe="lab2.amp.precision"):
    """A classifier with one hidden layer, trained in each precision, one optimizer step per batch."""

    first: Array
    """Weights of the first layer."""
    second: Array
    signs: Array
    """By which backward multiplies the gradient of each output of the first layer, if autocast is on there."""
    inputs: Array
    targets: Array
    sizes: list[int]
    """Of the batches."""
    epochs: dict[str, int]
    """By precision."""
    sure: Array
    """Weights of another classifier, which is nearly sure of the class of each of its samples."""


def precision(generator: InputGenerator, precisions: Sequence[str], epochs: int) -> Precision:
    """The classifier of this grading, the same for all checks; one batch if there is one epoch."""
    generator = generator.shared("lab2.precision")
    features, hidden, classes = generator.odd(11, 21), generator.odd(15, 31), generator.odd(5, 9)
    sizes = generator.shuffled([generator.odd(3, 5), generator.odd(7, 9), generator.odd(11, 13)])
    return Precision(
        first=generator.normal(hidden, features) / np.float32(features**0.5),
        second=generator.normal(classes, hidden) / np.float32(2 * hidden**0.5),
        signs=np.array(generator.shuffled([(-1.0) ** place for place in range(hidden)]), dtype=np.float32),
        # So small that no gradient overflows at the default scale, even if losses are added up and divided later.
        inputs=generator.normal(sum(sizes), features) * np.float32(0.1),
        targets=np.array([generator.integer(0, classes - 1) for _ in range(sum(sizes))]),
        sizes=sizes if epochs > ONE_EPOCH else [sum(sizes)],
        epochs=dict.fromkeys(precisions, epochs),
        sure=np.float32(11 / 16) * np.eye(classes, dtype=np.float32)
        + generator.normal(classes, classes) / np.float32(128),
    )


# --- evaluate ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class EvaluateCall:
    """One call of `evaluate`."""

    targets: str
    """Which of the targets: "all", "some" or "none" are what the model says."""
    sizes: list[int]
    """Of the batches."""
    modes: str
    """Of the model's modules: "training", "evaluation" or "mixed"."""
    device_given: bool
    """The model comes on the CPU, and the device is an argument."""
    loader: bool
    """The batches come from a DataLoader."""
    dtype: str | None = None


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What was observed of one call."""

    accuracy: object
    before: list[bool]
    """Of each module of the model, whether it was in training mode."""
    after: list[bool]
    during: list[bool]
    """Of each forward pass, whether any module was in training mode."""
    gradients: list[bool]
    """Of each forward pass, whether a graph was recorded."""
    products: list[str]
    unchanged: bool
    """Whether the parameters are what they were."""


@dataclass(frozen=True, kw_only=True)
class EmptyEvaluation:
    """What became of a call whose loader has no samples."""

    refused: bool
    before: list[bool]
    after: list[bool]


@dataclass(frozen=True, kw_only=True)
class EvaluateReply:
    """What was observed of each call, and of two more without samples."""

    calls: list[Evaluation]
    empty: list[EmptyEvaluation]


@dataclass(frozen=True, kw_only=True)
class Evaluate(ProbeInputs[EvaluateReply], probe="lab2.amp.evaluate"):
    """Calls of `evaluate` with a model whose outputs are its inputs, unless dropout is on.

    Of samples that the probe draws the model says the next class, and so do their targets.
    """

    logits: Array
    targets: dict[str, Array]
    calls: list[EvaluateCall]


def _sizes(case: Case) -> str | None:
    return "one batch" if len(case["sizes"]) == 1 else "unequal"


EVALUATION = Space(
    probes=(Evaluate.probe,),
    cases=lambda request: request.params["calls"],
    dimensions=(
        Dimension("dtype", (NOT_GIVEN, *PRECISIONS), lambda case: case["dtype"] or NOT_GIVEN),
        Dimension(
            "device", ("of the model", "given"), lambda case: "given" if case["device_given"] else "of the model"
        ),
        Dimension("modes", ("training", "evaluation", "mixed"), lambda case: str(case["modes"])),
        Dimension("sizes", ("one batch", "unequal"), _sizes),
        Dimension("batches", ("a list", "a loader"), lambda case: "a loader" if case["loader"] else "a list"),
        Dimension("right", ("some", "all", "none"), lambda case: str(case["targets"])),
    ),
)


def evaluate(generator: InputGenerator) -> tuple[Evaluate, dict[str, float]]:
    """Calls of `evaluate`, and the share that is right by targets."""
    # From 2048 on float16 does not hold every number: who counts in it is wrong.
    classes, sizes = generator.odd(5, 9), [generator.odd(2081, 2141), generator.odd(5, 9), generator.odd(15, 21), 1]
    samples = sum(sizes)
    logits = np.array([generator.shuffled(list(range(classes))) for _ in range(samples)], dtype=np.float32) * 4
    targets = logits.argmax(axis=1)
    # Wrong ones are in the short batch, where a mean of means would weigh them too much, and in the first.
    wrong = [*range(sizes[0], sizes[0] + sizes[1]), *range(generator.integer(3, 8))]
    some = targets.copy()
    some[wrong] = (targets[wrong] + 1) % classes
    # One of the batches has one sample; no dtype given means float32.
    rows = every_value(generator, EVALUATION.values(), 4)
    # As many samples in smaller batches, of which some are wrong as well.
    cuts = sorted(generator.shuffled(range(300, sizes[0] - 300, 100))[: generator.integer(1, 3)])
    smaller = [end - begin for begin, end in itertools.pairwise([0, *cuts, sizes[0]])] + sizes[1:]
    last = {**generator.shuffled(rows)[0], "right": "some", "sizes": "smaller"}
    of_sizes = {"unequal": sizes, "one batch": [samples], "smaller": smaller}
    calls = [
        EvaluateCall(
            targets=row["right"],
            sizes=of_sizes[row["sizes"]],
            modes=row["modes"],
            device_given=row["device"] == "given",
            loader=row["batches"] == "a loader",
            dtype=None if row["dtype"] == NOT_GIVEN else row["dtype"],
        )
        for row in (*rows, {**last, "sizes": "unequal"}, last)
    ]
    shares = {"all": 1.0, "some": 1 - len(wrong) / samples, "none": 0.0}
    return Evaluate(
        logits=logits, targets={"all": targets, "some": some, "none": (targets + 1) % classes}, calls=calls
    ), shares


# --- defaults and refusals --------------------------------------------------------------------------------------------


class TrainArguments(TypedDict, total=False):
    """Arguments of `train_with_amp` after the model and the loader: those that are there."""

    dtype: str
    epochs: int
    accumulation_steps: int


@dataclass(frozen=True, kw_only=True)
class DefaultsRun:
    """What one training came to."""

    result: AmpResult
    after: list[float]
    """The weights."""


@dataclass(frozen=True, kw_only=True)
class DefaultsReply:
    """What the trainings came to, and whether each of the refusals was one."""

    runs: list[DefaultsRun]
    on_cpu: AmpResult
    """Of a training on the CPU."""
    refused: list[bool]


@dataclass(frozen=True, kw_only=True)
class Defaults(ProbeInputs[DefaultsReply], probe="lab2.amp.defaults"):
    """A linear classifier trained on one batch, with nothing but each run's arguments; and calls to be refused."""

    weight: Array
    inputs: Array
    labels: Array
    runs: list[TrainArguments]
    refusals: list[TrainArguments]


def _refusals(request: Request) -> Iterator[Case]:
    for case in request.params["refusals"]:
        for argument in ("epochs", "accumulation_steps"):
            if argument in case:
                yield {"argument": argument, "value": case[argument], "dtype": case.get("dtype", NOT_GIVEN)}


DEFAULTS = Space(
    probes=(Defaults.probe,),
    cases=lambda request: request.params["runs"],
    dimensions=(
        Dimension("dtype", (NOT_GIVEN, *PRECISIONS), lambda case: case.get("dtype", NOT_GIVEN)),
        Dimension("epochs", OR_NOT, lambda case: "given" if "epochs" in case else NOT_GIVEN),
    ),
)
REFUSED = Space(
    probes=(Defaults.probe,),
    cases=_refusals,
    dimensions=(
        Dimension("argument", ("epochs", "accumulation_steps"), lambda case: str(case["argument"])),
        Dimension("value", ("0", "negative"), lambda case: "0" if case["value"] == 0 else "negative"),
        Dimension("dtype", (NOT_GIVEN, *PRECISIONS), lambda case: str(case["dtype"])),
    ),
)


@dataclass(frozen=True)
class Classification:
    """A linear classifier and samples, and how often it is trained on all of them at once."""

    weight: NDArray[np.float32]
    inputs: NDArray[np.float32]
    labels: NDArray[np.int64]
    epochs: int


def classification(generator: InputGenerator) -> Classification:
    """The classifier that is trained with defaults."""
    features, classes, samples = generator.odd(5, 9), generator.odd(3, 7), generator.odd(9, 15)
    epochs = generator.integer(3, 6)
    # So small that nothing overflows at the default scale, even if losses are added up and gradients divided.
    weight, inputs = generator.normal(classes, features), generator.normal(samples, features) * np.float32(0.02)
    labels = np.array([generator.integer(0, classes - 1) for _ in range(samples)])
    return Classification(weight, inputs, labels, epochs)


def refused_arguments(generator: InputGenerator) -> list[TrainArguments]:
    """Arguments that make no sense."""
    calls: list[TrainArguments] = [{"dtype": "float64"}]
    for row in every_value(generator, REFUSED.values(), 4):
        value = 0 if row["value"] == "0" else -generator.integer(1, 3)
        call: TrainArguments = {"epochs": value} if row["argument"] == "epochs" else {"accumulation_steps": value}
        if row["dtype"] != NOT_GIVEN:
            call["dtype"] = row["dtype"]
        calls.append(call)
    return calls


def defaulted_arguments(generator: InputGenerator, epochs: int) -> list[TrainArguments]:
    """Arguments some of which are not given; `epochs` is the number if they are."""
    calls: list[TrainArguments] = []
    for row in every_value(generator, DEFAULTS.values(), 2):
        call: TrainArguments = {}
        if row["dtype"] != NOT_GIVEN:
            call["dtype"] = row["dtype"]
        if row["epochs"] != NOT_GIVEN:
            call["epochs"] = epochs
        calls.append(call)
    return calls


SPACES = (EVALUATION, DEFAULTS, REFUSED)
WITHOUT = {Precision.probe: "it watches what runs in one training per precision; lab2.scaling.train draws the rest"}
