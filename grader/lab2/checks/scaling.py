"""Judges Lab 2's gradient scaling by what it does to weights, scheduler and scale, however it is written."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradebox.course.criterion import builds_on, criterion, requires
from gradebox.run.assertions import number, require, require_arrays_close, require_between, require_close, require_equal
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab2.checks.crossed import crossed, require_followed
from grader.lab2.truth.mistakes import recognised
from grader.lab2.truth.training import (
    Adam,
    Regression,
    Run,
    final_scale,
    mean_cross_entropy,
    regression,
    relative_error,
    require_accurate,
    require_ran,
    windows,
)
from grader.shared.results import is_result, require_result

TRAINS = "lab2.amp.returns_result"
PATIENT = 1000
"""A growth interval that no run here reaches."""
LOW_PRECISION = 0.03
"""Relative: float16 and bfloat16 round each product by 0.05 % and 0.4 %; no mistake looked for is below 30 %."""
_FAR = 5e4
"""Times the other inputs: outputs are some hundred, and their gradients overflow once they are scaled."""
ORDER_HINT = "per window: backward of the scaled loss, unscale_, clip, step, update"


@criterion("lab2.scaling")
class TestScaling:
    @requires(TRAINS)
    def test_clipping_sees_unscaled_gradients(self, submission: Submission, generator: InputGenerator) -> None:
        """Clips gradients without the loss scale."""
        case, scale = regression(generator), 2.0 ** generator.integer(5, 7)
        # Two batches in a window: their sum is clipped, not each. The weight lies in three parameters, with one norm.
        sizes = [generator.odd(9, 15), generator.odd(3, 7)]
        run: Run = {"sizes": sizes, "rate": 0.5, "accumulation_steps": 2, "scaler": {"init_scale": scale}}
        gradient = case.gradient(case.start, slice(0, sum(sizes)))
        norm = float(np.linalg.norm(gradient))
        limits = [generator.uniform(0.1, 0.5) * norm, 3 * norm]
        runs = [
            run | {"dtype": dtype, "max_grad_norm": limit}
            for dtype in ("float16", "bfloat16", "float32")
            for limit in limits
        ]
        found = case.train(submission, runs)
        with recognised(case, runs, found):
            for one, seen in zip(runs, found, strict=True):
                limit, what = one["max_grad_norm"], f"an SGD step / learning rate in {one['dtype']}"
                where = f"where the gradient's norm is {norm:.4g} and max_grad_norm {limit:.4g}"
                step = np.subtract(seen["before"][0], seen["after"]) / run["rate"]
                wanted = min(limit, norm)
                require_close(
                    float(np.linalg.norm(step)),
                    wanted,
                    relative=LOW_PRECISION,
                    what=f"length of {what}, {where}",
                    show=lambda value: f"{value:.4g}",
                    hint=_clipping_hint(float(np.linalg.norm(step)), wanted, norm, scale),
                )
                require_between(
                    float(np.linalg.norm(step - gradient.ravel() * (wanted / norm)) / wanted),
                    0,
                    2 * LOW_PRECISION,
                    what=f"relative error of {what}, {where}: it has the right length, but another direction",
                    hint="one norm over all parameters, once per window: clipping changes no direction",
                )

    @requires(TRAINS)
    def test_overflow_skips_the_step(self, submission: Submission, generator: InputGenerator) -> None:
        """Skips the step of a batch that overflows."""
        generator = generator.shared("lab2.default overflow")
        features, classes, batches = generator.odd(5, 9), generator.odd(3, 7), generator.integer(5, 8)
        sizes, epochs = [generator.odd(3, 7) for _ in range(batches)], 2
        spoiled, far = generator.shuffled(range(1, batches - 1))[:2]  # steps are taken before and after
        weight = generator.normal(classes, features) * np.float32(0.3)
        # So small that nothing else overflows at the default scale.
        inputs = generator.normal(sum(sizes), features) * np.float32(0.02)
        labels = np.array([generator.integer(0, classes - 1) for _ in range(sum(sizes))])
        starts = np.cumsum([0, *sizes])
        # Of these the loss is finite, and only the gradients are not.
        rows = slice(int(starts[far]), int(starts[far + 1]))
        inputs[rows] *= _FAR
        labels[rows] = (inputs[rows] @ weight.T).argmin(axis=1)
        seen = submission.numeric_probe(
            "lab2.training.steps",
            weight=weight,
            inputs=inputs,
            labels=labels,
            sizes=sizes,
            spoiled=[spoiled],
            epochs=epochs,
        )
        happened = [index in (spoiled, far) for index in range(batches)] * epochs
        _require_steps({"before": seen.before, "after": seen.after, "frozen": seen.frozen}, happened)
        require_ran({"result": seen.result}, "float16", taken=len(happened) - sum(happened), skipped=sum(happened))
        if not is_result(seen.result):
            return
        _require_halved(seen.result, 2.0**16, sum(happened))
        taken = [row for index in range(batches) if not happened[index] for row in range(*starts[index : index + 2])]
        loss = mean_cross_entropy(
            np.asarray(inputs[taken], np.float64) @ np.asarray(weight, np.float64).T, labels[taken]
        )
        require_equal(len(seen.result["losses"]), epochs, what="number of AmpTraining.losses")
        for epoch, told in enumerate(seen.result["losses"]):
            require_close(
                number(told, f"AmpTraining.losses[{epoch}] of an epoch in which steps were skipped"),
                loss,
                relative=LOW_PRECISION,
                what=f"AmpTraining.losses[{epoch}], when {_which(happened)}",
                hint="the mean over the samples of the steps that were taken",
            )

    @requires(TRAINS)
    @builds_on("overflow_skips_the_step")
    def test_scheduler_waits_for_the_optimizer(self, submission: Submission, generator: InputGenerator) -> None:
        """Moves the schedule with taken steps only."""
        overflow, asked, found = _overflow(submission, generator)
        with recognised(overflow, asked, found):
            for run, seen in zip(asked, found, strict=True):
                spoiled = [part.overflows for part in windows(run)] * run["epochs"]
                require_equal(
                    seen["scheduler_steps"],
                    len(spoiled) - sum(spoiled),
                    what=f"steps of the scheduler over {len(spoiled)} batches, when {_which(spoiled)} in float16",
                    hint="only after a step that was taken: compare the scale before and after update()",
                )
            _require_schedule(overflow, asked[0], found[0])
        case = regression(generator)
        window, epochs = generator.integer(2, 3), generator.integer(2, 3)
        batches = window * generator.integer(2, 3) + 1
        run = {
            "dtype": "bfloat16",
            "sizes": [generator.odd(3, 5) for _ in range(batches)],
            "rate": 0.01,
            "loader": True,
        }
        run |= {"accumulation_steps": window, "decay": generator.uniform(0.6, 0.8), "epochs": epochs}
        (seen,) = case.train(submission, [run])
        with recognised(case, [run], [seen]):
            require_equal(
                seen["scheduler_steps"],
                epochs * -(-batches // window),
                what=f"steps of the scheduler over {epochs} epochs of {batches} batches, with "
                f"accumulation_steps={window}",
                hint="once per optimizer step, not per batch or epoch",
            )
            _require_schedule(case, run, seen)

    @requires(TRAINS)
    @builds_on("clipping_sees_unscaled_gradients", "overflow_skips_the_step")
    def test_scale_follows_its_settings(self, submission: Submission, generator: InputGenerator) -> None:
        """Lets the loss scale follow its settings."""
        overflow, asked, skipping = _overflow(submission, generator, scheduled=False)
        with recognised(overflow, asked, skipping):
            _require_skipped(overflow, asked[0], *skipping)
        case = regression(generator)
        runs: list[Run] = []
        overflows = []
        for _ in range(3):
            # One window overflows, then good ones make the scale grow; the last one has a single batch.
            bad, good = generator.integer(0, 1), generator.integer(3, 5)
            settings = {
                "init_scale": 2.0 ** generator.integer(0, 2),  # it grows, and must fit in the end
                "growth_factor": 2.0 ** generator.integer(1, 2),
                "backoff_factor": 2.0 ** -generator.integer(1, 3),
                "growth_interval": 2,
            }
            runs.append(
                {
                    "dtype": "float16",
                    "sizes": [generator.integer(1, 3) for _ in range(2 * (bad + 1 + good) - 1)],
                    "epochs": 2,
                    "loader": True,
                    "rate": 1e-3,
                    "accumulation_steps": 2,
                    "max_grad_norm": 1e6,
                    "scaler": settings,
                    "far": [2 * bad + generator.integer(0, 1)],
                }
            )
            overflows.append([*[False] * bad, True, *[False] * good] * 2)
        found = case.train(submission, runs)
        with recognised(case, runs, found):
            for run, happened, seen in zip(runs, overflows, found, strict=True):
                require_result(seen["result"])
                require_ran(seen, "float16", taken=len(happened) - 2, skipped=2)
                require_equal(
                    number(seen["result"]["final_scale"], "AmpTraining.final_scale"),
                    final_scale(run["scaler"], happened),
                    what=f"AmpTraining.final_scale after {len(happened)} windows, when {_which(happened)}, with "
                    f"{run['scaler']}",
                    hint="update() once per window: a window is one step, however many batches it has",
                )

    @requires(TRAINS)
    @builds_on("clipping_sees_unscaled_gradients", "overflow_skips_the_step", "scheduler_waits_for_the_optimizer")
    def test_accumulation_equals_one_large_batch(self, submission: Submission, generator: InputGenerator) -> None:
        """Accumulates as if in one large batch."""
        case = regression(generator)
        sizes = [
            generator.integer(2, 4),
            generator.integer(6, 9),
            generator.integer(5, 7),
            generator.integer(2, 3),
            generator.integer(4, 8),
        ]
        exact: Run = {
            "dtype": "float32",
            "wide": True,
            "sizes": sizes,
            "rate": 0.05,
            "epochs": 2,
            "accumulation_steps": 2,
            "loader": True,
        }
        low: Run = {
            "dtype": "float16",
            "sizes": sizes[:3],
            "rate": 0.05,
            "accumulation_steps": generator.integer(3, 5),  # one window, with all that there is or not full
            "max_grad_norm": 1e6,
            "scaler": {"init_scale": 2.0**6, "growth_interval": PATIENT},
        }
        rows = crossed(generator, case)
        asked = [exact, low, *rows]
        found = case.train(submission, asked)
        with recognised(case, asked, found):
            _require_accumulated(case, asked, found)

    @requires(TRAINS)
    @builds_on("accumulation_equals_one_large_batch")
    def test_small_gradients_survive(self, submission: Submission, generator: InputGenerator) -> None:
        """Loses no small gradients in float16."""
        features, classes, samples = generator.odd(9, 15), generator.odd(3, 7), generator.odd(15, 31)
        weight = generator.normal(classes, features) * np.float32(0.3)
        # The smallest numbers that float16 has: gradients are far below them.
        inputs = np.asarray(generator.rng.integers(1, 3, (samples, features)) * 2.0**-24, dtype=np.float32)
        labels = np.array([generator.integer(0, classes - 1) for _ in range(samples)])
        seen = submission.numeric_probe(
            "lab2.training.steps", weight=weight, inputs=inputs, labels=labels, sizes=[samples]
        )
        start, wide = np.asarray(weight, dtype=np.float64), np.asarray(inputs, dtype=np.float64)
        scores = np.exp(wide @ start.T)
        shares = scores / scores.sum(axis=1, keepdims=True) - np.eye(classes)[labels]
        truth = start - Adam().step(shares.T @ wide / samples)
        require_between(
            relative_error(seen.after, truth, start),
            0,
            LOW_PRECISION,
            what="relative error of a step in float16 from gradients of about 1e-8, without a given scaler",
            hint="float16 knows nothing between 0 and 6e-8: the loss must be scaled before backward",
        )

    @requires(TRAINS)
    @builds_on("overflow_skips_the_step", "accumulation_equals_one_large_batch")
    def test_only_float16_is_scaled(self, submission: Submission, generator: InputGenerator) -> None:
        """Scales the loss in float16 only."""
        case, scale = regression(generator), 2.0 ** generator.integer(9, 10)
        run: Run = {"sizes": [generator.odd(9, 15)], "rate": 0.01, "scaler": {"init_scale": scale}}
        samples = run["sizes"][0]
        largest = float(np.abs(case.difference(case.start, slice(0, samples))).max()) / samples
        runs = [run | {"dtype": dtype} for dtype in ("float32", "float16", "bfloat16")]
        for one, seen in zip(runs, case.train(submission, runs), strict=True):
            scaled = one["dtype"] == "float16"
            wanted = largest * (scale if scaled else 1.0)
            require_between(
                max(seen["largest_gradients"], default=0.0),
                wanted * (1 - LOW_PRECISION),
                wanted * (1 + LOW_PRECISION) * samples,  # of those who add up losses and divide the gradients later
                what=f"largest gradient of the outputs in backward with dtype=torch.{one['dtype']}, a scaler of "
                f"{scale:g} being given",
                show=lambda value: f"{value:.4g}",
                hint="float16 needs the loss multiplied by the scale; bfloat16 has float32's range and does not",
            )
            if not scaled and is_result(seen["result"]):
                require_equal(
                    seen["result"]["final_scale"], None, what=f"AmpTraining.final_scale with dtype=torch.{one['dtype']}"
                )

    @requires(TRAINS)
    @builds_on("overflow_skips_the_step", "accumulation_equals_one_large_batch")
    def test_float16_as_accurate_as_float32(self, submission: Submission, generator: InputGenerator) -> None:
        """Is as accurate in float16 as in float32."""
        require_accurate(submission, generator, "float16")


def _overflow(
    submission: Submission, generator: InputGenerator, *, scheduled: bool = True
) -> tuple[Regression, list[Run], list[dict[str, Any]]]:
    """Batches in float16 of which two overflow, one of them in backward only; and a batch without which there are none.

    Also what was seen of both trainings, which take two epochs.
    """
    generator = generator.shared("lab2.overflow")
    case = regression(generator)
    batches = generator.integer(5, 8)
    first, second = generator.shuffled(range(1, batches - 1))[:2]  # steps are taken before and after
    run: Run = {
        "dtype": "float16",
        "sizes": [generator.odd(1, 7) for _ in range(batches)],
        "epochs": 2,
        "rate": 0.02,
        "scaler": {"init_scale": 2.0 ** generator.integer(4, 7), "growth_interval": PATIENT},
        "spoiled": [first],
        "far": [second],
        "momentum": 0.5,  # which moves weights also where gradients are set to 0
    }
    if scheduled:
        run["decay"] = generator.uniform(0.7, 0.9)
    alone = run | {"sizes": [generator.odd(3, 7)], "spoiled": [], "far": [0]}
    return case, [run, alone], case.train(submission, [run, alone])


def _require_steps(seen: Mapping[str, Any], happened: Sequence[bool]) -> None:
    """Fail unless each batch changed the weights, but for those that overflow."""
    # The forward pass of batch i sees the weights that batch i - 1 left; the end comes after the last one.
    states = [*seen["before"], seen["after"]]
    require(
        all(np.isfinite(state).all() for state in states),
        "a batch that overflows in float16 left NaN or infinity in the weights",
        "look for gradients that are not finite before the optimizer's step, and skip it",
    )
    moved = [bool(np.any(np.not_equal(one, other))) for one, other in itertools.pairwise(states)]
    require_equal(
        moved,
        [not overflows for overflows in happened],
        what=f"whether each of {len(happened)} batches changed the weights, when {_which(happened)} in float16",
        hint=ORDER_HINT,
    )
    require_equal(seen["frozen"], [0.5, 0.5], what="a parameter that does not require a gradient, after training")


def _require_halved(result: Mapping[str, Any], scale: float, overflows: int) -> None:
    require_equal(
        number(result["final_scale"], "AmpTraining.final_scale"),
        scale / 2**overflows,
        what=f"AmpTraining.final_scale after {overflows} overflows, where the scaler began with {scale:g}",
        hint="update() once per step; it halves the scale after an overflow",
    )


def _require_skipped(case: Regression, run: Run, seen: dict[str, Any], hopeless: dict[str, Any]) -> None:
    """Fail unless the batches that overflow in `seen` are skipped, and nothing else; all of them in `hopeless`."""
    spoiled = [part.overflows for part in windows(run)] * run["epochs"]
    batches, scale = len(spoiled), run["scaler"]["init_scale"]
    _require_steps(seen, spoiled)
    require_result(seen["result"])
    require_ran(seen, "float16", taken=batches - sum(spoiled), skipped=sum(spoiled))
    _require_halved(seen["result"], scale, sum(spoiled))
    truth = case.follow(run)
    require_equal(len(seen["result"]["losses"]), run["epochs"], what="number of AmpTraining.losses")
    for epoch, (told, loss) in enumerate(zip(seen["result"]["losses"], truth.losses, strict=True)):
        require_close(
            number(told, f"AmpTraining.losses[{epoch}] of an epoch in which steps were skipped"),
            loss or 0.0,
            relative=LOW_PRECISION,
            what=f"AmpTraining.losses[{epoch}], when {_which(spoiled)}",
            hint="the mean over the samples of the steps that were taken",
        )
    require_equal(
        require_result(hopeless["result"])["losses"],
        [None, None],
        what="AmpTraining.losses of two epochs without a step",
    )
    require_ran(hopeless, "float16", taken=0, skipped=2)


def _require_accumulated(case: Regression, asked: list[Run], found: list[dict[str, Any]]) -> None:
    """Fail unless each training came to what large batches come to: the first exactly, the second in float16."""
    (exact, low, *rows), (in_float64, in_float16, *others) = asked, found
    sizes, truth = exact["sizes"], case.follow(exact)
    require_ran(in_float64, "float32", taken=6, skipped=0)
    require_arrays_close(
        in_float64["after"],
        truth.weights[-1].ravel(),
        rtol=1e-9,
        atol=1e-12,
        what=f"weights after two epochs of batches of {sizes} in float64, with accumulation_steps=2",
        hint="right to seven digits: something was float32 on the way, the loss perhaps; what is finer stays as it is"
        if np.allclose(in_float64["after"], truth.weights[-1].ravel(), rtol=1e-6, atol=1e-6)
        else "the mean over all samples of the window, the short last window included: weigh each batch by its share, "
        "and clear the gradients once per window",
    )
    require_arrays_close(
        require_result(in_float64["result"])["losses"],
        [loss or 0.0 for loss in truth.losses],
        rtol=1e-6,
        what="AmpTraining.losses of that training, the mean over all samples of an epoch",
        hint="weigh each batch's mean by its samples, and divide by all of them; what was divided for accumulation is "
        "no mean any more",
    )
    for seen, run in ((in_float64, exact), (in_float16, low)):
        passes = ["forward", "backward"] * len(run["sizes"]) * run.get("epochs", 1)
        require_equal(
            seen["passes"],
            passes,
            what=f"forward and backward passes over batches of {run['sizes']}, with accumulation_steps="
            f"{run['accumulation_steps']}",
            hint="a window must not have to fit into memory: one forward pass and one backward pass per batch",
        )
    require_between(
        relative_error(in_float16["after"], case.follow(low).weights[-1], case.start),
        0,
        LOW_PRECISION,
        what="relative error of one step in float16 from three batches, clipped at a norm that is never reached",
        hint=f"gradients add up while they are scaled; {ORDER_HINT}",
    )
    for run, seen in zip(rows, others, strict=True):
        require_followed(case, run, seen)


def _require_schedule(case: Regression, run: Run, seen: dict[str, Any]) -> None:
    """Fail unless each step was made at its own learning rate."""
    require_between(
        relative_error(seen["after"], case.follow(run).weights[-1], case.start),
        0,
        LOW_PRECISION,
        what=f"relative error of the weights in {run['dtype']} after {run['epochs']} epochs, when the scheduler "
        f"multiplies the learning rate by {run['decay']:.3g} after each step",
        hint="the scheduler goes on right after the optimizer's step, not all at once at the end of an epoch",
    )


def _clipping_hint(length: float, wanted: float, norm: float, scale: float) -> str:
    """What a step of this length instead of the wanted one tells."""
    if abs(length / norm - 1) < LOW_PRECISION:
        return "the step has the norm of the whole gradient: nothing was clipped"
    if length < 1.5 * wanted / scale:
        return f"the step is {scale:g} times too short, and that is the loss scale: clip what has been unscaled"
    return f"clipping must see gradients without the loss scale, and one norm over all parameters; {ORDER_HINT}"


def _which(overflows: Sequence[bool]) -> str:
    """`number 2 overflows`, `numbers 2 and 4 overflow`; counted from 1."""
    numbers = [str(index) for index, bad in enumerate(overflows, start=1) if bad]
    return f"number {numbers[0]} overflows" if len(numbers) == 1 else f"numbers {' and '.join(numbers)} overflow"
