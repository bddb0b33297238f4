"""CSV files that platforms and spreadsheets saved: which encoding and separator, and each row with its line.

Not for which columns a file needs, nor for writing (`text_files.py`).
"""

from __future__ import annotations

import codecs
import csv
import io
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from itertools import zip_longest
from pathlib import Path

from gradebook.text_files import of_windows
from gradebox.common import documents, reading

_BY_MARK = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    # Before those of UTF-16, with which one of them begins.
    *((mark, "utf-32") for mark in (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)),
    *((mark, "utf-16") for mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)),
)
_SEPARATOR = re.compile(r'"?sep=[^\r\n]"?[;,\t|]*(\r\n|\r|\n)', re.IGNORECASE)
"""A first line by which Excel is told how cells are set apart, and which it does not show."""
_SEPARATORS = ",;\t|"
_NOTATIONS = (
    (re.compile(rb"(\s|#[^\r\n]*[\r\n])*\[\[?[\w-]+\]\]?\s*[\r\n]"), "TOML"),
    (re.compile(rb"\s*[\[{]\s*([\"\[{\]}]|-?\d)"), "JSON"),
)
"""How files begin that are texts and no tables."""
_END = "\x1eend of the table\x1e"
"""A row that is put behind the last one: it is a row of its own unless a quote was never closed."""
_KEPT = re.compile(r"""="([^"]*)"|'([^\s']+)""")
"""How people keep spreadsheets from making numbers and formulas of a word: `="00123"`, `'00123`."""
_PARTED = re.compile("[,\u2009\u202f\xa0 ]")
_THOUSANDS = re.compile("\\d{1,3}([,\u2009\u202f\xa0 ]\\d{3})+(\\.\\d+)?")
"""How platforms part thousands, by the language of who exports."""
_IN_ONE_CELL = re.compile(r"\w[,;\t]\w|\w {2,}\w")
_ADDRESS = re.compile(r"\bhttps?:/")
_WORD = re.compile(r"[\w.@+-]+")
_ENCODINGS = (
    *("WINDOWS-1252", "WINDOWS-1250", "WINDOWS-1251", "WINDOWS-1253", "WINDOWS-1254", "ISO-8859-2"),
    *("GB18030", "BIG5", "SHIFT_JIS", "EUC-KR", "MACINTOSH", "CP437", "CP850", "CP852"),
)
"""In which spreadsheets save a table that is not in UTF-8, as `iconv` and Python call them."""
_SHOWN = 40
_IN_NAMES = " '\u2018\u2019\u2013\u00b7\u30fb"


class TableError(ValueError):
    """The file is no table that can be read for certain; the message is one line that says what to do."""


@dataclass(frozen=True)
class Row:
    """One row below the titles."""

    line: int
    """Its number in the file."""
    cells: Mapping[str, str]
    """By title, without space around."""

    def cell(self, title: str) -> str:
        """What is in a column; empty if there is no such column."""
        return self.cells.get(title) or ""


@dataclass(frozen=True)
class Table:
    """A file, read."""

    titles: tuple[str, ...]
    rows: tuple[Row, ...]
    """Without empty ones; there is at least one."""


