"""The list of what is open, for the terminal: by student and criterion, with the commands that settle it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from grader.exports.page import ReviewGroup, review_groups
from grader.exports.view import View
from grader.texts import printable

_WIDTH = 110
_LONGEST = 600


def text(view: View, command: str) -> str:
    """All of it.

    Args:
        view: the class.
        command: how `gpulabs review` is called for this class.
    """
    groups = list(review_groups(view, command))
    if not groups:
        return "nothing is open"
    blocks = ["\n".join(_group(group)) for group in groups]
    students = len({group.line.student for group in groups})
    blocks.append(
        f"{len(view.open)} open things of {students} student{'' if students == 1 else 's'}. Checks that need review "
        "score 0 for now; notes never cost points by themselves."
    )
    return "\n\n".join(blocks)


def _group(group: ReviewGroup) -> Iterator[str]:
    line = group.line
    name = f" ({line.label})" if line.label != line.student else ""
    yield printable(f"{line.student}{name}  {group.criterion}")
    for item in group.items:
        kind = "needs review" if item.kind == "check" else f"note {item.title}"
        where = f" at {item.where}" if item.where else ""
        about = f"{item.check}: " if item.kind == "check" else ""
        during = f" [during {item.check}]" if item.kind == "note" and item.check else ""
        detail = " ".join(printable(item.detail).split())
        detail = detail if len(detail) <= _LONGEST else f"{detail[:_LONGEST]}..."
        yield textwrap.fill(
            printable(f"{kind}: {about}{detail}{where}{during}"),
            _WIDTH,
            initial_indent="  ",
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    yield f"  → {printable(group.rerun)}"
    yield f"  → {printable(group.accept)}"
    if group.override is not None:
        yield f"  → {printable(group.override)}"
