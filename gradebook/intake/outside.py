"""What somebody handed in around the labs: which files lie there. Not for what they are (`unread.py`)."""

from __future__ import annotations

import os
from pathlib import Path

from gradebox.sandbox import copying

_COURSES = ("gradebox", "gradebook", "notebooks", "docs", "examples", "solutions", "tests", "benchmarks")
"""Folders beside `labs` in the course's whole tree, which the first of them gives away; others are Python packages."""


def of(top: Path, place: Path | None = None) -> list[str]:
    """The files below `top` that do not lie in `place`, without what systems hide and what the course itself has."""
    if place == top:
        return []
    found: list[Path] = []
    for folder, inner, names in os.walk(top):
        inner[:] = sorted(name for name in inner if Path(folder, name) != place and not _is_hidden(folder, name))
        paths = [Path(folder, name) for name in sorted(names) if not _is_hidden(folder, name)]
        found += [path.relative_to(top) for path in paths if not path.is_symlink()]
    # Who hands in the course's whole tree need not hear of each of its notebooks.
    tree = place.parent if place is not None and place.name == "labs" else top
    folders = [one for one in tree.iterdir() if one.is_dir() and not one.is_symlink()]
    is_course = (tree / _COURSES[0]).is_dir()
    courses = [one.relative_to(top) for one in folders if is_course and _is_the_courses(one)]
    return [path.as_posix() for path in found if not any(path.is_relative_to(folder) for folder in courses)]


def _is_the_courses(folder: Path) -> bool:
    return folder.name in _COURSES or (folder / "__init__.py").is_file()


def _is_hidden(folder: str, name: str) -> bool:
    is_cache = name in copying.LEFT_BEHIND or Path(folder, name, "pyvenv.cfg").exists()
    return is_cache or name.startswith((".", "__MACOSX"))
