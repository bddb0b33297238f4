"""Archives that were made to stop a class: each costs its student a reason, and nobody else anything."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import struct
import subprocess
import sys
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from gradebook.intake import archives
from gradebook.intake.accepted_files import CannotStore, Refused
from gradebook.intake.collect import Intake, Store
from gradebook.settings import IntakeLimits, Settings

FILES, BYTES = 400, 4 * 2**20
END = bytes(1024)


def block(name: str, content: bytes = b"", kind: bytes = b"0", claimed: int | None = None) -> bytes:
    """One member of a tar file, which may claim another size than it has."""
    member = tarfile.TarInfo(name)
    member.type, member.size = kind, len(content) if claimed is None else claimed
    return member.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512)


def record(name: str, value: str) -> bytes:
    """One line of a PAX header, which begins with its own length."""
    rest = f" {name}={value}\n"
    length = next(count for count in range(len(rest), len(rest) + 20) if len(f"{count}{rest}") == count)
    return f"{length}{rest}".encode()


def xz_with_a_huge_dictionary(content: bytes) -> bytes:
    data = bytearray(lzma.compress(content, preset=0))
    size = 4 * (data[12] + 1)  # of the block's header, which follows the twelve bytes of the stream's
    data[data.index(b"\x21\x01") + 2] = 40  # the filter's only property: 4 GiB less one byte
    data[12 + size - 4 : 12 + size] = struct.pack("<I", zlib.crc32(data[12 : 12 + size - 4]))
    return bytes(data)


def overlapping(content: bytes, count: int) -> bytes:
    """A zip file with many entries that are all one."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("labs/0000", content)
    data = file.getvalue()
    start, end = data.index(b"PK\x01\x02"), data.index(b"PK\x05\x06")
    entry = data[start:end]
    contents = b"".join(entry.replace(b"labs/0000", b"labs/%04d" % number) for number in range(count))
    numbers = struct.pack("<HHHHII", 0, 0, count, count, len(contents), start)
    return data[:start] + contents + b"PK\x05\x06" + numbers + b"\0\0"


LAB = block("lab1_gpu_basics/a.py", b"1")
NINES = b"9" * 10**6
MANY_RECORDS = b"".join(record(f"k{number}", "v") for number in range(25_000))
SPARSE = record("GNU.sparse.major", "1") + record("GNU.sparse.minor", "0") + record("GNU.sparse.name", "labs/a.py")

HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "a header of digits": (lambda: bz2.compress(block("x", NINES, b"x") + LAB + END), "more than 16 KiB where a name"),
    "a long name of 100 MB": (
        lambda: gzip.compress(block("x", bytes(10**8), b"L") + LAB + END, 1),
        "more than 16 KiB where a name",
    ),
    "a global header": (lambda: gzip.compress(block("x", MANY_RECORDS, b"g") + LAB + END), "more than 16 KiB where"),
    "headers of headers": (
        lambda: gzip.compress(block("x", record("a", "b"), b"x") * 3000 + LAB + END),
        "is damaged, or no archive at all",
    ),
    "a size without end": (
        lambda: gzip.compress(block("x", record("size", "9" * 40), b"x") + block(".git/a", b"1") + LAB + END),
        "ends before what it says that it holds",
    ),
    "an old size without end": (
        lambda: gzip.compress(block(".git/a", b"1", claimed=2**80) + LAB + END),
        "ends before what it says that it holds",
    ),
    "a dictionary of 4 GiB": (lambda: xz_with_a_huge_dictionary(LAB + END), "needs more than 515 MiB of memory"),
    "a sparse file": (
        lambda: gzip.compress(
            block("x", SPARSE + record("GNU.sparse.realsize", str(2**50)), b"x")
            + block("labs/a.py", b"1\n0\n0\n")
            + END
        ),
        "is packed as a sparse file",
    ),
    "a sparse map without end": (
        lambda: gzip.compress(block("x", SPARSE, b"x") + block("labs/a.py", b"9" * 4000 + b"\n" + b"0\n" * 10**6)),
        "is damaged, or no archive at all",
    ),
    "entries without end": (
        lambda: gzip.compress(block(".git/a") * 20_001, 1),
        "holds more than 20000 entries",
    ),
    "folders without end": (
        lambda: gzip.compress(b"".join(block(f"a/{number}/", kind=b"5") for number in range(1700))),
        "holds more than 1600 folders",
    ),
    "one file as many": (lambda: overlapping(bytes(2**20), 400), "is damaged, or no archive at all"),
}


def unpack(content: bytes, folder: Path) -> None:
    archive, target = folder / "labs.tar.gz", folder / "out"
    archive.write_bytes(content)
    target.mkdir()
    archives.unpack(archive, target, files=FILES, limit_bytes=BYTES)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused_in_one_line_before_its_time_is_up(tmp_path: Path, name: str) -> None:
    make, message = HOSTILE[name]
    with pytest.raises(Refused, match=message) as refusal:
        unpack(make(), tmp_path)
    assert "\n" not in str(refusal.value)


