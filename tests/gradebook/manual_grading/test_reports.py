"""Reports that people grade instead of a check: off by default, the same totals, and nothing counts before its time."""

from __future__ import annotations

import csv
import json
import os
import tomllib
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

import grader
from gradebook import settings
from gradebook.export.book import Book
from gradebook.export.gradescope import SCHEMA_FILE
from gradebook.grading.class_summary import dump
from gradebook.grading.manual_grading import ManualGradingError, comments, marks, ready, reports, units
from gradebook.grading.manual_grading.marks import Mark
from gradebook.plugins.grading_ui.board import Board
from gradebook.results import ClassResult, GradebookError, StudentResult
from gradebook.settings import SettingsError
from gradebook.store import Gradebook
from gradebox.report.document import points as in_points
from gradebox.run.grade import CheckResult, Outcome
from grader.cli import app
from tests.gradebook.conftest import SmallClass
from tests.gradebook.manual_grading.conftest import AT

CHECK = "lab1.analysis.report_agrees_with_results"
PARTS = {"lab1_cpu_gpu": 4, "lab1_memory": 3, "lab1_time_and_next": 3}
COURSE = grader.course()


class ReportClass:
    """A class of two whose reports people grade."""

    def __init__(self, small: SmallClass, folder: Path) -> None:
        self.small, self.file = small, folder / "class.toml"

    @property
    def folder(self) -> Path:
        return self.small.out

    def grade(self, text: str = "[by_hand]\nreports = true\n", **options: object) -> ClassResult:
        self.file.write_text(text)
        return self.small.grade(configuration=self.file, **options)

    def give(self, student: str, **adjust: str) -> None:
        """Finished marks, each with points next to all of them; those that are not named have all."""
        key = f"student {student}"
        with Gradebook(self.folder, locked=False) as gradebook:
            content = {unit.key: unit.content for unit in units.of(gradebook.students())}[key]
        for name in PARTS:
            made = Mark(
                criterion=name, content=content, by="Ana", at=AT, done=True, adjust=Decimal(adjust.get(name, "0")),
                revision=marks.load(self.folder, key)[name].revision if name in marks.load(self.folder, key) else 0,
            )  # fmt: skip
            marks.change(self.folder, key, made)

    def release(self) -> None:
        path = self.folder / "manual_grading" / "reports.toml"
        path.write_text(path.read_text().replace("released = false", "released = true"))

    def line(self, student: str) -> StudentResult:
        return next(row for row in Book.open(self.folder).result.students if row.student == student)

    def check(self, student: str, name: str = CHECK) -> CheckResult:
        grade = self.line(student).grade
        assert grade is not None
        return next(check for check in grade.checks if check.id == name)

    def exported(self, name: str) -> str:
        Book.open(self.folder).export()
        return (self.folder / "exports" / name).read_text(encoding="utf-8-sig")


@pytest.fixture
def of_reports(small_class: SmallClass, tmp_path: Path) -> ReportClass:
    for name in ("ada", "bob"):
        folder = small_class.hands_in(name)
        (folder / "lab1_gpu_basics" / "REPORT.md").write_text(f"# Report of {name}\n\nThe GPU is faster.\n")
    return ReportClass(small_class, tmp_path)


def without(result: ClassResult, student: str) -> Decimal:
    """What the other checks gave."""
    grade = next(row for row in result.students if row.student == student).grade
    assert grade is not None
    return sum((check.points for check in grade.checks if check.id != CHECK), Decimal(0))


# --- off -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "[by_hand]\n", "[by_hand]\nreports = false\n"])
def test_off_nothing_changes(of_reports: ReportClass, text: str) -> None:
    plain = of_reports.small.grade()
    before = dump(of_reports.folder)
    of_reports.grade(text)
    assert dump(of_reports.folder) == before
    assert not (of_reports.folder / "manual_grading").exists()
    assert plain.max_score == 20
    assert "graded by people" not in of_reports.exported("feedback/ada.html")
    assert "manual." not in of_reports.exported("grades.csv")


def test_switched_off_again_the_check_has_its_points_and_marks_stay_on_disk(of_reports: ReportClass) -> None:
    before = {student.student: student.score for student in of_reports.small.grade().students}
    of_reports.grade()
    of_reports.give("ada")
    after = of_reports.grade("title = 'x'\n")
    assert {student.student: student.score for student in after.students} == before
    assert "lab1_memory" in marks.load(of_reports.folder, "student ada")
    assert all("no criterion" not in text for text in Book.open(of_reports.folder).notices())


