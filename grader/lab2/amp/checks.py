"""Judges Lab 2's training in mixed precision: what runs in which precision, and that nothing is lost by it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

from gradebox.course.criterion import criterion, requires
from gradebox.run.assertions import (
    Cause,
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
from grader.lab2.amp import mistakes, reference
from grader.lab2.amp.cases import (
    ONE_EPOCH,
    OTHERS,
    SEVERAL_EPOCHS,
    Defaults,
    DefaultsRun,
    EvaluateCall,
    Evaluation,
    Precision,
    PrecisionReply,
    PrecisionRun,
    TrainArguments,
    classification,
    defaulted_arguments,
    evaluate,
    precision,
    refused_arguments,
)
from grader.lab2.amp.mistakes import ADAM_ERROR, LOSS_ERROR
from grader.lab2.shared.checks import listed, require_accurate, require_passes, require_ran
from grader.lab2.shared.endings import trained_by
from grader.lab2.shared.reference import relative_error
from grader.shared.results import require_result

MOST_PRODUCTS = 9
"""Matrix products for each batch. One forward and one backward pass through two layers are 5; whoever trains once for
show and once in another way needs 10."""
LEAST_AGREEMENT = 0.8
"""Of a step with its gradient. Right ones: 1.0; half of the gradients turned round: 0.5."""
AUTOCAST_HINT = (
    "Put `with torch.autocast(device_type, dtype=...)` around the forward pass and the loss, and around nothing else."
)


def trained(
    submission: Submission, generator: InputGenerator, precisions: Sequence[str] = ("float16",), epochs: int = ONE_EPOCH
) -> tuple[PrecisionReply, Precision]:
    """What was observed of a classifier's training in each precision, and the case it was trained on."""
    case = precision(generator, precisions, epochs)
    return trained_by(submission, case), case


def _require_in_float32(run: PrecisionRun, dtype: str) -> None:
    """Fail unless parameters and Adam's averages are in float32, in a training in `dtype`."""
    during = sorted({name for note in run.forwards for name in note.dtypes})
    hint = (
        "Do not cast the model. Autocast casts for each product; model.half() casts the "
        "weights themselves, and updates get lost."
    )
    require_equal(during, ["float32"], what=f"dtypes of parameters during training in {dtype}", hint=hint)
    require_equal(run.parameters, ["float32"], what=f"dtypes of parameters after training in {dtype}", hint=hint)
    if dtype in mistakes.LOW_PRECISIONS:
        require(
            not reference.are_rounded(run.after, dtype),
            f"after training in {dtype} many parameters are numbers of {dtype}, as if they had been cast to it",
            hint,
        )
    hint = "Make the optimizer for the parameters that are trained, and leave them in float32."
    require_equal(run.state, ["float32"], what=f"dtypes of Adam's averages after training in {dtype}", hint=hint)


def _require_loss_in_float32(run: PrecisionRun, dtype: str, case: Precision) -> None:
    hint = (
        "Compute the loss inside the autocast block, which chooses float32. Outside, it has the dtype of the outputs."
    )
    if run.losses:  # else it was put together by hand
        what = f"dtype in which the cross entropy was computed, in a training in {dtype}"
        require_equal(run.losses, ["float32"], what=what, hint=hint)
    require(
        not reference.stands_still(case, run),
        f"train_with_amp() in {dtype} on samples of which the model is nearly sure: some weights of the right classes "
        "did not move, as if their probabilities were rounded to 1 in 16 bits",
        hint,
    )


def _require_backward_outside(run: PrecisionRun, dtype: str, case: Precision | None = None) -> None:
    """Fail unless autocast was off in backward; with a case of one step, also by where that step led."""
    inside = sum(note.autocast for note in run.backwards)
    require(
        inside == 0 and bool(run.backwards),
        f"train_with_amp() in {dtype}: {inside} of {len(run.backwards)} backward passes ran with autocast switched on",
        ("Leave the with-block before backward(). Its operations run in the types that forward chose."),
    )
    share = None if case is None else reference.agreement(case, run.after)
    require(
        share is None or share > LEAST_AGREEMENT,
        f"train_with_amp() in {dtype}: the first layer's step goes against its gradient in {share or 0:.0%} of the "
        "weights, as if autocast were on in the backward pass (this model then turns some gradients round)",
        ("Leave the with-block before backward(). Its operations run in the types that forward chose."),
    )


