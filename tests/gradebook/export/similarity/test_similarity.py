"""Which submissions are called alike, and that the report is a page nobody can write into."""

from __future__ import annotations

import csv
import importlib.util
import re
import shutil
import zipfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gradebook.cli.integrity import _names
from gradebook.export.similarity import clusters, report, similarity
from gradebook.export.similarity.similarity import Pair
from gradebook.results import Student
from grader import cli

# Not imported: it brings pyplot with it, into every process that collects the tests.
pytestmark = pytest.mark.skipif(importlib.util.find_spec("copydetect") is None, reason="copydetect is not installed")

STUB = '''"""Task 1.1: statistics."""

import math


def spread(values: list[float]) -> float:
    """The sample standard deviation of some values, in the unit of the values themselves."""
    # TODO(task 1.1): compute it.
'''
ONE = """    count = len(values)
    middle = math.fsum(values) / count
    squares = [(value - middle) ** 2 for value in values]
    if count < 2:
        raise ValueError("two values at least")
    return math.sqrt(math.fsum(squares) / (count - 1))
"""
RENAMED = ONE.replace("middle", "m").replace("squares", "devs").replace("count", "n").replace("(value ", "(value  ")
OTHER = """    total, power, number = 0.0, 0.0, 0
    for item in values:
        total, power, number = total + item, power + item * item, number + 1
    assert number > 1
    variance = (power - total * total / number) / (number - 1)
    return variance**0.5
"""
OPEN = '    raise NotImplementedError("Task 1.1 is open")\n'


def hand_in(folder: Path, **bodies: str) -> Path:
    for student, body in {"": OPEN, **bodies}.items():
        target = folder / (f"class/{student}" if student else "stubs") / "lab1_gpu_basics" / "statistic.py"
        target.parent.mkdir(parents=True)
        target.write_text(STUB + body)
    return folder / "class"


def run(folder: Path, source: Path, *options: str) -> tuple[int, str, list[dict[str, str]]]:
    stubs = () if "--stubs" in options else ("--stubs", str(folder / "stubs"))
    done = CliRunner().invoke(cli.app, ["similarity", str(source), "--out", str(folder / "out"), *stubs, *options])
    table = folder / "out" / "similarity.csv"
    rows = list(csv.DictReader(table.read_text("utf-8-sig").splitlines())) if table.is_file() else []
    return done.exit_code, done.output, rows


def test_a_copy_with_other_names_is_alike_and_another_way_is_not(tmp_path: Path) -> None:
    source = hand_in(tmp_path, ada=ONE, bob=RENAMED, cyd=OTHER)
    code, _, rows = run(tmp_path, source)
    assert code == 0
    ((student, other, share, identical),) = [
        (row["student"], row["other student"], float(row["share"]), row["identical"]) for row in rows
    ]
    assert (student, other, identical) == ("ada", "bob", "no")
    assert share > 0.9


def test_what_everybody_was_given_counts_for_nobody(tmp_path: Path) -> None:
    source = hand_in(tmp_path, ada=OPEN, bob=OPEN, cyd=ONE)
    assert run(tmp_path, source, "--threshold", "0.05")[2] == []


def test_what_was_given_in_a_file_of_its_own_counts_for_nobody(tmp_path: Path) -> None:
    """As code of a lecture that students took into the file of their task."""
    source = hand_in(tmp_path, ada=ONE, bob=RENAMED, cyd=OTHER, dan=OTHER)
    (tmp_path / "stubs" / "lab1_gpu_basics" / "lecture.py").write_text(STUB + ONE)
    rows = run(tmp_path, source, "--threshold", "0.05")[2]
    assert {(row["student"], row["other student"]) for row in rows} == {("cyd", "dan")}


@pytest.mark.parametrize(
    ("stubs", "said"), [("misspelt", "is no folder"), ("empty", "has no code"), ("stubs/lab1_gpu_basics", "has no")]
)
def test_a_folder_that_leaves_nothing_out_is_refused(stubs: str, said: str, tmp_path: Path) -> None:
    source = hand_in(tmp_path, ada=ONE, bob=RENAMED)
    (tmp_path / "empty").mkdir()
    code, shown, rows = run(tmp_path, source, "--stubs", str(tmp_path / stubs))
    assert (code, rows) == (2, [])
    assert f"{stubs} {said}" in " ".join(shown.split())


