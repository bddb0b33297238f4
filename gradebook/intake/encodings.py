"""Files as other systems write them: UTF-16 becomes UTF-8, and a pointer of Git LFS is named for what it is.

Windows' editors and PowerShell write UTF-16, in which Python finds no code and no grader a claim. Line ends of Windows
and marks of byte order need nothing: every reader of a text here accepts them. Not for which files count (`pieces.py`).
"""

from __future__ import annotations

import codecs
import io
import re
import tokenize
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from gradebook.intake import not_counted
from gradebox.sandbox.copying import Entry

_TEXTS = (".py", ".md", ".txt", ".json", ".toml", ".yaml", ".yml", ".csv", ".cfg", ".ini", ".rst", ".sh")
_READ, _READ_BYTES = (".py", ".md", ".json", ".toml"), 2**18
_KINDS = (
    (b"\x89PNG", "a PNG picture"),
    (b"\xff\xd8\xff", "a JPEG picture"),
    (b"GIF8", "a GIF picture"),
    (b"%PDF-", "a PDF document"),
    (b"{\\rtf", "an RTF document"),
    (b"PK\x03\x04", "a zip file or an office document"),
    (b"\xd0\xcf\x11\xe0", "an old office document"),
    (b"\x1f\x8b", "a compressed file"),
    (b"\x7fELF", "a program"),
)
"""By the first bytes."""
_CONFLICT = re.compile(rb"^<{7} [^\n]+\n(?:.*\n)?={7}\r?\n(?:.*\n)?>{7} ", re.MULTILINE | re.DOTALL)
"""Both sides of a conflict between Git's marks."""
_CODING = re.compile(rb"^([ \t\f]*#.*?coding[:=][ \t]*)([-\w.]+)", re.MULTILINE)
"""A line that declares how a file of Python is encoded (PEP 263); only one of the first two counts."""
_MARKS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_POINTER = b"version https://git-lfs.github.com/spec/v1\n"
_POINTER_BYTES = 1024
"""Its specification: smaller than that, and beginning so."""


def as_utf8(entries: Sequence[Entry], work: Path) -> tuple[list[Entry], list[str]]:
    """The same files, those in UTF-16 as UTF-8 copies below the folder `work`; and what to say of it."""
    kept: list[Entry] = []
    changed: list[str] = []
    for number, entry in enumerate(entries):
        text = _utf16(entry)
        if text is None:
            kept.append(entry)
            continue
        copy = work / f"{number}" / PurePosixPath(entry.target).name
        copy.parent.mkdir(parents=True)
        data = text.encode()
        if entry.target.endswith(".py") and _declared(data):
            data = _CODING.sub(rb"\1utf-8", data, count=1)
        copy.write_bytes(data)
        kept.append(replace(entry, top=copy.parent.resolve(), source=copy.resolve(), size_bytes=copy.stat().st_size))
        changed.append(repr(entry.target))
    if not changed:
        return kept, []
    one = len(changed) == 1
    return kept, [
        f"{not_counted.some(changed)} {'is' if one else 'are'} in UTF-16, and {'was' if one else 'were'} converted to "
        "UTF-8 for grading: save code and text as UTF-8"
    ]


def pointers(entries: Sequence[Entry]) -> list[str]:
    """What to say of files that are only Git LFS's word of where the file is; nothing where there are none."""
    names = [repr(entry.target) for entry in entries if entry.size_bytes < _POINTER_BYTES and _is_pointer(entry.source)]
    if not names:
        return []
    what = "is a pointer of Git LFS, not the file" if len(names) == 1 else "are pointers of Git LFS, not the files"
    return [
        f"{not_counted.some(names)} {what}: commit without LFS (git lfs migrate export), or hand in a zip file made "
        "after git lfs pull"
    ]


