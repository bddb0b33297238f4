"""What the probes of the sharded optimizer are given and return, and how their cases are drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from gradebox.sandbox.probe_types import Array, ProbeInputs
from grader.sharding.shared.cases import Collective, RefusalsReply

if TYPE_CHECKING:  # ranks that a probe starts anew cannot import it
    from gradebox.run.input_generator import InputGenerator

STEPS = 4
_MOST = 600
"""Values of all parameters of a case."""

Options = Mapping[str, float]
"""Of an optimizer, or of one of its groups."""


class Parameter(TypedDict):
    """A parameter of a case."""

    shape: list[int]
    group: int
    dtype: str
    transposed: bool
    """Whether its strides are those of a transposed matrix."""
    silent: list[int]
    """Steps in which it has no gradient."""


class OptimizerCase(TypedDict):
    """What happens to an optimizer, step by step."""

    optimizer: str
    """Its class in `torch.optim`."""
    options: Options
    groups: list[Options]
    """The options of each group, beside its parameters."""
    parameters: list[Parameter]
    steps: int
    scheduler: bool
    """Whether a scheduler of the learning rate steps after each step."""
    changed: Options
    """Options of the last group that are changed after the first step."""
    closure: int | None
    """The step that is made with a closure."""
    late: int | None
    """The step before which a further group joins."""
    late_options: Options
    reloaded: int | None
    """The step before which another optimizer, of equal parameters and other options, goes on with the state."""


@dataclass(frozen=True, kw_only=True)
class SavedState:
    """A `state_dict()`."""

    state: dict[str, Array]
    """Tensors by number and name: `0.exp_avg`."""
    places: list[str]
    """The types of the devices where they are."""
    numbers: list[object]
    """Of the parameters of each group."""
    options: list[dict[str, object]]
    """Of each group."""


@dataclass(frozen=True, kw_only=True)
class HeldStates:
    """What an optimizer's states take."""

    bytes: int
    """That a rank holds more than before the optimizer was made."""
    elsewhere: list[int]
    """At most on each other rank's GPU."""


@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """What became of a case on one rank."""

    weights: Array
    closures: list[object]
    """How often one was called, and what the step with it returned."""
    options: list[dict[str, object]]
    """Of each group, after all steps."""
    counts: list[int]
    """Of the parameters of each group."""
    saved: SavedState | None
    held: HeldStates | None
    """What the rank holds in the end; None of the whole optimizer."""


@dataclass(frozen=True, kw_only=True)
class TrainReply:
    """What became of each case."""

    runs: list[TrainedRun]


@dataclass(frozen=True, kw_only=True)
class Train(ProbeInputs[TrainReply], probe="sharding.zero.optimizer.train"):
    """Steps with the submission's optimizer."""

    cases: list[OptimizerCase]
    numbers: Array
    """Values of the parameters, of which each case takes as many as it needs."""
    slopes: Array
    """Their gradients in each step."""


@dataclass(frozen=True, kw_only=True)
class TrainUnsharded(ProbeInputs[TrainReply], probe="sharding.zero.unsharded.train"):
    """The same with the optimizer class itself, without a submission."""

    cases: list[OptimizerCase]
    numbers: Array
    slopes: Array


@dataclass(frozen=True, kw_only=True)
class HeldRun:
    """What one rank holds and sends in a case."""

    bytes: int
    """That it holds more after two steps than before."""
    elsewhere: list[int]
    """At most on each other rank's GPU."""
    copied_bytes: int
    """From the device to the host."""
    computed_bytes: float
    """That kernels of a second step moved to compute."""
    collectives: list[Collective]
    """Of a second step."""
    weights: Array
    """After both steps: what is held and sent must be what updates them."""


@dataclass(frozen=True, kw_only=True)
class HeldReply:
    """What one rank holds and sends in each case."""

    runs: list[HeldRun]


@dataclass(frozen=True, kw_only=True)
class Hold(ProbeInputs[HeldReply], probe="sharding.zero.optimizer.held"):
    """Two steps with the submission's optimizer."""

    cases: list[OptimizerCase]
    numbers: Array
    slopes: Array


