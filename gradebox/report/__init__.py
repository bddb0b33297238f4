"""Show a grade: in the terminal, as JSON, and as one self-contained page. Only reads a `Grade`; never changes it."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from pathlib import Path

from gradebox.common import files
from gradebox.course.contact import NOBODY, Contact
from gradebox.course.hints import Hint
from gradebox.report import html, progress, terminal
from gradebox.report.document import to_json
from gradebox.report.progress import Earlier
from gradebox.run.grade import Grade


def write(
    grade: Grade,
    folder: Path,
    earlier: Earlier | None = None,
    *,
    partial: bool = False,
    then: str = "",
    hints: Mapping[str, Hint] | None = None,
    contact: Contact = NOBODY,
) -> list[Path]:
    """Write `grade.json` and `grade.html` into `folder`, whole or not at all, and return their paths.

    `earlier` is what `progress.read` found in the folder before: the page then shows what has changed, and the next
    grading can (an incomplete one is not remembered). A `partial` grade is of some criteria of a lab, and says nothing
    about passing it. `then` is the command that says what to do next; `hints` of checks are on the page,
    behind a click. `contact` says where students get help.
    """
    _make(folder)
    earlier = earlier or Earlier()
    page = html.render(
        grade,
        progress=progress.since(earlier, grade),
        partial=partial,
        then=then,
        hints=hints or {},
        contact=contact,
    )
    paths = [files.replace(folder / "grade.json", to_json(grade)), files.replace(folder / "grade.html", page)]
    if not grade.incomplete:
        files.replace(folder / progress.FILE, progress.to_json(earlier, grade))
    return paths


def save(grade: Grade, folder: Path) -> None:
    """Write `grade.json` alone, of a grading that goes on; an earlier page, which it does not belong to, is removed."""
    _make(folder)
    files.replace(folder / "grade.json", to_json(grade))
    (folder / "grade.html").unlink(missing_ok=True)


def show(
    grade: Grade,
    isolation: Sequence[str],
    paths: Sequence[Path],
    earlier: Earlier | None = None,
    *,
    partial: bool = False,
    folder: Path | None = None,
    then: str = "",
    contact: Contact = NOBODY,
    hints: Mapping[str, Hint] | None = None,
) -> None:
    """Print the grade for people who are in `folder` (the current one); see `write` and `terminal.show`."""
    changed = None if earlier is None else progress.since(earlier, grade)
    terminal.show(
        grade,
        isolation,
        paths,
        progress.line(changed),
        partial=partial,
        folder=folder,
        then=then,
        contact=contact,
        hints=hints or {},
    )


def _make(folder: Path) -> None:
    """Make the folder, unless its name is a link, which leads to another user's.

    Raises:
        OSError: it is a link, or cannot be made.
    """
    if folder.is_symlink():
        raise OSError(errno.ELOOP, "it is a link; name the folder itself")
    folder.mkdir(parents=True, exist_ok=True)
