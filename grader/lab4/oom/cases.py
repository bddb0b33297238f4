"""Inputs of Lab 4's out-of-memory script and handler, and what their probes return."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gradebox.sandbox.probe_types import Array, ProbeInputs
from grader.lab4.shared.cases import Fields, ProgramReply, flag
from grader.shared.cases import full_rows
from grader.shared.dimensions import Case, Dimension, Space
from grader.shared.readings import ProductCount

if TYPE_CHECKING:
    from gradebox.run.input_generator import InputGenerator
    from gradebox.sandbox import Request

LENGTH = 512
SHAPES = "mat1 and mat2 shapes cannot be multiplied"
HOST = "DefaultCPUAllocator: not enough memory: the host is out of memory"
GPU = "CUDA out of memory. Tried to allocate 20.00 MiB."
"""What says this need not be an `OutOfMemoryError`."""
_SMALL = 2.0**-23
"""What the criterion is multiplied by: gradients of outputs get below half of float16's smallest number."""


@dataclass(frozen=True, kw_only=True)
class FitsReply:
    """How the training went: samples of forward passes; by the device its peaks, largest copy and products."""

    died: str | None
    """The message of the error, if memory ran out."""
    result: Fields | None
    parameters: int
    forwards: list[int]
    moved_bytes: Mapping[str, int]
    """By loader, what has come to the device between a fetched batch and its first micro-batch in the model."""
    grown_bytes: Mapping[str, int]
    """By loader, what has come to the device between the first two micro-batches of a batch: gradients, in training."""
    largest_copy: float
    before_bytes: int
    peak_bytes: int
    products: list[ProductCount]


@dataclass(frozen=True, kw_only=True)
class Fits(ProbeInputs[FitsReply], probe="lab4.oom.fits"):
    """Train the large model on a virtual GPU of 24 GB."""

    batches: list[int]
    validation: list[int]
    length: int
    micro_batch: int


@dataclass(frozen=True, kw_only=True)
class OtherTraining:
    """A training that differs from the first one."""

    micro_batch: int
    epochs: int
    sequence: bool
    """Whether each sample is a sequence of two tokens."""
    criterion_given: bool
    """Whether the criterion is given: the absolute error."""
    streamed: bool
    """Whether the loaders have neither a length nor an index."""


@dataclass(frozen=True, kw_only=True)
class OtherReply:
    """What such a training gave."""

    result: Fields
    weights: Array


@dataclass(frozen=True, kw_only=True)
class TrainingsReply:
    """What the trainings of a small model gave."""

    result: Fields
    weights: Array
    are_numbers: bool
    """Whether all losses are numbers of Python."""
    passes: list[int]
    """How often the training loader and the validation loader of this training were iterated."""
    device: str
    small_result: Fields
    """Of the training in float32 with a small criterion."""
    small_weights: Array
    others: list[OtherReply]
    products: list[ProductCount]
    """Of the first training, in which values are compared: who takes whole batches there is seen."""


@dataclass(frozen=True, kw_only=True)
class Trainings(ProbeInputs[TrainingsReply], probe="lab4.oom.trainings"):
    """Train a small model in float64, in float32 with a small criterion, and in other ways."""

    layers: int
    epochs: int
    micro_batch: int
    learning_rate: float
    batches: list[int]
    validation: list[int]
    weights: Array
    biases: Array
    data: Array
    """The samples of all batches, one after the other, and those of the validation behind them."""
    targets: Array
    scale: float
    """What the criterion in float32 is multiplied by."""
    others: list[OtherTraining]