# --- on --------------------------------------------------------------------------------------------------------------


def test_switched_on_nothing_is_graded_again(of_reports: ReportClass) -> None:
    of_reports.small.grade()
    graded = of_reports.small.graded
    of_reports.grade()
    of_reports.grade(submissions=None)
    assert of_reports.small.graded == graded


def test_as_long_as_nobody_graded_it_there_is_no_score(of_reports: ReportClass) -> None:
    result = of_reports.grade()
    ada = of_reports.line("ada")
    assert (ada.status, ada.score, ada.graded_by_hand) == ("graded", None, False)
    assert result.max_score == 20
    assert of_reports.check("ada").points == 0
    assert of_reports.check("ada").max_points == 1
    assert "that is not finished: it has no points yet" in of_reports.check("ada").message
    page = of_reports.exported("feedback/ada.html")
    assert "The report of lab 1 is graded by people, and that is not finished." in page
    assert "1 of the points is missing, so there is no score yet, and whether you pass is open." in page
    assert "Which stage decides whether the step fits" in page  # students see the criteria before they are graded
    assert "ada" not in of_reports.exported("canvas.csv")
    (notice,) = [text for text in Book.open(of_reports.folder).notices() if "by hand" in text]
    assert notice == "not graded by hand to the end, so no score, and in no file for platforms: ada, bob"


def test_points_that_are_not_released_reach_no_student(of_reports: ReportClass) -> None:
    of_reports.grade()
    of_reports.give("ada", lab1_memory="-1.5")
    of_reports.give("bob")
    assert of_reports.line("ada").score is None
    assert "8.5" not in of_reports.exported("feedback/ada.md")
    rows = list(csv.DictReader(of_reports.exported("grades.csv").splitlines()))
    assert [rows[0][f"manual.{name}"] for name in PARTS] == ["4", "1.5", "3"]
    assert "reports graded by hand, and not released" in of_reports.exported("class.html")
    assert any(
        "released = true in manual_grading/reports.toml" in text for text in Book.open(of_reports.folder).notices()
    )


@pytest.mark.parametrize(("adjust", "points"), [("0", "1"), ("-3", "0.7"), ("-2", "0.8")])
def test_released_the_points_of_people_replace_those_of_the_check(
    of_reports: ReportClass, adjust: str, points: str
) -> None:
    result = of_reports.grade()
    of_reports.give("ada", lab1_memory=adjust)
    of_reports.release()
    ada = of_reports.line("ada")
    assert of_reports.check("ada").points == Decimal(points)
    assert ada.score == without(result, "ada") + Decimal(points)
    assert ada.grade is not None
    assert ada.grade.max_score == 20
    assert ada.grade.score == sum(lab.points for lab in ada.grade.labs) == ada.score
    assert ada.grade.passed == (ada.score >= 14)
    for lab in ada.grade.labs:
        assert sum(row.points for row in lab.criteria) == lab.points
        for row in lab.criteria:
            assert sum(check.points for check in row.checks) == row.points
            assert sum(check.max_points for check in row.checks) == row.max_points
    assert of_reports.line("bob").score is None  # nobody has graded this one


def test_what_the_check_found_is_shown_beside_what_people_gave(of_reports: ReportClass) -> None:
    plain = of_reports.small.grade()
    automatic = {
        student.student: next(check for check in student.grade.checks if check.id == CHECK)
        for student in plain.students
        if student.grade is not None
    }
    of_reports.grade()
    of_reports.give("ada")
    of_reports.release()
    check = of_reports.check("ada")
    assert check.outcome is automatic["ada"].outcome
    did = "passed" if check.outcome is Outcome.PASSED else "did not pass"
    first, _, rest = check.message.partition("\n")
    assert first == (
        f"People read this report: 10 of 10 in their rubric. The automatic check {did}, and its points do not count."
    )
    assert rest == automatic["ada"].message


def test_lateness_is_taken_from_all_points_with_those_of_people(of_reports: ReportClass) -> None:
    text = (
        'submitted = "files"\ndeadline = 2020-01-01T00:00:00+00:00\n[by_hand]\nreports = true\n'
        "[late]\npercent_per_day = 1\nat_most_percent = 10\n"
    )
    for number, path in enumerate(sorted(of_reports.small.submissions.rglob("*.py"))):
        os.utime(path, (1.7e9 + 1e5 * number,) * 2)
    for path in of_reports.small.submissions.rglob("*.md"):
        os.utime(path, (1.6e9, 1.6e9))
    result = of_reports.grade(text)
    of_reports.give("ada", lab1_memory="-2")
    of_reports.release()
    ada = of_reports.line("ada")
    assert ada.late is not None
    assert ada.late.points == 2
    assert ada.score == max(Decimal(0), without(result, "ada") + Decimal("0.8") - 2)


