"""The code of a submission as graders read it: lines of text, and what each part of a line is.

`pygments` separates keywords from strings; if it is not installed, code is plain. Not for what is said about it.
"""

from __future__ import annotations

from pathlib import Path

from gradebox.common import files
from gradebox.common.texts import printable
from gradebox.sandbox import SubmissionError, copying

SUFFIXES = (".py", ".cu", ".cuh", ".cpp", ".c", ".h", ".sh", ".sbatch", ".toml", ".yaml", ".yml")
NAMES = ("Dockerfile", "Containerfile", "Makefile")
MAX_FILES, MAX_LINES, MAX_BYTES = 60, 3000, 256 * 1024
Part = tuple[str, str]
"""The kind (`keyword`, `string`, `comment`, `number`, `name`, or empty) and the text."""
_KINDS = {"Keyword": "keyword", "String": "string", "Comment": "comment", "Number": "number", "Function": "name",
          "Class": "name", "Decorator": "name", "Doc": "string"}  # fmt: skip


def read(labs: Path) -> dict[str, list[str]]:
    """The lines of each file of code below the labs, by its path; without what `left_out` names."""
    return _read(labs)[0]


def left_out(labs: Path) -> list[str]:
    """Which code of a submission graders do not see, or not whole, and why."""
    return _read(labs)[1]


def _read(labs: Path) -> tuple[dict[str, list[str]], list[str]]:
    try:
        entries = copying.scan(labs)
    except SubmissionError as error:
        return {}, [str(error)]
    texts: dict[str, list[str]] = {}
    hidden: list[str] = []
    for entry in sorted(entries, key=lambda entry: entry.target):
        if entry.source.suffix.lower() not in SUFFIXES and entry.source.name not in NAMES:
            continue
        name = printable(entry.target, lines=False)
        if entry.size_bytes > MAX_BYTES:
            hidden.append(f"{name} (more than {MAX_BYTES // 1024} KiB)")
        elif len(texts) >= MAX_FILES:
            hidden.append(f"{name} (more than {MAX_FILES} files)")
        else:
            try:
                text = files.read_text(entry.source)
            except OSError as error:
                hidden.append(f"{name} ({error.strerror})")
                continue
            text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
            lines = text.split("\n")
            texts[entry.target] = [printable(line, lines=False) for line in lines[:MAX_LINES]]
            if len(lines) > MAX_LINES:
                hidden.append(f"{name}, from line {MAX_LINES + 1} on")
    return texts, hidden


def highlighted(name: str, lines: list[str]) -> list[list[Part]]:
    """The parts of each line; together they are the line."""
    try:
        from pygments import lex
        from pygments.lexers import get_lexer_for_filename
        from pygments.util import ClassNotFound
    except ImportError:
        return [[("", line)] for line in lines]
    try:
        lexer = get_lexer_for_filename(name, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return [[("", line)] for line in lines]
    rows: list[list[Part]] = [[]]
    for token, text in lex("\n".join(lines), lexer):
        kind = next((_KINDS[part] for part in reversed(token) if part in _KINDS), "")
        for number, piece in enumerate(text.split("\n")):
            if number:
                rows.append([])
            if piece:
                rows[-1].append((kind, piece))
    # A lexer that takes something away must not take it from the grader.
    joined = ["".join(text for _, text in row) for row in rows]
    return rows if joined == lines else [[("", line)] for line in lines]