@dataclass(frozen=True, kw_only=True)
class ForwardPass:
    """One call of the model: its samples, their tokens, whether it trained, and whether a graph was recorded."""

    phase: str
    """Where its samples come from: "training" or "validation"."""
    samples: int
    tokens: int
    training: bool
    graph: bool
    held_bytes: int
    requested_bytes: int
    """What live tensors had asked for when it began; `held_bytes` is with the allocator's rounding."""
    flops: float | None
    """Of its products, as the device computed them; None of a real GPU, as for all passes together."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """What live tensors had asked for at a moment other than the beginning of a forward pass."""

    moment: str
    """Before the "criterion", or before a "step" of an optimizer."""
    forwards: int
    """Of the model, noted before it."""
    requested_bytes: int


@dataclass(frozen=True, kw_only=True)
class SteadyReply:
    """How the model was called, and what the device held then; the ballast is what each graph holds in addition."""

    sample_bytes: int
    forwards: list[ForwardPass]
    """Those that backward computes again are not among them."""
    looks: list[Look]
    flops: float | None
    flops_again: list[float]
    """Of each forward pass that backward computed again."""
    training_afterwards: bool
    ballast_bytes: int


@dataclass(frozen=True, kw_only=True)
class Steady(ProbeInputs[SteadyReply], probe="lab4.oom.steady"):
    """Train a small model for two epochs, with a ballast on each graph."""

    width: int
    batches: list[int]
    validation: list[int]
    micro_batch: int


@dataclass(frozen=True, kw_only=True)
class Attempts:
    """Attempts that the handler is given: they run out of memory above `fits`, and below may raise an error."""

    start: int
    fits: int
    cycle: bool = False
    """Whether the memory is held by objects that refer to each other."""
    returns_nothing: bool = False
    raises: str | None = None
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class RetryRun:
    """What the handler did."""

    returned: object
    raised: str | None
    message: str = ""
    """Of the error."""
    attempts: list[int]
    """The micro-batch of each."""
    held_bytes: list[int]
    """What was allocated when each began, more than before the call."""
    tensors_alive: list[int]
    """How many tensors of earlier attempts were still there when each began, with memory or without."""
    reserved_bytes: list[int]


@dataclass(frozen=True, kw_only=True)
class RetryReply:
    """One run for each case."""

    cases: list[RetryRun]


@dataclass(frozen=True, kw_only=True)
class Retry(ProbeInputs[RetryReply], probe="lab4.oom.retry"):
    """Give the handler attempts that run out of memory."""

    cases: list[Attempts]


@dataclass(frozen=True, kw_only=True)
class OomProgram(ProbeInputs[ProgramReply], probe="lab4.oom.program"):
    """Run the script as a program, on a virtual GPU of 24 GB."""


@dataclass(frozen=True, kw_only=True)
class SmallModel:
    """A small model's parameters, and samples of which batches are made."""

    weights: NDArray[np.float32]
    biases: NDArray[np.float32]
    data: NDArray[np.float64]
    targets: NDArray[np.float64]


def trainings(generator: InputGenerator) -> tuple[SmallModel, Trainings]:
    """A small model, and the trainings of it."""
    width, layers = generator.odd(7, 13), generator.integer(3, 4)
    micro_batch = 2 * generator.integer(1, 2) + 1
    # Of even numbers, so that two samples can be one of two tokens.
    batches = [micro_batch * 3 + 1, micro_batch * 2, micro_batch + 1, 2]
    validation = [micro_batch * 2 + 2, 2]
    samples = sum(batches) + sum(validation)
    model = SmallModel(
        weights=generator.normal(layers, width, width) * np.float32(1.5 / width**0.5),
        biases=generator.normal(layers, width) * np.float32(0.3),
        # float64, so that the model's own type is kept all the way
        data=generator.normal(samples, width).astype(np.float64),
        targets=generator.normal(samples, width).astype(np.float64),
    )
    return model, Trainings(
        layers=layers,
        epochs=2,
        micro_batch=micro_batch,
        learning_rate=generator.uniform(0.01, 0.02),
        batches=batches,
        validation=validation,
        scale=_SMALL,
        others=_other_trainings(generator, micro_batch),
        weights=model.weights,
        biases=model.biases,
        data=model.data,
        targets=model.targets,
    )


def _other_trainings(generator: InputGenerator, micro_batch: int) -> list[OtherTraining]:
    """Two trainings more: one sample at a time, and each batch as a whole."""
    rows = full_rows(generator, TRAININGS.values({"micro-batch": ()}), 2)
    sizes = generator.shuffled([1, 4 * micro_batch])
    return [
        OtherTraining(
            micro_batch=size,
            epochs=1 if row["epochs"] == "one" else 3,
            sequence=row["sequences"] == "yes",
            criterion_given=row["criterion given"] == "yes",
            streamed=row["loaders without a length"] == "yes",
        )
        for size, row in zip(sizes, rows, strict=True)
    ]


def steady(generator: InputGenerator) -> Steady:
    """A training in which what is held must not grow."""
    generator = generator.shared("lab4.steady")
    # All equally large: what a local variable still holds of the last one is then the same after each step.
    return Steady(
        # More than the square of the micro-batch: three parts of a batch are larger than parts of three samples.
        batches=[generator.integer(10, 14)] * 5,
        width=generator.odd(63, 95),
        validation=[generator.integer(5, 9) for _ in range(4)],
        micro_batch=3,
    )


def attempts(generator: InputGenerator) -> list[Attempts]:
    """Attempts of all kinds; the same for all checks of a grading."""
    generator = generator.shared("lab4.retry")
    cases = [
        Attempts(start=generator.odd(41, 63), fits=generator.integer(6, 9), cycle=generator.integer(0, 1) == 1),
        Attempts(start=1, fits=1),
        Attempts(start=generator.integer(8, 20), fits=20),
        Attempts(start=generator.integer(5, 7), fits=0),
        Attempts(start=generator.integer(5, 15), fits=4, cycle=True, returns_nothing=True),
        Attempts(start=1, fits=99, raises="RuntimeError", message=SHAPES),
        Attempts(start=generator.integer(16, 31), fits=99, raises="ValueError", message=SHAPES),
        Attempts(start=generator.integer(16, 31), fits=99, raises="MemoryError", message="out of memory"),
        # The second attempt fits, and fails for a reason of its own.
        Attempts(start=generator.integer(16, 31), fits=15, raises="RuntimeError", message=GPU),
    ]
    return [*cases, *(_attempts(generator, row) for row in full_rows(generator, RETRY.values(), 5, _can_be_tried))]


