"""What the check of the unstable model requires of every run, and of single steps."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from gradebox.run.assertions import number, recognising, require, require_arrays_close, require_between, require_equal
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from gradebox.sandbox.probe_types import ProbeInputs
from grader.lab2.shared.checks import as_reported, listed
from grader.lab2.shared.reference import relative_error
from grader.lab2.stability import reference
from grader.lab2.stability.cases import unstable
from grader.lab2.stability.cases.controls import UnstableStepsWithTools, UnstableWithTools
from grader.lab2.stability.cases.unstable import (
    GainCase,
    GainRun,
    StabilityResult,
    StepsCase,
    StepsRun,
    UnstableReply,
    UnstableSteps,
    UnstableStepsReply,
)
from grader.lab2.stability.checks.mistakes import cause_of_steps

FALLS_TO = 0.7
"""Last loss / first loss of the unstable model; 0.35 to 0.40 over 14 seeds, and at least 1 when it does not learn."""
SCALING_GAINS = 0.8
"""Last loss with small gradients, scaled / not scaled; 0.56 to 0.67 over 14 seeds, and 1 when scaling does nothing."""
STEP_ERROR = 1e-3
"""Of some steps in float32, relative to the way; rounding makes 1e-5 of it."""
LOW_PRECISION = {"float16": 0.05, "bfloat16": 0.2}
"""The same in 16 bits. Right ones over 1,077 draws: 0.008 at most in float16, and 0.027 in bfloat16. No mistake looked
for is below 0.3."""
LOSS_ERROR = 0.05
"""Of a loss in 16 bits; rounding makes 4e-4 of it."""
_EVERYTHING = ["encoder.1.weight", "encoder.1.bias", "decoder.0.weight", "decoder.0.bias"]
"""The parameters of the unstable model."""


def require_steps(submission: Submission, generator: InputGenerator, replaced: Sequence[str]) -> None:
    """Fail unless steps in float32 are exact, and the first skipped step is the one that is reported.

    Of the student's tools, those that are `replaced` are the course's.
    """
    drawn = unstable.unstable_steps(generator)
    inputs: ProbeInputs[UnstableStepsReply] = drawn.inputs
    if replaced:
        inputs = UnstableStepsWithTools(**drawn.inputs.fields_by_name(), replaced=replaced)
    runs = iter(submission.numeric_probe(inputs).runs)
    exact, overflowing, others, crossed = (
        list(zip(cases, runs, strict=False)) for cases in (drawn.exact, drawn.overflowing, drawn.others, drawn.crossed)
    )
    with recognising(lambda: cause_of_steps(drawn.inputs, exact, error=STEP_ERROR)):
        for case, run in crossed:
            _require_followed(drawn.inputs, case, run)
        for case, run in exact:
            _require_exact(drawn.inputs, case, run)
    (_, in_backward), (_, in_forward) = overflowing
    _require_first_skip(
        in_backward.result, "in backward only, then in forward", _EVERYTHING[:1], None, third_scale=0.25
    )
    _require_first_skip(
        in_forward.result, "in forward, then in backward only", _EVERYTHING, "encoder.1", third_scale=0.25
    )
    for case, run in others:
        what = (
            f"train_unstable() in {case.arguments['dtype']} of a batch that overflows there in backward only, in "
            "float16 in forward too"
        )
        skipped = number(run.result["skipped_steps"], f"{what}: skipped_steps")
        require(
            skipped > 0,
            f"{what}: saw no skipped step",
            "Skip every step whose gradients are infinite or NaN, here all of them.",
        )
        hint = "Keep what trace_nonfinite says of that batch, with the dtype of the training."
        require_equal(run.result["nonfinite_layer"], None, what=f"{what}: nonfinite_layer", hint=hint)
    require_equal(in_forward.result["dtype"], "float16", what="StabilityRun.dtype, no dtype being given")
    losses = listed(in_forward.result["losses"], "StabilityRun.losses, epochs not being given")
    require_equal(len(losses), 5, what="number of StabilityRun.losses, epochs not being given")


def _require_followed(inputs: UnstableSteps, case: StepsCase, run: StepsRun) -> None:
    """Fail unless a training came to what its arguments say."""
    dtype, epochs, skipped = case.arguments["dtype"], case.arguments.get("epochs", 5), case.skipped
    result, first = run.result, (case.scale or {}).get("initial_scale", 1.0)
    what = f"train_unstable() in {dtype} for {epochs} epochs of batches of {inputs.sizes}, with " + ", ".join(
        [
            "no optimizer given" if case.rate is None else "SGD",
            "no loss_scale" if case.scale is None else f"DynamicLossScale({first:g})",
            *(["the device given"] if case.device_given else []),
            *([f"an overflow in forward in batch {skipped + 1}"] if skipped is not None else []),
        ]
    )
    expected = reference.follow(inputs, case)
    require(
        run.training,
        f"{what}: the model came in evaluation mode and was trained in it",
        "Call model.train() before the first batch.",
    )
    require_equal([result["device"], *run.places], [run.device] * 2, what=f"{what}: the device of the result")
    steps, missed = len(inputs.sizes) * epochs, 0 if skipped is None else epochs
    require_equal(
        [result["optimizer_steps"], result["skipped_steps"]],
        [steps - missed, missed],
        what=f"{what}: optimizer_steps and skipped_steps",
    )
    scales = [number(scale, "scale") for scale in listed(result["scales"], f"{what}: scales")]
    overflows = [index % len(inputs.sizes) == skipped for index in range(steps)]
    expected_scales = reference.scales(case.scale, overflows)[:-1] if case.scale is not None else [1.0] * steps
    require_equal(scales, expected_scales, what=f"{what}: scales")
    require_arrays_close(
        result["losses"],
        expected.losses,
        rtol=STEP_ERROR if dtype == "float32" else LOSS_ERROR,
        what=f"{what}: losses",
        hint="Take the mean over the samples, of losses without the scale.",
    )
    if case.rate is None and dtype != "float32":
        return  # Adam makes full steps of gradients that are nearly 0, whose sign 16 bits do not hold
    # A unit near zero may be on either side of the ReLU in 16 bits, which moved the weights of a right one by 0.08.
    right = (expected.weights, reference.follow(inputs, case, as_autocast=True).weights)
    require_between(
        min(relative_error(run.after, weights, reference.start(inputs)) for weights in right),
        0,
        STEP_ERROR if dtype == "float32" else LOW_PRECISION[dtype],
        what=f"{what}: relative error of the weights",
        hint=("Set gradients to None, go backward from loss * scale, divide the gradients by the scale, then step."),
    )


def _require_exact(inputs: UnstableSteps, case: StepsCase, run: StepsRun) -> None:
    """Fail unless a training in float32 came to the right weights and losses, where it was to run."""
    epochs, expected = case.arguments["epochs"], reference.follow(inputs, case)
    what = f"train_unstable() in float32 for {epochs} epochs of batches of {inputs.sizes}, " + (
        "no optimizer being given" if case.rate is None else "with SGD and a loss scale"
    )
    require(
        run.training,
        f"{what}: the model came in evaluation mode and was trained in it",
        "Call model.train() before the first batch.",
    )
    require_equal(
        [run.result["device"], *run.places],
        [run.device] * 2,
        what=f"{what}: the reported device, and where the parameters are afterwards",
        hint="Train on the device that is given; if none is, on the one where the parameters are.",
    )
    require_between(
        relative_error(run.after, expected.weights, reference.start(inputs)),
        0,
        STEP_ERROR,
        what=f"{what}: relative error of the weights",
        hint=(
            "Set gradients to None, go backward from loss * scale, divide the gradients by the "
            "scale, then step. The optimizer is Adam with its defaults unless one is given."
        ),
    )
    require_arrays_close(
        run.result["losses"],
        expected.losses,
        rtol=1e-4,
        what=f"{what}: losses",
        hint="Take the mean over the samples, of losses without the scale.",
    )


def _require_first_skip(
    result: StabilityResult, where: str, names: Sequence[str], layer: str | None, *, third_scale: float
) -> None:
    """Fail unless a result is about its first skipped step. `third_scale`: over the first one."""
    what = f"train_unstable() of batches that overflow at first {where}"
    hint = "Keep what find_nonfinite and trace_nonfinite say on the first skipped step, of its batch."
    require_equal(result["nonfinite_layer"], layer, what=f"{what}: nonfinite_layer", hint=hint)
    require_equal(result["nonfinite_parameters"], list(names), what=f"{what}: nonfinite_parameters", hint=hint)
    scales = [number(scale, f"{what}: scales") for scale in listed(result["scales"], f"{what}: scales")]
    require_equal(
        [scale / scales[0] for scale in scales[:3]],
        [1.0, 0.5, third_scale],
        what=f"{what}: scales of its first batches, over the first",
    )
    for value in listed(result["losses"], f"{what}: losses"):
        loss = number(value, f"{what}: losses")
        require(loss < 10, f"{what}: a loss of {loss:.3g}", "Leave skipped steps out of the mean.")


def require_gains(submission: Submission, generator: InputGenerator, replaced: Sequence[str]) -> None:
    """Fail unless the unstable model learns where it can, and says why where it cannot.

    Of the student's tools, those that are `replaced` are the course's.
    """
    inputs, cases = unstable.unstable(generator)
    asked: ProbeInputs[UnstableReply] = inputs
    if replaced:
        asked = UnstableWithTools(**inputs.fields_by_name(), replaced=replaced)
    reply = submission.numeric_probe(asked)
    runs = [reply.runs[inputs.cases.index(case)] for case in cases]
    results = [
        _require_consistent(case, run, batches=len(inputs.sizes) * case.epochs)
        for case, run in zip(cases, runs, strict=True)
    ]
    overflows, rescued, lost, hopeless, wide, alone = results

    # Backward overflows at first: the scale comes down until it fits, then every step is taken.
    what = "steps skipped while the scale came down from 2^16"
    require_between(overflows["skipped_steps"], 2, 12, what=what, show=_whole)
    require_equal(overflows["nonfinite_layer"], None, what="nonfinite_layer where only backward overflows")
    names = set(map(str, listed(overflows["nonfinite_parameters"], "nonfinite_parameters where gradients overflow")))
    require(
        bool(names) and names <= set(runs[0].names),
        f"nonfinite_parameters where gradients overflow: saw {sorted(names)}, parameters are {runs[0].names}",
        "Keep what find_nonfinite says on the first skipped step.",
    )
    # Forward overflows: no scale helps, and the layer can be named.
    for case, result, scaled in ((cases[3], hopeless, "with"), (cases[5], alone, "without")):
        what = f"where the activations overflow in float16, {scaled} loss_scale"
        require_equal(result["optimizer_steps"], 0, what=f"steps taken {what}")
        require_equal(result["losses"], [None] * case.epochs, what=f"losses {what}, when no step was taken")
        require_equal(result["nonfinite_layer"], "shrink", what=f"nonfinite_layer {what}")
    # The rest is trained without any trouble; without a scale, float16 hardly learns from small gradients.
    # An output that is large by chance may still overflow in float16, in a batch or two.
    for case, result, most in ((cases[1], rescued, 2), (cases[2], lost, 2), (cases[4], wide, 0)):
        what = f"steps skipped with gain {case.gain:.3g} in {case.dtype}"
        require_between(result["skipped_steps"], 0, most, what=what, show=_whole)
    for index, name in ((0, "large gradients"), (1, "small gradients, scaled"), (4, "large activations, bfloat16")):
        _require_learned(runs[index], name, cases[index].epochs)
    scaled_loss, unscaled_loss = (number(_losses(result)[-1], "last loss") for result in (rescued, lost))
    require(
        scaled_loss < SCALING_GAINS * unscaled_loss,
        f"small gradients in float16: the last loss is {scaled_loss:.3g} with a loss scale and {unscaled_loss:.3g} "
        "without",
        "Multiply the loss by the scale before backward, so that gradients do not become 0.",
    )


def _losses(result: StabilityResult) -> list[object]:
    return listed(result["losses"], "StabilityRun.losses") or [None]


def _require_learned(run: GainRun, name: str, epochs: int) -> None:
    """Fail unless the loss fell, by what the training reports and by what the course measures."""
    losses = _losses(run.result)
    first, last = number(losses[0], "first loss"), number(losses[-1], "last loss")
    require(
        last < FALLS_TO * first,
        f"train_unstable() with {name}: the loss went from {first:.3g} to {last:.3g} in {epochs} epochs",
        "Divide the gradients by the scale, then let the optimizer make its step.",
    )
    before, after = number(run.before, "loss before training"), number(run.after, "loss after training")
    require(
        after < FALLS_TO * before,
        f"train_unstable() with {name}: over the samples that it was trained on, the model's loss went from "
        f"{before:.3g} to {after:.3g}, though it reported {last:.3g}",
        "Train the model that is passed in, in place."
        if after == before
        else "Report the losses of the model that is trained, and clear its gradients before each batch.",
    )


def _whole(count: float) -> str:
    return f"{count:.0f}"


def _require_consistent(case: GainCase, run: GainRun, *, batches: int) -> StabilityResult:
    """The result; fails unless its counts, scales and weights agree with each other."""
    result = run.result
    what = f"train_unstable() with gain 2^{int(np.log2(case.gain))} in {case.dtype}" + (
        ", loss scaled" if case.scale else ""
    )
    require_equal(result["dtype"], case.dtype, what=f"{what}: StabilityRun.dtype")
    gain = number(result["gain"], f"{what}: StabilityRun.gain")
    require_equal(gain, case.gain, what=f"{what}: StabilityRun.gain")
    require(
        run.finite,
        f"{what} left NaN or infinity in the weights",
        "Look at the gradients before the optimizer's step, not after it, and skip the step.",
    )
    scales = [as_reported(scale, f"{what}: scales") for scale in listed(result["scales"], f"{what}: scales")]
    require_equal(len(scales), batches, what=f"{what}: number of scales, one per batch")
    taken, skipped = (
        as_reported(steps, f"{what}: steps") for steps in (result["optimizer_steps"], result["skipped_steps"])
    )
    require_equal(taken + skipped, batches, what=f"{what}: steps taken and skipped")
    require_equal(run.moves, result["optimizer_steps"], what=f"{what}: how often the weights changed")
    if case.scale is None:
        require_equal(sorted(set(scales)), [1.0], what=f"{what}: scales without loss_scale")
        return result
    halved = sum(after == before / 2 for before, after in itertools.pairwise(scales))
    same = sum(after == before for before, after in itertools.pairwise(scales))
    require_equal(halved + same, batches - 1, what=f"{what}: scales that stay or are halved from batch to batch")
    require(
        skipped - 1 <= halved <= skipped,
        f"{what}: {result['skipped_steps']} steps were skipped, but the scale was halved {halved} times",
        "Update the scale once per batch, whether its step was taken or skipped.",
    )
    return result
