"""Every file that an instructor gives, malformed in every way: it is read right, or refused in a line that says what.

A row, column or value of a file is never left out in silence. The documents that are no tables at all are in
`test_tables.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

import grader
from gradebook import settings
from gradebook.grading import excused, held_back
from gradebook.grading.manual_grading import comments, requests, rubric
from gradebook.intake import doubtful_rows, handed_in, roster_files, times
from gradebook.intake.roster_files import load
from gradebox.run import overrides
from tests.gradebook.intake.test_tables import OTHERS

BERLIN = ZoneInfo("Europe/Berlin")


@dataclass(frozen=True)
class Reader:
    """How a kind of file is read, and a right one with two rows."""

    read: Callable[[Path], object]
    rows: tuple[str, str, str]
    column: str
    """One without which the file says something else; nobody may misspell it unnoticed."""

    @property
    def text(self) -> str:
        return "\n".join(self.rows) + "\n"


def _roster(path: Path) -> object:
    return [(entry.student, entry.name, entry.team, entry.submitted_at) for entry in load(path, None, BERLIN).entries]


def _people(path: Path) -> Path:
    people = path.with_name("people.csv")
    people.write_text("student,name\nada,Ada Lovelace\nbob,Bob Ross\n")
    return people


TABLES = {
    "roster": Reader(
        _roster,
        (
            "student,name,Email,team,submitted_at",
            "ada,Ada L,a@x.edu,red,2026-03-01 10:00",
            "bob,Bob R,b@x.edu,,2026-03-01 11:00",
        ),
        "team",
    ),
    "times": Reader(
        lambda path: times.load(path, load(_people(path)), BERLIN),
        ("student,submitted_at", "ada,2026-03-01 10:00", "bob,2026-03-01 11:00"),
        "submitted_at",
    ),
    "teams": Reader(
        lambda path: [(entry.student, entry.team) for entry in load(_people(path), path).entries],
        ("student,team", "ada,red", "bob,red"),
        "team",
    ),
    "repositories": Reader(
        handed_in.find,
        ("student,repository,commit", "ada,https://x.example/a.git,main", "bob,https://x.example/b.git,"),
        "commit",
    ),
    "requests": Reader(requests.read, ("student,about,text", "ada,all,please", "bob,lab1.memory,look"), "about"),
}
SAME: dict[str, Callable[[Reader], bytes]] = {
    "a mark and line ends of Windows": lambda reader: b"\xef\xbb\xbf" + reader.text.replace("\n", "\r\n").encode(),
    "line ends of an old Mac": lambda reader: reader.text.replace("\n", "\r").encode(),
    "UTF-16": lambda reader: reader.text.encode("utf-16"),
    "UTF-16 without a mark": lambda reader: reader.text.encode("utf-16-le"),
    "semicolons": lambda reader: reader.text.replace(",", ";").encode(),
    "tabs": lambda reader: reader.text.replace(",", "\t").encode(),
    "bars": lambda reader: reader.text.replace(",", "|").encode(),
    "quotes": lambda reader: re.sub(r"[^,\n]+", r'"\g<0>"', reader.text).encode(),
    "empty lines": lambda reader: "\n\n".join(reader.rows).encode(),
    "empty rows": lambda reader: f"\n{','.join([''] * (reader.rows[0].count(',') + 1))}\n".join(reader.rows).encode(),
    "titles once more": lambda reader: f"{reader.text}{reader.rows[0]}\n".encode(),
    "a separator at each end": lambda reader: reader.text.replace("\n", ",\n").encode(),
    "spaces": lambda reader: reader.text.replace(",", " , ").encode(),
    "titles in capitals": lambda reader: "\n".join((reader.rows[0].upper(), *reader.rows[1:])).encode(),
}
REFUSED: dict[str, tuple[Callable[[Reader], bytes], str]] = {
    "nothing": (lambda reader: b"", "is empty"),
    "empty lines": (lambda reader: b"\n\n", "is empty"),
    "titles alone": (lambda reader: f"{reader.rows[0]}\n".encode(), "has no row below its titles"),
    "no titles": (lambda reader: "\n".join(reader.rows[1:]).encode(), "has no column"),
    "a remark above": (lambda reader: f"# the class\n{reader.text}".encode(), "remove what is above"),
    "a cell too much": (lambda reader: f"{reader.text}eve,a,b,c,d,e,f\n".encode(), "line 4 has 7 cells"),
    "no separator": (lambda reader: reader.text.replace(",", " ").encode(), "has no column"),
    "another encoding": (lambda reader: reader.text.replace("ada", "zoë").encode("cp1252"), "line 2: it is not UTF-8"),
    "bytes": (lambda reader: bytes(range(256)), "damaged, or no text"),
    "zeros at the end": (lambda reader: reader.text.encode() + bytes(9), "damaged, or no text"),
    "JSON": (lambda reader: b'[{"student": "ada"}]', "is JSON, and no table"),
    "TOML": (lambda reader: b'# x\n[[student]]\nstudent = "ada"\n', "is TOML, and no table"),
    "a conflict of Git's": (
        lambda reader: f"{reader.text}<<<<<<< HEAD\n{reader.rows[1]}\n=======\n>>>>>>> main\n".encode(),
        "line 4: Git could not merge this file",
    ),
    "a misspelt title": (
        lambda reader: reader.text.replace(reader.column, reader.column[:-1], 1).encode(),
        r"has (no column|a column '\w+', which nothing reads)",
    ),
    "a misspelt title, with two letters in the wrong order": (
        lambda reader: reader.text.replace(
            reader.column, reader.column[:-2] + reader.column[-1] + reader.column[-2], 1
        ).encode(),
        r"has (no column|a column '\w+', which nothing reads)",
    ),
}


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("name", TABLES)
def test_a_table_may_be_saved_in_any_usual_way(name: str, tmp_path: Path) -> None:
    reader = TABLES[name]
    expected = reader.read(_written(tmp_path / "in.csv", reader.text.encode()))
    for way, made in SAME.items():
        assert reader.read(_written(tmp_path / "in.csv", made(reader))) == expected, way


@pytest.mark.parametrize("name", TABLES)
def test_a_malformed_table_is_refused_in_one_line_that_says_what_is_wrong(name: str, tmp_path: Path) -> None:
    reader = TABLES[name]
    for way, (made, message) in REFUSED.items():
        with pytest.raises(ValueError, match=message) as refusal:
            pytest.fail(f"{way}: {reader.read(_written(tmp_path / 'in.csv', made(reader)))}")
        assert str(refusal.value).startswith(str(tmp_path / "in.csv")), way
        assert "\n" not in str(refusal.value), way
    with pytest.raises(ValueError, match=r"nothing.csv"):
        reader.read(tmp_path / "nothing.csv")


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("03/01/2026 10:00 PM", "may be two days"),
        ("2026-03-01", "is a day without a time of day"),
        ("1.3.2026", "is a day without a time of day"),
        ("10:00", "cannot be read as a day and a time of day"),
        ("45717.5", "cannot be read as a day and a time of day"),
        ("2026-03-29 02:30", "is no time in Europe/Berlin, whose clocks went forward"),
    ],
)
def test_rosters_and_tables_of_times_refuse_the_same_moments(cell: str, message: str, tmp_path: Path) -> None:
    for name in ("roster", "times"):
        reader = TABLES[name]
        text = reader.text.replace("2026-03-01 10:00", cell)
        with pytest.raises(ValueError, match=f"line 2: submitted_at '.*' {message}"):
            reader.read(_written(tmp_path / "in.csv", text.encode()))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("bob,b@x.edu,red", "line 3: name is 'b@x.edu', which is no name, and the row has 2 cells less"),
        ("bob,Bob R,red,2026-03-01 11:00", "line 3: Email is 'red', which is no address, and the row has 1 cells less"),
        ("bob,Bob R", ""),
        ("bob", ""),
        ("bob,Bob R,b@x.edu,red", ""),
    ],
)
def test_a_row_from_which_a_cell_was_left_out_is_refused_if_others_have_moved(
    row: str, message: str, tmp_path: Path
) -> None:
    reader = TABLES["roster"]
    path = _written(tmp_path / "in.csv", f"{reader.rows[0]}\n{reader.rows[1]}\n{row}\n".encode())
    if not message:
        assert [entry.student for entry in load(path, None, BERLIN).entries] == ["ada", "bob"]
        return
    with pytest.raises(ValueError, match=message):
        reader.read(path)


@pytest.mark.parametrize("column", ["Tea", "Maet", "teem", "ttteam", "section", "tem2"])
def test_a_title_that_is_less_alike_is_a_column_of_the_instructors(column: str, tmp_path: Path) -> None:
    path = _written(tmp_path / "in.csv", f"student,{column},submitted_at\nada,x,2026-03-01 10:00\n".encode())
    if column in ("Tea", "teem"):
        with pytest.raises(ValueError, match=f"column '{column}', which nothing reads: call it team"):
            load(path, None, BERLIN)
    else:
        assert [entry.columns[column] for entry in load(path, None, BERLIN).entries] == ["x"]


def test_decisions_in_a_roster_that_nothing_reads_are_named(tmp_path: Path) -> None:
    path = _written(tmp_path / "in.csv", b"student,Extension,Excused,bonus\nada,2026-03-08,no,\nbob,-,yes,2\neve,,,\n")
    extension, excuse, bonus = doubtful_rows.notices(load(path))
    assert "column 'Extension' has something for ada, and nothing reads it" in extension
    assert "[extensions] of class.toml" in extension
    assert "'Excused' has something for bob" in excuse
    assert "review CLASS --excuse" in excuse
    assert "'bonus' has something for bob" in bonus
    path.write_text("student,submission_sha256,late_rule,deadline,excused\nada,00,,2026-03-08,yes\n")
    assert doubtful_rows.notices(load(path)) == (), "decisions of another class of ours"


@pytest.mark.parametrize(("row", "lacking"), [(",all,please", "who asks"), ("ada,all,", "the text of ada's request")])
def test_a_request_without_a_student_or_a_text_is_refused_with_its_line(row: str, lacking: str, tmp_path: Path) -> None:
    path = _written(tmp_path / "in.csv", f"student,about,text\nbob,all,look\n{row}\n".encode())
    with pytest.raises(ValueError, match=f"line 3 does not say {lacking}. .* Nothing was recorded"):
        requests.read(path)


def test_all_rows_of_a_form_that_cannot_be_recorded_are_named(tmp_path: Path) -> None:
    path = _written(tmp_path / "in.csv", b"student,text\nada,\nbob,look\n,please\n")
    with pytest.raises(ValueError, match="line 2 does not say the text of ada's request; line 4 does not say who asks"):
        requests.read(path)
    new = [requests.NewRequest("eve", "x"), requests.NewRequest("ada", "x"), requests.NewRequest("ada", "y", "lab9.x")]
    with pytest.raises(ValueError, match=r"'eve': there is no such student .*'ada' is about 'lab9\.x'.*Nothing was"):
        requests.add(tmp_path, new, ["ada"], ["lab1.memory"])


FILES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "class.toml": ("class.toml", settings.load, "title = 'ada'\n[late]\npercent_per_day = 10\n"),
    "overrides": (
        "overrides.toml",
        lambda path: overrides.load(path, grader.course().rubric),
        "[[override]]\nstudent = 'ada'\ncriterion = 'lab1.memory'\npoints = 4.5\nreason = 'x'\n",
    ),
    "excused": (
        "excused.toml",
        lambda path: excused.load(path.parent),
        "[[excused]]\nstudent = 'ada'\nlab = 2\nreason = 'ill'\n",
    ),
    "held back": (
        "held_back.toml",
        lambda path: held_back.load(path.parent),
        "[[held_back]]\nstudent = 'ada'\nreason = 'talk'\nat = 2026-03-02T08:00:00Z\n",
    ),
    "rubric": (
        "manual_grading/rubric.toml",
        lambda path: rubric.load(path.parents[1]),
        "title = 'ada'\n[[criterion]]\nid = 'd'\ntitle = 'D'\npoints = 6\n",
    ),
    "comments": (
        "manual_grading/comments.toml",
        lambda path: comments.load(path.parents[1]),
        "[[comment]]\nid = 'c'\ncriterion = 'd'\ntext = 'ada'\npoints = -1\n",
    ),
    "repositories": (
        "list.toml",
        handed_in.find,
        "[[submission]]\nstudent = 'ada'\nrepository = 'https://x.example/a.git'\n",
    ),
    "requests": ("asks.toml", requests.read, "[[request]]\nstudent = 'ada'\ntext = 'x'\n"),
}


def _malformed(text: str) -> Iterator[tuple[bytes, str]]:
    """Malformed files, and what is said of each."""
    yield text.encode("utf-16"), ":1: it is UTF-16, not UTF-8"
    yield text.replace("ada", "zoë").encode("cp1252"), r":\d: it is not UTF-8. If .*zoë.* reads right"
    for kind, data in OTHERS.items():
        yield data, f":1: it is {kind}"
    yield b"student: ada\n", ":1: not valid TOML: .*; TOML has = between a key and its value"
    yield b'{"student": 1}\n', ":1: not valid TOML: .*; this looks like JSON"
    yield b"student,points\nada,4\n", ":1: not valid TOML: .*; this looks like a table of a spreadsheet"
    yield text.encode() + b"colour = 1\n", r":\d+: unknown key 'colour'"
    yield f"{text}<<<<<<< HEAD\n=======\n>>>>>>> main\n".encode(), r":\d+: .*Git could not merge this file: keep one"
    if match := re.search(r"\[\[(\w+)\]\]", text):
        yield text.replace(match[0], f"[{match[1]}]").encode(), rf"write each {match[1]} as \[\[{match[1]}\]\]"
        yield text.replace(match[0], f"[[{match[1]}x]]").encode(), f"did you mean '{match[1]}'"
    for key, value in re.findall(r"^(\w+) = (-?[\d.]+)$", text, re.MULTILINE):
        place = re.compile(rf"^{key} = .*$", re.MULTILINE)
        for written, remedy in (
            ('"8,5"', "is not a (whole )?number"),
            ("8,5", "write decimals with a point: 8.5"),
            ("80 %", "write the number alone: 80" if "percent" in key else "a share is no number here: write"),
            ('"80 %"', "write 80, without quotes" if "percent" in key else "a share is no number here"),
            ('"many"', "is not a (whole )?number"),
        ):
            yield place.sub(f"{key} = {written}", text).encode(), rf":\d+: .*{remedy}"
        assert value
    for key in re.findall(r"^(\w+) = 20", text, re.MULTILINE):
        place = re.compile(rf"^{key} = .*$", re.MULTILINE)
        yield place.sub(f"{key} = 2026-03-02", text).encode(), "write 2026-03-02T23:59:00"
        yield place.sub(f"{key} = 2026-03-02 08:00", text).encode(), "write seconds, too: 2026-03-02T08:00:00"
        yield place.sub(f'{key} = "3/2/2026"', text).encode(), "is not a date with a time, like"


@pytest.mark.parametrize("name", FILES)
def test_a_malformed_file_of_decisions_is_refused_with_its_line(name: str, tmp_path: Path) -> None:
    file, read, text = FILES[name]
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    expected = read(_written(path, text.encode()))
    assert read(_written(path, b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())) == expected
    for data, message in _malformed(text):
        with pytest.raises(ValueError, match=message) as refusal:
            pytest.fail(f"{data!r}: {read(_written(path, data))}")
        assert str(refusal.value).startswith(str(path))
        assert "\n" not in str(refusal.value)
    path.unlink()
    path.mkdir()
    with pytest.raises(ValueError, match=r"Is a directory|holds no submissions"):
        read(path)


@pytest.mark.parametrize("key", ["student", "reason"])
def test_nobody_is_excused_without_a_name_or_a_reason(key: str, tmp_path: Path) -> None:
    text = FILES["excused"][2]
    (tmp_path / "excused.toml").write_text(re.sub(rf"{key} = .*", f"{key} = ' '", text))
    with pytest.raises(ValueError, match=rf"excused.toml:\d: {key} is empty"):
        excused.load(tmp_path)


def test_the_readers_of_this_page_are_those_of_the_package() -> None:
    """A new kind of table belongs above."""
    package = Path(roster_files.__file__).parents[1]
    found = {path.stem for path in package.rglob("*.py") if "csv_tables.read(" in path.read_text()}
    assert found == {"roster_files", "times", "team_lists", "handed_in", "requests"}
