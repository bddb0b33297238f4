"""The text of a CSV file that a spreadsheet saved, in one of the usual encodings. Not for what its columns mean."""

from __future__ import annotations

import codecs
import re
import shlex
from pathlib import Path

_BY_MARK = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


_SEPARATOR = re.compile(r'"?sep=[^\r\n]"?[;,\t]*(\r\n|\r|\n)', re.IGNORECASE)
"""A first line by which Excel is told how cells are set apart, and which it does not show."""


class EncodingError(ValueError):
    """The text cannot be read for certain; the message is one line that says what to do."""


def read(path: Path) -> str:
    """The file's text: UTF-8, or UTF-16 (Excel's "Unicode Text"). Without the line `sep=;` that is for Excel alone.

    Older encodings cannot be told from one another, and a name read in the wrong one is another name.

    Raises:
        OSError: it cannot be opened.
        EncodingError: it is neither; the message shows a line as Windows-1252, which is Excel's plain "CSV".
    """
    return numbered(path)[0]


def numbered(path: Path) -> tuple[str, int]:
    """The file's text, and the number of its first line in the file: 2 after a line `sep=;`. Raises as `read` does."""
    text = _decoded(path)
    found = _SEPARATOR.match(text)
    return (text[found.end() :], 2) if found else (text, 1)


def _decoded(path: Path) -> str:
    data = path.read_bytes()
    encoding = next((name for mark, name in _BY_MARK if data.startswith(mark)), None)
    if encoding is None and b"\0" in data[:200]:
        encoding = "utf-16-le" if data[1:2] == b"\0" else "utf-16-be"
    try:
        return data.decode(encoding or "utf-8")
    except UnicodeDecodeError as error:
        if encoding is not None:
            raise EncodingError(f"{path} is damaged: it begins as {encoding} and is none; save it again") from None
        number = data.count(b"\n", 0, error.start) + 1
        line = data.splitlines()[number - 1].decode("cp1252", "replace")
        raise EncodingError(
            f"{path}, line {number}: it is not UTF-8. If {line[:80]!r} reads right, save the file as UTF-8 (in Excel: "
            f'"CSV UTF-8"), or run: iconv -f WINDOWS-1252 -t UTF-8 {shlex.quote(str(path))} > utf8.csv'
        ) from None
