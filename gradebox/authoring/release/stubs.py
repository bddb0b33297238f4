"""Turn one solution file into what students get: the same file with the marked regions taken out.

Not for judging anything: this only reads and writes text, and knows nothing of the labs but the conventions below.

In `solutions/` a Python file marks what a student has to write. Inside a function,

    # TODO(task 1.2):
    # 1. What to do first.
    # --- solution: task 1.2 ---
    return ...
    # --- end ---

becomes the TODO and a `raise NotImplementedError` that names the task and about how many lines it takes, and anywhere

    # --- solution only ---
    def helper(): ...
    # --- end ---

disappears; its lines count for the first solution that needs it. Everything else is copied as it is, with three
exceptions: `NAME.template.EXT` takes the place of `NAME.EXT` (so `REPORT.template.md` becomes `REPORT.md`,
`Dockerfile.template` becomes `Dockerfile`, and a deliberately broken script can stand for its fixed version), what
is in a `results` folder stays behind, and each lab gets an empty one.
The tasks of a lab are those that its README.md has headings for ("## Task 1.2: ..."); a marker that names another one
is an error.
"""

import ast
import itertools
import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

LINE_LENGTH = 120

_MARKER = re.compile(r"^(?P<indent>\s*)#\s*-{3,}\s*(?P<text>\w.*?)\s*-*\s*$")
_SOLUTION = re.compile(r"solution: task (?P<task>\d+\.\d+)")
_TODO = re.compile(r"#\s*TODO\(task (?P<task>[^)]*)\)")


class ReleaseError(Exception):
    """Nothing can be released as things are, or somebody's work would be lost; the message says what to do."""


@dataclass(frozen=True)
class Region:
    """Marked lines: those from index `start` (the marker) to `stop` (its end marker), both included."""

    start: int
    stop: int
    indent: str
    task: str | None


def render(source: str, *, path: Path, name: PurePosixPath, tasks: frozenset[str]) -> str:
    """Make the stub of one Python file.

    Args:
        source: its text, with markers.
        path: where it was read, for error messages.
        name: where it will lie below `labs/`, for the messages of its stubs.
        tasks: the task numbers that markers may name.

    Raises:
        ReleaseError: a marker is unknown, nested, unclosed or closes nothing, names an unknown task, or stands outside
            a function; the function has no docstring or no TODO of that task; or the stub would not be valid Python.
    """
    lines = source.splitlines()
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise ReleaseError(f"{path}:{error.lineno}: not valid Python: {error.msg}") from error
    _check_todos(lines, path, tasks)
    output: list[str] = []
    position = 0
    marked = regions(lines, path)
    sizes = _sizes(lines, marked)
    for region in marked:
        output += lines[position : region.start]
        position = region.stop + 1
        if region.task is None:
            above, below = _blank(reversed(output)), _blank(lines[position:])
            position += min(above, below)  # of the blank lines on both sides the longer run stays
        else:
            where = f"{path}:{region.start + 1}"
            if region.task not in tasks:
                raise ReleaseError(f"{where}: task {region.task} is unknown; README.md has {_listed(tasks)}")
            function = _function_around(tree, region, lines, where)
            output += _raise(region, function, name, sizes[region])
    output += lines[position:]
    text = "\n".join(output).rstrip("\n") + "\n"
    try:
        ast.parse(text)
    except SyntaxError as error:
        what = f"line {error.lineno} of its stub: {error.msg}"
        raise ReleaseError(f"{path}: without the marked regions it is not valid Python ({what})") from error
    return text


def solved(source: str, path: Path) -> str:
    """The text of one Python file without its markers: what stands between them is the solution."""
    marked = {line for region in regions(source.splitlines(), path) for line in (region.start, region.stop)}
    lines = [line for number, line in enumerate(source.splitlines()) if number not in marked]
    return "\n".join(lines).rstrip("\n") + "\n"


