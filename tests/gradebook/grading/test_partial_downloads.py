"""A later run with fewer submissions takes nobody's grade, and says whom it concerns."""

from __future__ import annotations

import csv
import io
import shutil
import time
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from gradebook.export.book import Book
from gradebook.grading import missing
from gradebook.results import ClassResult, Student
from gradebook.settings import Settings
from grader.cli import app
from tests.gradebook.conftest import SmallClass

ROSTER = "student,name,team\nada,Ada,\nbob,Bob,blue\ncleo,Cleo,blue\ndan,Dan,\n"


def graded(small: SmallClass, **options: object) -> tuple[ClassResult, str]:
    screen = io.StringIO()
    result = small.grade(console=Console(file=screen, width=1000), **options)
    return result, screen.getvalue()


@pytest.fixture
def roster(small_class: SmallClass, tmp_path: Path) -> Path:
    for name in ("ada", "blue"):
        small_class.hands_in(name)
    (tmp_path / "roster.csv").write_text(ROSTER)
    return tmp_path / "roster.csv"


def test_who_handed_in_before_keeps_the_grade_until_a_person_decides(small_class: SmallClass, roster: Path) -> None:
    first, _ = graded(small_class, roster=roster)
    shutil.rmtree(small_class.submissions)
    small_class.hands_in("dan")
    second, said = graded(small_class, roster=roster)
    scores = {row.student: row.score for row in first.students}
    assert {row.student: row.score for row in second.students} == {**scores, "dan": second.students[-1].score}
    assert [row.student for row in second.students if row.outdated] == ["ada", "bob", "cleo"]
    assert "ada, bob, cleo: handed in before, and is not in these submissions" in said
    listed = CliRunner().invoke(app, ["review", str(small_class.out)])
    assert listed.exit_code == 3
    assert "older work counts" in listed.output
    small_class.hands_in("ada")
    small_class.hands_in("blue")
    third, _ = graded(small_class, roster=roster)
    assert not any(row.outdated for row in third.students)


def test_earlier_work_counts_also_if_somebody_else_has_the_same(small_class: SmallClass, tmp_path: Path) -> None:
    (tmp_path / "roster.csv").write_text("student,name\nada,Ada\nbob,Bob\n")
    for name in ("ada", "bob"):
        small_class.hands_in(name, text="the same")
    graded(small_class, roster=tmp_path / "roster.csv")
    shutil.rmtree(small_class.submissions / "bob")
    result, said = graded(small_class, roster=tmp_path / "roster.csv")
    ada, bob = result.students
    assert (bob.status, bob.score, bob.outdated) == ("graded", ada.score, True)
    assert "bob: handed in before, and is not in these submissions" in said


def test_earlier_work_stays_with_a_student_whose_key_is_another_one(small_class: SmallClass, tmp_path: Path) -> None:
    for name in ("Ada Lovelace", "Bob Ross", "Wei Zhang", "dan"):
        small_class.hands_in(name)
    first, _ = graded(small_class)
    Book.open(small_class.out).override("Bob Ross", "lab1.memory", "0", "late")
    for name in ("Ada Lovelace", "Wei Zhang"):
        shutil.rmtree(small_class.submissions / name)
    roster = tmp_path / "roster.csv"
    roster.write_text("student,name\nal1,Ada Lovelace\nbr2,Bob Ross\nwz3,Wei Zhang\nwz4,Wei Zhang\ndan,Dan\n")
    second, said = graded(small_class, roster=roster)
    ada, bob, *namesakes, _ = second.students
    assert (ada.student, ada.score, ada.outdated) == ("al1", first.students[0].score, True)
    assert [entry.criterion for entry in bob.overrides] == ["lab1.memory"]
    assert "older than the submission" not in said
    assert [(row.score, row.withheld) for row in namesakes] == [(None, True)] * 2, (
        "whose of the two it was nobody knows"
    )
    assert (
        "what 'Wei Zhang' handed in before counts for nobody, because several students have this name: wz3, wz4" in said
    )