def test_everything_for_students_and_platforms_has_it(of_reports: ReportClass) -> None:
    of_reports.grade()
    comments_of = comments.load(of_reports.folder)
    assert comments_of["lab1_memory-1"].text.startswith("The peak is not taken apart.")
    for name in ("ada", "bob"):
        of_reports.give(name, lab1_cpu_gpu="-2")
    of_reports.release()
    score = of_reports.line("ada").score
    assert score is not None
    page = of_reports.exported("feedback/ada.html")
    assert "Reports: lab 1, graded by people <span>8 / 10</span>" in page
    assert "These count as 0.8 of 1 points of the lab." in page
    assert "Names the right limits." in page  # the level of two points
    text = of_reports.exported("feedback/ada.md")
    assert "## Reports: lab 1, graded by people: 8 of 10" in text
    assert "8 of 10 count as 0.8 of 1 points of the lab, and are in the score." in text
    document = json.loads(of_reports.exported("gradescope/ada.json"))
    jsonschema.validate(document, json.loads(SCHEMA_FILE.read_text()))
    assert document["score"] == float(score)
    assert sum(test.get("score", 0) for test in document["tests"]) == pytest.approx(float(score))
    assert "Lab 1: CPU against GPU" in {test["name"].partition(": lab 1: ")[2] for test in document["tests"]}
    rows = list(csv.DictReader(of_reports.exported("grades.csv").splitlines()))
    assert (rows[0]["score"], rows[0]["max_score"], rows[0]["by_hand_graders"]) == (in_points(score), "20", "Ana")
    assert "2 of 2 submissions are graded to the end" in of_reports.exported("class.html")


def test_an_override_of_the_criterion_goes_first_and_nobody_has_to_grade_the_report(of_reports: ReportClass) -> None:
    of_reports.grade()
    Book.open(of_reports.folder).override("ada", "lab1.analysis", "3", "seen in class")
    ada = of_reports.line("ada")
    assert ada.reports == ()
    assert ada.score is not None
    assert of_reports.line("bob").score is None


def test_a_report_of_an_excused_lab_is_not_graded(of_reports: ReportClass) -> None:
    of_reports.grade(labs=(1, 2))
    first, second = of_reports.line("ada").reports
    assert (first.lab, second.lab) == (1, 2)
    Book.open(of_reports.folder).excuse("ada", "lab2", "ill")
    assert [report.lab for report in of_reports.line("ada").reports] == [1]


def test_another_submission_after_the_report_was_graded_is_looked_at_again(of_reports: ReportClass) -> None:
    of_reports.grade()
    of_reports.give("ada")
    of_reports.release()
    assert of_reports.line("ada").score is not None
    of_reports.small.hands_in("ada", text="another one")
    of_reports.grade()
    ada = of_reports.line("ada")
    assert (ada.score, ada.graded_anew) == (None, True)


# --- the weight ------------------------------------------------------------------------------------------------------


WHOLE = "[by_hand]\nreports = true\nreport_points = { lab1 = 5 }\n"


