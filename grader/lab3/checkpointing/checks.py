"""Judges Lab 3's checkpoints: written once and as a whole, loaded anywhere, and nothing lost by going on from one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gradebox.course.criterion import builds_on, criterion
from gradebox.run.assertions import (
    Cause,
    CheckFailed,
    number,
    numbers,
    recognising,
    require,
    require_arrays_close,
    require_close,
    require_equal,
    seconds,
)
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from gradebox.sandbox import Limits
from gradebox.sandbox.observer import FileEvent
from grader.lab3.checkpointing.cases import (
    BACK,
    DISK_BYTES,
    FILE,
    FULL,
    MARK,
    RESUMED,
    Interrupted,
    InterruptedReply,
    Kind,
    Load,
    LoadOnACpu,
    LoadReply,
    Network,
    ResumeReply,
    Resumption,
    SaveOnAGpu,
    SaveReply,
    network,
    resumption,
    saved,
)
from grader.lab3.checkpointing.mistakes import (
    AT_THE_END,
    BEGINS_AGAIN,
    EACH_EPOCH,
    EARLIER_STEPS_COUNTED,
    EPOCHS,
    EPOCHS_AS_ASKED,
    ERROR_HIDDEN,
    EVERY_RANK_WRITES,
    NOT_TIMED,
    NOTHING_LOADED,
    WRONG_DEVICE,
    lost,
)
from grader.lab3.setup.checks.training import NEVER_CLEARED, cause_of_training
from grader.lab3.shared.checks.draws import DRAWS
from grader.lab3.shared.checks.file_sizes import require_nothing_elsewhere, require_parameters
from grader.lab3.shared.checks.replicas import RTOL

FULL_DISK = Limits(tmp_bytes=DISK_BYTES)
_MADE = ("closed", "moved here")
"""With one of these a file is complete."""
_NAMES = {
    "count": "buffer of whole numbers",
    "rates": "learning rates of the optimizer's groups",
    "options": "all other numbers of the optimizer's groups",
}
_MOVED = 1e-3
"""So far some weight moves in any training, also with a mistake."""
_LEARNED = 0.7
"""Loss after training / loss of a model that says 0, where the targets can be learned: 0.43 was the most in a thousand
trainings, with dropout of a half."""


def save(submission: Submission, generator: InputGenerator, *, replicated: bool) -> tuple[SaveReply, SaveReply]:
    """What two ranks observed when they saved."""
    case = saved(generator, replicated=replicated)
    first, second = submission.rank_probe(case, 2, device="cpu", limits=FULL_DISK)
    return first, second


def _files_of(replies: tuple[SaveReply, SaveReply], rank: int) -> list[str]:
    """The files in a rank's working directory: those in the end, and those that were there before the disk was full."""
    left, here = replies[0].left or {}, replies[rank].files
    if rank:
        return sorted({*here, *(name.removeprefix("rank1/") for name in left if name.startswith("rank1/"))})
    not_its_own = ("rank1/", f"{FULL}/", "rendezvous", BACK)
    return sorted(name for name in {*here, *left} if not name.startswith(not_its_own))


def _is_complete(reply: SaveReply, rank: int) -> bool:
    """Whether nothing happened to rank 0's file once the call was over on this rank."""
    if reply.events is None:
        return reply.complete
    paths = [event["path"] for event in reply.events]
    return reply.complete and FILE not in paths[paths.index(f"{BACK}{rank}") :]


def _happened(events: Sequence[FileEvent], *acts: str) -> bool:
    """Whether one of these acts befell the checkpoint once it was there."""
    made = next((place for place, each in enumerate(events) if each["path"] == FILE and each["act"] in _MADE), None)
    later = [] if made is None else events[made + 1 :]
    return any(each["path"] == FILE and each["act"] in acts for each in later)


def _events_on_ranks(submission: Submission, generator: InputGenerator, *, replicated: bool) -> list[FileEvent]:
    """What happened to files while two ranks saved; nothing if they did not come to an end, which other checks say."""
    try:
        return save(submission, generator, replicated=replicated)[0].events or []
    except CheckFailed:
        return []


def _left_by_failed_save(reply: InterruptedReply) -> list[str]:
    """Files that were not there before a save on a full disk, and are there afterwards."""
    before = {FILE, MARK, *reply.before}
    for event in reply.events or ():
        if event["path"] == MARK:
            break
        if event["act"] in ("deleted", "moved away"):
            before.discard(event["path"])
        else:
            before.add(event["path"])
    return sorted(set(reply.left or ()) - before)


