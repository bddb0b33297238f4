"""Which files of a submission are accepted, wherever they come from, and writing them: paths, how many, how large.

They come from an archive, a repository or a folder. Imports only what a process that unpacks can start with quickly.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import unicodedata
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, ClassVar, Literal

from gradebox.common.texts import is_printable

_MAX_PATH_BYTES = 1024
"""A quarter of what Linux takes, because the path of the folder above comes in front of it."""
_MAX_NAME_BYTES = 255
_MAX_DEPTH = 32
_ENTRIES_PER_FILE = 50
"""So many entries may be left behind (caches, environments) for each file that is accepted."""
_FOLDERS_PER_FILE = 4
_DRIVE = re.compile(r"[A-Za-z]:")
_VERB = re.compile(r"(?:is|holds|has|needs|takes|uses|ends|keeps|names|differs|lies|could)\b")


_UNFIT_NAMES = frozenset((errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL, errno.EEXIST, errno.ENOTDIR, errno.EISDIR))
"""How a file system says that it cannot have a file of this name, or has another one by it."""
_CHUNK = 2**16


class Refused(Exception):
    """This submission cannot be taken; the message is one line that says what the student must change."""

    status: ClassVar[Literal["refused", "undecided"]] = "refused"
    names_file = False
    """Whether the message says which of several files it is about."""


class Undecided(Refused):
    """Nobody knows which of what was handed in counts: an instructor decides, and no score is exported before."""

    status = "undecided"


class CannotStore(Exception):
    """Our own disk fails us, which is no fault of the submission."""


def sentence(subject: str, reason: str) -> str:
    """What to say of `subject`, for a reason that may need one (`is damaged`) or has its own (`'x' is a link`)."""
    return f"{subject} {reason}" if _VERB.match(reason) else f"{subject}: {reason}"


def clause(reason: str) -> str:
    """The reason as text after a colon."""
    return f"it {reason}" if _VERB.match(reason) else reason


class Names:
    """The paths of one tree, checked as they come."""

    def __init__(self, files: int, left_behind: Collection[str] | None = None) -> None:
        """At most so many `files`; `left_behind` are names that no lab needs, by default those of `copying`."""
        if left_behind is None:
            from gradebox.sandbox.copying import LEFT_BEHIND  # imports NumPy, which who unpacks does without

            left_behind = LEFT_BEHIND
        self._left_behind = frozenset(left_behind)
        self.has_history = False
        """Whether a repository's own folder was left behind."""
        self._limit = files
        self._files = 0
        self._folders = 0
        self._entries = 0
        self._seen: dict[str, tuple[str, bool]] = {}
        """By the name that a machine would see which ignores case: the path as written, and whether it is a file."""

    def folder(self, path: str) -> tuple[str, ...]:
        """The parts of a folder's path; none where the folder is left behind.

        Raises:
            Refused: the path leads elsewhere, cannot be shown, or is another one's on some machines.
        """
        parts = self._accepted(path)
        self._enter(parts)
        return parts

    def file(self, path: str) -> tuple[str, ...]:
        """The parts of a file's path; none where the file is left behind. Raises as `folder` does.

        Raises:
            Refused: also for a second file of that name, and for one file too many.
        """
        parts = self._accepted(path)
        if not parts:
            return ()
        self._files += 1
        if self._files > self._limit:
            raise Refused(f"holds more than {self._limit} files; hand in the labs only, without data and environments")
        self._enter(parts[:-1])
        whole = "/".join(parts)
        if _folded(whole) in self._seen:
            raise Refused(f"holds {_shown(whole)} twice, or next to a name that differs in case only; keep one of them")
        self._seen[_folded(whole)] = whole, True
        return parts

    def _accepted(self, path: str) -> tuple[str, ...]:
        self._entries += 1
        if self._entries > _ENTRIES_PER_FILE * self._limit:
            raise Refused(f"holds more than {_ENTRIES_PER_FILE * self._limit} entries; hand in the labs only")
        parts = _parts(path)
        left_behind = any(part in self._left_behind or part == "__MACOSX" or part.startswith("._") for part in parts)
        self.has_history |= ".git" in parts[:-1]
        return () if left_behind else parts

    def _enter(self, parts: tuple[str, ...]) -> None:
        for depth in range(1, len(parts) + 1):
            path = "/".join(parts[:depth])
            if (folded := _folded(path)) not in self._seen:
                self._folders += 1
                if self._folders > _FOLDERS_PER_FILE * self._limit + _MAX_DEPTH:
                    raise Refused(f"holds more than {_FOLDERS_PER_FILE * self._limit} folders; hand in the labs only")
            known, is_file = self._seen.setdefault(folded, (path, False))
            if is_file:
                raise Refused(f"holds {_shown(path)} as a file and as a folder; keep one of them")
            if known != path:
                raise Refused(
                    f"holds both {_shown(known)} and {_shown(path)}, one name on some machines; keep one of them"
                )


def _parts(path: str) -> tuple[str, ...]:
    if any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in path):
        raise Refused(f"holds a name with control characters or none of UTF-8, {_shown(path)}; rename it")
    # Characters for private use show as boxes, no worse: some file systems write ":" and "?" so.
    if not is_printable("".join(character for character in path if unicodedata.category(character) != "Co")):
        raise Refused(f"holds a name with invisible characters, {_shown(path)}; rename it")
    path = path.replace("\\", "/")  # some programs of Windows write it so
    if path.startswith("/") or _DRIVE.match(path):
        raise Refused(f"holds the absolute path {_shown(path)}; pack the folder by its name")
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if ".." in parts:
        raise Refused(
            f"holds {_shown(path)}, which leads out of the archive; pack the lab folders without .. or / in front"
        )
    too_long = len(path.encode()) > _MAX_PATH_BYTES or any(len(part.encode()) > _MAX_NAME_BYTES for part in parts)
    if too_long or len(parts) > _MAX_DEPTH:
        raise Refused(f"holds a path that is too long or too deep, {_shown(path)}; shorten it")
    return parts


def _folded(path: str) -> str:
    return unicodedata.normalize("NFC", path).casefold()


def _shown(path: str) -> str:
    text = path if len(path) <= 80 else path[:77] + "..."
    return repr(text) if text.isprintable() else ascii(text)


class Budget:
    """How many bytes may still be written."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._left = limit

    def take(self, count: int) -> None:
        """Raises `Refused` when there are not so many left."""
        self._left -= count
        if self._left < 0:
            raise Refused(
                f"is larger than {self._limit / 2**20:g} MiB, all its files together; hand in the labs only, without "
                "data sets and checkpoints"
            )


def write(
    target: Path, parts: tuple[str, ...], source: IO[bytes], budget: Budget, modified: float | None = None
) -> None:
    """Write a new file below `target`, counting; `modified` is when it was changed last, in seconds since the epoch.

    Raises:
        Refused: the budget is spent, or this machine can have no file of that name.
        CannotStore: it cannot be written.
    """
    path = target.joinpath(*parts)
    with _storing():
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        while chunk := source.read(_CHUNK):
            budget.take(len(chunk))
            with _storing():
                file.write(chunk)
        if modified is not None:
            with contextlib.suppress(OSError, OverflowError, ValueError):  # a claim that no file system can hold
                os.utime(file.fileno(), (modified, modified))


@contextlib.contextmanager
def _storing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _UNFIT_NAMES:
            raise Refused(f"holds a name that cannot be stored on the grading machine ({error.strerror})") from None
        raise CannotStore(f"submissions cannot be unpacked here: {error.strerror}") from None
