"""Judges Lab 2's comparison of precisions: what was measured, what follows from it, and the report."""

from __future__ import annotations

import itertools
import math
from dataclasses import asdict

import numpy as np

from gradebox.course.criterion import criterion, requires
from gradebox.run.assertions import (
    CheckFailed,
    mebibytes,
    number,
    recognising,
    require,
    require_between,
    require_close,
    require_equal,
    seconds,
)
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab2.comparison import reference
from grader.lab2.comparison.cases import conclusions, measuring
from grader.lab2.comparison.cases.conclusions import Conclude
from grader.lab2.comparison.cases.measuring import (
    ACCURACIES,
    SLOW,
    STEPS,
    AccuraciesOnCpu,
    Compare,
    ComparedModel,
    ComparedOnCpu,
    CompareReference,
    CompareReply,
    Network,
    Plan,
    PrecisionRow,
    ReferenceRow,
)
from grader.lab2.comparison.checks import report as lab2_report
from grader.lab2.comparison.checks.conclusions import (
    cause_of_recommendations,
    cause_of_speedups,
    require_conclusions,
)
from grader.lab2.comparison.checks.mistakes import ACCURACY_ERROR, NUMBERS_COUNTED, Comparison, cause_of_accuracies
from grader.lab2.comparison.checks.plots import require_plots, require_written
from grader.lab2.shared.cases import DIGITS, PRECISIONS
from grader.lab2.shared.checks import require_passes, require_refused
from grader.lab2.shared.endings import trained_by
from grader.shared.cards import card_of

_OVERHEAD_SECONDS = 60e-6
"""What an honest method may add to a step: synchronisations, readings of clocks, a loss that is looked at."""
_TF32 = "Wait for the device before you stop the clock, and leave TF32 off. This is faster than float32 can be."
_TOLERANCE, _REAL_TOLERANCE = 0.02, 0.10
_PEAK_TOLERANCE = 0.02
"""For a batch or an output that one method keeps longer than another. Between precisions are 20 % and more, and a
peak that is not reset, or a model that is not let go, shows in full."""
_REAL_UNSPLIT_BYTES = 16 * 2**20
"""The allocator leaves up to 1 MiB of each large block unsplit, depending on what was freed before."""


def on(submission: Submission, device: str, case: Network) -> Network:
    """The network as it is run there: on a real GPU with as many samples as suit the card."""
    card = card_of(submission) if device == "cuda" else None
    if card is None:
        return case
    return measuring.on_card(case, min(card.flops[name] for name in PRECISIONS), card.free_bytes)


def compared(
    submission: Submission, device: str, case: Network, plan: Plan, conditions: list[dict[str, float]] | None = None
) -> CompareReply:
    """What `compare_precisions` returned, and on a real GPU what the course's own steps took there.

    The rows are one for each precision; how they came about is judged by one check only.
    """
    inputs = Compare(
        network=on(submission, device, case), plan=plan, reference_steps=STEPS[0] if device == "cuda" else 0
    )
    reply = submission.probe(inputs, device=device, values=False, conditions=conditions or [])
    require_equal(
        [row["dtype"] for row in reply.rows],
        [name for name, _ in plan.accuracies],
        what="precisions of compare_precisions(), in order",
    )
    return reply


def require_steps(reply: CompareReply, plan: Plan) -> None:
    """Fail unless full training steps were measured, as each precision needs them."""
    for row, (name, accuracy) in zip(reply.rows, plan.accuracies, strict=True):
        require_equal(row["accuracy"], accuracy, what=f"PrecisionResult.accuracy of {name}, which was passed in")
        require_equal(row["device"], "cuda", what=f"PrecisionResult.device of {name}")
    for (name, _), model in zip(plan.accuracies, reply.models, strict=False):
        _require_trained(model, name, plan)
    require_equal(len(reply.models), len(ACCURACIES), what="models that compare_precisions() made, one per precision")


