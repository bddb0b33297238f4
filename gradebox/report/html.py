"""The grade as one self-contained HTML page: no script, no external asset, readable in print and in the dark."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Collection, Mapping
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from gradebox.common.texts import printable
from gradebox.course.contact import NOBODY, Contact, is_address
from gradebox.course.hints import POINTER, STEP_NAMES, Hint
from gradebox.report.document import duration, points
from gradebox.report.drawing import draw
from gradebox.report.failing import mistakes, open_tasks
from gradebox.report.harmless import harmless_reasons
from gradebox.report.progress import Progress
from gradebox.run.grade import CheckResult, Grade, LatePenalty, Outcome

_MOST_DRAWN = 40
"""Pictures on a page, which stays below a megabyte with them; all are in grade.json."""
_MOST_LISTED = 12
"""Mistakes that are listed above the labs; those that cost less are in the list of checks."""
_NOTHING = Markup()
_NO_HINTS: Mapping[str, Hint] = {}
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
    verdict: str = "",
    then: str = "",
    hints: Mapping[str, Hint] = _NO_HINTS,
    more: Markup = _NOTHING,
    contact: Contact = NOBODY,
) -> str:
    """The page's text. Everything that comes from a submission is escaped.

    Args:
        grade: the grade; a penalty for handing in late is not yet deducted in it.
        title: of the assignment, where the page should say it.
        remarks: what should be known of what was graded, a sentence each.
        student: whose page this is, by a name for people, instead of the folder that was graded.
        late: the penalty to deduct and to explain.
        reviewed: checks that needed review, and that an instructor has accepted as they are.
        notes: show what the sandbox noticed, which is for the instructor's eyes.
        progress: what changed since the last run.
        partial: these are some criteria of a lab, so that nothing is said about passing it.
        verdict: what is said instead of whether it is passed.
        then: the command that says what to do next, where the page should say it.
        hints: of checks, by id; each hint of a failed check is behind a click, the next within the one before.
        more: sections before those of the labs.
        contact: where students get help.
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
            harmless=harmless_reasons(grade.integrity),
            progress=progress,
            partial=partial,
            verdict=verdict,
            then=then,
            hints=_hints(grade, hints),
            step_names=STEP_NAMES,
            pointer=POINTER,
            mistakes=mistakes(grade, hints),
            open_tasks=open_tasks(grade),
            most_listed=_MOST_LISTED,
            more=more,
            contact=contact_section(contact),
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


def prepare() -> None:
    """Compile the page's templates, which takes a tenth of a second, while there is nothing else to do."""
    made = environment(Path(__file__).parent)
    for name in made.list_templates(extensions=["jinja"]):
        made.get_template(name)


def _waiting(grade: Grade) -> dict[str, CheckResult]:
    """The check that a waiting one needs, as a link to its place on the page."""
    shown = {check.id: check for check in grade.checks}
    return {name: shown[check.blocked_by] for name, check in shown.items() if check.blocked_by in shown}


def _hints(grade: Grade, known: Mapping[str, Hint]) -> dict[str, Hint]:
    """Of checks that are to be fixed by themselves."""
    return {
        check.id: known[check.id]
        for check in grade.checks
        if check.outcome is Outcome.FAILED and not check.follows_from and check.id in known
    }


def _follows(grade: Grade, check: CheckResult) -> Markup:
    """What `Grade.follows` says, with a link to the check that it names."""
    other = next(other for other in grade.checks if other.id == check.follows_from)
    link = Markup('<a href="#{}">{}</a>').format(other.id, printable(other.name))
    before, _, after = grade.follows(check).partition(other.name)
    return Markup("{}{}{}").format(before, link, after)


def contact_section(contact: Contact) -> Markup:
    """Where students get help, as a section of a page; nothing if the course names nobody."""
    if not contact:
        return _NOTHING
    rows = [Markup("<li>{}: {}</li>").format(label, _linked(label, text)) for label, text in contact.entries()]
    items = Markup("\n").join([Markup("<ul>"), *rows, Markup("</ul>")])
    return Markup('<section class="contact">\n<h2>Getting help</h2>\n{}\n</section>').format(items)


def _linked(label: str, text: str) -> Markup:
    if label == "e-mail":
        return Markup('<a href="mailto:{}">{}</a>').format(urllib.parse.quote(text, safe="@+"), text)
    return Markup('<a href="{0}">{0}</a>' if is_address(text) else "{}").format(text)


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
    made.filters["follows"] = lambda check, criterion: _follows(criterion, check)
    made.filters["mark"] = lambda check: "↳" if check.follows_from else _MARKS[check.outcome]
    return made
