"""What an instructor decided about nobody, or without any effect, is told before anything is graded."""

from __future__ import annotations

import io
import os
import shutil
from pathlib import Path

import pytest
from rich.console import Console

import grader
from gradebook import identity
from gradebook.cli import integrity
from gradebook.grade_class import grade_class
from gradebook.grading import class_summary, run_before
from gradebook.grading.description import ClassRequest
from gradebook.intake.handed_in import IntakeError
from gradebook.results import ClassResult, GradebookError, Student
from gradebook.settings import SettingsError
from gradebook.store import Gradebook
from gradebox.run.overrides import OverrideError
from tests.gradebook.conftest import SmallClass
from tests.gradebook.fakes import fake_engine


def override(student: str, criterion: str = "lab1.analysis") -> str:
    return f'[[override]]\nstudent = "{student}"\ncriterion = "{criterion}"\npoints = 4\nreason = "oral"\n'


def grade(small: SmallClass, configuration: str = "", roster: str = "") -> tuple[ClassResult, str]:
    """Grade, and return what was said."""
    folder = small.submissions.parent
    (folder / "class.toml").write_text(configuration)
    (folder / "roster.csv").write_text(roster)
    said = io.StringIO()
    request = ClassRequest(
        course=grader.course(),
        submissions=small.submissions,
        out=small.out,
        configuration=folder / "class.toml",
        roster=folder / "roster.csv" if roster else None,
        labs=(1,),
        device="vgpu",
        seed=7,
    )
    result = grade_class(request, fake_engine, Console(file=said, width=400))
    return result, said.getvalue()


def test_an_override_for_nobody_is_refused_and_suggests_nobody_else(small_class: SmallClass) -> None:
    small_class.hands_in("bob")
    small_class.out.mkdir()
    (small_class.out / "overrides.toml").write_text(override("bobb"))
    with pytest.raises(
        OverrideError, match=r"lab1\.analysis for 'bobb': there is no such student in this class"
    ) as info:
        grade(small_class)
    assert "'bob'" not in str(info.value)
    assert small_class.graded == []


def test_an_override_written_after_the_grading_is_checked_too(small_class: SmallClass) -> None:
    from gradebook.grading import class_summary

    small_class.hands_in("bob")
    grade(small_class)
    (small_class.out / "overrides.toml").write_text(override("Bobby"))
    with pytest.raises(GradebookError, match="there is no such student"):
        class_summary.read(small_class.out)


def test_an_extension_for_nobody_is_refused(small_class: SmallClass) -> None:
    small_class.hands_in("ada")
    with pytest.raises(SettingsError, match=r"class\.toml: \[extensions\] 'adda': there is no such student"):
        grade(small_class, "[extensions]\nadda = 2026-11-29T23:59:00+01:00\n")


def test_who_is_in_the_roster_only_may_have_both(small_class: SmallClass) -> None:
    small_class.hands_in("ada")
    small_class.out.mkdir()
    (small_class.out / "overrides.toml").write_text(override("eve"))
    result, said = grade(small_class, "[extensions]\neve = 2026-11-29T23:59:00+01:00\n", "student\nada\neve\n")
    assert "has no effect" not in said
    assert [(row.student, row.status, str(row.score)) for row in result.students][1] == ("eve", "missing", "4")


def test_an_override_in_another_lab_is_said_to_have_no_effect(small_class: SmallClass) -> None:
    small_class.hands_in("ada")
    small_class.out.mkdir()
    (small_class.out / "overrides.toml").write_text(override("ada", "lab2.amp"))
    (small_class.out / "excused.toml").write_text('[[excused]]\nstudent = "ada"\nlab = 2\nreason = "ill"\n')
    _, said = grade(small_class)
    assert "excused.toml lets ada off lab 2, which is not graded in this class, so it has no effect" in said
    assert "the override of lab2.amp for ada has no effect: its lab is not graded in this class" in said


LATE = "deadline = 2026-03-01T12:00:00+00:00\n{}[late]\npercent_per_day = 10\n"


def test_penalties_that_can_meet_nobody_are_said(small_class: SmallClass) -> None:
    folder = small_class.hands_in("ada")
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (1.775e9, 1.775e9))  # four weeks after the deadline
    result, said = grade(small_class, LATE.format(""))
    assert result.students[0].late is None
    assert "no submission time is known for 1 submission, so no penalty was applied" in said
    small_class.hands_in("bob")
    _, said = grade(small_class, LATE.format(""), "student,submitted_at\nada,2026-03-01T10:00Z\nbob,\n")
    assert "no submission time is known for 1 submission (bob), so no penalty was applied" in said
    assert "cannot be read" not in said
    _, said = grade(small_class, LATE.format(""), "student,Last modified (submission)\nada,3/4/26 1:00\nbob,-\n")
    assert "The roster's column 'Last modified (submission)' has '3/4/26 1:00' for ada, which cannot be read" in said
    ours = "student,submitted_at,submission_sha256,late_rule\nada,2026-03-01T10:00Z,,\nbob,2026-03-01T10:00Z,,\n"
    _, said = grade(small_class, LATE.format(""), ours)
    assert "is known for 2 submissions" in said
    assert "The roster is a table of grades, whose times may be those of another assignment" in said
    shutil.rmtree(small_class.submissions / "bob")
    result, said = grade(small_class, LATE.format('submitted = "files"\n'))
    assert result.students[0].late is not None
    assert "no submission time is known" not in said


