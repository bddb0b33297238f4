"""Unpack what strangers packed: zip and tar files into an empty folder, or one line that says why not.

Every archive is unpacked by a process of its own, with limits of time and memory: no archive can stop or slow down a
class by more than itself. What is counted here stops honest mistakes and most bombs with good words; those limits stop
the rest. The process is cheap to start, so this module imports the standard library and little else.

Nothing is believed that can be counted: sizes in headers are ignored, and what is written is counted. Links, devices,
paths that climb out, names that collide or cannot be shown, and encrypted files are refused, never skipped: a student
whose file silently vanished would lose points. Archives inside of archives stay packed.
"""

from __future__ import annotations

import bz2
import contextlib
import errno
import gzip
import io
import json
import lzma
import os
import resource
import signal
import stat
import struct
import subprocess
import sys
import tarfile
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Collection
from datetime import tzinfo
from pathlib import Path
from typing import IO, Any, Self

from gradebook.intake import zip_times
from gradebook.intake.accepted_files import Budget, CannotStore, Names, Refused, write
from gradebox.common.configuration import ROOT

_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); from gradebook.intake import archives; archives.unpacking_process()"
)
_LEAST_SECONDS = 30
_SLOWEST_BYTES_PER_SECOND = 4 * 2**20
"""An unpacking this slow is still waited for: bzip2, the slowest, makes 20 MiB/s and more of one core."""
_WALL_RATIO = 4
"""Other work may have the machine meanwhile."""
_MEMORY_BYTES = 512 * 2**20
"""What xz needs at its highest level, six times over."""
_MEMORY_BYTES_PER_FILE = 8 * 2**10
_ANSWER_BYTES = 2**16


def unpack(archive: Path, target: Path, *, files: int, limit_bytes: int, zone: tzinfo | None = None) -> None:
    """Unpack a zip or tar file, whatever its name says, into the folder `target`, which is empty.

    `zone` is that of the times in a zip file, which say none; None: this machine's.

    Raises:
        Refused: it is no such file, is damaged, is too large, holds what is never unpacked, or takes more time or
            memory than any archive of labs does.
        CannotStore: our own machine fails us.
        OSError: the archive cannot be opened.
    """
    from gradebox.sandbox.copying import LEFT_BEHIND  # imports NumPy, which the process that unpacks does without

    seconds = cpu_seconds(limit_bytes)
    memory_bytes = _MEMORY_BYTES + files * _MEMORY_BYTES_PER_FILE
    clock = zip_times.as_plain(zone)
    what = {"named_so": has_suffix(archive.name), "files": files, "limit_bytes": limit_bytes, "zone": clock}
    order = {"extract": {**what, "left_behind": sorted(LEFT_BEHIND)}, "cpu_seconds": seconds}
    order["memory_bytes"] = memory_bytes
    with archive.open("rb") as file:
        code, answer, said = _run(file, target, order, _WALL_RATIO * seconds)
    match answer:
        case {"unpacked": ""}:
            return
        case {"refused": str(reason)}:
            raise Refused(reason)
        case {"cannot_store": str(reason)}:
            raise CannotStore(reason)
        case {"needs": "memory"}:
            raise Refused(
                f"needs more than {memory_bytes // 2**20} MiB of memory to be unpacked; pack it as an ordinary .zip"
            )
    raise _ended(code, said, seconds)


def cpu_seconds(limit_bytes: int) -> int:
    """How long unpacking so much may take, of one core."""
    return _LEAST_SECONDS + stream_bytes(limit_bytes) // _SLOWEST_BYTES_PER_SECOND


def _ended(code: int | None, said: str, seconds: int) -> Exception:
    """What it means that the process gave no answer: None for a `code` is our own patience."""
    if code is None or -code in (signal.SIGXCPU, signal.SIGXFSZ):
        return Refused(f"takes more than {seconds} s to be unpacked; pack the labs only, as an ordinary .zip")
    if -code in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL):
        return Refused(f"ends the program that unpacks it ({signal.Signals(-code).name}); pack it as an ordinary .zip")
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return CannotStore(
        f"what unpacks submissions ended with {how}{f' ({said})' if said else ''}, which is no fault of a submission: "
        "see that the machine has memory left, and run it again"
    )


