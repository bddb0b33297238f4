"""Definitions from marked cells of a notebook, put into the modules of a lab: what would change, and what is in doubt.

A marked cell begins with `# export: lab1_gpu_basics/benchmark.py`. Each function, class or constant in it takes the
place of the one of the same name. What stood there may be replaced without asking when it is an untouched stub or what
an export wrote last; everything else is somebody's work. Not for running cells, and needs no Jupyter.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from grader.notebooks.definitions import Cell, Module, read_cell
from labkit import LabError
from labkit.files import atomic_write

MEMORY = ".gpulabs-exports.json"
"""Next to the folder of the labs: by file and name, the hash of what an export wrote or found as a stub."""
_GENERATED = (".generated.json", "../.release.json")
_MARK = re.compile(r"#\s*export:\s*(?P<path>\S+)\s*$")


class ExportError(LabError):
    """A cell or a file that cannot be exported; the message says which and why."""


@dataclass(frozen=True)
class Change:
    """One definition that an export would write."""

    path: str
    """`lab1_gpu_basics/benchmark.py`."""
    name: str
    before: str
    """What stands in the file; empty where nothing does."""
    after: str
    is_safe: bool
    """Whether what stands there is a stub or was exported, so that nobody's work is lost."""


@dataclass
class Plan:
    """What an export would do; nothing is written before `write`."""

    labs: Path
    changes: list[Change] = field(default_factory=list)
    unchanged: int = 0
    texts: dict[str, str] = field(default_factory=dict)
    """The new text of each file that is touched."""
    _memory: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def in_doubt(self) -> list[Change]:
        """Changes that would replace somebody's work."""
        return [change for change in self.changes if not change.is_safe]

    def write(self) -> list[Path]:
        """Write the files and remember what was written; returns the files, in order.

        Raises:
            OSError: a file cannot be written.
        """
        written = []
        for path, text in self.texts.items():
            with atomic_write(self.labs / path) as temporary:
                temporary.write_text(text, encoding="utf-8")
            written.append(self.labs / path)
        _write_memory(self.labs, self._memory)
        return written


def plan(notebook: Path, labs: Path) -> Plan:
    """Read the marked cells of a notebook, and see what they would change.

    Args:
        notebook: an `.ipynb` file.
        labs: the folder that holds the lab packages.

    Raises:
        ExportError: the notebook cannot be read or has no marked cell, a cell does not parse or holds something that is
            no definition, or it names a file that is not there.
    """
    result = Plan(labs=labs, _memory=_read_memory(labs))
    modules: dict[str, Module] = {}
    for number, path, source in marked_cells(notebook):
        cell = _parsed(number, source)
        if path not in modules:
            modules[path] = _opened(labs, path, number)
            _remember_stubs(result._memory, labs, path, modules[path])
        _apply(result, modules[path], cell, path)
    for path in {change.path for change in result.changes}:
        result.texts[path] = modules[path].text
    if not modules:
        raise ExportError(
            f"{notebook} has no cell that is marked for export: its first line must read like "
            "'# export: lab1_gpu_basics/benchmark.py' (was the notebook saved?)"
        )
    return result


def marked_cells(notebook: Path) -> Iterator[tuple[int, str, str]]:
    """Number (from 1, among all cells), path and source of the cells marked for export.

    Raises:
        ExportError: the file is no notebook.
    """
    try:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        sources = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ExportError(f"{notebook} cannot be read as a notebook: {error}") from None
    for number, (kind, source) in enumerate(sources, start=1):
        first, _, rest = source.lstrip("\n").partition("\n")
        mark = _MARK.match(first)
        if kind == "code" and mark:
            yield number, mark["path"], rest


def _parsed(number: int, source: str) -> Cell:
    try:
        return read_cell(source)
    except SyntaxError as error:
        raise ExportError(f"cell {number}, line {(error.lineno or 0) + 1}: {error.msg}") from None


def _opened(labs: Path, path: str, number: int) -> Module:
    parts = PurePosixPath(path).parts
    if PurePosixPath(path).is_absolute() or ".." in parts or not path.endswith(".py"):
        raise ExportError(f"cell {number}: {path} must be a module below {labs}, such as lab1_gpu_basics/benchmark.py")
    file = labs / path
    if not file.is_file() or not file.resolve().is_relative_to(labs.resolve()):
        raise ExportError(f"cell {number}: there is no {file}")
    try:
        return Module(file.read_text(encoding="utf-8"))
    except SyntaxError as error:
        raise ExportError(f"{file}, line {error.lineno}: {error.msg}; fix the file first") from None


def _apply(result: Plan, module: Module, cell: Cell, path: str) -> None:
    known = result._memory.setdefault(path, {})
    anchor = next((name for name in cell.definitions if name in module.names), None)
    before = module.text
    for name, source in cell.definitions.items():
        old = module.source(name)
        new = module.with_docstring(name, source)
        if old == new:
            result.unchanged += 1
        else:
            result.changes.append(Change(path, name, old, new, is_safe=not old or known.get(name) == _digest(old)))
            module.put(name, new, before=anchor)
        known[name] = _digest(new)
    if module.text != before:
        module.add_imports(cell.imports)


def _remember_stubs(memory: dict[str, dict[str, str]], labs: Path, path: str, module: Module) -> None:
    """A file that nobody has touched has stubs only; in others a stub is a function that does nothing but raise."""
    is_untouched = _digest(module.text) in _generated(labs, path)
    for name in module.names:
        if is_untouched or module.is_bare_stub(name):
            memory.setdefault(path, {})[name] = _digest(module.source(name))


def _generated(labs: Path, path: str) -> set[str]:
    """The hashes that the release has noted for a file."""
    hashes = set()
    for name in _GENERATED:
        try:
            files = json.loads((labs / name).read_text(encoding="utf-8"))["files"]
            hashes |= {str(files.get(path)), str(files.get(f"{labs.name}/{path}"))}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return hashes


def _read_memory(labs: Path) -> dict[str, dict[str, str]]:
    """What is damaged counts as forgotten: then more is asked for."""
    try:
        kept = json.loads((labs.resolve().parent / MEMORY).read_text(encoding="utf-8"))[labs.resolve().name]
        return {str(path): {str(name): str(digest) for name, digest in names.items()} for path, names in kept.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _write_memory(labs: Path, memory: dict[str, dict[str, str]]) -> None:
    file = labs.resolve().parent / MEMORY
    try:
        everything = dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        everything = {}
    everything[labs.resolve().name] = memory
    with atomic_write(file) as temporary:
        temporary.write_text(json.dumps(everything, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
