"""What the command `next` does: which task to do next, and why; and the hints."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from gradebox import launch
from gradebox.common.exit_codes import ExitCode
from gradebox.common.reading import ReadingError
from gradebox.common.texts import printable
from gradebox.course import course as courses
from gradebox.course import hints as all_hints
from gradebox.course.course import Course
from gradebox.course.hints import HintError
from gradebox.report.next_step import text
from gradebox.report.next_step.advice import advise
from gradebox.report.next_step.latest_outcomes import read
from gradebox.run.options import Options

_DEFAULTS = Options(course="")


def show_next(options: Options, *, hints: int, check: str | None, first_grade: bool) -> ExitCode:
    """Print what to do next, with so many steps of the `hints`; or the hints of one `check`.

    Args:
        options: the course, the submission, perhaps some labs or an exercise, and where the report lies.
        hints: 0 to `hints.MAX_STEPS`.
        check: a check or a criterion.
        first_grade: grade these labs before looking at the report.
    """
    try:
        course = courses.load(Path(options.course))
        _, labs = course.select(options.lab)
        known = all_hints.load(course)
        if check is not None:
            for row in _asked(course, check, hints or 1):
                _print(row)
            return ExitCode.PASSED
    except (ReadingError, HintError, ValueError) as error:
        return _fail(str(error))
    submission, report = Path(options.submission), Path(options.report)
    if not submission.is_dir():
        return _fail(f"there is no folder {submission}; run this in the folder of the course, or name your labs")
    if first_grade:
        if launch.run(options) == ExitCode.COULD_NOT_GRADE:
            return ExitCode.COULD_NOT_GRADE
        _print("")
    words = f" --report {report}" if options.report != _DEFAULTS.report else ""
    words = f" {submission}{words}" if options.submission != _DEFAULTS.submission else words
    folder = submission if any((submission / lab.package).is_dir() for lab in course.all_labs) else submission / "labs"
    if not folder.is_dir():
        folder = submission
    advice = advise(folder, labs, known, read(submission, report), course.begin_broken)
    chosen = f" --lab {shlex.quote(options.lab)}" if options.lab is not None else ""
    for row in text.lines(advice, known, course, steps=hints, options=words, chosen=chosen):
        _print(row)
    return ExitCode.PASSED


def _asked(course: Course, name: str, steps: int) -> Iterator[str]:
    """The hints of one check, or of all checks of a criterion.

    Raises:
        ValueError: there is none of this name.
    """
    known = all_hints.load(course)
    chosen = [check for check in known if check == name or check.startswith(f"{name}.")]
    if not chosen:
        near = [check for check in known if name.rpartition(".")[2] in check][:3]
        also = f"; did you mean {', '.join(near)}?" if near and name else "; a grade names them"
        raise ValueError(f"there is no check or criterion {name}{also}")
    begun = False
    for check in chosen:
        for row in text.hint_lines(check, known, course, steps=steps):
            if row or begun:
                begun = True
                yield row


def _print(row: str) -> None:
    print(printable(row))


def _fail(message: str) -> ExitCode:
    print(printable(f"error: {message}"), file=sys.stderr)
    return ExitCode.COULD_NOT_GRADE