def test_a_copy_in_a_file_of_its_own_is_found(tmp_path: Path) -> None:
    source = hand_in(tmp_path, ada=ONE, bob="    from .more import rest\n    return rest(values)\n", cyd=OTHER)
    (source / "bob" / "lab1_gpu_basics" / "more.py").write_text(STUB.replace("spread", "rest") + RENAMED)
    (source / "cyd" / "lab1_gpu_basics" / "extra.py").write_text(STUB)  # what everybody was given
    code, _, rows = run(tmp_path, source)
    assert code == 0
    ((module, who, other),) = [(row["module"], row["student"], row["other student"]) for row in rows]
    assert (module, who, other) == ("lab1_gpu_basics/statistic.py and lab1_gpu_basics/more.py", "ada", "bob")
    assert float(rows[0]["share"]) > 0.9
    page = (tmp_path / "out" / "similarity.html").read_text()
    assert ("math.fsum(squares)" in page, "math.fsum(devs)" in page) == (True, True)  # each from its own file
    archive = tmp_path / "2025"
    shutil.copytree(source / "bob", archive / "bob")
    shutil.copytree(source / "ada", archive / "ada")
    shutil.rmtree(source / "bob")
    rows = run(tmp_path, source, "--archive", str(archive))[2]
    assert {(row["student"], row["other student"]) for row in rows} == {("ada", "2025: ada"), ("ada", "2025: bob")}


def test_who_has_too_little_code_of_their_own_is_named(tmp_path: Path) -> None:
    source = hand_in(tmp_path, ada=ONE, bob=RENAMED, cyd=OPEN, dee="    return 1\n")
    _, said, rows = run(tmp_path, source)
    assert "not compared: cyd, dee: too little code that is not in the stubs" in said
    assert len(rows) == 1


@pytest.mark.parametrize("bodies", [{"ada": OPEN, "bob": OPEN}, {"ada": ONE, "bob": OPEN}])
def test_where_nobody_can_be_compared_nothing_says_that_all_is_well(bodies: dict[str, str], tmp_path: Path) -> None:
    code, said, rows = run(tmp_path, hand_in(tmp_path, **bodies))
    assert (code, rows) == (2, [])
    assert re.search("nothing was compared: .*bob: too little code that is not in the stubs", said)
    assert not (tmp_path / "out").exists()


def test_both_passages_are_on_the_page_with_their_lines(tmp_path: Path) -> None:
    source = hand_in(tmp_path, ada=ONE, bob=ONE)
    run(tmp_path, source)
    page = (tmp_path / "out" / "similarity.html").read_text()
    assert page.count("math.fsum(squares)") == 2
    assert "A hint, not a finding" in page
    assert "byte for byte" in page


def test_nothing_of_a_submission_is_taken_for_markup_or_a_formula(tmp_path: Path) -> None:
    hostile = ONE + "    # <script>alert(1)</script>\n"
    source = hand_in(tmp_path, **{"=cmd()": hostile, "<b>bob": hostile})
    _, _, rows = run(tmp_path, source)
    page = (tmp_path / "out" / "similarity.html").read_text()
    assert "<script" not in page
    assert "<b>bob" not in page
    assert {rows[0]["student"], rows[0]["other student"]} == {"'=cmd()", "<b>bob"}


def test_archives_are_taken_as_the_class_takes_them(tmp_path: Path) -> None:
    source = hand_in(tmp_path, ada=ONE)
    with zipfile.ZipFile(source / "bob.zip", "w") as archive:
        archive.writestr("labs/lab1-gpu-basics/statistic.py", STUB + RENAMED)
    with zipfile.ZipFile(source / "eve.zip", "w") as archive:
        archive.writestr("../lab1-gpu-basics/statistic.py", STUB + RENAMED)
    code, said, rows = run(tmp_path, source)
    assert (code, len(rows)) == (0, 1)
    assert "not compared: eve: " in said


@pytest.mark.parametrize(
    ("options", "said"), [(["--lab", "9"], "there is no lab 9"), (["--lab", "x"], "--lab x"), ([], "fewer than two")]
)
def test_what_cannot_be_compared_is_one_clear_line(options: list[str], said: str, tmp_path: Path) -> None:
    code, output, _ = run(tmp_path, hand_in(tmp_path, ada=ONE), *options)
    assert code == 2
    assert said in output
    assert len(output.strip().splitlines()) == 1


def test_a_stretch_without_the_library_is_refused_clearly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "copydetect", None)
    with pytest.raises(similarity.SimilarityError, match="needs copydetect"):
        similarity.compare({"ada": tmp_path, "bob": tmp_path}, tmp_path, threshold=0.5, excerpts=1)


