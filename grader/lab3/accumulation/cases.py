"""Inputs of Lab 3's gradient accumulation: passes over batches, what they differ in, and how they are drawn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gradebox.sandbox.probe_types import Array, ProbeInputs
from grader.shared.dimensions import Case, Dimension, Space

if TYPE_CHECKING:
    from gradebox.run.input_generator import InputGenerator
    from gradebox.sandbox import Request

IGNORED = -100
"""A target that does not count."""
DEFAULT_RATE = 0.1


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One pass of `train_with_accumulation` over each rank's batches, with a linear model."""

    weight: Array
    """[outputs, features + 1]; the last column is the bias."""
    inputs: Array
    """[samples, features] or [samples, length, features], rank after rank."""
    targets: Array
    """[samples, outputs], or classes: [samples], with tokens [samples, length]."""
    sizes: list[list[int]]
    """Of the batches of each rank."""
    steps: int
    """Batches of a window."""
    rate: float
    momentum: float = 0.0
    tokens: bool = False
    default_optimizer: bool = False
    """Whether none is given."""
    default_criterion: bool = False
    stale: float = 0.0
    """What gradients are beforehand; 0: None."""
    evaluation: float
    """By what the model multiplies its inputs in evaluation mode, in which the weights come out otherwise."""
    kind: str = "cpu"
    """Of the device that the model is on; the batches are on the CPU."""
    grouped: bool = False
    """Whether one process is in a process group and its model in DistributedDataParallel, too."""
    device_given: bool = False
    """Whether the call names the model's device."""
    dtype: str = "float64"
    frozen: bool = True
    """Whether the model has a parameter that needs no gradient."""
    as_list: bool = False
    """Whether the batches are a list."""

    @property
    def gradient_bytes(self) -> int:
        """What one optimizer step has to reduce."""
        return int(np.asarray(self.weight).size * np.dtype(self.dtype).itemsize)

    def product_flops(self, rank: int) -> int:
        """What forward and backward passes of all batches of a rank have to multiply at least."""
        places = int(np.prod(np.shape(self.inputs)[1:]))  # features, or tokens times features
        return 4 * sum(self.sizes[rank]) * places * len(self.weight)

    @property
    def has_tail(self) -> bool:
        """Whether the last window is shorter."""
        return len(self.sizes[0]) % self.steps > 0


@dataclass(frozen=True, kw_only=True)
class PassReply:
    """What one rank observed in one pass."""

    result: dict[str, object]
    """The fields of the `AccumulationResult`; of anything else the reason why it is none (`grader.shared.results`)."""
    weight: Array
    """As that of the pass, after training."""
    frozen: Array
    """The part of the model that is not trained: ones before."""
    reduced_bytes: int
    """As PyTorch's dispatcher saw it; what counts where nobody counts `loopback_bytes`."""
    reduced_numbers: int = 0
    """How many numbers these bytes are."""
    early_bytes: int | None = None
    """Carried between the forward passes of a window; None if they are not one for each batch."""
    product_flops: int = 0
    """Of matrix products, as PyTorch's dispatcher saw them."""
    written_bytes: int | None = None
    """To files, pipes and the network, by the operating system's count; None where it counts none."""


@dataclass(frozen=True, kw_only=True)
class AccumulateReply:
    """One reply for each pass."""

    passes: list[PassReply]
    loopback_bytes: int | None
    """That went over the network of this machine, between all ranks and in all passes; None where nobody counts."""


@dataclass(frozen=True, kw_only=True)
class Accumulate(ProbeInputs[AccumulateReply], probe="lab3.accumulation.accumulate"):
    """Passes on the same number of ranks, one after the other."""

    passes: list[Pass]


@dataclass(frozen=True, kw_only=True)
class RefusalsReply:
    """Whether windows of so many batches raised a ValueError, by that number."""

    refused: dict[str, bool]


