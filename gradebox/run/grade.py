"""From outcomes to a grade: points per check, criterion and lab, counted over the rubric's list of checks.

A check without a report earned nothing, so a check that vanished can never help. Not for running checks (`run.py`) or
for showing the grade (`report/`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum
from types import MappingProxyType
from typing import Literal

from gradebox.common.exit_codes import ExitCode
from gradebox.course.rubric import Check, Criterion, Lab, Rubric
from gradebox.run import deductions
from gradebox.run.overrides import Override
from gradebox.run.pictures import Picture
from gradebox.sandbox.types import TAMPERING

SCHEMA_VERSION = "1.8"


class Outcome(StrEnum):
    """What became of one check."""

    PASSED = "passed"
    FAILED = "failed"
    BLOCKED = "blocked"
    NEEDS_REVIEW = "needs_review"


@dataclass(frozen=True)
class CheckReport:
    """What the run says of one check; seconds are real ones."""

    outcome: Outcome
    message: str = ""
    hint: str = ""
    seconds: float = 0.0
    blocked_by: str = ""
    """Of a blocked check, the one at the beginning: it failed, and this one builds on it."""
    cause: str = ""
    """Of a failed check, the mistake that it recognised."""
    belongs_to: str = ""
    """The check in which that mistake is charged where it fails as well; empty where any may be."""
    mistake: str = ""
    """What is wrong, for people, if it was recognised."""
    answered: bool = False
    """Of a failed check: the submission's code came to its end, and what it gave was judged."""
    evidence: str = ""
    """Of a failed check: how and at which line the submission's code ended."""
    built_on: str = ""
    """Of a failed check: it passes without what this other failed check is about."""
    picture: Picture | None = None


@dataclass(frozen=True)
class IntegrityNote:
    """Something an instructor should look at; never costs points by itself."""

    kind: str
    detail: str
    where: str
    """File and line of the submission, or empty."""
    check: str
    """The check that ran when this was noticed."""


@dataclass(frozen=True)
class CheckResult:
    id: str
    points: Decimal
    max_points: Decimal
    outcome: Outcome
    message: str
    """What was seen, what was expected; empty where it passed."""
    hint: str
    """Where to look."""
    seconds: float
    """Real time."""
    blocked_by: str = ""
    """Of a blocked check, the one that failed; new in 1.3."""
    title: str = ""
    """What it asks, in words; new in 1.3."""
    cause: str = ""
    """Of a failed check, the mistake that it recognised, by a name; new in 1.5."""
    belongs_to: str = ""
    """The check in which that mistake is charged where it fails as well; new in 1.5."""
    follows_from: str = ""
    """Of a check that did not pass, the one that shows the same mistake, and that is charged for it; new in 1.5."""
    picture: Picture | None = None
    """Of a failed check: what was seen and what was expected, to be drawn; new in 1.6."""
    built_on: str = ""
    """Of a failed check, another failed one: without what that one is about, this one passes; new in 1.7."""
    evidence: str = ""
    """Of a failed check: how and at which line the submission's code ended; new in 1.8."""
    answered: bool = False
    """Of a failed check: the submission's code came to its end, and what it gave was judged; new in 1.8."""
    mistake: str = ""
    """Of a failed check: what is wrong, for people, if it was recognised; new in 1.8."""

    @property
    def is_charged(self) -> bool:
        """Whether it cost points."""
        return self.points < self.max_points

    @property
    def name(self) -> str:
        """What people call it: its title, or its id in an older grade, which has no titles."""
        return self.title or self.id


@dataclass(frozen=True)
class OverrideResult:
    """What an instructor gave instead of the automatic points, and why."""

    automatic_points: Decimal
    reason: str


@dataclass(frozen=True)
class CriterionResult:
    id: str
    title: str
    points: Decimal
    max_points: Decimal
    available: bool
    """False while the lab is not written yet; such a criterion has no checks."""
    checks: tuple[CheckResult, ...]
    override: OverrideResult | None = None
    """Set where an instructor gave the points by hand; points then are theirs. New in 1.1."""

    @property
    def first_problem(self) -> CheckResult | None:
        """The check to look at first: one that failed before one that follows from it or was only blocked."""
        open_checks = [check for check in self.checks if check.outcome is not Outcome.PASSED]
        return min(
            open_checks, key=lambda check: (check.outcome is Outcome.BLOCKED, bool(check.follows_from)), default=None
        )


@dataclass(frozen=True)
class LabResult:
    id: str
    title: str
    points: Decimal
    max_points: Decimal
    available: bool
    criteria: tuple[CriterionResult, ...]


