"""References that make a mistake: without one they are right, and with one they are recognised as that one."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from gradebox.run.assertions import CheckFailed
from gradebox.run.input_generator import InputGenerator
from grader.lab1.shared import reference
from grader.lab1.shared.cases.products import Call, Hiccup, Observation, ProductCount, Result
from grader.lab1.shared.checks import mistakes
from grader.lab2.scaling.cases.trainings import Regression, Run, RunReport, crossed, regression
from grader.lab2.scaling.checks import mistakes as amp
from grader.lab2.scaling.reference import first_norm, follow
from grader.lab3.accumulation.cases import Pass, PassReply, mixed
from grader.lab3.accumulation.cases import regression as regression_pass
from grader.lab3.accumulation.checks import CAUSES, cause_of
from grader.lab3.accumulation.reference import MISTAKES
from grader.lab3.accumulation.reference import follow as follow_pass
from grader.lab4.attention import reference as masks
from grader.lab4.attention.reference import Observed, attention

SEEDS = range(6)


def trainings(seed: int) -> tuple[Regression, list[Run]]:
    """Among them one in which each mistake of Lab 2 shows."""
    generator = InputGenerator(seed, "lab2.scaling.accumulation_equals_one_large_batch")
    case = regression(generator)
    common = Run(
        sizes=[3, 5, 2, 4, 3], epochs=2, rate=0.05, accumulation_steps=2, scaler={"init_scale": 64.0}, decay=0.7,
        momentum=0.5,
    )  # fmt: skip
    # In a window of two batches the first one overflows; the others are clipped.
    clipped = replace(common, overflows_in_backward=[2], max_grad_norm=0.4 * first_norm(case, common))
    return case, [*crossed(generator, lambda run: first_norm(case, run)), common, clipped]


def reported(weights: NDArray[np.float64]) -> RunReport:
    """What the probe reports of a training that came to these weights; its result says nothing."""
    return RunReport(
        result={}, before=[], after=weights.ravel().tolist(), largest_gradients=[], passes=[], frozen=[0.5, 0.5],
        scheduler_steps=None,
    )  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
def test_right_weights_show_no_mistake(seed: int) -> None:
    case, runs = trainings(seed)
    assert amp.cause_of(case, runs, [reported(follow(case, run).end) for run in runs]) is None


@pytest.mark.parametrize("mistake", amp.MISTAKES)
@pytest.mark.parametrize("seed", SEEDS)
def test_each_mistake_of_a_training_is_recognised(seed: int, mistake: str) -> None:
    case, runs = trainings(seed)
    reports = [reported(follow(case, run, mistake).end) for run in runs]
    assert amp.cause_of(case, runs, reports) is amp.MISTAKES[mistake]


def test_two_mistakes_are_not_recognised_as_one() -> None:
    case, runs = trainings(0)
    mistakes_in_turn = itertools.cycle(["summed", "never_cleared"])
    reports = [reported(follow(case, run, next(mistakes_in_turn)).end) for run in runs]
    assert amp.cause_of(case, runs, reports) is None


def passes(seed: int) -> list[Pass]:
    generator = InputGenerator(seed, "lab3.accumulation.uneven_counts")
    uneven = regression_pass(generator, [[3, 5, 2, 7, 4], [4, 6, 1, 2, 9]], 2, momentum=0.5)
    return [uneven, *(case for _, case in mixed(generator))]


def replies(case: Pass, mistake: str = "") -> list[PassReply]:
    """What the ranks report of a pass with this mistake in it."""
    weight = follow_pass(case, mistake).weight
    reply = PassReply(result={}, weight=weight, frozen=np.ones(1), modes=[True], reduced_bytes=0, gradient_bytes=0)
    return [reply for _ in case.sizes]


def test_there_are_words_for_each_mistake_of_an_accumulation() -> None:
    assert tuple(CAUSES) == MISTAKES


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("seed", SEEDS)
def test_each_mistake_of_an_accumulation_is_recognised(seed: int, mistake: str) -> None:
    case = passes(seed)[0]
    cause = cause_of(case, replies(case, mistake))
    assert cause is not None
    assert cause.name == mistake


@pytest.mark.parametrize("seed", SEEDS)
def test_a_right_accumulation_has_no_mistake(seed: int) -> None:
    for case in passes(seed):
        assert cause_of(case, replies(case)) is None


def calls(mistake: masks.Mistake) -> list[Observed]:
    generator = InputGenerator(3, "lab4.attention")
    observed = []
    for queries, keys, causal in ((9, 9, True), (5, 11, True), (11, 5, True), (7, 4, False)):
        q, k, v = generator.normal(1, queries, 4), generator.normal(1, keys, 4), generator.normal(1, keys, 4)
        shift = masks.shift_of(mistake, queries, keys) if causal else 0
        output = attention(q, k, v, None, causal=causal, shift=shift)["output"]
        if mistake == "nothing_seen_is_nan" and causal:
            output[:, : max(0, queries - keys)] = np.nan
        observed.append(Observed(q, k, v, causal, output))
    return observed


@pytest.mark.parametrize("mistake", masks.MISTAKES)
def test_each_mistake_of_a_mask_is_recognised(mistake: masks.Mistake) -> None:
    assert masks.mistake_in_outputs(calls(mistake), 1e-9) == mistake
    *right, last = calls(mistake)
    wrong = replace(last, output=np.asarray(last.output) + 1.0)  # where no mask is: something else is wrong
    assert masks.mistake_in_outputs([*right, wrong], 1e-9) is None


CALL: Call = {"size": 4001, "iterations": 10}
PRODUCTS: list[ProductCount] = [{"device": "cuda", "dtype": "float32", "flops": 2 * 4001**3, "count": 10}]


DEVICE = "vgpu:T4"
WARMED: list[ProductCount] = [{"device": "cuda", "dtype": "float32", "flops": 2 * 4001**3, "count": 20}]


def measurement(seconds: float = 0.0, products: list[ProductCount] = PRODUCTS) -> reference.Measurement:
    result: Result = {
        "device": "cuda", "dtype": "float32", "size": 4001, "iterations": 10, "seconds": seconds, "tflops": 1.0,
    }  # fmt: skip
    return reference.Measurement(call=CALL, observed=Observation(result=result, products=products), pace=1.5)


def judged(factor: float, products: list[ProductCount] = PRODUCTS) -> str:
    """By which mistake seconds are explained that are this many times the right ones; empty if by none."""
    device = "vgpu:T4"
    honest = reference.expected(device, measurement())
    cause = mistakes.mistake_of(device, measurement(factor * (honest.low + honest.high) / 2, products))
    return "" if cause is None else cause.name


def judged_seconds(intervals: Iterable[reference.Interval]) -> set[str]:
    """By which mistakes the seconds in the middle of these intervals are explained."""
    causes = [mistakes.mistake_of(DEVICE, measurement((each.low + each.high) / 2)) for each in intervals]
    return {"" if cause is None else cause.name for cause in causes}


def test_a_mean_and_a_start_too_early_are_told_from_a_median() -> None:
    slow: list[Hiccup] = [{"first": 0, "count": 1, "factor": 200.0}, {"first": 9, "count": 1, "factor": 200.0}]
    run = replace(measurement(), hiccups=slow, observed=replace(measurement().observed, products=WARMED))

    def cause(interval: reference.Interval) -> str:
        result: Result = {**run.observed.result, "seconds": (interval.low + interval.high) / 2}
        seen = replace(run, observed=replace(run.observed, result=result))
        with pytest.raises(CheckFailed) as failure, mistakes.recognised_among_others(DEVICE, seen):
            raise CheckFailed("wrong")
        return failure.value.cause.name if failure.value.cause else ""

    assert {cause(mean) for mean in reference.means(DEVICE, run)} == {"not_the_median"}
    early: list[Hiccup] = [{"first": 2, "count": 4, "factor": 200.0}]  # two of five blocks
    run = replace(run, hiccups=early)
    assert cause(reference.with_older_work(DEVICE, run)[2]) == "older_work_timed"


def test_wrong_seconds_tell_which_mistake_they_are() -> None:
    assert judged(1.0) == ""
    assert judged(10) == "total_instead_of_per_product"
    assert judged(1 / 10) == "divided_twice"
    assert judged(1e3) == "milliseconds"
    assert judged(3.3) == "more_is_timed"
    assert judged(2.0, WARMED) == "older_work_timed"  # ten to warm up, and ten to be timed
    assert judged_seconds(reference.with_transfers(DEVICE, measurement())) == {"operands_moved_while_timed"}
    assert judged(1.0, products=[]) == "not_on_the_gpu"


def test_who_does_not_wait_reads_what_launches_take_and_made_up_numbers_are_no_mistake_that_is_known() -> None:
    device, measured = "vgpu:T4", measurement()
    least = reference.least_read(device, measured) / reference.expected(device, measured).high
    assert judged(1.5 * least) == "not_waited"
    assert judged(0.01 * least) == ""  # faster than anything can be launched
    assert judged(0.7) == ""  # neither right nor a launch


def test_an_overflow_in_the_weights_explains_nothing_where_other_trainings_are_wrong_too() -> None:
    case, runs = trainings(0)
    reports = [
        reported(np.full(case.weight.size, np.nan) if run.overflowing else follow(case, run).end) for run in runs
    ]
    assert amp.cause_of(case, runs, reports) is amp.OVERFLOW
    usual = next(index for index, run in enumerate(runs) if not run.overflowing)
    reports[usual] = reported(np.array(reports[usual].after) + 1.0)
    assert amp.cause_of(case, runs, reports) is None
