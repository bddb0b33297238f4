"""What a student is told, as a page and as Markdown."""

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from typer.testing import CliRunner

import grader
from gradebook.export import everything, feedback, markdown, view
from gradebook.export.book import Book
from gradebook.export.reviews import Accepted
from gradebook.export.view import Line
from gradebook.plugins.canvas_push import push
from gradebook.results import LatePenalty, StudentResult
from gradebox.course.contact import Contact
from gradebox.report.document import duration, to_json
from gradebox.run.grade import CheckReport, IntegrityNote, Outcome
from gradebox.run.overrides import Override
from grader.cli import app
from tests.gradebook.conftest import SmallClass
from tests.gradebook.export.classes import HOSTILE, MADE_AT, a_class, graded, student

REPORTS = {
    "lab1.benchmark.warmed_up": CheckReport(Outcome.FAILED, f"{HOSTILE}\n```\n# not a heading", "warm up *first*"),
    "lab1.memory.peak_equals_reference": CheckReport(Outcome.NEEDS_REVIEW, "cannot tell"),
}
NOTE = IntegrityNote("open", "/etc/passwd", "benchmark.py:3", "lab1.benchmark.warmed_up")
GIVEN = Override("ada", "lab1.analysis", Decimal("4.5"), "right, in <other> units")
LATE = LatePenalty(seconds_late=93_600, points=Decimal(6), rule="30 % per day, 1 day")


def test_an_address_in_markdown_is_no_other_one() -> None:
    text = "see https://forum.example/?a=1&b_c=2, *not* <b>"
    assert markdown.escaped(text) == r"see https://forum.example/?a=1&b_c=2, \*not\* \<b\>"


def line_of(result: StudentResult, *accepted: Accepted) -> Line:
    (line,) = view.of(a_class([result]), accepted).lines
    return line


@pytest.fixture
def ada() -> StudentResult:
    made = graded(REPORTS, notes=[NOTE], overrides=[GIVEN])
    return student("ada", made, name="Ada <3", late=LATE)


def test_a_student_hears_which_commit_was_graded_and_what_was_not() -> None:
    reason = "commit 0123456789 was the last in time; 1 later one came after the deadline and was not graded"
    ada = student("ada", graded({}), commit="0123456789abcdef", reason=reason)
    for text in (feedback.page(line_of(ada), "GPU labs"), feedback.markdown(line_of(ada), "GPU labs")):
        assert "Graded: commit 0123456789 of 2026-03-02 08:00 UTC" in text
        assert "1 later one came after the deadline and was not graded" in text


def test_one_point_is_deducted_in_each_form() -> None:
    late = replace(LATE, points=Decimal(1))
    line = line_of(student("ada", graded(REPORTS), late=late))
    for text in (feedback.page(line, "GPU labs"), feedback.markdown(line, "GPU labs")):
        assert "points that were earned is deducted" in text


def test_the_page_states_the_final_score_and_why(ada: StudentResult) -> None:
    page = feedback.page(line_of(ada), "GPU labs")
    assert "<h1>11.5<small> of 20 points</small></h1>" in page
    assert "not passed" in page
    assert "Handed in 1 day 2 hours late: 6 of the 17.5 points that were earned are deducted (30 % per day" in page
    assert "instead of 5: right, in &lt;other&gt; units" in page
    assert "Ada &lt;3" in page


def test_notes_of_the_sandbox_are_kept_from_students(ada: StudentResult) -> None:
    assert "/etc/passwd" not in feedback.page(line_of(ada), "GPU labs")
    assert "/etc/passwd" in feedback.page(line_of(ada), "GPU labs", notes=True)
    assert "/etc/passwd" not in feedback.markdown(line_of(ada), "GPU labs")


def test_what_was_reviewed_is_no_longer_provisional(ada: StudentResult) -> None:
    assert ada.grade is not None
    accepted = Accepted(
        student="ada",
        submission_sha256=ada.grade.submission_sha256,
        criterion="lab1.memory",
        items=("lab1.memory.peak_equals_reference",),
        accepted_at=MADE_AT,
    )
    before, after = feedback.page(line_of(ada), "GPU labs"), feedback.page(line_of(ada, accepted), "GPU labs")
    assert "1 to be reviewed" in before
    assert "to be reviewed" not in after
    assert "An instructor has looked at this; the points stand." in after
    assert "Provisional" in feedback.markdown(line_of(ada), "GPU labs")
    assert "Provisional" not in feedback.markdown(line_of(ada, accepted), "GPU labs")


