"""The list of what is open, for the terminal: by student and criterion, with the commands that settle it."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path

from gradebook.command_name import command
from gradebook.export.page import ReviewGroup, review_groups
from gradebook.export.reviews import HANDING_IN
from gradebook.export.view import View
from gradebook.text_files import some
from gradebox.common.texts import printable

_EXPLAINED = {
    ("check",): "Checks that need review score 0 for now.",
    ("note",): "Notes cost no points by themselves.",
    ("refused",): "A refused submission has 0 points; inform its student.",
    ("withheld", "partly", "unfetched"): "Who has no score yet is in no export.",
}
"""What each kind of open decision means for points."""
_WIDTH = 110
_LONGEST = 600


def text(view: View, folder: Path) -> str:
    """All of it.

    Args:
        view: the class.
        folder: where it is.
    """
    review = f"{command()} review {shlex.quote(str(folder))}"
    groups = list(review_groups(view, review))
    blocks = ["\n".join([*_group(group), *_earlier(group, folder)]) for group in groups]
    if count := len(view.waiting):
        blocks.append(
            f"{count} submission{' is' if count == 1 else 's are'} not graded yet: go on with {command()} class --out "
            f"{shlex.quote(str(folder))}"
        )
    if view.broken:
        alike: dict[str, list[str]] = {}
        for line in view.broken:
            alike.setdefault(line.result.reason, []).append(line.student)
        lines = [printable(f"  {some(names)}: {reason}", lines=False) for reason, names in alike.items()]
        regrade = f"{command()} class --out {shlex.quote(str(folder))} --regrade STUDENT"
        blocks.append("\n".join(["could not be graded; remove the reason, then:", *lines, f"  → {regrade}"]))
    if view.held_back:
        blocks.append("\n".join(_held_back(view, review)))
    if not groups:
        open_work = view.waiting or view.broken
        return "\n\n".join([*blocks, *([] if open_work else ["nothing is open"]), *_by_hand(view, folder)])
    students, open_ = len({group.line.student for group in groups}), len(view.open)
    head = f"{open_} decision{'' if open_ == 1 else 's'} about {students} student{'' if students == 1 else 's'} open."
    kinds = {item.kind for item in view.open}
    blocks.append(" ".join([head, *(text for of, text in _EXPLAINED.items() if kinds & {*of})]))
    return "\n\n".join([*blocks, *_by_hand(view, folder)])


def _earlier(group: ReviewGroup, folder: Path) -> Iterator[str]:
    """Where what was handed in before is, if it did not come again."""
    if group.criterion == HANDING_IN and group.line.result.earlier:
        places = ", ".join(shlex.quote(str(folder / place)) for place in group.line.result.earlier)
        yield f"  → if the earlier work should count, copy it into this submission, and run the class again: {places}"


def _by_hand(view: View, folder: Path) -> Iterator[str]:
    """What people grade and answer elsewhere."""
    manual, where = f"{command()} manual", shlex.quote(str(folder))
    if names := [line.who for line in view.by_hand_open]:
        yield f"not graded by hand to the end: {some(names)}; {manual} list {where} shows it"
    asked = {request.id for line in view.lines for request in line.result.requests if request.answered_at is None}
    if asked:
        are = "request is" if len(asked) == 1 else "requests are"
        yield f"{len(asked)} regrade {are} not answered: {manual} requests {where}"


def _held_back(view: View, review: str) -> Iterator[str]:
    yield "held back, so no score and no feedback in the exports:"
    for line in view.held_back:
        if (held := line.result.held_back) is not None:
            who = " ".join(filter(None, (held.by, f"{held.at:%Y-%m-%d}" if held.at else "")))
            yield printable(f"  {line.student}: {held.reason}{f' ({who})' if who else ''}", lines=False)
    yield f"  → {review} --release STUDENT"


def _group(group: ReviewGroup) -> Iterator[str]:
    line = group.line
    name = f" ({line.label})" if line.label != line.student else ""
    yield printable(f"{line.student}{name}  {group.criterion}")
    for item in group.items:
        where = f" at {item.where}" if item.where else ""
        about = f"{item.title}: " if item.kind == "check" else ""
        during = (
            f" [{'during ' if item.kind == 'note' else ''}{item.check}]" if item.check not in ("", item.title) else ""
        )
        detail = " ".join(printable(item.detail).split())
        detail = detail if len(detail) <= _LONGEST else f"{detail[:_LONGEST]}..."
        yield textwrap.fill(
            printable(f"{item.label}: {about}{detail}{where}{during}"),
            _WIDTH,
            initial_indent="  ",
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    if group.rerun is not None:
        yield f"  → {printable(group.rerun)}"
    if group.accept is not None:
        yield f"  → {printable(group.accept)}"
    else:
        yield f"  → run {command()} class again; or fix the address in the list"
    if group.override is not None:
        yield f"  → {printable(group.override)}"
