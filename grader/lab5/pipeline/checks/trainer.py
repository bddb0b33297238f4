"""Judges Lab 5's trainer: its steps, its validation, what it writes, and that a run in two parts has the same bits."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from gradebox.course.criterion import criterion, requires
from gradebox.run.assertions import Cause, number, recognising, require, require_close, require_equal
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab5.pipeline.cases import (
    Checkpoint,
    EndState,
    Epochs,
    EpochsReply,
    Resume,
    ResumeReply,
    Training,
    ValidateReply,
)
from grader.lab5.pipeline.cases import drawn as cases
from grader.lab5.pipeline.checks import report as lab5_report
from grader.lab5.pipeline.checks.mistakes import Run, cause_of_resume, cause_of_validation
from grader.lab5.pipeline.checks.runs import judge_elsewhere, judge_logs, judge_resumed, judge_stops
from grader.lab5.pipeline.checks.steps import judge_epochs, judge_exchanges, judge_mixed, judge_orders, judge_rates_of
from grader.lab5.pipeline.reference import cross_entropy


def trained(submission: Submission, generator: InputGenerator, ranks: int) -> tuple[list[Training], list[EpochsReply]]:
    """Epochs of several trainings on so many ranks; the same for all checks of a grading."""
    trainings = cases.trainings(generator, ranks)
    inputs = Epochs(trainings=trainings, asleep=cases.asleep(generator))
    return trainings, submission.rank_probe(inputs, ranks, device="cpu")


def _runs(submission: Submission, generator: InputGenerator) -> list[Run]:
    """These epochs on one rank and on two."""
    runs: list[Run] = []
    for ranks in (1, 2):
        trainings, replies = trained(submission, generator, ranks)
        runs += [(training, [reply.runs[place] for reply in replies]) for place, training in enumerate(trainings)]
    return runs


def _judge_validated(reply: ValidateReply, samples: int, loss: float, right: float, what: str) -> None:
    for run in (reply.training, reply.evaluation):
        result = run.result
        require_equal(result["samples"], samples, what=f"{what}: samples")
        require_close(
            number(result["loss"], f"{what}: loss"), loss, relative=1e-6, what=f"{what}: loss",
            hint=(
                "Sum mean loss times samples over all batches and ranks, in evaluation mode, then "
                "divide once."
            ),
        )  # fmt: skip
        accuracy = number(result["accuracy"], f"{what}: accuracy")
        require_close(accuracy, right, relative=1e-6, what=f"{what}: accuracy")
        require_equal(
            run.modes, run.before, what=f"{what}: modes of the model and its modules afterwards",
            hint=Cause(
                "modes_not_put_back",
                "Note the mode of each module before, and put each back. Some may be frozen while others train.",
                mistake="After validation the modules are not in the modes that they had",
            ),
        )  # fmt: skip


def _checkpoint(inputs: Resume, reply: ResumeReply) -> Checkpoint:
    return Checkpoint(training=inputs.training, name=reply.name, content=reply.content)


@criterion("lab5.pipeline", early=True)
class TestPipeline:
    def test_steps_follow_the_mean_gradient(self, submission: Submission, generator: InputGenerator) -> None:
        judge_epochs(_runs(submission, generator))
        for ranks in (1, 2):
            trainings, replies = trained(submission, generator, ranks)
            judge_orders(trainings[0], replies)
            if ranks > 1:
                judge_exchanges(trainings[-1], replies)

    def test_learning_rate_per_optimizer_step(self, submission: Submission, generator: InputGenerator) -> None:
        judge_rates_of(_runs(submission, generator))

    def test_overflow_leaves_everything_alone(self, submission: Submission, generator: InputGenerator) -> None:
        judge_mixed([(inputs.training, submission.numeric_probe(inputs)) for inputs in cases.mixed(generator)])

    def test_validation_weighs_samples(self, submission: Submission, generator: InputGenerator) -> None:
        for inputs in cases.validations(generator):
            samples, ranks = len(inputs.classes), len(inputs.sizes)
            replies = submission.rank_probe(inputs, ranks, device="cpu")
            loss = float(cross_entropy(inputs.logits.astype(np.float64), inputs.classes)[0].mean())
            right = float(np.mean(inputs.logits.argmax(1) == inputs.classes))
            for rank, reply in enumerate(replies):
                what = f"validate() on batches of {inputs.sizes} samples by rank, rank {rank}"
                # With a graph the model says something else: nothing is gained by a count that is wrong.
                require_equal(
                    reply.graphs, 0, what=f"{what}: outputs that hold a graph", hint="Validate under torch.no_grad()."
                )
                with recognising(partial(cause_of_validation, inputs, rank, reply)):
                    _judge_validated(reply, samples, loss, right, what)
                require(
                    reply.replica_calls == 0,
                    f"{what}: {reply.replica_calls} forward passes of the replica, which may communicate, while the "
                    "ranks have different numbers of batches",
                    "Call `self.forward(self.model, ...)` in validate(), not the replica.",
                )
                require(
                    reply.passes >= 2,
                    f"{what}: val_loader was gone through {reply.passes} of 2 times, and its batches were kept",
                    "Iterate over val_loader in each validation: a loader may give other batches each time.",
                )
                if ranks == 1:
                    require_equal(reply.empty, "ValueError", what="error of validate() without any sample")

    def test_resumed_run_has_the_same_bits(self, submission: Submission, generator: InputGenerator) -> None:
        written: Checkpoint | None = None
        expected: EndState | None = None
        for dtype in ("float32", "float16"):
            inputs = replace(cases.run_in_two_parts(generator, dtype, 1), earlier=written)
            reply = submission.numeric_probe(inputs, device="cpu" if dtype == "float32" else None)
            what = f"{inputs.stop} epochs{' and a step' * inputs.middle} + save, load + the rest in {dtype}, "
            with recognising(partial(cause_of_resume, [reply.loaded])):
                judge_resumed(inputs, reply, what + inputs.training.described())
            if written is not None and expected is not None:
                judge_elsewhere(reply.elsewhere, expected, f"the checkpoint {written.name} of a run in float32")
            written, expected = _checkpoint(inputs, reply), reply.expected

    @requires("resumed_run_has_the_same_bits")
    def test_resumed_on_every_rank(self, submission: Submission, generator: InputGenerator) -> None:
        inputs = cases.run_in_two_parts(generator, "float32", 2)
        replies = submission.rank_probe(inputs, 2, device="cpu")
        for rank, reply in enumerate(replies):
            what = f"{inputs.stop} epochs{' and a step' * inputs.middle} + save, load + the rest on 2 ranks, "
            what += f"{inputs.training.described()}: rank {rank}"
            require_equal(
                reply.complete, True, what=f"{what}: whether the file is there once save_checkpoint() returns",
                hint="Let all ranks wait until rank 0 has written the file.",
            )  # fmt: skip
            with recognising(lambda: cause_of_resume([each.loaded for each in replies])):
                judge_resumed(inputs, reply, what)
            require_equal(
                reply.refused, "ValueError",
                what="error of load_checkpoint(): a run on 2 ranks, loaded by one without a process group",
            )  # fmt: skip

    def test_goes_on_after_sigterm(self, submission: Submission, generator: InputGenerator) -> None:
        earlier = judge_stops(submission, generator, 1)
        judge_stops(submission, generator, 2, earlier)

    def test_rank_zero_logs(self, submission: Submission, generator: InputGenerator) -> None:
        judge_logs(
            [
                (inputs.training, submission.rank_probe(inputs, ranks, device="cpu"))
                for ranks, inputs in cases.logged(generator)
            ]
        )

    def test_report_agrees_with_results(self, submission: Submission) -> None:
        lab5_report.judge(submission)
