"""TOML and JSON that somebody wrote, read into dataclasses: one set of rules and of messages for every file of ours.

The dataclass says what a file may hold: its fields are the keys, their types the values, what has a default may be left
out. A field with `metadata=REST` takes all tables under other names. Unknown keys, missing keys and wrong types are
errors that name the file, the line and what to do; nothing is converted but whole numbers to exact points. (A library
would do, but grading has to run where none can be installed.)
"""

from __future__ import annotations

import codecs
import collections.abc
import dataclasses
import difflib
import enum
import functools
import json
import re
import tomllib
import types
import typing
import unicodedata
from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

from gradebox.common import documents

T = TypeVar("T")

REST = types.MappingProxyType({"rest": True})
"""Metadata of the field, a mapping, that takes the tables whose names no other field has."""

_PLAIN = frozenset((str, int, bool))
"""Types of which a value is taken as it is."""
_NAMES = {str: "a text", int: "a whole number", float: "a number", Decimal: "a number", bool: "true or false",
          datetime: "a date with a time, like 2026-03-01T23:59:00+01:00"}  # fmt: skip


class ReadingError(ValueError):
    """A file is not what it should be; the message is one line that begins with the file's name and line."""


class Document:
    """A parsed file, and where in it each value stands."""

    def __init__(self, path: Path, text: str, data: Mapping[str, Any], *, lenient: bool = False) -> None:
        self.path = path
        self.data = data
        self.lenient = lenient
        self._lines = text.splitlines()

    def error(self, place: tuple[str | int, ...], cause: str) -> ReadingError:
        """An error about the value at `place`, keys from the outside in."""
        line = self._line(place)
        return ReadingError(f"{self.path}:{line}: {cause}" if line else f"{self.path}: {cause}")

    def _line(self, place: tuple[str | int, ...]) -> int:
        """The line of a key, else of the innermost table around it with a header, else 1; 0 where nothing has lines."""
        if self.path.suffix == ".json":
            return 0
        if place and isinstance(place[-1], int) and not isinstance(self._at(place), Mapping):
            place = place[:-1]  # one of a list stands where the list does
        names = [part for part in place if isinstance(part, str)]
        count = next((part for part in place if isinstance(part, int)), 0)
        best, inside, current, entry = 1, 0, [""], 0
        for number, line in enumerate(self._lines, start=1):
            stripped = line.strip()
            if header := re.match(r"\[\[?\s*([^\]]+?)\s*\]", stripped):
                table = [part.strip("\"' ") for part in header[1].split(".")]
                entry = entry + 1 if table == current and stripped.startswith("[[") else 0
                current = table
                if names[: len(table)] == table and entry <= count:
                    best, inside = number, len(table)
                elif names and names == table[: len(names)] and not inside:  # it has no header of its own
                    best, inside = number, len(names)
            elif names and (current == (names[:-1] or [""]) and entry == count) and _states(stripped, names[-1]):
                return number
        return best

    def _at(self, place: tuple[str | int, ...]) -> Any:
        """The value at `place`, or None."""
        data: Any = self.data
        for part in place:
            try:
                data = data[part]
            except (KeyError, IndexError, TypeError):
                return None
        return data


def _states(line: str, key: str) -> bool:
    return re.match(rf"\"?{re.escape(key)}\"?\s*=", line) is not None


def not_utf8(data: bytes) -> tuple[int, str]:
    """The first line of a text that is not UTF-8, by its number, and what to say of it.

    Older encodings cannot be told from one another, so the message shows the line as Windows would have meant it.
    """
    if kind := documents.kind_of(data):
        return 1, _other_document(kind)
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or (b"\0" in data and documents.is_utf16(data)):
        return 1, "it is UTF-16, not UTF-8: save the file as UTF-8"
    try:
        data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start + len(data) - len(error.object)) + 1
        line = data.split(b"\n")[number - 1].decode("cp1252", "replace")
        return number, f"it is not UTF-8. If {line.strip()[:80]!r} reads right, save the file as UTF-8"
    return 1, "it is not UTF-8: save the file as UTF-8"


