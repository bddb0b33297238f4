"""Moodle: a CSV for the gradebook's import, and the offline grading worksheet of an assignment.

The gradebook's import (Grades, Import, CSV file) asks which column means what: one names the student (`Email address`,
`ID number` or `Username`), one the grade, one the feedback. Import grade and feedback together: Moodle's documentation
warns that feedback alone clears the grade.

The worksheet (assignment, Download grading worksheet, then Upload it) must keep the columns `Identifier`, `Grade` and
`Last modified (grade)` with what Moodle wrote there; `Feedback comments` is taken when that feedback type is on. Moodle
skips a grade above the assignment's maximum, and a student whose grade changed in Moodle since the download.

Moodle takes comments for HTML, so they are. Who has no score yet keeps what Moodle has: no row in the first file, the
old cells in the second. Who is not in the roster is in neither. Nor can a file excuse anybody: what Moodle calls
"Excluded" is ticked in its Single view.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from decimal import Decimal

from gradebook import moodle_words, text_files
from gradebook.csv_tables import number_in
from gradebook.export.feedback import summary_html
from gradebook.export.view import Line, View
from gradebook.roster import CANVAS_POINTS
from gradebook.text_files import to_csv
from gradebox.report.document import points

_NAMES = ("First name", "Last name", "Surname", "Full name")
_KEYS = ("Username", "ID number", "Email address")
_IDENTIFIER, _GRADE, _MAXIMUM = "Identifier", "Grade", "Maximum Grade"
_TAG = re.compile("<[^>]*>")
_MODIFIED, _COMMENTS = "Last modified (grade)", "Feedback comments"


def grade_import(view: View) -> str:
    """The class for the gradebook's import."""
    columns = _columns(view)
    keys = [name for name in _KEYS if name in columns]
    who = [*(name for name in _NAMES if name in columns), *(keys or ["ID number"])]
    title = view.result.title
    rows = []
    for line in view.for_platforms:
        cells = dict(line.result.columns) if keys else {**line.result.columns, "ID number": line.identifier}
        if not any(cells.get(name) for name in who if name not in _NAMES):
            continue  # Moodle would refuse the row, and with it the file
        named = [cells.get(name, "") for name in who]
        rows.append([*named, points(line.result.score or Decimal(0)), summary_html(line)])
    return to_csv([*who, title, f"{title} (feedback)"], rows)


def worksheet(view: View) -> str | None:
    """The roster as a filled-in offline grading worksheet; None where the roster is none."""
    columns = _columns(view)
    if _IDENTIFIER not in columns or _GRADE not in columns or _MODIFIED not in columns or _scale(view):
        return None
    header = [*columns, *([] if _COMMENTS in columns else [_COMMENTS])]
    titles = moodle_words.as_moodle_wrote(header, (line.result.columns for line in view.lines))
    return to_csv(titles, [_filled_in(line, header) for line in view.lines if line.result.columns.get(_IDENTIFIER)])


def notices(view: View) -> tuple[str, ...]:
    """What an instructor should know before uploading."""
    texts = (
        _no_worksheet(view),
        _no_points(view),
        _other_maximum(view),
        _locked(view),
        _replaced(view),
        _zeros(view),
        _other_grades(view),
        _unnamed(view),
    )
    return tuple(text for text in texts if text)


def _other_maximum(view: View) -> str:
    stated = {line.result.columns.get(_MAXIMUM, "") for line in view.lines} - {""}
    maximum = view.result.max_score
    different = sorted(value for value in stated if number_in(value) != maximum)
    if not different:
        return ""
    most = number_in(different[0])
    why = "else each grade is another percentage there" if most and most > maximum else "Moodle skips grades above it"
    return (
        f"Moodle's worksheet states a maximum of {different[0]}, this class has {points(view.result.max_score)}: set "
        f"the assignment's maximum grade in Moodle before the upload; {why}"
    )


def _locked(view: View) -> str:
    """Whose grade Moodle will not change, by its own column of yes and no in any language."""
    columns = _columns(view)
    place = columns.index(_MAXIMUM) + 1 if _MAXIMUM in columns else len(columns)
    locked = [
        line.student
        for line in view.lines
        for title in columns[place : place + 1]
        if line.result.columns.get(title, "").casefold() in moodle_words.NO and line.decided
    ]
    if not locked:
        return ""
    return (
        f"Moodle says that these grades cannot be changed, and skips them: {text_files.some(locked)}. Unlock them in "
        "Moodle's gradebook (or remove the override there), download the worksheet again, and grade the class again"
    )


def _replaced(view: View) -> str:
    """Whose comments in Moodle, which somebody typed there, the worksheet replaces."""
    if worksheet(view) is None:
        return ""
    typed = [
        line.who for line in view.lines if line.decided and _is_typed(line.result.columns.get(_COMMENTS, ""), line)
    ]
    if not typed:
        return ""
    return (
        f"the feedback comments that Moodle has of these students are replaced if you upload moodle-worksheet.csv: "
        f"{text_files.some(typed)}. To keep them, remove the column {_COMMENTS!r} from it before the upload"
    )


