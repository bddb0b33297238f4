"""Points by hand next to those of checks: in every student's line, and in what counts once they are released."""

from __future__ import annotations

import csv
import json
import re
from decimal import Decimal
from pathlib import Path

import pytest

from gradebook.cli import classroom
from gradebook.cli import manual as manual_command
from gradebook.export import everything, review_list, view
from gradebook.export.book import Book
from gradebook.export.gradescope import SCHEMA_FILE
from gradebook.grading import excused
from gradebook.grading.manual_grading import comments, marks, requests, units
from gradebook.grading.manual_grading.comments import Comment
from gradebook.results import Excused, GradebookError, Student
from tests.gradebook.conftest import SmallClass
from tests.gradebook.manual_grading.conftest import RUBRIC, ManualClass


def grade_all(manual: ManualClass) -> None:
    """Ada has 4.5 of 6 and 3 of 4; the team has all."""
    manual.comments([("late_axis", "discussion", "-1.5"), ("good", "figures", "3"), ("best", "figures", "4")])
    manual.give("student ada", "discussion", comments=("late_axis",))
    manual.give("student ada", "figures", comments=("good",), text="Label the axis.")
    manual.give("team blue", "discussion", by="Ben")
    manual.give("team blue", "figures", by="Ben", comments=("best",))


def table(manual: ManualClass, name: str) -> dict[str, dict[str, str]]:
    with (manual.folder / "exports" / name).open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    return {next(iter(row.values())): row for row in rows}


def test_before_they_are_released_points_by_hand_change_no_score(manual: ManualClass) -> None:
    before = {student.student: student.score for student in manual.read().students}
    grade_all(manual)
    after = manual.read()
    assert {student.student: student.score for student in after.students} == before
    assert after.max_score == 20
    Book.open(manual.folder).export()
    for path in (manual.folder / "exports" / "feedback").iterdir():
        assert "graded by people" not in path.read_text()
    assert table(manual, "grades.csv")["ada"]["by_hand"] == "7.5"


def test_released_they_are_added_and_the_total_says_so(manual: ManualClass) -> None:
    before = {student.student: student.score for student in manual.read().students}
    grade_all(manual)
    manual.write_rubric(released=True)
    after = manual.read()
    assert after.max_score == 30
    gained = {student.student: (student.score or 0) - (before[student.student] or 0) for student in after.students}
    assert gained == {"ada": Decimal("7.5"), "bob": 10, "cleo": 10, "eve": 0}
    assert before["bob"] == before["cleo"]
    Book.open(manual.folder).export()
    page = (manual.folder / "exports" / "feedback" / "ada.html").read_text()
    assert "Report, graded by people <span>7.5 / 10</span>" in page
    assert f"Together {gained['ada'] + (before['ada'] or 0):f} of 30" in page
    assert "Label the axis." in page
    assert not re.search(r"\bAna\b", page)  # who graded is not said to students
    assert table(manual, "grades.csv")["ada"]["by_hand_graders"] == "Ana"
    assert table(manual, "grades.csv")["bob"]["manual.figures"] == "4"


def test_passing_is_decided_by_the_points_of_checks(manual: ManualClass) -> None:
    grade_all(manual)
    before = {line.student: line.passed for line in Book.open(manual.folder).view.lines}
    manual.write_rubric(released=True)
    assert {line.student: line.passed for line in Book.open(manual.folder).view.lines} == before


def test_who_is_not_graded_to_the_end_has_no_score_and_is_in_no_file_for_platforms(manual: ManualClass) -> None:
    grade_all(manual)
    manual.give("student ada", "figures", done=False)
    manual.write_rubric(released=True)
    assert manual.line("ada").score is None
    Book.open(manual.folder).export()
    assert "ada" not in (manual.folder / "exports" / "canvas.csv").read_text()
    assert "bob" in (manual.folder / "exports" / "canvas.csv").read_text()
    notices = everything.notices(manual.read(), manual.folder)
    assert any("not graded by hand to the end, so no score" in text and "ada" in text for text in notices)


def test_a_run_names_whose_submission_people_have_still_to_grade(
    manual: ManualClass, capsys: pytest.CaptureFixture[str]
) -> None:
    grade_all(manual)
    manual.give("student ada", "figures", done=False)
    manual.write_rubric(released=True)
    classroom._show(manual.read(), manual.folder)
    assert "not graded by hand to the end, so no score, and in no file for platforms: ada" in capsys.readouterr().out


def test_points_in_the_place_of_a_submission_are_none_that_people_grade(
    manual: ManualClass, capsys: pytest.CaptureFixture[str]
) -> None:
    Book.open(manual.folder).override("eve", "lab1.memory", "3", "shown in the exercise")
    assert manual_command._say_progress(Book.open(manual.folder)) == 2
    assert "0 of 2 submissions are graded by hand" in capsys.readouterr().out


