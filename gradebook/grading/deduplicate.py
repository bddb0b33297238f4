"""Labs that are the same in several submissions, with all that they can reach: they are graded once, and shared.

A lab reaches its own files, the files of labs that any of these mention by name, and all files next to the labs except
texts for people whose names no code mentions. Where its code may find what it does not mention
(`import_analysis.py`), it reaches the whole submission. Only what is certain is shared: a grading without a note of any
kind, without anything left open, and without a word about files that others do not have.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradebook.grading import import_analysis
from gradebox.course.course import Course
from gradebox.run import source_scan
from gradebox.run.grade import Grade, Outcome

_SHORTEST_NAME = 3
"""A file's name that is shorter is found in any text."""


@dataclass(frozen=True)
class Part:
    """A lab of one submission."""

    digest: str
    """Of all that can take part in its grade."""
    outside: frozenset[str]
    """Names of files that the lab does not reach, and that no file has that it does."""


def parts(folder: Path, packages: Collection[str]) -> dict[str, Part]:
    """By package the labs that a submission has.

    Args:
        folder: where the labs lie.
        packages: of the labs and exercises; whatever is in none of them counts as next to the labs.
    """
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    homes = {name: _home(name, packages) for name in files}
    code = {name: content for name, content in files.items() if not _is_text(name)}
    named = b"\n".join(code.values())
    texts = {name for name in files if not homes[name] and name not in code and _last(name).encode() not in named}
    names = re.compile(b"|".join(re.escape(package.encode()) for package in sorted(packages)) or b"(?!)")
    mentioned: dict[str, set[str]] = {}
    for name, content in code.items():
        mentioned.setdefault(homes[name], set()).update(match.decode() for match in names.findall(content))
    known = import_analysis.of_files({name: content for name, content in code.items() if name.endswith(".py")})
    whole = _digest(files)
    lab_parts = {}
    for package in sorted(set(homes.values()) & set(packages)):
        reached = _reached(package, mentioned)
        theirs = {name: content for name, content in files.items() if homes[name] in reached and name not in texts}
        finds_more = import_analysis.find_more(abilities for name, abilities in known.items() if homes[name] in reached)
        outside = {_last(name) for name in files.keys() - theirs.keys()} - {_last(name) for name in theirs}
        lab_parts[package] = Part(whole if finds_more else _digest(theirs), frozenset(outside))
    return lab_parts


def _home(name: str, packages: Collection[str]) -> str:
    """The lab that a file belongs to; empty for what is next to the labs."""
    first, inside, _ = name.partition("/")
    return first if inside and first in packages else ""


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def _is_text(name: str) -> bool:
    return name.endswith((".md", ".rst", ".ipynb"))


def _reached(package: str, mentioned: Mapping[str, set[str]]) -> set[str]:
    """The lab, what is next to the labs, and the labs that these name, through any number of steps."""
    reached: set[str] = set()
    open_ = [package, ""]
    while open_:
        name = open_.pop()
        if name not in reached:
            reached.add(name)
            open_ += mentioned.get(name, ())
    return reached


def _digest(files: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(repr((name, hashlib.sha256(content).digest())).encode())
    return digest.hexdigest()


class Shared:
    """Which submissions have a criterion's lab in common, and who of them is graded for all."""

    def __init__(self, course: Course, criteria: Iterable[str], folders: Mapping[str, Path]) -> None:
        """
        Args:
            course: whose submissions these are.
            criteria: those that are graded.
            folders: by content, where the submissions that may share lie.
        """
        self._packages = {criterion.id: lab.package for lab in course.rubric.labs for criterion in lab.criteria}
        packages = {lab.package for lab in course.all_labs}
        self._parts = {content: parts(folder, packages) for content, folder in folders.items()}
        self._alike: dict[str, dict[str, list[str]]] = {}
        for criterion in criteria:
            groups: dict[str, list[str]] = {}
            for content, lab_parts in self._parts.items():
                if (part := lab_parts.get(self._packages[criterion])) is not None:
                    groups.setdefault(part.digest, []).append(content)
            self._alike[criterion] = {content: group for group in groups.values() for content in group}
        self._taken: dict[str, set[str]] = {criterion: set() for criterion in self._alike}

    def claim(self, content: str, criteria: Sequence[str]) -> tuple[str, ...]:
        """Those criteria that nobody with the same lab has claimed before: `content` is graded for all of them."""
        mine = tuple(name for name in criteria if content not in self._taken.get(name, ()))
        for name in mine:
            self._taken.setdefault(name, set()).update(self.others(content, name), [content])
        return mine

    def others(self, content: str, criterion: str) -> list[str]:
        """The other submissions that have this criterion's lab in common with `content`."""
        return [other for other in self._alike.get(criterion, {}).get(content, ()) if other != content]

    def is_certain(self, content: str, grade: Grade | None, criterion: str) -> bool:
        """Whether the result of `content` for a criterion holds for every submission with the same lab."""
        part = self._parts.get(content, {}).get(self._packages[criterion])
        if part is None or grade is None or grade.incomplete or len(grade.integrity) >= source_scan.MAX_NOTES:
            return False
        lab = criterion.partition(".")[0]
        if any(note.check == lab or note.check.startswith(f"{lab}.") for note in grade.integrity):
            return False
        checks = [check for check in grade.checks if check.id.rpartition(".")[0] == criterion]
        messages = "\n".join(f"{check.message}\n{check.hint}" for check in checks)
        if any(name in messages for name in part.outside if len(name) >= _SHORTEST_NAME):
            return False
        return bool(checks) and all(check.outcome is not Outcome.NEEDS_REVIEW for check in checks)