def test_a_zero_waits_while_earlier_work_of_that_name_is_nobodys(small_class: SmallClass, tmp_path: Path) -> None:
    for name in ("Wei Zhang", "Lovelace", "dan"):
        small_class.hands_in(name)
    graded(small_class)
    shutil.rmtree(small_class.submissions / "Lovelace")
    (small_class.submissions / "Wei Zhang").rename(tmp_path / "Wei Zhang")
    roster = tmp_path / "roster.csv"
    roster.write_text(
        "Student,ID,SIS User ID,SIS Login ID,Section\nAda Lovelace,1,s1,al1,A\nWei Zhang,2,s2,wz3,A\n"
        "Wei Zhang,3,s3,wz4,A\nDan Brown,4,s4,dan,A\nEmmy Noether,5,s5,emmy,A\n"
    )
    for _ in range(2):  # the second run knows it from the gradebook alone
        graded(small_class, roster=roster)
        assert [row["status"] for row in grades(small_class) if not row["score"]] == ["missing"] * 3
        exported = (small_class.out / "exports" / "canvas.csv").read_text()
        assert [name for name in ("al1", "wz3", "wz4", "dan", "emmy") if name in exported] == ["dan", "emmy"]
    listed = CliRunner().invoke(app, ["review", str(small_class.out)])
    assert "earlier work of 'Wei Zhang' counts for nobody, and may be theirs" in " ".join(listed.output.split())
    (tmp_path / "Wei Zhang").rename(small_class.submissions / "wz3")
    graded(small_class, roster=roster)
    assert [row["name"] for row in grades(small_class) if not row["score"]] == ["Ada Lovelace"], "it is somebody's now"


@pytest.mark.parametrize("what", ["refused", "fails"])
def test_who_has_a_zero_waits_while_another_folder_may_be_theirs(
    small_class: SmallClass, tmp_path: Path, what: str
) -> None:
    if what == "refused":
        (small_class.submissions / "ada.zip").write_bytes(b"PK broken")
    else:
        small_class.hands_in("ada", behaviour="fails")
    small_class.hands_in("bob", behaviour="fails")
    small_class.hands_in("A. Lovelace new")
    (tmp_path / "roster.csv").write_text("student,name\nada,Ada Lovelace\nbob,Bob Ross\n")
    graded(small_class, roster=tmp_path / "roster.csv")
    assert [(row["student"], row["score"]) for row in grades(small_class)][:2] == [("ada", ""), ("bob", "0")]
    listed = CliRunner().invoke(app, ["review", str(small_class.out)])
    assert "A. Lovelace new matches nobody in the roster: it may be theirs" in " ".join(listed.output.split())
    assert CliRunner().invoke(app, ["review", str(small_class.out), "--accept", "ada", "handing-in"]).exit_code == 0
    assert grades(small_class)[0]["score"] == "0"


def test_who_never_handed_in_or_left_a_team_has_nothing(small_class: SmallClass, roster: Path) -> None:
    graded(small_class, roster=roster)
    roster.write_text(ROSTER.replace("cleo,Cleo,blue", "cleo,Cleo,"))
    result, said = graded(small_class, roster=roster)
    assert [(row.student, row.score) for row in result.students if row.status == "missing"] == [
        ("cleo", Decimal(0)), ("dan", Decimal(0)),
    ]  # fmt: skip
    assert "handed in before" not in said


def test_without_a_roster_who_is_gone_is_named(small_class: SmallClass) -> None:
    for name in ("ada", "bob"):
        small_class.hands_in(name)
    graded(small_class)
    shutil.rmtree(small_class.submissions / "ada")
    assert "no longer in the class, because these submissions do not have them: ada. Give all" in graded(small_class)[1]


def test_another_lab_in_the_same_class_is_said(small_class: SmallClass) -> None:
    small_class.hands_in("ada")
    assert "this class was graded" not in graded(small_class)[1] + graded(small_class)[1]
    assert "note: this class was graded for lab 1, and is now for lab 1, 2" in graded(small_class, labs=(1, 2))[1]


def test_a_file_without_labs_has_all_of_them_with_submissions_or_without(
    small_class: SmallClass, tmp_path: Path
) -> None:
    small_class.hands_in("ada")
    graded(small_class, labs=(1,))
    settings = tmp_path / "class.toml"
    settings.write_text('title = "Class"\n')
    said = graded(small_class, submissions=None, configuration=settings, labs=None)[1]
    assert "note: this class was graded for lab 1, and is now for lab 1, 2" in said


