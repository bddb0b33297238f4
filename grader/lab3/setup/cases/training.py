"""Trainings of a linear model by several ranks: what they differ in, and how they are drawn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NotRequired, TypedDict

import numpy as np

from gradebox.sandbox.probe_types import Array, ProbeInputs
from grader.lab3.shared.cases.modules import DDP, DEBUGGING
from grader.shared.dimensions import Case, Dimension, Space

if TYPE_CHECKING:
    from gradebox.run.input_generator import InputGenerator
    from gradebox.sandbox import Request

TRAIN_TWO_HEADS = f"{DEBUGGING}.train_two_heads"
ERRORS = (
    *("ArithmeticError", "AssertionError", "BufferError", "EOFError"),
    *("NameError", "OSError", "ReferenceError", "ValueError"),
)
"""What a data set may raise: nothing that a loader, or Python itself, takes for something else. Nor a LookupError, for
which the exploit `leaves_after_two_kinds_of_errors` waits."""
_FACTORS = 64
"""Forward passes whose inputs a model multiplies by a number of its own; more than any of these trainings makes."""


class Options(TypedDict):
    """Arguments of `train`."""

    epochs: int
    batch_size: int
    learning_rate: float
    momentum: NotRequired[float]
    seed: NotRequired[int]


class Changes(TypedDict, total=False):
    """Arguments of a further training that differ."""

    epochs: int
    batch_size: int
    seed: int
    by_address: bool
    """Whether an `init_method` says where to meet; otherwise the environment does."""


@dataclass(frozen=True, kw_only=True)
class Passed:
    """What passed a model in one training, on one rank."""

    samples: list[list[int]]
    """Of each forward pass in training mode, by number."""
    draws: list[list[float]]
    """What dropout drew in each."""
    weight: Array
    """Of the model afterwards."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """The error with which a call ended."""

    type: str
    message: str


@dataclass(frozen=True, kw_only=True)
class TrainReply(Passed):
    """What one rank observed."""

    result: dict[str, object]
    """The fields of the `DdpTraining`, or why there are none (`grader.shared.results`); empty after an error."""
    error: Ending | None
    in_group: bool
    """Whether there was a process group afterwards."""
    carried_bytes: int
    """Of all collectives of the first training, as PyTorch's dispatcher saw them."""
    loopback_bytes: int | None
    """What went over the network between all ranks in all trainings; None where nobody counts."""
    again: list[Passed]
    """The further trainings."""
    shift: Array
    place: str
    """The device on which the model was afterwards."""
    dtype: str
    """Of the model afterwards."""
    patience: float
    """Seconds that the process group would have waited for a rank, as it says."""
    waited: float | None
    """Seconds that this rank did wait, in the end, for one that stopped on its way; None if it ended in no error."""
    begin: float
    """When this rank called, by a clock that all ranks share."""
    least_seconds: float
    """From the first forward pass to the last."""
    whole_seconds: float
    """Of the call."""


@dataclass(frozen=True, kw_only=True)
class Train(ProbeInputs[TrainReply], probe="lab3.setup.training.train"):
    """A linear model (outputs = inputs @ weight.T + shift), trained by ranks that begin with weights of their own."""

    weights: Array
    """[ranks, outputs, features]"""
    shifts: Array
    """[ranks, outputs]"""
    inputs: Array
    targets: Array
    options: Options
    factors: list[list[float]]
    """[ranks, forward passes]: what a rank's model multiplies its inputs by. No rank knows another's, so that none can
    compute what another would have told it."""
    classes: bool = False
    """Whether the number of a target's largest value is its class, and the loss is the default one."""
    tests: int = 0
    """The last so many samples are the test set."""
    again: list[Changes] = field(default_factory=list)
    """Further trainings."""
    kind: str = "cpu"
    """Of the device to train on."""
    gpus: int | None = None
    """How many GPUs are there to be counted; None: all of the machine's."""
    dtype: str = "float64"
    """Of the model and of its inputs."""
    failing: int | None = None
    """The rank on which the second loss fails. Not a sample that cannot be read: a rank could read all beforehand."""
    damage: str = "damaged"
    """What the error then says of the loss."""
    error: str = "LookupError"
    """The built-in exception that this error is."""
    late_seconds: float = 0.0
    """How much later than the others the last rank calls."""
    patience: float = 0.0
    """Seconds that ranks wait in a last training, in which rank 1 stops in its first forward pass; 0: there is none."""
    function: str = f"{DDP}.train"
    crowded: bool = True
    """Whether others listen at the usual ports, if it is the script of Task 3.5 that trains."""
    unused: bool = True
    """Whether the model has parameters that take no part, if it is that script."""

    @property
    def ranks(self) -> int:
        """How many train."""
        return len(self.weights)

    @property
    def gradient_bytes(self) -> int:
        """Of one step's gradients, without the shift's, which is a buffer."""
        return int(np.asarray(self.weights[0]).size * np.dtype(self.dtype).itemsize)

    @property
    def samples(self) -> int:
        """Those to learn from."""
        return len(self.inputs) - self.tests


