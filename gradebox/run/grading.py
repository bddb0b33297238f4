"""One grading: `run(order)` asks the checks that an order names and gives the grade. Prints nothing, reads no options.

Checks of different criteria are asked side by side, on as many sandboxes as the order allows; what comes out does not
depend on it. To see them come in, pass a `Watcher`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from gradebox.common.configuration import ENGINE_COMMAND
from gradebox.common.texts import printable
from gradebox.course import hints
from gradebox.course.criterion import CheckFunction
from gradebox.run import source_scan
from gradebox.run.check_runner import CheckRunner
from gradebox.run.device_use import DeviceUse
from gradebox.run.grade import CheckReport, Circumstances, Grade, IntegrityNote, Outcome, grade, in_doubt
from gradebox.run.probe_cache import CheckInputs, ProbeCache
from gradebox.run.reference_cache import ReferenceCache
from gradebox.run.request import CheckGroup, GradingError, GradingRequest, check_groups, plan_of, titles_of
from gradebox.sandbox import Isolation, Sandbox, SandboxError

_MANY_CHECKS = 8
"""From so many on it pays to arrange memory for forking."""


class Watcher:
    """Hears of a grading while it goes on, one call at a time; this one does nothing with it."""

    def begins(self, total: int) -> None:
        """So many checks will be asked."""

    def starting(self, check: str) -> None: ...

    def finished(self, check: str, report: CheckReport) -> None: ...


def run(
    order: GradingRequest,
    watcher: Watcher | None = None,
    *,
    sandbox: Sandbox | None = None,
    references: ReferenceCache | None = None,
) -> Grade:
    """Grade.

    Args:
        order: what is graded, and how.
        watcher: hears of each check.
        sandbox: an entered one that outlives this grading and turns to the submission; its server, which takes seconds
            to start, then serves many gradings.
        references: what runs of the course's own code have answered in gradings before, and will in this one.

    Raises:
        GradingError: nothing can be graded; the message is one line.
    """
    with Grading(order, watcher, sandbox=sandbox, references=references) as grading:
        grading.carry_out()
        return grading.result()


class Grading:
    """A grading that can be looked at while it goes on. Use as a context manager."""

    def __init__(
        self,
        order: GradingRequest,
        watcher: Watcher | None = None,
        *,
        sandbox: Sandbox | None = None,
        clones: Sequence[Sandbox] = (),
        known: Mapping[str, CheckReport] | None = None,
        references: ReferenceCache | None = None,
        device_use: DeviceUse | None = None,
    ) -> None:
        """Take up the submission.

        Args:
            order, watcher, sandbox, references: as `run` takes them.
            clones: of that sandbox, which ask next to it.
            known: reports of checks that need not be asked, because nothing that they look at has changed.
            device_use: instead of the usual one, for who wants to see or to change what is asked.

        Raises:
            GradingError: the folder is missing, is no submission, or cannot be copied; or no selected lab has checks,
                or the course's checks and rubric disagree.
        """
        self.order = order
        self._watcher = watcher or Watcher()
        self._plan = plan_of(order)
        self._titles = titles_of(order, self._plan)
        self._require_submission()
        # Measurements of a real device are repeated.
        kept = None if order.device.hardware else references
        self._device_use = device_use or DeviceUse(order.device, order.course.folder, order.course.devices)
        checks = [check.id for check in order.rubric.checks()]
        self._probe_cache = ProbeCache(order.time_limit_seconds, checks, kept, self._device_use)
        self._reports: dict[str, CheckReport] = {}
        self._started = time.monotonic()
        self._lock = threading.Condition()
        self._source_notes: tuple[IntegrityNote, ...] | None = None
        self._stopped = ""
        """Why no further check is taken up."""
        self._runner = CheckRunner(
            order, self._probe_cache, self._device_use, self._titles, self._reports, lambda: bool(self._stopped)
        )
        self._failure: BaseException | None = None
        self._threads: list[threading.Thread] = []
        self._kept = sandbox is not None
        self._known = known or {}
        try:
            if sandbox is not None:
                sandbox.set_submission(order.submission)
                for clone in clones:
                    clone.share_submission(sandbox)
            self._boxes = [sandbox or Sandbox(order.submission, order.course.environment), *clones]
        except SandboxError as error:
            raise GradingError(str(error)) from None

    @property
    def plan(self) -> tuple[CheckFunction, ...]:
        """The checks that are asked, in the rubric's order."""
        return self._plan

    @property
    def isolation(self) -> Sequence[str]:
        """How the submission is kept apart, in lines for people."""
        return self._isolation.lines

    @property
    def _isolation(self) -> Isolation:
        """Of all sandboxes, which are alike; asked of one that has answered, since a thread may be using the first."""
        known = (box.known_isolation for box in self._boxes)
        return next((isolation for isolation in known if isolation is not None), None) or self._boxes[0].isolation

    def grounds(self, check: str) -> CheckInputs:
        """What the report of a check follows from."""
        return self._probe_cache.grounds(check)

    @property
    def reports(self) -> Mapping[str, CheckReport]:
        """What has come in so far, by check."""
        with self._lock:
            return dict(self._reports)

    def keep(self, names: Collection[str]) -> None:
        """Ask only these checks, and those that they build on; before the grading begins."""
        self._plan = plan_of(replace(self.order, only=frozenset(names)))

    def __enter__(self) -> Self:
        """Let the sandbox's server begin to import what the course needs, which takes seconds.

        Raises:
            GradingError: there is no room for a copy of the submission.
        """
        if not self._kept:
            try:
                self._boxes[0].side_by_side = self._count()
                self._boxes[0].many = len(self._plan) >= _MANY_CHECKS
                self._boxes[0].__enter__()
                for _ in range(self._count() - 1):
                    self._boxes.append(self._boxes[0].clone())
            except SandboxError as error:
                self._close()
                raise GradingError(str(error)) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop("it was interrupted")
        self._close()

    def _close(self) -> None:
        if not self._kept or any(thread.is_alive() for thread in self._threads):
            for box in self._boxes:
                box.abandon()
        for thread in self._threads:
            thread.join()
        if self._kept:
            return
        for box in reversed(self._boxes):
            box.close()

    def _count(self) -> int:
        return max(1, min(self.order.jobs, len(check_groups(self._plan))))

    def _require_submission(self) -> None:
        order = self.order
        if not order.submission.is_dir():
            raise GradingError(f"there is no folder {order.submission}; name the folder to grade")
        if not any(criterion.available for lab in order.labs for criterion in lab.criteria):
            names = ", ".join(lab.option for lab in order.labs)
            is_to_come = any(lab.criteria for lab in order.labs)
            why = "is not available yet: its checks are not written" if is_to_come else "has no checks"
            raise GradingError(f"lab {names} {why}")

    # --- asking -----------------------------------------------------------------------------------------------------

    def carry_out(self) -> None:
        """Ask all checks, and return when the last has reported.

        Raises:
            GradingError: this machine cannot grade; what has been reported stays.
        """
        self.begin()
        self.wait()

    def begin(self) -> None:
        """Begin to ask the checks: in threads of their own where there are several sandboxes, else in `wait`."""
        self._watcher.begins(len(self._plan))
        self._open = deque(check_groups(self._plan))
        if len(self._boxes) > 1:
            self._open = deque(sorted(self._open, key=lambda lane: not lane.early))
            for box in self._boxes:
                thread = threading.Thread(target=self._work, args=(box,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def wait(self, check: str | None = None) -> CheckReport | None:
        """Wait for the report of one check, for all without it; None where there will be none.

        Raises:
            GradingError: this machine cannot grade.
        """
        if not self._threads:
            self._work(self._boxes[0], until=check)
        with self._lock:
            while not self._is_over(check):
                self._lock.wait(0.2)  # not for ever: a signal is only noticed in between
            if self._failure is not None and (check is None or check not in self._reports):
                raise self._failure
            return None if check is None else self._reports.get(check)

    def _is_over(self, check: str | None) -> bool:
        if check is not None and check in self._reports:
            return True
        return not any(thread.is_alive() for thread in self._threads)

    def stop(self, why: str) -> None:
        """Take up no further check."""
        with self._lock:
            self._stopped = self._stopped or why

    def _work(self, box: Sandbox, until: str | None = None) -> None:
        """Ask the checks of one lane after the other with this sandbox, `until` one has reported."""
        try:
            with self._device_use.shared(box):  # nothing is measured before all sandboxes are up
                self._runner.require_answers(box)
            while (until is None or until not in self._reports) and (lane := self._next()) is not None:
                while lane.checks:
                    if self._stopped:
                        return
                    self._ask(lane.checks.pop(0), box)
                    if until is not None and until in self._reports:
                        if lane.checks:
                            self._open.appendleft(lane)
                        return
        except BaseException as error:
            if not self._threads:
                raise
            with self._lock:
                if not self._stopped:
                    self._failure = self._failure or error
                    self._stopped = "the machine failed"
        finally:
            with self._lock:
                self._lock.notify_all()

    def _next(self) -> CheckGroup | None:
        with self._lock:
            return self._open.popleft() if self._open and not self._stopped else None

    def _ask(self, check: CheckFunction, box: Sandbox) -> None:
        if (known := self._known.get(check.id)) is not None:
            with self._lock:
                self._reports[check.id] = known
                self._lock.notify_all()
            return
        with self._lock:
            self._watcher.starting(check.id)
        report = self._runner.report(check, box)
        if report is not None:
            self._record(check.id, report)

    @property
    def command_next(self) -> str:
        """As a report can say it, which may be read in any folder."""
        course = self.order.course
        return f"{course.command} next" + (f" --course {course.package}" if course.command == ENGINE_COMMAND else "")

    def _record(self, check: str, report: CheckReport) -> None:
        hint = report.hint
        if not hint and report.outcome is Outcome.FAILED and check in hints.known(self.order.course):
            hint = f"{hints.POINTER}{self.command_next} --check {check} --hints 1"
        report = replace(
            report,
            message=printable(report.message),
            hint=printable(hint),
            evidence=printable(report.evidence),
            mistake=printable(report.mistake),
        )
        with self._lock:
            self._reports[check] = report
            self._watcher.finished(check, report)
            self._lock.notify_all()

    # --- what came out ----------------------------------------------------------------------------------------------

    @property
    def reported(self) -> bool:
        """Whether any check has."""
        return bool(self._reports)

    def result(self, incomplete: str = "") -> Grade:
        """The grade of what has been reported so far; `incomplete` says why that is not all."""
        order = self.order
        integrity = self._probe_cache.integrity + self._notes_of_source()
        circumstances = Circumstances(
            submission=order.name or str(order.submission),
            course=order.course.title,
            submission_sha256=self._boxes[0].submission_sha256,
            device=order.device.label,
            simulated=order.device.simulated,
            isolation=self._isolation.mode,
            seed=order.seed,
            seconds=round(time.monotonic() - self._started, 2),
            integrity=integrity,
            overrides=order.overrides,
            incomplete=incomplete,
        )
        return grade(order.rubric, order.labs, in_doubt(dict(self._reports), integrity), circumstances, self._titles)

    def _notes_of_source(self) -> tuple[IntegrityNote, ...]:
        """Read once: the copy does not change, and parsing takes long where somebody wants it to."""
        if self._source_notes is None:
            files = self._boxes[0].python_files()
            self._source_notes = source_scan.notes(files, self.order.labs, self.order.course)
        return self._source_notes
