"""All exports of a class at once: which files there are, and what the `[exports]` table of `class.toml` may say."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradebook import text_files
from gradebook.command_name import command
from gradebook.export import (
    FOLDER,
    canvas,
    edited,
    feedback,
    gradescope,
    moodle,
    page,
    reviews,
    statistics,
    tables,
    view,
)
from gradebook.grading.manual_grading import FOLDER as MANUAL
from gradebook.grading.manual_grading import comments, marks, reports, units
from gradebook.results import ClassResult
from gradebox.report.document import points

_FEEDBACK, _GRADESCOPE = "feedback", "gradescope"
_GROUPS, _GROUP = 5, 3
"""Groups of students in a message, and students of each."""
_KINDS = {int: "number", str: "text", bool: "boolean"}


class ExportError(ValueError):
    """An export cannot be made; the message is one line that says what to do."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What an instructor may decide about exports."""

    canvas_assignment_id: int | None = None
    canvas_url: str = ""
    """Canvas's address."""
    canvas_course: str = ""
    """The number in the course's address, or `sis_course_id:...`."""
    notes_for_students: bool = False
    """Whether students see what the sandbox noticed."""


def options(values: Mapping[str, Any]) -> Options:
    """The `[exports]` table of `class.toml`.

    Raises:
        ExportError: it has an unknown key or a value of the wrong kind.
    """
    values = dict(values)
    if type(values.get("canvas_course")) is int:
        values["canvas_course"] = str(values["canvas_course"])
    known = {"canvas_assignment_id": int, "canvas_url": str, "canvas_course": str, "notes_for_students": bool}
    for name, value in values.items():
        if name not in known:
            raise ExportError(f"[exports] does not know {name!r}; it has {', '.join(known)}")
        if type(value) is not known[name]:
            raise ExportError(f"[exports]: {name} = {value!r} is not a {_KINDS[known[name]]}")
    return Options(**values)