@dataclass(frozen=True, kw_only=True)
class Refusals(ProbeInputs[RefusalsReply], probe="lab3.accumulation.refusals"):
    """Windows that have no batches."""

    counts: list[int]


def _either(name: str, field: str) -> Dimension:
    """A flag of a pass."""
    return Dimension(name, ("no", "yes"), lambda case: "yes" if case[field] else "no")


def _window(case: Case) -> str:
    batches, steps = len(case["sizes"][0]), case["steps"]
    if batches < steps:
        return "longer than the epoch"
    return "one batch" if steps == 1 else "short last" if batches % steps else "divides"


def _batch_sizes(case: Case) -> str:
    sizes = {size for rank in case["sizes"] for size in rank}
    return "one sample each" if sizes == {1} else "equal" if len(sizes) == 1 else "unequal"


def _targets(case: Case) -> str:
    return "tokens" if case["tokens"] else "classes" if case["targets"].dtype.kind == "i" else "numbers"


def _place(case: Case) -> str:
    return "2 ranks" if len(case["sizes"]) > 1 else "alone on a GPU" if case["kind"] == "cuda" else "alone"


_PLACE = Dimension("place", ("2 ranks", "alone", "alone on a GPU"), _place)
_GROUP_OF_ONE = "group of one on a GPU"
"""A kind of "alone on a GPU" that is drawn as often as the other."""
_WINDOW = Dimension("window", ("one batch", "divides", "short last", "longer than the epoch"), _window)
_SIZE = Dimension("sizes", ("one sample each", "equal", "unequal"), _batch_sizes)
_BEFORE = (
    Dimension("targets", ("numbers", "classes", "tokens"), _targets),
    Dimension("ignored", ("none", "some"), lambda case: "some" if (case["targets"] == IGNORED).any() else "none"),
    _either("momentum", "momentum"),
    _either("default optimizer", "default_optimizer"),
    _either("default criterion", "default_criterion"),
)
_DEVICE_GIVEN = _either("device given", "device_given")
_AFTER = (
    Dimension("dtype", ("float64", "float32"), lambda case: str(case["dtype"])),
    _either("frozen part", "frozen"),
    _either("gradients from before", "stale"),
    _either("a list", "as_list"),
)
_APART = {
    ("targets=numbers", "ignored=some"): "only classes can be left out",
    ("targets=numbers", "default criterion=yes"): "cross entropy is of classes",
    ("default optimizer=yes", "momentum=yes"): "the default is plain SGD",
}
_DRAWN = {
    _PLACE.name: (*_PLACE.values, _GROUP_OF_ONE),
    **{each.name: each.values for each in (*_BEFORE, _DEVICE_GIVEN, *_AFTER)},
}
"""What the passes of `mixed` differ in, besides windows and sizes of batches."""


def _passes(request: Request) -> Iterator[Case]:
    for each in request.params["passes"]:
        yield {**each, "targets": request.tensors[each["targets"]]}


SPACES = (
    Space(
        probes=(Accumulate.probe,),
        cases=_passes,
        dimensions=(_PLACE, _WINDOW, _SIZE, *_BEFORE, *_AFTER),
        apart=_APART,
    ),
)
WITHOUT = {Refusals.probe: "two windows that have no batches, always the same"}


def regression(generator: InputGenerator, sizes: list[list[int]], steps: int, *, momentum: float = 0.0) -> Pass:
    """Fresh samples for batches of these sizes; gradients are not 0 beforehand."""
    samples, features, outputs = sum(map(sum, sizes)), generator.odd(31, 39), generator.odd(15, 19)
    return Pass(
        weight=generator.normal(outputs, features + 1) / np.float32(features**0.5),
        inputs=generator.normal(samples, features),
        targets=generator.normal(samples, outputs),
        sizes=sizes,
        steps=steps,
        rate=generator.uniform(0.05, 0.1),
        momentum=momentum,
        stale=generator.uniform(0.5, 1.5),
        evaluation=_evaluation(generator),
    )


