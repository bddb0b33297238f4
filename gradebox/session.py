"""One grading from the first check to the report: which checks run, in which order, and what became of each.

Knows pytest only as the items it is handed; the hooks are in `plugin.py`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import pytest

from gradebox import hints, launch, report, trial
from gradebox.assertions import CheckFailed, NeedsReview
from gradebox.devices import GradingDevice
from gradebox.grade import PASSED_IN_DOUBT, CheckReport, Circumstances, ExitCode, Grade, IntegrityNote, Outcome, grade
from gradebox.overrides import Override
from gradebox.report import progress
from gradebox.report.terminal import Progress
from gradebox.rubric import Lab, Rubric
from gradebox.sandbox import TAMPERING, Sandbox, SandboxError
from gradebox.submission import ProbeFailed, Submission
from gradebox.texts import printable

COULD_NOT_GRADE = (
    pytest.ExitCode.INTERRUPTED,
    pytest.ExitCode.INTERNAL_ERROR,
    pytest.ExitCode.USAGE_ERROR,
    pytest.ExitCode.NO_TESTS_COLLECTED,
)


TIME_LIMIT_SECONDS = 600.0
"""For a whole grading on the virtual GPU: ten times what the reference takes. On a real GPU only who asks has one."""
_SAVE_SECONDS = 1.0
"""How often what was graded so far is written down, for the case that this process is killed."""


class GradingError(Exception):
    """Nothing can be graded; the message is one line that says what to do."""


class Blocked(Exception):
    """A check this one builds on has not passed."""


class GradingSession:
    """Rubric, submission and the reports that have come in so far."""

    def __init__(
        self,
        *,
        name: str,
        rubric: Rubric,
        labs: tuple[Lab, ...],
        submission: Submission,
        sandbox: Sandbox,
        device: GradingDevice,
        seed: int,
        report_folder: Path,
        owns_sandbox: bool,
        overrides: tuple[Override, ...] = (),
        caller_folder: Path | None = None,
    ) -> None:
        self.name = name
        self.rubric = rubric
        self.labs = labs
        self.submission = submission
        self.device = device
        self.seed = seed
        self.report_folder = report_folder
        self.ids: dict[str, str] = {}
        self.bar = Progress()
        self.time_limit_seconds: float | None = None
        self._sandbox = sandbox
        self._owns_sandbox = owns_sandbox
        self._caller_folder = caller_folder
        self._overrides = overrides
        self._reports: dict[str, CheckReport] = {}
        self._started = time.monotonic()
        self._saved = self._started
        self._earlier: progress.Earlier | None = None
        self._notes_of_source: tuple[IntegrityNote, ...] | None = None
        self._broken = ""
        """Why nothing more can be graded on this machine."""

    @classmethod
    def open(
        cls,
        *,
        name: str,
        rubric: Rubric,
        labs: tuple[Lab, ...],
        folder: Path,
        device: GradingDevice,
        seed: int,
        report_folder: Path,
        kept: Sandbox | None = None,
        overrides: tuple[Override, ...] = (),
        time_limit_seconds: float | None = None,
        caller_folder: Path | None = None,
    ) -> Self:
        """Take up the submission in `folder`, called `name` in reports; `overrides` are those of its student.

        `kept` is an entered sandbox that outlives this grading; it turns to the folder. Without `time_limit_seconds`
        it is `TIME_LIMIT_SECONDS` on a virtual GPU, and none on a real one. `caller_folder` is the one that whoever
        asks is in, the current one without it.

        Raises:
            GradingError: the folder is missing, is no submission, or cannot be copied; or no selected lab has checks.
        """
        if not folder.is_dir():
            raise GradingError(f"there is no folder {folder}; name the submission as --submission=DIR")
        if not any(criterion.available for lab in labs for criterion in lab.criteria):
            numbers = ", ".join(str(lab.number) for lab in labs)
            raise GradingError(f"lab {numbers} is not available yet: its checks are not written")
        try:
            if kept is not None:
                kept.turn_to(folder)
            sandbox = kept or Sandbox(folder)
        except SandboxError as error:
            raise GradingError(str(error)) from None
        limit = time_limit_seconds or (TIME_LIMIT_SECONDS if device.simulated else None)
        session = cls(
            name=name,
            rubric=rubric,
            labs=labs,
            submission=Submission(device, sandbox, time_limit_seconds=limit),
            sandbox=sandbox,
            device=device,
            seed=seed,
            report_folder=report_folder,
            owns_sandbox=kept is None,
            overrides=overrides,
            caller_folder=caller_folder,
        )
        session.time_limit_seconds = limit
        return session

    def start(self) -> None:
        """Let the sandbox's server begin to import PyTorch, which takes seconds, while pytest collects the checks."""
        if self._owns_sandbox:
            try:
                self._sandbox.__enter__()
            except SandboxError as error:
                raise GradingError(str(error)) from None

    def try_the_machine(self) -> None:
        """Ask a probe of our own first, on each kind of device that checks use.

        Raises:
            GradingError: it does not give what it must, so nothing that a submission does could be seen.
        """
        devices = (self.device.name, "cpu") if "torch" in self._sandbox.preloads else ("cpu",)
        for device in dict.fromkeys(devices):
            if problem := trial.problem(self._sandbox, device):
                self._broken = problem
                raise GradingError(problem)

    def begin(self, check: str) -> None:
        """Take up the next check."""
        self.submission.begin(check)

    def close(self) -> None:
        """End everything that was started."""
        self.bar.close()
        if self._owns_sandbox:
            self._sandbox.close()

    def check_id(self, item: pytest.Item) -> str:
        return self.ids[item.nodeid]

    def arrange(self, items: list[pytest.Item]) -> None:
        """Match the collected checks with the rubric, keep those to run, and put them in the rubric's order.

        Those to run are the checks of the selected criteria and the checks that they build on, which earn nothing here.

        Raises:
            GradingError: rubric and checks disagree, or a check requires one that does not come before it.
        """
        found = {check_id_of(item): item for item in items}
        expected = [check.id for check in self.rubric.checks()]
        if missing := [check for check in expected if check not in found]:
            raise GradingError(f"rubric.toml pays for {missing[0]}, but grader/checks/ has no such check")
        if unpaid := [check for check in found if check not in expected]:
            raise GradingError(f"grader/checks/ has {unpaid[0]}, but rubric.toml gives it no points")
        selected = {criterion.id for lab in self.labs for criterion in lab.criteria}
        wanted = {check for check in expected if check.rpartition(".")[0] in selected}
        for position, check in reversed(list(enumerate(expected))):
            if check not in wanted:
                continue
            for needed in requirements_of(found[check], check):
                if needed not in expected[:position]:
                    raise GradingError(f"{check} requires {needed}, which does not come before it in rubric.toml")
                wanted.add(needed)
        order = [check for check in expected if check in wanted]
        items[:] = [found[check] for check in order]
        self.ids = {item.nodeid: check for check, item in found.items()}
        self.bar.open(len(order))

    def stop_if_blocked(self, item: pytest.Item) -> None:
        """Raise `Blocked` when a check that `item` builds on has not passed."""
        for needed in requirements_of(item, self.check_id(item)):
            report = self._reports.get(needed)
            if report is None or report.outcome is not Outcome.PASSED:
                cause = report.message if report else "it did not run"
                root = cause if report and report.outcome is Outcome.BLOCKED else f"blocked by {needed}: {cause}"
                raise Blocked(root)

    def record_pass(self, check: str, seconds: float) -> None:
        self._record(check, CheckReport(Outcome.PASSED, seconds=seconds))

    def record_problem(self, check: str, error: BaseException, seconds: float) -> None:
        """Turn what a check raised into its outcome.

        Raises:
            GradingError: the machine is to blame, and not the submission.
        """
        match error:
            case CheckFailed():
                report = CheckReport(Outcome.FAILED, error.message, error.hint, seconds)
            case NeedsReview():
                report = CheckReport(Outcome.NEEDS_REVIEW, error.message, error.hint, seconds)
            case Blocked():
                report = CheckReport(Outcome.BLOCKED, str(error), "", seconds)
            case SandboxError():
                report = CheckReport(Outcome.NEEDS_REVIEW, f"the sandbox failed: {error}", "grade again", seconds)
            case KeyboardInterrupt():
                return
            case _:
                text = f"the check itself failed: {type(error).__name__}: {error}"
                report = CheckReport(Outcome.NEEDS_REVIEW, text, "report this to the course staff", seconds)
        if isinstance(error, SandboxError | ProbeFailed):
            trial.forget(self._sandbox)
            self.try_the_machine()  # it worked at the start, and the fault may be this check's alone
        self._record(check, report)

    def _record(self, check: str, report: CheckReport) -> None:
        hint = report.hint
        if not hint and report.outcome is Outcome.FAILED and hints.exists(check):
            hint = f"for a hint: gpulabs next --check {check} --hints 1"
        report = replace(report, message=printable(report.message), hint=printable(hint))
        self._reports[check] = report
        self.bar.finished(report)
        self._save_so_far()

    def _in_doubt(self) -> dict[str, CheckReport]:
        """All reports; where a check of a criterion was void, those of its others that passed are a person's to judge.

        Whoever tampers from a thread may not be caught in every check.
        """
        void = {note.check.rpartition(".")[0] for note in self.submission.integrity if note.kind == TAMPERING}
        return {
            check: replace(report, outcome=Outcome.NEEDS_REVIEW, message=PASSED_IN_DOUBT)
            if report.outcome is Outcome.PASSED and check.rpartition(".")[0] in void
            else report
            for check, report in self._reports.items()
        }

    def result(self, incomplete: str = "") -> Grade:
        """The grade of what has been reported so far; `incomplete` says why that is not all."""
        circumstances = Circumstances(
            submission=self.name,
            submission_sha256=self._sandbox.submission_sha256,
            device=self.device.label,
            simulated=self.device.simulated,
            isolation=self._sandbox.isolation.mode,
            seed=self.seed,
            seconds=round(time.monotonic() - self._started, 2),
            integrity=self.submission.integrity + self._source_notes(),
            overrides=self._overrides,
            incomplete=incomplete,
        )
        return grade(self.rubric, self.labs, self._in_doubt(), circumstances)

    def finish(self, incomplete: str = "") -> ExitCode:
        """Write and show the grade; returns the exit code that tells it to the shell."""
        result = self.result(incomplete)
        earlier = self._what_was_before(result)
        partial = any(lab not in self.rubric.labs for lab in self.labs)
        code = result.exit_code
        try:
            paths: Sequence[Path] = report.write(result, self.report_folder, earlier, partial=partial)
        except OSError as error:
            launch.refuse(
                f"the report cannot be written to {self.report_folder} ({error.strerror}); "
                "free space there or name another folder: --grade-report=DIR"
            )
            paths, code = (), ExitCode.COULD_NOT_GRADE
        report.show(result, self._sandbox.isolation.lines, paths, earlier, partial=partial, folder=self._caller_folder)
        return code

    def abandon(self) -> None:
        """Write down what was graded before the grading was interrupted or the machine failed, if anything was."""
        if self._reports:
            self.finish(self._broken or "it was interrupted")
        elif not self._broken:
            launch.refuse("it was interrupted before the first check")

    def _save_so_far(self) -> None:
        """For the case that this process is killed; not in a class, which grades such a submission again."""
        if not self._owns_sandbox or time.monotonic() - self._saved < _SAVE_SECONDS:
            return
        self._saved = time.monotonic()
        result = self.result("the grader was ended before the grading was over")
        self._what_was_before(result)
        with contextlib.suppress(OSError):  # said at the end, when it matters
            report.save(result, self.report_folder)

    def _source_notes(self) -> tuple[IntegrityNote, ...]:
        """Read once: the copy does not change, and parsing takes long where somebody wants it to."""
        if self._notes_of_source is None:
            self._notes_of_source = self.submission.source_notes(self.labs)
        return self._notes_of_source

    def _what_was_before(self, result: Grade) -> progress.Earlier:
        """What gradings before this one left in the folder, read before anything is written there."""
        if self._earlier is None:
            self._earlier = progress.read(self.report_folder, result)
        return self._earlier


def check_id_of(item: pytest.Item) -> str:
    """The check that a collected test is; raises GradingError where no criterion pays for it."""
    cls = getattr(item, "cls", None)
    criterion = getattr(cls, "__criterion__", None)
    if criterion is None:
        raise GradingError(f"{item.nodeid} is not bound to a criterion; decorate its class with @criterion")
    return f"{criterion}.{item.name.removeprefix('test_')}"


def requirements_of(item: pytest.Item, check: str) -> list[str]:
    """The checks that this one builds on."""
    names: Sequence[str] = getattr(getattr(item, "function", None), "__requires__", ())
    criterion = check.rpartition(".")[0]
    return [name if "." in name else f"{criterion}.{name}" for name in names]