def test_scores_that_change_from_run_to_run_are_named(small_class: SmallClass, tmp_path: Path) -> None:
    for name in ("ada", "bob", "cleo"):
        small_class.hands_in(name)
    roster, settings = tmp_path / "roster.csv", tmp_path / "class.toml"
    roster.write_text("student,submitted_at\nada,2026-03-02T10:00Z\nbob,2026-03-01T10:00Z\ncleo,\ndan,\n")

    def run(deadline: str) -> str:
        settings.write_text(f"labs = [1]\ndeadline = {deadline}\n[late]\npoints_per_day = 2\n")
        return graded(small_class, roster=roster, configuration=settings, labs=None)[1]

    assert "changed since" not in run("2026-03-01T23:59:00Z") + run("2026-03-01T23:59:00Z")
    late = {row["student"]: row["score"] for row in grades(small_class)}
    said = run("2026-03-02T23:59:00Z")
    new = {row["student"]: row["score"] for row in grades(small_class)}
    assert float(new["ada"]) == float(late["ada"]) + 2
    assert f"note: 1 score changed since the exports before: ada {late['ada']} → {new['ada']}" in said
    small_class.hands_in("bob", "another text")
    small_class.hands_in("dan")
    said = run("2026-03-02T23:59:00Z")
    after = {row["student"]: row["score"] for row in grades(small_class)}
    named = [f"{key} {new[key]} → {after[key]}" for key in ("bob", "dan") if new[key] != after[key]]
    assert (f"since the exports before: {', '.join(named)}\n" in said) == bool(named)


def grades(small: SmallClass) -> list[dict[str, str]]:
    text = (small.out / "exports" / "grades.csv").read_text("utf-8-sig")
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_whose_names_are_alike_come_first_among_those_that_may_be_a_students_own() -> None:
    """And that a platform knows a time is no reason to hide them."""
    outside = ["Bob Ross", "Carla", "Ada Lovelace"]
    now = datetime(2026, 3, 5, tzinfo=UTC)
    for at in (None, now):
        student = Student(
            student="s1", name="Ada King Lovelace", columns={"ID": "1"}, status="missing", submitted_at=at
        )
        said = missing.result_of(student, outside, Settings(), now)
        assert said.score is None
        assert "Ada Lovelace, Bob Ross, Carla match nobody in the roster: one of them may be theirs" in said.reason


def of_two_labs(small: SmallClass, student: str) -> Path:
    """All checks pass."""
    folder = small.hands_in(student)
    for lab in ("lab1_gpu_basics", "lab2_mixed_precision"):
        (folder / lab).mkdir(exist_ok=True)
        for name in (f"{student}.py", "passes.txt"):
            (folder / lab / name).touch()
    return folder


def review(small: SmallClass, *decision: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["review", str(small.out), *decision])
    return done.exit_code, " ".join(done.output.split())


@pytest.mark.parametrize("part", ["lab1_gpu_basics", "lab2_mixed_precision/passes.txt"])
def test_if_only_a_part_comes_again_the_score_waits_for_a_person(small_class: SmallClass, part: str) -> None:
    folders = [of_two_labs(small_class, name) for name in ("ada", "bob")]
    # A key that does not show the name is printed with it, and is the key all the same.
    (small_class.out.parent / "roster.csv").write_text("student,name\nada,Grace Hopper\nbob,Bob\n")
    roster = {"roster": small_class.out.parent / "roster.csv"}
    assert {row.score for row in graded(small_class, labs=(1, 2), **roster)[0].students} == {40}
    kept = folders[0] / part
    shutil.rmtree(kept) if kept.is_dir() else kept.unlink()
    for _ in range(2):  # also if the same comes once more
        ada, _ = graded(small_class, labs=(1, 2), **roster)[0].students
        assert f"{part} was in an earlier submission, with 20 points for the lab instead of" in ada.reason
        assert [row["score"] for row in grades(small_class)] == ["", "40"]
    exports = small_class.out / "exports"
    feedback = (exports / "feedback" / "ada.md").read_text()
    assert "There is no score yet" in feedback
    assert feedback.splitlines()[0].endswith("points, no score yet")
    assert '<span class="verdict">no score yet</span>' in (exports / "feedback" / "ada.html").read_text()
    assert "work may be missing: no score until somebody decides" in (exports / "class.html").read_text()
    code, text = review(small_class)
    assert (code, "perhaps a part only" in text) == (3, True)
    earlier = small_class.out / ada.earlier[0]
    assert f"copy it into this submission, and run the class again: {earlier}" in text
    assert (earlier / "ada.py").is_file()
    review(small_class, "--accept", "ada", "handing-in")
    assert 20 <= float(grades(small_class)[0]["score"]) < 40
    assert "There is no score yet" not in (exports / "feedback" / "ada.md").read_text()
    shutil.copytree(earlier, folders[0] / part.partition("/")[0], dirs_exist_ok=True)
    assert graded(small_class, labs=(1, 2), **roster)[0].students[0].score == 40


