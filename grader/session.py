"""One grading from the first check to the report: which checks run, in which order, and what became of each.

Knows pytest only as the items it is handed; the hooks are in `plugin.py`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import pytest

from grader import hints, report
from grader.devices import GradingDevice
from grader.grade import PASSED_IN_DOUBT, CheckReport, Circumstances, ExitCode, Grade, Outcome, grade
from grader.judge import CheckFailed, NeedsReview
from grader.overrides import Override
from grader.report import progress
from grader.report.terminal import Progress
from grader.rubric import Lab, Rubric
from grader.sandbox import TAMPERING, Sandbox, SandboxError
from grader.submission import Submission
from grader.texts import printable

COULD_NOT_GRADE = (
    pytest.ExitCode.INTERRUPTED,
    pytest.ExitCode.INTERNAL_ERROR,
    pytest.ExitCode.USAGE_ERROR,
    pytest.ExitCode.NO_TESTS_COLLECTED,
)


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
    ) -> None:
        self.name = name
        self.rubric = rubric
        self.labs = labs
        self.submission = submission
        self.device = device
        self.seed = seed
        self.report_folder = report_folder
        self.ids: dict[str, str] = {}
        self.progress = Progress()
        self._sandbox = sandbox
        self._owns_sandbox = owns_sandbox
        self._overrides = overrides
        self._reports: dict[str, CheckReport] = {}
        self._started = time.monotonic()

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
    ) -> Self:
        """Take up the submission in `folder`, called `name` in reports; `overrides` are those of its student.

        `kept` is an entered sandbox over the folder that outlives this grading.

        Raises:
            GradingError: the folder is missing, is no submission, or cannot be copied; or no selected lab has checks.
        """
        if not folder.is_dir():
            raise GradingError(f"there is no folder {folder}; name the submission as --submission=DIR")
        if not any(criterion.available for lab in labs for criterion in lab.criteria):
            numbers = ", ".join(str(lab.number) for lab in labs)
            raise GradingError(f"lab {numbers} is not available yet: its checks are not written")
        try:
            sandbox = kept or Sandbox(folder)
        except SandboxError as error:
            raise GradingError(str(error)) from None
        return cls(
            name=name,
            rubric=rubric,
            labs=labs,
            submission=Submission(device, sandbox),
            sandbox=sandbox,
            device=device,
            seed=seed,
            report_folder=report_folder,
            owns_sandbox=kept is None,
            overrides=overrides,
        )

    def start(self) -> None:
        """Let the sandbox's server begin to import PyTorch, which takes seconds, while pytest collects the checks."""
        if self._owns_sandbox:
            self._sandbox.__enter__()

    def close(self) -> None:
        """End everything that was started."""
        self.progress.close()
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
        self.progress.open(len(order))

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
        """Turn what a check raised into its outcome."""
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
        self._record(check, report)

    def _record(self, check: str, report: CheckReport) -> None:
        hint = report.hint
        if not hint and report.outcome is Outcome.FAILED and hints.exists(check):
            hint = f"for a hint: gpulabs next --check {check} --hints 1"
        report = replace(report, message=printable(report.message), hint=printable(hint))
        self._reports[check] = report
        self.progress.finished(report)

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

    def result(self) -> Grade:
        """The grade of what has been reported so far."""
        circumstances = Circumstances(
            submission=self.name,
            submission_sha256=self._sandbox.submission_sha256,
            device=self.device.label,
            simulated=self.device.simulated,
            isolation=self._sandbox.isolation.mode,
            seed=self.seed,
            seconds=round(time.monotonic() - self._started, 2),
            integrity=self.submission.integrity + self.submission.source_notes(self.labs),
            overrides=self._overrides,
        )
        return grade(self.rubric, self.labs, self._in_doubt(), circumstances)

    def finish(self) -> ExitCode:
        """Write and show the grade; returns the exit code that tells it to the shell."""
        result = self.result()
        earlier = progress.read(self.report_folder, result)
        partial = any(lab not in self.rubric.labs for lab in self.labs)
        try:
            paths: Sequence[Path] = report.write(result, self.report_folder, earlier, partial=partial)
        except OSError as error:
            print(printable(f"could not write the report to {self.report_folder}: {error.strerror}"), file=sys.stderr)
            paths = ()
        report.show(result, self._sandbox.isolation.lines, paths, earlier, partial=partial)
        return result.exit_code


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