def regions(lines: list[str], path: Path) -> list[Region]:
    """The marked regions of a file, in their order."""
    regions = []
    opened: Region | None = None
    for index, line in enumerate(lines):
        marker = _MARKER.match(line)
        if marker is None:
            continue
        where, text = f"{path}:{index + 1}", marker["text"]
        if text == "end":
            if opened is None:
                raise ReleaseError(f"{where}: '# --- end ---' closes nothing")
            regions.append(Region(opened.start, index, opened.indent, opened.task))
            opened = None
        else:
            solution = _SOLUTION.fullmatch(text)
            if solution is None and text != "solution only":
                raise ReleaseError(
                    f"{where}: unknown marker {text!r}; there are 'solution: task N.M', 'solution only' and 'end'"
                )
            if opened is not None:
                raise ReleaseError(f"{where}: a region begins inside the one of line {opened.start + 1}")
            opened = Region(index, index, marker["indent"], solution["task"] if solution else None)
    if opened is not None:
        raise ReleaseError(f"{path}:{opened.start + 1}: the region that begins here is never closed")
    return regions


def _check_todos(lines: list[str], path: Path, tasks: frozenset[str]) -> None:
    for index, line in enumerate(lines):
        todo = _TODO.search(line)
        if todo and todo["task"] not in tasks:
            raise ReleaseError(f"{path}:{index + 1}: task {todo['task']} is unknown; README.md has {_listed(tasks)}")


def _function_around(tree: ast.Module, region: Region, lines: list[str], where: str) -> str:
    """The dotted name of the function around a region; it must have a docstring and a TODO."""
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        # A region holds statements, so its function ends below the line of the marker.
        and node.lineno <= region.start < (node.end_lineno or 0)
    ]
    around.sort(key=lambda node: node.lineno)  # from the outside to the inside
    if not around or isinstance(function := around[-1], ast.ClassDef):
        raise ReleaseError(f"{where}: a solution must stand inside a function, and hold at least one statement")
    name = ".".join(node.name for node in around)
    if ast.get_docstring(function) is None:
        raise ReleaseError(f"{where}: {name} needs a docstring; it is all a student has to go by")
    todos = (_TODO.search(line) for line in lines[function.lineno : region.start])
    if not any(todo and todo["task"] == region.task for todo in todos):
        raise ReleaseError(f"{where}: {name} needs a '# TODO(task {region.task}): ...' before its solution")
    return name


def _raise(region: Region, function: str, name: PurePosixPath, count: int) -> list[str]:
    about = f"(about {count} line{'s' if count != 1 else ''})"
    message = f"Task {region.task} is open: write {function} in labs/{name} {about}"
    line = f'{region.indent}raise NotImplementedError("{message}")'
    if len(line) <= LINE_LENGTH:
        return [line]
    first, second = f"Task {region.task} is open: write {function} ", f"in labs/{name} {about}"
    inner = region.indent + "    "
    return [
        f"{region.indent}raise NotImplementedError(",
        f'{inner}"{first}"',
        f'{inner}"{second}"',
        f"{region.indent})",
    ]


def _blank(lines: Iterable[str]) -> int:
    """How many blank lines come first."""
    return sum(1 for _ in itertools.takewhile(lambda line: not line.strip(), lines))


def _sizes(lines: list[str], marked: list[Region]) -> dict[Region, int]:
    """Lines of code that are to be written where a solution was, with the helpers that only it and later ones use."""
    texts = {region: lines[region.start + 1 : region.stop] for region in marked}
    helpers = [(region, _names(text)) for region, text in texts.items() if region.task is None]
    sizes = {}
    for region, text in texts.items():
        if region.task is None:
            continue
        used, size = "\n".join(text), _code_lines(text)
        while needed := next(
            (helper for helper in helpers if any(re.search(rf"\b{name}\b", used) for name in helper[1])), None
        ):
            helpers.remove(needed)
            used += "\n" + "\n".join(texts[needed[0]])
            size += _code_lines(texts[needed[0]])
        sizes[region] = size
    return sizes


def _names(lines: list[str]) -> list[str]:
    """What a helper's lines define at their outermost level."""
    text = "\n".join(lines)
    matches = (
        re.match(r"(?:async def|def|class) (\w+)|(\w+)(?:: [^=]+)? = ", line)
        for line in textwrap.dedent(text).splitlines()
    )
    return [match[1] or match[2] for match in matches if match]


def _code_lines(lines: Iterable[str]) -> int:
    return sum(1 for line in lines if line.strip() and not line.strip().startswith("#"))


def _listed(tasks: frozenset[str]) -> str:
    return ", ".join(sorted(tasks)) or "none"
