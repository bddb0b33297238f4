"""All exports at once, and the commands that make and change them, on a gradebook whose grading only pretends."""

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

import grader
from gradebook.cli import classroom
from gradebook.export import everything
from gradebook.export.everything import ExportError, options
from gradebook.export.everything import write as write_all
from gradebook.grade_class import grade_class
from gradebook.grading import class_summary
from gradebook.grading.description import ClassRequest
from gradebook.results import Grading, StudentResult, Task
from gradebox.report.document import to_json
from gradebox.run.grade import CheckReport, IntegrityNote, Outcome
from grader.cli import app
from tests.gradebook.export.classes import a_class, graded, student

PEAK = "lab1.memory.peak_equals_reference"


class Pretender:
    """Grades every submission alike: one check undecided, one note."""

    def run(self, tasks: Sequence[Task], started: Callable[[Task], None]) -> Iterator[tuple[Task, Grading]]:
        unsure = CheckReport(Outcome.NEEDS_REVIEW, "cannot tell")
        note = IntegrityNote("open", "/etc/passwd", "benchmark.py:3", "lab1.benchmark.warmed_up")
        for task in tasks:
            made = graded({PEAK: unsure}, notes=[note], labs=task.labs)
            now = datetime.now(UTC)
            yield task, Grading(grade=made, started=now, ended=now)

    def close(self) -> None:
        pass


@pytest.fixture
def book(tmp_path: Path) -> Path:
    """The folder of a class: ada and bob handed in, eve did not."""
    for name in ("ada", "bob"):
        lab = tmp_path / "submissions" / name / "lab1_gpu_basics"
        lab.mkdir(parents=True)
        (lab / "benchmark.py").write_text(f"# {name}\n")
    roster = tmp_path / "roster.csv"
    roster.write_text("Student,ID,SIS User ID,SIS Login ID,Section\nA,1,,ada,\nB,2,,bob,\nE,3,,eve,\n")
    settings = tmp_path / "class.toml"
    settings.write_text('title = "Lab 1"\nroster = "roster.csv"\n[exports]\ncanvas_assignment_id = 42\n')
    request = ClassRequest(
        course=grader.course(),
        submissions=tmp_path / "submissions",
        out=tmp_path / "out",
        configuration=settings,
        labs=(1,),
        device="vgpu:T4",
        seed=7,
    )
    grade_class(request, lambda jobs, room, device: Pretender(), Console(quiet=True))
    return request.out


def gpulabs(*arguments: object, code: int = 0) -> str:
    outcome = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert outcome.exit_code == code, outcome.output
    return outcome.output


def score(folder: Path, name: str) -> str:
    lines = (folder / "exports" / "canvas.csv").read_text().splitlines()
    return next(line.rpartition(",")[2] for line in lines if f",{name}," in line)


def test_who_is_not_graded_yet_is_counted_with_the_command_that_goes_on(tmp_path: Path) -> None:
    waiting = a_class([student(name, None, status="waiting") for name in ("ada", "bob")])
    text = everything.notices(waiting, tmp_path)[0]
    assert text.startswith("2 submissions are not graded yet, because the run was stopped: go on with gpulabs class ")


def test_a_graded_class_has_all_exports(book: Path) -> None:
    names = {path.relative_to(book / "exports").as_posix() for path in (book / "exports").rglob("*") if path.is_file()}
    each = [f"{folder}.{suffix}" for folder, suffix in (("feedback/{}", "html"), ("feedback/{}", "md"))]
    each.append("gradescope/{}.json")
    people = {name.format(who) for name in each for who in ("ada", "bob", "eve")}
    assert names == people | {
        "class.html",
        "grades.csv",
        "checks.csv",
        "results.csv",
        "canvas.csv",
        "moodle-grades.csv",
    }
    assert "Lab 1 (42)" in (book / "exports" / "canvas.csv").read_text()
    assert (score(book, "ada"), score(book, "eve")) == ("19", "0")


def test_feedback_of_an_earlier_run_does_not_stay(tmp_path: Path) -> None:
    rows: list[StudentResult] = [student("ada", graded({})), student("bob", graded({}))]
    write_all(a_class(rows), tmp_path)
    own = tmp_path / "exports" / "feedback" / "notes.txt"
    own.write_text("the instructor's")
    write_all(a_class(rows[:1]), tmp_path)
    assert sorted(path.name for path in own.parent.iterdir()) == ["ada.html", "ada.md", "notes.txt"]


def test_the_list_of_reviews_ends_with_code_3_as_long_as_something_is_open(book: Path) -> None:
    text = gpulabs("review", book, code=3)
    assert "4 decisions about 2 students open. Checks that need review score 0 for now. Notes cost no points" in text
    assert "refused" not in text, "only what is open is explained"
    gpulabs("review", book, "--accept", "ada", "all")
    assert "accepted 1 thing of bob in lab1.memory" in gpulabs("review", book, "--accept", "bob", "lab1.memory")
    assert "1 decision about 1 student open." in gpulabs("review", book, code=3)
    gpulabs("review", book, "--accept", "bob", "lab1.benchmark")
    assert "nothing is open" in gpulabs("review", book)