def _evaluation(generator: InputGenerator) -> float:
    return generator.uniform(0.4, 0.7)


def classification(
    generator: InputGenerator, sizes: list[list[int]], steps: int, *, ignored: bool = False, large: bool = False
) -> Pass:
    """Fresh classes for batches of these sizes, some of them `ignored`, with the arguments of the document alone.

    Gradients are not 0 beforehand. Those of a `large` model take more bytes than all else that is sent in a pass.
    """
    samples, features, classes = sum(map(sum, sizes)), generator.odd(31, 39), generator.odd(15, 19)
    if large:
        features, classes = generator.odd(151, 299), classes + 24
    targets = generator.rng.integers(0, classes, samples)
    if ignored:
        _ignore_samples(generator, sizes, targets)
    return Pass(
        weight=generator.normal(classes, features + 1) / np.float32(features**0.5),
        inputs=generator.normal(samples, features),
        targets=targets,
        sizes=sizes,
        steps=steps,
        rate=DEFAULT_RATE,
        default_optimizer=True,
        default_criterion=True,
        stale=generator.uniform(0.5, 1.5),
        evaluation=_evaluation(generator),
    )


def _ignore_samples(generator: InputGenerator, sizes: list[list[int]], targets: NDArray[np.int64]) -> None:
    """Let some samples count for nothing: of each batch the second, and never the first."""
    firsts = {int(first) for first in np.cumsum([0, *(size for rank in sizes for size in rank)])}
    for place in range(len(targets)):
        if place not in firsts and (place - 1 in firsts or generator.integer(0, 2) == 0):
            targets[place] = IGNORED


def whole_windows(generator: InputGenerator) -> Pass:
    """Twelve batches of 8 on each of two ranks, in windows of four: three steps, as batches of 64 would make."""
    return classification(generator.shared("lab3.accumulation"), [[8] * 12, [8] * 12], 4, large=True)


def short_tail(generator: InputGenerator) -> Pass:
    """A last window of two batches instead of four, the very last of them smaller."""
    return classification(generator.shared("lab3.tail"), [[8] * 9 + [5], [8] * 9 + [5]], 4, large=True)


def texts(generator: InputGenerator) -> Pass:
    """Tokens on two ranks, of which a different number counts in each batch."""
    generator = generator.shared("lab3.tokens")
    sizes = [[generator.integer(2, 4) for _ in range(5)] for _ in range(2)]
    samples, length, features, classes = (
        sum(map(sum, sizes)),
        generator.odd(7, 11),
        generator.odd(9, 13),
        generator.odd(5, 9),
    )
    targets = np.array(
        [[generator.integer(0, classes - 1) for _ in range(length)] for _ in range(samples)], dtype=np.int64
    )
    for row in targets:
        row[generator.integer(1, length) :] = IGNORED
    return Pass(
        weight=generator.normal(classes, features + 1) / np.float32(features**0.5),
        inputs=generator.normal(samples, length, features),
        targets=targets,
        sizes=sizes,
        steps=2,
        rate=DEFAULT_RATE,
        tokens=True,
        default_optimizer=True,
        default_criterion=True,
        dtype="float32",
        frozen=False,
        as_list=True,
        evaluation=_evaluation(generator),
    )


def labels(generator: InputGenerator) -> Pass:
    """Classes of one process alone, some of them ignored; optimizer and criterion are the default ones.

    Windows of one batch, or of two batches; then the last window has one.
    """
    sizes = [[generator.integer(3, 6) for _ in range(3)]]
    samples, features, classes = sum(sizes[0]), generator.odd(9, 13), generator.odd(5, 9)
    targets = np.array([generator.integer(0, classes - 1) for _ in range(samples)], dtype=np.int64)
    targets[np.cumsum([0, *sizes[0][:-1]])] = IGNORED  # the first of each batch
    return Pass(
        weight=generator.normal(classes, features + 1) / np.float32(features**0.5),
        inputs=generator.normal(samples, features),
        targets=targets,
        sizes=sizes,
        steps=generator.integer(1, 2),
        rate=DEFAULT_RATE,
        default_optimizer=True,
        default_criterion=True,
        evaluation=_evaluation(generator),
    )