def test_work_of_who_was_excused_is_named(small_class: SmallClass) -> None:
    small_class.hands_in("ada")
    small_class.hands_in("bob")
    small_class.out.mkdir()
    entries = '[[excused]]\nstudent = "ada"\nreason = "ill"\n[[excused]]\nstudent = "bob"\nreason = "ill"\n'
    (small_class.out / "excused.toml").write_text(f"{entries}at = 2126-03-01T12:00:00Z\n")
    said = "excused, and handed in after that, which does not count: ada. excused.toml has the entries"
    assert said in grade(small_class)[1]


def test_what_has_no_copy_any_more_is_not_graded_again(small_class: SmallClass) -> None:
    small_class.hands_in("ada")
    before = grade(small_class)[0].students[0].score
    shutil.rmtree(small_class.out / "submissions")
    with pytest.raises(IntakeError, match=r"no longer in .*submissions: ada\. Their scores stay as they are; give"):
        small_class.grade(submissions=None, regrade=("ada",))
    with pytest.raises(IntakeError, match=r"no longer in .*submissions: ada"):
        small_class.grade(submissions=None, regrade=("lab1.memory",))
    assert class_summary.read(small_class.out).students[0].score == before
    folders, gone, _ = integrity._submissions(small_class.out, small_class.out)
    assert (folders, [student.student for student in gone]) == ({}, ["ada"])
    small_class.grade(regrade=("ada",))
    assert list(integrity._submissions(small_class.out, small_class.out)[0]) == ["ada"]


def test_a_class_without_a_title_is_said_to_be_named_after_its_folder_in_moodle(small_class: SmallClass) -> None:
    small_class.hands_in("ada")
    moodle = "Identifier,Full name\nParticipant 7,Ada\n"
    said = "class.toml has no title, so the files for Moodle are named after the folder of submissions: set title"
    assert [said in grade(small_class, text, moodle)[1] for text in ("", 'title = "Lab 1"\n')] == [True, False]
    assert said not in grade(small_class, "", "student,name\nada,Ada\n")[1]


def test_without_penalties_nobody_need_know_the_time(small_class: SmallClass) -> None:
    small_class.hands_in("ada")
    assert "no submission time is known" not in grade(small_class, "deadline = 2026-03-01T12:00:00+00:00\n")[1]


@pytest.mark.parametrize("out", [".", "gradebook"])
def test_a_gradebook_among_the_submissions_would_become_a_student(small_class: SmallClass, out: str) -> None:
    small_class.hands_in("ada")
    before = sorted(small_class.submissions.rglob("*"))
    with pytest.raises(GradebookError, match="is in the folder of submissions"):
        small_class.grade(out=small_class.submissions / out)
    assert sorted(small_class.submissions.rglob("*")) == before


def test_the_originals_are_never_where_copies_are_kept(small_class: SmallClass) -> None:
    small_class.hands_in("ada")
    with pytest.raises(GradebookError, match="keeps its own files"):
        small_class.grade(out=small_class.submissions.parent)
    assert [path.name for path in small_class.submissions.iterdir()] == ["ada"]


def test_what_a_class_leaves_is_no_submission(small_class: SmallClass, tmp_path: Path) -> None:
    small_class.hands_in("ada")
    small_class.grade()
    for place in (small_class.out, small_class.out / "exports"):
        with pytest.raises(GradebookError, match=r"is what a class leaves in its folder .* and no submissions"):
            small_class.grade(submissions=place, out=tmp_path / "other")
    small_class.submissions.rename(small_class.out / "handed-in")
    assert small_class.grade(submissions=small_class.out / "handed-in", out=tmp_path / "other").students


def test_somebody_elses_exports_are_not_written_over(small_class: SmallClass) -> None:
    small_class.hands_in("ada")
    mine = small_class.out / "exports" / "feedback" / "ada.html"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with pytest.raises(GradebookError, match="has no gradebook, but holds 'exports', which would be written over"):
        small_class.grade()
    assert mine.read_text() == "mine"


