"""A term, played by an instructor who has only the pages of docs/ about classes: their commands, files with the
names that platforms give them, and each export taken by the platform's own rules.

Only the judge is pretended, so that it takes seconds: points follow from content. `docs/platforms/tested.md` says
what is tried.
"""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

import gradebook.cli.classroom
from gradebook.export import gradescope
from gradebook.grading import class_summary
from grader.cli import app
from tests.gradebook.fakes import LOG, fake_engine
from tests.gradebook.plugins.canvas_push.canvas_server import TOKEN, CanvasState, Student, StudentRecord, canvas
from tests.gradebook.term.platforms import CanvasGradebook, MoodleAssignment, rows
from tests.scenarios.build import ROOT

PEOPLE = {
    "101": {"Student": "Lovelace, Ada", "SIS User ID": "S1", "SIS Login ID": "ada", "Section": "Monday"},
    "102": {"Student": "Ross, Bob", "SIS User ID": "S2", "SIS Login ID": "bob", "Section": "Monday"},
    "103": {"Student": "Müller, Zoë", "SIS User ID": "S3", "SIS Login ID": "zoe", "Section": "Friday"},
    "104": {"Student": "Lovelace, Ada", "SIS User ID": "S4", "SIS Login ID": "ada2", "Section": "Friday"},
}
"""Two of one name, as every large class has them."""
IN_TIME, LATE, VERY_LATE = (2026, 3, 1, 22, 0, 0), (2026, 3, 3, 12, 0, 0), (2026, 3, 20, 12, 0, 0)
CLASS = """title = "GPU lab 1"
labs = [1]
device = "vgpu:T4"
deadline = 2026-03-01T23:59:00+00:00
submitted = "files"
roster = "roster.csv"
[late]
percent_per_day = 10
no_credit_after_days = 7
[extensions]
zoe = 2026-03-08T23:59:00+00:00
"""


@dataclass
class Office:
    """An instructor's folder and terminal."""

    folder: Path

    def gpulabs(self, *arguments: str, code: int = 0, **environment: str) -> str:
        done = CliRunner().invoke(app, list(arguments), env=environment)
        assert done.exit_code == code, done.output
        assert "Traceback" not in done.output
        return done.output

    def put(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="utf-8")

    def export(self, name: str) -> str:
        return (self.folder / "spring" / "exports" / name).read_bytes().decode("utf-8")

    def scores(self) -> dict[str, float | None]:
        students = class_summary.read(self.folder / "spring").students
        return {student.student: None if student.score is None else float(student.score) for student in students}

    @property
    def graded(self) -> int:
        log = Path(os.environ[LOG])
        return len(log.read_text().splitlines()) if log.exists() else 0


@pytest.fixture
def office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Office:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(LOG, str(tmp_path / "log"))
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setattr(gradebook.cli.classroom, "_local_engine", lambda: fake_engine)
    return Office(tmp_path)


def worked(who: str, text: str = "") -> dict[str, bytes]:
    """The hand-out of Lab 1, as it is handed out, with somebody's work in it."""
    top = ROOT / "labs" / "lab1_gpu_basics"
    files = {path.relative_to(top).as_posix(): path.read_bytes() for path in sorted(top.rglob("*.py"))}
    files["benchmark.py"] += f"# {who} {text}\n".encode()
    return {f"lab1-gpu-basics/{name}": content for name, content in files.items()}


def packed(path: Path, files: dict[str, bytes], when: tuple[int, ...] = IN_TIME) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, when), content)  # type: ignore[arg-type]
    return path.read_bytes()


def canvas_download(folder: Path, work: dict[str, tuple[dict[str, bytes], tuple[int, ...]]]) -> Path:
    """Download Submissions: one zip with a file for each attachment, named by Canvas."""
    inner = {}
    for name, (files, when) in work.items():
        inner[name] = packed(folder / "inner.zip", files, when), when
    target = folder / "submissions.zip"
    with zipfile.ZipFile(target, "w") as archive:
        for name, (content, when) in inner.items():
            archive.writestr(zipfile.ZipInfo(name, when), content)  # type: ignore[arg-type]
    return target