def test_if_a_lab_loses_all_points_the_score_waits_for_a_person(small_class: SmallClass) -> None:
    """Such as by stubs that were handed in over the work: no file is missing."""
    lab = of_two_labs(small_class, "ada") / "lab1_gpu_basics"
    graded(small_class, labs=(1, 2))
    (lab / "passes.txt").rename(lab / "behaviour.txt")
    (lab / "behaviour.txt").write_text("fails")
    ada = small_class.grade(labs=(1, 2)).students[0]
    assert (ada.score, ada.score_if_accepted) == (None, 20)
    assert ada.reason.endswith("lab1_gpu_basics had 20 points in an earlier submission, and has 0 now")
    assert (small_class.out / ada.earlier[0] / "passes.txt").is_file()
    review(small_class, "--accept", "ada", "handing-in")
    assert grades(small_class)[0]["score"] == "20"


def test_points_by_hand_for_what_is_gone_are_a_decision(small_class: SmallClass) -> None:
    folder = of_two_labs(small_class, "ada")
    graded(small_class, labs=(1, 2))
    shutil.rmtree(folder / "lab1_gpu_basics")
    assert small_class.grade(labs=(1, 2)).students[0].score is None
    Book.open(small_class.out).override("ada", "lab1.memory", "1", "asked")
    assert small_class.grade(labs=(1, 2)).students[0].score is not None


def test_who_hands_in_other_files_or_loses_no_points_does_not_wait(small_class: SmallClass) -> None:
    folder = of_two_labs(small_class, "ada")
    graded(small_class, labs=(1, 2))
    (folder / "lab1_gpu_basics" / "ada.py").unlink()
    assert small_class.grade(labs=(1, 2)).students[0].score == 40
    (folder / "lab1_gpu_basics" / "passes.txt").rename(folder / "lab1_gpu_basics" / "own.txt")
    assert 20 <= (small_class.grade(labs=(1, 2)).students[0].score or 0) < 40


def test_a_refused_resubmission_waits_if_an_earlier_one_was_graded(small_class: SmallClass) -> None:
    for name in ("ada", "bob"):
        small_class.hands_in(name)
    graded(small_class)
    shutil.rmtree(small_class.submissions / "ada")
    for name in ("ada", "cleo"):
        (small_class.submissions / f"{name}.zip").write_bytes(b"PK broken")
    graded(small_class)
    assert [(row["status"], row["score"]) for row in grades(small_class)][::2] == [("refused", ""), ("refused", "0")]
    code, text = review(small_class)
    assert (code, "an earlier submission was graded" in text) == (3, True)
    review(small_class, "--accept", "ada", "handing-in")
    assert grades(small_class)[0]["score"] == "0"


def test_an_override_is_for_other_files_only_while_these_count(small_class: SmallClass) -> None:
    small_class.hands_in("ada")
    graded(small_class)
    time.sleep(1.1)  # moments are written in seconds
    Book.open(small_class.out).override("ada", "lab1.memory", "1", "asked")
    time.sleep(1.1)
    small_class.hands_in("ada", text="changed")
    first = small_class.grade()
    assert [entry.criterion for entry in first.students[0].overrides_for_other_files] == ["lab1.memory"]
    small_class.hands_in("ada")
    assert not small_class.grade().students[0].overrides_for_other_files, "the first version is back"