def read(path: Path, texts: Collection[str] = ()) -> Table:
    """Read a table whose first line has the titles of its columns.

    It is UTF-8, UTF-16 (Excel's "Unicode Text") or UTF-32, and may begin with the line `sep=;` that is for Excel alone.
    Older encodings cannot be told from one another, and a name read in the wrong one is another name.

    Args:
        path: the file.
        texts: titles, small, of columns in which people write what they like, in several lines.

    Raises:
        TableError: it cannot be opened, is no CSV file in such an encoding, or has no row; or a quote that is not
            closed would make one row of several.
    """
    text, first = _text(path)
    head = text.partition("\n")[0]
    separator = max(_SEPARATORS, key=head.count)
    ended = text if text.endswith(("\n", "\r")) else f"{text}\n"
    # People write a space behind a separator, also in front of quotes.
    source = io.StringIO(f"{ended}{_END}\n", newline="")
    lines = csv.reader(source, delimiter=separator, skipinitialspace=True)
    line = first
    try:
        titles = tuple(title.strip() for title in next(lines, []))
        if len(titles) == 1 and _IN_ONE_CELL.search(titles[0]):
            raise TableError(
                f"{path}, line {first}: all titles are in one cell, {titles[0][:_SHOWN]!r}: set cells apart by commas, "
                "and put no quotes around a whole line"
            )
        rows = []
        line = first + lines.line_num
        for cells in lines:
            if cells == [_END]:
                break
            if reading.CONFLICT.fullmatch(separator.join(cells)):
                raise TableError(f"{path}, line {line}: {reading.CONFLICT_REMEDY}")
            _check_quotes(titles, cells, separator, texts, f"{path}, line {line}")
            if any(cell.strip() for cell in cells) and not _is_heading(titles, cells, f"{path}, line {line}"):
                rows.append(Row(line, _by_title(titles, [_plain(cell) for cell in cells], f"{path}, line {line}")))
            line = first + lines.line_num
    except csv.Error as error:
        longest = f"{csv.field_size_limit():,} characters"
        raise TableError(
            f"{path}, line {line}: this is no row of a CSV file: {error}. If a cell has more than "
            f"{longest}, a quote before it is not closed, or the file is damaged: correct it, or save the table again"
        ) from None
    if not rows:
        shown = ", ".join(filter(None, titles))[:_SHOWN]
        raise TableError(f"{path} has no row below its titles, {shown!r}" if shown else f"{path} is empty")
    return Table(titles, tuple(rows))


def _plain(cell: str) -> str:
    """A cell without space around, and without the signs by which spreadsheets keep a word as it is."""
    match = _KEPT.fullmatch(cell.strip())
    return (match[1] or match[2] or "").strip() if match else cell.strip()


def _check_quotes(
    titles: Sequence[str], cells: Sequence[str], separator: str, texts: Collection[str], where: str
) -> None:
    """Raise TableError if a cell holds other rows, because a quote in it is closed in one of them, or never."""
    for title, cell in zip_longest(titles, cells, fillvalue=""):
        first, *more = cell.splitlines() or [""]
        swallowed = [line for line in more if _is_row(line.split(separator), len(titles))]
        if cell.strip().endswith(_END) or (swallowed and title.casefold() not in texts):
            raise TableError(
                f"{where}: a quote before {first[:40]!r} is not closed in this line, so that what is below it would "
                "belong to this cell: take the quote away, or write two of them"
            )


def _is_row(cells: Sequence[str], count: int) -> bool:
    """Whether a line of a cell is rather a row of the table: people write a space behind a comma."""
    words = _WORD.fullmatch(cells[0]) is not None and not any(cell.startswith(" ") for cell in cells)
    return count > 1 and len(cells) == count and words


def _is_heading(titles: Sequence[str], cells: Sequence[str], where: str) -> bool:
    """Whether a row has the titles once more, as where the lists of two sections were put together.

    Raises:
        TableError: it has some of them, so that another table begins here.
    """
    pairs = [(title, cell.strip()) for title, cell in zip_longest(titles, cells, fillvalue="") if title or cell.strip()]
    other = [(title, cell) for title, cell in pairs if title.casefold() != cell.casefold()]
    if len(other) * 2 >= len(pairs) or not any(cell for _, cell in pairs):
        return False
    if other:
        title, cell = other[0]
        raise TableError(
            f"{where} has titles once more, and {cell!r} instead of {title!r}: another table begins here. Put the "
            "tables together with the same columns in each, or use one of them"
        )
    return True


def _by_title(titles: Sequence[str], cells: Sequence[str], where: str) -> dict[str, str]:
    """A row's cells by title.

    Raises:
        TableError: it cannot be known which cell a title means.
    """
    if any(cells[len(titles) :]) and len(list(filter(None, titles))) < 2:
        raise TableError(
            f"{where} has {len(cells)} cells, but the first line has only {''.join(titles)!r}: it must have the titles "
            "of the columns, so remove what is above them"
        )
    if any(cells[len(titles) :]):
        raise TableError(
            f"{where} has {len(cells)} cells, but there are {len(titles)} titles: put quotes around a cell that holds "
            "a separator"
        )
    row: dict[str, str] = {}
    for title, cell in zip(titles, cells, strict=False):
        if title and cell and row.get(title, cell) != cell and row[title]:
            raise TableError(
                f"{where}: two columns are called {title!r}, one with {row[title]!r} and one with {cell!r}; keep one"
            )
        row[title] = row.get(title) or cell
    return row


