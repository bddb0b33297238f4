"""Archives that strangers packed: what is unpacked, and what is refused with which words."""

from __future__ import annotations

import io
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from gradebook.intake import archives
from gradebook.intake.accepted_files import Refused
from gradebox.common.texts import is_printable

FILES, BYTES = 20, 2**20

Files = dict[str, bytes]
GOOD: Files = {"lab1_gpu_basics/benchmark.py": b"print(1)\n", "lab1_gpu_basics/results/a.json": b"{}"}


def zipped(path: Path, files: Files) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(name)  # takes any name as it is
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    return path


def tarred(path: Path, files: Files, mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def special(path: Path, kind: bytes, target: str = "") -> Path:
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo("lab1_gpu_basics/x")
        member.type, member.linkname = kind, target
        archive.addfile(member)
    return path


def zipped_with_mode(path: Path, mode: int) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        info = zipfile.ZipInfo("lab1_gpu_basics/x")
        info.external_attr = mode << 16
        archive.writestr(info, "/etc/passwd")
    return path


def tarred_with_mode(path: Path, mode: int) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, kind in (("lab1_gpu_basics", tarfile.DIRTYPE), ("lab1_gpu_basics/x", tarfile.REGTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.mode = kind, mode
            archive.addfile(member)
    return path


def unpack(archive: Path, target: Path) -> Files:
    target.mkdir()
    archives.unpack(archive, target, files=FILES, limit_bytes=BYTES)
    return {path.relative_to(target).as_posix(): path.read_bytes() for path in target.rglob("*") if path.is_file()}


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_tar_files_are_unpacked_however_they_are_compressed(tmp_path: Path, mode: str) -> None:
    assert unpack(tarred(tmp_path / "a.tar", GOOD, mode), tmp_path / "out") == GOOD


def test_zip_files_are_unpacked_whatever_they_are_called(tmp_path: Path) -> None:
    assert unpack(zipped(tmp_path / "labs.tar.gz", GOOD), tmp_path / "out") == GOOD


def test_backslashes_of_windows_part_folders(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip", {"labs\\lab1_gpu_basics\\benchmark.py": b"1"})
    assert list(unpack(archive, tmp_path / "out")) == ["labs/lab1_gpu_basics/benchmark.py"]


def test_what_no_lab_needs_is_left_behind_and_may_be_large(tmp_path: Path) -> None:
    waste = {".git/objects/pack": b"x" * 2 * BYTES, "__MACOSX/._a": b"x", "lab1_gpu_basics/__pycache__/a.pyc": b"x"}
    assert unpack(tarred(tmp_path / "a.tgz", {**waste, **GOOD}), tmp_path / "out") == GOOD


NAMES: dict[str, str] = {
    "/etc/passwd": "absolute path",
    "C:\\labs\\a.py": "absolute path",
    "../ada/lab1_gpu_basics/a.py": "leads out of the archive",
    "labs/../../a.py": "leads out of the archive",
    "labs\\..\\..\\a.py": "leads out of the archive",
    ".git/../../a.py": "leads out of the archive",
    "labs/a\nb.py": "control characters",
    "labs/a\x1b[31m.py": "control characters",
    "labs/a\x85b.py": "control characters",
    "labs/a\u202eb.py": "invisible characters",
    "labs/a\u2066b.py": "invisible characters",
    "labs/a\u200bb.py": "invisible characters",
    "labs/a\u200db.py": "invisible characters",
    "labs/\ufeffa.py": "invisible characters",
    "labs/" + "a" * 300: "too long or too deep",
    "labs/" + "中" * 86: "too long or too deep",
    "/".join(["中" * 80] * 5): "too long or too deep",
    "/".join(["a" * 250] * 16): "too long or too deep",
    "a/" * 40 + "a.py": "too long or too deep",
}


@pytest.mark.parametrize("pack", [zipped, tarred])
@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:30])
def test_a_path_that_cannot_be_trusted_is_refused(tmp_path: Path, pack: Callable[..., Path], name: str) -> None:
    with pytest.raises(Refused, match=NAMES[name]) as refusal:
        unpack(pack(tmp_path / "a.archive", {name: b"x", **GOOD}), tmp_path / "out")
    assert is_printable(str(refusal.value))
    assert len(str(refusal.value)) < 600
    assert not (tmp_path / "a.py").exists()


@pytest.mark.parametrize("name", ["labs/é 中文.txt", "labs/👩🏽‍💻.txt", "labs/می‌خواهم.txt", "labs/a\uf022b.txt"])
@pytest.mark.parametrize("pack", [zipped, tarred])
def test_names_of_all_scripts_are_welcome(tmp_path: Path, pack: Callable[..., Path], name: str) -> None:
    assert unpack(pack(tmp_path / "a.archive", {name: b"x"}), tmp_path / "out") == {name: b"x"}


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ("Müller/ß.py".encode(), "Müller/ß.py"),
        ("Müller.py".encode("cp437"), "Müller.py"),
        ("日本.py".encode(), "日本.py"),
    ],
    ids=["UTF-8", "code page 437", "Japanese"],
)
def test_names_in_zip_files_that_do_not_say_how_they_are_coded(tmp_path: Path, raw: bytes, name: str) -> None:
    stands_in = "x" * len(raw)
    content = zipped(tmp_path / "ascii.zip", {stands_in: b"1"}).read_bytes()
    (tmp_path / "labs.zip").write_bytes(content.replace(stands_in.encode(), raw))
    assert unpack(tmp_path / "labs.zip", tmp_path / "out") == {name: b"1"}


