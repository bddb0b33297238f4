"""Answers that a planted bug cannot have changed are taken from an earlier scenario of the same run.

A probe's answer depends on the question, which the seed decides, and on those functions, classes and constants of the
student's modules that the probe uses, directly or through others. Where a scenario left all of these as they are in the
reference, asking again would only cost time; so all scenarios of a run share a seed. Which they are is read from the
source of probes and reference: every name that occurs counts as used, and what is not understood counts as changed.
`make matrix WHOLE=1` asks every question of every scenario.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gradebox.sandbox import Request
from tests.scenarios.build import ROOT

PROBES = ROOT / "grader" / "probes"
REFERENCE = ROOT / "solutions"
_MODULE = re.compile(r"lab\d_\w+\.\w+")
_WORD = re.compile(r"\w+")
# Read by the judge itself, and by no probe.
_WRITTEN = re.compile(r"lab\d_\w+/(REPORT\.md|README\.md|results/.*)")
_REST = "<the rest>"
"""Statements of a module that define nothing: they run at every import."""
_PROGRAM = "<the program>"
"""What runs only where the module is the program."""

Symbol = tuple[str, str]
"""A module and a name that it defines at its top level."""


@dataclass
class _Definition:
    """What a function, class or constant mentions, and what it is."""

    names: set[str] = field(default_factory=set)
    texts: set[str] = field(default_factory=set)
    dump: str = ""


@dataclass
class _Source:
    """A parsed module: what it defines, and what it imports from neighbours (a name, or "" for the whole module)."""

    definitions: dict[str, _Definition]
    imported: dict[str, Symbol]


def symbols_of(request: Request) -> set[Symbol]:
    """All of the student's code that may take part in the answer to a request; empty where that is not known."""
    probe, _, function = request.probe.rpartition(".")
    words = _mentioned(probe, function) | set(_strings(request.params))
    modules = {found for word in words for found in _MODULE.findall(word) if _file(found).is_file()}
    if "module" in request.params or "program" in request.params:
        # A program runs from its top to its bottom.
        entries = {(module, name) for module in modules for name in _offered(module)}
    else:
        plain = {part for word in words for part in _WORD.findall(word)}
        entries = {(module, name) for module in modules for name in _offered(module) & plain}
    return set(_closure(frozenset(entries | {(module, _REST) for module in modules})))


def changed_symbols(submission: Path) -> set[Symbol] | None:
    """What differs from the reference, is new or is missing; None: anything may be different."""
    ours, theirs = _files(REFERENCE), _files(submission)
    changed: set[Symbol] = set()
    for name in sorted(set(ours) | set(theirs)):
        same = name in ours and name in theirs and ours[name].read_bytes() == theirs[name].read_bytes()
        if same or _WRITTEN.fullmatch(name):
            continue
        module = name.removesuffix(".py").replace("/", ".")
        if not name.endswith(".py") or not _MODULE.fullmatch(module) or module.endswith("__init__"):
            return None
        try:
            before, after = (_parse(files.get(name), module) for files in (ours, theirs))
        except SyntaxError:
            return None
        both = set(before.definitions) | set(after.definitions)
        changed |= {(module, one) for one in both if before.definitions.get(one) != after.definitions.get(one)}
        if before.imported != after.imported:
            changed |= {(module, one) for one in {*both, *before.imported, *after.imported}}
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
def _source(module: str) -> _Source:
    return _parse(_file(module), module)


def _offered(module: str) -> set[str]:
    source = _source(module)
    return set(source.definitions) | set(source.imported)


@functools.cache
def _closure(entries: frozenset[Symbol]) -> frozenset[Symbol]:
    """What code of the reference uses, through any number of steps."""
    seen: set[Symbol] = set()
    open_ = list(entries)
    while open_:
        module, name = one = open_.pop()
        if one in seen or not _file(module).is_file():
            continue
        seen.add(one)
        open_.append((module, _REST))
        source = _source(module)
        if name in source.imported:
            open_.append(source.imported[name])
        used = source.definitions.get(name, _Definition()).names
        open_ += [(module, word) for word in used & _offered(module)]
        for word in used & set(source.imported):
            where, what = source.imported[word]
            if not what and _file(where).is_file():  # the module itself: whatever of it is mentioned
                open_ += [(where, inner) for inner in used & _offered(where)]
    return frozenset(seen)


def _parse(file: Path | None, module: str) -> _Source:
    """Raises SyntaxError."""
    tree = ast.parse(file.read_text(encoding="utf-8") if file else "")
    package = module.partition(".")[0]
    definitions: dict[str, _Definition] = {}
    imported: dict[str, Symbol] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (base := _neighbour(node, package)) is not None:
            for alias in node.names:
                inner = f"{base}.{alias.name}" if base == package else base
                imported[alias.asname or alias.name] = (inner, "" if base == package else alias.name)
        found = _Definition(dump=ast.dump(node))
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                found.names.add(part.id)
            elif isinstance(part, ast.Attribute):
                found.names.add(part.attr)
            elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                found.texts.add(part.value)
        for name in _defined(node):
            one = definitions.setdefault(name, _Definition())
            one.names |= found.names - {name}
            one.texts |= found.texts
            one.dump += found.dump
    return _Source(definitions, imported)


def _neighbour(node: ast.ImportFrom, package: str) -> str | None:
    """The module of the same package that an import names; the package itself in `from . import readings`."""
    if node.level:
        return f"{package}.{node.module}" if node.module else package
    name = (node.module or "").removeprefix("labs.").removeprefix("grader.")
    return name if name.partition(".")[0] == package else None


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.If) and ast.unparse(node.test).startswith("__name__ =="):
        return [_PROGRAM]
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    names = [part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)]
    return names or [_REST]


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _each(value.values())
    elif isinstance(value, (list, tuple)):
        yield from _each(value)


def _each(values: Iterable[object]) -> Iterator[str]:
    for value in values:
        yield from _strings(value)


@functools.cache
def _mentioned(probe: str, function: str) -> frozenset[str]:
    """Every name and text that a probe function, or anything it uses among the probes, mentions."""
    seen: set[Symbol] = set()
    words: set[str] = set()
    open_ = [(probe, function)]
    while open_:
        one = open_.pop()
        if one in seen or not (PROBES / f"{one[0]}.py").is_file():
            continue
        seen.add(one)
        source = _probe_source(one[0])
        if one[1] in source.imported:
            where, what = source.imported[one[1]]
            open_.append((where.removeprefix("probes."), what))
        elif one[1] in source.definitions:
            found = source.definitions[one[1]]
            words |= found.texts | found.names
            open_ += [(one[0], name) for name in found.names]
    return frozenset(words)


@functools.cache
def _probe_source(probe: str) -> _Source:
    return _parse(PROBES / f"{probe}.py", f"probes.{probe}")
