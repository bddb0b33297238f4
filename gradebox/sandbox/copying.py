"""The copy of a submission that children see: a package called `labs`, whatever the folder is called.

Runs in the judge, reads untrusted files and executes none. It leaves behind what no lab needs: caches, version
control, virtual environments, large files, links that lead outside. Not for judging the submission.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradebox.sandbox.types import SubmissionError

MAX_FILES = 4000
MAX_TOTAL_BYTES = 64 * 2**20
MAX_FILE_BYTES = 16 * 2**20
_MAX_DEPTH = 24
LEFT_BEHIND = {"__pycache__", ".git", ".hg", ".svn", ".venv", "venv", ".mypy_cache", ".ruff_cache", ".pytest_cache",
               ".ipynb_checkpoints", ".idea", ".vscode", "node_modules", "site-packages", ".tox",
               ".DS_Store", "Thumbs.db", "desktop.ini"}  # fmt: skip
"""Names of files and folders that are not needed to run a lab."""
NO_SOURCE = (".pyc", ".pyo", ".so", ".pyd", ".dll", ".dylib", ".pth")
"""Code that nobody can read: no lab needs it, and it would be on the path as if it were a module."""
_ANY_LAB = "lab[1-9][0-9]*"


@dataclass(frozen=True)
class Entry:
    """One file to copy."""

    top: Path
    """The folder that was scanned, without links in it."""
    source: Path
    """Below `top`, without links on the way."""
    target: str
    """Relative to the copy's `labs` folder, with `/`."""
    size_bytes: int
    modified_ns: int


def is_lab(name: str, labs: Sequence[str] = ()) -> bool:
    """Whether a folder of this name is a lab, in both trees: `lab1_gpu_basics` and the hand-out's `lab1-gpu-basics`.

    `labs` are the names of the course's; without them any number will do.
    """
    names = "|".join(map(re.escape, labs)) or _ANY_LAB
    return re.fullmatch(rf"(?:{names})[-_].+", name) is not None


def scan(folder: Path, labs: Sequence[str] = (), *, as_it_is: bool = False) -> tuple[Entry, ...]:
    """What would be copied of `folder`, ordered by name; `labs` as `is_lab` takes them.

    A folder that holds no lab itself but a folder `labs` stands for that one, unless it is to be taken `as_it_is`.

    Raises:
        SubmissionError: not a folder, no labs in it, two folders for one lab, or too many or too large files.
    """
    top = Path(os.path.realpath(folder))
    if not top.is_dir():
        raise SubmissionError(f"{folder} is not a folder; name the folder that holds lab1_gpu_basics and the others")
    inner = (top / "labs").is_dir() and not (top / "labs").is_symlink()
    if inner and not as_it_is and not _lab_folders(top, labs):
        top = top / "labs"
    packages: dict[str, str] = {}
    for name in _lab_folders(top, labs):
        package = name.replace("-", "_")
        if package in packages:
            raise SubmissionError(f"{folder} holds both {packages[package]} and {name}; keep one of them")
        packages[package] = name
    renamed = {name: package for package, name in packages.items()}
    entries: list[Entry] = []
    total = 0
    for entry in _walk(top, top, renamed, "", 0):
        entries.append(entry)
        total += entry.size_bytes
        if len(entries) > MAX_FILES or total > MAX_TOTAL_BYTES:
            raise SubmissionError(
                f"{folder} is too large: more than {MAX_FILES} files or {MAX_TOTAL_BYTES // 2**20} MiB; "
                f"remove what is not part of the labs (data sets, checkpoints)"
            )
    return tuple(sorted(entries, key=lambda entry: entry.target))


def _lab_folders(top: Path, labs: Sequence[str]) -> list[str]:
    with os.scandir(top) as items:
        return sorted(item.name for item in items if is_lab(item.name, labs) and item.is_dir(follow_symlinks=False))


def _walk(top: Path, folder: Path, renamed: dict[str, str], prefix: str, depth: int) -> Iterator[Entry]:
    if depth > _MAX_DEPTH:
        raise SubmissionError(f"{folder} is nested more than {_MAX_DEPTH} folders deep")
    try:
        with os.scandir(folder) as handle:
            items = list(handle)
    except OSError as error:
        raise SubmissionError(f"{folder} cannot be read: {error.strerror}") from None
    for item in items:
        name = renamed.get(item.name, item.name) if depth == 0 else item.name
        if item.name in LEFT_BEHIND or item.name.lower().endswith(NO_SOURCE) or _is_environment(item):
            continue
        if item.is_dir(follow_symlinks=False):
            yield from _walk(top, Path(item.path), renamed, f"{prefix}{name}/", depth + 1)
            continue
        source = Path(item.path)
        if item.is_symlink():
            source = Path(os.path.realpath(source))
            if not source.is_relative_to(top):
                continue
        try:
            status = os.stat(source, follow_symlinks=False)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode) and status.st_size <= MAX_FILE_BYTES:
            yield Entry(top, source, prefix + name, status.st_size, status.st_mtime_ns)


def _is_environment(item: os.DirEntry[str]) -> bool:
    return item.is_dir(follow_symlinks=False) and os.path.exists(os.path.join(item.path, "pyvenv.cfg"))


def write(entries: tuple[Entry, ...], labs: Path) -> str:
    """Write the files into the new folder `labs` and return the SHA-256 of their names and content.

    Raises:
        SubmissionError: a file could not be read.
    """
    digest = hashlib.sha256()
    labs.mkdir(parents=True)
    for entry in entries:
        target = labs / entry.target
        target.parent.mkdir(parents=True, exist_ok=True)
        content = _read(entry)
        target.write_bytes(content)
        # A length before each part, so that no two different trees have one digest.
        for part in (entry.target.encode("utf-8", "surrogateescape"), content):
            digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def copy(entries: tuple[Entry, ...], parent: Path, labs: Sequence[str] = ()) -> str:
    """Copy into `parent/labs`, readable to everyone and writable to nobody else; returns the SHA-256 of the content.

    `labs` and each lab get an `__init__.py` where there is none, so that no other package of that name is found first.

    Raises:
        SubmissionError: a file could not be read.
    """
    top = parent / "labs"
    digest = write(entries, top)
    for package in (top, *(item for item in top.iterdir() if item.is_dir() and is_lab(item.name, labs))):
        init = package / "__init__.py"
        if not init.exists():
            init.touch()
    for folder, _, files in os.walk(parent):
        os.chmod(folder, 0o755)
        for name in files:
            os.chmod(os.path.join(folder, name), 0o644)
    return digest


def _read(entry: Entry) -> bytes:
    try:
        descriptor = _open(entry)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise SubmissionError(f"{entry.source} changed while it was being copied")
            return file.read(MAX_FILE_BYTES)
    except OSError as error:
        raise SubmissionError(f"{entry.source} cannot be read: {error.strerror}") from None


def _open(entry: Entry) -> int:
    """Open a file for reading although the folder may change under us.

    From `top` on one name after the other, so that no link is followed, not even if it replaced a folder that was
    looked at a moment ago; and nothing that could block.
    """
    *folders, name = entry.source.relative_to(entry.top).parts
    here = os.open(entry.top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            below = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
            os.close(here)
            here = below
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=here)
    finally:
        os.close(here)