def _recognised(
    run: PrecisionRun, dtype: str, device: str, case: Precision | None = None
) -> AbstractContextManager[None]:
    """If a comparison in here fails, name the mistake that leads to the dtypes; with a case, to the steps as well."""

    def cause() -> Cause | None:
        in_steps = case and mistakes.cause_of_steps(run, case, dtype, ONE_EPOCH, device)
        return in_steps or mistakes.cause_of_dtypes(run, dtype, device)

    return recognising(cause)


@criterion("lab2.amp")
class TestAmp:
    def test_returns_result(self, submission: Submission, generator: InputGenerator) -> None:
        reply, case = trained(submission, generator)
        self._require_complete(reply, case, ONE_EPOCH)
        try:
            reply, case = trained(submission, generator, epochs=SEVERAL_EPOCHS)
        except CheckFailed as error:  # one step can be judged all the same
            raise CheckFailed(
                f"{SEVERAL_EPOCHS} epochs of {len(case.sizes)} batches: {error.message}", error.cause or error.hint
            ) from error
        self._require_complete(reply, case, SEVERAL_EPOCHS)
        require_passes(submission, generator, "train_with_amp")

    @staticmethod
    def _require_complete(reply: PrecisionReply, case: Precision, epochs: int) -> None:
        run, device = reply.runs["float16"], reply.device
        samples = sum(note.samples for note in run.forwards if note.gradients)
        trained_at_all = samples >= sum(case.sizes)
        losses = require_result(run.result)["losses"]

        def cause() -> Cause | None:
            in_steps = mistakes.cause_of_steps(run, case, "float16", epochs, device)
            return in_steps or (mistakes.INCOMPLETE if trained_at_all and losses else None)

        with recognising(cause):
            require_equal(samples, epochs * sum(case.sizes), what=f"samples that passed the model in {epochs} epochs")
            least = epochs * reference.flops(case)
            require(
                run.product_flops >= least,
                f"train_with_amp(): the matrix products of {epochs} epochs took {run.product_flops:,} FLOPs, fewer "
                f"than the {least:,} of a forward and a backward pass of each sample",
            )
            require_ran(run.result, "float16", taken=epochs * len(case.sizes), skipped=0)
            if not isinstance(losses, list):
                raise CheckFailed(f"AmpTraining.losses: saw {losses!r}, expected a tuple of numbers")
            require_equal(len(losses), epochs, what=f"number of AmpTraining.losses after {epochs} epochs")

    @requires("returns_result")
    def test_loss_time_and_memory_reported(self, submission: Submission, generator: InputGenerator) -> None:
        reply, case = trained(submission, generator)
        self._require_reported(reply, case, "float16", ONE_EPOCH)
        try:
            reply, case = trained(submission, generator, epochs=SEVERAL_EPOCHS)
        except CheckFailed:  # which is for the check before to say
            return
        self._require_reported(reply, case, "float16", SEVERAL_EPOCHS)

    @staticmethod
    def _require_reported(reply: PrecisionReply, case: Precision, dtype: str, epochs: int) -> None:
        with recognising(lambda: mistakes.cause_of_report(reply, case, dtype, epochs)):
            TestAmp._require_all_reported(reply, case, dtype, epochs)

    @staticmethod
    def _require_all_reported(reply: PrecisionReply, case: Precision, dtype: str, epochs: int) -> None:
        run, idle = reply.runs[dtype], reply.idle_bytes
        what = f"train_with_amp(){'' if dtype == 'float16' else f' in {dtype}'}"
        result = require_result(run.result)
        require_ran(result, dtype, taken=epochs * len(case.sizes), skipped=0)
        require(
            all(all(note.training) for note in run.forwards if note.gradients),
            f"{what}: the model came in evaluation mode and was trained in it, or some of its modules were",
            "Call `model.train()` before the first batch.",
        )
        losses = listed(result["losses"], f"{what}: AmpTraining.losses")
        require_close(
            number(losses[0] if losses else None, f"{what}: loss of the first epoch"),
            reference.untrained_loss(case),
            relative=LOSS_ERROR,
            what=f"{what}: loss of the first epoch, the mean over all samples",
            hint="Report the mean over all samples, without the loss scale. Batches differ in size.",
        )
        elapsed = run.elapsed_seconds
        require_between(
            result["seconds"],
            (0.8 if epochs > ONE_EPOCH else 0.4) * elapsed,  # two of three take less; right styles 0.97
            1.02 * elapsed,
            what=f"{what}, called while the device still worked on something else: seconds",
            show=seconds,
            hint="Move the model and wait for the device before you start the clock. Wait again before you stop it. "
            "Time all epochs.",
        )
        require_equal(result["device"], reply.device, what=f"{what}: AmpTraining.device")
        if reply.device == "cuda":
            of_peak = f"{what}: peak_bytes of a small model, after {mebibytes(idle)} of earlier work were freed"
            hint = "Call `torch.cuda.reset_peak_memory_stats()` before the training begins."
            peak = number(result["peak_bytes"], of_peak, hint)
            require_between(
                peak,
                1,
                run.largest_peak(idle),
                what=of_peak,
                show=mebibytes,
                expected=f"what this training took, {mebibytes(run.largest_peak(idle))} at most",
                hint=hint,
            )
            require(
                peak >= run.most_bytes,
                f"{what}: peak_bytes is {mebibytes(peak)}, but during a backward pass "
                f"{mebibytes(run.most_bytes)} were allocated",
                "Report the most at any moment of the training, not what is left when it is over.",
            )

    @requires("returns_result")
    def test_products_in_low_precision(self, submission: Submission, generator: InputGenerator) -> None:
        by_default, _ = trained(submission, generator)
        others, case = trained(submission, generator, OTHERS, SEVERAL_EPOCHS)
        for dtype, run in {**by_default.runs, **others.runs}.items():
            what = f"matrix products of train_with_amp() in {dtype}"
            with _recognised(run, dtype, others.device):
                require_equal(run.products, [dtype], what=f"{what}: dtypes", hint=AUTOCAST_HINT)
            least = 2 * (SEVERAL_EPOCHS * len(case.sizes) if dtype in others.runs else 1)
            require(run.product_count >= least, f"{what}: only {run.product_count} of {least}")
            most = least // 2 * MOST_PRODUCTS
            require(
                run.product_count <= most,
                f"{what}: {run.product_count}, more than {most}; a forward and a backward pass of each batch need "
                f"{5 * least // 2}",
            )
        for dtype, run in others.runs.items():  # what the checks of the default look at holds here, too
            with _recognised(run, dtype, others.device):
                _require_in_float32(run, dtype)
                _require_loss_in_float32(run, dtype, case)
                _require_backward_outside(run, dtype)
            self._require_reported(others, case, dtype, SEVERAL_EPOCHS)

    @requires("returns_result")
    def test_loss_in_float32(self, submission: Submission, generator: InputGenerator) -> None:
        reply, case = trained(submission, generator)
        run = reply.runs["float16"]
        with _recognised(run, "float16", reply.device, case):
            _require_loss_in_float32(run, "float16", case)

    @requires("returns_result")
    def test_parameters_and_state_stay_float32(self, submission: Submission, generator: InputGenerator) -> None:
        reply, case = trained(submission, generator)
        run = reply.runs["float16"]
        if not run.state:  # its only step was skipped
            reply, _ = trained(submission, generator, epochs=SEVERAL_EPOCHS)
            run = replace(run, state=reply.runs["float16"].state)
        with _recognised(run, "float16", reply.device, case):
            _require_in_float32(run, "float16")

    @requires("returns_result")
    def test_backward_outside_autocast(self, submission: Submission, generator: InputGenerator) -> None:
        reply, case = trained(submission, generator)
        run = reply.runs["float16"]
        with _recognised(run, "float16", reply.device, case):
            _require_backward_outside(run, "float16", case)

    def test_evaluates_every_sample(self, submission: Submission, generator: InputGenerator) -> None:
        inputs, shares = evaluate(generator)
        reply = submission.numeric_probe(inputs)
        for call, evaluation in zip(inputs.calls, reply.calls, strict=True):
            with recognising(lambda: mistakes.cause_of_evaluation(evaluation, call.dtype)):  # noqa: B023
                _require_evaluated(call, evaluation, shares[call.targets])
        for empty in reply.empty:
            what = "evaluate() of a loader without samples"
            require(empty.refused, f"{what} raised no ValueError")
            require_equal(
                empty.after,
                empty.before,
                what=f"{what}: `training` of each of the model's modules afterwards",
                hint="Put the modes back before you raise. A caller that catches the error goes on with the model.",
            )

    @requires("returns_result")
    def test_bfloat16_as_accurate_as_float32(self, submission: Submission, generator: InputGenerator) -> None:
        others = partial(trained, submission, generator, OTHERS, SEVERAL_EPOCHS)
        require_accurate(submission, generator, "bfloat16", lambda: others()[0].runs["bfloat16"].products)

    @requires("returns_result")
    def test_defaults_and_refusals(self, submission: Submission, generator: InputGenerator) -> None:
        case = classification(generator)
        refusals = refused_arguments(generator)
        others = defaulted_arguments(generator, case.epochs - 1)
        inputs = Defaults(
            weight=case.weight,
            inputs=case.inputs,
            labels=case.labels,
            runs=[{"dtype": "float32", "epochs": case.epochs}, {}, *others],
            refusals=refusals,
        )
        reply = trained_by(submission, inputs)
        exact, bare, *rest = reply.runs
        start = reference.start(case)

        with recognising(lambda: mistakes.cause_of_defaults(case, exact)):
            require_between(
                relative_error(exact.after, reference.trained(case), start),
                0,
                ADAM_ERROR,
                what=f"relative error of {case.epochs} steps in float32, with neither optimizer nor criterion given",
                hint="Take `torch.optim.Adam(model.parameters())` with its defaults, and the cross entropy.",
            )
        runs = [("float16", 10, bare)]
        runs += [
            (call.get("dtype", "float16"), call.get("epochs", 10), run) for call, run in zip(others, rest, strict=True)
        ]
        with recognising(lambda: mistakes.cause_of_scales(case, runs)):
            _require_bare(bare)
            for call, run in zip(others, rest, strict=True):
                _require_as_called(call, run)
        require_equal(
            [reply.on_cpu["device"], reply.on_cpu["peak_bytes"]],
            ["cpu", None],
            what='device and peak_bytes of train_with_amp(..., device="cpu")',
            hint="Report None on a CPU, whose memory PyTorch does not count.",
        )
        for arguments, refused in zip(refusals, reply.refused, strict=True):
            shown = ", ".join(f"{name}={value}" for name, value in arguments.items())
            require(refused, f"train_with_amp(model, loader, {shown}) raised no ValueError")


