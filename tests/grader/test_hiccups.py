"""Products slow or fast on purpose: the median of five or more measurements is right, and what is less is not."""

from __future__ import annotations

import itertools
import statistics

import pytest

from gradebox.run.input_generator import InputGenerator
from grader.lab1.measurements.cases import DISTURBED, hiccups
from grader.lab1.shared.cases.products import Hiccup


def _times(call: list[Hiccup]) -> list[float]:
    times = [1.0] * DISTURBED
    for run in call:
        for index in range(run["first"], run["first"] + run["count"]):
            times[index] *= run["factor"]
    return times


def _evenly(count: int) -> list[int]:
    return [DISTURBED * (block + 1) // count - DISTURBED * block // count for block in range(count)]


@pytest.mark.parametrize("seed", range(40))
def test_the_median_of_five_or_more_measurements_is_right(seed: int) -> None:
    for call in hiccups(InputGenerator(seed, "hiccups")):
        times = _times(call)
        for count in range(5, DISTURBED + 1):
            length, longer = divmod(DISTURBED, count)
            for lengths in ([length + 1] * longer + [length] * (count - longer), _evenly(count)):
                edges = [0, *itertools.accumulate(lengths)]
                blocks = [statistics.mean(times[start:stop]) for start, stop in itertools.pairwise(edges)]
                assert statistics.median(blocks) == 1.0, (count, call)


@pytest.mark.parametrize("seed", range(10))
def test_one_product_the_mean_and_the_extremes_are_wrong(seed: int) -> None:
    calls = [_times(call) for call in hiccups(InputGenerator(seed, "hiccups"))]
    assert all(max(times) > 4 and min(times) < 0.4 and statistics.mean(times) > 1.4 for times in calls)
    slowest = sorted(map(max, calls))
    assert all(slower > 2 * slow for slow, slower in itertools.pairwise(slowest)), "no limit leaves all of them out"
    assert all(any(times[index] != 1.0 for times in calls) for index in range(DISTURBED))