def _run(file: IO[bytes], target: Path, order: dict[str, Any], seconds: float) -> tuple[int | None, Any, str]:
    """Exit code (None: it was ended for taking too long), answer (None: it gave none), and its last words."""
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as words:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-X", "utf8", "-c", _START, str(ROOT)],
            cwd=target, stdin=subprocess.PIPE, stdout=answer, stderr=words, pass_fds=(file.fileno(),),
            start_new_session=True,
        )  # fmt: skip
        assert process.stdin is not None
        try:
            # Left open: it ends when we do.
            process.stdin.write(json.dumps({**order, "archive": file.fileno()}).encode() + b"\n")
            process.stdin.flush()
            code: int | None = process.wait(seconds)
        except BrokenPipeError:
            code = process.wait()
        except subprocess.TimeoutExpired:
            code = None
        finally:
            process.kill()
            process.wait()
            with contextlib.suppress(BrokenPipeError):  # what was not read is flushed again
                process.stdin.close()
        return code, _read(answer), _last_line(words)


def _read(answer: IO[bytes]) -> Any:
    answer.seek(0)
    try:
        return json.loads(answer.read(_ANSWER_BYTES))
    except (ValueError, RecursionError):
        return None


def _last_line(words: IO[bytes]) -> str:
    words.seek(-min(_ANSWER_BYTES, words.seek(0, os.SEEK_END)), os.SEEK_END)
    lines = words.read().decode(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else ""


# --- the process that unpacks -----------------------------------------------------------------------------------------

_OPEN_FILES = 32
_GRACE_SECONDS = 5
"""Of processor time between the signal that ends the process and the one that it could not ignore."""


def unpacking_process() -> None:
    """Carry out the order on the first line of standard input; the answer is one line on standard output."""
    order = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _limit_process(order)
    print(json.dumps(_outcome(order)), flush=True)


def _outcome(order: dict[str, Any]) -> dict[str, str]:
    try:
        with open(order["archive"], "rb") as file:
            extract(file, Path(), **order["extract"])
    except Refused as refusal:
        return {"refused": str(refusal)}
    except CannotStore as error:
        return {"cannot_store": str(error)}
    except MemoryError:
        return {"needs": "memory"}
    return {"unpacked": ""}


def _limit_process(order: dict[str, Any]) -> None:
    """What nobody can exceed, whatever an archive makes Python's readers do. A system may refuse a limit: go on."""
    os.umask(0o022)
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_FSIZE, order["extract"]["limit_bytes"]),
        (resource.RLIMIT_AS, order["memory_bytes"]),
    ):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (most, most))
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CPU, (order["cpu_seconds"], order["cpu_seconds"] + _GRACE_SECONDS))


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)


# --- zip and tar files ------------------------------------------------------------------------------------------------

SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")

_COMPRESSED: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}
_NOT_UNPACKED = {b"Rar!": "RAR", b"7z\xbc\xaf": "7z"}
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
_END_READS = 64
"""So often a stream may be read on after its end; only whoever skips what a header claims to follow does so."""


def has_suffix(name: str) -> bool:
    """Whether a file of this name is taken for an archive."""
    return name.lower().endswith(SUFFIXES)


def stem(name: str) -> str:
    """The name without an archive's suffix."""
    for suffix in sorted(SUFFIXES, key=len, reverse=True):
        if name.lower().endswith(suffix):
            return name[: -len(suffix)]
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
) -> None:
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
            return
        if (other := _NOT_UNPACKED.get(magic[:4])) is not None:
            raise Refused(
                f"is a {other} archive, whatever its name says, which the grader does not unpack: pack the labs "
                "as .zip or .tar.gz"
            )
        opener = next((opener for start, opener in _COMPRESSED.items() if magic.startswith(start)), None)
        stream: IO[bytes] = file if opener is None else opener(file)
        _unpack_tar(stream, target, names, budget, stream_bytes(limit_bytes))
    except _DAMAGES as error:
        if isinstance(error, OSError) and error.errno in _OUR_FAULTS:
            raise CannotStore(f"submissions cannot be read here: {error.strerror}") from None
        if isinstance(error, tarfile.ReadError) and not named_so:
            raise Refused("is neither a zip nor a tar file; pack the labs as one of them") from None
        raise Refused(f"is damaged, or no archive at all ({_first_line(error)}); pack it again") from None


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
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise Refused("uses a compression other than that of ordinary zip files; pack it as .zip or .tar.gz")
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
    size = file.seek(0, io.SEEK_END)
    file.seek(max(0, size - 2**16 - 22))
    tail = file.read()
    file.seek(0)
    end = tail.rfind(b"PK\x05\x06")
    if end < 0 or len(tail) < end + 16:
        raise zipfile.BadZipFile("it has no table of contents")
    return int.from_bytes(tail[end + 12 : end + 16], "little")


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
