"""Which code decides a criterion's outcome, as a digest: when it changes, that criterion must be graded again.

A criterion depends on the class of its checks and on the probes that those ask, found by reading source, and on
everything that all checks share (sandbox, virtual GPU, labkit). It does not depend on points, which are only counted,
nor on how grades are shown or a class is graded. Where reading leaves a doubt, a file counts as needed.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from grader.configuration import ROOT
from grader.rubric import Rubric

_SHARED = ("grader", "labkit", "vgpu")
_APART = ("checks", "probes", "classroom", "cli", "exports", "integrity", "release", "report")
"""Folders of `grader/` that do not take part in every outcome."""
_TAKES_PART = ("integrity/source.py",)
_APART_FILES = ("rubric.toml", "release.py", "overrides.py", "similarity.py")
_SUFFIXES = (".py", ".toml", ".json", ".npz", ".gz")
_WORD = re.compile(r"\w+")


def grader_version() -> str:
    """The installed version of this project."""
    try:
        return importlib.metadata.version("gpu-computing-labs")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def digests(rubric: Rubric, root: Path = ROOT) -> dict[str, str]:
    """By criterion: changes when its outcomes may; only of criteria whose checks are written."""
    shared = _shared(root)
    checks = _Checks(root / "grader")
    return {
        criterion.id: _digest([shared, *sorted(check.id for check in criterion.checks)], checks.files_of(criterion.id))
        for lab in rubric.labs
        for criterion in lab.criteria
        if criterion.available
    }


def grader_digest(digests: Mapping[str, str]) -> str:
    """One digest for all criteria."""
    return _digest(f"{name} {digest}" for name, digest in sorted(digests.items()))


def _shared(root: Path) -> str:
    files: list[Path] = []
    for package in _SHARED:
        for path in sorted((root / package).rglob("*")):
            inner = path.relative_to(root / package)
            apart = package == "grader" and (inner.parts[0] in _APART or inner.name in _APART_FILES)
            apart = apart and inner.as_posix() not in _TAKES_PART
            if path.suffix in _SUFFIXES and path.is_file() and not apart:
                files.append(path)
    return _digest([], files)


class _Checks:
    """The files of `grader/checks/` and `grader/probes/`, and what they mention of each other."""

    def __init__(self, grader: Path) -> None:
        self._folders = {name: grader / name for name in ("checks", "probes")}
        self._homes: dict[str, Path] = {}
        """By criterion: the file with its checks."""
        self._mentions: dict[Path, set[Path]] = {}
        for path in sorted(self._folders["checks"].glob("test_*.py")):
            for criterion in _criteria(_parsed(path)):
                self._homes[criterion] = path

    def files_of(self, criterion: str) -> list[Path]:
        """Every file that takes part in this criterion's outcomes."""
        home = self._homes.get(criterion)
        seen: set[Path] = set()
        open_ = [home] if home else list(self._homes.values())
        while open_:
            path = open_.pop()
            if path not in seen:
                seen.add(path)
                if path not in self._mentions:
                    self._mentions[path] = set(self._mentioned(path))
                open_ += self._mentions[path]
        return sorted(seen)

    def _mentioned(self, path: Path) -> Iterator[Path]:
        tree = _parsed(path)
        own = set(_criteria(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("grader."):
                for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                    yield from self._module(name)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    yield from self._module(alias.name)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in own:
                if path.parent.name == "checks" and len(node.value) < 100:  # longer ones are prose
                    for word in _WORD.findall(node.value):
                        yield from self._module(f"grader.probes.{word}")
                needed = node.value.rpartition(".")[0]  # the name of a check that another one requires
                if needed in self._homes:
                    yield self._homes[needed]

    def _module(self, name: str) -> Iterator[Path]:
        parts = name.split(".")
        if len(parts) == 3 and parts[0] == "grader" and parts[1] in self._folders:
            path = self._folders[parts[1]] / f"{parts[2]}.py"
            if path.is_file():
                yield path


def _criteria(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        for decorator in node.decorator_list if isinstance(node, ast.ClassDef) else ():
            if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") == "criterion":
                yield str(ast.literal_eval(decorator.args[0]))


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _digest(texts: Iterable[str], files: Iterable[Path] = ()) -> str:
    digest = hashlib.sha256()
    for part in (*(text.encode() for text in texts), *(data for path in files for data in _named(path))):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def _named(path: Path) -> tuple[bytes, bytes]:
    return f"{path.parent.name}/{path.name}".encode(), path.read_bytes()
