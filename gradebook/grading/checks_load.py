"""Whether the checks of a course load, before anything of a class is changed for them.

Not for whether they match the rubric's points in every detail: `gradebox lint` says that to authors.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from gradebox.course import course as courses


def require(folder: Path, labs: Sequence[int]) -> None:
    """Load the checks of these labs in a process of its own, because they may import much.

    Args:
        folder: the course's.
        labs: their numbers.

    Raises:
        CourseError: one does not load. Every student would have no score by it.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_load, args=(there, folder, tuple(labs)), daemon=True)
    process.start()
    there.close()
    problem = ""
    with contextlib.suppress(EOFError, OSError):  # a process that died says nothing; grading will
        problem = here.recv()
    process.join()
    if problem:
        raise courses.CourseError(f"{problem}. Nothing was graded, and the exports are as they were")


def _load(connection: Connection, folder: Path, labs: tuple[int, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8", errors="replace")  # noqa: SIM115
    try:
        course = courses.load(folder)
        course.titles(course.rubric.select(labs))
    except courses.CourseError as error:
        connection.send(str(error))
    else:
        connection.send("")
