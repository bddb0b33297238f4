"""The tasks of the labs as they stand: headings of the READMEs, and which functions of a submission are still open.

Reads files as text and with `ast`; nothing of a submission is executed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradebox.common import files

_HEADING = re.compile(r"^## Task (?P<number>\d+\.\d+): (?P<title>.*?)(?: \((?P<files>`[^)]*)\))?$", re.MULTILINE)
_STUB = re.compile(
    r"Task (?P<task>\d+\.\d+) is open: write (?P<name>[\w.]+) in \S+(?: \(about (?P<lines>\d+) lines?\))?"
)


@dataclass(frozen=True)
class Task:
    """One heading of a lab's README; or what only stubs name."""

    number: str
    title: str = ""
    files: tuple[str, ...] = ()
    readme: Path | None = None
    line: int = 0
    """Of the heading, from 1 on."""


@dataclass(frozen=True)
class OpenFunction:
    """A function that still raises as the stub does."""

    task: str
    name: str
    """Dotted: "GPUMonitor.sample"."""
    path: Path
    line: int
    """Of its TODO, or of the `raise` where the TODO is gone."""
    lines: int
    """About so many are to be written, by the stub; 0 where it does not say."""


@dataclass(frozen=True)
class BrokenFile:
    """A file that Python cannot read."""

    path: Path
    line: int
    message: str


def tasks(readme: Path) -> tuple[Task, ...]:
    """The tasks of one lab, in the order of its README; none where there is no README."""
    try:
        text = files.read_text(readme)
    except OSError:
        return ()
    return tuple(
        Task(
            heading["number"],
            heading["title"],
            tuple(re.findall(r"`([^`]+)`", heading["files"] or "")),
            readme,
            text.count("\n", 0, heading.start()) + 1,
        )
        for heading in _HEADING.finditer(text)
    )


def survey(package: Path) -> tuple[tuple[OpenFunction, ...], tuple[BrokenFile, ...]]:
    """What is still open in a lab's folder, in the order of its files and lines, and what does not parse."""
    open_functions: list[OpenFunction] = []
    broken: list[BrokenFile] = []
    for path in sorted(package.glob("*.py")):
        try:
            text = files.read_text(path)
            open_functions += _open_functions(path, text)
        except OSError as error:
            broken.append(BrokenFile(path, 1, error.strerror or "cannot be read"))
        except (SyntaxError, ValueError, RecursionError) as error:  # ValueError: a null byte
            broken.append(BrokenFile(path, getattr(error, "lineno", None) or 1, getattr(error, "msg", str(error))))
    return tuple(open_functions), tuple(broken)


def in_order(functions: Sequence[OpenFunction], task: Task) -> list[OpenFunction]:
    """The open functions of a task, in the order in which its heading names the files."""
    own = [function for function in functions if function.task == task.number]
    rank = {name: position for position, name in enumerate(task.files)}
    return sorted(own, key=lambda function: (rank.get(function.path.name, len(rank)), function.line))


def line_of(path: Path, name: str) -> int | None:
    """Where a function, or a method "Class.method", begins in a file; None where it does not."""
    try:
        nodes: list[ast.stmt] = ast.parse(files.read_text(path)).body
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    line = None
    for part in name.split("."):
        kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        definition = next((node for node in nodes if isinstance(node, kinds) and node.name == part), None)
        if definition is None:
            return None
        nodes, line = definition.body, definition.lineno
    return line


def _open_functions(path: Path, text: str) -> Iterator[OpenFunction]:
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in ast.walk(node):
                if isinstance(statement, ast.Raise) and (stub := _stub_message(statement)):
                    marks = range(node.lineno, statement.lineno)
                    todo = next((i for i in reversed(marks) if f"TODO(task {stub['task']})" in lines[i - 1]), None)
                    size = int(stub["lines"] or 0)
                    yield OpenFunction(stub["task"], stub["name"], path, todo or statement.lineno, size)


def _stub_message(node: ast.Raise) -> re.Match[str] | None:
    """The message of `raise NotImplementedError("Task ... is open: ...")`."""
    if not isinstance(node.exc, ast.Call) or not node.exc.args:
        return None
    name, text = node.exc.func, node.exc.args[0]
    if not isinstance(name, ast.Name) or name.id != "NotImplementedError" or not isinstance(text, ast.Constant):
        return None
    return _STUB.match(text.value) if isinstance(text.value, str) else None