@criterion("lab3.checkpointing")
class TestCheckpointing:
    def test_rank_zero_alone_writes(self, submission: Submission, generator: InputGenerator) -> None:
        replies = save(submission, generator, replicated=True)
        first, _ = replies
        require_equal(
            _files_of(replies, 0),
            ["checkpoint.pt"],
            what="files in rank 0's folder after save_checkpoint('checkpoint.pt', ...) on 2 ranks, twice",
            hint="Write one file, and remove what is written for the time being.",
        )
        require_parameters(first.content, first.state.parameters)
        require_equal(
            _files_of(replies, 1),
            [],
            what="files that rank 1 made in save_checkpoint() (here each rank has a working folder of its own)",
            hint=EVERY_RANK_WRITES,
        )
        require_nothing_elsewhere(replies[1].written_bytes, len(first.content), EVERY_RANK_WRITES)
        require_equal(
            replies[1].threads_left,
            0,
            what="threads that save_checkpoint() leaves behind on rank 1, which has nothing to write",
            hint="Start what writes on rank 0 alone.",
        )

    def test_every_rank_waits_for_the_file(self, submission: Submission, generator: InputGenerator) -> None:
        replies = save(submission, generator, replicated=True)
        for rank, reply in enumerate(replies):
            require(
                _is_complete(reply, rank),
                f"save_checkpoint(), over an old file, returned on rank {rank} before rank 0 had written it again",
                "Call dist.barrier() after writing, on every rank: a rank that loads too early reads an old file.",
            )
        hint = "Let rank 0's error through before the others learn that the file is there, or send it to them."
        for rank, reply in enumerate(replies):
            require(
                not reply.returned_without_a_file,
                f"save_checkpoint() returned on rank {rank} although rank 0's disk was full and there is no new file",
                ERROR_HIDDEN if replies[0].returned_without_a_file else hint,
            )

    def test_saved_atomically(self, submission: Submission, generator: InputGenerator) -> None:
        case = Interrupted(network=network(generator, "lab3.interrupted"))
        reply = submission.probe(case, device="cpu", limits=FULL_DISK)
        require(
            reply.failed,
            "save_checkpoint() said nothing although the disk was full in the middle of writing",
            ERROR_HIDDEN,
        )
        require(
            not reply.silent,
            "save_checkpoint() said nothing although it could not write: a folder has the name of its file",
            ERROR_HIDDEN,
        )
        require(
            not reply.unread,
            f"load_checkpoint() of what save_checkpoint() has just written, without an optimizer: {reply.unread}",
            "Look at the loading: nothing has failed before.",
        )
        if reply.loaded:
            raise CheckFailed(
                f"after a save that failed half-way, the file from before cannot be loaded: {reply.loaded}",
                "Write to a temporary file in the same folder, then os.replace() it.",
            )
        require_equal(reply.epoch, 1, what="epoch in the file after a save that failed")
        require_arrays_close(reply.parameters, reply.saved, rtol=0, what="parameters in the file after a failed save")
        require(
            not reply.refused_there,
            f"save_checkpoint() into /dev/shm, which is another file system than that of /tmp: {reply.refused_there}",
            "Write the temporary file into the same folder: nothing can be moved from one disk to another at once.",
        )
        alone = reply.events or []
        for events in (alone, *(_events_on_ranks(submission, generator, replicated=each) for each in (True, False))):
            on = "" if events is alone else " on 2 ranks"
            require(
                not (reply.overwritten or reply.overwritten_there or _happened(events, "written")),
                f"save_checkpoint(){on} wrote into the file that was there, so a crash at that moment destroys it",
                "Write a temporary file in the same folder, then os.replace() it. Moving between disks copies.",
            )
            require(
                not _happened(events, "moved away", "deleted"),
                f"save_checkpoint(){on} removed or renamed the file that was there before the new one was in its place",
                "Call os.replace() alone: it takes the place of the old file, so there is no moment without one.",
            )
        left = _left_by_failed_save(reply)
        require(
            not left,
            f"save_checkpoint() left {', '.join(left)} when the disk was full in the middle of writing: "
            "expected no file that was not there before",
            "Remove what was begun when an error passes (try, finally): a full disk needs the space.",
        )

    def test_loads_with_and_without_ddp(self, submission: Submission, generator: InputGenerator) -> None:
        for replicated in (True, False):
            case = saved(generator, replicated=replicated)
            source, _ = save(submission, generator, replicated=replicated)
            paths = generator.shuffled([True, False])
            for (ranks, wrapped), path_object in zip(((1, False), (3, True)), paths, strict=True):
                was = "from DistributedDataParallel" if replicated else "from a plain module"
                into = f"into DistributedDataParallel on {ranks} ranks" if wrapped else "into a plain module"
                what = f"saved {was} on 2 ranks, loaded {into}" + ", one layer frozen" * case.kind.frozen
                load = Load(
                    content=source.content,
                    network=network(generator, "lab3.load"),
                    kind=replace(case.kind, path_object=path_object),
                    replicated=wrapped,
                )
                replies = submission.rank_probe(load, ranks, device="cpu")
                self._require_loaded(replies, source, case.kind, case.epoch, load.network, what)
        if submission.device.name != "cpu":
            model = network(generator, "lab3.save")
            gpu = submission.probe(SaveOnAGpu(network=model))
            try:
                cpu = submission.probe(LoadOnACpu(content=gpu.content, network=model), device="cpu")
            except CheckFailed as failed:
                if "deserialize object on a CUDA device" not in failed.message:
                    raise
                raise CheckFailed(
                    failed.message, WRONG_DEVICE, answered=failed.answered, evidence=failed.evidence
                ) from failed
            require_arrays_close(
                cpu.parameters, gpu.parameters, rtol=0, what="saved on a GPU, loaded on a CPU: parameters"
            )

    @staticmethod
    def _require_loaded(
        replies: list[LoadReply], source: SaveReply, kind: Kind, epoch: int, network: Network, what: str
    ) -> None:
        names = {**_NAMES, "momentum": "averages of Adam"} if kind.adam else _NAMES
        untouched = np.concatenate([np.ravel(network.first), np.ravel(network.second)]).astype(np.float64)
        for rank, reply in enumerate(replies):
            unchanged = np.array_equal(np.asarray(reply.model_only, dtype=np.float64), untouched)
            for name in ("parameters", "buffer", "count", "momentum", "rates", "options"):
                require_arrays_close(
                    getattr(reply.state, name),
                    getattr(source.state, name),
                    rtol=0,
                    what=f"{what}, rank {rank}: {names.get(name, name)}",
                    hint=NOTHING_LOADED if name == "parameters" and unchanged else lost(name),
                )
            require(
                reply.in_place,
                f"{what}, rank {rank}: the model has other parameters or buffers than before, which no optimizer knows",
                "Overwrite their values, as load_state_dict() does.",
            )
            parameters = source.state.parameters
            require_arrays_close(reply.model_only, parameters, rtol=0, what=f"{what}, no optimizer: parameters")
            require_equal(reply.epoch, epoch, what=f"{what}: epochs completed, as load_checkpoint() returned")
            if len(replies) > 1:
                continue
            for which, refused in reply.refused.items():
                require(
                    refused,
                    f"{what}: no RuntimeError from a model {which}",
                    "Load strictly, as load_state_dict does by default: strict=False leaves out what does not fit.",
                )
            require(reply.missing, "load_checkpoint() of a file that is not there raised no OSError")

    @builds_on("loads_with_and_without_ddp", "every_rank_waits_for_the_file")
    def test_continues_as_if_never_stopped(
        self, submission: Submission, generator: InputGenerator, without: frozenset[str]
    ) -> None:
        case = resumption(generator)
        if "loads_with_and_without_ddp" in without:
            case = case.without_momentum()  # then the optimizer has no state that could be lost
        everybody = "every_rank_waits_for_the_file" not in without  # else only rank 0 looks at the file

        def mistake() -> Cause | None:
            """Recognises that what differs is what dropout draws, since without dropout all is right; and gradients
            that should have been cleared, which no checkpoint holds."""
            if cause_of_training(submission, generator) is NEVER_CLEARED:
                return NEVER_CLEARED
            try:
                self._require_continued(submission, generator, case.without_dropout(), everybody=everybody)
            except CheckFailed:
                return None
            return DRAWS

        with recognising(mistake):
            self._require_continued(submission, generator, case, everybody=everybody)

    @staticmethod
    def _trained(submission: Submission, generator: InputGenerator, case: Resumption) -> list[list[ResumeReply]]:
        """What each rank observed: without a break, until the break, and after it."""
        try:
            whole = submission.rank_probe(case.whole, 2, device="cpu")
            stopped = submission.rank_probe(case.stopped, 2, device="cpu")
            again = replace(case.again, content=np.asarray(stopped[0].content))
            resumed = submission.rank_probe(again, 2, device="cpu")
        except CheckFailed as failed:
            if "FileNotFoundError" not in failed.message or not save(submission, generator, replicated=True)[1].files:
                raise
            # One rank has moved the other one's file away.
            raise CheckFailed(
                failed.message, EVERY_RANK_WRITES, answered=failed.answered, evidence=failed.evidence
            ) from failed
        return [list(replies) for replies in zip(whole, stopped, resumed, strict=True)]

    def _require_continued(
        self, submission: Submission, generator: InputGenerator, case: Resumption, *, everybody: bool
    ) -> None:
        for rank, replies in enumerate(self._trained(submission, generator, case)):
            versions = everybody or rank == 0
            self._require_continued_on(submission, generator, case, replies, rank, versions=versions)

    @staticmethod
    def _require_continued_on(
        submission: Submission,
        generator: InputGenerator,
        case: Resumption,
        replies: list[ResumeReply],
        rank: int,
        *,
        versions: bool,
    ) -> None:
        whole, stopped, again = replies
        epochs, stop, asked = case.epochs, case.stop, case.asked
        (unbroken,), (begun,), (resumed, *complete) = whole.runs, stopped.runs, again.runs
        steps = unbroken.batches // epochs
        what = f"train() on 2 ranks, stopped after {stop} of {epochs} epochs and started again with its checkpoint"
        seen = f"versions of the checkpoint that rank {rank} saw in its forward passes and at the end"
        if versions:  # else the checkpoint is not the one after `stop` epochs
            at_the_end = begun.versions == 1
            hint = AT_THE_END if at_the_end else EACH_EPOCH
            require_equal(begun.versions, asked, what=f"{seen}, in {asked} epochs", hint=hint)
        require_equal(
            resumed.batches,
            steps * (epochs - stop),
            what=f"{what}: steps that rank {rank} then made",
            hint=BEGINS_AGAIN if resumed.batches == steps * epochs else EPOCHS,
        )
        expected = np.asarray(unbroken.weight, dtype=np.float64)
        inputs, targets = case.whole.inputs, case.whole.targets
        learned = float(((inputs @ expected.T - targets) ** 2).sum() / (targets**2).sum())
        moved = float(np.abs(expected - np.asarray(case.whole.weights[0], dtype=np.float64)).max())
        # How well a training with a mistake learns is no question; that is judged where the mistake is.
        wrong = None if learned < _LEARNED else cause_of_training(submission, generator)
        require(
            learned < _LEARNED or (wrong is not None and moved > _MOVED),
            f"train() on 2 ranks, {epochs} epochs without a break: the loss of rank {rank} is {learned:.3g} "
            "times that of one that says 0, so nothing was learned that could be lost",
            wrong or "Train the model that is passed in, in place.",
        )
        require_arrays_close(
            resumed.weight,
            expected,
            rtol=RTOL,
            atol=RTOL,
            what=f"{what}: weights of rank {rank}, against {epochs} epochs without a break",
            hint="Restore the model, the optimizer (momentum) and the number of the epoch, by which training shuffles.",
        )
        for run in complete:
            require_equal(run.batches, 0, what="steps made from a checkpoint whose training was complete")
        reported = [run.epochs for run in (*whole.runs, *stopped.runs, *again.runs)]
        require_equal(
            reported,
            [epochs, asked, epochs, epochs, epochs],
            what=f"train(): DdpTraining.epochs with epochs={epochs}; with epochs={asked}; with epochs={epochs} and the "
            f"checkpoint of {stop}; with epochs={epochs} and with epochs={stop} and the checkpoint of {epochs}",
            hint=EPOCHS_AS_ASKED
            if reported == [epochs, asked, epochs, epochs, stop]
            else "Report the epochs that the model has seen in all.",
        )
        counted = [run.steps for run in again.runs]
        require_equal(
            counted,
            [steps * (epochs - stop), 0, 0],
            what=f"{what}: DdpTraining.optimizer_steps on rank {rank}, then of runs with nothing left to do",
            hint=EARLIER_STEPS_COUNTED if counted[0] == steps * epochs else "Count the steps of this run.",
        )
        losses_of = f"{what}: DdpTraining.losses on rank {rank}"
        losses = numbers(resumed.losses, epochs - stop, losses_of, "of this run")
        unbroken_losses = numbers(unbroken.losses, epochs, f"train() on 2 ranks: DdpTraining.losses on rank {rank}")
        for actual, loss in zip(losses, unbroken_losses[stop:], strict=True):
            require_close(actual, loss, relative=1e-6, what=losses_of)
        if not versions:
            return
        for training, written, given in ((stopped, asked, 0), (again, epochs - stop, 2)):
            if training.events is not None:
                made = sum(each["path"] == RESUMED and each["act"] in _MADE for each in training.events)
                require(
                    made >= written + given,  # each rank has put the file there with which it began
                    f"{what}: the checkpoint was written {made - given} times in {written} epochs",
                    AT_THE_END if made > given else EACH_EPOCH,
                )
        of_seconds = f"train() with a checkpoint after each of {asked} epochs: DdpTraining.seconds on rank {rank}"
        require(
            number(begun.seconds, of_seconds) >= begun.least_seconds,
            f"{of_seconds}: saw {seconds(number(begun.seconds, of_seconds))}, expected at least "
            f"{seconds(begun.least_seconds)} (first to last forward pass in training)",
            NOT_TIMED,
        )
        at_the_end = resumed.versions == 2
        require_equal(
            resumed.versions,
            epochs - stop + 1,
            what=f"{seen}, in the {epochs - stop} epochs after a checkpoint of {stop}",
            hint=AT_THE_END if at_the_end else EACH_EPOCH,
        )
