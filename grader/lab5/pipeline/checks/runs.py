"""Judges runs of Lab 5's trainer: those in two parts, those that a signal stops, and the files that they leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from gradebox.run.assertions import (
    Cause,
    CheckFailed,
    recognising,
    require,
    require_arrays_close,
    require_close,
    require_equal,
)
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab5.pipeline.cases import (
    Checkpoint,
    EndState,
    LoggedReply,
    Resume,
    ResumeReply,
    Stopped,
    StoppedReply,
    StoppedRun,
    Training,
)
from grader.lab5.pipeline.cases import drawn as cases
from grader.lab5.pipeline.checks.mistakes import SINGLE, cause_of_logs, cause_of_resume
from grader.lab5.pipeline.checks.steps import judge_logged_steps, on_ranks
from grader.lab5.pipeline.reference import simulate

STOPS_ALONE = Cause(
    "each_rank_stops_for_itself",
    "Ask stop_requested() on every rank after each window: it is a collective, and gives all ranks the same answer.",
    "lab5.pipeline.goes_on_after_sigterm",
    mistake="After SIGTERM to one rank the ranks no longer meet: each decides by itself whether to stop",
)
_STATES = "model, optimizer, scheduler, scaler, steps, and of each rank random numbers, loader and progress"


def judge_resumed(inputs: Resume, reply: ResumeReply, what: str) -> None:
    """A run in two parts."""
    require_equal(reply.begin, inputs.stop, what=f"{what}: the epoch that load_checkpoint() returned")
    require_equal(
        reply.next_epoch, inputs.stop, what=f"{what}: next_epoch after load_checkpoint()",
        hint="Set `self.next_epoch` to what `load_checkpoint` returns. `fit` goes on from there.",
    )  # fmt: skip
    before, after = reply.drawn
    require_equal(after, before, what=f"{what}: random numbers (hashes of their states) after save_checkpoint()",
                  hint="Draw no random number while saving.")  # fmt: skip
    _require_same_bits(reply.again, reply.expected, what)
    for name, state in reply.expected.random.items():
        require_equal(
            reply.again.random[name], state, what=f"{what}: {name} random numbers in the end (a hash of their state)",
            hint="Put the random numbers back with restore_random_state, after everything else.",
        )  # fmt: skip
    saved, loaded = reply.loaded or ({}, {})
    require(
        not reply.fixed or saved.get("random") == loaded.get("random"),
        f"{what}: load_checkpoint() does not put the random numbers back, and training sets "
        f"{', '.join(sorted(set(reply.fixed)))} at {len(reply.fixed)} batches to what they are with any seed, so that "
        "a data set which draws by itself draws other numbers after a resume",
        "Save the states of the generators, and put them back with restore_random_state.",
    )
    require_equal(
        reply.resumed, reply.results[inputs.stop :], what=f"{what}: what train_epoch() returned afterwards",
        hint="the progress of an epoch belongs to the checkpoint" * inputs.middle,
    )  # fmt: skip


def judge_elsewhere(actual: EndState | None, expected: EndState, what: str) -> None:
    """A run that went on in another process than the one that wrote the checkpoint.

    What the file does not hold is not there, and what it holds must be the state of its step.
    """
    if actual is None:
        raise TypeError("no run went on from the checkpoint of another process")
    _require_same_bits(actual, expected, f"{what}, then the rest in a process that has the file alone")


def _require_same_bits(actual: EndState, expected: EndState, what: str) -> None:
    """Fail unless a resumed run ended as the uninterrupted one did, bit for bit; says what differs first."""
    tail = expected.batches[len(expected.batches) - len(actual.batches) :]
    if actual.batches != tail or not actual.batches:
        where = next((i for i, (a, b) in enumerate(zip(actual.batches, tail, strict=False)) if a != b), 0)
        raise CheckFailed(
            f"{what}: it went through {len(actual.batches)} batches, and batch {where} of them has samples "
            f"{actual.batches[where] if actual.batches else 'none'}, expected {tail[where] if tail else 'none'}",
            "Load the loader's state back, and do not send the loader to the epoch's beginning.",
        )
    hint = f"Save and load {_STATES}."
    require_equal(actual.steps, expected.steps, what=f"{what}: optimizer steps in all", hint=hint)
    require_equal(actual.rate, expected.rate, what=f"{what}: learning rate of the next step (hexadecimal)", hint=hint)
    require_equal(actual.scale, expected.scale, what=f"{what}: loss scale", hint=hint)
    require_arrays_close(
        actual.weight, expected.weight, rtol=0,
        what=f"{what}: weights compared with those of an uninterrupted run",
        hint=f"Save and load {_STATES}. Dropout draws from the random numbers.",
    )  # fmt: skip
    require_equal(actual.optimizer, expected.optimizer, what=f"{what}: hash of the optimizer's state")


_RUN = ("epochs", "validations", "ended", "optimizer_steps", "best_epoch")


Earlier: TypeAlias = tuple[Checkpoint, EndState]
"""A checkpoint of a run on one rank, and how that run ended."""


def judge_stops(
    submission: Submission, generator: InputGenerator, ranks: int, earlier: Earlier | None = None
) -> Earlier:
    """A run that SIGTERM stops in the middle of an epoch, or in the last window of one, goes on where it was.

    So does a run of another process, from a checkpoint of its own choice.

    Args:
        earlier: what that process has written, and how its run ended.

    Returns:
        A checkpoint in the middle of an epoch of the run that was left alone, and how that run ended.
    """
    inputs = cases.stops(generator, ranks)
    training = inputs.training
    replies = _stopped(submission, inputs if earlier is None else replace(inputs, earlier=earlier[0]), ranks)
    on = f"{on_ranks('fit()', ranks)} with save_every_steps=2"
    total, each_epoch = training.total_steps(ranks), training.steps_per_epoch(ranks)
    by_epoch = [
        f"step-{step:08d}.pt" for step in range(1, total + 1) if step % each_epoch == 0 or step % each_epoch % 2 == 0
    ]
    saved = [step for step in range(1, total + 1) if step % each_epoch == 0 or step % 2 == 0]
    require_equal(
        _in_folder(replies[0].left, "whole/checkpoints/", replies[0].files), [f"step-{step:08d}.pt" for step in saved],
        what=f"checkpoints of {on}, {each_epoch} steps to an epoch",
        hint=Cause(
            "saved_by_steps_of_the_epoch",
            "Compare `steps`, which counts those of the whole run, with `save_every_steps`.",
            mistake="The steps between two checkpoints are counted again in each epoch",
        )
        if replies[0].files == by_epoch
        else "Save after every save_every_steps steps of the run, and after each epoch's validation.",
    )  # fmt: skip
    sizes = [size for path, size in (replies[0].left or {}).items() if path.startswith("whole/checkpoints/")]
    require(
        not sizes or 2 * min(sizes) >= max(sizes),
        f"checkpoints of {on}: one has {min(sizes, default=0)} bytes, another {max(sizes, default=0)}",
        "Save the whole state each time.",
    )
    require_equal(
        replies[0].saved_before, [False] * 3,
        what=f"whether {on} has saved the last step of an epoch before it validates",
        hint=Cause(
            "saved_before_validation",
            "Leave the loop at the end of the epoch before you save. `fit` validates first, and saves then.",
            mistake="The checkpoint of an epoch's last step is saved before validation",
        ),
    )  # fmt: skip
    size, batches = training.batch_size, training.batches(ranks)
    # Of five batches the last is a window of its own.
    stops = {place: min(2 * ((at - 1) // size // 2 + 1), batches) for place, at in inputs.places.items()}
    for rank, reply in enumerate(replies):
        require_equal(reply.received, 0, what=f"{on}: times that SIGTERM was not caught")
        for place, stopped_at in stops.items():
            at = reply.places[place]
            what = f"{on}, SIGTERM to rank {inputs.signalled[place]} {place}: rank {rank}"
            complete = int(stopped_at == batches)
            require_equal(
                [at.stopped["ended"], at.batches, len(at.stopped["epochs"])], ["signal", stopped_at, complete],
                what=f"{what}: TrainerRun.ended, batches before it stopped, complete epochs",
                hint=(
                    "Ask stop_requested on every rank after each window, so that all ranks come to the "
                    "same answer."
                ),
            )  # fmt: skip
            with recognising(partial(cause_of_resume, [each.places[place].loaded for each in replies])):
                _judge_run(at, reply, what)
    if earlier is not None:
        written, expected = earlier
        judge_elsewhere(replies[0].elsewhere, expected, f"fit() on one rank up to {written.name}")
    first = replies[0]
    return Checkpoint(training=training, name=inputs.kept, content=first.content), first.expected


def _stopped(submission: Submission, inputs: Stopped, ranks: int) -> list[StoppedReply]:
    """What became of the runs on each rank.

    Raises:
        CheckFailed: they did not come to their end. If they do without SIGTERM, the failure is one of stopping.
    """
    try:
        return submission.rank_probe(inputs, ranks, device="cpu")
    except CheckFailed as failed:
        if ranks == 1 or failed.answered:
            raise
        try:
            submission.rank_probe(replace(inputs, places={}), ranks, device="cpu")
        except CheckFailed:
            raise failed from None
        raise CheckFailed(
            f"fit() on {ranks} ranks comes to its end, and after SIGTERM to one of them alone it does not: "
            f"{failed.message}",
            STOPS_ALONE,
            answered=failed.answered,
            evidence=failed.evidence,
        ) from failed


def _in_folder(left: Mapping[str, int] | None, folder: str, noted: list[str]) -> list[str]:
    """The files below a folder as the system has them; what the probe has seen if the system does not tell."""
    if left is None:
        return noted
    return sorted(path.removeprefix(folder) for path in left if path.startswith(folder))


def _judge_run(at: StoppedRun, reply: StoppedReply, what: str) -> None:
    """A stopped run that another trainer went on with."""
    _require_same_bits(at.again, reply.expected, f"{what}, then fit() by a new trainer")
    run: Mapping[str, object] = at.run
    uninterrupted: Mapping[str, object] = reply.uninterrupted
    for name in _RUN:
        require_equal(
            run[name], uninterrupted[name],
            what=f"{what}, then fit() by a new trainer: TrainerRun.{name}, expected that of a run left alone",
            hint="Save the progress of the epoch, `epochs` and `validations` in the checkpoint.",
        )  # fmt: skip


def judge_logs(runs: Sequence[tuple[Training, Sequence[LoggedReply]]]) -> None:
    """Files and TensorBoard's entries of runs."""
    for training, replies in runs:
        with recognising(lambda: cause_of_logs(runs)):
            _judge_log(training, replies)


