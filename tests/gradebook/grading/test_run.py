"""What is graded, what is not graded again, and what the gradebook says then."""

from __future__ import annotations

import io
import os
import re
import shutil
import stat
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from rich.console import Console

import grader
from gradebook import results, versions
from gradebook.export.book import Book
from gradebook.grading import class_summary
from gradebook.store import Gradebook
from gradebox.common.configuration import ROOT
from gradebox.course import course as courses
from gradebox.course.course import Course
from gradebox.report.document import to_document
from tests.gradebook.conftest import SmallClass

BENCHMARK, MEASUREMENTS, MEMORY, ANALYSIS = "lab1.benchmark", "lab1.measurements", "lab1.memory", "lab1.analysis"
ALL = f"{BENCHMARK}, {MEASUREMENTS}, {MEMORY}, {ANALYSIS}"


def test_every_student_has_a_line_and_the_gradebook_can_be_read_later(small_class: SmallClass) -> None:
    small_class.hands_in("ada")
    small_class.hands_in("bob")
    now = small_class.grade()
    later = class_summary.read(small_class.out)
    assert [(row.student, row.status) for row in now.students] == [("ada", "graded"), ("bob", "graded")]
    assert later.students == now.students
    assert (now.max_score, now.seed, now.device, now.labs) == (20, 7, "vgpu:T4", (1,))


def test_an_unchanged_submission_is_not_graded_again(small_class: SmallClass) -> None:
    small_class.hands_in("ada")
    first = small_class.grade()
    again = small_class.grade()
    assert small_class.graded == [f"ada: {ALL}"]
    assert again.students == first.students


def test_a_changed_submission_is_graded_again_and_the_others_are_not(small_class: SmallClass) -> None:
    small_class.hands_in("ada")
    small_class.hands_in("bob")
    small_class.grade()
    small_class.hands_in("bob", "better")
    small_class.grade()
    assert small_class.graded == [f"ada: {ALL}", f"bob: {ALL}", f"bob: {ALL}"]


def test_two_students_with_the_same_content_are_graded_once(small_class: SmallClass) -> None:
    small_class.hands_in("ada", "the same")
    small_class.hands_in("bob", "the same")
    ada, bob = small_class.grade().students
    assert small_class.graded == [f"ada (and 1 with the same content): {ALL}"]
    assert ada.grade is not None
    assert bob.grade is not None
    assert (ada.grade.submission, bob.grade.submission) == ("ada", "bob")
    assert ada.score == bob.score


def test_another_lab_later_costs_only_that_lab(small_class: SmallClass) -> None:
    small_class.hands_in("ada")
    small_class.grade()
    both = small_class.grade(labs=(1, 2))
    assert [line.count("lab1.") for line in small_class.graded] == [4, 0]
    assert both.max_score == 40
    assert both.students[0].status == "graded"


def test_the_seed_of_a_class_is_drawn_once(small_class: SmallClass) -> None:
    small_class.hands_in("ada")
    seed = small_class.grade(seed=None).seed
    assert small_class.grade(seed=None).seed == seed
    with pytest.raises(results.GradebookError, match=f"graded with seed {seed}; use another --out"):
        small_class.grade(seed=seed + 1)


@pytest.fixture
def other_course(tmp_path: Path) -> Course:
    """The course with other points in `lab1.benchmark`: its first check is worth everything but the others' crumbs."""
    folder = tmp_path / "grader"
    shutil.copytree(ROOT / "grader", folder, ignore=shutil.ignore_patterns("__pycache__"))
    file = folder / "lab1" / "benchmark" / "criterion.toml"
    text = file.read_text()
    names = ("environment_described", "returns_result", "right_device_and_dtype")
    heads = [re.search(rf"\[checks\.{name}\]\npoints = (\S+)", text) for name in names]
    crumb = Decimal("0.1")
    total = sum(Decimal(head[1]) for head in heads if head is not None)
    for head, points in zip(heads, (total - 2 * crumb, crumb, crumb), strict=True):
        assert head is not None
        text = text.replace(head[0], head[0].replace(f"points = {head[1]}", f"points = {points}"))
    file.write_text(text)
    return replace(courses.load(folder), folder=ROOT / "grader")  # whose code is the same


def test_other_points_are_counted_without_grading(small_class: SmallClass, other_course: Course) -> None:
    small_class.hands_in("ada")
    before = small_class.grade().students[0]
    after = small_class.grade(course=other_course).students[0]
    assert len(small_class.graded) == 1
    assert _points(after)["environment_described"] != _points(before)["environment_described"]