def test_points_given_by_hand_reach_every_export_and_the_next_run(book: Path) -> None:
    said = gpulabs("review", book, "--override", "ada", "lab1.memory", "4.5", "I measured it")
    assert "ada gets 4.5 points for lab1.memory" in said
    assert score(book, "ada") == "19.5"
    assert "I measured it" in (book / "exports" / "feedback" / "ada.html").read_text()
    again = ClassRequest(course=grader.course(), submissions=None, out=book, regrade=("ada",))
    grade_class(again, lambda jobs, room, device: Pretender(), Console(quiet=True))
    assert {row.student: str(row.score) for row in class_summary.read(book).students}["ada"] == "19.5"


def test_overrides_that_take_points_are_told(book: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They may have been for what was handed in before."""

    def notices() -> list[str]:
        return [text for text in everything.notices(class_summary.read(book), book) if "overrides give less" in text]

    assert notices() == []
    gpulabs("review", book, "--override", "ada", "lab1.analysis", "2", "a notebook, read by hand")
    (text,) = notices()
    assert "ada lab1.analysis (2 instead of 5)" in text
    classroom._show(class_summary.read(book), book)
    assert text in capsys.readouterr().out, "a run may have graded what was resubmitted"


def test_a_wrong_decision_is_one_line(book: Path) -> None:
    for arguments, words in [
        (("--accept", "adam", "all"), "'adam': there is no such student"),
        (("--override", "ada", "lab1.memory", "6", "x"), "gives 0 to 5"),
        (("--rerun", "zoe"), "'zoe': there is no such student"),
    ]:
        text = gpulabs("review", book, *arguments, code=2)
        assert words in text
        assert len(text.splitlines()) == 1


def test_exports_are_written_anew_on_request(book: Path) -> None:
    (book / "exports" / "canvas.csv").unlink()
    text = gpulabs("export", "class", book, "--canvas-assignment-id", "7")
    assert "Lab 1 (7)" in (book / "exports" / "canvas.csv").read_text()
    assert "4 things of 2 students are still to be reviewed" in text


def test_a_folder_without_a_gradebook_is_refused(tmp_path: Path) -> None:
    for command in (("review", tmp_path), ("export", "class", tmp_path), ("manual", "list", tmp_path)):
        assert "there is no gradebook" in gpulabs(*command, code=2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"canvas": 1}, "does not know 'canvas'; it has canvas_assignment_id"),
        ({"canvas_assignment_id": "1"}, "is not a number"),
        ({"notes_for_students": 1}, "is not a boolean"),
    ],
)
def test_wrong_options_are_refused_by_name(values: dict[str, object], message: str) -> None:
    with pytest.raises(ExportError, match=message):
        options(values)


def test_a_grade_becomes_markdown_and_gradescopes_results(tmp_path: Path) -> None:
    grade = tmp_path / "grade.json"
    grade.write_text(to_json(graded({})))
    assert "20 of 20 points, passed" in gpulabs("export", "markdown", grade)
    assert json.loads(gpulabs("export", "gradescope-results", grade))["score"] == 20
    gpulabs("export", "gradescope-results", grade, "--out", tmp_path / "new" / "results.json")
    assert json.loads((tmp_path / "new" / "results.json").read_text())["score"] == 20


def test_what_is_no_grade_is_refused_in_one_line(tmp_path: Path) -> None:
    grade = tmp_path / "grade.json"
    for content in ("{}", "[1]", "no json", '{"schema_version": "1.0", "labs": 3}'):
        grade.write_text(content)
        text = gpulabs("export", "markdown", grade, code=2)
        assert text.startswith("error: ")
        assert len(text.splitlines()) == 1


def test_the_workflow_is_written_where_github_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    gpulabs("export", "github-actions", "--lab", "1")
    assert "make grade LAB=1" in (tmp_path / ".github" / "workflows" / "grade.yml").read_text()


def test_a_workflow_that_somebody_edited_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    gpulabs("export", "github-actions")
    gpulabs("export", "github-actions")
    file = tmp_path / ".github" / "workflows" / "grade.yml"
    file.write_text(file.read_text() + "# mine\n")
    assert "replace it with --force" in gpulabs("export", "github-actions", code=2)
    assert file.read_text().endswith("# mine\n")
    gpulabs("export", "github-actions", "--force")
    assert not file.read_text().endswith("# mine\n")


def test_tables_for_people_begin_with_the_mark_that_spreadsheets_need(book: Path) -> None:
    exports = book / "exports"
    assert {path.name for path in exports.glob("*.csv") if path.read_bytes().startswith(b"\xef\xbb\xbf")} == {
        "grades.csv",
        "checks.csv",
        "results.csv",
    }
    lines = (exports / "results.csv").read_text("utf-8-sig").splitlines()
    assert lines[0] == "student,name,check,title,outcome,points,max_points,message"
    assert {line.partition(",")[0] for line in lines[1:]} == {"ada", "bob"}, "who has no grade has no results"
