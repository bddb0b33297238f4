"""The grade as one self-contained HTML page: no script, no external asset, readable in print and in the dark."""

from __future__ import annotations

import re
from collections.abc import Collection
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from gradebox.grade import CheckResult, Grade, LatePenalty, Outcome
from gradebox.report.document import duration, points
from gradebox.report.drawing import draw
from gradebox.report.progress import Progress
from gradebox.texts import printable

_MOST_DRAWN = 40
"""Pictures on a page, which stays below a megabyte with them; all are in grade.json."""
_NOTHING = Markup()
_ENDS = re.compile(r"([._/]+)")
_MARKS = {Outcome.PASSED: "✓", Outcome.FAILED: "✗", Outcome.BLOCKED: "·", Outcome.NEEDS_REVIEW: "?"}


def render(
    grade: Grade,
    *,
    title: str = "",
    student: str = "",
    remarks: Collection[str] = (),
    late: LatePenalty | None = None,
    reviewed: Collection[str] = (),
    notes: bool = True,
    progress: Progress | None = None,
    partial: bool = False,
    then: str = "",
    more: Markup = _NOTHING,
) -> str:
    """The page's text. Everything that comes from a submission is escaped.

    Args:
        grade: the grade; a penalty for handing in late is not yet deducted in it.
        title: of the assignment, where the page should say it.
        remarks: what should be known of what was graded, a sentence each.
        student: whose page this is, by a name for people, in place of the folder that was graded.
        late: the penalty to deduct and to explain.
        reviewed: checks that needed review, and that an instructor has accepted as they are.
        notes: show what the sandbox noticed, which is for the instructor's eyes.
        progress: what changed since the last run.
        partial: these are some criteria of a lab, so that nothing is said about passing it.
        then: the command that says what to do next, where the page should say it.
        more: sections before those of the labs.
    """
    score = grade.score if late is None else max(grade.score - late.points, Decimal(0))
    return (
        environment(Path(__file__).parent)
        .get_template("grade.html.jinja")
        .render(
            grade=grade,
            title=title or grade.course,
            student=student,
            remarks=remarks,
            late=late,
            notes=notes,
            progress=progress,
            partial=partial,
            then=then,
            more=more,
            gained={change.criterion: change.gained for change in progress.changes} if progress else {},
            score=score,
            passed=score >= grade.pass_score if late else grade.passed,
            reviewed=reviewed,
            waits=_waiting(grade),
            drawn=[check.id for check in grade.checks if check.picture and not check.follows_from][:_MOST_DRAWN],
            following=any(check.follows_from for check in grade.checks),
            undecided=[check for check in grade.needs_review if check.id not in reviewed],
        )
    )


def _waiting(grade: Grade) -> dict[str, CheckResult]:
    """The check that a blocked one waits for, where it stands on the page with its reason."""
    shown = {check.id: check for check in grade.checks}
    return {name: shown[check.blocked_by] for name, check in shown.items() if check.blocked_by in shown}


def breaks(identifier: str) -> Markup:
    """An identifier, escaped, that a line may break in after its dots, slashes and underscores, and nowhere else."""
    return Markup(_ENDS.sub(r"\1<wbr>", str(escape(printable(identifier)))))


def _finalized(value: Any) -> Any:
    """Every value on its way into a page; what a macro made of such values is markup, and was here before."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def environment(folder: Path) -> jinja2.Environment:
    """Templates of `folder` that escape everything, show only what is printable, and know `points` and `mark`."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalized,
    )
    made.filters["points"] = points
    made.filters["breaks"] = breaks
    made.filters["signed"] = lambda value: f"{'+' if value > 0 else '-'}{points(abs(value))}"
    made.filters["duration"] = duration
    made.filters["state"] = lambda check: "follows" if check.follows_from else check.outcome.value
    made.filters["draw"] = draw
    made.filters["mark"] = lambda check: "↳" if check.follows_from else _MARKS[check.outcome]
    return made
