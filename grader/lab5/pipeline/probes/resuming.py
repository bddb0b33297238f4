"""Probes of runs of Lab 5's trainer: what they leave behind, and how they go on after an end or a signal.

They run in each rank, next to the student's code, and look at states in the end and at files. Where runs are compared
bit by bit, gradients are cleared before each window: those that are never cleared are in no checkpoint, and another
check is about them.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MethodType
from typing import cast

import torch

from gradebox.sandbox.probe_loader import Student, WrongReturn
from grader.lab5.pipeline.cases import (
    Checkpoint,
    EndState,
    Logged,
    LoggedReply,
    Resume,
    ResumeReply,
    RunFields,
    Settings,
    Stopped,
    StoppedReply,
    StoppedRun,
    Training,
)
from grader.lab5.pipeline.probes.trainers import (
    Made,
    Sink,
    Watched,
    base_of,
    end_state,
    epoch_of,
    halve_scale,
    make,
    ranks_of,
    seed,
    steps_of,
)
from grader.shared.probes.endings import ending
from grader.shared.probes.kept import function, nap, notes
from grader.shared.probes.looks import files_below, generators, is_file, names, read_bytes, written_bytes
from grader.shared.probes.record import system
from grader.shared.probes.support import StudentObject, exact, fields, plain
from labkit.results import TrainerRun


@contextlib.contextmanager
def _slow_names(seconds: float) -> Iterator[None]:
    """Files get their names late."""
    real = os.replace
    os.replace = MethodType(_replace_late, (nap(seconds), real))
    try:
        yield
    finally:
        os.replace = real


def _replace_late(
    parts: tuple[Callable[[], None], Callable[..., None]],
    source: str | Path,
    target: str | Path,
    **options: int | None,
) -> None:
    wait, replace_now = parts
    wait()
    replace_now(source, target, **options)


def _own(student: Student, name: str) -> Path:
    """A folder of this rank's own: if every rank writes, they do not disturb each other, and another check says so.

    What is loaded is rank 0's.
    """
    return base_of(student) / (name if student.rank == 0 else f"{name}-of-rank-{student.rank}")


def _content(path: Path) -> torch.Tensor:
    """The bytes of a file; none if there is no file."""
    content = read_bytes(path) if is_file(path) else b""
    return torch.tensor(list(content), dtype=torch.uint8)


def _elsewhere(student: Student, earlier: Checkpoint) -> tuple[Made, Path]:
    """A new trainer with other weights in a folder of its own, and the only checkpoint there, of another process.

    What that process kept beside the file is not here.
    """
    folder = base_of(student) / "elsewhere"
    path = folder / "checkpoints" / earlier.name
    path.parent.mkdir(parents=True)
    path.write_bytes(exact(earlier.content, "a checkpoint").numpy().tobytes())
    made = make(student, folder, earlier.training, dropout=0.5, cleared=True, start=0.5)
    seed(99)
    return made, path


def _resumed_elsewhere(student: Student, earlier: Checkpoint) -> EndState:
    made, path = _elsewhere(student, earlier)
    following = plain(made.trainer.load_checkpoint(path), "load_checkpoint()")
    if type(following) is int:
        for epoch in range(following, earlier.training.config["epochs"]):
            epoch_of(made.trainer, epoch)
    return end_state(made)


def resume(student: Student, inputs: Resume) -> ResumeReply:
    """All epochs in one run; and `stop` of them, saved, then the others by a new trainer with other weights.

    In the `middle`: what is loaded is the checkpoint that `train_epoch` saved after the first step of the next epoch.
    Before, a trainer goes on from the checkpoint of another process, if there is one; and there is a run in one part
    with other random numbers.
    """
    torch.set_num_threads(1)
    training, stop, middle = inputs.training, inputs.stop, inputs.middle
    elsewhere = None if inputs.earlier is None else _resumed_elsewhere(student, inputs.earlier)
    low = training.config.get("dtype", "float32") != "float32"
    trainer_of = partial(make, student, dropout=0.5, device=student.device if low else "cpu", cleared=True)
    folder, total = base_of(student) / "resumed", training.config["epochs"]
    with ranks_of(student):
        other = trainer_of(_own(student, "other"), training, random_states=True)
        seed(1001 + student.rank)
        for epoch in range(total):
            other.trainer.train_epoch(epoch)
        whole = trainer_of(_own(student, "whole"), training, random_states=True)
        halve_scale(whole.trainer)
        seed(1 + student.rank)
        results = [epoch_of(whole.trainer, epoch) for epoch in range(total)]
        expected = end_state(whole)
        every = sum(cast(int, result["optimizer_steps"]) for result in results[:stop]) + 1
        # Every step is saved: when a trainer saves is another check's question.
        each: Settings = {"save_every_steps": 1, "keep_checkpoints": 99}
        saving: Settings = {**training.config, **each} if middle else training.config
        first = trainer_of(_own(student, folder.name), replace(training, config=saving))
        halve_scale(first.trainer)
        watched = Watched()
        watched.saving(first.trainer)
        seed(1 + student.rank)
        for epoch in range(stop + middle):
            first.trainer.train_epoch(epoch)
        drawn = [generators(first.model.linear.weight.device)]
        with _slow_names(0.3):
            returned = first.trainer.save_checkpoint(stop + middle - 1)
        if not isinstance(returned, (str, Path)):
            raise WrongReturn(f"save_checkpoint() returned a {type(returned).__name__}, expected the path of the file")
        path = folder / "checkpoints" / Path(returned).name
        complete = is_file(path)
        drawn.append(generators(first.model.linear.weight.device))
        if middle:
            path = folder / "checkpoints" / f"step-{every:08d}.pt"
            if not is_file(path):
                raise WrongReturn(f"train_epoch() with save_every_steps=1 left no {path.name}: {names(path.parent)}")
        content = _content(path)
        second = trainer_of(_own(student, folder.name), training, start=0.5)
        watched.loading(second.trainer)
        seed(99)
        begin = plain(second.trainer.load_checkpoint(path), "load_checkpoint()")
        next_epoch = plain(getattr(second.trainer, "next_epoch", None), "ProductionTrainer.next_epoch")
        resumed = [epoch_of(second.trainer, epoch) for epoch in range(stop, total)]
        again = end_state(second)
    refused = ""
    if student.ranks > 1:
        refused = ending(partial(trainer_of(folder, training).trainer.load_checkpoint, path))
    return ResumeReply(
        expected=expected,
        complete=complete,
        again=again,
        begin=begin,
        next_epoch=next_epoch,
        results=results,
        resumed=resumed,
        drawn=drawn,
        fixed=[
            name
            for states, others in zip(whole.random_states(), other.random_states(), strict=False)
            for name, state in states.items()
            if state == others[name]
        ],
        refused=refused,
        loaded=watched.pair(),
        name=path.name,
        content=content,
        elsewhere=elsewhere,
    )


def stopped(student: Student, inputs: Stopped) -> StoppedReply:
    """`fit` to the end; and for each place a `fit` that SIGTERM stops, then a new trainer's `fit`.

    After all ranks have parted, rank 0 goes on from the checkpoint of another process, if there is one.
    """
    torch.set_num_threads(1)
    note, received = notes()
    before = signal.signal(signal.SIGTERM, function(partial(_note_signal, note)))
    try:
        with ranks_of(student):
            uninterrupted, expected, saved_before = _left_alone(student, inputs.training)
            places = {
                place: _stopped_at(
                    student,
                    inputs.training,
                    _own(student, f"stopped-{number}"),
                    [at] if student.rank == inputs.signalled[place] else [],
                )
                for number, (place, at) in enumerate(inputs.places.items())
            }
        elsewhere = None
        if inputs.earlier is not None and student.rank == 0:
            made, _ = _elsewhere(student, inputs.earlier)
            _fit(made.trainer)
            elsewhere = end_state(made)
    finally:
        signal.signal(signal.SIGTERM, before)
    return StoppedReply(
        expected=expected,
        uninterrupted=uninterrupted,
        files=names(base_of(student) / "whole" / "checkpoints"),
        saved_before=saved_before,
        received=len(received()),
        places=places,
        left=system("files"),
        content=_content(base_of(student) / "whole" / "checkpoints" / inputs.kept),
        elsewhere=elsewhere,
    )


def _note_signal(note: Callable[[object], None], number: int, frame: object) -> None:
    note(number)


def _left_alone(student: Student, training: Training) -> tuple[RunFields, EndState, list[bool]]:
    """A whole `fit`; and at each validation of it, whether the checkpoint of the last step was there."""
    whole = make(student, _own(student, "whole"), training, dropout=0.5, cleared=True)
    note, saved_before = notes()
    look = function(partial(_look, note, whole.trainer, base_of(student) / "whole/checkpoints"))
    whole.trainer.validate = MethodType(_look_and_validate, (look, whole.trainer.validate))
    seed(1 + student.rank)
    return _fit(whole.trainer), end_state(whole), saved_before()


def _look(note: Callable[[object], None], trainer: StudentObject, folder: Path) -> None:
    """Note whether the checkpoint of the last step is there."""
    note(f"step-{steps_of(trainer):08d}.pt" in names(folder))


def _look_and_validate(parts: tuple[Callable[[], None], Callable[[], object]]) -> object:
    """A validation, and a look before it."""
    look, validate = parts
    look()
    return validate()


def _stopped_at(student: Student, training: Training, folder: Path, at: list[int]) -> StoppedRun:
    """A `fit` that SIGTERM stops, to this rank with the `at`-th samples; then a new trainer's `fit`."""
    trainer_of = partial(make, student, folder, training, dropout=0.5, cleared=True)
    first = trainer_of(at=at)
    watched = Watched()
    watched.saving(first.trainer)
    seed(1 + student.rank)
    run = _fit(first.trainer)
    second = trainer_of(start=0.5)
    watched.loading(second.trainer)
    seed(99)
    rest = _fit(second.trainer)
    return StoppedRun(
        stopped=run, run=rest, batches=len(first.batches()), again=end_state(second), loaded=watched.pair()
    )


