"""A ledger of scores: of any class, whatever became of its students, Canvas and Moodle take exactly the scores that
count from our files by their own importers' rules, and keep what they have of who has none.
"""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from gradebook.export import everything
from gradebook.results import Excused, StudentResult
from gradebox.run.grade import LatePenalty
from gradebox.run.overrides import Override
from tests.gradebook.export.classes import a_class, graded, student
from tests.gradebook.intake.test_owner_ledger import Class, Person
from tests.gradebook.term.platforms import CanvasGradebook, MoodleAssignment

NAMES = ("=HYPERLINK(1)", "-Smith", "+49", "@ada", "Müller, Zoë", 'O"Neil', "李", "A;B", "A\tB", "  x ", "'quoted'")
OTHERS = ("missing", "refused", "could_not_grade", "could_not_fetch", "excused", "waiting", "withheld")
THERE = 3.5
"""What platforms have of everybody."""
Score = Decimal | str | None
"""`EX`: excused; None: none."""


def became_of(draw: random.Random, key: str, name: str, columns: Mapping[str, str]) -> tuple[StudentResult, Score]:
    """One student's line, and what has to arrive."""
    status = draw.choice(("graded",) * 6 + OTHERS)
    nobody = StudentResult(student=key, name=name, columns=columns, status="waiting", reason="=1+1")
    match status:
        case "graded":
            points = Decimal(draw.choice(("4.5", "0", "3.337", "1.25")))
            overrides = [Override(key, "lab1.analysis", points, "=why")] if draw.random() < 0.3 else []
            grade = graded({}, student=key, overrides=overrides)
            lost = min(grade.score, Decimal(draw.choice(("2", "1.7", "0.333", "20"))))
            late = LatePenalty(seconds_late=5e4, points=lost, rule="10 % per day") if draw.random() < 0.4 else None
            made = student(key, grade, late=late, name=name, columns=columns)
            assert made.score is not None
            if draw.random() < 0.3:  # some labs excused: in proportion
                made = replace(made, score=made.score / draw.choice((3, 7)))
            return made, made.score
        case "missing" | "refused" as zero:
            return replace(nobody, status=zero, score=Decimal(0)), Decimal(0)
        case "excused":
            return replace(nobody, status="excused", excused=(Excused(student=key, reason="ill"),)), "EX"
        case "withheld":
            return replace(nobody, status="missing", withheld=True), None
        case "could_not_grade" | "could_not_fetch" as open_:
            return replace(nobody, status=open_), None
    return nobody, None


def exported(rows: list[StudentResult], folder: Path) -> Path:
    everything.write(a_class(rows), folder)
    return folder / "exports"


def rows_of(text: str) -> list[dict[str, str]]:
    rows = csv.DictReader(io.StringIO(text.removeprefix("\ufeff")))
    return [{name.strip(): cell.strip() for name, cell in row.items()} for row in rows]


def arrived(actual: str | float, expected: Score) -> bool:
    if expected is None or expected == "EX":
        return actual == (
            "EX" if isinstance(actual, str) and expected else str(THERE) if isinstance(actual, str) else THERE
        )
    return actual != "EX" and abs(Decimal(str(actual)) - Decimal(expected)) <= Decimal("0.005")


def a_name(draw: random.Random, person: Person) -> str:
    return draw.choice(NAMES) if draw.random() < 0.3 else f"{person.last}, {person.first}"


@pytest.mark.parametrize("part", range(3))
def test_canvas_takes_what_counts(part: int, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    for seed in range(part * 20, part * 20 + 20):
        draw = random.Random(f"{pytestconfig.getoption('seed')} {seed}")
        people = Class(seed, "Canvas").people
        sis = {
            person: person.sis if draw.random() < 0.8 else draw.choice(("", "-7", "007", "=1")) + person.number
            for person in people
        }
        book = CanvasGradebook(
            {person.number: {"Student": a_name(draw, person), "SIS User ID": sis[person], "SIS Login ID": person.login,
                          "Section": draw.choice(("A", "=B"))} for person in people},
            {"4710": "Essay", "4711": "GPU labs"},
            {(person.number, assignment): str(THERE) for person in people for assignment in ("4710", "4711")},
        )  # fmt: skip
        roster = [row for row in rows_of(book.exported()) if row["ID"]]
        made = {row["ID"]: became_of(draw, row["SIS Login ID"], row["Student"], row) for row in roster}
        exports = exported([line for line, _ in made.values()], tmp_path / str(seed))
        book.upload((exports / "canvas.csv").read_bytes().decode())
        assert book.ignored == [], seed
        for number, (line, expected) in made.items():
            assert arrived(book.grades[number, "4711"], expected), (seed, line, book.grades[number, "4711"])
            assert book.grades[number, "4710"] == str(THERE), seed
        having = [score for _, score in made.values() if score not in (None, "EX")]
        written = sorted((exports / "gradescope").glob("*.json"))
        assert sorted(json.loads(path.read_text())["score"] for path in written) == pytest.approx(
            sorted(float(score) for score in having if score is not None), abs=0.005
        )
        assert len(rows_of((exports / "grades.csv").read_text(encoding="utf-8-sig"))) == len(made)


@pytest.mark.parametrize("part", range(3))
def test_moodle_takes_what_counts(part: int, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    for seed in range(part * 20, part * 20 + 20):
        draw = random.Random(f"{pytestconfig.getoption('seed')} {seed}")
        people = Class(seed, "Moodle").people
        moodle = MoodleAssignment(
            20.0,
            {person.number: {"Full name": a_name(draw, person), "Email address": person.email} for person in people},
            {person.number: (THERE, "there") for person in people},
        )
        roster = rows_of(moodle.worksheet())
        made = {row["Identifier"]: became_of(draw, row["Identifier"], row["Full name"], row) for row in roster}
        exports = exported([line for line, _ in made.values()], tmp_path / str(seed))
        moodle.upload((exports / "moodle-worksheet.csv").read_bytes().decode())
        assert moodle.skipped == [], seed
        for identifier, (line, expected) in made.items():
            actual, comment = moodle.grades[identifier.removeprefix("Participant ")]
            assert arrived(actual, expected), (seed, line, actual)
            assert (comment == "there") == (expected in (None, "EX")), (seed, line, comment)