def test_lab_1s_report_may_be_worth_what_the_assignment_pays_for_it(of_reports: ReportClass) -> None:
    """Five points: the functions of the criterion are shown, and count for nothing."""
    result = of_reports.grade(WHOLE)
    of_reports.give("ada", lab1_memory="-1.5")
    of_reports.release()
    ada = of_reports.line("ada")
    assert ada.grade is not None
    assert result.max_score == ada.grade.max_score == 20
    row = next(row for row in ada.grade.labs[0].criteria if row.id == "lab1.analysis")
    assert (row.points, row.max_points) == (Decimal("4.25"), 5)
    assert {check.id: (check.points, check.max_points) for check in row.checks if check.id != CHECK} == {
        check.id: (0, 0) for check in row.checks if check.id != CHECK
    }
    assert of_reports.check("ada").max_points == 5
    others = sum(criterion.points for criterion in ada.grade.labs[0].criteria if criterion.id != "lab1.analysis")
    assert ada.score == others + Decimal("4.25")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "reports = true\nreport_points = { lab1 = 3 }",
            "report_points of [by_hand]: lab1 = 3: expected 1, the points of the automatic check, or 5, those of the "
            "whole criterion 'Analysis and report'",
        ),
        (
            "reports = true\nreport_points = { lab2 = 5 }",
            "report_points of [by_hand]: lab2 = 5: expected 1, the points of the automatic check",
        ),
        (
            "reports = true\nreport_points = { lab9 = 5 }",
            "report_points of [by_hand]: people grade no report of 'lab9'; they grade lab1, lab2, lab3, lab4, lab5",
        ),
    ],
)
def test_other_points_are_refused_before_anything_is_graded(of_reports: ReportClass, text: str, said: str) -> None:
    with pytest.raises(ManualGradingError) as caught:
        of_reports.grade(f"[by_hand]\n{text}\n", labs=(1, 2, 3, 4, 5))
    assert str(caught.value) == said
    assert of_reports.small.graded == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "report_points = { lab1 = 5 }",
            "class.toml:1: report_points is for reports that people grade: set reports = ",
        ),
        ("reports = 'yes'", "class.toml:2: reports = 'yes' is not true or false"),
        ("report = true", "class.toml:2: unknown key 'report'; did you mean 'reports'?"),
        ("reports = true\nreport_points = { lab1 = '5' }", "lab1 = '5' is not a number"),
    ],
)
def test_a_mistake_in_the_setting_is_one_line(text: str, said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings.parse(f"[by_hand]\n{text}\n", Path("class.toml"))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


# --- the files -------------------------------------------------------------------------------------------------------


def test_the_classs_own_rubric_and_comments_are_not_written_over(of_reports: ReportClass) -> None:
    of_reports.grade()
    path = of_reports.folder / "manual_grading" / "reports.toml"
    changed = path.read_text().replace('title = "Reports"', 'title = "Essays"')
    path.write_text(changed)
    comments.save(of_reports.folder, [])
    of_reports.grade()
    assert path.read_text() == changed
    assert comments.load(of_reports.folder) == {}
    assert Book.open(of_reports.folder).result.reports_title == "Essays"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace(CHECK, "lab1.analysis.gone"), "lab1 has no check 'lab1.analysis.gone'"),
        (lambda text: text.replace("lab = 1\nabout", "lab = 9\nabout"), "lab 1 has no [[criterion]]; add one"),
        (lambda text: text.replace('points = 4\ntext = "Exp', 'points = 5\ntext = "Exp'), "has a level of 5 points"),
        (lambda text: text.replace('id = "lab1_memory"', 'id = "lab1_cpu_gpu"'), "lab1_cpu_gpu stands twice"),
        (lambda text: "", "lacks the key 'criterion'"),
    ],
)
def test_a_mistake_in_the_classs_file_is_one_line(
    of_reports: ReportClass, change: Callable[[str], str], said: str
) -> None:
    of_reports.grade()
    path = of_reports.folder / "manual_grading" / "reports.toml"
    path.write_text(change(path.read_text()))
    with pytest.raises(GradebookError) as caught:
        Book.open(of_reports.folder)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_beside_a_rubric_of_the_classs_own_both_are_graded_in_one_page(of_reports: ReportClass) -> None:
    of_reports.grade()
    (of_reports.folder / "manual_grading" / "rubric.toml").write_text(
        'title = "Talk"\n[[criterion]]\nid = "talk"\ntitle = "Talk"\npoints = 6\n'
    )
    whole = reports.whole_rubric(of_reports.folder)
    assert whole is not None
    assert [criterion.id for criterion in whole.criterion] == ["talk", *PARTS]
    assert whole.title == "Talk, Reports"
    (of_reports.folder / "manual_grading" / "rubric.toml").write_text(
        'title = "Talk"\n[[criterion]]\nid = "lab1_memory"\ntitle = "Talk"\npoints = 6\n'
    )
    with pytest.raises(GradebookError, match=r"both have a criterion 'lab1_memory': rename it in rubric\.toml"):
        Book.open(of_reports.folder)


# --- the page and the command ----------------------------------------------------------------------------------------


def test_the_page_shows_criteria_levels_comments_and_what_the_check_found(of_reports: ReportClass) -> None:
    of_reports.grade()
    board = Board(of_reports.folder, "Ana")
    overview: Any = board.overview()
    assert [criterion["id"] for criterion in overview["criteria"]] == list(PARTS)
    assert [level["points"] for level in overview["criteria"][0]["level"]] == [4, 2, 0]
    assert {comment["criterion"] for comment in overview["comments"]} >= set(PARTS)
    shown: Any = board.unit(overview["units"][0]["id"])
    (automatic,) = shown["automatic"]
    assert (automatic["lab"], automatic["outcome"]) == (1, of_reports.check("ada").outcome.value)