@dataclass(frozen=True, kw_only=True)
class OnCpuReply:
    """What `train` reported of one process on the CPU of a machine that has a GPU."""

    device: object
    without_tests: object
    """The accuracy, if no test set is given."""
    accuracies: dict[str, tuple[object, float]]
    """The accuracy and the true one, by which of the two data sets are given."""


@dataclass(frozen=True, kw_only=True)
class OnCpu(ProbeInputs[OnCpuReply], probe="lab3.setup.training.on_cpu"):
    """One process trains, on what it has by default."""


def _trainings(request: Request) -> Iterator[Case]:
    params = request.params
    if params["function"] != TRAIN_TWO_HEADS:
        samples = len(request.tensors["inputs"]) - params["tests"]
        for changed in ({}, *params["again"]):
            yield {**params, **params["options"], **changed, "ranks": request.ranks, "samples": samples}


def _scripts(request: Request) -> Iterator[Case]:
    params = request.params
    if params["function"] == TRAIN_TWO_HEADS:
        samples = len(request.tensors["inputs"])
        for changed in ({"by_address": False}, *params["again"]):
            yield {**params["options"], **changed, "ranks": request.ranks, "samples": samples}


def _last_batch(case: Case) -> str:
    return "short" if -(-case["samples"] // case["ranks"]) % case["batch_size"] else "full"


_SHARES = Dimension(
    "shares", ("filled up", "even"), lambda case: "filled up" if case["samples"] % case["ranks"] else "even"
)
_LAST_BATCH = Dimension("last batch", ("short", "full"), _last_batch)
_LOSS = Dimension("loss", ("given", "the default"), lambda case: "the default" if case["classes"] else "given")
_MOMENTUM = Dimension("momentum", ("no", "yes"), lambda case: "yes" if case["momentum"] else "no")
_DTYPE = Dimension("dtype", ("float64", "float32"), lambda case: str(case["dtype"]))
_DRAWN = {each.name: each.values for each in (_SHARES, _LAST_BATCH, _LOSS, _MOMENTUM, _DTYPE)}
"""What trainings differ in. Of the two trainings of a grading one is always what the other is not."""
SPACES = (
    Space(
        probes=(Train.probe,),
        cases=_trainings,
        dimensions=(
            Dimension("ranks", ("2", "3"), lambda case: str(case["ranks"])),
            _SHARES,
            _LAST_BATCH,
            _LOSS,
            Dimension("test set", ("no", "yes"), lambda case: "yes" if case["tests"] else "no"),
            _MOMENTUM,
            _DTYPE,
            Dimension("epochs", ("1", "several"), lambda case: "1" if case["epochs"] == 1 else "several"),
        ),
        apart={
            ("ranks=3", "epochs=1"): "epochs follow each other as they do on two ranks",
            ("loss=given", "test set=yes"): "an accuracy is one of classes, whose loss is the default",
            ("loss=the default", "test set=no"): "a test set comes when all is trained",
        },
    ),
    Space(
        probes=(Train.probe,),
        cases=_scripts,
        dimensions=(
            Dimension(
                "meets",
                ("by address", "by environment"),
                lambda case: "by address" if case["by_address"] else "by environment",
            ),
            _LAST_BATCH,
        ),
    ),
)


def _drawn(generator: InputGenerator, *, opposite: bool) -> dict[str, str]:
    (row,) = generator.shared("lab3.trainings").cases(_DRAWN, 1)
    return {name: values[(row[name] == values[1]) != opposite] for name, values in _DRAWN.items()}


def _training(
    generator: InputGenerator,
    *,
    ranks: int,
    samples: int,
    options: Options,
    classes: bool,
    tests: int = 0,
    again: list[Changes] | None = None,
    dtype: str = "float64",
    function: str = f"{DDP}.train",
) -> Train:
    """A fresh case of this many samples to learn from, and `tests` more."""
    features, outputs = generator.odd(5, 9), generator.integer(3, 4)
    return Train(
        weights=generator.normal(ranks, outputs, features),
        shifts=generator.normal(ranks, outputs),
        inputs=generator.normal(samples + tests, features),
        targets=generator.normal(samples + tests, outputs),
        options=options,
        factors=[[generator.uniform(0.7, 1.3) for _ in range(_FACTORS)] for _ in range(ranks)],
        classes=classes,
        tests=tests,
        again=again or [],
        dtype=dtype,
        function=function,
    )


def _samples(generator: InputGenerator, row: dict[str, str], ranks: int, batch_size: int) -> int:
    """As many as make a rank's last batch full or not, in shares that are equal or must be filled up."""
    share = batch_size * generator.integer(3, 4)
    share -= 0 if row["last batch"] == "full" else generator.integer(1, batch_size - 1)
    return ranks * share - (0 if row["shares"] == "even" else generator.integer(1, ranks - 1))


def main_training(generator: InputGenerator) -> Train:
    """Samples for two ranks. One training for many checks.

    Then one more epoch with the same seed, and two with the next one.
    """
    row = _drawn(generator, opposite=False)
    generator = generator.shared("lab3.train")
    seed, momentum = generator.integer(1, 1000), generator.uniform(0.5, 0.8)
    classes = row["loss"] == "the default"
    samples = _samples(generator, row, 2, 4)
    tests = generator.integer(10, 20) if classes else 0
    options: Options = {
        "epochs": generator.integer(5, 7),
        "batch_size": 4,
        "learning_rate": generator.uniform(0.03, 0.05),
        "momentum": momentum if row["momentum"] == "yes" else 0.0,
        "seed": seed,
    }
    training = _training(
        generator,
        ranks=2,
        samples=samples,
        options=options,
        classes=classes,
        tests=tests,
        again=[{"epochs": 1}, {"by_address": True, "epochs": 2, "seed": seed + 1}],
        dtype=row["dtype"],
    )
    return replace(training, patience=generator.uniform(3.0, 4.0), late_seconds=generator.uniform(0.3, 0.4))


def opposite_training(generator: InputGenerator, ranks: int = 3) -> Train:
    """Samples for three ranks, or two; of everything else what `main_training` does not have in this grading."""
    row = _drawn(generator, opposite=True)
    generator = generator.shared("lab3.uneven")
    momentum = generator.uniform(0.5, 0.8)
    classes = row["loss"] == "the default"
    samples = _samples(generator, row, ranks, 4)
    tests = generator.integer(10, 20) if classes else 0
    with_momentum = row["momentum"] == "yes"
    options: Options = {
        "epochs": 2,
        "batch_size": 4,
        "learning_rate": generator.uniform(0.03, 0.05) if with_momentum else generator.uniform(0.05, 0.1),
        "momentum": momentum if with_momentum else 0.0,
    }
    return _training(
        generator, ranks=ranks, samples=samples, options=options, classes=classes, tests=tests, dtype=row["dtype"]
    )


def script_training(generator: InputGenerator) -> Train:
    """Samples for the script of Task 3.5: first the environment says where to meet, then an address does."""
    generator = generator.shared("lab3.debugging")
    share = generator.odd(13, 17)
    sizes = generator.shuffled([4, share])  # in one of the two the last batch is as large as the others
    training = _training(
        generator,
        ranks=2,
        samples=2 * share - 1,  # which a sampler fills up, or drops
        options={"epochs": 2, "batch_size": sizes[0], "learning_rate": generator.uniform(0.05, 0.1)},
        classes=True,
        again=[{"by_address": True, "epochs": 1, "batch_size": sizes[1]}],
        function=TRAIN_TWO_HEADS,
    )
    return replace(training, patience=generator.uniform(3.0, 4.0))
