"""Ways in which code may find modules and files that no text mentions, as far as reading it shows.

A bell, not a wall, and rather too often than not: a submission with one of them is graded for itself.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, auto

_CALLS = frozenset(("exec", "eval", "compile", "__import__"))
_MODULES = frozenset(("importlib", "pkgutil", "runpy", "zipimport"))
_ATTRIBUTES = frozenset(("__subclasses__", "__path__", "__spec__", "__loader__", "parents", "pardir"))
_OF_SYS = frozenset(("modules", "path", "meta_path", "path_hooks"))
_SCANNING = frozenset(("iterdir", "glob", "iglob", "rglob", "listdir", "scandir", "walk"))
_PLACES = frozenset(("__file__", "getfile", "getsourcefile", "getsource", "co_filename", "f_code"))
_UPWARDS = re.compile(r"(?:^|/)\.\.(?:/|$)")
_MAX_BYTES, _MAX_ALL_BYTES = 2**18, 2**20
"""Of one file, and of all, as for `gradebox.run.source_scan`: dense code takes long to parse, and no lab has a tenth of
this."""


class Ability(Enum):
    """What code does."""

    FINDS = auto()
    """It may find what it does not name."""
    SCANS = auto()
    """It looks at the files of some folder."""
    KNOWS_PLACE = auto()
    """It knows where a file of its own lies, other than to name a folder next to it."""


def of_files(files: Mapping[str, bytes]) -> dict[str, set[Ability]]:
    """Of each Python file."""
    left = _MAX_ALL_BYTES
    by_file = {}
    for name, content in sorted(files.items()):
        left -= len(content)
        by_file[name] = {Ability.FINDS} if left < 0 or len(content) > _MAX_BYTES else _abilities(content)
    return by_file


def find_more(of_files: Iterable[set[Ability]]) -> bool:
    """Whether these files together may find what they do not name."""
    every = set[Ability]().union(*of_files)
    return Ability.FINDS in every or {Ability.SCANS, Ability.KNOWS_PLACE} <= every


def _abilities(content: bytes) -> set[Ability]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape in their text is no warning of ours
            tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {Ability.FINDS}
    harmless = {id(part) for node in ast.walk(tree) if _names_a_folder(node) for part in ast.walk(node)}
    return {ability for node in ast.walk(tree) if id(node) not in harmless for ability in _of(node)}


def _names_a_folder(node: ast.AST) -> bool:
    """`Path(__file__).parent / "results"`"""
    match node:
        case ast.BinOp(
            left=ast.Attribute(value=ast.Call(args=[ast.Name(id="__file__")]), attr="parent"),
            op=ast.Div(),
            right=ast.Constant(value=str(name)),
        ):
            return not _UPWARDS.search(name)
    return False


def _of(node: ast.AST) -> Iterator[Ability]:
    match node:
        case ast.Name(id=name) if name in _CALLS | _MODULES | _ATTRIBUTES:
            yield Ability.FINDS
        case ast.Attribute(attr=name) if name in _MODULES | _ATTRIBUTES:
            yield Ability.FINDS
        case ast.Attribute(value=ast.Name(id="sys"), attr=name) if name in _OF_SYS:
            yield Ability.FINDS
        case ast.Attribute(value=ast.Attribute(attr="parent"), attr="parent"):
            yield Ability.FINDS
        case ast.Constant(value=str(text)) if _UPWARDS.search(text) or "PYTHONPATH" in text:
            yield Ability.FINDS
        case ast.Import(names=aliases):
            if any(alias.name.partition(".")[0] in _MODULES or alias.name == "labs" for alias in aliases):
                yield Ability.FINDS
        case ast.ImportFrom(module=module, names=aliases):
            of_sys = module == "sys" and any(alias.name in _OF_SYS for alias in aliases)
            if (module or "").partition(".")[0] in _MODULES or of_sys:
                yield Ability.FINDS
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
            if name in _SCANNING:
                yield Ability.SCANS
            if name in _PLACES:
                yield Ability.KNOWS_PLACE
