"""Zip and tar files as strangers make them: every file of one, counted as it is written, or why it is refused.

Nothing is believed that can be counted: sizes in headers are ignored. Links, devices, paths that climb out, names that
collide or cannot be shown, and encrypted files are refused, never skipped. It runs in its own process (`archives.py`),
so it imports the standard library and little else.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Collection
from datetime import tzinfo
from pathlib import Path
from typing import IO, Any, Self

from gradebook.intake import zip_times
from gradebook.intake.accepted_files import Budget, CannotStore, Names, Refused, write
from gradebox.common import documents

SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")

_AGAIN = re.compile(r"(?<=\.tar)-[0-9]+(?=\.(?:gz|bz2|xz)$)", re.IGNORECASE)
"""What Canvas puts into the name of a file that is handed in again, before its last ending: `labs.tar-1.gz`."""
_COMPRESSED: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}
_NOT_UNPACKED = {b"Rar!": "RAR", b"7z\xbc\xaf": "7z", b"\x28\xb5\x2f\xfd": "Zstandard"}
"""How archives begin that are not read here; students rename them to `.zip`."""
_DAMAGES = (
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError),
    *(NotImplementedError, RuntimeError, struct.error, ArithmeticError, AttributeError, LookupError, TypeError),
    *(ValueError, AssertionError),
)
"""What Python's readers raise on archives that are cut off or made up; a recursion without end is a RuntimeError."""
_OUR_FAULTS = frozenset((errno.EIO, errno.ESTALE, errno.ENOMEM))
"""How our own disk says that the archive cannot be read; readers of damaged archives raise OSError, too."""
_IS_UTF_8 = 0x800
"""Of a zip file's flags: the name is UTF-8. Without it Python reads code page 437."""
_STREAM_RATIO = 4
"""A tar file's stream may be this much longer than what it may hold, for what is left behind (a `.git`, caches)."""
_CONTENTS_BYTES_PER_FILE = 1200
"""Of a zip file's table of contents: the longest path that is accepted, and its header."""
_HEADER_BYTES = 2**14
"""Of one header that says more than tar's own block has room for: long names, times, attributes. That of `git archive`
has 52 bytes; macOS packs attributes of some hundred. Some versions of Python take a time that grows with its square."""
_EXTENDED = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
"""Of compression in zip files, that Python reads."""
_OTHER_METHODS = {9: "Deflate64", 20: "Zstandard", 93: "Zstandard", 95: "XZ", 98: "PPMd"}
"""By their numbers in the specification of zip files (APPNOTE 4.4.5)."""
_END_READS = 64
"""So often a stream may be read on after its end; only whoever skips what a header claims to follow does so."""


_PAGE_BYTES = 4096
"""What tells a page of the web or a document."""


def has_suffix(name: str) -> bool:
    """Whether a file of this name is taken for an archive."""
    return _AGAIN.sub("", name).lower().endswith(SUFFIXES)


def stem(name: str) -> str:
    """The name without an archive's suffixes: Windows, which hides one, lets people write `labs.zip.zip`."""
    name = _AGAIN.sub("", name)
    for suffix in sorted(SUFFIXES, key=len, reverse=True):
        if name.lower().endswith(suffix):
            return stem(name[: -len(suffix)])
    return name


def stream_bytes(limit_bytes: int) -> int:
    """The most that is ever read of an archive, uncompressed, from which so much may be unpacked."""
    return _STREAM_RATIO * limit_bytes