def test_the_list_says_how_far_it_is(of_reports: ReportClass) -> None:
    of_reports.grade()
    of_reports.give("ada")
    ran = CliRunner().invoke(app, ["manual", "list", str(of_reports.folder)])
    assert ran.exit_code == 3
    assert "1 of 2 submissions are graded by hand" in ran.output
    of_reports.give("bob")
    ran = CliRunner().invoke(app, ["manual", "list", str(of_reports.folder)])
    assert ran.exit_code == 0
    assert "manual_grading/reports.toml gives students the points of their reports" in " ".join(ran.output.split())


def test_a_student_may_ask_to_look_again_at_a_part_of_the_report(of_reports: ReportClass) -> None:
    of_reports.grade()
    ran = CliRunner().invoke(
        app, ["manual", "ask", str(of_reports.folder), "ada", "manual.lab1_memory", "My peak is taken apart."]
    )
    assert ran.exit_code == 0, ran.output
    assert "Lab 1: Memory" in of_reports.exported("feedback/ada.md")


# --- the course's rubrics --------------------------------------------------------------------------------------------


LABS = pytest.mark.parametrize("lab", COURSE.labs, ids=lambda lab: lab.id)


@LABS
def test_each_lab_has_a_rubric_with_levels_and_comments(lab: Any) -> None:
    rubric = ready.load(COURSE, lab)
    assert sum(part.points for part in rubric.part) == ready.POINTS
    assert 4 <= sum(len(part.comment) for part in rubric.part) <= 8
    for part in rubric.part:
        points = [level.points for level in part.level]
        assert points == sorted(points, reverse=True), part.id
        assert (points[0], points[-1]) == (part.points, 0), part.id
        assert part.about.endswith("?"), part.id
        assert all(-part.points <= comment.points < 0 for comment in part.comment), part.id


@LABS
def test_the_report_is_worth_its_automatic_check(lab: Any) -> None:
    rubric = ready.load(COURSE, lab)
    check = next(check for row in lab.criteria for check in row.checks if check.id == f"{lab.id}.{rubric.check}")
    assert check.id.endswith(".report_agrees_with_results")
    report = reports.Report(lab.number, check.id)
    assert reports.weight(report, lab, settings.ByHand(reports=True)) == check.points


def test_the_whole_class_still_has_a_hundred_points(of_reports: ReportClass) -> None:
    assert of_reports.grade(labs=(1, 2, 3, 4, 5)).max_score == 100
    assert of_reports.grade(WHOLE, labs=(1, 2, 3, 4, 5)).max_score == 100


@LABS
def test_every_part_asks_about_a_heading_of_the_lab_s_report(lab: Any) -> None:
    """A template that changes its headings changes its rubric."""
    template = next((COURSE.folder.parent / "solutions" / lab.package).glob("REPORT.template.md")).read_text()
    headings = {line[3:].casefold() for line in template.splitlines() if line.startswith("## ")}
    words = {word for heading in headings for word in heading.replace(",", "").split() if len(word) > 4}
    for part in ready.load(COURSE, lab).part:
        assert words & set(part.title.casefold().replace(",", "").split()), (part.title, headings)


def test_a_mistake_in_the_courses_rubric_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = COURSE.labs[0]
    text = (COURSE.folder / "reports" / "lab1.toml").read_text()
    (tmp_path / "reports").mkdir()

    def refused(changed: str) -> str:
        (tmp_path / "reports" / "lab1.toml").write_text(changed)
        course: Any = type("Elsewhere", (), {"folder": tmp_path})()
        with pytest.raises(ManualGradingError) as caught:
            ready.load(course, lab)
        return str(caught.value).replace(f"{tmp_path}/", "")

    assert refused(text.replace("points = 4\nabout", "points = 5\nabout")) == (
        "reports/lab1.toml:1: the points of its parts do not add up to 10"
    )
    assert "lab1 has no check 'analysis.gone'" in refused(
        text.replace("analysis.report_agrees_with_results", "analysis.gone")
    )
    assert "is no check of 'memory'" in refused(text.replace('criterion = "analysis"', 'criterion = "memory"'))
    assert tomllib.loads(text)["check"] == "analysis.report_agrees_with_results"
