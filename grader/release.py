"""Turn the solutions into what students get: the same files with the marked regions taken out.

Not for judging anything: this only reads and writes text, and knows nothing of the labs but the conventions below.

In `solutions/` a Python file marks what a student has to write. Inside a function,

    # TODO(task 1.2):
    # 1. What to do first.
    # --- solution: task 1.2 ---
    return ...
    # --- end ---

becomes the TODO and a `raise NotImplementedError` that names the task, and anywhere

    # --- solution only ---
    def helper(): ...
    # --- end ---

disappears. Everything else is copied as it is, with three exceptions: `NAME.template.EXT` takes the place of `NAME.EXT`
(so `REPORT.template.md` becomes `REPORT.md`, `Dockerfile.template` becomes `Dockerfile`, and a deliberately broken
script can stand for its mended version), what
lies in a `results` folder stays behind, and each lab gets an empty one. The tasks of a lab are those that its README.md
has headings for ("## Task 1.2: ..."); a marker that names another one is an error.
"""

import ast
import difflib
import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from labkit.files import atomic_write

MANIFEST = ".generated.json"
"""In `labs/`: the hash of every generated file, by which an edited one is told from an outdated one."""
RESULTS = "results"
LINE_LENGTH = 120
DIFF_LINES = 20
"""Most lines of a diff that a drift message shows."""

_MARKER = re.compile(r"^(?P<indent>\s*)#\s*-{3,}\s*(?P<text>\w.*?)\s*-*\s*$")
_SOLUTION = re.compile(r"solution: task (?P<task>\d+\.\d+)")
_TODO = re.compile(r"#\s*TODO\(task (?P<task>[^)]*)\)")
_HEADING = re.compile(r"^#+ Task (\d+\.\d+)\b", re.MULTILINE)


class ReleaseError(Exception):
    """The solutions cannot be turned into stubs, or writing them would destroy a student's work."""


@dataclass(frozen=True)
class Released:
    """What `make_labs` did; paths relative to the folder it wrote to."""

    written: tuple[str, ...]
    removed: tuple[str, ...]
    unchanged: int


@dataclass(frozen=True)
class _Region:
    """Marked lines: those from index `start` (the marker) to `stop` (its end marker), both included."""

    start: int
    stop: int
    indent: str
    task: str | None


def make_labs(solutions: Path, labs: Path, *, force: bool = False) -> Released:
    """Write the stubs of everything in `solutions` to `labs`, and remove what an earlier run wrote and this does not.

    Nothing is written unless all of it can be: files that were edited since they were generated are a student's work.

    Args:
        solutions: the folder of the reference solutions.
        labs: the folder to write; made when missing.
        force: overwrite edited files too.

    Raises:
        ReleaseError: a marker is wrong (the message names file and line), or files were edited and `force` is False.
    """
    wanted = render_all(solutions)
    known = _read_manifest(labs)
    present = {name: (labs / name).read_bytes() for name in {*wanted, *known} if (labs / name).is_file()}
    edited = sorted(
        name for name, content in present.items() if content != wanted.get(name) and _hash(content) != known.get(name)
    )
    if edited and not force:
        raise ReleaseError(
            f"{len(edited)} of the files in {labs} were edited since they were generated and would be lost:\n"
            + "".join(f"  {labs / name}\n" for name in edited)
            + "Move your work away first, or add --force to overwrite it."
        )
    changed = sorted(name for name, content in wanted.items() if present.get(name) != content)
    obsolete = sorted(present.keys() - wanted.keys())
    for name in changed:
        _write(labs / name, wanted[name])
    for name in obsolete:
        (labs / name).unlink()
    _write(labs / MANIFEST, _manifest(wanted))
    return Released(written=tuple(changed), removed=tuple(obsolete), unchanged=len(wanted) - len(changed))


def check(solutions: Path, labs: Path) -> list[str]:
    """Compare `labs` with what `make_labs` would write there.

    Returns:
        One message for each file that is missing, differs or should not be there; empty when they match.

    Raises:
        ReleaseError: a marker in `solutions` is wrong.
    """
    wanted = render_all(solutions)
    wanted[MANIFEST] = _manifest(wanted)
    messages = []
    for name, content in sorted(wanted.items()):
        path = labs / name
        if not path.is_file():
            messages.append(f"{path} is missing")
        elif path.read_bytes() != content:
            messages.append(f"{path} differs from its solution:\n{_diff(path.read_bytes(), content)}")
    extra = sorted(path for path in _files(labs) if path.relative_to(labs).as_posix() not in wanted)
    return messages + [f"{path} is not generated from {solutions}" for path in extra]