@dataclass(frozen=True, kw_only=True)
class Refuse(ProbeInputs[RefusalsReply], probe="sharding.zero.optimizer.refusals"):
    """Calls that make no sense, of some of these parameters."""

    case: OptimizerCase
    numbers: Array


# --- how cases are drawn ----------------------------------------------------------------------------------------------

OPTIMIZERS: dict[str, Options] = {
    "AdamW": {"lr": 0.05},
    "SGD": {"lr": 0.05, "momentum": 0.9},
    "RMSprop": {"lr": 0.02, "momentum": 0.5},
    "Adamax": {"lr": 0.05},
    "Adafactor": {"lr": 0.05},
}
"""The last one looks at rows and columns of a matrix, and so wants it whole. Adagrad of PyTorch 2.11 is not among them:
it has no state for a group that is added after it was made (KeyError: 'sum')."""
_OTHER_OPTION = {"AdamW": "eps", "SGD": "momentum", "RMSprop": "alpha"}
"""Of each class, which is changed on the way."""


def _parameter(
    *shape: int, group: int = 0, dtype: str = "float32", transposed: bool = False, silent: Sequence[int] = ()
) -> Parameter:
    return {"shape": list(shape), "group": group, "dtype": dtype, "transposed": transposed, "silent": list(silent)}


def _case(optimizer: str, parameters: Sequence[Parameter], groups: Sequence[Options] = ({},)) -> OptimizerCase:
    if optimizer == "Adafactor":
        # PyTorch takes the epsilon of a group's first dtype for all its parameters, and a share may lack that one.
        parameters = [{**parameter, "dtype": "float32"} for parameter in parameters]
    return {
        "optimizer": optimizer,
        "options": OPTIMIZERS[optimizer],
        "groups": list(groups),
        "parameters": list(parameters),
        "steps": STEPS,
        "scheduler": False,
        "changed": {},
        "closure": None,
        "late": None,
        "late_options": {},
        "reloaded": None,
    }


def _mixed(generator: InputGenerator) -> list[Parameter]:
    """Parameters of two groups with everything that parameters can be, in any order."""
    silent = generator.integer(0, STEPS - 1)
    return generator.shuffled(
        [
            _parameter(generator.integer(5, 9), generator.integer(2, 6)),
            _parameter(generator.integer(3, 5), generator.integer(6, 8), transposed=True),
            _parameter(generator.integer(8, 12), group=1),
            _parameter(generator.integer(2, 4), 3, group=1, dtype="bfloat16"),
            _parameter(4, generator.integer(2, 5), silent=[silent]),
            _parameter(generator.integer(3, 7), group=1, silent=range(STEPS)),
        ]
    )


def training(generator: InputGenerator, cases: list[OptimizerCase], most: int = _MOST) -> Train:
    """Steps of these cases, of at most so many values, with values and gradients of this grading."""
    return Train(cases=cases, numbers=generator.normal(most), slopes=generator.normal(STEPS, most))


def unsharded(inputs: Train | Hold) -> TrainUnsharded:
    """The same steps with whole optimizers."""
    return TrainUnsharded(cases=inputs.cases, numbers=inputs.numbers, slopes=inputs.slopes)


def several_optimizers(generator: InputGenerator) -> tuple[Train, Train]:
    """Trainings on two ranks, with groups, and on four, which have fewer parameters than there are ranks."""
    first, second, third = generator.shuffled(list(OPTIMIZERS))[:3]
    decay: dict[str, Options] = {"AdamW": {"weight_decay": 0.3}, "Adafactor": {"weight_decay": 0.3}}
    few = [_parameter(generator.integer(3, 6), generator.integer(3, 6)), _parameter(generator.integer(3, 9))]
    cases = [
        _case(first, _mixed(generator), [{}, {"lr": generator.uniform(0.01, 0.02), **decay.get(first, {})}]),
        _case(second, _mixed(generator), [{"lr": generator.uniform(0.1, 0.2)}, {}]),
    ]
    on_two = training(generator, cases)
    return on_two, training(generator, [_case(third, generator.shuffled(few))])