_EVERY_RANK_WRITES = Cause(
    "every_rank_writes",
    "Let rank 0 alone write: checkpoints, and what goes to TensorBoard.",
    mistake="Every rank writes files, not only rank 0",
)


def _require_fewer_bytes(first: LoggedReply, reply: LoggedReply, rank: int) -> None:
    """Fail if another rank writes about as much as rank 0, whose files come on top of what ranks send each other."""
    if first.left is None or first.written_bytes is None or reply.written_bytes is None:
        return
    files = sum(size for path, size in first.left.items() if path.startswith("own-0/"))
    more = first.written_bytes - reply.written_bytes
    require(
        2 * more >= files,
        f"in fit() rank {rank} writes {reply.written_bytes:,} bytes, and rank 0, whose files have {files:,} bytes in "
        f"the end, only {more:,} more",
        _EVERY_RANK_WRITES,
    )


def _judge_log(training: Training, replies: Sequence[LoggedReply]) -> None:
    ranks, first, every = len(replies), replies[0], training.config["log_every_steps"]
    total, each_epoch = training.total_steps(ranks), training.steps_per_epoch(ranks)
    for rank, reply in enumerate(replies[1:], 1):
        files = reply.files or _in_folder(reply.left, f"own-{rank}/", reply.files)
        require_equal(
            files, [], what=f"files that rank {rank} made in fit() (each rank has a folder of its own)",
            hint=_EVERY_RANK_WRITES,
        )  # fmt: skip
        _require_fewer_bytes(first, reply, rank)
        received = [[each.step, each.metrics] for each in reply.logged]
        require_equal(received, [], what=f"metrics that the monitor of rank {rank} received")
    checkpoints = [name for name in first.files if name.startswith("run/checkpoints/")]
    newest = [f"run/checkpoints/step-{each_epoch * epoch:08d}.pt" for epoch in (2, 3)]
    what = "checkpoints after fit() with 3 epochs and keep_checkpoints=2"
    require_equal(checkpoints, newest, what=what)
    if ranks > 1:  # else another trainer has written there, too
        left = _in_folder(first.left, "own-0/run/checkpoints/", [name.rpartition("/")[2] for name in checkpoints])
        require_equal(left, [name.rpartition("/")[2] for name in newest], what=what)
    require_equal(
        sorted({name.rpartition("/")[0] for name in first.files if "tfevents" in name}), ["run/tensorboard"],
        what="folders of TensorBoard's event files after fit()",
        hint='Make the Log in the folder "tensorboard" of `self.folder`.',
    )  # fmt: skip
    expected = simulate(training, [reply.batches for reply in replies])
    what = f"{on_ranks('fit()', ranks)}, {training.described()}, log_every_steps={every}"
    judge_logged_steps(expected, first.logged, every, SINGLE, what)
    logged = list(range(every, total + 1, every))
    tags = {"train/loss": "loss", "train/learning_rate": "rate", "train/grad_norm": "norm"}
    for tag, name in tags.items():
        rows = first.entries.get(tag, [])
        require_equal([int(step) for step, _ in rows], logged, what=f"steps of TensorBoard's {tag}")
        for step, value in rows:
            value_then = getattr(expected.steps[int(step) - 1], name)
            require_close(value, value_then, relative=SINGLE, what=f"TensorBoard's {tag} of step {int(step)}")
        if ranks == 1:
            again = [int(step) for step, _ in first.again.get(tag, [])]
            with recognising(partial(cause_of_resume, [first.loaded])):
                require_equal(
                    again, logged,
                    what=f"steps of TensorBoard's {tag} after a run went back to an older checkpoint and on",
                    hint=Cause(
                        "log_shows_steps_twice",
                        "Call `self.log.resume_at(self.steps)` in `load_checkpoint`. Later entries no longer count.",
                        mistake="After a resume the log still shows what a killed run had left of later steps",
                    )
                    if again == [*logged, *(step for step in logged if step > 2 * each_epoch)]
                    else "Call log.resume_at in load_checkpoint, so that entries of later steps no longer count.",
                )  # fmt: skip
