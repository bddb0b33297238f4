"""Reports that people grade instead of a check: `reports.toml` of a class, and the points that follow from it.

`[by_hand] reports = true` in `class.toml` switches it on. `gpulabs class` then copies the course's rubrics (`ready.py`)
into the class's folder, where graders may change them. The check of a report still runs, and is shown; its points are
those that people give. Not for criteria next to the points of checks (`merging.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path

from gradebook import settings as class_settings
from gradebook.grading.manual_grading import FOLDER, ManualGradingError, merging, rubric, units
from gradebook.grading.manual_grading.rubric import Criterion
from gradebook.grading.manual_grading.rubric import Rubric as ManualRubric
from gradebook.results import ReportResult, Student
from gradebook.settings import ByHand
from gradebook.store import Gradebook
from gradebox.common import reading
from gradebox.course.rubric import Lab, Rubric
from gradebox.report.document import points as in_points
from gradebox.run.grade import CheckResult, CriterionResult, Grade, LabResult, Outcome

FILE = "reports.toml"


@dataclass(frozen=True)
class Report:
    """The report of one lab: the check that it replaces, by id, and the criterion that it may replace as a whole."""

    lab: int
    check: str
    criterion: str = ""
    """Empty: only the check."""


@dataclass(frozen=True)
class _File:
    criterion: tuple[Criterion, ...]
    report: tuple[Report, ...]
    title: str = "Reports"
    released: bool = False
    blind: bool = False
    graders: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reports:
    """What people grade of the reports of a class."""

    rubric: ManualRubric
    """Its criteria, each of a lab."""
    reports: tuple[Report, ...]

    def criteria(self, lab: int) -> tuple[Criterion, ...]:
        return tuple(criterion for criterion in self.rubric.criterion if criterion.lab == lab)


def load(folder: Path, by_hand: ByHand) -> Reports | None:
    """The reports that people grade in the class of `folder`; None if the setting is off.

    Raises:
        ManualGradingError: the setting is on, and the file is missing or cannot be used.
    """
    if not by_hand.reports:
        return None
    path = folder / FOLDER / FILE
    try:
        document = reading.toml(path)
        content = reading.into(_File, document)
        parts = ManualRubric(content.criterion, content.title, content.released, content.blind, content.graders)
        rubric.check(document, parts)
        _check(document, content)
    except reading.ReadingError as error:
        raise ManualGradingError(str(error)) from None
    return Reports(parts, content.report)


def _check(document: reading.Document, content: _File) -> None:
    """Raise ReadingError for what neither types nor a rubric's own rules say."""
    labs = [report.lab for report in content.report]
    for number, lab in enumerate(labs):
        if lab in labs[:number]:
            raise document.error(("report", number, "lab"), f"lab {lab} has two reports; keep one")
        if not any(criterion.lab == lab for criterion in content.criterion):
            raise document.error(("report", number, "lab"), f"lab {lab} has no [[criterion]]; add one")
    for number, criterion in enumerate(content.criterion):
        if criterion.lab not in labs:
            what = "names no lab" if criterion.lab is None else f"is of lab {criterion.lab}, which has no [[report]]"
            raise document.error(("criterion", number), f"{criterion.id} {what}")


def whole_rubric(folder: Path) -> ManualRubric | None:
    """All that people grade of a class, in addition to the checks or instead of them; None if that is nothing.

    Raises:
        ManualGradingError: a file cannot be used, or both files name one criterion.
        GradebookError: there is no gradebook.
    """
    with Gradebook(folder, locked=False) as gradebook:
        plan = gradebook.plan()
    return joined(rubric.load(folder), of_labs(load(folder, settings_of(plan.settings)), plan.labs))


def criteria_of(folder: Path) -> frozenset[str]:
    """The criteria that somebody may have graded by hand: also those of reports that are not graded so now.

    Raises as `whole_rubric` does.
    """
    rubric_of_class = whole_rubric(folder)
    ids = {criterion.id for criterion in rubric_of_class.criterion} if rubric_of_class is not None else set()
    if (folder / FOLDER / FILE).exists() and (kept := load(folder, ByHand(reports=True))) is not None:
        ids |= {criterion.id for criterion in kept.rubric.criterion}
    return frozenset(ids)


def settings_of(stored: Mapping[str, object]) -> ByHand:
    """`[by_hand]` of the last run."""
    return class_settings.parse(str(stored["text"]), Path(str(stored["file"]))).by_hand


def of_labs(reports: Reports | None, labs: Collection[int]) -> Reports | None:
    """The reports of these labs; None if there are none."""
    if reports is None:
        return None
    kept = tuple(report for report in reports.reports if report.lab in labs)
    parts = tuple(criterion for criterion in reports.rubric.criterion if criterion.lab in labs)
    return Reports(replace(reports.rubric, criterion=parts), kept) if kept else None


def joined(own: ManualRubric | None, reports: Reports | None) -> ManualRubric | None:
    """One rubric for the page in which people grade. Raises `ManualGradingError` if both name one criterion."""
    if own is None or reports is None:
        return own or (reports.rubric if reports else None)
    theirs = reports.rubric
    if both := {criterion.id for criterion in own.criterion} & {criterion.id for criterion in theirs.criterion}:
        name = sorted(both)[0]
        raise ManualGradingError(f"{rubric.FILE} and {FILE} both have a criterion {name!r}: rename it in {rubric.FILE}")
    return ManualRubric(
        criterion=(*own.criterion, *theirs.criterion),
        title=f"{own.title}, {theirs.title}" if own.title != theirs.title else own.title,
        released=own.released and theirs.released,
        blind=own.blind or theirs.blind,
        graders=tuple(dict.fromkeys((*own.graders, *theirs.graders))),
    )