def test_exports_say_that_the_course_has_changed(small_class: SmallClass, other_course: Course) -> None:
    small_class.hands_in("ada")
    small_class.grade()
    book = Book.open(small_class.out)
    assert book.changed_course(grader.course().rubric) == ""
    assert "class --out" in book.changed_course(other_course.rubric)
    lower = replace(grader.course().rubric, pass_percent=Decimal(40))
    assert "pass mark" in book.changed_course(lower)
    small_class.grade(course=replace(grader.course(), rubric=lower), submissions=None)
    assert len(small_class.graded) == 1
    assert Book.open(small_class.out).changed_course(lower) == ""


def test_a_lab_that_a_course_has_no_more_or_again_needs_no_submissions(small_class: SmallClass) -> None:
    course, all_labs = grader.course(), grader.course().rubric.labs
    fewer = replace(course, rubric=replace(course.rubric, labs=all_labs[:-1]))
    small_class.hands_in("ada")
    small_class.grade(labs=None)
    for now in (fewer, course):
        result = small_class.grade(course=now, submissions=None, labs=None)
        assert result.labs == tuple(lab.number for lab in now.rubric.labs)
    fewer = replace(course, rubric=replace(course.rubric, labs=all_labs[1:]))
    Book.open(small_class.out).override("ada", MEMORY, "0", "late plot")
    console = Console(file=io.StringIO(), width=1000)
    small_class.grade(course=fewer, submissions=None, labs=None, console=console)
    assert f"override of {MEMORY} for ada has no effect: its lab is not graded" in console.file.getvalue()
    book = Book.open(small_class.out)
    with pytest.raises(ValueError, match=f"there is no criterion '{MEMORY}'"):
        book.override("ada", MEMORY, "1", "again")
    other = fewer.labs[0].criteria[0].id
    book.override("ada", other, "0", "x")
    ada = small_class.grade(submissions=None, labs=None).students[0]
    assert [entry.criterion for entry in ada.overrides] == [MEMORY, other]
    assert small_class.grade(labs=(1,), submissions=None).labs == (1,)
    assert small_class.grade(labs=None, submissions=None).labs == (1,), "as the run before was told"


def _points(student: results.StudentResult) -> dict[str, Decimal]:
    assert student.grade is not None
    checks = student.grade.labs[0].criteria[0].checks
    return {check.id.rpartition(".")[2]: check.max_points for check in checks}


