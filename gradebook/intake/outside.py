"""What somebody handed in around the labs: which files lie there, and which code of it nothing imports.

Not for what they are (`unread.py`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from gradebook.intake import unread
from gradebook.intake.lab_names import LabNames
from gradebox.sandbox import copying
from gradebox.sandbox.copying import Entry

_COURSES = ("gradebox", "gradebook", "notebooks", "docs", "examples", "solutions", "tests", "benchmarks")
"""Folders beside `labs` in the course's whole tree, which the first of them gives away; others are Python packages."""

_WORD = re.compile(r"\w+")


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


def idle(entries: Sequence[Entry], names: LabNames) -> dict[str, str]:
    """Of files that are graded what nothing imports, and what it is: modules beside the labs, and second folders of a
    lab, as they are called, with `/` at the end, whose names no other code has."""
    code = {entry.target: entry.source for entry in entries if entry.target.endswith(".py")}
    modules = {target[:-3]: target for target in code if "/" not in target and not target.startswith("__")}
    folders = {one.target.partition("/")[0]: one for one in entries if "/" in one.target}
    second = {name: one for name, one in folders.items() if name not in names.packages and names.meant(name) in folders}
    wanted = modules.keys() | second.keys()
    used: set[str] = set()
    for target, source in code.items() if wanted else ():
        used |= (_words(source) & wanted) - {target.partition("/")[0].removesuffix(".py")}
    found = {target: unread.IDLE for name, target in modules.items() if name not in used}
    for name, one in second.items():
        holds_code = any(target.startswith(f"{name}/") for target in code)
        if name not in used:
            found[f"{one.source.relative_to(one.top).parts[0]}/"] = unread.IDLE if holds_code else unread.NOWHERE
    return found


def _words(source: Path) -> set[str]:
    try:
        return set(_WORD.findall(source.read_bytes().decode("utf-8", "replace")))
    except OSError:
        return set()  # whoever copies it says why


def _is_the_courses(folder: Path) -> bool:
    return folder.name in _COURSES or (folder / "__init__.py").is_file()


def _is_hidden(folder: str, name: str) -> bool:
    is_cache = name in copying.LEFT_BEHIND or Path(folder, name, "pyvenv.cfg").exists()
    return is_cache or name.startswith((".", "__MACOSX"))