def render_all(solutions: Path) -> dict[str, bytes]:
    """The content of every file in `labs`, by its path there ("lab1_gpu_basics/benchmark.py").

    Raises:
        ReleaseError: a marker is wrong, or a lab lacks its README.md or the template of its report.
    """
    sources = {PurePosixPath(path.relative_to(solutions).as_posix()): path for path in _files(solutions)}
    sources = {name: path for name, path in sources.items() if RESULTS not in name.parts[:-1]}
    if not sources:
        raise ReleaseError(f"there are no solutions in {solutions}")
    replaced = {_target(name) for name in sources if _target(name) != name}
    rendered: dict[str, bytes] = {}
    for name, path in sources.items():
        if name in replaced:
            continue
        target = _target(name)
        content = path.read_bytes()
        if name.suffix == ".py":
            content = render(content.decode("utf-8"), path=path, name=target, tasks=_tasks(solutions, name)).encode()
        rendered[target.as_posix()] = content
    for lab in sorted({name.parts[0] for name in sources if len(name.parts) > 1}):
        if PurePosixPath(lab, "REPORT.md") not in replaced:
            raise ReleaseError(f"{solutions / lab} lacks REPORT.template.md: students must not get the filled report")
        rendered[f"{lab}/{RESULTS}/.gitkeep"] = b""
    return rendered


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
    for region in _regions(lines, path):
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
            output += _raise(region, function, name, _code_lines(lines[region.start + 1 : region.stop]))
    output += lines[position:]
    text = "\n".join(output).rstrip("\n") + "\n"
    try:
        ast.parse(text)
    except SyntaxError as error:
        what = f"line {error.lineno} of its stub: {error.msg}"
        raise ReleaseError(f"{path}: without the marked regions it is not valid Python ({what})") from error
    return text


def _regions(lines: list[str], path: Path) -> list[_Region]:
    regions = []
    opened: _Region | None = None
    for index, line in enumerate(lines):
        marker = _MARKER.match(line)
        if marker is None:
            continue
        where, text = f"{path}:{index + 1}", marker["text"]
        if text == "end":
            if opened is None:
                raise ReleaseError(f"{where}: '# --- end ---' closes nothing")
            regions.append(_Region(opened.start, index, opened.indent, opened.task))
            opened = None
        else:
            solution = _SOLUTION.fullmatch(text)
            if solution is None and text != "solution only":
                raise ReleaseError(
                    f"{where}: unknown marker {text!r}; there are 'solution: task N.M', 'solution only' and 'end'"
                )
            if opened is not None:
                raise ReleaseError(f"{where}: a region begins inside the one of line {opened.start + 1}")
            opened = _Region(index, index, marker["indent"], solution["task"] if solution else None)
    if opened is not None:
        raise ReleaseError(f"{path}:{opened.start + 1}: the region that begins here is never closed")
    return regions


def _check_todos(lines: list[str], path: Path, tasks: frozenset[str]) -> None:
    for index, line in enumerate(lines):
        todo = _TODO.search(line)
        if todo and todo["task"] not in tasks:
            raise ReleaseError(f"{path}:{index + 1}: task {todo['task']} is unknown; README.md has {_listed(tasks)}")


def _function_around(tree: ast.Module, region: _Region, lines: list[str], where: str) -> str:
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


def _raise(region: _Region, function: str, name: PurePosixPath, count: int) -> list[str]:
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


def _code_lines(lines: Iterable[str]) -> int:
    return sum(1 for line in lines if line.strip() and not line.strip().startswith("#"))


def _tasks(solutions: Path, name: PurePosixPath) -> frozenset[str]:
    """The tasks that the README.md of this file's lab has headings for; none outside a lab."""
    if len(name.parts) == 1:
        return frozenset()
    readme = solutions / name.parts[0] / "README.md"
    if not readme.is_file():
        raise ReleaseError(f"{readme} is missing: its headings '## Task N.M: ...' say which tasks there are")
    return frozenset(_HEADING.findall(readme.read_text(encoding="utf-8")))


def _listed(tasks: frozenset[str]) -> str:
    return ", ".join(sorted(tasks)) or "none"


def _target(name: PurePosixPath) -> PurePosixPath:
    """`REPORT.template.md` -> `REPORT.md`, `Dockerfile.template` -> `Dockerfile`; any other name as it is."""
    stem = name.stem
    if name.suffix == ".template":
        return name.with_suffix("")
    return name.with_name(stem.removesuffix(".template") + name.suffix) if stem.endswith(".template") else name


def _files(folder: Path) -> list[Path]:
    """Every file below `folder` that is not a by-product of running Python."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.name not in (".DS_Store",)
    )


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _manifest(wanted: Mapping[str, bytes]) -> bytes:
    files = {name: _hash(content) for name, content in sorted(wanted.items()) if name != MANIFEST}
    return (json.dumps({"schema": 1, "files": files}, indent=2) + "\n").encode()


def _read_manifest(labs: Path) -> dict[str, str]:
    path = labs / MANIFEST
    if not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))["files"])
    except (ValueError, KeyError, TypeError) as error:
        raise ReleaseError(f"{path} is damaged ({error}); restore it, or delete it and add --force") from error


def _write(path: Path, content: bytes) -> None:
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)


def _diff(found: bytes, wanted: bytes) -> str:
    lines = list(
        difflib.unified_diff(
            found.decode("utf-8", "replace").splitlines(),
            wanted.decode("utf-8", "replace").splitlines(),
            "found",
            "generated",
            lineterm="",
            n=1,
        )
    )
    if len(lines) > DIFF_LINES:
        lines = [*lines[:DIFF_LINES], f"... {len(lines) - DIFF_LINES} more lines"]
    return "\n".join(f"    {line}" for line in lines)