def test_a_term_with_canvas(office: Office) -> None:
    book = CanvasGradebook(PEOPLE, {"4710": "Essay", "4711": "GPU lab 1"}, {("101", "4710"): "5"})
    office.put("roster.csv", book.exported())
    office.put("class.toml", CLASS)
    work = {
        "lovelaceada_101_9001_lab1.zip": (worked("ada"), IN_TIME),
        "rossbob_LATE_102_9002_lab1-1.zip": (worked("bob"), LATE),
        "müllerzoë_LATE_103_9003_lab1.zip": (worked("zoe"), LATE),
    }
    canvas_download(office.folder, work)

    # Grading: two of one name are told apart, lateness costs two days, an extension saves, nobody gets a silent zero.
    command = ("class", "submissions.zip", "--out", "spring", "--config", "class.toml", "--seed", "7")
    said = office.gpulabs(*command)
    assert "3 of 4 students graded" in said
    assert "\n1 late: bob\n" in said, "another one has an extension"
    assert "ada2: handed in nothing" in said
    ada, bob, zoe = (office.scores()[name] for name in ("ada", "bob", "zoe"))
    assert "days" not in office.export("feedback/ada.md")
    assert "1 day 12 hours late: 4 of the" in office.export("feedback/bob.md")
    assert "deducted" not in office.export("feedback/zoe.md")
    graded = office.graded
    office.gpulabs(*command)
    assert office.graded == graded, "nothing is graded twice"

    # Review: what the sandbox noted is shown, and settled.
    assert "opened /etc/passwd" in office.gpulabs("review", "spring", code=3)
    for name in ("ada", "bob", "zoe"):
        office.gpulabs("review", "spring", "--accept", name, "all")
    office.gpulabs("review", "spring")

    # Into Canvas by file, under its importer's rules: the other assignment keeps its grades.
    book.upload(office.export("canvas.csv"))
    assert book.ignored == []
    assert {student: float(book.grades[student, "4711"]) for student in PEOPLE} == {
        "101": ada, "102": bob, "103": zoe, "104": 0.0,
    }  # fmt: skip
    assert book.grades["101", "4710"] == "5"

    # Somebody hands in late, another is graded by hand: one grading, one override, and everything else stays.
    work["lovelaceada_LATE_104_9004_lab1.zip"] = worked("ada2"), VERY_LATE
    canvas_download(office.folder, work)
    office.gpulabs(*command)
    assert office.graded == graded + 1
    assert office.scores()["ada2"] == 0.0, "no credit after seven days"
    assert "no credit after 7 days" in office.export("feedback/ada2.md")
    office.gpulabs("review", "spring", "--override", "bob", "lab1.memory", "4.5", "measured it by hand")
    assert office.scores()["bob"] != bob
    assert "measured it by hand" in office.export("feedback/bob.md")
    book.upload(office.export("canvas.csv"))
    assert float(book.grades["102", "4711"]) == office.scores()["bob"]

    # The same by Canvas's own interface: shown, sent, and nothing twice.
    there = [
        Student(int(number), who["Student"], who["SIS User ID"], who["SIS Login ID"]) for number, who in PEOPLE.items()
    ]
    state = CanvasState(
        students=there,
        assignments=[{"id": 4711, "name": "GPU lab 1", "points_possible": 20.0, "published": True}],
        looks=0,
    )  # fmt: skip
    state.records = {student.id: StudentRecord() for student in state.students}
    with canvas(state) as url:
        where = ("--url", url, "--course", "42")
        assert "--push sends this (4 of 4 students)" in office.gpulabs(
            "export", "canvas", "spring", *where, CANVAS_TOKEN=TOKEN
        )
        office.gpulabs("export", "canvas", "spring", *where, "--push", CANVAS_TOKEN=TOKEN)
        again = office.gpulabs("export", "canvas", "spring", *where, "--push", CANVAS_TOKEN=TOKEN)
    assert "there was nothing to send" in again
    assert {name: state.of(name).score for name in ("ada", "bob", "zoe", "ada2")} == office.scores()
    assert "By the instructor: measured it by hand" in state.comments("bob")[0]