def weight(report: Report, lab: Lab, by_hand: ByHand) -> Decimal:
    """The points that the report of a lab is worth: those of its check, or of its whole criterion if the class says so.

    Raises:
        ManualGradingError: the lab has no such check, or the class gives the report other points.
    """
    criterion = next((criterion for criterion in lab.criteria if report.check.startswith(f"{criterion.id}.")), None)
    check = next((check for check in criterion.checks if check.id == report.check), None) if criterion else None
    if criterion is None or check is None:
        raise ManualGradingError(f"{FOLDER}/{FILE}: {lab.id} has no check {report.check!r}; name the one of its report")
    weight_given = by_hand.report_points.get(lab.id)
    if weight_given is None or weight_given == check.points:
        return check.points
    if report.criterion == criterion.id and weight_given == criterion.points:
        return criterion.points
    text = f"report_points of [by_hand]: {lab.id} = {in_points(weight_given)}: expected {in_points(check.points)}"
    text += ", the points of the automatic check"
    if report.criterion:
        text += f", or {in_points(criterion.points)}, those of the whole criterion {criterion.title!r}"
    raise ManualGradingError(text)


def check_weights(reports: Reports, rubric_: Rubric, by_hand: ByHand) -> None:
    """Raise `ManualGradingError` unless every report can be given the points that the class says."""
    labs = {lab.number: lab for lab in rubric_.labs}
    for report in reports.reports:
        if report.lab in labs:
            weight(report, labs[report.lab], by_hand)
    known = {labs[report.lab].id for report in reports.reports if report.lab in labs}
    if unknown := [name for name in by_hand.report_points if name not in known]:
        names = ", ".join(sorted(known))
        raise ManualGradingError(
            f"report_points of [by_hand]: people grade no report of {unknown[0]!r}; they grade {names}"
        )


class Reader:
    """Puts the points that people gave for reports into the grades of a class."""

    def __init__(
        self,
        reports: Reports,
        manual: merging.ManualGrading,
        by_hand: ByHand,
        students: Sequence[Student],
        excused: Collection[str],
    ) -> None:
        """`students` are everybody in the class, `excused` those whose work does not count at all."""
        self._found, self._manual, self._by_hand = reports, manual, by_hand
        self._units = {member.student: unit for unit in units.of(students, excused) for member in unit.members}

    @property
    def about(self) -> tuple[str, bool]:
        """What the section is called, and whether its points are released."""
        return self._found.rubric.title, self._found.rubric.released

    def apply(self, student: str, grade: Grade, labs: Sequence[Lab]) -> tuple[Grade, tuple[ReportResult, ...]]:
        """The grade with the points of people, as far as they count, and what they gave for each report.

        An instructor's override of the criterion goes first: then nobody has to grade that report.
        """
        results: list[ReportResult] = []
        made = []
        by_number = {lab.number: lab for lab in labs}
        reports = {by_number[report.lab].id: report for report in self._found.reports if report.lab in by_number}
        for lab in grade.labs:
            report = reports.get(lab.id)
            if report is not None and _is_open(lab, report):
                result = self._result(student, report, by_number[report.lab], lab)
                results.append(result)
                lab = _with_points(lab, result)
            made.append(lab)
        score = sum((lab.points for lab in made), Decimal(0))
        passed = grade.max_score > 0 and score >= grade.pass_score
        return replace(grade, labs=tuple(made), score=score, passed=passed), tuple(results)

    def _result(self, student: str, report: Report, lab: Lab, graded: LabResult) -> ReportResult:
        of = merging.of_unit(
            self._found.rubric, self._found.criteria(report.lab), self._manual, self._units.get(student)
        )
        check = next(check for row in graded.criteria for check in row.checks if check.id == report.check)
        return ReportResult(
            title=f"{of.title}: lab {report.lab}",
            criteria=of.criteria,
            released=of.released,
            anew=of.anew,
            lab=report.lab,
            check=report.check,
            worth=weight(report, lab, self._by_hand),
            automatic=check.outcome,
        )


def _is_open(lab: LabResult, report: Report) -> bool:
    """Whether the check ran, and nobody has given points for its criterion by an override."""
    return any(row.override is None and any(check.id == report.check for check in row.checks) for row in lab.criteria)


def _with_points(lab: LabResult, result: ReportResult) -> LabResult:
    criteria = tuple(
        _row(row, result) if any(check.id == result.check for check in row.checks) else row for row in lab.criteria
    )
    return replace(lab, criteria=criteria, points=sum((row.points for row in criteria), Decimal(0)))


def _row(row: CriterionResult, result: ReportResult) -> CriterionResult:
    """The criterion of a report: if the report is worth all of it, its other checks are shown and count for nothing."""
    is_whole = result.worth == row.max_points and len(row.checks) > 1
    checks = tuple(
        _check_of_report(check, result)
        if check.id == result.check
        else replace(check, points=Decimal(0), max_points=Decimal(0))
        if is_whole
        else check
        for check in row.checks
    )
    return replace(row, checks=checks, points=sum((check.points for check in checks), Decimal(0)))


def _check_of_report(check: CheckResult, result: ReportResult) -> CheckResult:
    if result.counts:
        text = f"People read this report: {in_points(result.given)} of {in_points(result.most)} in their rubric."
    else:
        text = "People read this report, and that is not finished: it has no points yet."
    did = "passed" if check.outcome is Outcome.PASSED else "did not pass"
    text += f" The automatic check {did}, and its points do not count."
    return replace(
        check,
        points=result.points if result.counts else Decimal(0),
        max_points=result.worth,
        message="\n".join(filter(None, (text, check.message))),
    )
