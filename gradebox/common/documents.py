"""What a file is that was given instead of a text: a spreadsheet, an archive, a page of the web."""

from __future__ import annotations

import io
import re
import zipfile

_ARCHIVE, _OLD_OFFICE, _PDF = b"PK\x03\x04", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", b"%PDF-"
_PAGE = re.compile(rb"\s*<(!doctype|html|\?xml)\b", re.IGNORECASE)
_KINDS = (("xl/", "an Excel workbook"), ("content.xml", "an OpenDocument table"), ("Index/", "a Numbers document"))
"""By a name in the archive that such a document is."""


def kind_of(data: bytes) -> str:
    """What the content of a file is if it is no text; empty if it may be one."""
    if data.startswith(_ARCHIVE):
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                names = archive.namelist()
        except zipfile.BadZipFile:
            return "a damaged archive"
        return next((kind for start, kind in _KINDS if any(name.startswith(start) for name in names)), "an archive")
    if data.startswith(_OLD_OFFICE):
        return "an old Excel workbook"
    if data.startswith(_PDF):
        return "a PDF document"
    return "a page of the web, perhaps the one that asks you to log in" if _PAGE.match(data) else ""


def is_utf16(data: bytes) -> bool:
    """Whether a file without a mark of byte order may be a text in UTF-16: every other byte of what is ASCII is 0."""
    start = data[:200]
    return max(start[::2].count(0), start[1::2].count(0)) * 4 >= len(start) > 1
