"""Our side: hands submissions to a scheduler, takes results as they appear, and judges what ended without one.

May be stopped at any moment: arrays go on without us, and the next run takes up what they have graded, waits for what
they still do, and submits only the rest.
"""

from __future__ import annotations

import enum
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from gradebook.grading.cluster.code_digest import code_digest
from gradebook.grading.cluster.shared_folder import Answer, Batch, Errand, SharedFolder
from gradebook.grading.engine import Engine, EngineError, OpenEngine
from gradebook.grading.pool import ATTEMPTS
from gradebook.results import Grading, Task
from gradebox.course.course import Course

FOLDER = "cluster"
"""In the folder of the class: what we and the nodes share."""
JUDGE = "gradebook.grading.judge:SandboxJudge"

_LOOK_SECONDS = 5.0
"""Between two questions to the scheduler; sites ask not to be asked more often."""
_SHOWN_SECONDS = 120.0
"""So long after its end an array task's result may take to be seen here: the folder may be slow to show it."""
_SETTLING_LOOKS = 3
_LOSSES = 5
"""So often a submission may lose its node before we no longer believe that it is the node."""
_SILENCE_SECONDS = 1800.0
"""So long a scheduler may be out of reach."""
_START_SECONDS = 300.0
"""What an array task may need besides its grading: to start, and to see the folder."""


class State(enum.Enum):
    """What a scheduler says about an array task."""

    WAITS = "waits"
    RUNS = "runs"
    ENDED = "ended"
    """It is over, and well as far as the scheduler knows; the result says how."""
    BROKE = "broke"
    """Its process ended with an error."""
    TOO_LONG = "too long"
    LOST = "lost"
    """Its node died, or somebody more important came: no fault of the submission."""
    CANCELLED = "cancelled"
    """By a person."""


@dataclass(frozen=True)
class TaskStatus:
    """An array task, as the scheduler has it."""

    state: State
    detail: str = ""
    """In the scheduler's words."""


class Unreachable(Exception):
    """The scheduler does not answer just now; its words."""


class Full(Exception):
    """The scheduler takes no more just now; its words."""


class Scheduler(Protocol):
    """How one is spoken to."""

    most: int
    """Array tasks in one array."""

    def submit(self, batch: Batch, at_once: int, seconds: float) -> str:
        """Have an array of as many array tasks run `array_task.py`; its name there.

        Raises Full, Unreachable, EngineError.
        """

    def find(self, batch: Batch) -> str:
        """The name of an array that was submitted under this batch's, or nothing. Raises Unreachable."""

    def states(self, batches: Sequence[Batch]) -> Mapping[tuple[str, int], TaskStatus]:
        """By batch and index; what is not there, the scheduler has forgotten. Raises Unreachable."""

    def cancel(self, batch: Batch, indices: Sequence[int]) -> None:
        """End these; what is over stays so."""

    def how_to_stop(self, batches: Sequence[Batch]) -> str:
        """The command that ends them."""


def open_cluster(
    course: Course, out: Path, scheduler: Callable[[Path, str], Scheduler], say: Callable[[str], None]
) -> OpenEngine:
    """How to open the engine of a scheduler.

    Args:
        course: what is graded.
        out: the folder of the class, in which nodes and we share a folder.
        scheduler: makes the scheduler, given the shared folder and the device.
        say: takes lines about what the scheduler does.
    """
    folder = out / FOLDER

    def open_engine(jobs: int, room: Path, device: str) -> Engine:
        return ClusterEngine(scheduler(folder, device), folder, jobs, (course.package, code_digest(course)), say)

    return open_engine


class ClusterEngine:
    """Grades by a scheduler. See `grading.engine.Engine`."""

    def __init__(
        self,
        scheduler: Scheduler,
        folder: Path,
        jobs: int,
        course: tuple[str, str],
        say: Callable[[str], None],
        judge: str = JUDGE,
        look_seconds: float = _LOOK_SECONDS,
        shown_seconds: float = _SHOWN_SECONDS,
    ) -> None:
        """Submit nothing yet.

        Args:
            scheduler: what runs arrays.
            folder: shared with every node; kept from run to run.
            jobs: array tasks at the same time.
            course: its package or folder, and the digest of the code that every node must have (`code_digest.py`).
            say: takes lines about what the scheduler does.
            judge: `module:name` of what opens a judge on a node.
            look_seconds: between two looks.
            shown_seconds: so long a result may take to be seen after its array task's end.
        """
        self._scheduler, self._shared, self._jobs = scheduler, SharedFolder(folder), jobs
        self._course, self._say, self._judge = course, say, judge
        self._look_seconds, self._shown_seconds = look_seconds, shown_seconds

    def run(self, tasks: Sequence[Task], started: Callable[[Task], None]) -> Iterator[tuple[Task, Grading]]:
        """Every task with its grading, as they come."""
        try:
            self._shared.prepare()
        except OSError as error:
            raise EngineError(f"{self._shared.folder} cannot be written: {error.strerror}") from None
        (self._shared.folder / "logs").mkdir(exist_ok=True)
        yield from _Round(self, tasks, started).carry_out()

    def close(self) -> None:
        """Say what goes on without us, if anything does."""
        if batches := self._shared.batches():
            self._say(
                "what is on the cluster goes on; the same command takes it up. To end it: "
                f"{self._scheduler.how_to_stop(batches)}"
            )


