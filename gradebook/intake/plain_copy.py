"""What git needs of a repository that was handed in (objects, branches, tags), copied by name into one of our own.

A repository can lead git elsewhere in many ways (alternates, `commondir`, links, worktrees, `include.path`, promisor
remotes, a `.git` next to or inside of the one that was looked at), and grows new ones with every version. So git never
opens it. Only regular files with the names of objects and references come along, and what says that more is needed is
refused. Not for whether objects are what their names say: that is found when git fetches from the copy.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gradebook.intake.accepted_files import Refused
from gradebox.common.texts import printable

MAX_FILES = 200_000
MAX_BYTES = 2 * 2**30
_TEXT_BYTES = 16 * 2**20
_MAX_DEPTH = 16
_CHUNK = 2**20

_HEX = re.compile(r"[0-9a-f]{40}")
_LONG_HEX = re.compile(r"[0-9a-f]{64}")
_SYMBOLIC = re.compile(r"ref:\s*(refs/heads/\S+)")
_FAN = re.compile(r"[0-9a-f]{2}")
_LOOSE = re.compile(r"[0-9a-f]{38}")
_PACK = re.compile(r"pack-[0-9a-f]{40}\.(pack|idx)")
_REFERENCE = re.compile(r"refs/(heads|tags)(/(?!\.)[^\x00-\x20\x7f~^:?*\[\\/]+(?<!\.lock)(?<!\.))+")
_BORROWED = "uses the objects of another repository; hand in a clone made with --no-local"
_UNREADABLE = (errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE)


class Unreadable(Exception):
    """Its files cannot be read here, which need not be the student's fault; the message is one line."""


@dataclass(frozen=True)
class Copied:
    """What a copy was made of."""

    branch: str | None
    """The one that the repository calls its own."""
    is_partial: bool
    """Whether it says that some of its objects are on a server only."""


def git_folder(folder: Path) -> Path | None:
    """The folder that git opens when it is given this one: `.git` in it, else itself; None where neither is one.

    Raises:
        Refused: `.git` is a link or a file, and so leads elsewhere.
    """
    inner = folder / ".git"
    if inner.is_symlink() or (inner.exists() and not inner.is_dir()):
        raise Refused(".git leads to another folder; hand in a clone that stands by itself")
    return next((candidate for candidate in (inner, folder) if _is_git_folder(candidate)), None)


def _is_git_folder(folder: Path) -> bool:
    return (folder / "HEAD").is_file() and all((folder / name).is_dir() for name in ("objects", "refs"))


def copy(folder: Path, target: Path) -> Copied:
    """Copy the repository at `folder` into the bare one at `target`, which holds nothing yet.

    Raises:
        Refused: it does not stand by itself, or is none, or is too large.
        Unreadable: we may not read it, or its disk fails.
    """
    try:
        git = git_folder(folder)
        if git is None:
            raise Refused("git cannot read it: .git is no git repository; hand in a clone of yours")
        with _opened(os.fspath(git), None) as top:
            return _Copier(target).all_of(top)
    except OSError as error:
        if error.errno not in _UNREADABLE:
            raise
        raise Unreadable(f"its files cannot be read here: {error.strerror}") from None


