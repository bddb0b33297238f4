"""Mistakes in Lab 1's analysis, plots and memory profiles: each is recognised as itself, and right answers as none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from gradebox.run.assertions import Cause, CheckFailed
from gradebox.run.input_generator import InputGenerator
from grader.lab1.analysis import reference
from grader.lab1.analysis.cases.products import bound_cases, crossover_cases, peak_share_cases
from grader.lab1.analysis.cases.profiles import bottleneck_profiles, made_up_operations
from grader.lab1.analysis.checks import mistakes
from grader.lab1.memory.checks.mistakes import NOT_BYTES, RUN
from grader.lab1.shared.cases.plots import Axes
from grader.lab1.shared.checks.pictures import require_visible

SEEDS = range(6)
Answers = tuple[Sequence[Any], Callable[[Any], object], Sequence[tuple[Cause, Callable[[Any], object]]]]


def answers(seed: int) -> list[Answers]:
    """Cases, the right answer to each, and wrong ones."""
    generator = InputGenerator(seed, "lab1.analysis.test")
    profiles = bottleneck_profiles(generator)
    figures = list(zip(profiles.peaks, profiles.allocated, profiles.reserved, strict=True))
    operations = list(zip(*made_up_operations(generator), strict=True))
    shares = [share for _, share in peak_share_cases(generator)]
    return [
        (crossover_cases(generator), reference.crossover, mistakes.CROSSOVER),
        (bound_cases(generator), lambda case: reference.bound(case.limits), mistakes.BOUNDS),
        (shares, lambda share: share, mistakes.SHARES),
        (figures, lambda row: reference.bottleneck(row[0]), mistakes.BOTTLENECKS),
        (profiles.allocated, reference.increases, mistakes.INCREASES),
        (operations, lambda asked: reference.slowest(*asked)[0], mistakes.SLOWEST),
    ]


def recognised(
    cases: Sequence[Any], given: Callable[[Any], object], known: Sequence[tuple[Cause, Callable[[Any], object]]]
) -> str:
    with pytest.raises(CheckFailed) as failure, mistakes.recognised(cases, [given(case) for case in cases], known):
        raise CheckFailed("wrong")
    return failure.value.cause.name if failure.value.cause else ""


def test_each_mistake_of_an_answer_is_recognised_as_itself_or_not_at_all() -> None:
    seen: set[str] = set()
    every: set[str] = set()
    for seed in SEEDS:
        for cases, right, known in answers(seed):
            assert recognised(cases, right, known) == ""
            for cause, wrong in known:
                assert recognised(cases, wrong, known) in ("", cause.name)
                assert cause.mistake
                seen.add(recognised(cases, wrong, known))
                every.add(cause.name)
    assert seen >= every


def test_two_mistakes_in_turn_are_none_that_is_known() -> None:
    cases, _, known = answers(0)[1]
    (_, first), (_, second), *_ = known
    mixed = {id(case): (first, second)[place % 2](case) for place, case in enumerate(cases)}
    assert recognised(cases, lambda case: mixed[id(case)], known) == ""


def axes(high: float) -> Axes:
    points = [[0.0, 1.0], [1.0, 4.0]]
    return Axes(
        series=[points], lines=[points], names=0, levels=[1.0], labels=["", ""], plain_numbers=[True, True],
        x_limits=[-0.5, 1.5], y_limits=[0.0, high],
    )  # fmt: skip


def test_only_what_lies_within_the_limits_is_seen() -> None:
    def both(shown: Sequence[Axes]) -> None:
        heights = [y for each in shown for points in each.series for _, y in points]
        if heights != [1.0, 4.0]:
            raise CheckFailed("a point is missing")

    require_visible("plot", both, [axes(4.0)], "the plot")
    with pytest.raises(CheckFailed, match="cut off by the limits of the axes") as failure:
        require_visible("plot", both, [axes(3.0)], "the plot")
    assert failure.value.cause is not None
    assert failure.value.cause.name == "cut_off_in_plot"


def test_every_mistake_of_a_profile_says_what_is_wrong() -> None:
    for cause in (*RUN.values(), NOT_BYTES):
        assert cause.mistake
        assert not cause.mistake.endswith(".")
        assert cause.check