_SHAPES = {"one batch": (2, 1), "divides": (4, 2), "short last": (5, 3), "longer than the epoch": (2, 5)}
"""Batches of each rank, and of a window."""
_SIZES = (*_SIZE.values, "unequal")


def _can_be(row: Mapping[str, str]) -> bool:
    """Whether the values of a row can be together."""
    values = {f"{name}={value}" for name, value in row.items()}
    return not any(values.issuperset(pair) for pair in _APART)


def mixed(generator: InputGenerator) -> list[tuple[str, Pass]]:
    """A pass for each kind of window, in which all else that passes differ in comes together; and what it is."""
    rows: list[dict[str, str]] = [
        {_WINDOW.name: window, **generator.shared(f"lab3.mixed.{window}").cases(_DRAWN, 1, _can_be)[0]}
        for window in _WINDOW.values
    ]
    # Each window meets each size in four gradings.
    turn = generator.in_turn(len(_SIZES))
    sizes = _SIZES[turn:] + _SIZES[:turn]
    passes = []
    for row, size in zip(rows, sizes, strict=True):
        if size == "one sample each" and row["ignored"] == "some" and row["targets"] == "classes":
            row["targets"] = "tokens"  # a batch counts at least one target, and such a sample has only one
        what = ", ".join(f"{name}={value}" for name, value in row.items())
        passes.append((what, _mixed(generator, {**row, _SIZE.name: size})))
    return passes


def _mixed(generator: InputGenerator, row: Mapping[str, str]) -> Pass:
    ranks = 2 if row["place"] == "2 ranks" else 1
    batches, steps = _SHAPES[row["window"]]
    equal = {"one sample each": 1, "equal": 4}.get(row["sizes"])
    sizes = [[equal] * batches if equal else generator.shuffled([2, 3, 4, 6, 7])[:batches] for _ in range(ranks)]
    samples, features, outputs = sum(map(sum, sizes)), generator.odd(5, 9), generator.odd(3, 7)
    length = generator.integer(4, 6)
    shape = (samples, length) if row["targets"] == "tokens" else (samples,)
    targets: Array = generator.normal(samples, outputs)
    if row["targets"] != "numbers":
        targets = generator.rng.integers(0, outputs, shape)
        if row["ignored"] == "some" and row["targets"] == "tokens":
            for text in targets:
                text[generator.integer(1, length - 1) :] = IGNORED
        elif row["ignored"] == "some":
            _ignore_samples(generator, sizes, targets)
    default_optimizer = row["default optimizer"] == "yes"
    return Pass(
        weight=generator.normal(outputs, features + 1) / np.float32(features**0.5),
        inputs=generator.normal(*shape, features),
        targets=targets,
        sizes=sizes,
        steps=steps,
        rate=DEFAULT_RATE if default_optimizer else generator.uniform(0.1, 0.2),
        momentum=generator.uniform(0.5, 0.9) if row["momentum"] == "yes" else 0.0,
        tokens=row["targets"] == "tokens",
        default_optimizer=default_optimizer,
        default_criterion=row["default criterion"] == "yes",
        stale=generator.uniform(0.5, 1.5) if row["gradients from before"] == "yes" else 0.0,
        kind="cuda" if row["place"].endswith("GPU") else "cpu",
        grouped=row["place"] == _GROUP_OF_ONE,
        device_given=row["device given"] == "yes",
        dtype=row["dtype"],
        frozen=row["frozen part"] == "yes",
        as_list=row["a list"] == "yes",
        evaluation=_evaluation(generator),
    )
