"""Canvas's gradebook as CSV, to be uploaded under Grades, Import.

What Canvas reads (its own `GradebookImporter` and the guide "How do I import grades in the Gradebook?"): the columns
`Student`, `ID`, `SIS User ID`, `SIS Login ID` (then perhaps `Integration ID` and `Root Account`) and `Section` in this
order, then a column for each assignment, `Title (ASSIGNMENT_ID)`; then the row `Points Possible`; then a row for each
student. Canvas knows a student by ID, else by SIS ID or login, else by name. An empty cell of an assignment would clear
the score that Canvas has, so who has no score yet gets no row; nor does who is not in the roster. `EX` excuses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from gradebook.csv_tables import number_in
from gradebook.export.view import Line, View
from gradebook.moodle_words import DASHES
from gradebook.roster import CANVAS_POINTS, LOGINS, folded
from gradebook.text_files import some, to_csv
from gradebox.report.document import points

EXCUSED = "EX"
_IDS = ("ID", "SIS User ID", "SIS Login ID")
_NAMES = ("LastName", "FirstName")
"""Instead of `Student`, where an account shows them in columns of their own."""
_NO_ASSIGNMENT = re.compile("(Current|Final) (Score|Points|Grade)|Override (Score|Grade|Status)")
"""`NON_ASSIGNMENT_COLUMN_HEADERS`: Canvas drops every column whose title contains one of these, without a word."""
_PERHAPS = re.compile("current|final|override", re.IGNORECASE)
"""Words of such titles, which some versions of Canvas were reported to drop by themselves (canvas-lms issue 2134)."""
_MORE_IDS = ("Integration ID", "Root Account")
_TITLE_AND_ID = re.compile(r"(?P<title>.+) \((?P<id>\d+)\)")


def gradebook(view: View, *, assignment_id: int | None = None) -> str:
    """The class as Canvas imports it.

    Args:
        view: the class; the roster's columns, best those of Canvas's own export, say who is who.
        assignment_id: the number in the assignment's address. Without it the column's name is that of the roster's
            column of the same title, else the title alone, which Canvas takes for the assignment of that name or offers
            to create.
    """
    rows = [line.result.columns for line in view.lines]
    more = [name for name in _MORE_IDS if any(row.get(name) for row in rows)]
    split = any(row.get("LastName") for row in rows) and not any(row.get("Student") for row in rows)
    who = [*(_NAMES if split else ("Student",)), *_IDS, *more, "Section"]
    possible = ["    Points Possible", *[""] * (len(who) - 1), points(view.result.max_score)]
    strangers = {line.student for line in view.strangers}
    rated = [line for line in view.lines if line.decided or line.excused_on_platforms]
    students = [[*_who(line, who), _cell(line)] for line in rated if line.student not in strangers]
    return to_csv([*who, column(view, assignment_id)], [possible, *students])


def _cell(line: Line) -> str:
    return EXCUSED if line.excused_on_platforms else points(line.result.score or Decimal(0))


def column(view: View, assignment_id: int | None) -> str:
    """The heading of the assignment's column."""
    if assignment_id is not None:
        return f"{view.result.title} ({assignment_id})"
    return next((known.column for known in _assignments(view) if known.title == view.result.title), view.result.title)


@dataclass(frozen=True)
class _Assignment:
    """One of Canvas's assignments, as the roster that it exported shows them."""

    title: str
    id: int
    column: str
    worth: Decimal | None
    """None: the file does not say it."""


def _assignments(view: View) -> list[_Assignment]:
    """Those of the roster; none where Canvas did not write it."""
    columns = next((line.result.columns for line in view.lines if line.result.columns), {})
    worth = json.loads(columns.get(CANVAS_POINTS, "{}"))
    matches = [(name, match) for name in columns if (match := _TITLE_AND_ID.fullmatch(name)) is not None]
    return [
        _Assignment(match["title"], int(match["id"]), name, number_in(str(worth.get(name, ""))))
        for name, match in matches
    ]


def _is_canvas_export(view: View) -> bool:
    """Whether the roster has Canvas's row of points, which says of its totals that they can only be read."""
    return any(json.loads(line.result.columns.get(CANVAS_POINTS, "{}")) for line in view.lines)


