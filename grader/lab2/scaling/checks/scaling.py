"""Judges Lab 2's gradient scaling by what it does to weights, scheduler and scale, however it is written."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gradebox.course.criterion import criterion, requires
from gradebox.run.assertions import (
    Cause,
    number,
    recognising,
    require,
    require_arrays_close,
    require_between,
    require_close,
    require_equal,
)
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab2.scaling import reference
from grader.lab2.scaling.cases import steps, trainings
from grader.lab2.scaling.cases.trainings import Regression, Run, RunReport
from grader.lab2.scaling.checks.mistakes import OTHERS_SCALED, recognised, recognised_steps, scaling_cause_of
from grader.lab2.scaling.checks.trainings import require_followed, train
from grader.lab2.shared.cases import AmpResult
from grader.lab2.shared.checks import listed, require_accurate, require_ran
from grader.lab2.shared.endings import trained_by
from grader.lab2.shared.reference import relative_error
from grader.shared.results import is_result, require_result

TRAINS = "lab2.amp.returns_result"
LOW_PRECISION = 0.03
"""Relative: float16 and bfloat16 round each product by 0.05 % and 0.4 %; no mistake looked for is below 30 %."""
ORDER_HINT = "Call per window: backward of the scaled loss, unscale_, clip, step, update."


@criterion("lab2.scaling")
class TestScaling:
    @requires(TRAINS)
    def test_clipping_sees_unscaled_gradients(self, submission: Submission, generator: InputGenerator) -> None:
        case = trainings.regression(generator)
        # Two batches in a window: their sum is clipped, not each. The weight is in three parameters, with one norm.
        run = trainings.clipped(generator)
        scale = reference.first_scale(run)
        gradient = reference.gradient_of(case, reference.start(case), slice(0, sum(run.sizes)))
        norm = float(np.linalg.norm(gradient))
        limits = [generator.uniform(0.1, 0.5) * norm, 3 * norm]
        runs = [
            replace(run, dtype=dtype, max_grad_norm=limit)
            for dtype in ("float16", "bfloat16", "float32")
            for limit in limits
        ]
        reports = train(submission, case, runs)
        with recognised(case, runs, reports):
            for run, limit, report in zip(runs, limits * 3, reports, strict=True):
                what = f"an SGD step / learning rate in {run.dtype}"
                where = f"where the gradient's norm is {norm:.4g} and max_grad_norm {limit:.4g}"
                step = np.subtract(report.before[0], report.after) / run.rate
                expected = min(limit, norm)
                require_close(
                    float(np.linalg.norm(step)),
                    expected,
                    relative=LOW_PRECISION,
                    what=f"length of {what}, {where}",
                    show=lambda value: f"{value:.4g}",
                    hint=_clipping_hint(float(np.linalg.norm(step)), expected, norm, scale),
                )
                require_between(
                    float(np.linalg.norm(step - gradient.ravel() * (expected / norm)) / expected),
                    0,
                    2 * LOW_PRECISION,
                    what=f"relative error of {what}, {where}: it has the right length, but another direction",
                    hint="Clip one norm over all parameters, once per window. Clipping changes no direction.",
                )

    @requires(TRAINS)
    def test_overflow_skips_the_step(self, submission: Submission, generator: InputGenerator) -> None:
        case = steps.default_overflow(generator)
        reply = trained_by(submission, case.steps)
        epochs = case.steps.epochs
        overflows = case.overflows * epochs
        with recognised_steps(case.steps, case.overflows, reply):
            _require_steps(reply.before, reply.after, reply.frozen, overflows)
            require_ran(reply.result, "float16", taken=len(overflows) - sum(overflows), skipped=sum(overflows))
            if not is_result(reply.result):
                return
            _require_halved(reply.result, 2.0**16, sum(overflows))
            _require_losses(reply.result, [reference.taken_loss(case)] * epochs, overflows)

    @requires(TRAINS)
    def test_scheduler_waits_for_the_optimizer(self, submission: Submission, generator: InputGenerator) -> None:
        overflow, runs = trainings.skipping(generator, scheduled=True)
        reports = train(submission, overflow, runs)
        with recognised(overflow, runs, reports):
            for run, report in zip(runs, reports, strict=True):
                overflows = reference.overflows(run)
                require_equal(
                    report.scheduler_steps,
                    len(overflows) - sum(overflows),
                    what=f"steps of the scheduler over {len(overflows)} batches, when {_which(overflows)} in float16",
                    hint="Move the scheduler after a taken step only: compare the scale before and after update().",
                )
            _require_schedule(overflow, runs[0], reports[0])
        case = trainings.regression(generator)
        run = trainings.short_windows(generator)
        (report,) = train(submission, case, [run])
        with recognised(case, [run], [report]):
            require_equal(
                report.scheduler_steps,
                run.epochs * len(reference.windows(run)),
                what=f"steps of the scheduler over {run.epochs} epochs of {len(run.sizes)} batches, with "
                f"accumulation_steps={run.accumulation_steps}",
                hint="Let the scheduler go on once per optimizer step, not per batch or epoch.",
            )
            _require_schedule(case, run, report)

    @requires(TRAINS)
    def test_scale_follows_its_settings(self, submission: Submission, generator: InputGenerator) -> None:
        overflow, skipping = trainings.skipping(generator, scheduled=False)
        reports = train(submission, overflow, skipping)
        with recognised(overflow, skipping, reports):
            _require_skipped(overflow, skipping[0], *reports)
        case = trainings.regression(generator)
        runs = trainings.growing(generator)
        reports = train(submission, case, runs)
        with recognised(case, runs, reports):
            for run, report in zip(runs, reports, strict=True):
                overflows = reference.overflows(run)
                require_result(report.result)
                require_ran(report.result, "float16", taken=len(overflows) - 2, skipped=2)
                require_equal(
                    number(report.result["final_scale"], "AmpTraining.final_scale"),
                    reference.final_scale(run),
                    what=f"AmpTraining.final_scale after {len(overflows)} windows, when {_which(overflows)}, with "
                    f"{run.scaler}",
                    hint="Call `update()` once per window. A window is one step, however many batches it has.",
                )

    @requires(TRAINS)
    def test_accumulation_equals_one_large_batch(self, submission: Submission, generator: InputGenerator) -> None:
        case = trainings.regression(generator)
        runs = trainings.accumulated(generator)
        runs += trainings.crossed(generator, lambda run: reference.first_norm(case, run))
        reports = train(submission, case, runs)
        with recognised(case, runs, reports):
            _require_accumulated(case, runs, reports)

    @requires(TRAINS)
    def test_small_gradients_survive(self, submission: Submission, generator: InputGenerator) -> None:
        case = steps.small_gradients(generator)
        reply = trained_by(submission, case)
        with recognised_steps(case, [False], reply):
            require_between(
                relative_error(reply.after, reference.after_one_step(case), np.asarray(case.weight, dtype=np.float64)),
                0,
                LOW_PRECISION,
                what="relative error of a step in float16 from gradients of about 1e-8, without a given scaler",
                hint="Scale the loss before backward. Float16 knows nothing between 0 and 6e-8.",
            )
        if reply.products != ["float16"]:
            # If all trainings multiply in another dtype, another check charges for it. This one must be no exception.
            usual = trained_by(submission, steps.default_overflow(generator).steps).products
            require_equal(
                reply.products,
                usual,
                what="dtypes of the matrix products of a training on small numbers in float16",
                hint="Train in the same way, however small the numbers are. The loss scale keeps their gradients.",
            )

    @requires(TRAINS)
    def test_only_float16_is_scaled(self, submission: Submission, generator: InputGenerator) -> None:
        case = trainings.regression(generator)
        runs = trainings.scaled(generator)
        scale, samples = reference.first_scale(runs[0]), runs[0].sizes[0]
        largest = float(np.abs(reference.difference(case, reference.start(case), slice(0, samples))).max()) / samples
        reports = train(submission, case, runs)
        with recognising(lambda: scaling_cause_of(case, runs, reports)):
            for run, report in zip(runs, reports, strict=True):
                is_scaled = run.dtype == "float16"
                expected = largest * (scale if is_scaled else 1.0)
                require_between(
                    max(report.largest_gradients, default=0.0),
                    expected * (1 - LOW_PRECISION),
                    expected * (1 + LOW_PRECISION) * samples,  # if losses are added up and gradients divided later
                    what=f"largest gradient of the outputs in backward with dtype=torch.{run.dtype}, a scaler of "
                    f"{scale:g} being given",
                    show=lambda value: f"{value:.4g}",
                    hint="Multiply the loss by the scale in float16 only. Bfloat16 has float32's range and does "
                    "without.",
                )
                if not is_scaled and is_result(report.result):
                    require_equal(
                        report.result["final_scale"], None, what=f"AmpTraining.final_scale with dtype=torch.{run.dtype}"
                    )
        large = trainings.unscaled(generator)
        _require_large_gradients(case, large, train(submission, case, large))

    @requires(TRAINS)
    def test_float16_as_accurate_as_float32(self, submission: Submission, generator: InputGenerator) -> None:
        def usual() -> list[str]:
            reports = train(submission, trainings.regression(generator), trainings.scaled(generator)[1:2])
            return sorted({product["dtype"] for product in reports[0].products})

        require_accurate(submission, generator, "float16", usual)


def _require_large_gradients(case: Regression, runs: Sequence[Run], reports: Sequence[RunReport]) -> None:
    """Fail unless each training made its step, whose gradients would be infinite if they were scaled."""
    for run, report in zip(runs, reports, strict=True):
        with recognising(lambda: _stays_or_is_lost(case, run, report)):  # noqa: B023
            given = "no scaler" if run.scaler is None else f"a scaler of {run.scaler['init_scale']:g}"
            require_between(
                relative_error(report.after, reference.follow(case, run).end, reference.start(case)),
                0,
                LOW_PRECISION,
                what=f"relative error of a step in {run.dtype} from gradients of about {run.loss_factor:.0e}, "
                f"{given} being given",
                hint="Multiply the loss by the scale in float16 only.",
            )


def _stays_or_is_lost(case: Regression, run: Run, report: RunReport) -> Cause | None:
    """Of a step from gradients that no loss scale leaves finite: whether it was skipped, or led to no numbers."""
    stays = np.array_equal(np.asarray(report.after), reference.start(case).ravel())
    return OTHERS_SCALED[run.dtype] if stays or not np.isfinite(report.after).all() else None


def _require_steps(
    before: Sequence[Sequence[float]], after: Sequence[float], frozen: Sequence[float], overflows: Sequence[bool]
) -> None:
    """Fail unless each batch changed the weights, except those that overflow."""
    # The forward pass of batch i sees the weights that batch i - 1 left; the end comes after the last one.
    states = [*before, after]
    require(
        all(np.isfinite(state).all() for state in states),
        "a batch that overflows in float16 left NaN or infinity in the weights",
        "Look for gradients that are not finite before the optimizer's step, and skip it.",
    )
    moved = [bool(np.any(np.not_equal(earlier, later))) for earlier, later in itertools.pairwise(states)]
    require_equal(
        moved,
        [not overflow for overflow in overflows],
        what=f"whether each of {len(overflows)} batches changed the weights, when {_which(overflows)} in float16",
        hint=ORDER_HINT,
    )
    require_equal(frozen, [0.5, 0.5], what="a parameter that does not require a gradient, after training")


def _require_halved(result: AmpResult, scale: float, overflows: int) -> None:
    require_equal(
        number(result["final_scale"], "AmpTraining.final_scale"),
        scale / 2**overflows,
        what=f"AmpTraining.final_scale after {overflows} overflows, where the scaler began with {scale:g}",
        hint="Call `update()` once per step. It halves the scale after an overflow.",
    )


def _require_losses(result: AmpResult, expected: Sequence[float | None], overflows: Sequence[bool]) -> None:
    """Fail unless each epoch's loss is the one expected."""
    losses = listed(result["losses"], "AmpTraining.losses")
    require_equal(len(losses), len(expected), what="number of AmpTraining.losses")
    for epoch, (loss, expected_loss) in enumerate(zip(losses, expected, strict=True)):
        require_close(
            number(loss, f"AmpTraining.losses[{epoch}] of an epoch in which steps were skipped"),
            expected_loss or 0.0,
            relative=LOW_PRECISION,
            what=f"AmpTraining.losses[{epoch}], when {_which(overflows)}",
            hint="Report the mean over the samples of the steps that were taken.",
        )