@dataclass(frozen=True)
class Grade:
    """The whole result of one grading. Minor versions of its schema only add properties."""

    schema_version: str
    rubric_version: str
    submission: str
    """The graded folder, as it was named on the command line."""
    submission_sha256: str = field(metadata={"schema": {"pattern": "^[0-9a-f]{64}$"}})
    """Hash over the names and contents of the graded files."""
    device: str
    """The device for people; a virtual one says that it is simulated."""
    simulated: bool
    isolation: Literal["namespaces", "limits"]
    """limits: this machine allows no namespaces, so only process limits held."""
    seed: int
    """Repeats this grading with --grade-seed."""
    seconds: float
    score: Decimal
    max_score: Decimal
    """Points of the selected criteria that are available."""
    pass_score: Decimal
    passed: bool
    integrity: tuple[IntegrityNote, ...]
    labs: tuple[LabResult, ...]
    incomplete: str = ""
    """Why the grading ended before it was over; empty when it did not. Its points are no result then. New in 1.2."""
    course: str = ""
    """Title of the course; new in 1.4."""

    @property
    def checks(self) -> tuple[CheckResult, ...]:
        return tuple(check for lab in self.labs for criterion in lab.criteria for check in criterion.checks)

    def follows(self, check: CheckResult) -> str:
        """For people: which check shows the same mistake, and whether this one is charged as well; often empty."""
        other = next((other.name for other in self.checks if other.id == check.follows_from), "")
        if not other:
            return ""
        if check.is_charged:
            return f"the same mistake as in '{other}', and charged as well: too little works to show more"
        return f"the same mistake as in '{other}', charged there"

    @property
    def needs_review(self) -> tuple[CheckResult, ...]:
        return tuple(
            check
            for lab in self.labs
            for criterion in lab.criteria
            if criterion.override is None  # an instructor has looked
            for check in criterion.checks
            if check.outcome is Outcome.NEEDS_REVIEW
        )

    @property
    def exit_code(self) -> ExitCode:
        if self.max_score == 0 or self.incomplete:
            return ExitCode.COULD_NOT_GRADE
        if self.needs_review:
            return ExitCode.NEEDS_REVIEW
        return ExitCode.PASSED if self.passed else ExitCode.NOT_PASSED


@dataclass(frozen=True)
class Circumstances:
    """How a grade came about: everything needed to repeat it."""

    submission: str
    submission_sha256: str
    device: str
    simulated: bool
    isolation: Literal["namespaces", "limits"]
    seed: int
    seconds: float
    integrity: tuple[IntegrityNote, ...] = ()
    overrides: tuple[Override, ...] = ()
    """Those of this student."""
    incomplete: str = ""
    course: str = ""
    """Title of the course."""


@dataclass(frozen=True, kw_only=True)
class LatePenalty:
    """Points that a late submission loses."""

    seconds_late: float
    """After the student's own deadline, before any grace."""
    points: Decimal
    """Deducted; never negative, never more than the grade's score."""
    rule: str
    """For people: `10 % per day, 2 days`."""


PASSED_IN_DOUBT = (
    "it passed, but in another check of this criterion the submission reached into what the grader measures with"
)
"""The message of a check that needs review for what its submission did, not because it could not decide."""

DID_NOT_RUN = CheckReport(
    Outcome.NEEDS_REVIEW,
    "this check did not report a result: the grading ended before it ran",
    "grade again; if it happens twice, report it to the course staff",
)


_NO_TITLES: Mapping[str, str] = MappingProxyType({})


def grade(
    rubric: Rubric,
    labs: Sequence[Lab],
    reports: Mapping[str, CheckReport],
    circumstances: Circumstances,
    titles: Mapping[str, str] = _NO_TITLES,
) -> Grade:
    """Score `reports` over the selected labs of the rubric; they and the `titles` of checks are by check id.

    A check without a report earns nothing and needs review. Passing takes `rubric.pass_percent` of the points that can
    be earned in the selected labs; a lab that is not written yet offers none. An override replaces the points of its
    criterion.
    """
    overrides = {override.criterion: override for override in circumstances.overrides}
    results = tuple(_lab(lab, reports, overrides, titles) for lab in labs)
    score = sum((lab.points for lab in results), Decimal(0))
    max_score = sum((row.max_points for lab in results for row in lab.criteria if row.available), Decimal(0))
    pass_score = max_score * rubric.pass_percent / 100
    return Grade(
        schema_version=SCHEMA_VERSION,
        rubric_version=rubric.version,
        submission=circumstances.submission,
        submission_sha256=circumstances.submission_sha256,
        device=circumstances.device,
        simulated=circumstances.simulated,
        isolation=circumstances.isolation,
        seed=circumstances.seed,
        seconds=circumstances.seconds,
        score=score,
        max_score=max_score,
        pass_score=pass_score,
        passed=max_score > 0 and score >= pass_score,
        integrity=_in_order(rubric, circumstances.integrity),
        labs=results,
        incomplete=circumstances.incomplete,
        course=circumstances.course,
    )


