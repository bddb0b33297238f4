"""Inputs of the checks of gradient scaling: small trainings in which batches overflow, windows differ and steps are
skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from gradebox.run.input_generator import InputGenerator
from gradebox.sandbox.probe_types import Array, ProbeInputs
from grader.lab2.shared.cases import AmpResult
from grader.shared.cases import every_value
from grader.shared.dimensions import Case, Dimension, Space
from grader.shared.readings import ProductCount

# --- a linear model, by SGD on squared differences --------------------------------------------------------------------


class ScalerSettings(TypedDict, total=False):
    """Arguments of `torch.amp.GradScaler`: those that are there."""

    init_scale: float
    growth_factor: float
    backoff_factor: float
    growth_interval: int


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training. What is None is not given to `train_with_amp`."""

    dtype: str = "float16"
    sizes: list[int]
    """Of the batches."""
    rate: float
    """Of learning."""
    epochs: int = 1
    accumulation_steps: int | None = None
    max_grad_norm: float | None = None
    scaler: ScalerSettings | None = None
    in_float64: bool = False
    """Model and samples, throughout; `dtype` is float32 then."""
    loss_factor: float = 1.0
    overflows_in_forward: Sequence[int] = ()
    """Positions of batches whose inputs are infinite in float16."""
    overflows_in_backward: Sequence[int] = ()
    """Of batches whose loss is finite, and only the gradient of the last output is not."""
    decay: float | None = None
    """A scheduler multiplies the rate by it with each of its steps."""
    momentum: float = 0.0
    loader: bool = False
    """The batches come from a DataLoader, which has no positions."""
    device_given: bool = False
    """The model comes on the CPU, and the device is an argument."""

    @property
    def window(self) -> int:
        """Batches that make one optimizer step."""
        return self.accumulation_steps or 1

    @property
    def overflowing(self) -> tuple[int, ...]:
        """Positions of all batches that overflow."""
        return *self.overflows_in_forward, *self.overflows_in_backward


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """What was observed of one training."""

    result: AmpResult
    before: list[list[float]]
    """The weights before each forward pass."""
    after: list[float]
    largest_gradients: list[float]
    """Of the outputs, in each backward pass."""
    passes: list[str]
    """"forward" or "backward", in order."""
    frozen: list[float]
    """A parameter that requires no gradient, afterwards; it was 0.5, 0.5."""
    scheduler_steps: int | None
    products: list[ProductCount]
    """The matrix products that ran."""


@dataclass(frozen=True, kw_only=True)
class TrainReply:
    """What was observed of each training."""

    runs: list[RunReport]


@dataclass(frozen=True, kw_only=True)
class Train(ProbeInputs[TrainReply], probe="lab2.scaling.train"):
    """Trainings of a linear model, each from the same weights."""

    weight: Array
    inputs: Array
    targets: Array
    runs: list[Run]


@dataclass(frozen=True)
class Regression:
    """A linear model and samples: outputs are inputs @ weight.T, the loss half the squared distance to the targets."""

    weight: NDArray[np.float32]
    inputs: NDArray[np.float32]
    targets: NDArray[np.float32]


def regression(generator: InputGenerator) -> Regression:
    """Random, of odd sizes; gradients are about 1, so a loss scale of 2^8 cannot overflow in float16, even in a sum."""
    features, outputs = generator.odd(9, 15), generator.odd(3, 7)
    return Regression(
        weight=generator.normal(outputs, features) * np.float32(0.3),
        inputs=generator.normal(64, features),
        targets=generator.normal(64, outputs),
    )


# --- what a caller of `train_with_amp` chooses ------------------------------------------------------------------------

NEVER_CLIPS = 1e6
"""A norm that no gradient here reaches."""
PATIENT = 1000
"""A growth interval that no run here reaches."""
_SMALL_LOSS = 2.0**-12
"""With the default scale of 2^16 it is as large as others at a scale of 2^4."""


def _window(case: Case) -> str:
    steps = case["accumulation_steps"] or 1
    if steps == 1:
        return "one batch"
    if len(case["sizes"]) < steps:
        return "longer than the epoch"
    return "short last" if len(case["sizes"]) % steps else "divides"


def _clipping(case: Case) -> str:
    limit = case["max_grad_norm"]
    return "none" if limit is None else "never" if limit >= NEVER_CLIPS / 10 else "a limit"


def _sizes(case: Case) -> str | None:
    if len(case["sizes"]) == 1:
        return "one batch"
    return "unequal" if len(set(case["sizes"])) > 1 else None


def _scaler(case: Case) -> str:
    settings = case["scaler"]
    if settings is None:
        return "none"
    return "grows" if settings.get("growth_interval", 2000) < PATIENT else "constant"


def _overflow(case: Case) -> str:
    return "forward" if case["overflows_in_forward"] else "backward" if case["overflows_in_backward"] else "none"


