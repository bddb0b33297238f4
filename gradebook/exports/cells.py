"""CSV files that a spreadsheet opens without running anything, and file names made of students' keys.

Everything the exports write goes through here. Not for deciding which columns a format has.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from gradebox.common.texts import printable

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""A spreadsheet may take a cell that begins so for a formula; the last four are the wide forms of the first.
https://owasp.org/www-community/attacks/CSV_Injection"""

_NUMBER = re.compile(r"[+-]?\d+([.,]\d+)?%?")
_UNSAFE_IN_NAMES = re.compile(r"[^\w.@+-]", re.ASCII)
_LONGEST_NAME = 100


def neutral(text: str) -> str:
    """`text` as a cell that no spreadsheet computes: `=1+1` becomes `'=1+1`; numbers and a lone `-` stay."""
    text = printable(text)
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


def write(path: Path, content: str | bytes) -> Path:
    """Write a file whole or not at all, make the folders above it, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    draft.write_bytes(content.encode("utf-8", "replace") if isinstance(content, str) else content)
    return draft.replace(path)


def file_names(students: Iterable[str]) -> dict[str, str]:
    """A file name without suffix for every student: safe on every system, and different for each.

    What a name cannot hold becomes `_`; such a name, and one of two that differ in case only, ends in a part of the
    key's hash.
    """
    names: dict[str, str] = {}
    taken: set[str] = set()
    for student in sorted(students):
        name = _UNSAFE_IN_NAMES.sub("_", student)[:_LONGEST_NAME].strip(".-") or "student"
        if name != student or name.lower() in taken:
            name = f"{name}-{hashlib.sha256(student.encode('utf-8', 'replace')).hexdigest()[:8]}"
        taken.add(name.lower())
        names[student] = name
    return names
