"""Nothing that a submission says reaches a terminal, a page, a table or a document but in printable signs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import grader
from gradebook.export import everything, gradescope, review_list, reviews, view
from gradebook.export.everything import Options
from gradebook.export.feedback import grade_markdown
from gradebook.export.similarity import report as similarity_report
from gradebook.export.similarity.similarity import Pair, Passage
from gradebook.grade_class import grade_class
from gradebook.grading.description import ClassRequest
from gradebook.grading.progress import ClassProgress
from gradebook.plugins.classroom50 import assignment
from gradebook.results import ClassResult, ManualCriterion, ManualResult, RegradeRequest, Remark, StudentResult
from gradebox import report
from gradebox.report.console import Console
from gradebox.report.document import from_document, to_document
from gradebox.run.grade import CheckReport, Grade, IntegrityNote, Outcome
from gradebox.run.overrides import Override
from grader.cli import app
from tests.gradebook.conftest import SmallClass
from tests.gradebook.export.classes import a_class, graded, student
from tests.gradebook.fakes import fake_engine

HIDDEN = (
    "\x00\x07\x08\x0b\r\x1b[2J\x1b]0;x\x07\x7f\x85\x9b2J"
    "\u00ad\u061c\u200b\u200c\u200d\u200e\u200f\u2028\u2029\u202a\u202e\u2060\u2066\u2069\ufeff\ufff9"
    "\u115f\u3164\uffa0\ue000\U000e0041\ud800\udcff"
)
HOSTILE = f"a{HIDDEN}b"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
LEGIT = "Zoë 中文 👩🏽‍💻 می‌خواهم"
ROOT = Path(__file__).parents[3]
CHECKS = [check.id for check in grader.course().rubric.checks() if check.id.startswith("lab1.")]


def assert_printable(text: str | bytes, *, is_json: bool = False) -> None:
    """Every sign is one that people see, or ends a line; and what was said is shown, in other words."""
    if isinstance(text, bytes):
        text = text.decode("utf-8").removeprefix("\ufeff")
    assert not hidden_in(text)
    assert "\\x1b" in text
    if is_json:
        for inner in texts_of(json.loads(text)):
            assert not hidden_in(inner)


def hidden_in(text: str) -> set[str]:
    """The signs that nobody sees, by number; line ends, as those of CSV, are none."""
    signs = set(text.replace(LEGIT, "").replace("\r\n", "\n")) - set("\n\t")
    invisible = {sign for sign in signs if unicodedata.category(sign) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")}
    return {f"U+{ord(sign):04X}" for sign in invisible | signs & set("\u115f\u3164\uffa0")}


def texts_of(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from texts_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts_of(inner)


def hostile_grade() -> Grade:
    """A grade in which every text is one of the submission, as no session would make it."""
    reports = {
        CHECKS[0]: CheckReport(Outcome.FAILED, HOSTILE, HOSTILE),
        CHECKS[1]: CheckReport(Outcome.NEEDS_REVIEW, HOSTILE, HOSTILE),
        CHECKS[2]: CheckReport(Outcome.BLOCKED, HOSTILE, HOSTILE),
    }
    notes = [IntegrityNote(HOSTILE, HOSTILE, HOSTILE, CHECKS[0]), IntegrityNote("open", HOSTILE, HOSTILE, HOSTILE)]
    override = [Override("ada", "lab1.analysis", Decimal(1), HOSTILE)]
    grade = graded(reports, notes=notes, overrides=override)
    criteria = tuple(
        replace(row, checks=tuple(replace(check, message=HOSTILE, hint=HOSTILE) for check in row.checks))
        for row in grade.labs[0].criteria
    )
    return replace(
        grade,
        submission=HOSTILE,
        device=HOSTILE,
        integrity=tuple(IntegrityNote(HOSTILE, HOSTILE, HOSTILE, CHECKS[0]) for _ in notes),
        labs=(replace(grade.labs[0], title=LEGIT, criteria=criteria),),
    )


def hostile_document() -> dict[str, Any]:
    """`hostile_grade` as a document that nobody has cleaned."""
    made = to_document(hostile_grade())
    made["submission"] = made["device"] = HOSTILE
    made["integrity"] = [{"kind": HOSTILE, "detail": HOSTILE, "where": HOSTILE, "check": CHECKS[0]}]
    for row in made["labs"][0]["criteria"]:
        for check in row["checks"]:
            check["message"] = check["hint"] = HOSTILE
    return made


@pytest.fixture
def hostile_class() -> ClassResult:
    said = ManualCriterion(
        id=HOSTILE, title=HOSTILE, points=Decimal(1), max_points=Decimal(2), remarks=(Remark(text=HOSTILE),), by=HOSTILE
    )
    manual = ManualResult(title=HOSTILE, criteria=(said,), released=True)
    open_request = RegradeRequest(id=HOSTILE, student="ada", text=HOSTILE, asked_at=NOW, about=HOSTILE)
    answered = replace(open_request, answer=HOSTILE, answered_by=HOSTILE, answered_at=NOW)
    ada = student("ada", hostile_grade(), name=LEGIT, reason=HOSTILE, commit=HOSTILE, manual=manual,
                  requests=(open_request, answered))  # fmt: skip
    others = [
        StudentResult(
            student=f"{status}{HOSTILE}", name=HOSTILE, status=status, reason=HOSTILE, columns={HOSTILE: HOSTILE}
        )
        for status in ("missing", "refused", "could_not_grade", "waiting", "excused")
    ]
    moodle = {"Identifier": HOSTILE, "Grade": "", "Last modified (grade)": HOSTILE, "Student": HOSTILE, "ID": HOSTILE}
    roster = student(HOSTILE, hostile_grade(), name=HOSTILE, columns=moodle)
    made = a_class([ada, roster, *others], title=HOSTILE)
    return replace(made, manual_title=HOSTILE, manual_max=Decimal(2), manual_released=True, max_score=Decimal(22))


def test_the_exports_of_a_class(hostile_class: ClassResult, tmp_path: Path) -> None:
    written = everything.write(hostile_class, tmp_path, configuration=Options(notes_for_students=True))
    assert {path.suffix for path in written} == {".html", ".md", ".json", ".csv"}
    for path in written:
        if path.name != "checks.csv" and path.stem != "ada":
            assert_printable(path.read_bytes(), is_json=path.suffix == ".json")
    assert LEGIT in (tmp_path / "exports" / "class.html").read_text()


def test_the_list_of_reviews(hostile_class: ClassResult, tmp_path: Path) -> None:
    class_view = view.of(hostile_class, ())
    assert_printable(review_list.text(class_view, tmp_path))


def test_the_reports_of_a_grade(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grade = hostile_grade()
    paths = report.write(grade, tmp_path)
    report.show(grade, [HOSTILE], [*paths, tmp_path / HOSTILE.replace("\0", "")])
    assert_printable(capsys.readouterr().out)
    for name in ("grade.json", "grade.html", "progress.json"):
        assert_printable((tmp_path / name).read_bytes(), is_json=name.endswith("json"))
    assert LEGIT in (tmp_path / "grade.html").read_text()


def test_what_other_programs_are_given() -> None:
    grade = hostile_grade()
    assert_printable(gradescope.to_json(gradescope.results(grade, remarks=(HOSTILE,))), is_json=True)
    assert_printable(gradescope.to_json(gradescope.not_graded(HOSTILE)), is_json=True)
    assert_printable(assignment.to_json(assignment.result(grade, {"CLASSROOM": HOSTILE})), is_json=True)
    assert_printable(assignment.to_json(assignment.not_graded(HOSTILE, [], {})), is_json=True)
    assert_printable(assignment.release_body(grade))
    assert_printable(grade_markdown(grade, HOSTILE))


def test_the_similarity_report(tmp_path: Path) -> None:
    passage = Passage(HOSTILE, 1, (HOSTILE,), frozenset({1}))
    pair = Pair(HOSTILE, (HOSTILE, LEGIT), (1.0, 1.0), 0.5, True, (passage, passage))
    written = similarity_report.write([pair], tmp_path, compared=2, threshold=0.6, now=datetime(2026, 1, 1, tzinfo=UTC))
    for path in written:
        assert_printable(path.read_bytes())


def test_commands_that_read_a_grade_which_a_submission_brought(tmp_path: Path) -> None:
    key = json.loads(json.dumps(hostile_document()))
    key["integrity"][0][HOSTILE] = 1
    version = {"schema_version": HOSTILE}
    labs = tmp_path / "labs"
    labs.mkdir()
    for brought in (hostile_document(), key, version):
        (tmp_path / "grade.json").write_text(json.dumps(brought))
        for command in (
            ["next", str(labs), "--report", str(tmp_path)],
            ["export", "markdown", str(tmp_path / "grade.json")],
            ["export", "gradescope-results", str(tmp_path / "grade.json")],
        ):
            assert_printable(CliRunner().invoke(app, command).output)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names of files")
def test_a_class_of_hostile_names(tmp_path: Path) -> None:
    small = SmallClass(tmp_path)
    small.hands_in("ada")
    os.makedirs(os.fsencode(small.submissions) + b"/bob/lab1_gpu_basics/\xff\x1b[2J")
    (small.submissions / "bob" / "lab1_gpu_basics" / "a\u202eb.py").touch()
    name = HOSTILE.translate({0: None, 0xD800: None})
    (small.submissions / f"carl{name}.zip").write_bytes(b"no zip\x1b[2J")
    output = StringIO()
    console = Console(file=output, force_terminal=False, width=200)
    request = ClassRequest(
        course=grader.course(), submissions=small.submissions, out=small.out, labs=(1,), device="vgpu", seed=7
    )
    result = grade_class(request, fake_engine, console)
    assert [row.status for row in result.students] == ["graded", "refused", "refused"]
    ClassProgress(console).say(HOSTILE)
    assert_printable(output.getvalue())
    for command in (
        ["review", str(small.out)],
        ["class", "--out", str(small.out)],
        ["export", "class", str(small.out)],
    ):
        output.write(CliRunner().invoke(app, command).output)
    assert_printable(output.getvalue())
    for path in (small.out / "exports").rglob("*.*"):
        assert not hidden_in(path.read_text("utf-8-sig"))


@pytest.mark.night
def test_words_of_the_judge_before_it_grades(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "--grade", f"--submission={tmp_path}/a\x1b[2J\u202eb"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 2
    assert_printable(done.stdout + done.stderr)


def test_no_part_of_the_grader_writes_past_the_edge() -> None:
    edges = {
        r"(?<![.\w])print\((?!printable\()": {
            *("grader/doctor/", "gradebook/intake/archives.py"),
            "gradebook/plugins/classroom50/scripts/autograder.py",  # what `gpulabs` said
            "gradebox/common/platforms.py",  # words of ours, where nothing else can be imported
        },
        r"typer\.(echo|secho)\(": {"gradebook/cli/echo.py"},
        r"from rich.* import .*\bConsole\b": {
            "gradebox/report/console.py",
            "gradebook/grading/progress.py",
            "gradebook/grade_class.py",
            "grader/rehearsal/__main__.py",
        },
        r"jinja2\.Environment\(": {"gradebox/report/html.py"},
        r"csv\.writer\(": {"gradebook/text_files.py"},
    }
    files = [path for room in ("gradebox", "gradebook", "grader") for path in (ROOT / room).rglob("*.py")]
    assert len(files) > 150
    for path in sorted(files):
        place = path.relative_to(ROOT).as_posix()
        for pattern, allowed in edges.items():
            if not {"checks", "probes", "sandbox"} & set(path.parts) and not place.startswith(tuple(allowed)):
                assert not re.search(pattern, path.read_text()), f"{place} writes text that nobody has made printable"


def test_reviews_are_read_back_as_they_were_accepted(tmp_path: Path) -> None:
    stored = a_class([student("ada", from_document(to_document(hostile_grade())))])
    class_view = view.of(stored, ())
    line = class_view.line("ada")
    assert line is not None
    criterion = line.open[0].criterion
    reviews.accept(
        tmp_path, [item for item in line.open if item.criterion == criterion], datetime(2026, 1, 1, tzinfo=UTC)
    )
    after = view.of(stored, reviews.load(tmp_path)).line("ada")
    assert after is not None
    assert criterion not in {item.criterion for item in after.open}