def test_files_of_a_megabyte_are_named_and_not_read(tmp_path: Path) -> None:
    line = "value = [one * 3 for one in range(7) if one % 2]\n"
    padding = line * (similarity.MAX_FILE_BYTES // len(line) + 1)
    source = hand_in(tmp_path, ada=ONE + padding, bob=RENAMED + padding, cy=ONE, dee=RENAMED)
    code, output, rows = run(tmp_path, source)
    assert code == 0
    assert [(row["student"], row["other student"]) for row in rows] == [("cy", "dee")]
    for student in ("ada", "bob"):
        assert f"not compared: {student}: lab1_gpu_basics/statistic.py" in output


def test_many_files_are_compared_as_far_as_a_student_may_bring(tmp_path: Path) -> None:
    source = hand_in(tmp_path, ada=ONE, bob=RENAMED)
    size = similarity.MAX_FILE_BYTES
    for number in range(similarity.MAX_BYTES // size + 1):
        (source / "ada" / "lab1_gpu_basics" / f"more{number}.py").write_text("# " + "x" * (size - 3) + "\n")
    _, output, rows = run(tmp_path, source)
    assert len(rows) == 1
    assert "not compared: ada: lab1_gpu_basics/more" in output


def pair(module: str, student: str, other: str, share: float, *, median: float = 0.2, **more: object) -> Pair:
    return Pair(module, (student, other), (share, share), median, False, **more)  # type: ignore[arg-type]


def test_three_who_share_a_file_are_one_group() -> None:
    pairs = [pair("m", "a", "b", 0.9), pair("m", "b", "c", 0.95), pair("m", "a", "c", 0.92), pair("n", "d", "e", 0.7)]
    groups = clusters.of(pairs)
    assert [(group.students, group.possible) for group in groups] == [(("a", "b", "c"), 3), (("d", "e"), 1)]
    (shared,) = groups[0].modules
    assert (shared.pairs, shared.lowest, shared.highest, shared.first) == (3, 0.9, 0.95, 0)


def test_a_chain_says_how_many_of_its_pairs_are_alike() -> None:
    (group,) = clusters.of([pair("m", "a", "b", 0.9), pair("m", "b", "c", 0.9)])
    assert (group.students, group.possible, group.modules[0].pairs) == (("a", "b", "c"), 3, 2)


def test_the_same_students_in_two_modules_are_one_group() -> None:
    (group,) = clusters.of([pair("m", "a", "b", 0.9), pair("n", "a", "b", 0.8)])
    assert [module.module for module in group.modules] == ["m", "n"]


def test_where_everybody_is_alike_nobody_stands_out() -> None:
    assert clusters.of([pair("m", "a", "b", 0.8, median=0.75), pair("m", "b", "c", 0.75, median=0.75)]) == ()


def test_a_copy_of_an_earlier_year_is_found_and_years_are_not_compared_with_each_other(tmp_path: Path) -> None:
    source = hand_in(tmp_path, ada=ONE, bob=OTHER)
    last, before = tmp_path / "2025", tmp_path / "2024"
    shutil.copytree(hand_in(tmp_path / "old", zoe=RENAMED, yan=OPEN), last)
    shutil.copytree(last, before)
    (before / "zoe").rename(before / "ADA")
    code, said, rows = run(tmp_path, source, "--archive", str(last), "--archive", str(before))
    assert code == 0, said
    matches = sorted((row["student"], row["other student"], row["earlier year"]) for row in rows)
    assert matches == [("ada", "2024: ADA", "2024 (the same student)"), ("ada", "2025: zoe", "2025")]
    assert "2 submissions and 4 of earlier years" in said
    page = (tmp_path / "out" / "similarity.html").read_text()
    assert "with each other and with 4 of earlier years" in page
    assert (page.count(">earlier year<"), page.count(">earlier year, the same student<")) == (1, 1)
    assert "of 2 pairs" not in page  # the years were not compared with each other, so both pairs are all


def test_the_class_itself_is_no_earlier_year(tmp_path: Path) -> None:
    source = hand_in(tmp_path, ada=ONE, bob=OTHER)
    code, said, _ = run(tmp_path, source, "--archive", str(source))
    assert code == 2
    assert "is the class itself" in said


def test_groups_are_on_the_page_and_lead_to_the_passages(tmp_path: Path) -> None:
    code, _, _ = run(tmp_path, hand_in(tmp_path, ada=ONE, bob=RENAMED, cleo=ONE, dan=OTHER))
    assert code == 0
    page = (tmp_path / "out" / "similarity.html").read_text()
    section = page[page.index("<h2>Groups</h2>") : page.index("<h2>Pairs</h2>")]
    assert "<b>3:</b> ada, bob, cleo" in section
    assert 'href="#pair1"' in section
    assert "dan" not in section


def test_pairs_are_listed_by_similarity_and_each_module_has_passages(tmp_path: Path) -> None:
    """A module in which all are alike takes no place away from one in which two are."""
    bodies = {f"s{number:02}": ONE for number in range(8)}
    source = hand_in(tmp_path, **bodies)
    for student, body in {"s01": ONE, "s07": RENAMED.replace("devs", "deviations_of_all"), "s03": OTHER}.items():
        (source / student / "lab1_gpu_basics" / "other.py").write_text(body.replace("    ", "", 1) + f"# {student}\n")
    _, _, rows = run(tmp_path, source, "--threshold", "0.3")
    shares = [float(row["share"]) for row in rows]
    assert shares == sorted(shares, reverse=True)
    page = (tmp_path / "out" / "similarity.html").read_text()
    assert page.count("<details id=") < len(rows) or len(rows) <= 50
    assert 'id="pair1"' in page
    others = [number for number, row in enumerate(rows, start=1) if row["module"].endswith("other.py")]
    assert others
    assert all(f'id="pair{number}"' in page for number in others[:5])


def test_one_more_line_in_the_stub_is_nobodys_work(tmp_path: Path) -> None:
    """Two who both print a value have not copied; two who solved the task alike are shown as before."""
    line = "    print(values)\n"
    source = hand_in(tmp_path, ada=line + OPEN, bob=line + OPEN, eve=ONE, kim=RENAMED)
    rows = run(tmp_path, source, "--threshold", "0.05")[2]
    assert {(row["student"], row["other student"]) for row in rows} == {("eve", "kim")}


def test_who_is_outside_the_roster_is_called_so() -> None:
    ada = Student(student="ada", name="Ada", columns={"student": "ada"}, status="taken")
    left = Student(student="bob", name="Bob", status="taken")
    prof = Student(student="prof", status="taken")
    assert _names([ada, left, prof]) == {"ada": "Ada", "bob": "Bob, not in the roster", "prof": "not in the roster"}
    assert _names([left, prof]) == {"bob": "Bob"}, "there is no roster"


def test_who_stands_for_a_team_is_called_by_it() -> None:
    ada = Student(student="ada", name="Ada", columns={"student": "ada"}, team="red", teammates=("bob",), status="taken")
    assert _names([ada]) == {"ada": "Ada, team red with bob"}
    assert _names([ada, replace(ada, student="bob", name="Bob Ross", teammates=("ada",))]) == {
        "ada": "Ada, team red with Bob Ross",
        "bob": "Bob Ross, team red with Ada",
    }
    assert _names([replace(ada, team="")]) == {"ada": "Ada, with bob"}


def test_the_table_says_which_team_a_student_stands_for(tmp_path: Path) -> None:
    pair = similarity.Pair("m.py", ("ada", "eve"), (1.0, 1.0), 0.5, False)
    names = {"ada": "Ada, team red"}
    paths = report.write([pair], tmp_path, compared=2, threshold=0.6, now=datetime.now(UTC), names=names)
    (row,) = csv.DictReader(paths[1].read_text("utf-8-sig").splitlines())
    assert (row["name"], row["other name"]) == ("Ada, team red", "")


def test_code_is_shown_in_the_encoding_that_it_declares(tmp_path: Path) -> None:
    source = hand_in(tmp_path, ada=ONE, bob=OTHER)
    module = source / "bob" / "lab1_gpu_basics" / "statistic.py"
    text = f"# coding: latin-1\n{STUB}    # L\u00f6sung f\u00fcr den Mittelwert\n{ONE}"
    module.write_bytes(text.encode("latin-1"))
    code, said, _ = run(tmp_path, source)
    assert code == 0, said
    page = (tmp_path / "out" / "similarity.html").read_text()
    assert "L\u00f6sung f\u00fcr den Mittelwert" in page
    assert "\ufffd" not in page


def test_a_folder_of_years_says_how_to_give_them(tmp_path: Path) -> None:
    source = hand_in(tmp_path, ada=ONE, bob=OTHER)
    shutil.copytree(hand_in(tmp_path / "old", zoe=RENAMED, yan=OPEN), tmp_path / "years" / "2024")
    code, said, rows = run(tmp_path, source, "--archive", str(tmp_path / "years"))
    assert (code, rows) == (0, [])
    assert "years: nothing. If its folders are years, name each with an --archive of its own" in said
