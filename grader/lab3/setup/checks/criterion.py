"""Judges Lab 3's training on several ranks: they meet, share the data, stay equal, and leave, come what may."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gradebox.course.criterion import builds_on, criterion, requires
from gradebox.run.assertions import (
    Cause,
    CheckFailed,
    number,
    numbers,
    require,
    require_arrays_close,
    require_close,
    require_equal,
)
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from gradebox.sandbox import Limits
from grader.lab3.setup.cases import joining
from grader.lab3.setup.cases.evaluation import Evaluate, Evaluation, EvaluationReply, evaluations
from grader.lab3.setup.cases.joining import Join, Meeting, Setup, SetupReply
from grader.lab3.setup.cases.training import (
    ERRORS,
    OnCpu,
    Train,
    TrainReply,
    main_training,
    opposite_training,
    script_training,
)
from grader.lab3.setup.checks.draws import require_own_draws
from grader.lab3.setup.checks.evaluation import require_counted, require_divided
from grader.lab3.setup.checks.joining import (
    CLEANUP_WAITS,
    FIXED_PORT,
    PORT_IN_USE,
    meets_at_fixed_port,
    naming_errors_of_setup,
    require_joined,
    timed_out,
)
from grader.lab3.setup.checks.programs import require_trained_program
from grader.lab3.setup.checks.shuffling import require_shuffled
from grader.lab3.setup.checks.training import (
    TIMEOUT,
    TIMEOUT_UNIT,
    epochs_of,
    follow,
    is_in_another_unit,
    recognised,
    require_batches,
    require_exchanged,
    require_followed,
    require_patience,
    require_reported,
    require_shared,
    require_waited,
    require_weights,
    steps_of,
    train,
)
from grader.lab3.setup.reference import RTOL, right_answers
from grader.lab3.shared.cases.modules import DDP
from grader.lab3.shared.cases.programs import Program, Torchrun
from grader.lab3.shared.checks.replicas import require_equal_replicas, require_moved_alike
from grader.shared.results import require_result

SHARES = "Let a DistributedSampler with this rank's number give it its own share of every epoch; drop nothing."
_SCRIPT = "lab3.setup.debugged_script_trains_right"
_SCRIPT_ENDS = "lab3.setup.debugged_script_ends"
_ERRORS_HINT = "Let errors pass through to the caller unchanged, on every rank."
SWALLOWED = Cause(
    "error_swallowed",
    _ERRORS_HINT,
    "lab3.setup.fails_cleanly",
    mistake="train() swallows the error of a rank and returns as if all were well",
)
STAYS = Cause(
    "stays_in_the_group",
    "Call cleanup() in `finally:`, so that a rank leaves whatever happens.",
    "lab3.setup.fails_cleanly",
    mistake="A rank that fails stays in the process group",
)
DIFFERENT = Cause(
    "ranks_tell_different_losses",
    "Let every rank take part: dist.all_reduce leaves the sum over all ranks on each of them, dist.reduce on one.",
    _SCRIPT,
    mistake="The ranks of train_two_heads() report different losses",
)
PORT = Cause(
    "script_has_a_port",
    "Meet where init_method says, or the environment: hand init_method on to setup() as it is.",
    _SCRIPT_ENDS,
    mistake="train_two_heads() meets at a fixed port, where another job may listen",
)
UNUSED = Cause(
    "script_waits_for_unused_parameters",
    "Set the argument of DistributedDataParallel for parameters that get no gradient in a step.",
    _SCRIPT_ENDS,
    mistake="train_two_heads() waits for gradients of parameters that take no part in a step",
)
_UNUSED = "Expected to have finished reduction in the prior iteration"
"""What PyTorch says of that."""
_LEAST_CHILDREN_SECONDS = 0.01
"""Of two ranks that train; copies of this process, which import nothing, took 0.2 s and more."""
COLD = Limits(wall_seconds=180.0)
"""For new interpreters: 5 to 8 seconds on a quiet machine, a minute on one that is five times overbooked."""


@criterion("lab3.setup", early=True)
class TestSetup:
    def test_joins_and_leaves(self, submission: Submission, generator: InputGenerator) -> None:
        ranks = generator.integer(2, 3)
        with naming_errors_of_setup():
            replies = submission.rank_probe(Join(), ranks, device="cpu")
        for rank, reply in enumerate(replies):
            what = f"setup({rank}, {ranks}), meeting where MASTER_ADDR and MASTER_PORT say"
            require_equal(reply.place, [rank, ranks], what=f"{what}: rank and world size of the process group")
            require_equal(reply.sum, float(ranks), what=f"{what}: sum of ones over the ranks")
            require_equal(reply.left, True, what=f"{what}: process group gone after cleanup()")

    def test_meets_where_it_is_told(self, submission: Submission, generator: InputGenerator) -> None:
        meetings = joining.without_gpus(generator)
        patience = generator.uniform(2.0, 3.0)
        replies = self._require_joined(submission, "cpu", meetings, patience=patience)
        for reply in replies:
            require(
                not reply.left_alone,
                f"cleanup() without a process group raised {reply.left_alone}",
                "Leave the group only if there is one: dist.is_initialized().",
            )
            for what, refused in reply.refused.items():
                hint = "Refuse ranks other than 0 to world_size - 1."
                if "MASTER" in what:
                    hint = "Do not fill in a default port: two jobs on one machine would take the same."
                require(refused, f"setup() {what} raised no ValueError", hint)
        waited = replies[0].waited
        passed = f"it raised after {waited:.1f} s" if waited else "it was still waiting after three times as long"
        require(
            waited is not None and 0.5 * patience <= waited,
            f"setup(..., timeout_seconds={patience:.1f}), and a collective to which rank 1 does not come: {passed}",
            TIMEOUT_UNIT
            if is_in_another_unit(replies[0].patience, patience)
            else TIMEOUT
            if waited is None
            else "Pass the timeout on as it is, in seconds.",
        )
        meetings = joining.with_devices(generator, simulated=submission.device.simulated)
        self._require_joined(submission, submission.device.name, meetings)

    def test_nccl_on_gpus(self, submission: Submission, generator: InputGenerator) -> None:
        device, simulated = submission.device.name, submission.device.simulated
        first = self._require_joined(submission, device, joining.by_environment(generator, simulated=simulated))[0]
        if simulated:
            self._require_joined(submission, device, [joining.three_on_two_gpus(generator)], 3)
        if first.gpus:
            self._require_trained_there(submission, generator, 2 if simulated else first.gpus)

    @staticmethod
    def _require_joined(
        submission: Submission, device: str, meetings: list[Meeting], ranks: int = 2, *, patience: float = 0.0
    ) -> list[SetupReply]:
        setup = Setup(kind="cpu" if device == "cpu" else "cuda", meetings=meetings, patience=patience)
        with naming_errors_of_setup():
            try:
                replies = submission.rank_probe(setup, ranks, device=device)
            except CheckFailed as failed:
                if " in cleanup" not in failed.evidence + failed.message or not timed_out(failed.message):
                    raise
                raise CheckFailed(
                    failed.message, CLEANUP_WAITS, answered=failed.answered, evidence=failed.evidence
                ) from failed
        require_joined(submission, meetings, replies)
        return replies

    @staticmethod
    def _require_trained_there(submission: Submission, generator: InputGenerator, gpus: int) -> None:
        # Three ranks on two virtual GPUs: two of them share one, which NCCL refuses.
        ranks = 3 if submission.device.simulated else 2
        case = replace(opposite_training(generator, ranks=ranks), kind="cuda", gpus=gpus)
        for rank, reply in enumerate(submission.rank_probe(case, case.ranks, device=submission.device.name)):
            what = f"train() on {case.ranks} ranks with device='cuda' and {gpus} GPUs, rank {rank}"
            require_equal(reply.place, f"cuda:{rank % gpus}", what=f"{what}: where its model is afterwards")
            report = require_result(reply.result)
            require_equal(report["device"], "cuda", what=f"{what}: DdpTraining.device")
            backend = "nccl" if gpus >= case.ranks else "gloo"
            require_equal(
                report["backend"],
                backend,
                what=f"{what}: DdpTraining.backend",
                hint="Report what the process group uses: dist.get_backend(), before the rank leaves it.",
            )

    def test_replicas_equal(self, submission: Submission, generator: InputGenerator) -> None:
        case, what = main_training(generator), "train() on 2 ranks"
        replies = train(submission, case)
        hint = "Let DistributedDataParallel wrap what is trained: it hands out the weights and buffers of rank 0."
        weights, shifts = [reply.weight for reply in replies], [reply.shift for reply in replies]
        shift = np.asarray(case.shifts[0], dtype=np.float64)
        with recognised(case, replies):
            require_equal_replicas({"weight": weights, "shift": shifts}, what=what, hint=hint, rtol=RTOL[case.dtype])
            require_arrays_close(shifts[0], shift, rtol=1e-6, what=f"{what}: rank 0's buffer", hint=hint)
            require_exchanged(case, replies, what=what)
            require_moved_alike(weights, case.weights[0], follow(case, replies).weight, what=what)

    def test_gradients_equal_full_batch(self, submission: Submission, generator: InputGenerator) -> None:
        case = main_training(generator)
        replies = train(submission, case)
        trained = follow(case, replies)
        with recognised(case, replies):
            require_exchanged(case, replies, what="train() on 2 ranks")
            require_weights(
                replies,
                trained.weight,
                rtol=RTOL[case.dtype],
                what=f"train() on 2 ranks, {len(trained.losses)} steps of SGD from rank 0's weights",
                hint="Follow the mean gradient over the batches of all ranks, with the learning rate given.",
            )

    def test_evaluates_each_sample_once(self, submission: Submission, generator: InputGenerator) -> None:
        device = submission.device.name
        for ranks, cases in evaluations(generator).items():
            evaluate = Evaluate(cases=cases, kind="cpu" if device == "cpu" else "cuda")
            replies = submission.rank_probe(evaluate, ranks, device=device)
            for index, case in enumerate(cases):
                self._require_evaluated([reply.cases[index] for reply in replies], case)
            for reply in replies:
                require(reply.refused, "evaluate() of no samples raised no ValueError")

    @staticmethod
    def _require_evaluated(replies: list[EvaluationReply], case: Evaluation) -> None:
        right = right_answers(case)
        samples = right.shape[1]
        what = f"evaluate() of {samples} samples, batch_size={case.batch_size}"
        for call, model in enumerate(("a replicated", "a plain")):
            together, those = [reply.together[call] for reply in replies], f"{what} by {model} model on {len(replies)}"
            require_counted(together, right, f"{those} ranks")
            require_divided(together, samples, case.batch_size, f"{those} ranks")
        for rank, reply in enumerate(replies):
            require_counted([reply.alone], right[rank : rank + 1], f"{what} without a process group")
            for calls in (*reply.together, reply.alone):
                require(
                    calls.quiet,
                    f"{what}: a forward pass was not in evaluation mode, or with gradients",
                    "Call model.eval(), which reaches every part, and put torch.no_grad() around the loop.",
                )
                require(
                    calls.modes_kept,
                    f"{what}: afterwards a part of the model was in another mode than before",
                    "Note the mode of each of model.modules(), and put it back: model.train() changes them all.",
                )

    @requires("gradients_equal_full_batch")
    @builds_on("evaluates_each_sample_once")
    def test_training_reported(
        self, submission: Submission, generator: InputGenerator, without: frozenset[str]
    ) -> None:
        evaluated = "evaluates_each_sample_once" not in without
        with naming_errors_of_setup():
            alone = submission.probe(OnCpu(), device="cpu")
        require_equal(alone.device, "cpu", what='device that train(device="cpu") reports, on a machine that has a GPU')
        require_equal(alone.without_tests, None, what="accuracy that train(dataset=...) reports without a test_dataset")
        for datasets, (accuracy, expected) in alone.accuracies.items():
            what = f"accuracy that train() reports, with {datasets} of dataset and test_dataset given"
            hint = "Test on test_dataset if it is given, and else on the test images of digits (split='test')."
            require(accuracy is not None, f"{what}: None, although there is a test set", hint)
            share = number(accuracy, what, hint)
            if evaluated:
                require_close(share, expected, relative=1e-6, what=what, hint=hint)
        for case in (main_training(generator), opposite_training(generator)):
            replies = train(submission, case)
            require_reported(case, replies, what=f"train() on {case.ranks} ranks", evaluated=evaluated)

    def test_shards_disjoint_and_complete(self, submission: Submission, generator: InputGenerator) -> None:
        for case in (main_training(generator), opposite_training(generator)):
            replies, what = train(submission, case), f"train() on {case.ranks} ranks"
            self._require_shards(replies, case.samples, case.options["epochs"], what)
            hint = (
                "Give every rank batches of batch_size samples, whatever the world size. Only the "
                "last batch of an epoch may be smaller."
            )
            require_batches(replies, case.samples, case.options, what=what, hint=hint)

    @staticmethod
    def _require_shards(replies: list[TrainReply], samples: int, epochs: int, what: str) -> None:
        shares = [epochs_of(reply, epochs) for reply in replies]
        for epoch in range(epochs):
            require_shared(
                [share[epoch] for share in shares],
                samples,
                what=f"{what}, epoch {epoch}",
                hint=SHARES,
            )

    @builds_on("shards_disjoint_and_complete")
    def test_reshuffled_each_epoch(
        self, submission: Submission, generator: InputGenerator, without: frozenset[str]
    ) -> None:
        case = main_training(generator)
        replies, epochs = train(submission, case), case.options["epochs"]
        if len(replies[0].again) < len(case.again):
            replies = submission.rank_probe(case, case.ranks, device="cpu")  # which fails, and says why
        shared = "shards_disjoint_and_complete" not in without  # else only the order of each rank's samples is judged
        require_shuffled(replies, epochs, shared=shared)
        require_own_draws(case, replies)
        require_followed(case, replies)

    def test_fails_cleanly(self, submission: Submission, generator: InputGenerator) -> None:
        case = main_training(generator)
        mark = f"damaged in block {generator.integer(10**5, 10**6)}"
        broken = replace(
            case,
            failing=generator.integer(0, case.ranks - 1),
            damage=mark,
            error=generator.shuffled(ERRORS)[0],
            again=[],
            patience=0.0,
        )
        replies = train(submission, broken)
        errors = [reply.error for reply in replies]
        ends = [f"{error.type} ({error.message.strip()[:100]})" if error else "no error" for error in errors]
        late = all(errors) and any(error is not None and timed_out(error.message) for error in errors)
        require(
            all(errors) and any(e is not None and e.type == broken.error and mark in e.message for e in errors),
            f"on one rank of train() the loss raised {broken.error} ({mark}); rank 0 ended with {ends[0]}, rank 1 with "
            f"{ends[1]}",
            CLEANUP_WAITS if late else SWALLOWED if not any(errors) else _ERRORS_HINT,
        )
        waited = [
            end
            for end, error, reply in zip(ends, errors, replies, strict=True)
            if error and (timed_out(error.message) or 0 < reply.patience <= reply.whole_seconds - reply.least_seconds)
        ]
        require(
            not waited,
            f"one rank failed, and the other waited for it as long as it was allowed to: {waited[:1]}",
            CLEANUP_WAITS,
        )
        whole = train(submission, case)
        require_patience(whole, name="train")
        require_waited(whole, case.patience, name="train")
        inside = [rank for rank, reply in enumerate(replies) if reply.in_group]
        require(
            not inside, f"train() ended with an error, and these ranks are still in the process group: {inside}", STAYS
        )

    def test_started_by_spawn(self, submission: Submission, generator: InputGenerator) -> None:
        program = _program(submission, generator, ["--device", "vgpu:T4", "--world-size", "2"])
        what = f"python -m labs.{DDP} {' '.join(program.argv)}"
        reply = submission.probe(program, device="cpu", limits=COLD)
        require_trained_program(reply, program.argv, what)
        require(
            reply.children_seconds > _LEAST_CHILDREN_SECONDS,
            f"{what} started no processes that did anything: together they took {reply.children_seconds:.3f} s",
            "Start the ranks with run_ranks, which starts a process for each.",
        )

    def test_started_by_torchrun(self, submission: Submission, generator: InputGenerator) -> None:
        arguments = ["--device", "cpu", "--world-size", "3"]  # torchrun knows better
        program = _program(submission, generator, arguments)
        torchrun = Torchrun(module=program.module, machines=2, argv=program.argv)
        what = f"torchrun, one rank on each of two machines, -m labs.{DDP} {' '.join(program.argv)}"
        reply = submission.probe(torchrun, device="cpu", limits=COLD)
        if reply.exit_code is None:
            raise CheckFailed(
                f"{what}: its two processes waited for each other and did not end",
                (
                    "Take this process's number from RANK, and how many there are from WORLD_SIZE. "
                    "LOCAL_RANK counts the processes of one machine only, and is 0 on both machines here."
                ),
            )
        if reply.exit_code:
            raise CheckFailed(f"under torchrun the program ended with {reply.exit_code}: {reply.tail[-300:]}")
        require_trained_program(reply, program.argv, what)
        require(not reply.by_others, f"{what}: rank 1 wrote {reply.by_others[:2]}", "Print and write on rank 0 only.")

    def test_debugged_script_ends(self, submission: Submission, generator: InputGenerator) -> None:
        case = script_training(generator)
        try:
            replies = train(submission, case)
        except CheckFailed as failed:
            if PORT_IN_USE in failed.message:
                cause = FIXED_PORT if meets_at_fixed_port(submission) else PORT
            elif _UNUSED in failed.message:
                cause = UNUSED
            else:
                raise
            raise CheckFailed(failed.message, cause, answered=failed.answered, evidence=failed.evidence) from failed
        steps_of(replies)
        require_patience(replies, name="train_two_heads")
        require_waited(replies, case.patience, name="train_two_heads")
        self._require_same_losses(replies)
        epochs = case.options["epochs"]
        for rank, reply in enumerate(replies):
            numbers(require_result(reply.result)["losses"], epochs, f"losses of train_two_heads() on rank {rank}")

    @staticmethod
    def _require_same_losses(replies: list[TrainReply]) -> None:
        first, second = (require_result(reply.result)["losses"] for reply in replies)
        require(
            first == second,
            f"train_two_heads(): the ranks report different losses, rank 0 {first} and rank 1 {second}",
            DIFFERENT,
        )

    def test_debugged_script_trains_right(self, submission: Submission, generator: InputGenerator) -> None:
        case, replies = _trained_script(submission, script_training(generator))
        epochs, what = case.options["epochs"], "train_two_heads() on 2 ranks"
        self._require_shards(replies, case.samples, epochs, what)
        for rank, reply in enumerate(replies):
            shares = {frozenset(share) for share in epochs_of(reply, epochs)}
            require(len(shares) == epochs, f"{what}: rank {rank} had the same share in two epochs", SHARES)
        require_batches(replies, case.samples, case.options, what=what, hint=SHARES)
        expected = follow(case, replies).weight
        with recognised(case, replies):
            require_exchanged(case, replies, what=what)
            hint = "Call the wrapper, not the module inside: its forward prepares the exchange of gradients."
            require_weights(replies, expected, rtol=RTOL[case.dtype], what=what, hint=hint)
        self._require_same_losses(replies)
        require_reported(case, replies, what=what)


def _trained_script(submission: Submission, case: Train) -> tuple[Train, list[TrainReply]]:
    """What each rank observed of the script. If it does not end because others listen at its port, or because of
    parameters that take no part, which `debugged_script_ends` says, then of the script without them.

    Raises:
        CheckFailed: it does not end for another reason.
    """
    try:
        return case, train(submission, case)
    except CheckFailed as failed:
        easier = case
        message = failed.message
        while True:
            if PORT_IN_USE in message and easier.crowded:
                # At a port of its own, a rank that trains again meets those that have not left yet.
                easier = replace(easier, crowded=False, again=[])
            elif _UNUSED in message and easier.unused:
                easier = replace(easier, unused=False)
            else:
                raise
            try:
                return easier, train(submission, easier)
            except CheckFailed as again:
                message = again.message


def _program(submission: Submission, generator: InputGenerator, arguments: list[str]) -> Program:
    """The training's program, with arguments that nobody knows beforehand."""
    train(submission, main_training(generator))  # done already: what does not end there does not end here
    epochs, batch = generator.integer(2, 3), generator.integer(60, 96)
    return Program(module=DDP, argv=[*arguments, "--epochs", str(epochs), "--batch-size", str(batch)])
