"""Encodings: of files that students hand in, and of rosters and lists."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gradebook.intake import roster_files
from gradebook.intake.handed_in import IntakeError, find
from gradebook.roster import RosterError
from tests.gradebook.intake.downloads import LAB, Downloads

ROSTER = "student;name\nmüller;Zoë Müller\n"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_is_read_as_utf_8_and_named(downloads: Downloads, encoding: str) -> None:
    report, code = "# Über\r\n\r\ntext\r\n" if encoding == "utf-16" else "# U\r\n", "x = 1\n"
    downloads.put(f"ada/{LAB}/REPORT.md", report.encode(encoding))
    downloads.put(f"ada/{LAB}/benchmark.py", code.encode(encoding))
    downloads.put(f"ada/{LAB}/profiler.py", b"\xef\xbb\xbfy = 1\r\n")
    student = downloads.take()["ada"]
    files = downloads.files(student)
    assert files[f"{LAB}/REPORT.md"].decode() == report
    assert files[f"{LAB}/benchmark.py"] == b"x = 1\n"
    assert files[f"{LAB}/profiler.py"] == b"\xef\xbb\xbfy = 1\r\n", "Python reads that as it is"
    expected = f"'{LAB}/REPORT.md', '{LAB}/benchmark.py' are in UTF-16, and were converted to UTF-8 for grading"
    assert expected in student.reason


def test_a_coding_line_of_code_in_utf_16_follows_the_conversion(downloads: Downloads) -> None:
    downloads.put(f"ada/{LAB}/benchmark.py", "# coding: utf-16\nx = 'coding: utf-16'\n".encode("utf-16"))
    code = downloads.files(downloads.take()["ada"])[f"{LAB}/benchmark.py"]
    assert code == b"# coding: utf-8\nx = 'coding: utf-16'\n"


@pytest.mark.parametrize("content", [b"", b"a", b"\xff\xfe\x00", b"a\x00b\x01", bytes(range(64)), b"\xe9"])
def test_what_is_no_utf_16_stays_as_it_is(downloads: Downloads, content: bytes) -> None:
    downloads.put(f"ada/{LAB}/benchmark.py", content)
    downloads.put(f"ada/{LAB}/profiler.py", b"y = 1")
    assert downloads.files(downloads.take()["ada"])[f"{LAB}/benchmark.py"] == content


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("benchmark.py", b"\x89PNG\r\n\x1a\n\x00\xff", "is no text but a PNG picture"),
        ("REPORT.md", b"%PDF-1.7\n\xe2\xe3", "is no text but a PDF document"),
        ("REPORT.md", b"PK\x03\x04\x00", "is no text but a zip file or an office document"),
        ("benchmark.py", "# Größe\n".encode("latin-1"), "is not in UTF-8, in which texts are read here"),
        ("benchmark.py", b"x = 1\0\n", "is no text: it holds bytes that no editor writes"),
        ("benchmark.py", "# -*- coding: latin-1 -*-\n# Größe\n".encode("latin-1"), ""),
        ("benchmark.py", b"\xef\xbb\xbf# Gr\xc3\xb6\xc3\x9fe\n", ""),
        ("benchmark.py", b"# coding: gbk\n# " + "步".encode("gbk"), ""),
        ("benchmark.py", b"\n\n# coding: latin-1\n# \xf6\n", "is not in UTF-8, in which texts are read here"),
        ("benchmark.py", b"x = 1\n# coding: latin-1\n# \xf6\n", "is not in UTF-8, in which texts are read here"),
        *(
            ("benchmark.py", start + code, f"is not in {name!r}, the encoding that its line {line} declares: save as")
            for name, line, start, code in (
                ("utf-16", 1, b"", b"# coding: utf-16\nx = 1\n"),
                ("utf8-mac-roman", 1, b"", b"# -*- coding: utf8-mac-roman -*-\n"),
                ("hex", 2, b"#!/usr/bin/env python\n", b"# vim: set fileencoding=hex :\n"),
                ("undefined", 1, b"", b"# coding: undefined\nx = 1\n"),
                ("latin-1", 1, b"\xef\xbb\xbf", b"# coding: latin-1\n"),
                ("ascii", 1, b"", b"# coding: ascii\n# \xc3\xa4\n"),
            )
        ),
        ("data.csv", "Größe\n".encode("latin-1"), ""),
    ],
)
def test_code_and_reports_that_are_no_texts_are_named(
    downloads: Downloads, name: str, content: bytes, word: str
) -> None:
    downloads.put(f"ada/{LAB}/profiler.py")
    downloads.put(f"ada/{LAB}/{name}", content)
    student = downloads.take()["ada"]
    assert student.status == "taken"
    assert student.reason.startswith(f"'{LAB}/{name}' {word}") if word else not student.reason


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_rosters_are_read_as_spreadsheets_save_them(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "roster.csv").write_bytes(ROSTER.encode(encoding))
    (entry,) = roster_files.load(tmp_path / "roster.csv").entries
    assert (entry.student, entry.name) == ("müller", "Zoë Müller")


@pytest.mark.parametrize(
    ("read", "error"), [(roster_files.load, RosterError), (find, IntakeError)], ids=["roster", "list"]
)
def test_an_old_encoding_is_refused_with_the_remedy(
    tmp_path: Path, read: Callable[[Path], object], error: type[Exception]
) -> None:
    (tmp_path / "list.csv").write_bytes(ROSTER.encode("latin-1"))
    with pytest.raises(error, match=r"line 2: it is not UTF-8\. Save .* reads right: WINDOWS-1252 'müller;Zoë Müller'"):
        read(tmp_path / "list.csv")


@pytest.mark.parametrize(
    ("encoding", "name"),
    [
        ("GB18030", "李小龙"),
        ("WINDOWS-1251", "Иван Петров"),
        ("SHIFT_JIS", "佐藤 花子"),
        ("ISO-8859-2", "Łukasz Ďuriš"),
        ("EUC-KR", "김민수"),
        ("WINDOWS-1253", "Γιώργος"),
        ("MACINTOSH", "Zoë Müller Ås"),
        ("CP437", "Zoë Müller"),
        ("CP852", "Łukasz Ďuriš"),
    ],
)
def test_the_refusal_shows_names_in_the_encoding_that_the_file_has(tmp_path: Path, encoding: str, name: str) -> None:
    path = tmp_path / "roster.csv"
    path.write_bytes(f"student,name\nada,{name}\n".encode(encoding))
    with pytest.raises(RosterError, match=f"{encoding} 'ada,{name}'"):
        roster_files.load(path)
    path.write_bytes(path.read_bytes().decode(encoding).encode())
    assert [entry.name for entry in roster_files.load(path).entries] == [name]


def test_a_line_in_another_encoding_than_the_others_is_named(tmp_path: Path) -> None:
    path = tmp_path / "roster.csv"
    path.write_bytes("student,name\rzoe,Zoë\r".encode() + "jp,José\r".encode("cp1252"))
    with pytest.raises(RosterError) as refused:
        roster_files.load(path)
    said = str(refused.value)
    assert "roster.csv, line 3: it is not UTF-8" in said
    assert "WINDOWS-1252 'jp,José'" in said
    assert said.endswith(". Where other lines are UTF-8 already, correct this one in an editor instead")


def test_encodings_in_which_names_have_signs_come_last(tmp_path: Path) -> None:
    path = tmp_path / "roster.csv"
    path.write_bytes("student,name\nada,Łukasz Żółć\nbob,Zoë Ďurią\n".encode("iso8859-2"))
    with pytest.raises(RosterError) as refused:
        roster_files.load(path)
    said = str(refused.value)
    assert said.index("ISO-8859-2 'ada,Łukasz") < said.index("WINDOWS-1250"), "they differ in a later line only"