def _other_document(kind: str) -> str:
    return f"it is {kind}, whatever its name says: this file is a text that you write with an editor"


_CURLY = re.compile("[\u201c\u201d\u201e\u2018\u2019\u00ab\u00bb]")
_QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'")
_ODD_SPACE = re.compile("[\u00a0\u2000-\u200f\u202f\u2060\u3000\ufeff]")
"""Blanks that TOML takes for a part of a name."""
_BARE_KEY = re.compile(r"\s*([^\s\"'=#\[][^\"'=#]*?)\s*=")
_DAY = re.compile(r"[^=#]*=\s*(?:\d{4}-\d+-\d+|\d{1,2}[./]\d{1,2}[./]\d{4})(?!\d)")
_PLAIN_KEY = re.compile(r"[\w.-]+", re.ASCII)
CONFLICT = re.compile(r"(<{7}|>{7}|\|{7}) .*|={7}")
"""A line that Git writes into a file that two people changed."""
CONFLICT_REMEDY = "Git could not merge this file: keep one version of the lines between <<<<<<< and >>>>>>>"
_MISWRITTEN = (
    (CONFLICT, CONFLICT_REMEDY),
    (re.compile(r"[^=#]*=\s*(-?\d+),(\d+)\s*(#.*)?"), r"write decimals with a point: \1.\2"),
    (re.compile(r"[^=#]*percent[^=#]*=\s*(-?\d+(?:[.]\d+)?)\s*%\s*(#.*)?"), r"write the number alone: \1"),
    (re.compile(r"[^=#]*=\s*-?\d+(?:[.,]\d+)?\s*%\s*(#.*)?"), "a share is no number here: write how many it means"),
    (re.compile(r"[\"'\w.-]+\s*:(\s.*)?"), "TOML has = between a key and its value, and text in quotes"),
    (re.compile(r"[{}\]].*"), "this looks like JSON, and TOML has lines such as key = value"),
    (
        re.compile(r"[^=#]*=\s*(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d)\s*([+-]\d\d:\d\d|Z)?\s*(#.*)?"),
        r"write seconds, too: \1T\2:00\3",
    ),
    (
        re.compile(r"[^=#\[]*[,;\t][^=#]*"),
        r"this looks like a table of a spreadsheet, and TOML has lines such as key = value",
    ),
)
"""Lines that are no TOML, and what to write; a remedy may quote the line's own parts."""
_END_OF_DAY = "no time is 24:00 in TOML: write 23:59:59, or 00:00:00 of the next day"


def toml(path: Path, text: str | None = None) -> Document:
    """The TOML file at `path`; numbers with a point are read exactly, as `Decimal`.

    Raises:
        ReadingError: it cannot be read, or is not valid TOML.
    """
    try:
        text = path.read_text(encoding="utf-8-sig") if text is None else text
        return Document(path, text, tomllib.loads(text, parse_float=Decimal))
    except OSError as error:
        raise ReadingError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        number, message = not_utf8(path.read_bytes())
        raise ReadingError(f"{path}:{number}: {message}") from None
    except tomllib.TOMLDecodeError as error:
        if text is not None and (kind := documents.kind_of(text.encode("utf-8", "replace"))):
            raise ReadingError(f"{path}:1: {_other_document(kind)}") from None
        match = re.search(r"line (\d+)", str(error))
        number = int(match[1]) if match else 1
        line = text.splitlines()[number - 1] if text is not None and number <= len(text.splitlines()) else ""
        message = _END_OF_DAY if re.search(r"=.*\d[T ]24:00", line) else f"not valid TOML: {error}{_usual(line)}"
        raise ReadingError(f"{path}:{number}: {message}") from None


