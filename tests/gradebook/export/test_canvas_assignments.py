"""What Canvas's own export says about assignments is compared with what is to be uploaded."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from gradebook.export import canvas, moodle, view
from gradebook.intake.roster_files import load
from tests.gradebook.export.classes import a_class, graded, student

WHO = "Student,ID,SIS User ID,SIS Login ID,Section"


def of(folder: Path, titles: str, worth: str, title: str) -> view.View:
    """A class whose roster is Canvas's export with these assignments."""
    (folder / "roster.csv").write_text(
        f'{WHO},{titles}\n    Points Possible,,,,,{worth}\n"Lovelace, Ada",101,S1,ada,A,,\n', encoding="utf-8"
    )
    (entry,) = load(folder / "roster.csv").entries
    return view.of(a_class([student("ada", graded({}), columns=dict(entry.columns))], title=title))


@pytest.mark.parametrize(
    ("titles", "worth", "title", "chosen", "words"),
    [
        ("Lab 1 (11),Lab 2 (12)", "100,20", "Lab 1", None, "Canvas counts Lab 1 (11) out of 100 points, this class"),
        ("Lab 1 (11),Lab 2 (12)", '"10,5",20', "Lab 1", 11, "Canvas counts Lab 1 (11) out of 10.5 points"),
        ("Lab 1 (11),Lab 2 (12)", "0,20", "Lab 1", None, "out of 0 points"),
        ("Lab 1 (11),Lab 2 (12)", '"1,000",20', "Lab 1", None, "out of 1000 points"),
        ("Lab 1 (11),Lab 2 (12)", '"1,000.50",20', "Lab 1", None, "out of 1000.5 points"),
        ("Lab 1 (11),Lab 2 (12)", "1\u202f000,20", "Lab 1", None, "out of 1000 points"),
        ("Lab 1 (11),Lab 1 (12)", "20,20", "Lab 1", None, "several assignments 'Lab 1' (11 and 12), and canvas.csv"),
        ("Lab 1 (11),Lab 2 (12)", "20,20", "Lab 1", 99, "has no assignment 99: look at canvas_assignment_id"),
        ("Lab 1 (11),Lab 2 (12)", "20,20", "Lab 1", 12, "canvas_assignment_id = 12 is Canvas's 'Lab 2', and"),
        ("Lab 1 (11),Lab 2 (12)", "20,20", "lab 1", None, "no assignment 'lab 1' (but 'Lab 1'), so Canvas will"),
        ("Lab 1 (11),Lab 2 (12)", "20,20", "Lab 3", None, "no assignment 'Lab 3', so Canvas will offer to create one"),
        ("Notes,Final Score", ",(read only)", "Lab 3", None, "no assignment 'Lab 3', so Canvas will offer to"),
        ("Lab 1 (11),Lab 2 (12)", "20,20", "Lab 1 (2026)", None, "Canvas takes (2026) at the end of 'Lab 1 (2026)'"),
        ("Notes,Final Score", ",", "Lab 1 (2026)", None, "an assignment's number: write the right one as canvas_assig"),
    ],
)  # fmt: skip
def test_another_assignment_than_canvas_has_is_named(
    titles: str, worth: str, title: str, chosen: int | None, words: str, tmp_path: Path
) -> None:
    (notice,) = canvas.notices(of(tmp_path, titles, worth, title), chosen)
    assert words in notice


@pytest.mark.parametrize(
    ("titles", "worth", "chosen"),
    [
        ("Lab 1 (11),Lab 2 (12)", "20,100", None),
        ("Lab 1 (11),Lab 2 (12)", "20.00,100", 11),
        ("Lab 1 (11),Lab 1 (12)", "100,20", 12),
        ("Lab 1 (11),Final Score", "(read only),(read only)", None),
        ("Notes,Final Score", ",", None),
        ("Notes,Final Score", ",(read only)", 11),
    ],
)
def test_the_right_assignment_needs_no_word(titles: str, worth: str, chosen: int | None, tmp_path: Path) -> None:
    made = of(tmp_path, titles, worth, "Lab 1")
    assert made.result.max_score == Decimal(20)
    assert canvas.notices(made, chosen) == ()
    assert "Canvas's points" not in canvas.gradebook(made) + moodle.grade_import(made)
