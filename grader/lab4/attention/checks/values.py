"""Judges what Lab 4's attention computes: equal to a float64 reference, and no query sees its future."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gradebox.course.criterion import builds_on, criterion
from gradebox.run.assertions import recognising, require
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab4.attention.cases.draws import changed_keys, flash_calls, square_calls, standard_calls, tiled_calls
from grader.lab4.attention.cases.types import ChangedKey, Future, Moved
from grader.lab4.attention.checks.comparison import LENGTHS_HINT, judge
from grader.lab4.attention.checks.library import libraries, require_library
from grader.lab4.attention.checks.masks import cause_of
from grader.lab4.attention.checks.tensors import (
    require_no_square,
    require_no_square_of_values,
    require_own_tiles,
)
from grader.lab4.attention.reference import mistake_in_influence, sees


@criterion("lab4.attention")
class TestValues:
    def test_standard_equals_reference(self, submission: Submission, generator: InputGenerator) -> None:
        judge(submission, generator, "standard_attention", standard_calls(generator), causal=False)

    def test_flash_equals_reference(self, submission: Submission, generator: InputGenerator) -> None:
        judge(submission, generator, "flash_attention", flash_calls(generator), causal=False)

    def test_tiled_equals_reference(self, submission: Submission, generator: InputGenerator) -> None:
        judge(submission, generator, "tiled_attention", tiled_calls(generator))
        require_own_tiles(submission, generator)

    @builds_on("standard_equals_reference", "flash_equals_reference")
    def test_no_query_sees_the_future(
        self, submission: Submission, generator: InputGenerator, without: frozenset[str]
    ) -> None:
        cases, functions = changed_keys(generator), ["flash_attention", "tiled_attention"]
        # In a control experiment values are left out, and what a changed key moves is not.
        if "standard_equals_reference" in without:
            functions = ["standard_attention", *functions]
        else:
            judge(submission, generator, "standard_attention", standard_calls(generator), causal=True)
        if "flash_equals_reference" not in without:
            judge(submission, generator, "flash_attention", flash_calls(generator), causal=True)
        reply = submission.numeric_probe(Future(functions=functions, cases=cases, seed=generator.integer(1, 10**6)))
        for name, rows in reply.moved.items():
            moved = [(cases[index // 2], _distance(row)) for index, row in enumerate(rows)]
            with recognising(lambda: cause_of(mistake_in_influence(moved), name)):  # noqa: B023 - called in here
                _require_causal(name, moved)
        require_no_square(submission, "flash_attention", square_calls(generator, "flash_attention", causal=True))
        require_no_square_of_values(submission, generator.shared("lab4.attention.causal values"), causal=True)
        for library in generator.shuffled(libraries(generator))[:2]:
            require_library(submission, generator, library, causal=True)


def _distance(moved: Moved) -> NDArray[np.float64]:
    """How far each query's output moved; infinitely far if it is no number."""
    return np.nan_to_num(np.asarray(moved, dtype=np.float64), nan=np.inf)


def _require_causal(name: str, moved: Sequence[tuple[ChangedKey, NDArray[np.float64]]]) -> None:
    for index, (case, distance) in enumerate(moved):
        how = "in training" if index % 2 == 0 else "under torch.no_grad()"
        visible = sees(case)
        what = f"{name}(), causal, {how}, {case.queries} queries and {case.keys} keys"
        early = np.flatnonzero(~visible & (distance > 1e-9))
        require(
            not early.size,
            f"{what}: key {case.changed} was changed, and the output of query {early[:1]} moved, which must not see it",
            LENGTHS_HINT,
        )
        late = np.flatnonzero(visible & (distance < 1e-6))
        require(
            not late.size,
            f"{what}: key {case.changed} was changed, and the output of query {late[:1]} did not move, although it "
            "sees it",
            LENGTHS_HINT,
        )