def changed_options(generator: InputGenerator) -> Train:
    """A training with a scheduler, and one with a closure and options that change on the way."""
    first, second = generator.shuffled(["AdamW", "SGD", "RMSprop"])[:2]
    group = {"lr": generator.uniform(0.01, 0.04)}
    later = {"weight_decay": generator.uniform(0.1, 0.4), _OTHER_OPTION[second]: generator.uniform(0.3, 0.6)}
    scheduled: OptimizerCase = {**_case(first, _mixed(generator), [{}, group]), "scheduler": True}
    parameters = _mixed(generator)
    changed: OptimizerCase = {
        **_case(second, parameters, [group, {}]), "closure": generator.integer(0, STEPS - 1), "changed": later,
    }  # fmt: skip
    return training(generator, [scheduled, changed])


def reloaded(generator: InputGenerator) -> Train:
    """Trainings that are saved and loaded on the way."""
    kinds = generator.shuffled(["AdamW", "SGD", "RMSprop"])[:2]
    group = {"lr": generator.uniform(0.01, 0.04)}
    step = generator.integer(1, STEPS - 1)
    cases: list[OptimizerCase] = [{**_case(kind, _mixed(generator), [{}, group]), "reloaded": step} for kind in kinds]
    return training(generator, cases)


STATES: Mapping[str, int] = {"AdamW": 2, "SGD": 1}
"""Of each parameter, as large as it."""


def late_group(generator: InputGenerator) -> Train:
    """A training that a further group joins: larger than what is there, and than the allocator's granularity."""
    early, side = generator.integer(3, 6), 8 * generator.integer(3, 5)
    late = generator.shuffled(
        [*(_parameter(early, 64) for _ in range(2)), *(_parameter(side, 64, group=1) for _ in range(4))]
    )
    options = {"lr": generator.uniform(0.1, 0.2)}
    step = generator.integer(1, STEPS - 2)
    kind = generator.shuffled(list(STATES))[0]
    return training(
        generator, [{**_case(kind, late), "late": step, "late_options": options}], sum(map(size_of, late)) // 4
    )


HELD_STEPS = 2


def held(generator: InputGenerator, ranks: int) -> Hold:
    """AdamW of parameters of one size, and of some whose number says nothing about their bytes."""
    generator = generator.shared(f"sharding.zero.held.{ranks}")
    side = 16 * generator.integer(2, 4)
    large, small = generator.integer(40, 64), generator.integer(1, 3)
    order = generator.shuffled([large, small])
    cases = [
        _case("AdamW", [_parameter(side, 64) for _ in range(2 * ranks)]),
        _case("AdamW", [_parameter(count, 64) for count in order * ranks]),  # dealt out in turn, one rank has all
        _case("AdamW", [_parameter(count, 64) for count in sorted(order * ranks)]),  # cut in the middle, it has, too
        # If each group is shared out by itself, all of these are the first rank's.
        _case("AdamW", [_parameter(side, 64, group=number) for number in range(2 * ranks)], [{}] * (2 * ranks)),
    ]
    if ranks == 2:  # by numbers of values, the largest first, one rank gets all of one dtype
        dtypes = ("float32", "float64", "float64", "float32") * 2
        counts = [large + 2 * (len(dtypes) - place) for place in range(len(dtypes))]
        pairs = zip(counts, dtypes, strict=True)
        cases.append(_case("AdamW", generator.shuffled([_parameter(count, 64, dtype=dtype) for count, dtype in pairs])))
    most = max(sum(map(size_of, case["parameters"])) for case in cases) // 4
    cases = [{**case, "steps": HELD_STEPS} for case in cases]
    return Hold(cases=cases, numbers=generator.normal(most), slopes=generator.normal(HELD_STEPS, most))


def size_of(parameter: Parameter) -> int:
    """Bytes of a parameter of float32 or float64."""
    size = 8 if parameter["dtype"] == "float64" else 4
    for side in parameter["shape"]:
        size *= side
    return size


def refused(generator: InputGenerator) -> Refuse:
    """Three parameters, and calls that make no sense of them."""
    return Refuse(case=_case("SGD", [_parameter(3), _parameter(4), _parameter(5)]), numbers=generator.normal(_MOST))
