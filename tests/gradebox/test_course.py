"""The rubric adds up, and says where it does not."""

from decimal import Decimal
from pathlib import Path

import pytest

import grader
from gradebox import rubric
from gradebox.rubric import RubricError

SMALL = """\
[rubric]
version = "1"
points = 10
criteria = 2
pass_percent = 70

[lab1]
title = "One"
package = "lab1_one"
points = 10

[lab1.first]
title = "First"
points = 4
[lab1.first.checks]
works = 2.5
is_quick = 1.5

[lab1.second]
title = "Second"
points = 6
"""


@pytest.fixture
def refused(tmp_path: Path):
    """Load SMALL with one replacement; returns the error's text without the folder."""

    def load(old: str, new: str) -> str:
        assert old in SMALL
        path = tmp_path / "rubric.toml"
        path.write_text(SMALL.replace(old, new, 1))
        with pytest.raises(RubricError) as caught:
            rubric.load(path)
        return str(caught.value).removeprefix(f"{tmp_path}/")

    return load


def test_the_course_rubric_has_19_criteria_and_100_points() -> None:
    course = grader.course().rubric
    assert sum(lab.points for lab in course.labs) == 100
    assert [lab.points for lab in course.labs] == [20, 20, 25, 20, 15]
    assert sum(len(lab.criteria) for lab in course.labs) == 19
    assert course.pass_percent == 70


def test_a_small_rubric_is_read_exactly(tmp_path: Path) -> None:
    path = tmp_path / "rubric.toml"
    path.write_text(SMALL)
    loaded = rubric.load(path)
    assert [check.id for check in loaded.checks()] == ["lab1.first.works", "lab1.first.is_quick"]
    assert [check.points for check in loaded.checks()] == [Decimal("2.5"), Decimal("1.5")]
    assert [criterion.available for criterion in loaded.labs[0].criteria] == [True, False]


def test_checks_that_do_not_add_up_are_named_with_their_line(refused) -> None:
    message = refused("works = 2.5", "works = 2")
    assert message == "rubric.toml:14: [lab1.first] states 4 points, but its checks add up to 3.5"


def test_criteria_that_do_not_add_up_are_named(refused) -> None:
    assert "[lab1] states 10 points, but the criteria add up to 9" in refused("points = 6", "points = 5")


def test_labs_that_do_not_add_up_are_named(refused) -> None:
    assert refused("points = 10", "points = 11").startswith("rubric.toml:3: [rubric] states 11 points")


def test_a_wrong_number_of_criteria_is_refused(refused) -> None:
    assert refused("criteria = 2", "criteria = 3") == "rubric.toml:4: criteria = 3, but 2 criteria follow"


def test_a_misspelt_key_is_named_with_its_line(refused) -> None:
    assert refused('title = "Second"', 'titel = "Second"').startswith("rubric.toml:20: unknown key 'titel'")


def test_a_missing_key_is_named(refused) -> None:
    assert "[lab1.second] lacks the key 'title'" in refused('title = "Second"\n', "")


@pytest.mark.parametrize("points", ["0", "-1", "true", '"2"'])
def test_points_must_be_positive_numbers(refused, points: str) -> None:
    assert refused("is_quick = 1.5", f"is_quick = {points}").startswith("rubric.toml:17: is_quick must be a positive")


def test_broken_toml_is_reported_with_its_line(refused) -> None:
    assert refused("points = 4", "points = = 4").startswith("rubric.toml:14: not valid TOML")


def test_a_pass_mark_above_100_percent_is_refused(refused) -> None:
    assert refused("pass_percent = 70", "pass_percent = 101").startswith("rubric.toml:5: pass_percent")


def test_selecting_a_lab_that_does_not_exist_names_those_that_do() -> None:
    with pytest.raises(ValueError, match="there is no lab 9; the labs are 1, 2, 3, 4, 5"):
        grader.course().rubric.select((1, 9))


def test_selected_labs_come_in_the_rubrics_order() -> None:
    assert [lab.id for lab in grader.course().rubric.select((3, 1))] == ["lab1", "lab3"]