def not_texts(entries: Sequence[Entry]) -> dict[str, str]:
    """Code and reports that are no text in UTF-8, so that nothing can read them, and what to say of each."""
    kinds: dict[str, list[str]] = {}
    for entry in entries:
        file = PurePosixPath(entry.target)
        is_hidden = file.name.startswith("._")  # what a Mac puts next to each file
        if not is_hidden and file.suffix.lower() in _READ and (kind := _other_kind(entry)):
            kinds.setdefault(kind, []).append(entry.target)
    return {
        path: f"{not_counted.some([repr(path) for path in paths])} {'is' if len(paths) == 1 else 'are'} {kind}"
        for kind, paths in kinds.items()
        for path in paths
    }


def unfinished_merges(entries: Sequence[Entry]) -> list[str]:
    """What to say of files in which Git has left both sides of a merge, so that Python cannot read them."""
    places = []
    for entry in entries:
        if PurePosixPath(entry.target).suffix.lower() in _READ and entry.size_bytes <= _READ_BYTES:
            try:
                data = entry.source.read_bytes()
            except OSError:
                continue  # whoever reads it says why
            if match := _CONFLICT.search(data):
                line = data.count(b"\n", 0, match.start()) + 1
                places.append(f"{entry.target!r}, line {line}")
    if not places:
        return []
    return [f"a merge was not finished ({not_counted.some(places)}): choose between the two sides that Git has marked"]


def _other_kind(entry: Entry) -> str:
    """What a file is that is no text in UTF-8; empty where it is one."""
    try:
        with entry.source.open("rb") as file:
            data = file.read(_READ_BYTES)
    except OSError:
        return ""  # whoever reads it says why
    if kind := next((kind for start, kind in _KINDS if data.startswith(start)), ""):
        return f"no text but {kind}, whatever the name says"
    if not data.strip() and entry.target.endswith(".py") and not entry.target.endswith("__init__.py"):
        return "empty, so perhaps never saved, or damaged by the upload"
    if b"\0" in data:
        return "no text: it holds bytes that no editor writes"
    is_python = entry.target.endswith(".py")
    try:
        encoding = tokenize.detect_encoding(io.BytesIO(data).readline)[0] if is_python else "utf-8"
        "".encode(encoding)  # Python reads no file in a codec for bytes, such as hex
        codecs.getincrementaldecoder(encoding)().decode(data)
    except (SyntaxError, LookupError, UnicodeError):
        if is_python and (declared := _declared(data)):
            return f"not {declared}: save as UTF-8, and remove that line"
        return "not in UTF-8, in which texts are read here: save as UTF-8"
    return ""


def _declared(data: bytes) -> str:
    """The encoding that a file of Python declares, in words; empty where it declares none."""
    lines = data.removeprefix(codecs.BOM_UTF8).splitlines()[:2]
    for number, line in enumerate(lines, 1):
        if match := _CODING.match(line):
            return f"in {match[2].decode('ascii')!r}, the encoding that its line {number} declares"
        if line.strip() and not line.lstrip().startswith(b"#"):
            return ""  # only comments may stand before it
    return ""


def _utf16(entry: Entry) -> str | None:
    """The text of a file in UTF-16; None where it is none."""
    if PurePosixPath(entry.target).suffix.lower() not in _TEXTS:
        return None
    try:
        with entry.source.open("rb") as file:
            start = file.read(64)
        encoding = _MARKS.get(start[:2])
        if encoding is None and len(start) > 3 and not len(start) % 2:  # without a mark: every other byte is zero
            even, odd = start[::2], start[1::2]
            little, big = not any(odd) and all(even), not any(even) and all(odd)
            encoding = "utf-16-le" if little else "utf-16-be" if big else None
        return None if encoding is None else entry.source.read_bytes().decode(encoding)
    except (OSError, UnicodeDecodeError):
        return None  # the reader says why


def _is_pointer(source: Path) -> bool:
    try:
        with source.open("rb") as file:
            return file.read(len(_POINTER)) == _POINTER
    except OSError:
        return False
