"""What grades this course: `course.toml`, and a folder per lab with its rubric, hints, checks, probes and references.

The engine that reads it is `gradebox`, classes are `gradebook`; nothing of the labs is in either.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradebox.course.course import Course

FOLDER = Path(__file__).parent


def course() -> Course:
    """This course, as the engine reads it."""
    from gradebox.course.course import load  # not in the sandbox, where probes are imported from this package

    return load(FOLDER)