def test_a_folder_with_other_files_may_be_used(small_class: SmallClass, tmp_path: Path) -> None:
    small_class.hands_in("ada")
    small_class.out.mkdir()
    (small_class.out / "notes.txt").write_text("mine")
    assert small_class.grade().students[0].status == "graded"
    assert small_class.grade().students[0].status == "graded"


def test_a_team_that_one_members_extension_tears_apart_is_named(small_class: SmallClass) -> None:
    small_class.hands_in("one")
    moment = "2026-03-05T10:00+01:00"
    roster = f"student,team,submitted_at\nada,one,{moment}\nbob,one,{moment}\n"
    text = 'timezone = "Europe/Berlin"\ndeadline = 2026-03-01T23:59:00\n[late]\npercent_per_day = 10\n[extensions]\n'
    _, said = grade(small_class, text + "ada = 2026-03-08T23:59:00\n", roster)
    assert "the work of the team one is late for bob (deadline 2026-0" in said
    assert "write 'one' into [extensions] for all of them, and remove entries of its members" in said
    result, said = grade(small_class, text + "one = 2026-03-08T23:59:00\n", roster)
    assert "the work of the team" not in said
    assert all(student.late is None for student in result.students)


def test_an_extension_that_ends_before_the_deadline_is_named(small_class: SmallClass) -> None:
    """The deadline of all may have been moved behind it."""
    small_class.hands_in("ada")
    text = "deadline = 2026-03-05T23:59:00Z\n[extensions]\nada = 2026-03-0{}T23:59:00Z\n"
    for day, is_named in ((3, True), (5, False), (6, False)):
        _, said = grade(small_class, text.format(day), "student\nada\n")
        assert ("[extensions] of ada ends before the deadline of the class" in said) == is_named


def test_a_class_that_is_mostly_missing_is_no_silence(small_class: SmallClass) -> None:
    """And the second look at the same class counts from the beginning."""
    for number in range(4):
        small_class.hands_in(f"s{number}")
    students = [f"s{number}\n" for number in range(7)]
    _, said = grade(small_class, roster="student\n" + "".join(students))
    assert "note: 3 of 7 students handed in nothing. If the download is not whole" in said
    _, said = grade(small_class, roster="student\n" + "".join(students[:6]))
    assert "handed in nothing. If" not in said
    _, said = grade(small_class, roster="student\ns0\nx1\nx2\nx3\n")
    assert "note: 3 of 4 students handed in nothing. If" in said, "who is outside the roster is no student"


def test_a_second_look_is_counted_by_itself(small_class: SmallClass) -> None:
    small_class.hands_in("ada", behaviour="busy")
    small_class.hands_in("bob")
    _, said = grade(small_class)
    assert "2/2 " in said
    assert "1/1 ada" in said
    assert "3/1" not in said


def test_another_class_does_not_replace_one(small_class: SmallClass) -> None:
    for name in ("ada", "bob", "cleo"):
        small_class.hands_in(name)
    small_class.grade()
    before = [row.student for row in class_summary.read(small_class.out).students]
    shutil.rmtree(small_class.submissions)
    for name in ("xena", "yves", "zoe"):
        small_class.hands_in(name)
    message = r"has another class: none of its 3 students \(ada, bob, cleo\) is among these 3 \(xena, yves, zoe\)"
    with pytest.raises(GradebookError, match=message):
        small_class.grade()
    assert [row.student for row in class_summary.read(small_class.out).students] == before
    small_class.hands_in("ada")
    small_class.grade()


def test_a_folder_with_a_class_of_another_course_is_refused(small_class: SmallClass) -> None:
    small_class.hands_in("ada")
    small_class.grade()
    with Gradebook(small_class.out, locked=False) as gradebook:
        plan = gradebook.plan()
    run_before.check_course(plan, [*plan.digests, "lab9.new"], small_class.out)
    run_before.check_course(None, ["lab1.walks"], small_class.out)
    with pytest.raises(
        GradebookError, match=r"out has a class of another course, with lab1.*lab1\.walks\. Name another"
    ):
        run_before.check_course(plan, ["lab1.walks"], small_class.out)


def test_a_part_of_a_name_names_whom_it_may_mean(small_class: SmallClass) -> None:
    small_class.hands_in("a")
    roster = "student,name\na,FNU Rahul\nb,FNU Priyanka\nc,Madonna\n"
    result, _ = grade(small_class, roster=roster)
    students = [
        Student(student=row.student, name=row.name, columns=row.columns, status="taken") for row in result.students
    ]
    directory = identity.Directory(students, ())
    with pytest.raises(identity.UnknownStudentError, match=r"it is a part of a name only, of 'a' \(FNU Rahul\), 'b'"):
        directory.keys("fnu")
    with pytest.raises(identity.UnknownStudentError, match="no such student in this class"):
        directory.keys("Madonnas")
    assert directory.keys("Madonna .") == directory.keys("- Madonna") == ("c",)