def _who(line: Line, who: list[str]) -> list[str]:
    cells: Mapping[str, str] = line.result.columns
    # A name on GitHub may be another student's login.
    if not any(cells.get(name) for name in _IDS) and line.identifier not in [cells.get(name) for name in LOGINS]:
        cells = {**cells, "SIS Login ID": line.identifier}
    if who[0] == "Student":
        cells = {**cells, "Student": cells.get("Student") or line.label}
    return [cells.get(name, "") for name in who]


def notices(view: View, assignment_id: int | None) -> tuple[str, ...]:
    """What an instructor should know before uploading."""
    title = column(view, assignment_id)
    about = _about_assignments(view, assignment_id)
    if not any(line.result.columns.get(name) for line in view.lines for name in _IDS):
        return ()
    rename = "give the assignment another title, in Canvas and in class.toml"
    if (reserved := _NO_ASSIGNMENT.search(title)) is not None:
        return (
            f"Canvas drops the column {title!r} and imports no grade, because {reserved[0]!r} in a title means a total "
            f"of its own: {rename}",
        )
    if title in (*_IDS, *_NAMES, *_MORE_IDS, "Student", "Section"):
        return (f"Canvas takes the column {title!r} for one about students, and imports no grade: {rename}",)
    if title == view.result.title and (numbered := _TITLE_AND_ID.fullmatch(title)) is not None:
        return (
            f"Canvas takes ({numbered['id']}) at the end of {title!r} for an assignment's number: write the right one "
            f"as canvas_assignment_id into class.toml, or {rename}",
        )
    if (word := _PERHAPS.search(title)) is not None:
        return (
            f"Canvas may drop the column {title!r}, because {word[0]!r} is in titles of its own totals. If Canvas "
            f"reports no changes after the import, {rename}",
            *about,
        )
    return about


def _other_grades(view: View, assignment: str) -> tuple[str, ...]:
    """Whose grade in Canvas was another one when its file was exported; somebody may have typed it there."""
    having = [
        f"{line.who} {line.result.columns[assignment]}, now {points(line.result.score or Decimal(0))}"
        for line in view.for_platforms
        # Also what is no number, such as EX for who is excused there, or complete.
        if (there := line.result.columns.get(assignment, "").strip(DASHES)) and number_in(there) != line.result.score
    ]
    if not having:
        return ()
    return (
        f"Canvas's export has other grades in {assignment}, which canvas.csv replaces: {some(having)}. To keep one, "
        "remove its row before the import",
    )


def _about_assignments(view: View, assignment_id: int | None) -> tuple[str, ...]:
    """Where Canvas's own list of assignments has another one than class.toml, several, or one of other points."""
    assignments, title = _assignments(view), view.result.title
    if not assignments and (assignment_id is not None or not _is_canvas_export(view)):
        return ()
    if assignment_id is not None:
        chosen = [known for known in assignments if known.id == assignment_id]
        if not chosen:
            return (f"the roster, Canvas's export, has no assignment {assignment_id}: look at canvas_assignment_id",)
        if chosen[0].title != title:
            return (
                f"canvas_assignment_id = {assignment_id} is Canvas's {chosen[0].title!r}, and this class is called "
                f"{title!r}: correct the one that is wrong, because Canvas goes by the number",
            )
    else:
        chosen = [known for known in assignments if known.title == title]
        if len(chosen) > 1:
            several = " and ".join(str(known.id) for known in chosen)
            return (
                f"Canvas has several assignments {title!r} ({several}), and canvas.csv is for the first: choose one "
                "with canvas_assignment_id in class.toml",
            )
        if not chosen:
            alike = next(
                (f" (but {known.title!r})" for known in assignments if folded(known.title) == folded(title)), ""
            )
            return (
                f"Canvas's export has no assignment {title!r}{alike}, so Canvas will offer to create one: set title or "
                "canvas_assignment_id in class.toml, if it is there under another name",
            )
    worth, most = chosen[0].worth, view.result.max_score
    replaced = _other_grades(view, chosen[0].column)
    if worth is None or worth == most:
        return replaced
    return (
        *replaced,
        f"Canvas counts {chosen[0].column} out of {points(worth)} points, this class has {points(most)}: set the "
        "assignment's points in Canvas before the import, or each grade is a smaller or larger share there",
    )
