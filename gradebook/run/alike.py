"""Labs that are the same in several submissions, with all that they can reach: they are graded once, and shared.

A lab reaches its own files, those of labs that any of these mention by name, and whatever lies beside the labs, but for
texts for people whose names no code mentions. Where
its code may name what it does not mention (an import by a name that is made up), it reaches the whole submission. Only
what is certain is shared: a grading without a note of any kind, and without anything left open.
"""

from __future__ import annotations

import ast
import hashlib
import re
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from gradebox.course import Course
from gradebox.grade import Grade, Outcome

_CALLS = frozenset(("exec", "eval", "compile", "__import__", "__subclasses__"))
_MODULES = frozenset(("importlib", "pkgutil", "runpy"))
"""Ways to name a module that no text mentions; and `sys.modules`."""
_MAYBE = re.compile("|".join((*_CALLS, *_MODULES, r"\bmodules\b")).encode())


def digests(folder: Path, packages: Collection[str]) -> dict[str, str]:
    """By lab's package, for those that a submission has: a digest of all that can take part in its grade.

    Args:
        folder: where the labs lie.
        packages: of the labs and exercises; whatever is in none of them counts as beside the labs.
    """
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    homes = {name: _home(name, packages) for name in files}
    names = re.compile(b"|".join(re.escape(package.encode()) for package in sorted(packages)) or b"(?!)")
    mentioned: dict[str, set[str]] = {package: set() for package in packages}
    doubtful: set[str] = set()
    for name, content in files.items():
        if name.endswith(".py"):
            mentioned.setdefault(homes[name], set()).update(match.decode() for match in names.findall(content))
            if _makes_names_up(content):
                doubtful.add(homes[name])
    whole = _digest(files)
    code = b"".join(content for name, content in files.items() if name.endswith(".py"))
    texts = {name for name in files if not homes[name] and _is_text(name) and Path(name).name.encode() not in code}
    found = {}
    for package in sorted(set(homes.values()) & set(packages)):
        reached = _reached(package, mentioned)
        theirs = {name: content for name, content in files.items() if homes[name] in reached and name not in texts}
        found[package] = whole if doubtful & reached else _digest(theirs)
    return found


def _home(name: str, packages: Collection[str]) -> str:
    """The lab that a file belongs to; empty for what lies beside the labs."""
    first, inside, _ = name.partition("/")
    return first if inside and first in packages else ""


def _makes_names_up(content: bytes) -> bool:
    """Whether code may import, or find, a module by a name that it does not mention."""
    if not _MAYBE.search(content):
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape in their text is no warning of ours
            tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return True
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in _MODULES or name == "__subclasses__":
                return True
            case ast.Name(id=name) if name in _CALLS:
                return True
            case ast.Attribute(value=ast.Name(id="sys"), attr="modules"):
                return True
            case ast.alias(name=name) if name.partition(".")[0] in _MODULES or name == "modules":
                return True
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in _MODULES:
                return True
    return False


def _is_text(name: str) -> bool:
    return name.endswith((".md", ".rst", ".ipynb"))


def _reached(package: str, mentioned: Mapping[str, set[str]]) -> set[str]:
    """The lab, what lies beside the labs, and the labs that these name, through any number of steps."""
    seen: set[str] = set()
    open_ = [package, ""]
    while open_:
        one = open_.pop()
        if one not in seen:
            seen.add(one)
            open_ += mentioned.get(one, ())
    return seen


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
        labs = {criterion.id: lab for lab in course.rubric.labs for criterion in lab.criteria}
        packages = {lab.package for lab in course.all_labs}
        theirs = {content: digests(folder, packages) for content, folder in folders.items()}
        self._alike: dict[str, dict[str, list[str]]] = {}
        for criterion in criteria:
            groups: dict[str, list[str]] = {}
            for content, found in theirs.items():
                if (digest := found.get(labs[criterion].package)) is not None:
                    groups.setdefault(digest, []).append(content)
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
        return [one for one in self._alike.get(criterion, {}).get(content, ()) if one != content]


def is_certain(grade: Grade | None, criterion: str) -> bool:
    """Whether what a grading found of a criterion holds for whoever has the same lab."""
    if grade is None or grade.incomplete:
        return False
    lab = criterion.partition(".")[0]
    if any(note.check == lab or note.check.startswith(f"{lab}.") for note in grade.integrity):
        return False
    checks = [check for check in grade.checks if check.id.rpartition(".")[0] == criterion]
    return bool(checks) and all(check.outcome is not Outcome.NEEDS_REVIEW for check in checks)