def test_what_a_submission_says_stays_in_code_blocks(ada: StudentResult) -> None:
    lines = feedback.markdown(line_of(ada), "GPU labs").splitlines()
    start = lines.index("  ````text")
    stop = lines.index("  ````", start)
    assert f"  {HOSTILE}" in lines[start:stop]
    assert "  # not a heading" in lines[start:stop]
    assert not [line for number, line in enumerate(lines) if "<script" in line and not start < number < stop]


def test_markdown_states_the_same_as_the_page(ada: StudentResult) -> None:
    text = feedback.markdown(line_of(ada), "GPU labs")
    assert text.startswith("# GPU labs: 11.5 of 20 points, not passed\n")
    assert "1 day 2 hours late: 6 of the 17.5 points" in text
    assert r"Given by the instructor instead of 5: right, in \<other\> units" in text
    assert "| Lab 1: Analysis and report | 4.5 / 5 | 6 / 6 |" in text


@pytest.mark.parametrize(
    ("status", "reason", "words"),
    [
        ("missing", "", "No submission of yours was found."),
        ("refused", "two folders for lab 1", "two folders for lab 1"),
        ("waiting", "", "not been graded yet"),
        ("could_not_grade", "worker 3 died", "could not be graded yet"),
    ],
)
def test_a_student_without_a_grade_is_told_what_happened(status: str, reason: str, words: str) -> None:
    line = line_of(student("ada", None, status=status, reason=reason, score=None))
    assert words in feedback.page(line, "GPU labs")
    assert words in feedback.markdown(line, "GPU labs")
    assert "worker 3" not in feedback.page(line, "GPU labs")


def test_who_may_have_handed_in_under_another_name_is_told_so() -> None:
    line = line_of(student("ada", None, status="missing", withheld=True, score=None))
    assert "Some submissions match nobody in the class" in feedback.markdown(line, "GPU labs")
    stands = line_of(student("ada", None, status="missing", score=Decimal(0)))
    assert "No submission of yours was found" in feedback.markdown(stands, "GPU labs")
    assert "So far this counts 0 points." in feedback.markdown(stands, "GPU labs")


def test_a_comment_in_a_gradebook_says_what_did_not_count() -> None:
    line = line_of(student("ada", graded({}), reason="nothing reads these files, so that they do not count: 'a.pdf'"))
    assert "Note: nothing reads these files, so that they do not count: 'a.pdf'." in feedback.summary(line)


def test_what_holds_other_checks_back_is_said_once() -> None:
    """In Markdown as on the page: at the check that failed, with those that wait for it."""
    checks = [check.id for check in grader.course().rubric.checks() if check.id.startswith("lab1.")]
    root, *held = checks[:5]
    reason = "the module does not import: invalid syntax"
    reports = {root: CheckReport(Outcome.FAILED, reason)}
    blocked = f"blocked by 'x' ({root}): {reason}"
    reports |= {check: CheckReport(Outcome.BLOCKED, blocked, blocked_by=root) for check in held}
    (line,) = view.of(a_class([student("ada", graded(reports))])).lines
    text = feedback.markdown(line, "GPU lab 1")
    page = feedback.page(line, "GPU lab 1")
    assert text.count(reason) == 1
    assert "blocked by" not in text
    (waiting,) = [row for row in text.splitlines() if row.startswith("  Waiting for this check: ")]
    for check in held:
        assert f"(`{check}`)" in waiting
        assert f"(`{check}`): **waits for" in text
    assert page.count("waits for") >= len(held)
    assert blocked not in page