class _Round:
    """One run: what is open, and where each of it stands."""

    def __init__(self, engine: ClusterEngine, tasks: Sequence[Task], started: Callable[[Task], None]) -> None:
        self._scheduler, self._shared, self._jobs = engine._scheduler, engine._shared, engine._jobs
        self._look_seconds, self._shown_seconds = engine._look_seconds, engine._shown_seconds
        self._say, self._started = engine._say, started
        package, digest = engine._course
        errands = [Errand(task, digest, engine._judge, package) for task in tasks]
        self._open = {self._shared.key(errand): errand for errand in errands}
        self._where: dict[str, tuple[Batch, int]] = {}
        """Keys that some array has."""
        self._running: set[str] = set()
        self._ended: dict[str, float] = {}
        """Keys whose array task is over, and since when."""
        self._attempts: dict[str, int] = {}
        self._losses: dict[str, int] = {}
        self._cancelled: list[str] = []
        self._silent_since: float | None = None
        self._full = ""

    def carry_out(self) -> Iterator[tuple[Task, Grading]]:
        self._adopt()
        while self._open:
            for key in sorted(self._shared.results() & set(self._open)):
                answer = self._shared.take(key)
                if answer.stops:
                    self._shared.forget(key)
                    raise EngineError(answer.problem)
                yield from self._answered(key, answer)
            self._submit()
            yield from self._look()
            self._drop_what_is_over()
            if self._open:
                time.sleep(self._look_seconds)
        self._drop_what_is_over()
        if self._cancelled:
            names = ", ".join(self._cancelled[:5]) + (" and others" if len(self._cancelled) > 5 else "")
            raise EngineError(
                f"{len(self._cancelled)} were cancelled on the cluster and are still open ({names}); give the same "
                "command again to have them graded"
            )

    # --- arrays -----------------------------------------------------------------------------------------------------

    def _adopt(self) -> None:
        """Take up what an earlier run has submitted; end what nobody asks for any more."""
        for batch in self._shared.batches():
            if not batch.job:
                job = self._reached(lambda batch=batch: self._scheduler.find(batch))  # type: ignore[misc]
                if not job:
                    self._shared.drop(batch)
                    continue
                batch = replace(batch, job=job)
                self._shared.keep(batch)
            still_open = {key: index for index, key in enumerate(batch.keys) if key in self._open}
            for key, index in still_open.items():
                self._where[key] = batch, index
            if others := [index for index, key in enumerate(batch.keys) if key not in still_open]:
                self._scheduler.cancel(batch, others)
            if still_open:
                self._say(
                    f"{batch.job}: {len(still_open)} submissions were handed in by an earlier run; taking them up"
                )
            else:
                self._shared.drop(batch)
        for key in self._shared.results() - set(self._open):
            self._shared.forget(key)  # of a submission that has changed since

    def _submit(self) -> None:
        """Hand in what no array has, in as few arrays as may be."""
        waiting = [key for key in self._open if key not in self._where]
        while waiting and not self._full:
            part = waiting[: self._scheduler.most]
            for key in part:
                self._shared.put(key, self._open[key])
            batch = Batch(f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}", tuple(part))
            self._shared.keep(batch)
            seconds = max(self._open[key].task.seconds for key in part) + _START_SECONDS
            try:
                job = self._scheduler.submit(batch, self._jobs, seconds)
            except (Full, Unreachable) as error:
                self._shared.drop(batch)
                if not self._where and isinstance(error, Full):
                    raise EngineError(f"the cluster takes no submission: {error}") from None
                if isinstance(error, Unreachable):
                    self._silence(error)
                else:
                    self._full = str(error)
                    self._say(f"the cluster takes no more for now ({error}); the rest is handed in as others end")
                return
            except EngineError:
                self._shared.drop(batch)
                raise
            batch = replace(batch, job=job)
            self._shared.keep(batch)
            self._where |= {key: (batch, index) for index, key in enumerate(part)}
            self._say(f"{job}: {len(part)} submissions handed in to the cluster")
            waiting = waiting[len(part) :]

    def _drop_what_is_over(self) -> None:
        """Forget arrays of which nothing is open."""
        in_use = {batch.name for batch, _ in self._where.values()}
        for batch in self._shared.batches():
            if batch.name not in in_use:
                self._shared.drop(batch)
                self._full = ""

    # --- array tasks ------------------------------------------------------------------------------------------------

    def _look(self) -> Iterator[tuple[Task, Grading]]:
        """See what runs, and what has ended and left nothing."""
        batches = {batch.name: batch for batch, _ in self._where.values()}
        try:
            states = self._scheduler.states(list(batches.values()))
            self._silent_since = None
        except Unreachable as error:
            self._silence(error)
            return
        for key, (batch, index) in list(self._where.items()):
            status = states.get(
                (batch.name, index), TaskStatus(State.ENDED, "the cluster no longer knows how it ended")
            )
            if status.state is State.RUNS and key not in self._running:
                self._running.add(key)
                self._started(self._open[key].task)
            if status.state in (State.WAITS, State.RUNS):
                self._ended.pop(key, None)
                if status.state is State.WAITS:
                    self._running.discard(key)
                continue
            since = self._ended.setdefault(key, time.monotonic())
            patience = self._shown_seconds if status.state is State.ENDED else _SETTLING_LOOKS * self._look_seconds
            if time.monotonic() - since < patience:
                continue  # its result may only not be seen yet; or the scheduler is about to queue it again by itself
            if not self._shared.has_result(key):
                yield from self._came_to_nothing(key, status, batch, index)

    def _came_to_nothing(
        self, key: str, status: TaskStatus, batch: Batch, index: int
    ) -> Iterator[tuple[Task, Grading]]:
        task = self._open[key].task
        if status.state is State.CANCELLED:
            self._cancelled.append(task.label)
            self._done(key)
        elif status.state is State.LOST and self._losses.get(key, 0) + 1 < _LOSSES:
            self._losses[key] = self._losses.get(key, 0) + 1
            self._say(f"{task.label}: its node was lost ({status.detail}); handed in again")
            self._again(key)
        elif status.state is State.LOST:
            yield from self._failed(key, f"it lost its node {_LOSSES} times ({status.detail})")
        elif status.state is State.TOO_LONG:
            yield from self._failed(key, f"it took longer than {task.seconds / 60:g} minutes")
        else:
            said = self._shared.last_words(batch, index)
            yield from self._failed(
                key, f"its job ended without a result ({status.detail}{f': {said}' if said else ''})"
            )

    def _answered(self, key: str, answer: Answer) -> Iterator[tuple[Task, Grading]]:
        if answer.grading is None:
            yield from self._failed(key, answer.problem)
            return
        if key not in self._running:
            self._started(self._open[key].task)
        yield self._open[key].task, answer.grading  # the caller has it on disk before we forget it
        self._shared.forget(key)
        self._done(key)

    def _failed(self, key: str, why: str) -> Iterator[tuple[Task, Grading]]:
        self._attempts[key] = self._attempts.get(key, 0) + 1
        if self._attempts[key] < ATTEMPTS:
            self._say(f"{self._open[key].task.label}: {why}; handed in once more")
            self._again(key)
            return
        now = datetime.now(UTC)
        problem = f"{why}, and so it did the time before; grade it alone to see more"
        if key not in self._running:
            self._started(self._open[key].task)
        yield self._open[key].task, Grading(grade=None, problem=problem, started=now, ended=now)
        self._shared.forget(key)
        self._done(key)

    def _again(self, key: str) -> None:
        self._shared.forget(key)
        for mapping in (self._where, self._ended):
            mapping.pop(key, None)
        self._running.discard(key)
        self._full = ""

    def _done(self, key: str) -> None:
        self._again(key)
        del self._open[key]

    # --- a scheduler that does not answer ---------------------------------------------------------------------------

    def _silence(self, error: Unreachable) -> None:
        now = time.monotonic()
        if self._silent_since is None:
            self._silent_since = now
            self._say(f"the cluster does not answer ({error}); waiting")
        elif now - self._silent_since > _SILENCE_SECONDS:
            raise EngineError(
                f"the cluster has not answered for {_SILENCE_SECONDS / 60:.0f} minutes ({error}); what it grades is "
                "not lost: give the same command later"
            )

    def _reached(self, ask: Callable[[], str]) -> str:
        while True:
            try:
                answer = ask()
            except Unreachable as error:
                self._silence(error)
                time.sleep(self._look_seconds)
                continue
            self._silent_since = None
            return answer