def test_a_name_that_ends_at_a_nul_for_some_programs_is_refused(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip", {"labs/a.py?.txt": b"x"})
    archive.write_bytes(archive.read_bytes().replace(b"a.py?.txt", b"a.py\0.txt"))
    with pytest.raises(Refused, match="control characters"):
        unpack(archive, tmp_path / "out")


@pytest.mark.parametrize("pack", [zipped_with_mode, tarred_with_mode])
def test_rights_of_an_archive_do_not_survive(tmp_path: Path, pack: Callable[..., Path]) -> None:
    unpack(pack(tmp_path / "a.archive", 0o107777), tmp_path / "out")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out").rglob("*")}
    assert modes == {0o755, 0o644}


@pytest.mark.parametrize("pack", [zipped, tarred])
@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("labs/A.py", "labs/a.py"), "differs in case only"),
        (("Labs/a.py", "labs/b.py"), "one name on some machines"),
        (("labs/caf\u00e9.py", "labs/cafe\u0301.py"), "differs in case only"),
        (("labs", "labs/a.py"), "as a file and as a folder"),
    ],
)
def test_names_that_collide_are_refused(
    tmp_path: Path, pack: Callable[..., Path], names: tuple[str, ...], message: str
) -> None:
    with pytest.raises(Refused, match=message):
        unpack(pack(tmp_path / "a.archive", dict.fromkeys(names, b"x")), tmp_path / "out")


def test_one_name_twice_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for _ in range(2):
            archive.addfile(tarfile.TarInfo("labs/a.py"))
    with pytest.raises(Refused, match="twice"):
        unpack(tmp_path / "a.tar", tmp_path / "out")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (tarfile.SYMTYPE, "is a link; put the file itself there"),
        (tarfile.LNKTYPE, "is a link"),
        (tarfile.FIFOTYPE, "neither a file nor a folder"),
        (tarfile.CHRTYPE, "neither a file nor a folder"),
        (tarfile.BLKTYPE, "neither a file nor a folder"),
    ],
)
def test_links_and_devices_in_tar_files_are_refused(tmp_path: Path, kind: bytes, message: str) -> None:
    with pytest.raises(Refused, match=message):
        unpack(special(tmp_path / "a.tar", kind, "/etc/passwd"), tmp_path / "out")


@pytest.mark.parametrize(("mode", "message"), [(0o120777, "is a link"), (0o010644, "neither a file nor a folder")])
def test_links_and_pipes_in_zip_files_are_refused(tmp_path: Path, mode: int, message: str) -> None:
    with pytest.raises(Refused, match=message):
        unpack(zipped_with_mode(tmp_path / "a.zip", mode), tmp_path / "out")


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_too_many_files_are_refused(tmp_path: Path, pack: Callable[..., Path]) -> None:
    files = {f"labs/{number}.py": b"" for number in range(FILES + 1)}
    with pytest.raises(Refused, match="holds more than 20 files"):
        unpack(pack(tmp_path / "a.archive", files), tmp_path / "out")


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_a_bomb_is_refused_before_it_fills_the_disk(tmp_path: Path, pack: Callable[..., Path]) -> None:
    archive = pack(tmp_path / "a.archive", {"labs/bomb": bytes(40 * BYTES)})
    assert archive.stat().st_size < BYTES
    with pytest.raises(Refused, match=r"is larger than \d+ MiB"):
        unpack(archive, tmp_path / "out")
    assert sum(path.stat().st_size for path in (tmp_path / "out").rglob("*") if path.is_file()) <= BYTES


