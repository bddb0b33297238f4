"""Names of labs and criteria that a course may choose: numbers with two digits, and words that files use."""

from __future__ import annotations

from decimal import Decimal

from gradebox.course import lab_numbers, rubric


def test_criteria_may_be_called_as_keys_of_a_lab_are() -> None:
    checks = (rubric.Check("lab10.number.right", Decimal(1)),)
    names = ("number", "title", "points", "package", "hours", "criteria", "other")
    criteria = tuple(
        rubric.Criterion(f"lab10.{name}", name, Decimal(1), checks if name == "number" else ()) for name in names
    )
    lab = rubric.Lab("lab10", 10, "Ten", "lab10_ten", Decimal(7), criteria)
    made = rubric.Rubric("1", Decimal(7), Decimal(50), (lab,))
    assert rubric.from_text(made.to_text()) == made


def test_labs_have_the_numbers_of_their_names() -> None:
    for names, numbers in (
        (["lab1", "lab2", "lab10"], [1, 2, 10]),
        (["week3", "week4"], [3, 4]),
        (["lab1", "extra1"], [1, 2]),
        (["basics", "lab7"], [1, 2]),
        (["lab01", "lab02"], [1, 2]),
    ):
        assert lab_numbers.of(names) == list(zip(names, numbers, strict=True))