@pytest.fixture
def given_points(small_class: SmallClass) -> Book:
    """`gone` handed in nothing, as far as anybody knows, and `eve` a file that nothing unpacks; both have points."""
    small_class.hands_in("adda")  # who matches nobody, and may be `gone`
    (small_class.submissions / "eve.7z").touch()
    entry = '[[override]]\nstudent = "{}"\ncriterion = "lab1.analysis"\npoints = 4.5\nreason = "shown in class"\n'
    small_class.out.mkdir()
    (small_class.out / "overrides.toml").write_text(entry.format("gone") + entry.format("eve"))
    roster = small_class.submissions.parent / "roster.csv"
    roster.write_text("student,name\ngone,Grace Gone\neve,Eve\n")
    small_class.grade(roster=roster, device="vgpu:T4")
    return Book.open(small_class.out)


@pytest.mark.parametrize(
    ("student", "why"),
    [("gone", "Grace Gone: No submission of yours was found."), ("eve", "Eve: Your submission could not be accepted.")],
)
def test_points_in_the_place_of_a_submission_are_told_in_words(given_points: Book, student: str, why: str) -> None:
    exports = given_points.folder / "exports"
    texts = [(exports / "feedback" / f"{student}.{kind}").read_text() for kind in ("html", "md")]
    line = given_points.view.line(student)
    assert line is not None
    assert "4.5 of 20 points, not passed" in texts[0]
    assert texts[1].startswith("# ")
    for text in texts:
        assert why in text
        assert "An instructor gave points in its place." in text
        assert "Lab 1: Analysis and report: 4.5 / 5. By the instructor: shown in class" in text
    texts += ["\n".join(feedback.summary(line)), (exports / "gradescope" / f"{student}.json").read_text()]
    for text in texts:
        assert "shown in class" in text
        assert why.partition(": ")[2] in text
        for technical in ("vgpu", "T4", "seed 7", "lab1.benchmark", "blocked", "adda"):
            assert technical not in text


def test_a_comment_says_once_why_there_are_points_without_a_submission(given_points: Book) -> None:
    line = given_points.view.line("gone")
    assert line is not None
    assert push.comment(line, "GPU labs", line.most).splitlines() == [
        "GPU labs: 4.5 of 20 points",
        "No submission of yours was found.",
        "An instructor gave points in its place.",
        "Lab 1: Analysis and report: 4.5 / 5. By the instructor: shown in class",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1, "1 minute"), (7200, "2 hours"), (93_600, "1 day 2 hours"), (86_400 * 3 + 60, "3 days 1 minute")],
)
def test_lateness_is_told_in_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_it_says_where_to_get_help_also_if_nothing_was_graded(tmp_path: Path) -> None:
    staff = Contact(chat="#gpu-labs <ask>", email="gpu-labs@example.org")
    without = a_class([student("ada", graded(REPORTS)), student("bob", None, status="no_repository", withheld=True)])
    everything.write(without, tmp_path / "without")
    everything.write(replace(without, contact=staff), tmp_path / "with")
    for name in ("ada", "bob"):
        for suffix in ("html", "md"):
            file = f"exports/feedback/{name}.{suffix}"
            assert "gpu-labs@example.org" in (tmp_path / "with" / file).read_text()
            assert "Getting help" not in (tmp_path / "without" / file).read_text()
    text = (tmp_path / "with" / "exports" / "feedback" / "ada.md").read_text()
    assert "- chat: \\#gpu-labs \\<ask\\>" in text


def test_a_class_keeps_the_contact_that_its_course_named(small_class: SmallClass) -> None:
    """A gradebook is read without the course, so the class writes it down in each run."""
    small_class.hands_in("ada")
    assert not small_class.grade().contact
    course = replace(grader.course(), contact=Contact(email="gpu-labs@example.org"))
    assert small_class.grade(course=course, submissions=None).contact == course.contact
    assert Book.open(small_class.out).result.contact == course.contact
    assert not small_class.grade().contact


def test_the_markdown_of_one_grade_says_where_to_get_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "grade.json").write_text(to_json(graded(REPORTS)))
    command = ["export", "markdown", str(tmp_path / "grade.json")]
    assert "Getting help" not in CliRunner().invoke(app, command).output
    course = replace(grader.course(), contact=Contact(email="gpu-labs@example.org"))
    monkeypatch.setattr("gradebook.cli.exporting.course", lambda: course)
    assert CliRunner().invoke(app, command).output.endswith("## Getting help\n\n- e-mail: gpu-labs@example.org\n")