def test_a_term_with_moodle(office: Office) -> None:
    people = {
        "17": {"Full name": "Ada Lovelace", "Email address": "ada@example.edu"},
        "18": {"Full name": "Bob Ross", "Email address": "bob@example.edu"},
        "19": {"Full name": "Zoë Müller", "Email address": "zoe@example.edu"},
    }
    moodle = MoodleAssignment(20.0, people)
    office.put("roster.csv", moodle.worksheet())
    top = office.folder / "CS101-GPU lab 1-4711"
    for name, who in (("Ada Lovelace_17_assignsubmission_file", "ada"), ("Bob Ross_18_assignsubmission_file", "bob")):
        packed(top / name / "lab1.zip", worked(who))
    (top / "Zoë Müller_19_assignsubmission_onlinetext").mkdir()
    (top / "Zoë Müller_19_assignsubmission_onlinetext" / "onlinetext.html").write_text("<p>I was ill</p>")
    shutil.make_archive(str(office.folder / "download"), "zip", top)

    said = office.gpulabs("class", "download.zip", "--out", "spring", "--roster", "roster.csv", "--lab", "1",
                          "--device", "vgpu:T4", "--seed", "7", code=3)  # fmt: skip
    assert "2 of 3 students graded" in said
    assert "online" in said or "onlinetext" in said, "what Zoë wrote is no lab, and is named"
    moodle.upload(office.export("moodle-worksheet.csv"))
    assert moodle.skipped == []
    named = {people[number]["Email address"]: grade for number, (grade, _) in moodle.grades.items()}
    scores = office.scores()
    assert named["ada@example.edu"] == scores["Participant 17"]
    assert named["bob@example.edu"] == scores["Participant 18"]
    assert "<br>" in moodle.grades["17"][1]

    # Somebody's grade is changed in Moodle: the next upload of the old worksheet leaves it alone, as Moodle says.
    moodle.grades["17"], moodle.modified["17"] = (20.0, ""), "Tuesday, 3 March 2026, 8:00 AM"
    moodle.upload(office.export("moodle-worksheet.csv"))
    assert "17: modified in Moodle" in moodle.skipped
    assert moodle.grades["17"][0] == 20.0
    book = rows(office.export("moodle-grades.csv"))
    assert list(book[0]) == ["Full name", "Email address", "download", "download (feedback)"]


METADATA = """---
submission_409194023:
  :submitters:
  - :name: Ada Lovelace
    :sid: '1815'
    :email: ada@example.edu
  :created_at: 2026-03-01 20:00:00.000000000 Z
  :score: 0.0
submission_500000001:
  :submitters:
  - :name: Bob Ross
    :sid: '1816'
    :email: bob@example.edu
  - :name: Zoë Müller
    :sid: '1817'
    :email: zoe@example.edu
  :created_at: 2026-03-03 12:00:00.000000000 Z
  :score: 0.0
"""


def test_a_term_with_gradescope_and_a_team_of_two(office: Office) -> None:
    top = office.folder / "assignment_8046601_export"
    top.mkdir()
    (top / "submission_metadata.yml").write_text(METADATA, encoding="utf-8")
    for number, who in (("409194023", "ada"), ("500000001", "the team")):
        for name, content in worked(who).items():
            path = top / f"submission_{number}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    office.put("roster.csv", "SID,Name,Email\n1815,Ada Lovelace,ada@example.edu\n1816,Bob Ross,bob@example.edu\n"
                             "1817,Zoë Müller,zoe@example.edu\n")  # fmt: skip
    office.put("class.toml", CLASS.replace('submitted = "files"\n', "").replace("zoe =", '"zoe@example.edu" ='))
    office.gpulabs("class", top.name, "--out", "spring", "--config", "class.toml", "--seed", "7")
    assert office.graded == 2, "a team's work is graded once"
    scores = office.scores()
    assert scores["zoe@example.edu"] == pytest.approx((scores["bob@example.edu"] or 0) + 4.0), "each has a deadline"
    schema: dict[str, Any] = json.loads((Path(gradescope.__file__).parent / "gradescope.schema.json").read_text())
    written = sorted((office.folder / "spring" / "exports" / "gradescope").iterdir())
    assert len(written) == 3
    for path in written:
        jsonschema.validate(json.loads(path.read_text()), schema)
    assert "counts for" in office.export("feedback/bob@example.edu.md")
