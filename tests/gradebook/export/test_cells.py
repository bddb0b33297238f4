"""CSV files start nothing in a spreadsheet, and students' keys become file names."""

import csv
import io
import os
from pathlib import Path

import pytest

from gradebook.text_files import file_names, neutral, to_csv, with_name, write_file


@pytest.mark.parametrize(
    ("key", "name", "text"),
    [
        ("Participant 17", "Ada Lovelace", "Participant 17 (Ada Lovelace)"),
        ("al001", "Lovelace, Ada", "al001 (Lovelace, Ada)"),
        ("zoe", "Zoë Müller", "zoe"), ("alovelace", "Ada Lovelace", "alovelace"),
        ("a@uni.example", "", "a@uni.example"),
        ("17", "17", "17"), ("liwu", "Li Wu", "liwu"), ("17", "A\x1b[31m", "17 (A\\x1b[31m)"),
    ],
)  # fmt: skip
def test_a_key_that_does_not_show_the_name_is_printed_with_it(key: str, name: str, text: str) -> None:
    assert with_name(key, name) == text


@pytest.mark.parametrize(
    "text", ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "  =1+1", "\uff1d1+1", "=HYPERLINK(1)"]
)
def test_a_cell_that_a_spreadsheet_would_compute_is_neutralised(text: str) -> None:
    assert neutral(text).startswith("'")


@pytest.mark.parametrize(
    "text", ["17.5", "-5", "+49", "-", "", "ada@example.org", "Lab 1 (123)", "a=b", "    Points Possible"]
)
def test_other_cells_stay_as_they_are(text: str) -> None:
    assert neutral(text) == text


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("Eve;=cmd|' /C calc'!A0", "Eve;'=cmd|' /C calc'!A0"), ("a\t@SUM(1)", "a\t'@SUM(1)"), ("a;  +b", "a;  '+b"),
        ("two\n=1+1", "two\n'=1+1"), ("a; -1; b", "a; -1; b"), ("x;y", "x;y"), ("a;-2+cmd", "a;'-2+cmd"),
    ],
)  # fmt: skip
def test_no_part_of_a_cell_is_computed_where_semicolons_or_tabs_separate(text: str, cell: str) -> None:
    assert neutral(text) == cell
    for separator in ";\t":  # as a spreadsheet reads the line that takes these for the separators
        for line in to_csv(["head"], [["ada", text, "1"]]).splitlines():
            for part in line.split(separator):
                start = part.strip().strip('"').lstrip()
                assert not start.startswith(("=", "@", "+")), part
                assert not start.startswith("-") or start[1:].isdigit()


def test_control_characters_are_written_out() -> None:
    assert neutral("a\x00b\x1b[31m") == r"a\x00b\x1b[31m"


def test_a_reader_finds_every_cell_again() -> None:
    row = ['a "quoted" name', "two\nlines", "comma, and ; semicolon", ""]
    assert list(csv.reader(io.StringIO(to_csv(["1", "2", "3", "4"], [row]), newline=""))) == [["1", "2", "3", "4"], row]


def test_file_names_are_safe_and_different() -> None:
    names = file_names(["ada", "Ada", "../../etc/passwd", "a/b", "a_b", "..", "", "ä" * 300, "CON", "aux", "Com1.x"])
    assert names["Ada"] == "Ada"
    assert len({name.lower() for name in names.values()}) == len(names)
    assert not {name.partition(".")[0].lower() for name in names.values()} & {"con", "aux", "com1"}
    assert all(name and "/" not in name and name[0] not in ".-" and len(name) < 120 for name in names.values())


def test_file_names_do_not_depend_on_who_else_is_in_the_class() -> None:
    assert file_names(["a/b"])["a/b"] == file_names(["a/b", "bob", "a_b"])["a/b"]


def test_a_file_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file(tmp_path / "new" / "file.csv", "one")
    write_file(tmp_path / "new" / "file.csv", "two")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["file.csv"]
    assert (tmp_path / "new" / "file.csv").read_text() == "two"
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_file(tmp_path / "new" / "file.csv", "three")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["file.csv"], "no draft stays"
