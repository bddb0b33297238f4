"""Judges Lab 2's training in mixed precision: what runs in which precision, and that nothing is lost by it."""

from __future__ import annotations

from collections.abc import Sequence

from gradebox.course.criterion import builds_on, criterion, requires
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
from grader.lab2.amp import reference
from grader.lab2.amp.cases import (
    ONE_EPOCH,
    OTHERS,
    SEVERAL_EPOCHS,
    Defaults,
    EvaluateCall,
    Evaluation,
    Precision,
    PrecisionReply,
    PrecisionRun,
    classification,
    defaulted_arguments,
    evaluate,
    precision,
    refused_arguments,
)
from grader.lab2.scaling.checks.mistakes import MISTAKES
from grader.lab2.shared.checks import listed, require_accurate, require_ran
from grader.lab2.shared.reference import relative_error
from grader.shared.results import require_result

_INCOMPLETE = Cause("another_number_of_steps", "`epochs` times through all batches: a step for each, one loss an epoch")
"""What is trained can be judged all the same."""
_ADAM_ERROR = 1e-3
"""Float32 makes 1e-5 of it; weight decay of AdamW's default already moves weights by 3e-3 of the way."""
AUTOCAST_HINT = "with torch.autocast(device_type, dtype=...) around the forward pass and the loss, and nothing else"


def trained(
    submission: Submission, generator: InputGenerator, precisions: Sequence[str] = ("float16",), epochs: int = ONE_EPOCH
) -> tuple[PrecisionReply, Precision]:
    """What was observed of a classifier's training in each precision, and the case it was trained on."""
    case = precision(generator, precisions, epochs)
    return submission.numeric_probe(case), case


def _require_in_float32(run: PrecisionRun, dtype: str) -> None:
    """Fail unless parameters and Adam's averages are in float32, in a training in `dtype`."""
    during = sorted({name for note in run.forwards for name in note.dtypes})
    hint = "autocast casts for each product; model.half() casts the weights themselves, and updates get lost"
    require_equal(during, ["float32"], what=f"dtypes of parameters during training in {dtype}", hint=hint)
    require_equal(run.parameters, ["float32"], what=f"dtypes of parameters after training in {dtype}", hint=hint)
    require_equal(
        run.state,
        ["float32"],
        what=f"dtypes of Adam's averages after training in {dtype}",
        hint="the optimizer is made for the parameters that are trained, in float32",
    )


def _require_loss_in_float32(run: PrecisionRun, dtype: str) -> None:
    if run.losses:  # else it was put together by hand, and nobody can tell
        require_equal(
            run.losses,
            ["float32"],
            what=f"dtype in which the cross entropy was computed, in a training in {dtype}",
            hint="inside autocast it is computed in float32 by itself; outside, in the dtype of the outputs",
        )


def _require_backward_outside(run: PrecisionRun, dtype: str) -> None:
    inside = sum(note.autocast for note in run.backwards)
    require(
        inside == 0 and bool(run.backwards),
        f"train_with_amp() in {dtype}: {inside} of {len(run.backwards)} backward passes ran with autocast switched on",
        "leave the with-block before backward(): its operations run in the types that forward chose",
    )