def test_marks_for_a_criterion_that_was_renamed_are_named(manual: ManualClass) -> None:
    grade_all(manual)
    manual.write_rubric(text=RUBRIC.replace('id = "figures"', 'id = "plots"'))
    comments.save(manual.folder, [*comments.load(manual.folder).values(), Comment("x1", "figurs", "Axes?")])
    assert "comments for a criterion 'figurs', which no rubric has" in str(
        everything.notices(manual.read(), manual.folder)
    )
    (notice,) = [text for text in everything.notices(manual.read(), manual.folder) if "no criterion" in text]
    assert "no criterion 'figures', for which 2 submissions have marks" in notice


def test_points_for_other_files_do_not_count_until_somebody_has_looked_again(
    manual: ManualClass, tmp_path: Path
) -> None:
    grade_all(manual)
    manual.write_rubric(released=True)
    score = manual.line("ada").score
    manual.small.hands_in("ada", text="another version")
    manual.small.grade(roster=tmp_path / "roster.csv")
    line = manual.line("ada")
    assert line.manual is not None
    assert line.manual.anew
    assert line.score is None
    assert [criterion.points for criterion in line.manual.criteria] == [None, None]
    assert all(criterion.former is not None and criterion.remarks for criterion in line.manual.criteria)
    Book.open(manual.folder).export()
    feedback = manual.folder / "exports" / "feedback"
    for suffix in ("md", "html"):
        text = (feedback / f"ada.{suffix}").read_text().lower()
        assert text.count("not graded again yet; what you handed in before had") == 2, "what was said stays readable"
    kept = marks.keep(manual.folder, "student ada", manual.units()["student ada"].content, "Ben")
    assert {mark.by for mark in kept} == {"Ben"}
    line = manual.line("ada")
    assert line.manual is not None
    assert line.manual.points == Decimal("7.5")
    assert score is not None


def test_another_comment_is_everybodys_who_has_it(manual: ManualClass) -> None:
    grade_all(manual)
    manual.give("team blue", "discussion", by="Ben", comments=("late_axis",))
    manual.comments([("late_axis", "discussion", "-2"), ("good", "figures", "3"), ("best", "figures", "4")])
    points = {student.student: student.manual.points for student in manual.read().students if student.manual}
    assert points == {"ada": 7, "bob": 8, "cleo": 8, "eve": 0}


def test_a_broken_file_of_theirs_is_one_clear_error(manual: ManualClass) -> None:
    grade_all(manual)
    path = next((manual.folder / "manual_grading" / "marks").glob("ada*"))
    path.write_text(path.read_text().replace("done = true", "done = maybe", 1))
    with pytest.raises(GradebookError, match=r"ada-\w+\.toml:\d+: not valid TOML"):
        manual.read()


def test_gradescope_has_a_test_for_each_criterion_by_hand(manual: ManualClass) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    grade_all(manual)
    manual.write_rubric(released=True)
    Book.open(manual.folder).export()
    made = json.loads((manual.folder / "exports" / "gradescope" / "ada.json").read_text())
    jsonschema.validate(made, json.loads(SCHEMA_FILE.read_text()))
    by_hand = [test for test in made["tests"] if test.get("tags") == ["by hand"]]
    assert [(test["score"], test["max_score"]) for test in by_hand] == [(4.5, 6.0), (3.0, 4.0)]
    visible = [test["score"] for test in made["tests"] if "score" in test]
    assert made["score"] == pytest.approx(sum(visible))


def test_who_is_excused_is_in_no_average_and_canvas_hears_of_it(manual: ManualClass) -> None:
    grade_all(manual)
    manual.write_rubric(released=True)
    excused.add(manual.folder, Excused(student="ada", reason="ill"))
    line = manual.line("ada")
    assert (line.status, line.score, line.grade) == ("excused", None, None)
    book = Book.open(manual.folder)
    book.export()
    assert [row.student for row in book.view.graded] == ["bob", "cleo"]
    canvas = (manual.folder / "exports" / "canvas.csv").read_text().splitlines()
    assert [row for row in canvas if row.startswith("Ada")] == ["Ada Lovelace,,,ada,,EX"]
    assert "ada" not in (manual.folder / "exports" / "moodle-grades.csv").read_text()
    assert not (manual.folder / "exports" / "gradescope" / "ada.json").exists()
    feedback = (manual.folder / "exports" / "feedback" / "ada.md").read_text()
    assert "You are excused" in feedback
    assert "Reason: ill." in feedback
    assert table(manual, "grades.csv")["ada"]["status"] == "excused"
    assert any("EX in canvas.csv" in text for text in book.notices())


def test_an_excused_teammate_leaves_the_team_to_the_others(manual: ManualClass) -> None:
    excused.add(manual.folder, Excused(student="bob", reason="left"))
    grade_all(manual)
    manual.write_rubric(released=True)
    assert manual.line("bob").score is None
    cleo = manual.line("cleo").manual
    assert cleo is not None
    assert cleo.complete


