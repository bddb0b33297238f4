"""Answers that a planted bug cannot have changed are taken from an earlier scenario of the same run.

A probe's answer depends on the question, which the seed decides, and on the student's modules that the probe imports,
directly or through others. Where a scenario left all of these as they are in the reference, asking again would only
cost time; so all scenarios of a run share a seed. Which modules those are is read from the probes' and the reference's
source, and what is not understood counts as changed. `make matrix` asks every question of every scenario.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from grader.sandbox import Request
from tests.scenarios.build import ROOT

PROBES = ROOT / "grader" / "probes"
REFERENCE = ROOT / "solutions"
_MODULE = re.compile(r"lab\d_\w+\.\w+")
# Read by the judge itself, and by no probe.
_WRITTEN = re.compile(r"lab\d_\w+/(REPORT\.md|README\.md|results/.*)")


@dataclass
class _Definition:
    """What a function, class or constant of a probe module mentions."""

    names: set[str] = field(default_factory=set)
    texts: set[str] = field(default_factory=set)


def modules_of(request: Request) -> set[str]:
    """The student's modules, as `lab2_mixed_precision.amp_training`, that a probe may import by itself."""
    probe, _, function = request.probe.rpartition(".")
    texts = set(_texts(probe, function)) | set(_strings(request.params))
    return {found for text in texts for found in _MODULE.findall(text) if _file(found).is_file()} if texts else set()


def is_untouched(module: str, changed: set[str]) -> bool:
    """Whether a module and all that it imports are not among the changed ones."""
    return changed.isdisjoint(_needs(module))


def changed_modules(submission: Path) -> set[str] | None:
    """Modules that differ from the reference, are new or are missing; None: anything may be different."""
    ours, theirs = _files(REFERENCE), _files(submission)
    changed = set()
    for name in sorted(set(ours) | set(theirs)):
        same = name in ours and name in theirs and ours[name].read_bytes() == theirs[name].read_bytes()
        if same or _WRITTEN.fullmatch(name):
            continue
        module = name.removesuffix(".py").replace("/", ".")
        if not name.endswith(".py") or not _MODULE.fullmatch(module) or module.endswith("__init__"):
            return None
        changed.add(module)
    return changed


def _files(root: Path) -> dict[str, Path]:
    return {
        path.relative_to(root).as_posix(): path
        for path in root.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def _file(module: str) -> Path:
    return REFERENCE / (module.replace(".", "/") + ".py")


@functools.cache
def _needs(module: str) -> frozenset[str]:
    """A module of the reference, and what it imports from its own package, and so on."""
    seen, open_ = set(), [module]
    while open_:
        one = open_.pop()
        if one in seen or not _file(one).is_file():
            continue
        seen.add(one)
        package = one.partition(".")[0]
        for node in ast.walk(ast.parse(_file(one).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                start = f"{package}." if node.level else ""
                base = start + (node.module or "")
                open_ += [base.removeprefix("labs."), *(f"{base.rstrip('.')}.{alias.name}" for alias in node.names)]
        # Programs name their neighbours as text.
        open_ += _MODULE.findall(_file(one).read_text(encoding="utf-8"))
    return frozenset(seen | {module})


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item)


@functools.cache
def _texts(probe: str, function: str) -> frozenset[str]:
    """Every text that a probe function, or anything it uses among the probes, mentions."""
    seen: set[tuple[str, str]] = set()
    texts: set[str] = set()
    open_ = [(probe, function)]
    while open_:
        one = open_.pop()
        if one in seen:
            continue
        seen.add(one)
        definitions, imported = _parsed(one[0])
        if one[1] in imported:
            open_.append(imported[one[1]])
        elif one[1] in definitions:
            texts |= definitions[one[1]].texts
            open_ += [(one[0], name) for name in definitions[one[1]].names]
    return frozenset(texts)


@functools.cache
def _parsed(probe: str) -> tuple[dict[str, _Definition], dict[str, tuple[str, str]]]:
    tree = ast.parse((PROBES / f"{probe}.py").read_text(encoding="utf-8"))
    definitions: dict[str, _Definition] = {}
    imported: dict[str, tuple[str, str]] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("grader.probes."):
            where = str(node.module).removeprefix("grader.probes.")
            imported |= {alias.asname or alias.name: (where, alias.name) for alias in node.names}
        found = _Definition()
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                found.names.add(part.id)
            elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                found.texts.add(part.value)
        for name in _defined(node):
            one = definitions.setdefault(name, _Definition())
            one.names |= found.names - {name}
            one.texts |= found.texts
    return definitions, imported


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)]
