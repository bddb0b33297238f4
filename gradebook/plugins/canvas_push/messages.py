"""What is said about sending a class to Canvas: what would change, what has, and what is left for a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from gradebook.plugins.canvas_push.differences import Change
from gradebook.plugins.canvas_push.memory import Mark
from gradebook.plugins.canvas_push.push import Report
from gradebox.common.texts import printable
from gradebox.report.document import points

_NAMED = 10


def text(report: Report) -> str:
    """All of it, in lines."""
    return "\n".join(printable(line, lines=False) for line in _lines(report))


def is_open(report: Report) -> bool:
    """Whether something is left for a person to look at."""
    kept = any(change.kind in ("by hand", "not there") for change in report.left)
    return bool(kept or report.unknown or report.trouble or (report.sent and report.left))


def _lines(report: Report) -> Iterator[str]:
    assignment = report.assignment
    yield f"{assignment.name} ({assignment.id}) of {report.course.name} ({report.course.id})"
    for change in report.planned:
        if change.kind != "same":
            yield f"  {_line(change)}"
    counts = Counter(change.kind for change in report.planned)
    if counts["same"]:
        yield f"  {counts['same']} have their grade there already"
    yield from _notes(report)
    changed = sum(change.sends for change in report.planned)
    if not report.sent:
        yield (
            f"nothing was sent; --push sends this ({changed} of {len(report.planned)} students)"
            if changed
            else ("there is nothing to send")
        )
        return
    missed = [change for change in report.left if change.sends]
    yield f"sent: {changed - len(missed)} of {len(report.planned)} students" if changed else "there was nothing to send"
    if report.trouble:
        yield f"Canvas says: {report.trouble}"
    if missed:
        names = _names([change.target.student for change in missed])
        yield f"not there after all: {names}; give the same command again"


def _line(change: Change) -> str:
    who, there, here = change.target.student, _mark(change.before), _mark(change.target.mark)
    over = ", instead of what was given by hand" if change.by_hand else ""
    also = ", with a comment" if change.sends_comment else ""
    match change.kind:
        case "not there":
            return f"not there  {who}: Canvas has no submission of theirs in this assignment"
        case "by hand":
            before = f"{_mark(change.sent)} was sent" if change.sent is not None else "nothing was sent from here"
            there_by_hand = f"{there} on Canvas by hand ({before}), {here} here"
            return f"kept       {who}: {there_by_hand}; --replace {who} puts {here} there"
        case "comment":
            return f"comment    {who}: {there} stays"
        case "new":
            return f"new        {who}: {here}{over}{also}"
        case _:
            return f"{change.kind:10} {who}: {there} -> {here}{over}{also}"


def _notes(report: Report) -> Iterator[str]:
    if report.unknown:
        yield f"note: not in this course, or not distinguishable from others: {_names(report.unknown)}"
    if report.others:
        yield f"note: in this course, without a grade here: {_names(report.others)}"
    if report.late_policy:
        yield (
            "note: Canvas takes points for lateness by itself, besides what the class deducts; switch its late policy "
            "off: "
            f"{_names(report.late_policy)}"
        )
    if report.assignment.post_manually:
        yield "note: students see nothing of this until you post grades on Canvas (Grades, Post grades)"


def _mark(mark: Mark) -> str:
    if mark.excused:
        return "excused"
    return "no grade" if mark.score is None else points(mark.score)


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"
