"""Text files that people, spreadsheets and git read: TOML, CSV, names of files; written whole, by one at a time.

Everything that a class writes goes through here. Not for which columns or keys a format has, nor for reading CSV files
(`csv_tables.py`).
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
import hashlib
import io
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gradebook.spelt_names import in_plain_letters
from gradebox.common import files
from gradebox.common.texts import printable

_LONGEST_SHOWN = 60
_NO_LETTER = re.compile(r"[\W\d_]+")


def quoted(text: str) -> str:
    """A basic string of TOML: JSON's escapes are among TOML's, but for DEL and lone surrogates."""
    return json.dumps(text.encode("utf-8", "replace").decode(), ensure_ascii=False).replace("\x7f", "\\u007f")


def some(names: Sequence[str], most: int = 5) -> str:
    """Names in a sentence, the first of them if they are many."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def with_name(key: str, name: str) -> str:
    """A student's key for people, with the name if the key does not show it: `Participant 1001 (Ada Lovelace)`."""
    words = [word for word in _NO_LETTER.split(in_plain_letters(name)[0]) if word]
    words = [word for word in words if len(word) > 2] or words
    shown = not name or name == key or any(word in in_plain_letters(key)[0] for word in words)
    cut = name if len(name) <= _LONGEST_SHOWN else f"{name[:_LONGEST_SHOWN]}..."
    return key if shown else f"{key} ({printable(cut, lines=False)})"


def paragraphs(text: str) -> str:
    """A string of TOML in which each line of `text` is a line of the file."""
    if "\n" not in text:
        return quoted(text)
    return '"""\n' + "\n".join(quoted(line)[1:-1] for line in text.split("\n")) + '"""'


def replace_file(path: Path, text: str) -> Path:
    """Write a file whole or not at all, and on disk when this returns; folders above it are made.

    A link stays one, and the file to which it leads is written.

    Raises:
        OSError: it cannot be written.
    """
    with files.atomic_write(target(path)) as draft, draft.open("w", encoding="utf-8") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    return path


def target(path: Path) -> Path:
    """The file to write where somebody may have put a link to one that several classes share."""
    return path.resolve() if path.is_symlink() else path


def make_private(folder: Path) -> None:
    """Make a folder of grades and everybody's work: its owner's alone, unless the place and the umask are a group's."""
    folder.mkdir(parents=True)
    of_group = stat.S_IRWXU | stat.S_IRWXG | stat.S_ISGID
    is_shared = folder.stat().st_mode & of_group == of_group
    folder.chmod(of_group if is_shared else stat.S_IRWXU)


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold the file `path`, which is made, until the block ends; whoever else wants it waits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = locked(path, wait=True)
    try:
        yield
    finally:
        os.close(descriptor)


def locked(path: Path, *, wait: bool) -> int:
    """A descriptor that holds the file `path`, which is made, until it is closed or we end, however we end.

    Raises:
        BlockingIOError: somebody else has it, and nobody should wait.
        OSError: it cannot be written, or its disk knows no locks.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise
        why = f"{error.strerror}. Its disk, perhaps one of a network, locks no files: use a folder on another disk"
        raise OSError(error.errno, why, str(path)) from None
    return descriptor


def cause(error: OSError) -> str:
    """Why something cannot be written, as people say it."""
    if isinstance(error, FileExistsError | NotADirectoryError):
        return "a file is where a folder must be: move it away, or name another place"
    if isinstance(error, PermissionError):
        return f"{error.strerror}: its owner lets you only read, so ask for more, or work on a copy"
    return error.strerror or str(error)


def of_windows(path: Path) -> str:
    """What to say of a path of Windows elsewhere, as the end of a sentence; empty if it is none."""
    match = re.match(r"(?P<drive>[A-Za-z]):[\\/](?P<rest>.*)", str(path))
    if match is None or path.exists():
        return ""
    rest = match["rest"].replace("\\", "/")
    return f". That is a path of Windows; in WSL it is called /mnt/{match['drive'].lower()}/{rest}"


# --- CSV files for a spreadsheet, and names of files ------------------------------------------------------------------

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""A spreadsheet may take a cell that begins so for a formula; the last four are the wide forms of the first.
https://owasp.org/www-community/attacks/CSV_Injection"""

_INNER = re.compile(r"([;\t\r\n] *)(?=[=+\-@\uff1d\uff0b\uff0d\uff20])(?! *[+-]?\d+(?:[.,]\d+)?%? *(?:[;\t\r\n]|$))")
"""The same inside a cell, behind what separates cells where decimals have a comma, or records: a spreadsheet with such
settings sees neither our commas nor our quotes."""
_NUMBER = re.compile(r"[+-]?\d+([.,]\d+)?%?")
_UNSAFE_IN_NAMES = re.compile(r"[^\w.@+-]", re.ASCII)
_LONGEST_NAME = 100
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
"""Names that Windows has for devices, with any suffix."""


def neutral(text: str) -> str:
    """`text` as a cell that no spreadsheet computes: `=1+1` becomes `'=1+1`; numbers and a lone `-` stay.

    Nor is any part of it computed by one that separates cells by semicolons or tabs: `Eve;=1+1` becomes `Eve;'=1+1`.
    """
    text = _INNER.sub(r"\1'", printable(text))
    start = text.lstrip(" \n")
    if start.startswith(_FORMULA_STARTS) and text != "-" and not _NUMBER.fullmatch(start):
        return f"'{text}"
    return text


def to_csv(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The text of a CSV file as RFC 4180 has it, each cell neutralised."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    for row in (header, *rows):
        writer.writerow([neutral(cell) for cell in row])
    return text.getvalue()


def for_spreadsheets(table: str) -> str:
    """A CSV file that people open: without this mark Excel reads UTF-8 as the system's old encoding.

    Not for files that a platform imports.
    """
    return f"\ufeff{table}"


def write_file(path: Path, content: str | bytes) -> Path:
    """Write a file whole or not at all, as `replace_file`, but perhaps not on disk yet; return its path."""
    with files.atomic_write(target(path)) as draft:  # which leaves no draft, whatever stops it
        draft.write_bytes(content.encode("utf-8", "replace") if isinstance(content, str) else content)
    return path


def file_names(students: Iterable[str]) -> dict[str, str]:
    """A file name without suffix for every student: safe on every system, and different for each.

    What a name cannot hold becomes `_`; such a name, one that Windows has for a device, and one of two that differ in
    case only, ends in a part of the key's hash.
    """
    names: dict[str, str] = {}
    taken: set[str] = set()
    for student in sorted(students):
        name = _UNSAFE_IN_NAMES.sub("_", student)[:_LONGEST_NAME].strip(".-") or "student"
        if _RESERVED.fullmatch(name):
            name = f"{name.replace('.', '_')}_"  # what stands before the first dot decides
        if name != student or name.lower() in taken:
            name = f"{name}-{hashlib.sha256(student.encode('utf-8', 'replace')).hexdigest()[:8]}"
        taken.add(name.lower())
        names[student] = name
    return names