def _usual(line: str) -> str:
    """What to do about a line that breaks a rule of TOML as people often do; empty if it is another mistake."""
    for rule, remedy in _MISWRITTEN:
        if match := rule.fullmatch(line.strip()):
            return f"; {match.expand(remedy)}"
    if _CURLY.search(line):
        return '; write straight quotes, as in "text"'
    if match := _ODD_SPACE.search(_QUOTED.sub("", line)):
        name = unicodedata.name(match[0], "an invisible sign").lower()
        return f"; the line has a {name} (U+{ord(match[0]):04X}), as text processors write it: type a space instead"
    if "\\" in line and '"' in line:
        return "; in double quotes a backslash needs another one: write / in paths, or use 'single quotes'"
    if (match := _BARE_KEY.match(line)) and not _PLAIN_KEY.fullmatch(match[1]):
        return f'; a name with other signs than letters, digits, - and _ needs quotes: "{match[1]}" = ...'
    if _DAY.match(line):
        return "; there is no such day or time, or it is written in another way: write it like 2026-03-01T23:59:00"
    return ""


def into(kind: type[T], document: Document, *place: str | int) -> T:
    """The table at `place` of a document, the whole of it without one, as a `kind`, which is a dataclass.

    Raises:
        ReadingError: it is not what `kind` says.
    """
    data: Any = document.data
    for part in place:
        data = data[part]
    return _read(kind, data, place, document)  # type: ignore[no-any-return]


def value(kind: type[T], data: Any, path: Path, *, lenient: bool = False) -> T:
    """`data`, parsed JSON of the file `path`, as a `kind`; a `lenient` reader skips what it does not know.

    Raises as `into` does.
    """
    return _read(kind, data, (), Document(path.with_suffix(".json"), "", {}, lenient=lenient))  # type: ignore[no-any-return]


def _read(kind: Any, data: Any, place: tuple[str | int, ...], document: Document) -> Any:
    if type(data) is kind and kind in _PLAIN:  # most of a document
        return data
    origin = typing.get_origin(kind)
    if dataclasses.is_dataclass(kind):
        return _table(kind, data, place, document)
    if origin in (Union, types.UnionType):
        inner = [part for part in typing.get_args(kind) if part is not type(None)]
        if data is None and len(inner) < len(typing.get_args(kind)):
            return None
        return _read(inner[0], data, place, document)
    if origin is Literal:
        if data not in (allowed := typing.get_args(kind)):
            raise document.error(place, f"{_name(place)} = {data!r}: expected {' or '.join(map(repr, allowed))}")
        return data
    if origin is tuple:
        each = typing.get_args(kind)[0]
        if not isinstance(data, list) or (dataclasses.is_dataclass(each) and not all(map(_is_table, data))):
            if dataclasses.is_dataclass(each):
                raise document.error(place, f"write each {place[-1]} as [[{_name(place)}]], with two brackets")
            raise document.error(place, f"{_name(place)} must be a list, not {data!r}")
        return tuple(_read(each, element, (*place, index), document) for index, element in enumerate(data))
    if origin in (dict, collections.abc.Mapping):
        if not isinstance(data, Mapping):
            raise document.error(place, f"{_name(place)} must be a table, not {data!r}")
        each = typing.get_args(kind)[1]
        return {name: _read(each, entry, (*place, name), document) for name, entry in data.items()}
    return _plain(kind, data, place, document)


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


