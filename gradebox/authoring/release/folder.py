"""The folder `labs/` as a whole: written from `solutions/`, compared with it, and never over anybody's work.

Not for a single file (`stubs.py`) nor for the students' repository (`repository.py`).
"""

import difflib
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gradebox.authoring.release.stubs import ReleaseError, render, solved
from gradebox.common.files import atomic_write

MANIFEST = ".generated.json"
"""In `labs/`: the hash of every generated file, which distinguishes an edited one from an outdated one."""
RESULTS = "results"
DIFF_LINES = 20
"""Most lines of a diff that a drift message shows."""

_HEADING = re.compile(r"^#+ Task (\d+\.\d+)\b", re.MULTILINE)


@dataclass(frozen=True)
class Released:
    """What `make_labs` did; paths relative to the folder it wrote to."""

    written: tuple[str, ...]
    removed: tuple[str, ...]
    unchanged: int


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
    contents = render_all(solutions)
    known = _read_manifest(labs)
    present = {name: (labs / name).read_bytes() for name in {*contents, *known} if (labs / name).is_file()}
    edited = sorted(
        name for name, content in present.items() if content != contents.get(name) and _hash(content) != known.get(name)
    )
    if edited and not force:
        raise ReleaseError(
            f"{len(edited)} of the files in {labs} were edited since they were generated and would be lost:\n"
            + "".join(f"  {labs / name}\n" for name in edited)
            + "Move your work away first, or add --force to overwrite it."
        )
    changed = sorted(name for name, content in contents.items() if present.get(name) != content)
    obsolete = sorted(present.keys() - contents.keys())
    for name in changed:
        _write(labs / name, contents[name])
    for name in obsolete:
        (labs / name).unlink()
    _write(labs / MANIFEST, _manifest(contents))
    return Released(written=tuple(changed), removed=tuple(obsolete), unchanged=len(contents) - len(changed))


def check(solutions: Path, labs: Path) -> list[str]:
    """Compare `labs` with what `make_labs` would write there.

    Returns:
        One message for each file that is missing, differs or should not be there; empty when they match.

    Raises:
        ReleaseError: a marker in `solutions` is wrong.
    """
    contents = render_all(solutions)
    contents[MANIFEST] = _manifest(contents)
    messages = []
    for name, content in sorted(contents.items()):
        path = labs / name
        if not path.is_file():
            messages.append(f"{path} is missing")
        elif path.read_bytes() != content:
            messages.append(f"{path} differs from its solution:\n{_diff(path.read_bytes(), content)}")
    extra = sorted(path for path in _files(labs) if path.relative_to(labs).as_posix() not in contents)
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
    replaced = {handed_out_as(name) for name in sources if handed_out_as(name) != name}
    rendered: dict[str, bytes] = {}
    for name, path in sources.items():
        if name in replaced:
            continue
        target = handed_out_as(name)
        content = path.read_bytes()
        if name.suffix == ".py":
            content = render(content.decode("utf-8"), path=path, name=target, tasks=_tasks(solutions, name)).encode()
        rendered[target.as_posix()] = content
    for lab in sorted({name.parts[0] for name in sources if len(name.parts) > 1}):
        if PurePosixPath(lab, "REPORT.md") not in replaced:
            raise ReleaseError(f"{solutions / lab} lacks REPORT.template.md: students must not get the filled report")
        rendered[f"{lab}/{RESULTS}/.gitkeep"] = b""
    return rendered


def solve_all(solutions: Path) -> dict[str, bytes]:
    """The labs filled in, by path: every solution without its markers, the reports and results with it.

    Raises:
        ReleaseError: a marker is wrong.
    """
    filled: dict[str, bytes] = {}
    for path in _files(solutions):
        name = PurePosixPath(path.relative_to(solutions).as_posix())
        if handed_out_as(name) == name:
            content = path.read_bytes()
            filled[name.as_posix()] = solved(content.decode(), path).encode() if name.suffix == ".py" else content
    return filled


def _tasks(solutions: Path, name: PurePosixPath) -> frozenset[str]:
    """The tasks that the README.md of this file's lab has headings for; none outside a lab."""
    if len(name.parts) == 1:
        return frozenset()
    readme = solutions / name.parts[0] / "README.md"
    if not readme.is_file():
        raise ReleaseError(f"{readme} is missing: its headings '## Task N.M: ...' say which tasks there are")
    return frozenset(_HEADING.findall(readme.read_text(encoding="utf-8")))


def handed_out_as(name: PurePosixPath) -> PurePosixPath:
    """What a file is called where students get it: `REPORT.template.md` is `REPORT.md` there, `Dockerfile.template` is
    `Dockerfile`; any other has the name that it has."""
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


def _manifest(contents: Mapping[str, bytes]) -> bytes:
    files = {name: _hash(content) for name, content in sorted(contents.items()) if name != MANIFEST}
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


def _diff(actual: bytes, expected: bytes) -> str:
    lines = list(
        difflib.unified_diff(
            actual.decode("utf-8", "replace").splitlines(),
            expected.decode("utf-8", "replace").splitlines(),
            "found",
            "generated",
            lineterm="",
            n=1,
        )
    )
    if len(lines) > DIFF_LINES:
        lines = [*lines[:DIFF_LINES], f"... {len(lines) - DIFF_LINES} more lines"]
    return "\n".join(f"    {line}" for line in lines)
