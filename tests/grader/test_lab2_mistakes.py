"""Mistakes in Lab 2 that a report names: each is recognised as itself, and a right answer as none."""

from __future__ import annotations

from typing import Any

import pytest

from grader.lab2.comparison.cases.measuring import Network
from grader.lab2.comparison.checks import comparison
from grader.lab2.scaling import reference
from grader.lab2.scaling.cases.trainings import Run


@pytest.mark.parametrize(("counted", "is_numbers"), [(6, False), (6 * 5, True), (6 * 4, False)])
def test_a_throughput_of_numbers_is_told_from_any_other(counted: int, is_numbers: bool) -> None:
    case = Network(widths=[5, 4, 4, 3], batch=6)
    row: Any = {"step_seconds": 0.25, "samples_per_second": counted / 0.25}
    assert comparison._counts_numbers(row, case) is is_numbers


def test_the_scale_of_the_last_step_differs_from_the_final_one_after_an_overflow() -> None:
    run = Run(sizes=[2, 2], rate=0.1, overflows_in_backward=[1])
    assert (reference.last_scale(run), reference.final_scale(run)) == (2.0**16, 2.0**15)