def _require_bare(run: DefaultsRun) -> None:
    """Fail unless a training with nothing but a model and a loader took the defaults."""
    require_ran(run.result, "float16", taken=10, skipped=0)
    losses = listed(run.result["losses"], "AmpTraining.losses, epochs not being given")
    require_equal(len(losses), 10, what="number of AmpTraining.losses, epochs not being given")
    require_equal(
        run.result["final_scale"],
        2.0**16,
        what="AmpTraining.final_scale after ten good steps, no scaler being given",
        hint="Take `torch.amp.GradScaler` with its defaults.",
    )


def _require_as_called(call: TrainArguments, run: DefaultsRun) -> None:
    """Fail unless a training with some of the arguments took them, and the defaults of the others."""
    count, dtype = call.get("epochs", 10), call.get("dtype", "float16")
    require_ran(run.result, dtype, taken=count, skipped=0)
    what = f"AmpTraining of train_with_amp(model, loader{''.join(f', {k}={v}' for k, v in call.items())})"
    losses = listed(run.result["losses"], f"{what}: losses")
    require_equal(len(losses), count, what=f"{what}: number of losses")
    scale = 2.0**16 if dtype == "float16" else None
    require_equal(run.result["final_scale"], scale, what=f"{what}: final_scale")


def _require_evaluated(call: EvaluateCall, evaluation: Evaluation, share: float) -> None:
    """Fail unless a call of `evaluate` counted right, and left the model as it was."""
    what = "evaluate(model, loader" + (f", dtype=torch.{call.dtype}" if call.dtype else "")
    what += ", device=...)" if call.device_given else ")"
    require(
        not any(evaluation.during) and bool(evaluation.during),
        f"{what} ran the model, or one of its modules, in training mode, with dropout",
        "Call `model.eval()` before the first batch.",
    )
    require_close(
        evaluation.accuracy,
        share,
        relative=1e-6,
        what=f"{what} with batches of {call.sizes}",
        hint="Divide right samples by all samples. A mean over batches weighs a short batch too much.",
    )
    require(
        not any(evaluation.gradients), f"{what} recorded a graph", "Put the batches inside of `with torch.no_grad():`."
    )
    require_equal(
        evaluation.after,
        evaluation.before,
        what=f"{what}: `training` of each of the model's modules afterwards",
        hint="Remember the mode of each module, and put each one back. `model.train(mode)` puts all into the same one.",
    )
    require(evaluation.unchanged, f"{what} changed the model's parameters")
    require_equal(
        evaluation.products,
        [call.dtype or "float32"],
        what=f"{what}: dtypes of products",
        hint="Use autocast here, too.",
    )