_WIDE_ENOUGH = "it has the range for what overflows in float16"
TRAINING = Space(
    probes=(Train.probe,),
    cases=lambda request: request.params["runs"],
    dimensions=(
        Dimension(
            "dtype",
            ("float32", "float64", "float16", "bfloat16"),
            lambda case: "float64" if case["in_float64"] else str(case["dtype"]),
        ),
        Dimension("window", ("one batch", "divides", "short last", "longer than the epoch"), _window),
        Dimension("sizes", ("one batch", "unequal"), _sizes),
        Dimension("clipping", ("none", "never", "a limit"), _clipping),
        Dimension("overflow", ("none", "forward", "backward"), _overflow),
        Dimension("epochs", ("1", "several"), lambda case: "1" if case["epochs"] == 1 else "several"),
        Dimension("scheduler", ("none", "decays"), lambda case: "decays" if case["decay"] else "none"),
        Dimension("batches", ("a list", "a loader"), lambda case: "a loader" if case["loader"] else "a list"),
        Dimension("scaler", ("none", "constant", "grows"), _scaler),
        Dimension("optimizer", ("plain", "momentum"), lambda case: "momentum" if case["momentum"] else "plain"),
        Dimension(
            "device", ("of the model", "given"), lambda case: "given" if case["device_given"] else "of the model"
        ),
    ),
    apart={
        ("sizes=one batch", "window=divides"): "a window of several batches needs them",
        ("sizes=one batch", "window=short last"): "a window of several batches needs them",
        **{
            (f"overflow={where}", f"dtype={dtype}"): _WIDE_ENOUGH
            for where in ("forward", "backward")
            for dtype in ("float32", "float64", "bfloat16")
        },
    },
)

NormOf = Callable[[Run], float]
"""The norm of a run's first gradient, which only the reference knows."""


def crossed(generator: InputGenerator, norm_of: NormOf) -> list[Run]:
    """Trainings of this grading, one of which clips a short window; within ten each choice meets each other one."""
    rows = every_value(generator, TRAINING.values(), 4, TRAINING.allows)
    short_and_clipped = TRAINING.values({"window": ("short last",), "clipping": ("a limit",)})
    rows += generator.cases(short_and_clipped, 1, TRAINING.allows)
    return [_crossed(generator, norm_of, row) for row in rows]


def _crossed(generator: InputGenerator, norm_of: NormOf, row: Mapping[str, str]) -> Run:
    steps = 1 if row["window"] == "one batch" else generator.integer(2, 3)
    batches = {
        "one batch": generator.integer(2, 4),
        "divides": 2 * steps,
        "short last": steps + generator.integer(1, steps - 1) if steps > 1 else 1,
        "longer than the epoch": generator.integer(2, 3),
    }[row["window"]]
    if row["sizes"] == "one batch":
        batches = 1
    if row["window"] == "longer than the epoch":
        steps = batches + generator.integer(1, 2)
    sizes = [generator.integer(1, 4) * 2 + index % 2 for index in range(batches)]
    loss_factor = _SMALL_LOSS if row["scaler"] == "none" and row["dtype"] == "float16" else 1.0
    scalers: dict[str, ScalerSettings] = {
        "constant": {"init_scale": 2.0**5, "growth_interval": PATIENT},
        "grows": {"init_scale": 2.0**2, "growth_interval": 2},
    }
    run = Run(
        dtype="float32" if row["dtype"] == "float64" else row["dtype"],
        in_float64=row["dtype"] == "float64",
        sizes=sizes,
        accumulation_steps=steps,
        epochs=1 if row["epochs"] == "1" else generator.integer(2, 3),
        rate=0.02 / loss_factor,
        loss_factor=loss_factor,
        loader=row["batches"] == "a loader",
        device_given=row["device"] == "given",
        scaler=scalers.get(row["scaler"]),
        decay=round(generator.uniform(0.5, 0.8), 3) if row["scheduler"] == "decays" else None,
        momentum=round(generator.uniform(0.5, 0.9), 3) if row["optimizer"] == "momentum" else 0.0,
    )
    limit = None if row["clipping"] == "none" else NEVER_CLIPS
    if row["clipping"] == "a limit":
        limit = round(generator.uniform(0.1, 0.5), 3) * norm_of(run)
    positions = [generator.integer(0, batches - 1)] if row["overflow"] != "none" else []
    return replace(
        run,
        max_grad_norm=limit,
        overflows_in_forward=positions if row["overflow"] == "forward" else [],
        overflows_in_backward=positions if row["overflow"] == "backward" else [],
    )


# --- trainings that one check is about --------------------------------------------------------------------------------


def clipped(generator: InputGenerator) -> Run:
    """A window of two batches: their sum is to be clipped, not each of them."""
    scale = 2.0 ** generator.integer(5, 7)
    sizes = [generator.odd(9, 15), generator.odd(3, 7)]
    return Run(sizes=sizes, rate=0.5, accumulation_steps=2, scaler={"init_scale": scale})