def test_sizes_are_counted_and_not_believed(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip", {"labs/bomb": bytes(4 * BYTES)})
    data = bytearray(archive.read_bytes())
    lie = struct.pack("<I", 10)
    data[22:26] = lie  # the uncompressed size in the file's own header, and in the table of contents
    start = data.rindex(b"PK\x01\x02")
    data[start + 24 : start + 28] = lie
    archive.write_bytes(data)
    with pytest.raises(Refused):
        unpack(archive, tmp_path / "out")
    assert sum(path.stat().st_size for path in (tmp_path / "out").rglob("*") if path.is_file()) <= BYTES


def test_a_bomb_in_what_is_left_behind_is_refused_too(tmp_path: Path) -> None:
    archive = tarred(tmp_path / "a.tgz", {".git/bomb": bytes(10 * BYTES), **GOOD})
    with pytest.raises(Refused, match="is larger than 4 MiB"):
        unpack(archive, tmp_path / "out")


def test_archives_inside_of_archives_stay_packed(tmp_path: Path) -> None:
    inner = zipped(tmp_path / "inner.zip", {"labs/bomb": bytes(40 * BYTES)}).read_bytes()
    files = unpack(zipped(tmp_path / "a.zip", {**GOOD, "labs/inner.zip": inner}), tmp_path / "out")
    assert files == {**GOOD, "labs/inner.zip": inner}


def test_an_encrypted_file_is_refused(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip", GOOD)
    data = bytearray(archive.read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    archive.write_bytes(data)
    with pytest.raises(Refused, match="is encrypted; pack it without a password"):
        unpack(archive, tmp_path / "out")


@pytest.mark.parametrize(
    ("start", "kind"),
    [(b"Rar!\x1a\x07\x00", "RAR"), (b"7z\xbc\xaf\x27\x1c\x00", "7z"), (b"\x28\xb5\x2f\xfd", "Zstandard")],
)
def test_another_archive_under_a_zips_name_is_called_by_its_own(tmp_path: Path, start: bytes, kind: str) -> None:
    (tmp_path / "labs.zip").write_bytes(start + bytes(1000))
    with pytest.raises(
        Refused, match=f"^is a {kind} archive, whatever its name says, which the grader does not unpack"
    ):
        unpack(tmp_path / "labs.zip", tmp_path / "out")


@pytest.mark.parametrize(
    "content",
    [b"", b"PK\x03\x04 and no more", b"\x1f\x8b\x08", b"<html>not found</html>"],
    ids=["nothing", "a broken zip", "a broken tar", "a page"],
)
def test_what_is_no_archive_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    archive = tmp_path / "labs.zip"
    archive.write_bytes(content)
    with pytest.raises(Refused, match=r"no archive|neither a zip nor a tar") as refusal:
        unpack(archive, tmp_path / "out")
    assert "\n" not in str(refusal.value)


def test_an_archive_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    archive = tarred(tmp_path / "a.tar.gz", {**GOOD, "labs/data": bytes(range(256)) * 400})
    archive.write_bytes(archive.read_bytes()[:-200])
    with pytest.raises(Refused, match="is damaged"):
        unpack(archive, tmp_path / "out")


def test_what_was_saved_instead_of_an_archive_is_named(tmp_path: Path) -> None:
    archive = tmp_path / "labs.zip"
    for content, kind in ((b"<!DOCTYPE html><title>Log in</title>", "a page of the web"), (b"%PDF-1.7", "a PDF doc")):
        archive.write_bytes(content)
        with pytest.raises(Refused, match=f"is {kind}.*, and no archive; download it again"):
            unpack(archive, tmp_path / kind)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_zip_files_may_be_compressed_in_any_way_that_python_reads(tmp_path: Path, method: int) -> None:
    with zipfile.ZipFile(tmp_path / "labs.zip", "w", method) as archive:
        for name, content in GOOD.items():
            archive.writestr(name, content)
    unpack(tmp_path / "labs.zip", tmp_path / "out")
    assert (tmp_path / "out" / "lab1_gpu_basics" / "benchmark.py").read_bytes() == b"print(1)\n"


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_nor_may_these_hold_more_than_others(tmp_path: Path, method: int) -> None:
    with zipfile.ZipFile(tmp_path / "labs.zip", "w", method) as archive:
        archive.writestr("lab1_gpu_basics/a.py", bytes(2 * 10**8))
    with pytest.raises(Refused) as refusal:
        unpack(tmp_path / "labs.zip", tmp_path / "out")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("number", "named"), [(9, "Deflate64"), (93, "Zstandard"), (77, "the method 77")])
def test_other_methods_of_compression_are_named(tmp_path: Path, number: int, named: str) -> None:
    archive = zipped(tmp_path / "labs.zip", {"lab1_gpu_basics/a.py": b"1"})
    data = bytearray(archive.read_bytes())
    for start, at in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        struct.pack_into("<H", data, data.index(start) + at, number)
    archive.write_bytes(data)
    with pytest.raises(Refused, match=f"^is compressed with {named}, which is not read here: pack"):
        unpack(archive, tmp_path / "out")


def test_a_zip_file_behind_a_program_or_in_parts_is_called_so(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "labs.zip", GOOD)
    whole = archive.read_bytes()
    archive.write_bytes(b"MZ a program that unpacks it" + whole)
    with pytest.raises(Refused, match=r"^has something in front of the zip file"):
        unpack(archive, tmp_path / "behind")
    last = bytearray(whole)
    struct.pack_into("<H", last, whole.rindex(b"PK\x05\x06") + 4, 2)
    for content in (last, last[len(last) // 2 :]):
        archive.write_bytes(content)
        with pytest.raises(Refused, match=r"^is the last of 3 parts of one archive \(the others end in \.z01 and so"):
            unpack(archive, tmp_path / f"parts of {len(content)} bytes")