class _Copier:
    """One copy in the making. Every folder is opened below the one above it, so that nothing is swapped meanwhile."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._files = 0
        self._bytes = 0

    def all_of(self, top: int) -> Copied:
        for name in ("commondir", "gitdir"):
            if name in _names(top):
                raise Refused("is a part of another repository; hand in a clone that stands by itself")
        head = self._text(top, "HEAD") or ""
        references = self._packed(top)
        with _opened("refs", top) as refs:
            for kind in ("heads", "tags"):
                self._loose_references(refs, kind, f"refs/{kind}", references, 0)
        if "reftable" in _names(top) or "refs/heads/.invalid" in head:
            raise Refused("keeps its branches as a reftable; hand in a clone made with --ref-format=files")
        if _LONG_HEX.fullmatch(head.strip()) or any(map(_LONG_HEX.fullmatch, references.values())):
            raise Refused(
                "names its objects by SHA-256; hand in the files as .zip, or push them to a repository made by git init"
            )
        with _opened("objects", top) as objects:
            is_partial = self._objects(objects)
        if (shallow := self._text(top, "shallow")) is not None:
            known = [line for line in shallow.split() if _HEX.fullmatch(line)]
            (self._target / "shallow").write_text("".join(f"{line}\n" for line in known))
        lines = [f"{commit} {name}\n" for name, commit in sorted(references.items()) if _HEX.fullmatch(commit)]
        (self._target / "packed-refs").write_text("".join(lines), encoding="utf-8", errors="surrogateescape")
        own = _SYMBOLIC.fullmatch(head.strip())
        is_there = own is not None and own[1] in references
        return Copied(own[1].removeprefix("refs/heads/") if own and is_there else None, is_partial)

    def _packed(self, top: int) -> dict[str, str]:
        references: dict[str, str] = {}
        for line in (self._text(top, "packed-refs") or "").split("\n"):
            commit, _, name = line.partition(" ")
            if _is_reference(name):
                references[name] = commit
        return references

    def _loose_references(self, parent: int, name: str, path: str, into: dict[str, str], depth: int) -> None:
        """Add the branches or tags in a folder; a symbolic one among them is left out, because it is nobody's work."""
        if depth > _MAX_DEPTH:
            raise Refused("has branches nested too deeply; push only the one to be graded")
        if name not in _names(parent):
            return
        with _opened(name, parent) as here:
            for inner in self._counted(here):
                mode = os.stat(inner, dir_fd=here, follow_symlinks=False).st_mode
                if stat.S_ISDIR(mode):
                    self._loose_references(here, inner, f"{path}/{inner}", into, depth + 1)
                elif _is_reference(f"{path}/{inner}") and (text := self._text(here, inner)) is not None:
                    into[f"{path}/{inner}"] = text.strip()

    def _objects(self, objects: int) -> bool:
        names = self._counted(objects)
        if "info" in names:
            with _opened("info", objects) as info:
                if {"alternates", "http-alternates"} & set(_names(info)):
                    raise Refused(_BORROWED)
        is_partial = False
        for name in names:
            if not _FAN.fullmatch(name) and name != "pack":
                continue
            with _opened(name, objects) as here:
                pattern = _PACK if name == "pack" else _LOOSE
                for inner in self._counted(here):
                    is_partial = is_partial or inner.endswith(".promisor")
                    if pattern.fullmatch(inner):
                        self._file(here, inner, self._target / "objects" / name / inner)
        return is_partial

    def _counted(self, folder: int) -> list[str]:
        names = _names(folder)
        self._files += len(names)
        if self._files > MAX_FILES:
            raise Refused(f"has more than {MAX_FILES} files inside .git; run git gc before handing it in")
        return names

    def _text(self, folder: int, name: str) -> str | None:
        """A small file as text; None where there is none of that name."""
        try:
            with _regular(folder, name) as descriptor, os.fdopen(os.dup(descriptor), "rb") as file:
                return file.read(_TEXT_BYTES).decode("utf-8", "surrogateescape")
        except FileNotFoundError:
            return None

    def _file(self, folder: int, name: str, target: Path) -> None:
        target.parent.mkdir(exist_ok=True)
        with _regular(folder, name) as descriptor, target.open("xb") as copy:
            while chunk := os.read(descriptor, _CHUNK):
                self._bytes += len(chunk)
                if self._bytes > MAX_BYTES:
                    raise Refused(f"has more than {MAX_BYTES // 2**30} GiB inside .git; hand in the labs only")
                copy.write(chunk)


def _is_reference(name: str) -> bool:
    """Whether git accepts this as the name of a branch or tag."""
    return _REFERENCE.fullmatch(name) is not None and ".." not in name and "@{" not in name


def _names(folder: int) -> list[str]:
    return sorted(os.listdir(folder))


@contextlib.contextmanager
def _opened(name: str, parent: int | None) -> Iterator[int]:
    """A folder, that must be one itself and not lead to one."""
    with _links_refused(name):
        descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _regular(folder: int, name: str) -> Iterator[int]:
    """A file, that must be one itself: opened without following a link, and without waiting for a pipe's other end."""
    with _links_refused(name):
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _not_plain(name)
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _links_refused(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
            raise _not_plain(name) from None
        raise


def _not_plain(name: str) -> Refused:
    shown = printable(os.path.basename(name))
    return Refused(f"has a link inside .git ({shown!r}), or no file where one should be; hand in a plain clone")