def _attempts(generator: InputGenerator, row: Mapping[str, str]) -> Attempts:
    start = 1 if row["begins with"] == "one" else generator.integer(9, 31)
    raises = None if row["raises"] == "nothing" else row["raises"]
    return Attempts(
        start=start,
        fits={"at once": start, "later": generator.integer(2, 8), "never": 0}[row["fits"]],
        cycle=row[_CYCLE.name] == "yes",
        returns_nothing=row["returns"] == "nothing",
        raises=raises,
        message={"of shapes": SHAPES, "of memory": HOST}[row["says"]] if raises else "",
    )


def _can_be_tried(row: Mapping[str, str]) -> bool:
    """Whether there are such attempts: if none fits it comes to no other end, and one of 1 cannot be halved.

    A row has a value of each dimension, also of one that such attempts do not have, so `RETRY.apart` cannot say it.
    """
    raises, returns_nothing = row["raises"] != "nothing", row["returns"] == "nothing"
    return not (
        (row["fits"] == "never" and (raises or returns_nothing))
        or (row["fits"] == "later" and row["begins with"] == "one")
        or (raises and returns_nothing)
    )


def _trainings(request: Request) -> Iterator[Case]:
    params = request.params
    first = {"sequence": False, "criterion_given": False, "streamed": False, "micro": "several"}
    yield {**first, "epochs": params["epochs"]}
    yield {**first, "sequence": True, "criterion_given": True, "epochs": 1}  # in float32
    for other in params["others"]:
        yield {**other, "micro": "one" if other["micro_batch"] == 1 else "all"}


TRAININGS = Space(
    probes=(Trainings.probe,),
    cases=_trainings,
    dimensions=(
        Dimension("micro-batch", ("one", "several", "all"), lambda case: str(case["micro"])),
        Dimension("epochs", ("one", "more"), lambda case: "one" if case["epochs"] == 1 else "more"),
        flag("sequences", "sequence"),
        flag("criterion given", "criterion_given"),
        flag("loaders without a length", "streamed"),
    ),
    apart={
        (
            "micro-batch=several",
            "loaders without a length=yes",
        ): "a batch is cut in the same way wherever it comes from",
    },
)


def _tried(request: Request) -> Iterator[Case]:
    yield from request.params["cases"]


def _fits(case: Case) -> str:
    return "never" if case["fits"] == 0 else "at once" if case["fits"] >= case["start"] else "later"


def _words(case: Case) -> str | None:
    if not case["raises"]:
        return None
    return "of shapes" if "shapes" in case["message"] else "of memory"


def _returns(case: Case) -> str | None:
    if case["raises"] or case["fits"] == 0:
        return None
    return "nothing" if case["returns_nothing"] else "something"


_CYCLE = flag("objects hold each other", "cycle")
_NOT_SO_FAR = "the attempt does not come so far"
_RAISES = "an attempt that raises returns nothing"
RETRY = Space(
    probes=(Retry.probe,),
    cases=_tried,
    dimensions=(
        Dimension("begins with", ("one", "several"), lambda case: "one" if case["start"] == 1 else "several"),
        Dimension("fits", ("at once", "later", "never"), _fits),
        Dimension(
            "raises", ("nothing", "RuntimeError", "ValueError", "MemoryError"), lambda case: case["raises"] or "nothing"
        ),
        Dimension("says", ("of shapes", "of memory"), _words),
        _CYCLE,
        Dimension("returns", ("something", "nothing"), _returns),
    ),
    apart={
        ("begins with=one", "fits=later"): "one is not halved",
        ("fits=never", "raises=RuntimeError"): _NOT_SO_FAR,
        ("fits=never", "raises=ValueError"): _NOT_SO_FAR,
        ("fits=never", "raises=MemoryError"): _NOT_SO_FAR,
        ("fits=never", "says=*"): _NOT_SO_FAR,
        ("fits=never", "returns=*"): _NOT_SO_FAR,
        ("raises=nothing", "says=*"): "an error says it",
        ("raises=RuntimeError", "returns=*"): _RAISES,
        ("raises=ValueError", "returns=*"): _RAISES,
        ("raises=MemoryError", "returns=*"): _RAISES,
        ("says=*", "returns=*"): _RAISES,
    },
)

SPACES = (TRAININGS, RETRY)
WITHOUT = {
    Fits.probe: "the sizes are the task's own: they just do not fit",
    OomProgram.probe: "is given nothing",
    Steady.probe: "observes what is held from step to step, which needs equal steps",
}