def skipping(generator: InputGenerator, *, scheduled: bool) -> tuple[Regression, list[Run]]:
    """Two epochs of batches in float16 of which two overflow, one of them in backward only; and of one that does."""
    generator = generator.shared("lab2.overflow")
    case = regression(generator)
    batches = generator.integer(5, 8)
    first, second = generator.shuffled(range(1, batches - 1))[:2]  # steps are taken before and after
    run = Run(
        sizes=[generator.odd(1, 7) for _ in range(batches)],
        epochs=2,
        rate=0.02,
        scaler={"init_scale": 2.0 ** generator.integer(4, 7), "growth_interval": PATIENT},
        overflows_in_forward=[first],
        overflows_in_backward=[second],
        momentum=0.5,  # which moves weights also where gradients are set to 0
        decay=generator.uniform(0.7, 0.9) if scheduled else None,
    )
    alone = replace(run, sizes=[generator.odd(3, 7)], overflows_in_forward=[], overflows_in_backward=[0])
    return case, [run, alone]


def short_windows(generator: InputGenerator) -> Run:
    """Windows in bfloat16, the last of which is short, with a scheduler."""
    window, epochs = generator.integer(2, 3), generator.integer(2, 3)
    batches = window * generator.integer(2, 3) + 1
    return Run(
        dtype="bfloat16",
        sizes=[generator.odd(3, 5) for _ in range(batches)],
        rate=0.01,
        loader=True,
        accumulation_steps=window,
        decay=generator.uniform(0.6, 0.8),
        epochs=epochs,
    )


def growing(generator: InputGenerator) -> list[Run]:
    """A window overflows, then good ones make the scale grow; the last window of an epoch has a single batch.

    In one training the very last window makes the scale grow. In the other one a good window is left over in each
    epoch, and goes on to count in the next one. Their factors differ, so that one has no default.
    """
    grows, backs_off = generator.shuffled([1, 2]), generator.shuffled([1, generator.integer(2, 3)])
    windows = [(0, 4), (1, generator.shuffled([3, 5])[0])]
    return [_growing(generator, *own) for own in generator.shuffled(list(zip(windows, grows, backs_off, strict=True)))]


def _growing(generator: InputGenerator, windows: tuple[int, int], grows: int, backs_off: int) -> Run:
    before, after = windows
    settings: ScalerSettings = {
        "init_scale": 2.0 ** generator.integer(0, 2),  # it grows, and must fit in the end
        "growth_factor": 2.0**grows,
        "backoff_factor": 2.0**-backs_off,
        "growth_interval": 2,
    }
    return Run(
        sizes=[generator.integer(1, 3) for _ in range(2 * (before + 1 + after) - 1)],
        epochs=2,
        loader=True,
        rate=1e-3,
        accumulation_steps=2,
        max_grad_norm=NEVER_CLIPS,
        scaler=settings,
        overflows_in_backward=[2 * before + generator.integer(0, 1)],
    )


def accumulated(generator: InputGenerator) -> list[Run]:
    """Batches of unequal sizes: in float64, and one window of them in float16."""
    sizes = [
        generator.integer(2, 4),
        generator.integer(6, 9),
        generator.integer(5, 7),
        generator.integer(2, 3),
        generator.integer(4, 8),
    ]
    return [
        Run(dtype="float32", in_float64=True, sizes=sizes, rate=0.05, epochs=2, accumulation_steps=2, loader=True),
        Run(
            sizes=sizes[:3],
            rate=0.05,
            accumulation_steps=generator.integer(3, 5),  # one window, with all that there is or not full
            max_grad_norm=NEVER_CLIPS,
            scaler={"init_scale": 2.0**6, "growth_interval": PATIENT},
        ),
    ]


def scaled(generator: InputGenerator) -> list[Run]:
    """One step in each precision, with a scaler."""
    scale = 2.0 ** generator.integer(9, 10)
    run = Run(sizes=[generator.odd(9, 15)], rate=0.01, scaler={"init_scale": scale})
    return [replace(run, dtype=dtype) for dtype in ("float32", "float16", "bfloat16")]


def unscaled(generator: InputGenerator) -> list[Run]:
    """One step in each precision that needs no scaling, with a scaler and without.

    Gradients are so large that no loss scale leaves them finite: float32 and bfloat16 reach 2^128.
    """
    factor = 2.0 ** generator.integer(115, 117)
    run = Run(sizes=[generator.odd(9, 15)], rate=0.05 / factor, loss_factor=factor)
    scaler: ScalerSettings = {"init_scale": 2.0 ** generator.integer(16, 20)}
    return [replace(run, dtype=dtype, scaler=given) for dtype in ("float32", "bfloat16") for given in (scaler, None)]


SPACES = (TRAINING,)
