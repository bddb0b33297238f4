"""Rows of cases that are to have each value within one grading."""

from __future__ import annotations

import itertools

import pytest

from gradebox.run.input_generator import InputGenerator
from grader.shared.cases import every_value, full_rows, one_and_its_opposite

DIMENSIONS = {"dtype": ("a", "b", "c", "d", "e"), "window": (1, 2, 3), "clipped": (False, True), "none": (None, 0)}


@pytest.mark.parametrize("seed", [0, 7, 19, 123_456_789])
def test_each_value_is_in_a_row_of_each_grading(seed: int) -> None:
    rows = every_value(InputGenerator(seed, "lab1.some.check"), DIMENSIONS, 2)
    assert {name: {row[name] for row in rows} for name in DIMENSIONS} == {k: set(v) for k, v in DIMENSIONS.items()}


def test_no_row_has_what_cannot_be_together() -> None:
    rows = every_value(
        InputGenerator(3, "lab1.some.check"), DIMENSIONS, 4, lambda row: not (row["dtype"] == "a" and row["clipped"])
    )
    assert all(not row["clipped"] for row in rows if row["dtype"] == "a")
    assert {row["dtype"] for row in rows} == set(DIMENSIONS["dtype"])


def test_two_opposite_rows_have_each_value_once_and_ten_gradings_each_pair() -> None:
    names = dict.fromkeys("wxyz", (False, True))
    pairs: set[tuple[tuple[str, bool], ...]] = set()
    for seed in range(10):
        first, other = one_and_its_opposite(InputGenerator(seed, "lab1.some.check"), names)
        assert all(first[name] is not other[name] for name in names)
        for row in (first, other):
            pairs |= set(itertools.combinations(row.items(), 2))
    assert len(pairs) == 6 * 4


@pytest.mark.parametrize("seed", range(8))
def test_so_many_rows_and_no_more_have_each_value(seed: int) -> None:
    rows = full_rows(
        InputGenerator(seed, "lab1.some.check"), DIMENSIONS, 5, lambda row: not (row["dtype"] == "a" and row["none"])
    )
    assert len(rows) == 5
    assert {name: {row[name] for row in rows} for name in DIMENSIONS} == {k: set(v) for k, v in DIMENSIONS.items()}


def test_too_few_rows_have_as_many_values_as_they_can() -> None:
    rows = full_rows(InputGenerator(1, "lab1.some.check"), DIMENSIONS, 2)
    assert [len({row[name] for row in rows}) for name in DIMENSIONS] == [2, 2, 2, 2]