def _require_skipped(case: Regression, run: Run, report: RunReport, hopeless: RunReport) -> None:
    """Fail unless the batches that overflow in `run` are skipped, and nothing else; all of them in `hopeless`."""
    overflows = reference.overflows(run)
    _require_steps(report.before, report.after, report.frozen, overflows)
    require_result(report.result)
    require_ran(report.result, "float16", taken=len(overflows) - sum(overflows), skipped=sum(overflows))
    _require_halved(report.result, reference.first_scale(run), sum(overflows))
    _require_losses(report.result, reference.follow(case, run).losses, overflows)
    require_equal(
        require_result(hopeless.result)["losses"],
        [None, None],
        what="AmpTraining.losses of two epochs without a step",
    )
    require_ran(hopeless.result, "float16", taken=0, skipped=2)


def _require_accumulated(case: Regression, runs: Sequence[Run], reports: Sequence[RunReport]) -> None:
    """Fail unless each training came to what large batches come to: the first exactly, the second in float16."""
    (exact, low, *others), (in_float64, in_float16, *other_reports) = runs, reports
    sizes, expected = exact.sizes, reference.follow(case, exact)
    require_ran(in_float64.result, "float32", taken=6, skipped=0)
    require_arrays_close(
        in_float64.after,
        expected.end.ravel(),
        rtol=1e-9,
        atol=1e-12,
        what=f"weights after two epochs of batches of {sizes} in float64, with accumulation_steps=2",
        hint="Keep float64 all the way, also in the loss. This is right to seven digits."
        if np.allclose(in_float64.after, expected.end.ravel(), rtol=1e-6, atol=1e-6)
        else "Weigh each batch by its share of the window's samples, in the short last window, too, and clear the "
        "gradients once per window.",
    )
    require_arrays_close(
        require_result(in_float64.result)["losses"],
        [loss or 0.0 for loss in expected.losses],
        rtol=1e-6,
        what="AmpTraining.losses of that training, the mean over all samples of an epoch",
        hint="Weigh each batch's mean by its samples, and divide by all of them. A loss that was divided "
        "for accumulation is no mean any more.",
    )
    for report, run in ((in_float64, exact), (in_float16, low)):
        require_equal(
            report.passes,
            ["forward", "backward"] * len(run.sizes) * run.epochs,
            what=f"forward and backward passes over batches of {run.sizes}, with accumulation_steps="
            f"{run.accumulation_steps}",
            hint="Make one forward and one backward pass per batch. A window might not fit into memory.",
        )
        _require_small_products(case, run, report)
    require_between(
        relative_error(in_float16.after, reference.follow(case, low).end, reference.start(case)),
        0,
        LOW_PRECISION,
        what="relative error of one step in float16 from three batches, clipped at a norm that is never reached",
        hint=f"Let gradients add up while they are scaled. {ORDER_HINT}",
    )
    for run, report in zip(others, other_reports, strict=True):
        require_followed(case, run, report)


