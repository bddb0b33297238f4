"""Where a class stands: the grades that follow from a gradebook, by today's points, overrides and late rules.

Reads outcomes and counts; grades nothing and writes nothing.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from gradebook import identity
from gradebook import settings as class_settings
from gradebook.command_name import command
from gradebook.grading import excused, held_back, missing, unknown_names
from gradebook.grading.earlier_work import EarlierWork
from gradebook.grading.manual_grading import ManualGradingError, merging, reports
from gradebook.results import ClassResult, Excused, GradebookError, ReportResult, Student, StudentResult
from gradebook.settings import Settings
from gradebook.store import Gradebook, Plan, Recorded
from gradebox.common import reading
from gradebox.course import rubric
from gradebox.course.contact import Contact
from gradebox.course.rubric import Lab, Rubric
from gradebox.run import overrides
from gradebox.run.grade import CheckReport, Circumstances, Grade, IntegrityNote, LabResult, grade
from gradebox.sandbox import DESCENDANTS


def read(folder: Path) -> ClassResult:
    """The class as the gradebook in `folder` has it; overrides are read again, from the file that the last run named.

    Raises:
        GradebookError: there is no gradebook, it cannot be read, or the overrides cannot.
    """
    with Gradebook(folder, locked=False) as gradebook:
        return of(gradebook)


def of(gradebook: Gradebook) -> ClassResult:
    """The class as an open gradebook has it. Raises as `read` does."""
    plan = gradebook.plan()
    settings = stored_settings(plan)
    points = rubric.from_text(gradebook.rubric_text(plan.rubric_digest))
    students = gradebook.students()
    try:
        given = given_overrides(settings, gradebook.folder, points, gradebook.criteria())
        files = excused.load(gradebook.folder), held_back.load(gradebook.folder)
        decisions = unknown_names.resolve(settings, given, directory(gradebook), *files)
    except (
        overrides.OverrideError,
        class_settings.SettingsError,
        excused.ExcusedError,
        held_back.HeldBackError,
    ) as error:
        raise GradebookError(str(error)) from None
    settings, all_overrides, let_off = decisions.settings, decisions.overrides, decisions.excused
    labs = points.select(plan.labs)
    former = {record.student for record in identity.records(gradebook.identities(), ())}
    strangers = missing.strangers(students, former)
    earlier = EarlierWork(gradebook.handed_in(), gradebook.folder)
    nobodys = earlier.nobodys(students, former)
    result = ClassResult(
        title=plan.title,
        made_at=datetime.now(UTC),
        rubric_version=plan.rubric_version,
        grader_version=plan.grader_version,
        seed=plan.seed,
        device=plan.device,
        labs=plan.labs,
        max_score=sum(
            (criterion.points for lab in labs for criterion in lab.criteria if criterion.available), Decimal(0)
        ),
        students=(),
        contact=Contact(**plan.settings.get("contact", {})),
        folder=gradebook.folder,
    )
    whole = excused.wholly(let_off, plan.labs)
    held = {entry.student: entry for entry in decisions.held_back}
    reader = _reader(gradebook, settings, plan, points, students, whole)
    if reader is not None:
        title, released = reader.about
        result = replace(result, reports_title=title, reports_released=released)
    lines = []
    for student in students:
        theirs = tuple(excuse for excuse in let_off if excuse.student == student.student)
        if student.student in whole:
            line = _excused(student, whole[student.student], theirs)
            lines.append(replace(line, held_back=held.get(student.student)))
            continue
        counting = [lab for lab in labs if lab.number not in {excuse.lab for excuse in theirs}]
        if student.status == "missing":
            line = missing.result_of(student, strangers, settings, result.made_at)
        else:
            line = _result(student, gradebook, plan, settings, points, counting, all_overrides, reader)
        if line.grade is None and line.status in ("missing", "refused"):
            line = _given_instead(line, plan, points, counting, all_overrides)
        score = line.score
        if score is not None and line.grade is not None and theirs:
            score = merging.in_proportion(score, line.grade.max_score, result.max_score)
        given_here = tuple(override for override in all_overrides if override.student == student.student)
        line = replace(line, checks_score=line.score, score=score, excused=theirs, overrides=given_here)
        lines.append(replace(line, held_back=held.get(student.student)))
    try:
        result = merging.merged(replace(result, students=tuple(lines)), gradebook.folder, students)
    except ManualGradingError as error:
        raise GradebookError(str(error)) from None

    def points_of(content: str, lab: Lab) -> Decimal | None:
        counting = gradebook.counting(plan, content)
        gradings = {row.id: counting[row.id] for row in lab.criteria if row.id in counting}
        if any(row.available and row.id not in gradings for row in lab.criteria):
            return None
        if any(grading.grade is None for grading in gradings.values()):
            return None
        return assemble(gradings, plan, points, [lab], "", content).score

    lines = []
    for student, line in zip(students, result.students, strict=True):
        counting = [lab for lab in labs if lab.number not in {excuse.lab for excuse in line.excused}]
        line = replace(line, overrides_for_other_files=earlier.for_other_files(line, student.content))
        line = earlier.without_lost_points(line, student.content, counting, points_of)
        # Nobody has 0 of 0 points, which people have not released yet.
        lines.append(missing.waiting(line, strangers, nobodys) if result.max_score else replace(line, score=None))
    return replace(result, students=tuple(lines))


def directory(gradebook: Gradebook) -> identity.Directory:
    """Finds the students of a gradebook by any of their names and identifiers."""
    students = gradebook.students()
    return identity.Directory(students, identity.records(gradebook.identities(), students))


def left_out(gradebook: Gradebook, labs: Collection[int]) -> dict[str, str]:
    """Students of whom nothing counts, by key, and why. Raises `ExcusedError`."""
    entries = unknown_names.excused_by_key(excused.load(gradebook.folder), directory(gradebook))
    return excused.wholly(entries, labs)


def stored_settings(plan: Plan) -> Settings:
    """The settings that the last run had."""
    stored = plan.settings
    settings = class_settings.parse(stored["text"], Path(stored["file"]))
    if stored["deadline"]:
        settings = replace(settings, deadline=datetime.fromisoformat(stored["deadline"]))
    file = stored["overrides"]
    return replace(settings, overrides=Path(file) if file else None)


def changed_file(plan: Plan, folder: Path) -> str:
    """What to say if `class.toml` says something else than in the last run, which counts; empty if it does not."""
    stored, file = plan.settings, Path(plan.settings["file"])
    if not stored["text"] or not file.is_file():
        return ""
    try:
        is_the_same = class_settings.load(file) == class_settings.parse(stored["text"], file)
    except class_settings.SettingsError:
        is_the_same = False
    if is_the_same:
        return ""
    again = f"{command()} class --out {shlex.quote(str(folder))} --config {shlex.quote(str(file))}"
    return f"{file} has changed, and does not count before the next run with it: {again}"


def exports_table(folder: Path) -> Mapping[str, Any]:
    """What the settings of the last run say about exports."""
    with Gradebook(folder, locked=False) as gradebook:
        return stored_settings(gradebook.plan()).exports


def overrides_file(settings: Settings, folder: Path) -> Path:
    """Where the points given by hand stand: the file that was named, else `overrides.toml` next to the gradebook."""
    return settings.overrides or folder / overrides.DEFAULT_FILE


def given_overrides(
    settings: Settings, folder: Path, points: Rubric, former: Collection[str]
) -> tuple[overrides.Override, ...]:
    """The points given by hand in this class; none where no file was named and there is none next to the gradebook.

    `former` are criteria that it had, and may have no more.

    Raises:
        OverrideError: the file cannot be used.
    """
    file = overrides_file(settings, folder)
    if settings.overrides and not file.exists():
        raise overrides.OverrideError(
            f"{file}, which has this class's overrides, is not there: put it back, or, if the class moved, name all "
            f"again: {command()} class SUBMISSIONS --out {shlex.quote(str(folder))} --config class.toml"
        )
    if settings.overrides and file.suffix.lower() != ".toml":
        raise overrides.OverrideError(
            f"{file} is no .toml file. {command()} review {shlex.quote(str(folder))} --override STUDENT CRITERION "
            "POINTS REASON writes one, an entry at a time: give it once for each row of a table"
        )
    return overrides.load(file, points, former) if file.is_file() or settings.overrides else ()


def dump(folder: Path) -> str:
    """Everything in a gradebook that must not depend on how often the run was interrupted, as text to compare.

    Without times, memory, the order of gradings, notes on processes that happened to be seen, and second looks at what
    a busy machine had left open: results of a grading are in the student's grade if they count.
    """
    with Gradebook(folder, locked=False) as gradebook:
        result, history = of(gradebook), gradebook.history()
    students = [{**vars(student), "late": student.late and vars(student.late)} for student in result.students]
    history = sorted((row for row in history if not row["retry"]), key=lambda row: (row["content"], row["criteria"]))
    for row in history:
        for name in ("id", "started", "ended", "seconds", "peak_bytes", "result"):
            del row[name]
    for student in students:
        student["taken_at"] = None
    document = {**vars(result), "made_at": None, "folder": None, "students": students, "gradings": history}
    return (
        json.dumps(comparable(reading.plain(document)), indent=1, sort_keys=True, ensure_ascii=False, default=str)
        + "\n"
    )


def comparable(value: Any) -> Any:
    """A document without what differs from run to run: times, and notes on processes that happened to be seen."""
    if isinstance(value, Mapping):
        return {name: comparable(inner) for name, inner in value.items() if name != "seconds"}
    if isinstance(value, (list, tuple)):
        return [
            comparable(element)
            for element in value
            if not (isinstance(element, Mapping) and element.get("kind") == DESCENDANTS)
        ]
    return value


def _excused(student: Student, reason: str, entries: tuple[Excused, ...]) -> StudentResult:
    """Somebody of whom nothing counts, whatever they handed in."""
    return StudentResult(
        student=student.student, name=student.name, columns=student.columns, status="excused", reason=reason,
        submitted_at=student.submitted_at, commit=student.commit, team=student.team, excused=entries,
    )  # fmt: skip


def _given_instead(
    line: StudentResult, plan: Plan, points: Rubric, labs: Sequence[Lab], all_overrides: Sequence[overrides.Override]
) -> StudentResult:
    """Points by override for who handed in nothing that can be graded: the criteria without one have 0."""
    criteria = {criterion.id for lab in labs for criterion in lab.criteria if criterion.available}
    theirs = tuple(
        override for override in all_overrides if override.student == line.student and override.criterion in criteria
    )
    if not theirs:
        return line
    circumstances = Circumstances(
        submission=line.student, submission_sha256="0" * 64, device=plan.device, simulated=False,
        isolation="namespaces", seed=plan.seed, seconds=0.0, overrides=theirs,
    )  # fmt: skip
    made = grade(points, labs, {}, circumstances)
    made = replace(made, labs=tuple(_without_checks(lab) for lab in made.labs))
    return replace(line, grade=made, score=made.score, withheld=False)


def _without_checks(lab: LabResult) -> LabResult:
    """What was given for a lab of which nothing ran: there is no outcome to show."""
    return replace(lab, criteria=tuple(replace(criterion, checks=()) for criterion in lab.criteria))


def _result(
    student: Student,
    gradebook: Gradebook,
    plan: Plan,
    settings: Settings,
    points: Rubric,
    labs: Sequence[Lab],
    all_overrides: Sequence[overrides.Override],
    reader: reports.Reader | None,
) -> StudentResult:
    deadline = settings.deadline_of(student.student)
    nothing = StudentResult(
        student=student.student,
        name=student.name,
        columns=student.columns,
        status="waiting",
        reason=student.reason,
        submitted_at=student.submitted_at and settings.local(student.submitted_at),
        deadline=deadline and settings.local(deadline),
        commit=student.commit,
        taken_at=student.taken_at,
        team=student.team,
        teammates=student.teammates,
    )
    if student.status == "could_not_fetch":
        return replace(nothing, status="could_not_fetch")
    if student.status == "no_repository":
        return replace(nothing, status="no_repository", withheld=True)
    nothing = replace(nothing, outdated=student.status == "kept", partly=student.status == "partly")
    if student.status == "undecided":
        return replace(nothing, status="refused", withheld=True)
    if student.status == "refused" or student.content is None:
        return replace(nothing, status="refused", score=Decimal(0))
    counting = gradebook.counting(plan, student.content)
    criteria = [criterion.id for lab in labs for criterion in lab.criteria if criterion.available]
    if any(name not in counting for name in criteria):
        return nothing
    gradings = {name: counting[name] for name in criteria}
    if problem := next((grading.reason for grading in gradings.values() if grading.grade is None), None):
        return replace(nothing, status="could_not_grade", reason=problem)
    theirs = tuple(override for override in all_overrides if override.student == student.student)
    made = assemble(gradings, plan, points, labs, student.student, student.content, theirs)
    read: tuple[ReportResult, ...] = ()
    if reader is not None:
        made, read = reader.apply(student.student, made, labs)
    late = None
    if deadline is not None and student.submitted_at is not None:
        late = settings.late.penalty(student.submitted_at, deadline, made.score, made.max_score)
    score = made.score - (late.points if late else 0)
    counts = all(report.counts for report in read)
    nothing = replace(nothing, status="graded", late=late, grade=made, reports=read)
    return replace(nothing, score=score if counts else None)


def _reader(
    gradebook: Gradebook,
    settings: Settings,
    plan: Plan,
    points: Rubric,
    students: Sequence[Student],
    whole: Mapping[str, str],
) -> reports.Reader | None:
    """What puts points of people for reports into grades; None if checks give them.

    Raises:
        GradebookError: a file of theirs cannot be used.
    """
    try:
        graded_reports = reports.of_labs(reports.load(gradebook.folder, settings.by_hand), plan.labs)
        if graded_reports is None:
            return None
        reports.check_weights(graded_reports, points, settings.by_hand)
        manual = merging.ManualGrading.load(gradebook.folder)
        reports.joined(manual.rubric, graded_reports)
    except ManualGradingError as error:
        raise GradebookError(str(error)) from None
    return reports.Reader(graded_reports, manual, settings.by_hand, students, whole)


def assemble(
    gradings: Mapping[str, Recorded],
    plan: Plan,
    points: Rubric,
    labs: Sequence[Lab],
    name: str,
    content: str,
    applied: Sequence[overrides.Override] = (),
) -> Grade:
    """One grade from the gradings that count for its criteria, by the arithmetic of every grade."""
    grades = {grading.id: grading.grade for grading in gradings.values() if grading.grade is not None}
    reports: dict[str, CheckReport] = {}
    for criterion, grading in gradings.items():
        for check in grades[grading.id].checks:
            if check.id.rpartition(".")[0] == criterion:
                reports[check.id] = CheckReport(
                    check.outcome, check.message, check.hint, check.seconds, check.blocked_by, check.cause,
                    check.belongs_to, check.mistake, check.answered, evidence=check.evidence,
                    built_on=check.built_on, picture=check.picture,
                )  # fmt: skip
    titles = {check.id: check.title for number in sorted(grades) for check in grades[number].checks}
    latest = grades[max(grades)] if grades else None  # people may grade all
    circumstances = Circumstances(
        submission=name,
        submission_sha256=content,
        device=latest.device if latest else plan.device,
        simulated=latest is not None and latest.simulated,
        isolation="namespaces" if all(result.isolation == "namespaces" for result in grades.values()) else "limits",
        seed=plan.seed,
        seconds=round(sum(result.seconds for result in grades.values()), 2),
        integrity=_notes(gradings, grades, points),
        overrides=tuple(applied),
    )
    return grade(points, labs, reports, circumstances, titles)


def _notes(gradings: Mapping[str, Recorded], grades: Mapping[int, Grade], points: Rubric) -> tuple[IntegrityNote, ...]:
    """The notes of the gradings that count, in the order in which one grading of everything finds them."""
    counts = {(name, grading.id) for name, grading in gradings.items()}
    labs = {(name.partition(".")[0], grading.id) for name, grading in gradings.items()}
    by_check: list[IntegrityNote] = []
    by_lab: dict[tuple[str, str, str], IntegrityNote] = {}
    for number in sorted(grades):
        for note in grades[number].integrity:
            if (note.check, number) in labs:  # about the lab as a whole, so every grading of it says the same
                by_lab.setdefault((note.kind, note.detail, note.where), note)
            elif (note.check.rpartition(".")[0], number) in counts:
                by_check.append(note)
    order = {check.id: position for position, check in enumerate(points.checks())}
    return (*sorted(by_check, key=lambda note: order.get(note.check, -1)), *by_lab.values())