def test_what_is_left_of_an_excused_lab_counts_for_the_whole(small_class: SmallClass) -> None:
    folder = small_class.hands_in("ada")
    (folder / "lab2_mixed_precision").mkdir()
    (folder / "lab2_mixed_precision" / "amp.py").write_text("# ada\n")
    before = small_class.grade(labs=(1, 2)).students[0]
    assert before.grade is not None
    excused.add(small_class.out, Excused(student="ada", reason="joined late", lab=2))
    made = ManualClass(small_class)
    line = made.line("ada")
    assert line.grade is not None
    assert [lab.id for lab in line.grade.labs] == ["lab1"]
    own = before.grade.labs[0].points
    assert line.checks_score == own
    assert line.score == own * 40 / 20
    made.write_rubric(released=True)  # figures are about lab 1, the discussion about all
    made.give("student ada", "discussion")
    made.give("student ada", "figures", adjust=Decimal(2))
    assert made.line("ada").score == ((own + 8) * 50 / 30).quantize(Decimal("0.01"))
    Book.open(made.folder).export()
    page = (made.folder / "exports" / "feedback" / "ada.html").read_text()
    assert "You are excused from lab 2 (joined late)" in page


def test_a_name_in_excused_toml_that_nobody_has_is_an_error(manual: ManualClass) -> None:
    (manual.folder / "excused.toml").write_text('[[excused]]\nstudent = "adda"\nreason = "ill"\n')
    with pytest.raises(GradebookError, match="there is no such student"):
        manual.read()


def test_points_for_who_was_refused_or_is_missing_are_theirs(manual: ManualClass, tmp_path: Path) -> None:
    (manual.small.submissions / "eve.7z").write_bytes(b"7z")
    (manual.small.submissions / "fay").mkdir()
    roster = (tmp_path / "roster.csv").read_text() + "fay,Fay,\n"
    (tmp_path / "roster.csv").write_text(roster)
    manual.small.grade(roster=tmp_path / "roster.csv")
    assert manual.line("eve").status == "refused"
    assert manual.line("fay").status in ("missing", "refused")
    text = '[[override]]\nstudent = "{}"\ncriterion = "lab1.benchmark"\npoints = 4\nreason = "shown in class"\n'
    (manual.folder / "overrides.toml").write_text(text.format("eve") + text.format("fay"))
    for name in ("eve", "fay"):
        line = manual.line(name)
        assert line.score == 4
        assert line.grade is not None
    book = Book.open(manual.folder)
    book.export()
    assert not [item for item in book.view.open if item.student == "eve"]
    assert [line.student for line in book.view.graded] == ["ada", "bob", "cleo"]  # in no statistics
    page = (manual.folder / "exports" / "feedback" / "eve.html").read_text()
    assert "An instructor gave points in its place" in page
    assert "shown in class" in page
    assert table(manual, "grades.csv")["eve"]["score"] == "4"


def test_points_that_were_typed_for_a_criterion_that_has_fewer_now_are_told(manual: ManualClass) -> None:
    grade_all(manual)
    manual.give("student ada", "discussion", adjust=Decimal(-3))
    assert not [text for text in everything.notices(manual.read(), manual.folder) if "that were typed" in text]
    manual.write_rubric(text=RUBRIC.replace("points = 6", "points = 2"))
    (notice,) = [text for text in everything.notices(manual.read(), manual.folder) if "that were typed" in text]
    assert notice.startswith(
        "points that were typed for 'Discussion of the results' do not fit its 2 points and start = 'full' any more, "
        "and are cut: student ada."
    )


def test_two_of_one_name_are_told_apart_where_people_grade() -> None:
    students = [Student(student=key, name="Anna Schmidt", status="taken", content=key) for key in ("a1", "a2")]
    students.append(Student(student="bob", name="Bob", status="taken", content="b"))
    assert [unit.label for unit in units.of(students)] == ["Anna Schmidt (a1)", "Anna Schmidt (a2)", "Bob"]


def test_marks_that_cannot_count_are_named(manual: ManualClass) -> None:
    manual.give("student ada", "discussion")
    folder = manual.folder / "manual_grading"
    written = (folder / "marks").glob("*.toml")
    text = next(path.read_text() for path in written).replace("student ada", "student eve")
    (folder / "marks" / "eve.toml").write_text(text)
    (folder / "marks" / "eve.toml.orig").write_text(text)
    (folder / "rubric.toml").write_text((folder / "rubric.toml").read_text().replace("lab = 1", "lab = 4"))
    said = "\n".join(everything.notices(manual.read(), manual.folder))
    assert "marks for students without a submission, so they count for nothing: eve. To give points all the" in said
    assert "marks has files that nothing reads, because marks are .toml files: eve.toml.orig" in said
    assert "criteria for labs that this class does not grade: figures (lab 4). Correct lab" in said


def test_the_list_of_what_is_open_says_where_work_by_hand_is(manual: ManualClass) -> None:
    requests.add(manual.folder, [requests.NewRequest("bob", "look again")], ["bob"], [])
    listed = review_list.text(view.of(manual.read()), manual.folder)
    assert "not graded by hand to the end: ada, bob, cleo; gpulabs manual list" in listed
    assert "1 regrade request is not answered: gpulabs manual requests" in listed
    with pytest.raises(ValueError, match=r"people grade manual\.figures, and its points are marks: change the mark on"):
        Book.open(manual.folder).override("ada", "manual.figures", "1", "x")