def write(
    result: ClassResult,
    folder: Path,
    *,
    configuration: Mapping[str, Any] | Options | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> list[Path]:
    """Write every export of a class into `folder/exports`, each file whole or not at all, and return their paths.

    A table that somebody has edited is kept next to the new one.

    Args:
        result: the class.
        folder: that of the class: it holds the gradebook, and `reviews.toml` if somebody has reviewed.
        configuration: the table `[exports]` of `class.toml`; `Options` lists what it may hold.
        say: takes a line about each table that was kept.

    Raises:
        ValueError: the table or `reviews.toml` cannot be used; the message is one line.
    """
    chosen = configuration if isinstance(configuration, Options) else options(configuration or {})
    class_view = view.of(result, reviews.load(folder))
    target = folder / FOLDER
    files = dict(_files(class_view, chosen, f"{command()} review {shlex.quote(str(folder))}"))
    tables_of_class = {name: text for name, text in files.items() if name.endswith(".csv")}
    edited.keep(folder, target, tables_of_class, say)
    written = [text_files.write_file(target / name, text) for name, text in files.items()]
    edited.note(folder, tables_of_class)
    _remove_old(target, written)
    return written


def _files(class_view: view.View, chosen: Options, command: str) -> Iterator[tuple[str, str]]:
    rows = statistics.of(class_view)
    yield "class.html", page.render(class_view, rows, command=command, feedback=_FEEDBACK)
    yield "grades.csv", text_files.for_spreadsheets(tables.grades(class_view))
    yield "checks.csv", text_files.for_spreadsheets(tables.checks(rows))
    yield "results.csv", text_files.for_spreadsheets(tables.results(class_view))
    yield "canvas.csv", canvas.gradebook(class_view, assignment_id=chosen.canvas_assignment_id)
    yield "moodle-grades.csv", moodle.grade_import(class_view)
    if (sheet := moodle.worksheet(class_view)) is not None:
        yield "moodle-worksheet.csv", sheet
    for line in class_view.lines:
        yield (
            f"{_FEEDBACK}/{line.file_name}.html",
            feedback.page(
                line, class_view.result.title, notes=chosen.notes_for_students, contact=class_view.result.contact
            ),
        )
        yield (
            f"{_FEEDBACK}/{line.file_name}.md",
            feedback.markdown(line, class_view.result.title, contact=class_view.result.contact),
        )
        if line.decided:  # the format has no way to say that there is no score yet: it would be a 0
            yield f"{_GRADESCOPE}/{line.file_name}.json", gradescope.to_json(gradescope.student_results(line))


def _remove_old(target: Path, written: list[Path]) -> None:
    """Nobody shall be sent the feedback of an earlier run: files of ours that this run did not write go."""
    kept = set(written)
    for folder, suffixes in ((_FEEDBACK, (".html", ".md")), (_GRADESCOPE, (".json",))):
        for path in (target / folder).glob("*"):
            if path.suffix in suffixes and path not in kept and path.is_file():
                path.unlink()


def platforms(class_view: view.View, chosen: Options) -> list[str]:
    """What a platform would not take as it is meant."""
    return [*canvas.notices(class_view, chosen.canvas_assignment_id), *moodle.notices(class_view)]


def notices(result: ClassResult, folder: Path, chosen: Options | None = None) -> list[str]:
    """What an instructor should know before handing the exports over."""
    class_view = view.of(result, reviews.load(folder))
    texts = platforms(class_view, chosen or Options())
    if count := len(class_view.waiting):
        texts.append(
            f"{count} submission{' is' if count == 1 else 's are'} not graded yet, because the run was stopped: go on "
            f"with {command()} class --out {shlex.quote(str(folder))}"
        )
    by_hand = {line.student for line in class_view.by_hand_open}  # they have a note of their own
    if undecided := [line.who for line in class_view.undecided if line.student not in by_hand]:
        names = text_files.some(undecided)
        texts.append(f"no score yet, so not in the files for Canvas, Moodle and Gradescope: {names}")
    if class_view.excused:
        names = ", ".join(line.who for line in class_view.excused)
        texts.append(
            f"excused, so EX in canvas.csv and in no other file for platforms: {names}. In Moodle tick Excluded "
            "for them (Grades, Single view); in Gradescope take them out of the assignment"
        )
    texts += held_back(class_view)
    texts += [*lowering(class_view), *older(class_view), *same_files(class_view)]
    texts += of_manual_grading(class_view, result, folder)
    if class_view.strangers:
        names = ", ".join(line.who for line in class_view.strangers)
        texts.append(f"not in the roster, so not in the files for Canvas and Moodle: {names}")
    if class_view.open:
        students, count = len({item.student for item in class_view.open}), len(class_view.open)
        what = f"{count} thing{'' if count == 1 else 's'} of {students} student{'' if students == 1 else 's'}"
        verb = "is" if count == 1 else "are"
        texts.append(f"{what} {verb} still to be reviewed: {command()} review {shlex.quote(str(folder))}")
    return texts


def same_files(class_view: view.View) -> list[str]:
    """Who handed in the same files and is not in one team: nobody's fault by itself, and not to be overlooked."""
    groups: dict[str, list[view.Line]] = {}
    for line in class_view.counted:
        if line.grade is not None:
            groups.setdefault(line.grade.submission_sha256, []).append(line)
    named = [
        _together([line.who for line in lines])
        for lines in groups.values()
        if any(other.student not in lines[0].result.teammates for other in lines[1:])
    ]
    if not named:
        return []
    more = f"; and {len(named) - _GROUPS} more groups" if len(named) > _GROUPS else ""
    return [
        f"students with the same files who are not one team: {'; '.join(named[:_GROUPS])}{more}. "
        f"{class_view.result.command('similarity')} compares all"
    ]


def _together(names: list[str]) -> str:
    if len(names) > _GROUP:
        return f"{', '.join(names[:_GROUP])} and {len(names) - _GROUP} more"
    return f"{', '.join(names[:-1])} and {names[-1]}"


def held_back(class_view: view.View) -> list[str]:
    """Whose score and feedback are in no export because somebody decided so."""
    if not class_view.held_back:
        return []
    names = [f"{line.who} ({line.result.held_back.reason})" for line in class_view.held_back if
             line.result.held_back]  # fmt: skip
    are = "is" if len(names) == 1 else "are"
    return [
        f"{len(names)} {are} held back, with no score and no feedback in the exports: {text_files.some(names)}. A "
        f"platform keeps what it already has. {class_view.result.command('review')} --release STUDENT ends it"
    ]


def lowering(class_view: view.View) -> list[str]:
    """Overrides that take points from what was graded: they may be older than what was handed in."""
    lowered = [
        f"{line.who} {row.id} ({points(row.points)} instead of {points(row.override.automatic_points)})"
        for line in class_view.graded
        for lab in (line.grade.labs if line.grade else ())
        for row in lab.criteria
        if row.override is not None and row.points < row.override.automatic_points
    ]
    if not lowered:
        return []
    return [
        f"overrides give less than the checks do: {text_files.some(lowered)}. If work was resubmitted, or the "
        "criterion has other points now, change or remove these entries"
    ]


def older(class_view: view.View) -> list[str]:
    """Overrides that were given for other files than count now."""
    texts = [
        f"{line.who} {override.criterion} ({override.at:%Y-%m-%d %H:%M %Z})"
        for line in class_view.graded
        for override in line.result.overrides_for_other_files
        if line.grade is not None and override.criterion.partition(".")[0] in {lab.id for lab in line.grade.labs}
    ]
    if not texts:
        return []
    return [
        f"overrides are older than the submission, and count all the same: {text_files.some(texts)}. Look again, then "
        f"give the command with --override again, or remove the entry"
    ]


def of_manual_grading(class_view: view.View, result: ClassResult, folder: Path) -> list[str]:
    """Whose submissions people have still to grade, what that keeps back, and marks that count for nothing."""
    if not (result.manual_max or result.reports_title):
        init = f"{command()} manual init {shlex.quote(str(folder))}"
        return (
            [] if result.max_score else [f"no check gives points, so people grade this class; write a rubric: {init}"]
        )
    return [*_to_grade(class_view, result), *marks_in_vain(class_view, result, folder)]


def marks_in_vain(class_view: view.View, result: ClassResult, folder: Path) -> list[str]:
    """Marks and comments that count for nothing, or for less than was typed."""
    return [
        *_of_no_criterion(folder),
        *_of_nobody(class_view, folder),
        *_of_no_submission(class_view, folder),
        *_unread_marks(folder),
        *_of_other_labs(result, folder),
        *_that_do_not_fit(folder),
    ]


def _of_nobody(class_view: view.View, folder: Path) -> list[str]:
    """Marks for a student or a team that the class does not have any more."""
    names = {units.key_of(line.student, "") for line in class_view.lines}
    names |= {units.key_of("", line.result.team) for line in class_view.lines if line.result.team}
    lost = sorted(unit for unit, of_unit in marks.load_all(folder).items() if of_unit and unit not in names)
    if not lost:
        return []
    meant = {name: units.key_of(line.student, "") for line in class_view.lines for name in (line.student, line.label)}
    remedy = next((f"For {unit!r} write unit = {meant[unit]!r}. " for unit in lost if unit in meant), "")
    return [
        f"marks for whom the class does not have, so they count for nothing: {text_files.some(lost)}. {remedy}A "
        "student keeps the key if the roster shows who it is (by ID, SIS ID, address); a team needs its old name"
    ]


def _of_no_submission(class_view: view.View, folder: Path) -> list[str]:
    """Marks for who handed in nothing that people could have read."""
    marked = {unit for unit, of_unit in marks.load_all(folder).items() if of_unit}
    names = [
        line.who
        for line in class_view.lines
        if line.result.status in ("missing", "refused") and units.key_of(line.student, "") in marked
    ]
    if not names:
        return []
    return [
        f"marks for students without a submission, so they count for nothing: {text_files.some(names)}. To give "
        f"points all the same, use {class_view.result.command('review')} --override"
    ]


def _unread_marks(folder: Path) -> list[str]:
    """What is next to the marks and is none, such as a file that Git left after a conflict."""
    place = folder / MANUAL / marks.MARKS
    names = sorted(path.name for path in place.glob("[!.]*") if path.suffix != ".toml")
    if not names:
        return []
    return [f"{place} has files that nothing reads, because marks are .toml files: {text_files.some(names)}"]


def _of_other_labs(result: ClassResult, folder: Path) -> list[str]:
    """Criteria about the report of a lab that this class does not have."""
    rubric = reports.whole_rubric(folder)
    criteria = rubric.criterion if rubric is not None else ()
    others = [f"{row.id} (lab {row.lab})" for row in criteria if row.lab is not None and row.lab not in result.labs]
    if not others:
        return []
    return [
        f"manual_grading/rubric.toml has criteria for labs that this class does not grade: {text_files.some(others)}. "
        "Correct lab, or remove them"
    ]


def _that_do_not_fit(folder: Path) -> list[str]:
    """Points that were typed for a criterion whose points somebody has changed since."""
    rubric, known, marks_of = reports.whole_rubric(folder), comments.load(folder), marks.load_all(folder)
    texts = []
    for criterion in rubric.criterion if rubric is not None else ():
        marked = {unit: of_unit[criterion.id] for unit, of_unit in marks_of.items() if criterion.id in of_unit}
        units = [unit for unit, mark in marked.items() if mark.done and not marks.fits(criterion, mark, known)]
        if units:
            shown = f"{', '.join(units[:5])}{f' and {len(units) - 5} more' if len(units) > 5 else ''}"
            texts.append(
                f"points that were typed for {criterion.title!r} do not fit its {points(criterion.points)} points and "
                f"start = {criterion.start!r} any more, and are cut: {shown}. Give it the points and the start back "
                "that it had, or grade it again"
            )
    return texts


def _of_no_criterion(folder: Path) -> list[str]:
    """Marks and comments for a criterion that somebody has renamed, or taken out of the rubric."""
    known = reports.criteria_of(folder)
    unread = sorted({comment.criterion for comment in comments.load(folder).values()} - known)
    return [*_marks_of_no_criterion(folder, known), *map(_unread_comments, unread)]


def _unread_comments(criterion: str) -> str:
    return (
        f"manual_grading/comments.toml has comments for a criterion {criterion!r}, which no rubric has, so nobody sees "
        "them: correct its name there"
    )


def _marks_of_no_criterion(folder: Path, known: Collection[str]) -> list[str]:
    counts = Counter(name for of_unit in marks.load_all(folder).values() for name in of_unit if name not in known)
    return [
        f"manual_grading/rubric.toml has no criterion {name!r}, for which {count} "
        f"submission{'s have' if count > 1 else ' has'} marks: they count for nothing. "
        "Give it that id again, or grade what takes its place"
        for name, count in sorted(counts.items())
    ]


def _to_grade(class_view: view.View, result: ClassResult) -> list[str]:
    kept_back = result.manual_released or result.reports_title
    if class_view.by_hand_open:
        what = "so no score, and in no file for platforms" if kept_back else "and nothing is released"
        names = text_files.some([line.who for line in class_view.by_hand_open])
        return [f"not graded by hand to the end, {what}: {names}"]
    texts = []
    if result.reports_title and not result.reports_released:
        texts.append(
            "all reports are graded by hand, and not released, so nobody has a score: released = true in "
            "manual_grading/reports.toml does it"
        )
    if result.manual_max and not result.manual_released:
        texts.append(
            "all is graded by hand, and nothing released: released = true in manual_grading/rubric.toml does it"
        )
    return texts
