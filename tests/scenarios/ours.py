"""Digests of what answers a request besides the submission: our code, installed packages, this machine.

Of code counts what it means: comments and docstrings do not (`gradebook/versions.py` reads it). Nothing is
imported.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.metadata
import json
import platform
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import grader
from gradebook.versions import read_file
from gradebox.sandbox import Isolation
from gradebox.sandbox.probe_loader import OWN
from tests.scenarios.build import ROOT
from tests.scenarios.reuse import probe_file

_DATA_SETS = Path("/usr/share/datasets")
"""What `labkit.data` may find on a machine."""


@functools.cache
def of_probe(probe: str) -> str:
    """Changes when the code does that answers requests for this probe: it, the sandbox, what submissions may import."""
    own = [] if probe == OWN else [probe_file(probe.rpartition(".")[0])]
    return _digest(_meaning(file) for file in sorted({*_everywhere(), *_with_imports(own)}))


@functools.cache
def _everywhere() -> frozenset[Path]:
    """The sandbox, the packages that a submission may import, what attaches its device, and what these import."""
    environment = grader.course().environment
    folders = [ROOT / "gradebox" / "sandbox", *(ROOT / name for name in environment.importable)]
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file() and _counts(path)]
    if environment.devices:
        files += _files_of(environment.devices)
    return frozenset(_with_imports(files))


def _counts(path: Path) -> bool:
    return "__pycache__" not in path.parts


def _with_imports(files: Iterable[Path]) -> set[Path]:
    """These files and those of ours that they import, however far away."""
    visited: set[Path] = set()
    open_ = list(files)
    while open_:
        path = open_.pop()
        if path not in visited:
            visited.add(path)
            open_ += (file for name in _read(path)[1] for file in _files_of(name))
    return visited


def _files_of(name: str) -> Iterator[Path]:
    """The file of a module of ours, or of the one that holds this name; and the packages around it."""
    place = ROOT
    parts = name.split(".")
    if parts[0] not in ("gradebox", "grader", *grader.course().environment.importable):
        return
    for part in parts:
        place = place / part
        if (package := place / "__init__.py").is_file():
            yield package
        elif (module := place.with_suffix(".py")).is_file():
            yield module


def _meaning(path: Path) -> str:
    return f"{path.relative_to(ROOT).as_posix()} {_read(path)[0]}"


def _read(path: Path) -> tuple[str, tuple[str, ...]]:
    """A digest of what a file means, and the modules that it imports."""
    content = path.read_bytes()
    key = hashlib.sha256(path.relative_to(ROOT).as_posix().encode() + b" " + content).hexdigest()
    known = _known()
    if key not in known:
        known[key] = (read_file(path).meaning, tuple(_imports(path, content)))
    meaning, names = known[key]
    return meaning, tuple(names)


def _imports(path: Path, content: bytes) -> Iterator[str]:
    if path.suffix != ".py":
        return
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*above, *([node.module] if node.module else [])))
            yield from (f"{base}.{alias.name}" for alias in node.names)


_memory: dict[str, tuple[str, tuple[str, ...]]] = {}
_memory_size = [0]


def _known() -> dict[str, tuple[str, tuple[str, ...]]]:
    """What was read before, by digest of the content: parsing all of it takes seconds."""
    return _memory


def load(file: Path) -> None:
    """Remember what an earlier run has read."""
    with contextlib.suppress(OSError, ValueError):
        _memory.update(json.loads(file.read_text(encoding="utf-8")))
        _memory_size[0] = len(_memory)


def save(file: Path) -> None:
    """Let the next run remember, unless it already does."""
    if len(_memory) == _memory_size[0]:
        return
    new = file.with_suffix(f".{platform.node()}-{id(_memory)}.new")
    new.write_text(json.dumps(_memory), encoding="utf-8")
    new.replace(file)


def of_machine(isolation: Isolation) -> str:
    """What an answer may depend on and that no file of ours says."""
    versions = sorted(_versions())
    data = sorted(path.name for path in _DATA_SETS.iterdir()) if _DATA_SETS.is_dir() else []
    python = (sys.implementation.name, sys.version, platform.system(), platform.machine(), _processor())
    return _digest([repr((versions, data, python, isolation.mode, bool(isolation.unfiltered)))])


def _versions() -> set[str]:
    """Of what the sandbox imports before it forks."""
    environment = grader.course().environment
    tops = {name.partition(".")[0] for name in (*environment.preload, *environment.found)}
    homes = importlib.metadata.packages_distributions()
    return {f"{name} {importlib.metadata.version(name)}" for top in tops for name in homes.get(top, ())}


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line
    return platform.processor()


def _digest(parts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:{part}".encode())
    return digest.hexdigest()