def test_only_the_criterion_whose_checks_changed_is_graded_again(
    small_class: SmallClass, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_class.hands_in("ada")
    before = small_class.grade()
    old = versions.digests(grader.course())
    monkeypatch.setattr(versions, "digests", lambda course: {**old, MEMORY: "changed"})
    after = small_class.grade()
    assert small_class.graded == [f"ada: {ALL}", f"ada: {MEMORY}"]
    assert _without_seconds(after) == _without_seconds(before)


def _without_seconds(result: results.ClassResult) -> list[object]:
    assert all(row.grade is not None for row in result.students)
    return [(row.student, row.score, class_summary.comparable(to_document(row.grade))) for row in result.students]


@pytest.mark.parametrize(
    ("names", "graded"),
    [
        ((MEMORY,), [f"ada: {MEMORY}", f"bob: {MEMORY}"]),
        (("bob",), [f"bob: {ALL}"]),
        ((MEMORY, "bob"), [f"bob: {MEMORY}"]),
        (("lab1",), [f"ada: {ALL}", f"bob: {ALL}"]),
    ],
    ids=["a criterion", "a student", "a criterion of a student", "a lab"],
)
def test_what_is_named_is_graded_again(small_class: SmallClass, names: tuple[str, ...], graded: list[str]) -> None:
    small_class.hands_in("ada")
    small_class.hands_in("bob")
    small_class.grade()
    small_class.grade(regrade=names)
    assert small_class.graded[2:] == graded


def test_to_grade_again_the_submissions_need_not_be_there_any_more(small_class: SmallClass) -> None:
    small_class.hands_in("ada")
    first = small_class.grade()
    small_class.submissions.rename(small_class.submissions.with_name("gone"))
    again = small_class.grade(submissions=None, labs=None, device=None, seed=None, regrade=("ada",))
    assert len(small_class.graded) == 2
    assert _without_seconds(again) == _without_seconds(first)


def test_who_is_to_be_graded_again_must_be_known(small_class: SmallClass) -> None:
    small_class.hands_in("ada")
    with pytest.raises(ValueError, match="--regrade eve: it is no criterion and no lab, and there is no such student"):
        small_class.grade(regrade=("eve",))
    with pytest.raises(ValueError, match=r"lab1\.memroy: it is no criterion \(did you mean 'lab1\.memory'\?\)"):
        small_class.grade(regrade=("lab1.memroy",))


@pytest.mark.parametrize("behaviour", ["busy", "suspended"])
def test_what_a_busy_machine_left_open_is_looked_at_once_more(small_class: SmallClass, behaviour: str) -> None:
    small_class.hands_in("ada", behaviour=behaviour)
    student = small_class.grade().students[0]
    small_class.grade()
    assert small_class.graded == [f"ada: {ALL}", f"ada: {MEMORY}"]
    assert student.grade is not None
    assert student.grade.exit_code != 3


def test_overrides_replace_points_and_are_read_anew(small_class: SmallClass, tmp_path: Path) -> None:
    small_class.hands_in("ada")
    file = tmp_path / "overrides.toml"
    entry = '[[override]]\nstudent = "ada"\ncriterion = "lab1.analysis"\npoints = {}\nreason = "seen by hand"\n'
    file.write_text(entry.format(4.5))
    grade = small_class.grade(overrides=file).students[0].grade
    assert grade is not None
    assert grade.labs[0].criteria[3].points == 4.5
    file.write_text(entry.format(1))
    grade = class_summary.read(small_class.out).students[0].grade
    assert grade is not None
    assert grade.labs[0].criteria[3].points == 1


def test_a_mistake_in_the_overrides_is_told_before_anything_is_graded(small_class: SmallClass, tmp_path: Path) -> None:
    small_class.hands_in("ada")
    (tmp_path / "overrides.toml").write_text("[[override]]\nstudent = 'ada'\n")
    with pytest.raises(ValueError, match="lacks the key 'criterion'"):
        small_class.grade(overrides=tmp_path / "overrides.toml")
    assert small_class.graded == []
    (tmp_path / "overrides.toml").unlink()
    with pytest.raises(
        ValueError, match=r"overrides\.toml, which has this class's overrides, is not there: put it back"
    ):
        small_class.grade(overrides=tmp_path / "overrides.toml")
    small_class.out.mkdir(exist_ok=True)
    for name, entry in (("reviews.toml", "accepted"), ("excused.toml", "excused")):
        (small_class.out / name).write_text(f"[[{entry}]]\nx = 1\n")
        with pytest.raises(ValueError, match=f"{name}:2: unknown key 'x'"):
            small_class.grade()
        (small_class.out / name).unlink()
    assert small_class.graded == []


def test_a_roster_that_has_changed_meanwhile_is_named(small_class: SmallClass, tmp_path: Path) -> None:
    for name in ("ada", "bob"):
        small_class.hands_in(name)
    roster, said = tmp_path / "roster.csv", io.StringIO()
    config = tmp_path / "class.toml"
    config.write_text('roster = "roster.csv"\n')
    roster.write_text("student,team\nada,blue\nbob,red\n")
    again = {"configuration": config, "submissions": None, "labs": None, "device": None, "seed": None}
    small_class.grade(configuration=config)
    small_class.grade(**again, console=Console(file=said, width=400))
    assert "has changed" not in said.getvalue()
    roster.write_text("student,team\nada,blue\nbob,\n")
    small_class.grade(**again, console=Console(file=said, width=400))
    assert "roster.csv) has changed for bob: give the submissions again, so that it counts" in said.getvalue()
    roster.write_bytes(b"\xff\xfe")
    small_class.grade(**again)  # nothing of it is needed


def test_students_of_the_roster_without_a_submission_are_missing(small_class: SmallClass, tmp_path: Path) -> None:
    small_class.hands_in("ada")
    roster = tmp_path / "roster.csv"
    roster.write_text("student,name\nada,Ada\nbob,Bob\n")
    ada, bob = small_class.grade(roster=roster).students
    assert (ada.name, ada.status) == ("Ada", "graded")
    assert (bob.name, bob.status, bob.score) == ("Bob", "missing", 0)


def test_lateness_costs_what_the_settings_say(small_class: SmallClass, tmp_path: Path) -> None:
    small_class.hands_in("ada")
    (tmp_path / "roster.csv").write_text("student,submitted_at\nada,2026-03-03T00:00+00:00\n")
    settings = tmp_path / "class.toml"
    settings.write_text(
        'title = "Autumn"\ndeadline = 2026-03-01T12:00:00+00:00\nroster = "roster.csv"\n[late]\npercent_per_day = 10\n'
    )
    result = small_class.grade(configuration=settings)
    (ada,) = result.students
    assert result.title == "Autumn"
    assert ada.late is not None
    assert ada.grade is not None
    assert (ada.late.points, ada.late.rule) == (4, "10 % of 20 points per day, 2 days")
    assert ada.score == ada.grade.score - 4


def test_a_refused_submission_has_a_reason_and_no_points(small_class: SmallClass) -> None:
    small_class.hands_in("ada")
    (small_class.submissions / "bob").mkdir()
    _, bob = small_class.grade().students
    assert (bob.status, bob.score) == ("refused", 0)
    assert "holds no lab" in bob.reason


def test_two_runs_cannot_grade_into_one_gradebook(small_class: SmallClass) -> None:
    small_class.hands_in("ada")
    with Gradebook(small_class.out, locked=True), pytest.raises(ValueError, match="another run is grading"):
        small_class.grade()
    assert small_class.graded == []


@pytest.mark.parametrize(
    ("mask", "bit", "closed", "open_to"),
    [
        (0o002, stat.S_ISGID, stat.S_IRWXO, stat.S_IRGRP | stat.S_IWGRP),
        (0o022, stat.S_ISGID, stat.S_IRWXG | stat.S_IRWXO, 0),
        (0o002, 0, stat.S_IRWXG | stat.S_IRWXO, 0),
        (0o077, 0, stat.S_IRWXG | stat.S_IRWXO, 0),
    ],
)
def test_a_class_is_its_owners_alone_or_its_groups(
    small_class: SmallClass, tmp_path: Path, mask: int, bit: int, closed: int, open_to: int
) -> None:
    """A group works in a folder that hands its group down, with a umask that lets the group write."""
    place = tmp_path / "shared"
    place.mkdir()
    place.chmod(0o770 | bit)
    small_class.hands_in("ada")
    before = os.umask(mask)
    try:
        small_class.grade(out=place / "spring")
    finally:
        os.umask(before)
    top = stat.S_IMODE((place / "spring").stat().st_mode)
    assert not top & closed
    inside = {path: path.stat().st_mode for path in (place / "spring").rglob("*")}
    assert len(inside) > 10
    assert [path for path, mode in inside.items() if mode & open_to != open_to] == []
    if mask == 0o077:
        assert [path for path, mode in inside.items() if mode & closed] == []
    if open_to:
        assert top & stat.S_ISGID


def test_a_gradebook_of_another_format_is_refused(small_class: SmallClass) -> None:
    small_class.hands_in("ada")
    small_class.grade()
    with Gradebook(small_class.out, locked=True) as gradebook:
        gradebook._database.execute("PRAGMA user_version = 99")
    with pytest.raises(results.GradebookError, match="its format is 99, ours is 1"):
        class_summary.read(small_class.out)


def test_no_gradebook_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(results.GradebookError, match="there is no gradebook"):
        class_summary.read(tmp_path)


def test_a_lab_that_does_not_exist_is_refused(small_class: SmallClass) -> None:
    small_class.hands_in("ada")
    with pytest.raises(ValueError, match="there is no lab 9"):
        small_class.grade(labs=(9,))


def test_every_table_has_the_order_of_the_roster(small_class: SmallClass) -> None:
    for student in ("ada", "bob", "zoe", "mallory", "eve"):
        small_class.hands_in(student)
    roster = small_class.out.parent / "roster.csv"
    roster.write_text("student,name\nzoe,Zoe\nida,Ida\nada,Ada\nbob,Bob\n")
    result = small_class.grade(roster=roster)
    order = ["zoe", "ida", "ada", "bob", "eve", "mallory"]
    assert [row.student for row in result.students] == order
    assert [row.student for row in class_summary.read(small_class.out).students] == order
    for name in ("grades.csv", "canvas.csv", "results.csv"):
        lines = (small_class.out / "exports" / name).read_text("utf-8-sig").splitlines()
        places = [next((n for n, line in enumerate(lines) if student in line.lower()), None) for student in order[:4]]
        assert sorted(place for place in places if place) == [place for place in places if place], name
    roster.write_text("student,name\nbob,Bob\nada,Ada\nida,Ida\nzoe,Zoe\n")
    assert [row.student for row in small_class.grade(roster=roster).students][:4] == ["bob", "ada", "ida", "zoe"]