def _require_small_products(case: Regression, run: Run, report: RunReport) -> None:
    """Fail unless the device multiplied each batch by itself: forward, and back to the weights."""
    outputs, features = case.weight.shape
    of_part = 2 * math.ceil(outputs / 3) * features  # the model's weight is in three parameters
    largest = max((product["flops"] for product in report.products), default=0)
    require(
        largest <= of_part * max(run.sizes),
        f"a training on batches of {run.sizes} with accumulation_steps={run.accumulation_steps}: "
        f"{largest / of_part:.3g} samples went through a matrix product at once",
        "Send each batch through the model by itself. A window might not fit into memory.",
    )
    done = sum(product["flops"] * product["count"] for product in report.products)
    least = 4 * outputs * features * sum(run.sizes) * run.epochs
    require(
        done >= least,
        f"a training on batches of {run.sizes}: matrix products of {done:,} FLOPs, fewer than the {least:,} of a "
        "forward and a backward pass of each sample",
        "Send each batch through the model, and go back from its loss.",
    )


def _require_schedule(case: Regression, run: Run, report: RunReport) -> None:
    """Fail unless each step was made at its own learning rate."""
    require_between(
        relative_error(report.after, reference.follow(case, run).end, reference.start(case)),
        0,
        LOW_PRECISION,
        what=f"relative error of the weights in {run.dtype} after {run.epochs} epochs, when the scheduler "
        f"multiplies the learning rate by {run.decay:.3g} after each step",
        hint="Let the scheduler go on right after the optimizer's step, not all at once at the end of an epoch.",
    )


def _clipping_hint(length: float, expected: float, norm: float, scale: float) -> str:
    """What a step of this length instead of the expected one shows."""
    if abs(length / norm - 1) < LOW_PRECISION:
        return "Clip the gradients to max_grad_norm: the step has the norm of the whole gradient."
    if length < 1.5 * expected / scale:
        return f"Clip what has been unscaled. The step is {scale:g} times too short, and that is the loss scale."
    return f"Clip gradients without the loss scale, by one norm over all parameters. {ORDER_HINT}"


def _which(overflows: Sequence[bool]) -> str:
    """`number 2 overflows`, `numbers 2 and 4 overflow`; counted from 1."""
    numbers = [str(index) for index, bad in enumerate(overflows, start=1) if bad]
    return f"number {numbers[0]} overflows" if len(numbers) == 1 else f"numbers {' and '.join(numbers)} overflow"