def _zeros(view: View) -> str:
    """Who handed in nothing and has points in Moodle, perhaps for something else, which the worksheet replaces."""
    if worksheet(view) is None:
        return ""
    having = [
        f"{line.who} {line.result.columns[_GRADE]}"
        for line in view.lines
        if line.decided and line.grade is None and (number_in(line.result.columns.get(_GRADE, "")) or 0) > 0
    ]
    if not having:
        return ""
    return (
        f"Moodle has points of these students, who handed in nothing that could be graded, and moodle-worksheet.csv "
        f"replaces them by 0: {text_files.some(having)}. To keep them, excuse the student "
        f"({view.result.command('review')} --excuse STUDENT all REASON), or remove the row before the upload"
    )


def _other_grades(view: View) -> str:
    """Whose grade in Moodle is another one, which somebody may have typed there."""
    if worksheet(view) is None:
        return ""
    having = [
        f"{line.who} {line.result.columns[_GRADE]}, now {points(line.result.score or Decimal(0))}"
        for line in view.lines
        if line.decided and line.grade is not None
        # Also what is no number, such as a share in per cent.
        if (there := line.result.columns.get(_GRADE, "").strip(moodle_words.DASHES))
        and number_in(there) != line.result.score
    ]
    if not having:
        return ""
    return (
        f"Moodle has other grades of these students, which moodle-worksheet.csv replaces: {text_files.some(having)}. "
        "To keep one, remove its row before the upload"
    )


def _no_worksheet(view: View) -> str:
    """What to say of a worksheet whose titles somebody has changed."""
    columns = _columns(view)
    lacking = [name for name in (_IDENTIFIER, _GRADE, _MODIFIED) if name not in columns]
    if not lacking or _MAXIMUM not in columns:
        return ""
    return (
        f"the roster looks like Moodle's grading worksheet, but has no column {lacking[0]}, so there is no "
        "moodle-worksheet.csv: download the worksheet again, and leave its titles as they are"
    )


def _scale(view: View) -> str:
    """The words in which an assignment is graded; empty where it has points.

    In the place of the maximum Moodle writes the whole scale into each row, in any language.
    """
    columns = _columns(view)
    if _GRADE not in columns or _MAXIMUM in columns:
        return ""
    place = columns.index(_GRADE) + 1
    cells = {line.result.columns.get(title, "") for line in view.lines for title in columns[place : place + 1]}
    return cells.pop() if len(cells) == 1 and all("," in cell for cell in cells) else ""


def _no_points(view: View) -> str:
    """What to say of an assignment that takes words, which a number of points may not stand for."""
    if not (scale := _scale(view)):
        return ""
    return (
        f"Moodle grades this assignment on a scale ({scale}) and takes no points for it, so there is no "
        "moodle-worksheet.csv: set the type of its grade to Point, download the worksheet again, and grade the class "
        "again; or import moodle-grades.csv as a grade item of its own"
    )


def _is_typed(cell: str, line: Line) -> bool:
    """Whether somebody typed this comment: ours name each criterion, or begin with the student."""
    text = html.unescape(_TAG.sub(" ", cell)).strip()
    titles = [row.title for lab in line.grade.labs for row in lab.criteria] if line.grade else []
    return bool(text) and not text.startswith(line.label) and not any(title in text for title in titles)


def _unnamed(view: View) -> str:
    """Who is in the worksheet only, because nothing in the roster says who it is outside of the assignment."""
    columns = _columns(view)
    keys = [name for name in _KEYS if name in columns]
    unnamed = [
        line.student for line in view.for_platforms if keys and not any(line.result.columns.get(name) for name in keys)
    ]
    if not unnamed:
        return ""
    if _IDENTIFIER in columns:
        where = "so they are in moodle-worksheet.csv and not in moodle-grades.csv"
        return f"Moodle hides who these are, {where}: {text_files.some(unnamed)}"
    return (
        f"not in moodle-grades.csv, because the roster has nothing in {' or '.join(keys)} by which Moodle knows them: "
        f"{text_files.some(unnamed)}"
    )


def _filled_in(line: Line, header: Sequence[str]) -> list[str]:
    cells = dict(line.result.columns)
    if line.decided:
        cells |= {_GRADE: points(line.result.score or Decimal(0)), _COMMENTS: summary_html(line)}
    return [cells.get(name, "") for name in header]


def _columns(view: View) -> list[str]:
    """The roster's columns in their order."""
    names = dict.fromkeys(name for line in view.lines for name in line.result.columns)
    return [name for name in names if name not in (moodle_words.OWN_TITLES, CANVAS_POINTS)]