def _text(path: Path) -> tuple[str, int]:
    """The file's text without the line for Excel, and the number of its first line in the file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        if _ADDRESS.search(str(path)):
            raise TableError(
                f"{path} is an address, and only files are read: download it as CSV, and name the file"
            ) from None
        raise TableError(f"{path} cannot be read: {error.strerror}{of_windows(path)}") from None
    if kind := documents.kind_of(data):
        raise TableError(
            f'{path} is {kind}, whatever its name says: open it, and save or download it as "CSV UTF-8 '
            '(comma delimited)"'
        )
    if notation := next((name for start, name in _NOTATIONS if start.match(data)), ""):
        raise TableError(f"{path} is {notation}, and no table: write a CSV file, with titles in its first line")
    # Where files were put together, the mark of byte order is in the middle, too; DOS ended files by a Ctrl-Z.
    text = _decoded(data, path).replace("\ufeff", "").rstrip("\x1a")
    separator = _SEPARATOR.match(text)
    return (text[separator.end() :], 2) if separator else (text, 1)


def _decoded(data: bytes, path: Path) -> str:
    encoding = next((name for mark, name in _BY_MARK if data.startswith(mark)), None)
    if encoding is None and b"\0" in data and not documents.is_utf16(data):
        raise TableError(f"{path} is damaged, or no text: it has bytes that no text has; save or download it again")
    if encoding is None and b"\0" in data[:200]:
        encoding = "utf-16-le" if data[1:2] == b"\0" else "utf-16-be"
    try:
        return data.decode(encoding or "utf-8")
    except UnicodeDecodeError as error:
        if encoding is not None:
            raise TableError(f"{path} is damaged: it begins as {encoding} and is none; save it again") from None
        number = len((data[: error.start] + b".").splitlines())
        readings = _readings(data, data.splitlines()[number - 1])
        mixed = any(map(_is_beyond_ascii_and_utf8, data.splitlines()))
        raise TableError(
            f'{path}, line {number}: it is not UTF-8. Save the file as UTF-8 (in Excel: "CSV UTF-8"), or run: iconv -f '
            f"ENCODING -t UTF-8 {shlex.quote(str(path))} > utf8.csv, with the ENCODING in which this line reads right: "
            f"{readings}{'. Where other lines are UTF-8 already, correct this one in an editor instead' * mixed}"
        ) from None


def _is_beyond_ascii_and_utf8(line: bytes) -> bool:
    try:
        return not line.isascii() and bool(line.decode("utf-8"))
    except UnicodeDecodeError:
        return False


def _readings(data: bytes, line: bytes) -> str:
    """How a line reads in each encoding that the whole file may be in; those in which it has signs come last."""
    readings: dict[str, str] = {}
    for encoding in _ENCODINGS:
        try:
            readings.setdefault(data.decode(encoding), encoding)
        except UnicodeDecodeError:
            continue
    shown = [
        f"{encoding} {line.decode(encoding)[:_SHOWN]!r}"
        for _, encoding in sorted(readings.items(), key=lambda reading: _has_signs(reading[0]))
    ]
    return ", ".join(shown or [f"{_ENCODINGS[0]} {line.decode(_ENCODINGS[0], 'replace')[:_SHOWN]!r}"])


def _has_signs(text: str) -> bool:
    """Whether it has signs that no name has, as a text in the wrong encoding mostly does."""
    return any(not sign.isascii() and not sign.isalpha() and sign not in _IN_NAMES for sign in text)


def number_in(cell: str) -> Decimal | None:
    """A platform's number, which has decimals behind a point or a comma, and perhaps parts thousands."""
    text = _PARTED.sub("", cell) if _THOUSANDS.fullmatch(cell) else cell.replace(",", ".")
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None