def _plain(kind: Any, data: Any, place: tuple[str | int, ...], document: Document) -> Any:
    if kind is Any:
        return data
    number = isinstance(data, (int, float, Decimal)) and not isinstance(data, bool) and Decimal(str(data)).is_finite()
    if kind in (Decimal, float) and number:
        return kind(str(data))
    if kind is Path and isinstance(data, str):
        return Path(data)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        if data in [member.value for member in kind]:
            return kind(data)
        raise document.error(
            place, f"{_name(place)} = {data!r}: expected one of {', '.join(member.value for member in kind)}"
        )
    if isinstance(data, kind) and kind not in (Decimal, float) and (kind is bool or not isinstance(data, bool)):
        return data
    text = f"{_name(place)} = {_written(data)} is not {_NAMES.get(kind, kind.__name__)}"
    if isinstance(data, dict) and len(data) == 1:  # TOML takes a dot in a name for a table in a table
        dotted = f'"{place[-1]}.{next(iter(data))}"'
        text = f"{_name(place)} holds other keys, and is not {_NAMES.get(kind, kind.__name__)}; a name with a dot "
        text += f"needs quotes: {dotted} = ..."
    if isinstance(data, str) and kind in (Decimal, float, int) and "%" in data and "percent" not in _name(place):
        text += ": a share is no number here, so write how many it means"
    elif remedy := _remedy(kind, data):
        text = f"{text.partition(', like ')[0]}: write {remedy}"
    raise document.error(place, text)


def _remedy(kind: Any, data: Any) -> str:
    """How a value that is nearly right is written."""
    if kind is datetime and isinstance(data, date):
        return f"{data.isoformat()}T23:59:00"
    if not isinstance(data, str):
        return ""
    text = data.strip().removesuffix("%").strip()
    try:
        if kind is datetime:
            moment = datetime.fromisoformat(text).isoformat()
            return f"{moment}, without quotes" if len(text) > len("2026-03-01") else f"{text}T23:59:00, without quotes"
        if kind in (Decimal, float, int):
            text = text.replace(",", ".") if text.count(",") == 1 and "." not in text else text
            return f"{kind(text)}, without quotes" if Decimal(text).is_finite() else ""
    except (ValueError, ArithmeticError):
        pass
    return ""


def _written(data: Any) -> str:
    """A value as a file has it, or nearly so."""
    if isinstance(data, (bool, Decimal)):
        return str(data).lower()
    if isinstance(data, (date, time)):
        return data.isoformat()
    return repr(data)


def _table(kind: Any, data: Any, place: tuple[str | int, ...], document: Document) -> Any:
    if not isinstance(data, Mapping):
        raise document.error(place, f"{_name(place)} must be a table, not {data!r}")
    hints = _hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    rest = next((name for name, field in fields.items() if field.metadata.get("rest")), None)
    values: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for key, entry in data.items():
        if key in fields and key != rest:
            values[key] = _read(hints[key], entry, (*place, key), document)
        elif rest is not None and isinstance(entry, Mapping):
            others[key] = entry
        elif not document.lenient:
            known = [name for name in fields if name != rest]
            near = difflib.get_close_matches(key, known, n=1)
            meant = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            raise document.error((*place, key), f"unknown key {key!r}; {meant}")
    if rest is not None:
        values[rest] = _read(hints[rest], others, place, document)
    for name, field in fields.items():
        optional = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        if name not in values and not optional:
            raise document.error(place, f"{_header(place)} lacks the key {name!r}")
    return kind(**values)


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _name(place: tuple[str | int, ...]) -> str:
    """What an error calls a value; its line says the rest."""
    return next((part for part in reversed(place) if isinstance(part, str)), "the file")


def _header(place: tuple[str | int, ...]) -> str:
    """A table as the file writes it."""
    names = ".".join(part for part in place if isinstance(part, str))
    many = any(isinstance(part, int) for part in place)
    return f"[[{names}]]" if many else f"[{names}]" if names else "the file"


def plain(value: Any) -> Any:
    """A dataclass as values that JSON has; exact points become the shortest number that means them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(element) for element in value]
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (datetime, Path)):
        return str(value) if isinstance(value, Path) else value.isoformat()
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise TypeError(f"no JSON form for {type(value).__name__}")


def dumps(value: Any) -> str:
    """A dataclass as JSON, in a form that is the same wherever and whenever it is made."""
    return json.dumps(plain(value), ensure_ascii=False, sort_keys=True)