@criterion("lab2.amp")
class TestAmp:
    def test_returns_result(self, submission: Submission, generator: InputGenerator) -> None:
        reply, case = trained(submission, generator)
        self._require_complete(reply.runs["float16"], case, ONE_EPOCH)
        try:
            reply, case = trained(submission, generator, epochs=SEVERAL_EPOCHS)
        except CheckFailed as error:  # one step can be judged all the same
            raise CheckFailed(
                f"{SEVERAL_EPOCHS} epochs of {len(case.sizes)} batch: {error.message}", error.hint
            ) from error
        self._require_complete(reply.runs["float16"], case, SEVERAL_EPOCHS)

    @staticmethod
    def _require_complete(run: PrecisionRun, case: Precision, epochs: int) -> None:
        samples = sum(note.samples for note in run.forwards)
        trained_at_all = samples >= sum(case.sizes)
        losses = require_result(run.result)["losses"]
        with recognising(lambda: _INCOMPLETE if trained_at_all and losses else None):
            require_equal(samples, epochs * sum(case.sizes), what=f"samples that passed the model in {epochs} epochs")
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
        run, idle = reply.runs[dtype], reply.idle_bytes
        what = f"train_with_amp(){'' if dtype == 'float16' else f' in {dtype}'}"
        result = require_result(run.result)
        require_ran(result, dtype, taken=epochs * len(case.sizes), skipped=0)
        require(
            all(all(note.training) for note in run.forwards),
            f"{what}: the model came in evaluation mode and was trained in it, or some of its modules were",
            "model.train() before the first batch",
        )
        losses = listed(result["losses"], f"{what}: AmpTraining.losses")
        require_close(
            number(losses[0] if losses else None, f"{what}: loss of the first epoch"),
            reference.untrained_loss(case),
            relative=0.02,  # the steps of an epoch move it by 1 %; a sum over batches, or a scaled loss, is far off
            what=f"{what}: loss of the first epoch, the mean over all samples",
            hint="batches differ in size; report the loss without its scale",
        )
        elapsed = run.elapsed_seconds
        require_between(result["seconds"], 0.2 * elapsed, 1.02 * elapsed, what=f"{what}: seconds", show=seconds)
        require_equal(result["device"], reply.device, what=f"{what}: AmpTraining.device")
        if reply.device == "cuda":
            of_peak = f"{what}: peak_bytes of a small model, after {mebibytes(idle)} of earlier work were freed"
            hint = "torch.cuda.reset_peak_memory_stats() before the training begins"
            peak = number(result["peak_bytes"], of_peak, hint)
            require_between(
                peak,
                1,
                0.9 * idle,
                what=of_peak,
                show=mebibytes,
                expected=f"what this training took, {mebibytes(0.9 * idle)} at most",
                hint=hint,
            )
            require(
                peak >= run.most_bytes,
                f"{what}: peak_bytes is {mebibytes(peak)}, but during a backward pass "
                f"{mebibytes(run.most_bytes)} were allocated",
                "the most at any moment of the training, not what is left when it is over",
            )

    @requires("returns_result")
    def test_products_in_low_precision(self, submission: Submission, generator: InputGenerator) -> None:
        by_default, _ = trained(submission, generator)
        others, case = trained(submission, generator, OTHERS, SEVERAL_EPOCHS)
        for dtype, run in {**by_default.runs, **others.runs}.items():
            what = f"matrix products of train_with_amp() in {dtype}"
            require_equal(run.products, [dtype], what=f"{what}: dtypes", hint=AUTOCAST_HINT)
            least = 2 * (SEVERAL_EPOCHS * len(case.sizes) if dtype in others.runs else 1)
            require(run.product_count >= least, f"{what}: only {run.product_count} of {least}")
        for dtype, run in others.runs.items():  # what the checks of the default look at holds here, too
            _require_in_float32(run, dtype)
            _require_loss_in_float32(run, dtype)
            _require_backward_outside(run, dtype)
            self._require_reported(others, case, dtype, SEVERAL_EPOCHS)

    @requires("returns_result")
    def test_loss_in_float32(self, submission: Submission, generator: InputGenerator) -> None:
        reply, _ = trained(submission, generator)
        _require_loss_in_float32(reply.runs["float16"], "float16")

    @requires("returns_result")
    def test_parameters_and_state_stay_float32(self, submission: Submission, generator: InputGenerator) -> None:
        reply, _ = trained(submission, generator)
        _require_in_float32(reply.runs["float16"], "float16")

    @requires("returns_result")
    def test_backward_outside_autocast(self, submission: Submission, generator: InputGenerator) -> None:
        reply, _ = trained(submission, generator)
        _require_backward_outside(reply.runs["float16"], "float16")

    @builds_on("products_in_low_precision")
    def test_evaluates_every_sample(self, submission: Submission, generator: InputGenerator) -> None:
        inputs, shares = evaluate(generator)
        reply = submission.numeric_probe(inputs)
        for call, evaluation in zip(inputs.calls, reply.calls, strict=True):
            _require_evaluated(call, evaluation, shares[call.targets])
        for empty in reply.empty:
            what = "evaluate() of a loader without samples"
            require(empty.refused, f"{what} raised no ValueError")
            require_equal(
                empty.after,
                empty.before,
                what=f"{what}: `training` of each of the model's modules afterwards",
                hint="put the modes back before you raise: whoever catches the error goes on with the model",
            )

    @requires("returns_result")
    @builds_on("loss_in_float32", "parameters_and_state_stay_float32")
    def test_bfloat16_as_accurate_as_float32(self, submission: Submission, generator: InputGenerator) -> None:
        require_accurate(submission, generator, "bfloat16")

    @requires("returns_result")
    @builds_on("loss_time_and_memory_reported", "products_in_low_precision", "loss_in_float32")
    def test_defaults_and_refusals(self, submission: Submission, generator: InputGenerator) -> None:
        case = classification(generator)
        refusals = refused_arguments(generator)
        others = defaulted_arguments(generator, case.epochs - 1)
        reply = submission.numeric_probe(
            Defaults(
                weight=case.weight,
                inputs=case.inputs,
                labels=case.labels,
                runs=[{"dtype": "float32", "epochs": case.epochs}, {}, *others],
                refusals=refusals,
            )
        )
        exact, bare, *rest = reply.runs
        start = reference.start(case)

        def mistake() -> Cause | None:
            cleared = relative_error(exact.after, reference.trained(case, cleared=False), start) > _ADAM_ERROR
            return None if cleared else MISTAKES["never_cleared"]

        with recognising(mistake):
            require_between(
                relative_error(exact.after, reference.trained(case), start),
                0,
                _ADAM_ERROR,
                what=f"relative error of {case.epochs} steps in float32, with neither optimizer nor criterion given",
                hint="then it is torch.optim.Adam(model.parameters()) with its defaults, on the cross entropy",
            )
        require_ran(bare.result, "float16", taken=10, skipped=0)
        losses = listed(bare.result["losses"], "AmpTraining.losses, epochs not being given")
        require_equal(len(losses), 10, what="number of AmpTraining.losses, epochs not being given")
        require_equal(
            bare.result["final_scale"],
            2.0**16,
            what="AmpTraining.final_scale after ten good steps, no scaler being given",
            hint="torch.amp.GradScaler with its defaults",
        )
        for arguments, run in zip(others, rest, strict=True):
            count, dtype = arguments.get("epochs", 10), arguments.get("dtype", "float16")
            require_ran(run.result, dtype, taken=count, skipped=0)
            what = f"AmpTraining of train_with_amp(model, loader{''.join(f', {k}={v}' for k, v in arguments.items())})"
            losses = listed(run.result["losses"], f"{what}: losses")
            require_equal(len(losses), count, what=f"{what}: number of losses")
            scale = 2.0**16 if dtype == "float16" else None
            require_equal(run.result["final_scale"], scale, what=f"{what}: final_scale")
        for arguments, refused in zip(refusals, reply.refused, strict=True):
            shown = ", ".join(f"{name}={value}" for name, value in arguments.items())
            require(refused, f"train_with_amp(model, loader, {shown}) raised no ValueError")


def _require_evaluated(call: EvaluateCall, evaluation: Evaluation, share: float) -> None:
    """Fail unless a call of `evaluate` counted right, and left the model as it was."""
    what = "evaluate(model, loader" + (f", dtype=torch.{call.dtype}" if call.dtype else "")
    what += ", device=...)" if call.device_given else ")"
    require(
        not any(evaluation.during) and bool(evaluation.during),
        f"{what} ran the model, or one of its modules, in training mode, with dropout",
        "model.eval() before the first batch",
    )
    require_close(
        evaluation.accuracy,
        share,
        relative=1e-6,
        what=f"{what} with batches of {call.sizes}",
        hint="right samples / all samples: a mean over batches weighs a short batch too much",
    )
    require(not any(evaluation.gradients), f"{what} recorded a graph", "with torch.no_grad():")
    require_equal(
        evaluation.after,
        evaluation.before,
        what=f"{what}: `training` of each of the model's modules afterwards",
        hint="model.train(mode) puts every module into that mode; they were not all in the same one",
    )
    require(evaluation.unchanged, f"{what} changed the model's parameters")
    require_equal(
        evaluation.products, [call.dtype or "float32"], what=f"{what}: dtypes of products", hint="autocast here too"
    )