def extract(
    file: IO[bytes],
    target: Path,
    *,
    named_so: bool,
    files: int,
    limit_bytes: int,
    left_behind: Collection[str],
    zone: str | float | None = None,
) -> bool:
    """Unpack a zip or tar file into the folder `target`, which is empty.

    Args:
        file: the archive, open at its beginning.
        target: where to.
        named_so: whether its name is that of an archive; else the refusal of another file says what to pack.
        files: the most that it may hold.
        limit_bytes: of all files together.
        left_behind: names of files and folders that are not unpacked.

    Raises:
        Refused: it is no such file, is damaged, is too large, or holds what is never unpacked.
        CannotStore: our own disk fails.
    """
    names, budget = Names(files, left_behind), Budget(limit_bytes)
    try:
        magic = file.read(6)
        file.seek(0)
        if magic[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
            _unpack_zip(file, target, names, budget, files, zip_times.zone(zone))
            return names.has_history
        if (other := _NOT_UNPACKED.get(magic[:4])) is not None:
            raise Refused(
                f"is a {other} archive, whatever its name says, which the grader does not unpack: pack the labs "
                "as .zip or .tar.gz"
            )
        opener = next((opener for start, opener in _COMPRESSED.items() if magic.startswith(start)), None)
        stream: IO[bytes] = file if opener is None else opener(file)
        _unpack_tar(stream, target, names, budget, stream_bytes(limit_bytes))
        return names.has_history
    except _DAMAGES as error:
        if isinstance(error, OSError) and error.errno in _OUR_FAULTS:
            raise CannotStore(f"submissions cannot be read here: {error.strerror}") from None
        if isinstance(error, tarfile.ReadError) and (why := _why_no_zip(file)):
            raise Refused(why) from None
        if isinstance(error, tarfile.ReadError) and not named_so:
            raise Refused("is neither a zip nor a tar file; pack the labs as one of them") from None
        file.seek(0)
        if isinstance(error, tarfile.ReadError) and (kind := documents.kind_of(file.read(_PAGE_BYTES))):
            raise Refused(f"is {kind}, and no archive; download it again, or pack the labs as .zip") from None
        raise Refused(f"is damaged, or no archive at all ({_first_line(error)}); download or pack it again") from None


def _unpack_zip(file: IO[bytes], target: Path, names: Names, budget: Budget, files: int, zone: tzinfo | None) -> None:
    # The table of contents is read whole, so it must not be a bomb itself.
    if _contents_bytes(file) > _CONTENTS_BYTES_PER_FILE * 10 * files:
        raise Refused(f"holds far more than {files} files; hand in the labs only")
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            name = _name(info)
            if name.endswith(("/", "\\")):
                names.folder(name)
                continue
            parts = names.file(name)
            if not parts:
                continue
            if info.flag_bits & 0x2041:
                raise Refused(f"{name!r} is encrypted; pack it without a password")
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind not in (0, stat.S_IFREG):
                raise _special(name, is_link=kind == stat.S_IFLNK)
            if info.compress_type not in _METHODS:
                method = _OTHER_METHODS.get(info.compress_type, f"the method {info.compress_type}")
                raise Refused(
                    f"is compressed with {method}, which is not read here: pack the labs again, as .tar.gz or as a "
                    "smaller .zip with the method Deflate"
                )
            with archive.open(info) as source:
                write(target, parts, source, budget, zip_times.changed(info, zone))


def _name(info: zipfile.ZipInfo) -> str:
    """A member's name: UTF-8 also where nothing says so, as Info-ZIP and scripts write it on Linux."""
    name = info.orig_filename  # `filename` ends at a NUL
    if info.flag_bits & _IS_UTF_8:
        return name
    try:
        return name.encode("cp437").decode("utf-8")
    except UnicodeError:
        return name


def _contents_bytes(file: IO[bytes]) -> int:
    """The size of a zip file's table of contents, as its last record states it."""
    if not (record := _last_record(file)):
        raise zipfile.BadZipFile("it has no table of contents")
    if why := _why_part(record):
        raise Refused(why)
    return int.from_bytes(record[12:16], "little")


def _last_record(file: IO[bytes]) -> bytes:
    """The record at the end of a zip file; empty if there is none."""
    size = file.seek(0, io.SEEK_END)
    file.seek(max(0, size - 2**16 - 22))
    tail = file.read()
    file.seek(0)
    end = tail.rfind(b"PK\x05\x06")
    return tail[end:] if 0 <= end <= len(tail) - 22 else b""


def _why_part(record: bytes) -> str:
    """Why a zip file with this last record cannot be read alone; empty where it can."""
    number = int.from_bytes(record[4:6], "little")
    if number in (0, 0xFFFF):  # the latter is said where the record of a larger file says it
        return ""
    return f"is the last of {number + 1} parts of one archive (the others end in .z01 and so on): pack it as one .zip"


def _why_no_zip(file: IO[bytes]) -> str:
    """Why a file that ends as a zip file does is not read as one; empty where it does not end so."""
    if not (record := _last_record(file)):
        return ""
    return _why_part(record) or (
        "has something in front of the zip file, as archives have that unpack themselves: pack it as an ordinary .zip"
    )


class _Counted(io.RawIOBase):
    """A stream that ends with a refusal once too much has been read from it."""

    def __init__(self, stream: IO[bytes], limit: int) -> None:
        self._stream = stream
        self._budget = Budget(limit)
        self._reads_after_end = 0

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._budget.take(len(data))
        self._reads_after_end += not data
        if self._reads_after_end > _END_READS:
            raise EOFError("it ends before what it says that it holds")
        return data


class _Member(tarfile.TarInfo):
    """A member whose headers are looked at before they are read: their sizes are claims of a stranger."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        member = super().frombuf(buf, encoding, errors)
        if member.type in _EXTENDED and not 0 <= member.size <= _HEADER_BYTES:
            raise Refused(
                f"has more than {_HEADER_BYTES // 2**10} KiB where a name should be; pack it again, as an ordinary .zip"
            )
        return member


def _unpack_tar(stream: IO[bytes], target: Path, names: Names, budget: Budget, stream_bytes: int) -> None:
    with tarfile.open(fileobj=_Counted(stream, stream_bytes), mode="r|", tarinfo=_Member) as archive:
        for member in archive:
            if member.isdir():
                names.folder(member.name)
                continue
            parts = names.file(member.name)
            if not parts:
                continue
            if not member.isreg():
                raise _special(member.name, is_link=member.issym() or member.islnk())
            if member.issparse():
                raise Refused(f"{member.name!r} is packed as a sparse file; pack it again, as an ordinary .zip")
            source = archive.extractfile(member)
            assert source is not None
            with source:
                write(target, parts, source, budget, member.mtime)


def _special(name: str, *, is_link: bool) -> Refused:
    if is_link:
        return Refused(f"{name!r} is a link; put the file itself there, and leave virtual environments out")
    return Refused(f"{name!r} is neither a file nor a folder; leave it out")


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