def _in_order(rubric: Rubric, notes: Sequence[IntegrityNote]) -> tuple[IntegrityNote, ...]:
    """Each note once, in the rubric's order: what was noticed first is chance."""
    positions = {check.id: position for position, check in enumerate(rubric.checks())}
    return tuple(
        sorted(set(notes), key=lambda note: (positions.get(note.check, -1), note.kind, note.where, note.detail))
    )


def _lab(
    lab: Lab, reports: Mapping[str, CheckReport], overrides: Mapping[str, Override], titles: Mapping[str, str]
) -> LabResult:
    checks = [check for criterion in lab.criteria for check in criterion.checks]
    of_checks = {check.id: reports.get(check.id, DID_NOT_RUN) for check in checks}
    follows, kept = deductions.deduplicate(
        {check.id: check.points for check in checks},
        [name for name, report in of_checks.items() if report.outcome is Outcome.PASSED],
        {name: failure for name, report in of_checks.items() if (failure := _failure(report, of_checks)) is not None},
        {check.id: check.functions for check in checks},
    )
    results = {
        check.id: _result(check, of_checks[check.id], titles, follows.get(check.id, ""), check.id in kept)
        for check in checks
    }
    criteria = tuple(_criterion(criterion, results, overrides.get(criterion.id)) for criterion in lab.criteria)
    available = any(criterion.available for criterion in criteria)
    points = sum((criterion.points for criterion in criteria), Decimal(0))
    return LabResult(lab.id, lab.title, points, lab.points, available, criteria)


def _failure(report: CheckReport, reports: Mapping[str, CheckReport]) -> deductions.Failure | None:
    """What a check that failed, or that waits for one, shows of its mistake; None of all others."""
    if report.outcome is Outcome.BLOCKED:
        return deductions.Failure("", answered=False, follows=report.blocked_by)
    if report.outcome is not Outcome.FAILED:
        return None
    if report.cause:
        return deductions.Failure(f"cause: {report.cause}", report.belongs_to, report.answered)
    if report.answered:
        premise = reports.get(report.built_on)
        follows = report.built_on if premise is not None and premise.outcome is Outcome.FAILED else ""
        return deductions.Failure(f"seen: {report.message}", follows=follows)
    return deductions.Failure(report.evidence and f"ended: {report.evidence}", answered=False)


def _result(check: Check, report: CheckReport, titles: Mapping[str, str], follows_from: str, kept: bool) -> CheckResult:
    earned = kept or report.outcome is Outcome.PASSED
    return CheckResult(
        id=check.id,
        points=check.points if earned else Decimal(0),
        max_points=check.points,
        outcome=report.outcome,
        message=report.message,
        hint=report.hint,
        seconds=round(report.seconds, 3),
        blocked_by=report.blocked_by,
        title=titles.get(check.id, ""),
        cause=report.cause,
        belongs_to=report.belongs_to,
        follows_from=follows_from,
        picture=report.picture if report.outcome is Outcome.FAILED else None,
        built_on=report.built_on,
        evidence=report.evidence,
        answered=report.answered,
        mistake=report.mistake,
    )


def _criterion(criterion: Criterion, results: Mapping[str, CheckResult], override: Override | None) -> CriterionResult:
    checks = tuple(results[check.id] for check in criterion.checks)
    earned = sum((check.points for check in checks), Decimal(0))
    return CriterionResult(
        criterion.id,
        criterion.title,
        earned if override is None else override.points,
        criterion.points,
        criterion.available,
        checks,
        None if override is None else OverrideResult(earned, override.reason),
    )


def in_doubt(reports: dict[str, CheckReport], notes: Sequence[IntegrityNote]) -> dict[str, CheckReport]:
    """All reports; where a check of a criterion was void, those of its others that passed are a person's to judge.

    Tampering from a thread may not be caught in every check.
    """
    void = {note.check.rpartition(".")[0] for note in notes if note.kind == TAMPERING}
    return {
        check: replace(report, outcome=Outcome.NEEDS_REVIEW, message=PASSED_IN_DOUBT)
        if report.outcome is Outcome.PASSED and check.rpartition(".")[0] in void
        else report
        for check, report in reports.items()
    }