def test_a_hostile_archive_costs_the_others_nothing(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    with zipfile.ZipFile(source / "ada.zip", "w") as archive:
        archive.writestr("lab1_gpu_basics/a.py", "1")
    for number, (make, _) in enumerate(HOSTILE.values()):
        (source / f"mallory-{number}.tar.gz").write_bytes(make())
    intake = Intake(
        Settings(limits=IntakeLimits(files=FILES, bytes=BYTES)),
        None,
        Store(tmp_path / "store"),
        tmp_path / "room",
        None,
    )
    students = {student.student: student for student in intake.take_all(source, lambda name: None)}
    assert students.pop("ada").status == "taken"
    assert {student.status for student in students.values()} == {"refused"}
    assert len({student.reason for student in students.values()}) > 6


def test_an_archive_that_needs_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "cpu_seconds", lambda limit_bytes: 1)
    with pytest.raises(Refused, match="takes more than 1 s to be unpacked"):
        unpack(gzip.compress(b"") * 10**6, tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="opens a pipe by its descriptor")
def test_an_archive_that_never_comes_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "cpu_seconds", lambda limit_bytes: 1)
    monkeypatch.setattr(archives, "_WALL_RATIO", 0.5)
    source, end = os.pipe()
    try:
        with pytest.raises(Refused, match="takes more than 1 s to be unpacked"):
            archives.unpack(Path(f"/dev/fd/{source}"), tmp_path, files=FILES, limit_bytes=BYTES)
    finally:
        os.close(source)
        os.close(end)


@pytest.mark.parametrize("level", [0, 9])
def test_what_ordinary_programs_pack_is_unpacked(tmp_path: Path, level: int) -> None:
    git = block("pax_global_header", record("comment", "0" * 40), b"g")
    long = block("././@LongLink", b"labs/" + b"a" * 200 + b"\0", b"L") + block("labs/a", b"1")
    attributes = record("LIBARCHIVE.xattr.com.apple.quarantine", "A" * 4000) + record("mtime", "1700000000.123456789")
    content = git + long + block("x", attributes, b"x") + LAB + END
    unpack(lzma.compress(content, preset=level | lzma.PRESET_EXTREME), tmp_path)
    assert sorted(path.name for path in (tmp_path / "out" / "labs").iterdir()) == ["a" * 200]
    assert (tmp_path / "out" / "lab1_gpu_basics" / "a.py").read_bytes() == b"1"


@pytest.mark.skipif(sys.platform != "linux", reason="needs a place where nobody can write")
def test_a_disk_that_fails_is_our_fault(tmp_path: Path) -> None:
    archive = tmp_path / "labs.tar"
    archive.write_bytes(LAB + END)
    with pytest.raises(CannotStore, match="submissions cannot be unpacked here"):
        archives.unpack(archive, Path("/proc"), files=FILES, limit_bytes=BYTES)


@pytest.mark.parametrize(
    ("does", "error", "message"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", CannotStore, "ended with SIGKILL, which is no fault of a submission"),
        ("sys.exit('no memory left')", CannotStore, r"ended with exit code 1 \(no memory left\)"),
        ("print('{\"refused\": 3}')", CannotStore, "ended with exit code 0"),
        ("print('[' * 100000)", CannotStore, "ended with exit code 0"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", Refused, r"ends the program that unpacks it \(SIGSEGV\)"),
    ],
)
def test_how_the_process_ended_says_whose_fault_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str, error: type[Exception], message: str
) -> None:
    monkeypatch.setattr(archives, "_START", f"import os, signal, sys; {does}")
    with pytest.raises(error, match=message):
        unpack(LAB + END, tmp_path)


def test_the_process_imports_nothing_that_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heavy = "[name for name in ('numpy', 'torch', 'rich', 'gradebox.sandbox') if name in sys.modules]"
    monkeypatch.setattr(
        archives, "_START", f"{archives._START.replace('archives.unpacking_process()', f'sys.exit(str({heavy}))')}"
    )
    with pytest.raises(CannotStore, match=r"exit code 1 \(\[\]\)"):
        unpack(LAB + END, tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="finds the process in /proc")
def test_nothing_is_left_behind_by_a_class_that_is_killed(tmp_path: Path) -> None:
    source, end = os.pipe()
    text = (
        "import sys; from pathlib import Path; from gradebook.intake import archives; "
        f"archives.unpack(Path('/dev/fd/{source}'), Path(sys.argv[1]), files=1, limit_bytes=1)"
    )
    parent = subprocess.Popen([sys.executable, "-c", text, str(tmp_path)], pass_fds=(source,))
    try:
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        until(lambda: bool(children.read_text()))
        (child,) = children.read_text().split()
        until(lambda: b"unpacking_process" in Path(f"/proc/{child}/cmdline").read_bytes())
        parent.kill()
        parent.wait()
        until(lambda: not Path(f"/proc/{child}").exists() or "\nState:\tZ" in Path(f"/proc/{child}/status").read_text())
    finally:
        parent.kill()
        parent.wait()
        os.close(source)
        os.close(end)


def until(condition: Callable[[], bool]) -> None:
    """Wait for a moment that has no event to wait for."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
