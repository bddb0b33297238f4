"""What the check of the unstable model asks of every run, and of single steps; `stability.py` is the check."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradebox.run.assertions import number, require, require_arrays_close, require_between, require_equal
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab2.truth.autoencoder import follow
from grader.lab2.truth.training import relative_error

STEP_ERROR = 1e-3
"""Of some steps in float32, relative to the way; rounding makes 1e-5 of it."""
LOW_PRECISION = {"float16": 0.05, "bfloat16": 0.2}
"""The same in 16 bits. Right ones over 60 draws: in float16 0.012 and less, in bfloat16, which rounds each product by
0.4 %, one in two above 0.004, one in ten above 0.024, and 0.09 at most. No mistake looked for is below 0.3."""
LOSS_ERROR = 0.05
"""Of a loss in 16 bits; rounding makes 4e-4 of it."""


_CROSSED = {
    "dtype": ("float32", "float16", "bfloat16"),
    "optimizer": ("default", "SGD"),
    "scale": ("none", "given"),
    "device": ("of the model", "given"),
    "epochs": ("default", "given"),
    "trouble": ("none", "spoiled"),
}


def _allowed(row: Mapping[str, Any]) -> bool:
    return bool(row["trouble"] == "none" or row["dtype"] == "float16")


def _crossed(generator: InputGenerator, row: Mapping[str, Any]) -> dict[str, Any]:
    """A training in which whatever a caller of `train_unstable` chooses meets everything else."""
    case: dict[str, Any] = {"arguments": {"dtype": row["dtype"]}, "moved": row["device"] == "given"}
    if row["epochs"] == "given":
        case["arguments"]["epochs"] = generator.integer(1, 3)
    if row["optimizer"] == "SGD":
        case["rate"] = generator.uniform(0.05, 0.2)
    if row["scale"] == "given":
        case["scale"] = {"initial_scale": 2.0 ** generator.integer(3, 8)}
    if row["trouble"] != "none":
        case["troubles"] = {str(generator.integer(0, 2)): row["trouble"]}
    return case


def _require_followed(
    case: Mapping[str, Any],
    run: Mapping[str, Any],
    weights: Mapping[str, Any],
    images: NDArray[np.float32],
    sizes: Sequence[int],
) -> None:
    """Fail unless a training came to what its arguments say."""
    dtype, epochs, rate = case["arguments"]["dtype"], case["arguments"].get("epochs", 5), case.get("rate")
    skipped = next((int(place) for place in case.get("troubles", {})), None)
    result, first = run["result"], case.get("scale", {}).get("initial_scale", 1.0)
    what = f"train_unstable() in {dtype} for {epochs} epochs of batches of {list(sizes)}, with " + ", ".join(
        [
            "no optimizer given" if rate is None else "SGD",
            f"DynamicLossScale({first:g})" if "scale" in case else "no loss_scale",
            *(["the device given"] if case["moved"] else []),
            *([f"an overflow in forward in batch {skipped + 1}"] if skipped is not None else []),
        ]
    )
    truth, losses = follow(weights, images, sizes, epochs, rate, skipped)
    require(run["training"], f"{what}: the model came in evaluation mode and was trained in it", "model.train()")
    require_equal([result["device"], *run["places"]], [run["asked"]] * 2, what=f"{what}: the device of the result")
    missed = 0 if skipped is None else epochs
    require_equal(
        [result["optimizer_steps"], result["skipped_steps"]],
        [len(sizes) * epochs - missed, missed],
        what=f"{what}: optimizer_steps and skipped_steps",
    )
    scales, halvings = [], 0
    for index in range(len(sizes) * epochs):
        scales.append(first / 2**halvings if "scale" in case else 1.0)
        halvings += index % len(sizes) == skipped
    require_equal([float(number(one, "scale")) for one in result["scales"]], scales, what=f"{what}: scales")
    require_arrays_close(
        result["losses"],
        losses,
        rtol=STEP_ERROR if dtype == "float32" else LOSS_ERROR,
        what=f"{what}: losses",
        hint="the mean over samples, unscaled",
    )
    if rate is None and dtype != "float32":
        return  # Adam makes full steps of gradients that are nearly 0, whose sign 16 bits do not hold
    start = np.concatenate([np.ravel(one) for one in weights.values()])
    require_between(
        relative_error(run["after"], truth, start),
        0,
        STEP_ERROR if dtype == "float32" else LOW_PRECISION[dtype],
        what=f"{what}: relative error of the weights",
        hint="gradients to None, backward of loss * scale, gradients / scale, step",
    )


def require_steps(submission: Submission, generator: InputGenerator) -> None:
    """Fail unless steps in float32 are exact, and the first skipped step is the one that is told of."""
    sizes = [generator.odd(7, 9), generator.odd(9, 11), generator.odd(3, 5)]
    weights = {
        "w1": generator.normal(32, 64) * np.float32(0.1),
        "b1": generator.normal(32) * np.float32(0.1),
        "w2": generator.normal(64, 32) * np.float32(0.2),
        "b2": generator.normal(64) * np.float32(0.1),
    }
    images = generator.normal(sum(sizes), 1, 8, 8) * np.float32(0.5)
    exact: dict[str, Any] = {"dtype": "float32", "epochs": generator.integer(2, 3)}
    rate = generator.uniform(0.05, 0.2)
    cases: list[dict[str, Any]] = [
        {"arguments": exact, "moved": True},
        {"arguments": exact, "rate": rate, "scale": {"initial_scale": 2.0 ** generator.integer(3, 8)}},
        {
            "arguments": {"epochs": 1},
            "rate": 1e-4,
            "scale": {"initial_scale": 4.0},
            "troubles": {"0": "bright", "1": "spoiled"},
        },
        {
            "arguments": {},
            "rate": 1e-4,
            "scale": {"initial_scale": 2.0**12},
            "troubles": {"0": "spoiled", "2": "bright"},
        },
    ]
    # Forward overflows there in float16 only, backward at this scale in every precision.
    other = {"epochs": 1, "dtype": "bfloat16"}
    for arguments in (other, other | {"dtype": "float32"}):
        cases.append(
            {"arguments": arguments, "rate": 1e-9, "scale": {"initial_scale": 2.0**127}, "troubles": {"0": "spoiled"}}
        )
    crossed = [_crossed(generator, row) for row in generator.cases(_CROSSED, 2, _allowed)]
    seen = submission.numeric_probe(
        "lab2.unstable.steps", images=images, sizes=sizes, cases=[*cases, *crossed], **weights
    )
    with_adam, with_sgd, bright, spoiled, *others = seen.runs[: len(cases)]
    for case, run in zip(crossed, seen.runs[len(cases) :], strict=True):
        _require_followed(case, run, weights, images, sizes)
    for run, used in ((with_adam, None), (with_sgd, rate)):
        what = f"train_unstable() in float32 for {exact['epochs']} epochs of batches of {sizes}, " + (
            "no optimizer being given" if used is None else "with SGD and a loss scale"
        )
        require(run["training"], f"{what}: the model came in evaluation mode and was trained in it", "model.train()")
        require_equal(
            [run["result"]["device"], *run["places"]],
            [run["asked"]] * 2,
            what=f"{what}: the device that it tells, and where the parameters are afterwards",
            hint="the device that is given, or the one where the parameters were",
        )
        truth, losses = follow(weights, images, sizes, exact["epochs"], used)
        start = np.concatenate([np.ravel(one) for one in weights.values()])
        require_between(
            relative_error(run["after"], truth, start),
            0,
            STEP_ERROR,
            what=f"{what}: relative error of the weights",
            hint="gradients to None, backward of loss * scale, gradients / scale, step; the optimizer is Adam with its "
            "defaults unless one is given",
        )
        require_arrays_close(
            run["result"]["losses"], losses, rtol=1e-4, what=f"{what}: losses", hint="the mean over samples, unscaled"
        )
    everything = ["encoder.1.weight", "encoder.1.bias", "decoder.0.weight", "decoder.0.bias"]
    for run, names, layer, where in (
        (bright, everything[:1], None, "at first in backward only, then in forward"),
        (spoiled, everything, "encoder.1", "at first in forward, then in backward only"),
    ):
        result, what = run["result"], f"train_unstable() of batches that overflow {where}"
        hint = "what find_nonfinite and trace_nonfinite say on the first skipped step, of its batch"
        require_equal(result["nonfinite_layer"], layer, what=f"{what}: nonfinite_layer", hint=hint)
        require_equal(result["nonfinite_parameters"], names, what=f"{what}: nonfinite_parameters", hint=hint)
        scales = [number(one, f"{what}: scales") for one in result["scales"]]
        require_equal(
            [one / scales[0] for one in scales[:3]],
            [1.0, 0.5, 0.25 if run is bright else 0.5],
            what=f"{what}: scales of its first batches, over the first",
        )
        for loss in result["losses"]:
            require(number(loss, f"{what}: losses") < 10, f"{what}: a loss of {loss:.3g}", "skipped steps do not count")
    for run, wide in zip(others, ("bfloat16", "float32"), strict=True):
        what = f"train_unstable() in {wide} of a batch that overflows there in backward only, in float16 in forward too"
        require(run["result"]["skipped_steps"] > 0, f"{what}: saw no skipped step", "all gradients are infinite or NaN")
        hint = "what trace_nonfinite says in the precision of the training"
        require_equal(run["result"]["nonfinite_layer"], None, what=f"{what}: nonfinite_layer", hint=hint)
    require_equal(spoiled["result"]["dtype"], "float16", what="StabilityRun.dtype, no dtype being given")
    require_equal(len(spoiled["result"]["losses"]), 5, what="number of StabilityRun.losses, epochs not being given")


def whole(count: float) -> str:
    return f"{count:.0f}"


def require_consistent(run: dict[str, Any], what: str, *, batches: int, scaled: bool) -> None:
    """Fail unless a run's counts, scales and weights tell the same story."""
    result = run["result"]
    require(
        run["finite"],
        f"{what} left NaN or infinity in the weights",
        "look at the gradients before the optimizer's step, not after it, and skip the step",
    )
    require_equal(len(result["scales"]), batches, what=f"{what}: number of scales, one per batch")
    require_equal(result["optimizer_steps"] + result["skipped_steps"], batches, what=f"{what}: steps taken and skipped")
    require_equal(run["moves"], result["optimizer_steps"], what=f"{what}: how often the weights changed")
    if not scaled:
        require_equal(sorted(set(result["scales"])), [1.0], what=f"{what}: scales without loss_scale")
        return
    halved = sum(after == before / 2 for before, after in itertools.pairwise(result["scales"]))
    same = sum(after == before for before, after in itertools.pairwise(result["scales"]))
    require_equal(halved + same, batches - 1, what=f"{what}: scales that stay or are halved from batch to batch")
    require(
        result["skipped_steps"] - 1 <= halved <= result["skipped_steps"],
        f"{what}: {result['skipped_steps']} steps were skipped, but the scale was halved {halved} times",
        "update the scale once per batch, whether its step was taken or skipped",
    )