def _require_trained(model: ComparedModel, name: str, plan: Plan) -> None:
    """Fail unless a model was trained with each step that it ran for."""
    what = f"compare_precisions(..., steps={plan.steps}, warmup={plan.warmup}) in {name}"
    # torch.utils.benchmark warms up on its own account, so there may be more.
    passes, least = model.forwards, plan.steps + plan.warmup
    require(
        passes >= least,
        f"{what}: the model ran forward {passes} times, expected {least} at least",
        "Make `warmup` steps that are not timed, and then `steps` that are.",
    )
    require_equal(
        model.modes, [True], what=f"{what}: model.training in each forward pass", hint="Call `model.train()`."
    )
    require_equal(model.steps, passes, what=f"{what}: steps of the optimizer, in {passes} forward passes")
    require(
        not {"float16", "bfloat16"} & set(model.losses),
        f"{what}: the cross entropy was computed in {' and '.join(model.losses)}",
        "Compute the loss in autocast, too. There it is computed in float32.",
    )
    require_equal(
        model.updates,
        passes if name == "float16" else 0,
        what=f"{what}: updates of a GradScaler",
        hint="Train float16 with a scaler, and no other precision: its time is that of such a training.",
    )
    adam = {"kind": "Adam", "lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0}
    require_equal(model.optimizers, [adam], what=f"{what}: its optimizer", hint="Take Adam with its defaults.")


def reference_rows(submission: Submission, device: str, case: Network) -> dict[str, ReferenceRow]:
    """The same steps measured by the course in a process of their own: a virtual GPU's seconds, and peaks.

    A virtual GPU takes the same time for each step, so there one is measured.
    """
    inputs = CompareReference(
        network=on(submission, device, case), precisions=["bfloat16", "float32", "float16"], steps=1
    )
    return submission.probe(inputs, device=device, values=False, student=False).rows


def _counts_numbers(row: PrecisionRow, case: Network) -> bool:
    """Whether the throughput is that of the numbers in a batch."""
    counted = number(row["samples_per_second"], "samples_per_second") * number(row["step_seconds"], "step_seconds")
    return math.isclose(counted, case.batch * case.widths[0], rel_tol=1e-6)


def _require_seconds(submission: Submission, device: str, case: Network, plan: Plan, reply: CompareReply) -> None:
    """Fail unless steps take what the course's own take."""
    if device == "cuda":
        slack, took = _REAL_TOLERANCE, reply.reference_seconds
    else:
        real = reference_rows(submission, device, case)
        slack, took = _TOLERANCE, {name: [real[name].step_seconds] for name in PRECISIONS}
    for row, (name, _) in zip(reply.rows, plan.accuracies, strict=True):
        low, high = min(took[name]), max(took[name])
        require_between(
            row["step_seconds"],
            low * (1 - slack),
            high * (1 + slack) + _OVERHEAD_SECONDS,
            what=f"seconds of a training step in {name} on {device}",
            show=seconds,
            expected=f"{seconds(low)} within {slack:.0%}",
            hint=_TF32
            if name == "float32" and number(row["step_seconds"], "step_seconds") < low
            else "Time from an idle device to an idle device, after the warm-up. Forward and loss run in autocast, "
            "with the precision's own dtype.",
        )


@criterion("lab2.comparison", early=True, timeline=True)
class TestComparison:
    def test_step_seconds_equal_reference(self, submission: Submission, generator: InputGenerator) -> None:
        case = measuring.network(generator)
        for device in measuring.devices(submission.device):
            plan = measuring.plans(submission.device, generator)[device]
            reply = compared(submission, device, case, plan)
            comparison = Comparison(submission, device, case, plan)
            with recognising(lambda: comparison.cause_of_seconds(reply.rows)):  # noqa: B023
                require_steps(reply, plan)
                _require_seconds(submission, device, case, plan, reply)

    def test_peaks_equal_reference(self, submission: Submission, generator: InputGenerator) -> None:
        case = measuring.network(generator)
        device = submission.device.name
        real = reference_rows(submission, device, case)
        plan = measuring.plans(submission.device, generator)[device]
        reply = compared(submission, device, case, plan)
        comparison = Comparison(submission, device, case, plan)
        with recognising(lambda: comparison.cause_of_peaks(reply.rows)):
            for row, (name, _) in zip(reply.rows, plan.accuracies, strict=True):
                peak = real[name].peak_bytes
                slack = _PEAK_TOLERANCE * peak + (_REAL_UNSPLIT_BYTES if device == "cuda" else 0)
                require_between(
                    row["peak_bytes"],
                    peak - slack,
                    peak + slack,
                    what=f"peak_bytes of training steps in {name}",
                    show=mebibytes,
                    expected=f"{mebibytes(peak)}, give or take {mebibytes(slack)}",
                    hint="Reset the peak for each precision, and let go of the model before. Parameters stay float32.",
                )
        on_cpu = submission.numeric_probe(ComparedOnCpu())
        what = 'compare_precisions(..., device="cpu")'
        require_equal(on_cpu.ran, ["cpu"], what=f"{what}: where its models ran")
        placed = [[row["device"], row["peak_bytes"]] for row in on_cpu.rows]
        require_equal(placed, [["cpu", None]], what=f"{what}: device and peak_bytes of its rows")

    def test_throughput_from_the_median_step(self, submission: Submission, generator: InputGenerator) -> None:
        case = measuring.network(generator)
        device = submission.device.name if submission.device.simulated else "vgpu:T4"
        plans = measuring.plans(submission.device, generator)
        plan = plans[SLOW]
        calm: dict[str, PrecisionRow] = {}
        calm_plan = plans.get(device, plan)
        calm_rows = compared(submission, device, case, calm_plan).rows
        for row, (name, _) in zip(calm_rows, calm_plan.accuracies, strict=True):
            calm[name] = row
        conditions = measuring.slow_and_fast_steps(case, plan)
        reply = compared(submission, device, case, plan, conditions)
        least = (
            len(plan.accuracies) * plan.steps * sum(2 * case.batch * a * b for a, b in itertools.pairwise(case.widths))
        )
        require(
            (reply.product_flops or 0) >= least,
            f"compare_precisions(..., steps={plan.steps}): matrix products of {reply.product_flops:,} FLOPs, fewer "
            f"than the {least:,} of its steps' forward passes",
            "Time training steps of the model that create_model() makes.",
        )
        comparison = Comparison(submission, device, case, plan, conditions)
        with recognising(lambda: comparison.cause_of_seconds(reply.rows)):
            for row, (name, _) in zip(reply.rows, plan.accuracies, strict=True):
                took = number(row["step_seconds"], "step_seconds")
                require_close(
                    took,
                    number(calm[name]["step_seconds"], "step_seconds"),
                    relative=0.05,
                    what=f"step_seconds in {name}, when of {plan.steps} timed steps one is far longer and one far "
                    f"shorter, after {plan.warmup} steps to warm up",
                    show=seconds,
                    hint="Time the steps one by one, and take the median.",
                )
                require_close(
                    row["samples_per_second"],
                    case.batch / took,
                    relative=1e-6,
                    what=f"samples_per_second in {name} for steps of {case.batch} samples in {seconds(took)}",
                    show=lambda value: f"{value:.6g}",
                    hint=NUMBERS_COUNTED
                    if _counts_numbers(row, case)
                    else "Divide the samples of a batch by the seconds of a step.",
                )

    @requires("lab2.amp.returns_result")
    def test_accuracies_equal_reference(self, submission: Submission, generator: InputGenerator) -> None:
        inputs, training, share = measuring.accuracies(generator)
        reply = trained_by(submission, inputs)
        real = submission.probe(training, device="cpu", student=False)
        accuracies: object = reply.accuracies
        if not isinstance(accuracies, dict):
            raise CheckFailed(f"measure_accuracies() returned {accuracies!r}, expected a dict")
        require_equal(list(accuracies), inputs.precisions, what="names in measure_accuracies(), in the order of dtypes")
        with recognising(lambda: cause_of_accuracies(submission, inputs, reply, real)):
            for name in inputs.precisions:
                require_between(
                    accuracies[name],
                    real.test - ACCURACY_ERROR,
                    real.test + ACCURACY_ERROR,
                    what=f"accuracy in {name} on 359 test images, {share:.0%} of them with a wrong label",
                    expected=f"about {real.test:.3f} (on the training images: {real.train:.3f})",
                    hint="Make a new model for each precision. Train on the one loader, and evaluate on the other.",
                )
            batches = inputs.epochs * -(-DIGITS // 200)
            require_equal(
                sorted((asdict(model) for model in reply.models), key=str),
                [{"training": [name], "evaluation": [name], "batches": batches} for name in sorted(inputs.precisions)],
                what="dtypes of the outputs in training and evaluation, and batches trained on, of each model that "
                "measure_accuracies() made",
                hint="Train each model for all epochs in one precision, and evaluate it in the same one.",
            )
            first, second = np.size(inputs.first), np.size(inputs.second)
            least = len(inputs.precisions) * inputs.epochs * DIGITS * 2 * (2 * first + 3 * second)
            require(
                reply.product_flops >= least,
                f"measure_accuracies(): matrix products of {reply.product_flops:,} FLOPs, fewer than the {least:,} of "
                "a forward and a backward pass of each image in each precision",
                "Train a model of its own in each precision.",
            )
        on_cpu = submission.numeric_probe(AccuraciesOnCpu())
        require_equal(on_cpu.ran, ["cpu"], what='measure_accuracies(..., device="cpu"): where its models ran')
        require_passes(submission, generator, "measure_accuracies")

    def test_conclusions_follow(self, submission: Submission, generator: InputGenerator) -> None:
        cases = conclusions.made_up(generator)
        cases += [(case, reference.recommendation(case)) for case in conclusions.crossed(generator)]
        reply = submission.numeric_probe(Conclude([case for case, _ in cases]))
        hint = cause_of_recommendations(cases, reply.answers)
        with recognising(lambda: cause_of_speedups(cases, reply.answers)):
            for (case, expected), answer in zip(cases, reply.answers, strict=True):
                require_conclusions(case, expected, answer, hint)

    def test_wrong_arguments_refused(self, submission: Submission, generator: InputGenerator) -> None:
        inputs = measuring.refused(generator)
        reply = submission.probe(inputs)
        for call, refused in zip(inputs.compared, reply.compared, strict=True):
            shown = ", ".join(f"{name}={value}" for name, value in call.items())
            require_refused(refused, call is not inputs.compared[-1], f"compare_precisions() with {shown}")
        for names, refused in zip(inputs.concluded, reply.concluded, strict=True):
            is_wrong = names is not inputs.concluded[-1]
            require_refused(refused, is_wrong, f"conclude() of results in {', '.join(names) or 'nothing'}")

    def test_results_and_plots_saved(self, submission: Submission, generator: InputGenerator) -> None:
        require_plots(submission, generator)
        chosen = ["--precisions=bfloat16,float32", "--epochs=1"]  # float16's own troubles are judged elsewhere
        small = ["--layers=1", "--width=64", "--batch=1", "--steps=1"]
        programs = (("precision_comparison", "precisions", [*chosen, *small]), ("amp_training", "training", chosen))
        for name, stem, arguments in programs:
            rows = require_written(submission, name, stem, arguments)
            names = {row.get("dtype") for row in rows if isinstance(row, dict)}
            require(
                {"bfloat16", "float32"} <= names,
                f"results of {name} with {' '.join(chosen)}: saw precisions {sorted(map(str, names))}",
            )

    def test_report_agrees_with_results(self, submission: Submission) -> None:
        lab2_report.judge(submission)