def _fit(trainer: StudentObject) -> RunFields:
    return cast(RunFields, fields(trainer.fit(), TrainerRun, "fit()"))


def logged(student: Student, inputs: Logged) -> LoggedReply:
    """`fit` on ranks that each have a folder of their own: their files, and TensorBoard's entries by its own reader.

    Then, on one rank, another trainer goes back to the checkpoint of step `back_to` and on from there, as after a kill:
    `again` are the entries that then count.
    """
    torch.set_num_threads(1)
    folder = base_of(student) / f"own-{student.rank}"
    folder.mkdir()
    os.chdir(folder)
    note, received = notes()
    watched = Watched()
    with ranks_of(student):
        made = make(student, Path("run"), inputs.training, monitor=Sink(note))
        watched.saving(made.trainer)
        before = written_bytes()
        made.trainer.fit()
        after = written_bytes()
        files = files_below(folder)
        entries, again = _entries(folder), {}
        batches, logged_steps = made.batches(), received()
        if student.ranks == 1:
            second = make(student, Path("run"), inputs.training).trainer
            watched.loading(second)
            second.load_checkpoint(Path("run", "checkpoints", f"step-{inputs.back_to:08d}.pt"))
            second.fit()
            again = _entries(folder)
    return LoggedReply(
        batches=batches,
        files=files,
        entries=entries,
        again=again,
        loaded=watched.pair(),
        logged=logged_steps,
        left=system("files"),
        written_bytes=None if before is None or after is None else after - before,
    )


def _entries(folder: Path) -> dict[str, list[tuple[float, float]]]:
    """Step and value of what TensorBoard shows, by tag."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    entries: dict[str, list[tuple[float, float]]] = {}
    for place in sorted({name.rpartition("/")[0] for name in files_below(folder) if "tfevents" in name}):
        reader = EventAccumulator(str(folder / place))
        reader.Reload()
        for tag in reader.Tags()["scalars"]:
            entries.setdefault(tag, []).extend((entry.step, entry.value) for entry in reader.Scalars(tag))
    return entries
