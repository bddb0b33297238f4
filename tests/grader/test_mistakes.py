"""References that make a mistake: without one they are right, and with one they are recognised as that one."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from gradebox.run.assertions import Cause, CheckFailed
from gradebox.run.input_generator import InputGenerator
from grader.lab1.shared import reference
from grader.lab1.shared.cases.products import Call, Hiccup, Observation, ProductCount, Result
from grader.lab1.shared.checks import mistakes
from grader.lab2.scaling import reference as scaling_reference
from grader.lab2.scaling.cases.steps import StepsReply, default_overflow
from grader.lab2.scaling.cases.trainings import Regression, Run, RunReport, crossed, regression
from grader.lab2.scaling.checks import mistakes as amp
from grader.lab2.scaling.probes import _DISTANT_TARGET
from grader.lab2.scaling.reference import first_norm, follow, follow_steps
from grader.lab2.shared.probes import OVERFLOWING_INPUT
from grader.lab2.stability.cases.loss_scale import loss_scales
from grader.lab2.stability.checks import mistakes as scale_by_hand
from grader.lab2.stability.reference import mistaken_scales
from grader.lab3.accumulation.cases import Pass, PassReply, classification, mixed
from grader.lab3.accumulation.cases import regression as regression_pass
from grader.lab3.accumulation.checks.mistakes import CAUSES, cause_of
from grader.lab3.accumulation.reference import MISTAKES
from grader.lab3.accumulation.reference import follow as follow_pass
from grader.lab4.analysis import cases as memory_cases
from grader.lab4.analysis import reference as memory
from grader.lab4.attention import reference as masks
from grader.lab4.attention.checks import library
from grader.lab4.attention.checks.comparison import narrow_in
from grader.lab4.attention.reference import Observed, attention
from grader.lab4.oom import cases as oom_cases
from grader.lab4.oom import mistakes as oom_mistakes
from grader.lab4.oom import reference as oom_reference

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


def reported(weights: NDArray[np.float64], skipped: int | None = None) -> RunReport:
    """What the probe reports of a training that came to these weights; of its result only the skipped steps."""
    return RunReport(
        result={} if skipped is None else {"skipped_steps": skipped},
        before=[],
        after=weights.ravel().tolist(),
        largest_gradients=[],
        passes=[],
        frozen=[0.5, 0.5],
        scheduler_steps=None,
        products=[],
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_right_weights_show_no_mistake(seed: int) -> None:
    case, runs = trainings(seed)
    assert amp.cause_of(case, runs, [reported(follow(case, run).end) for run in runs]) is None


@pytest.mark.parametrize("mistake", amp.MISTAKES)
@pytest.mark.parametrize("seed", SEEDS)
def test_each_mistake_of_a_training_is_recognised(seed: int, mistake: str) -> None:
    case, runs = trainings(seed)
    trajectories = [follow(case, run, mistake) for run in runs]
    reports = [reported(trajectory.end, trajectory.skipped) for trajectory in trajectories]
    assert amp.cause_of(case, runs, reports) is amp.MISTAKES[mistake]


def test_two_mistakes_are_not_recognised_as_one() -> None:
    case, runs = trainings(0)
    mistakes_in_turn = itertools.cycle(["summed", "never_cleared"])
    reports = [reported(follow(case, run, next(mistakes_in_turn)).end) for run in runs]
    assert amp.cause_of(case, runs, reports) is None


def passes(seed: int) -> list[Pass]:
    generator = InputGenerator(seed, "lab3.accumulation.uneven_counts")
    uneven = regression_pass(generator, [[3, 5, 2, 7, 4], [4, 6, 1, 2, 9]], 2, momentum=0.5)
    default = classification(generator, [[3, 5, 2], [4, 6, 1]], 2)
    return [uneven, default, *(case for _, case in mixed(generator))]


def replies(case: Pass, mistake: str = "") -> list[PassReply]:
    """What the ranks report of a pass with this mistake in it."""
    weights = [follow_pass(case, mistake, rank).weight for rank in range(len(case.sizes))]
    return [PassReply(result={}, weight=weight, frozen=np.ones(1), reduced_bytes=0) for weight in weights]


def test_there_are_words_for_each_mistake_of_an_accumulation() -> None:
    assert tuple(CAUSES) == MISTAKES


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("seed", SEEDS)
def test_each_mistake_of_an_accumulation_is_recognised(seed: int, mistake: str) -> None:
    uneven, default, *_ = passes(seed)
    case = default if mistake.startswith("another_default") else uneven
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
        power = masks.POWERS.get(mistake, -0.5)
        weighed = k if mistake == "keys_for_values" else v
        output = attention(q, k, weighed, None, causal=causal, shift=shift, power=power)["output"]
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


def test_right_outputs_show_no_mistake_of_a_mask() -> None:
    generator = InputGenerator(3, "lab4.attention")
    q, k, v = (generator.normal(1, 2, 9, 8) for _ in range(3))
    output = attention(q, k, v, None, causal=False)["output"]
    assert masks.mistake_in_outputs([Observed(q, k, v, causal=False, output=output)], 1e-9) is None


@pytest.mark.parametrize(("dtype", "is_narrow"), [(np.float64, False), (np.float32, True), (np.float16, False)])
def test_outputs_with_the_digits_of_float32_are_recognised(dtype: type[np.floating[Any]], is_narrow: bool) -> None:
    generator = InputGenerator(3, "lab4.attention")
    q, k, v = (generator.normal(1, 9, 4) for _ in range(3))
    output = attention(q, k, v, None, causal=True)["output"].astype(dtype)
    cause = narrow_in("flash_attention", [Observed(q, k, v, causal=True, output=output)])
    assert bool(cause) == is_narrow
    assert narrow_in("flash_attention", []) is None


@pytest.mark.parametrize("seed", SEEDS)
def test_each_mistake_in_the_choice_of_a_library_says_something_else(seed: int) -> None:
    every = library.libraries(InputGenerator(seed, "lab4.attention"))
    names = ["", *(name for name in library._MISTAKES if name != "on_any_gpu")]  # it is two of the others at once
    said = [tuple(library._backend(each, name) for each in every) for name in names]
    assert len(set(said)) == len(said)


LARGE_SAME = 1e-8


def large_trainings(
    mistake: oom_reference.Mistake | None = None,
    report: oom_reference.Report | None = None,
    validated_by: oom_reference.Validated | None = None,
) -> Cause | None:
    """The cause that is recognised where all trainings of the large model have these mistakes."""
    model, inputs = oom_cases.trainings(InputGenerator(5, "lab4.oom.same_losses"))
    pairs = oom_reference.split(model.data, model.targets, [*inputs.batches, *inputs.validation])
    batches, validation = pairs[: len(inputs.batches)], pairs[len(inputs.batches) :]

    def follow(micro_batch: int, epochs: int, *, absolute: bool = False) -> oom_reference.Losses:
        training = oom_reference.Training(model.weights, model.biases, inputs.learning_rate, absolute=absolute)
        return oom_reference.trained(
            training, batches, validation, epochs, micro_batch=micro_batch, mistake=mistake, report=report,
            validated_by=validated_by,
        )  # fmt: skip

    def fields(losses: oom_reference.Losses) -> dict[str, object]:
        return {"losses": losses.training, "validation_losses": losses.validation}

    first = follow(inputs.micro_batch, inputs.epochs)
    others = [
        follow(other.micro_batch * (2 if other.sequence else 1), other.epochs, absolute=other.criterion_given)
        for other in inputs.others
    ]
    reply = SimpleNamespace(
        result=fields(first),
        weights=first.weights,
        others=[SimpleNamespace(result=fields(other), weights=other.weights) for other in others],
    )
    return oom_mistakes.cause_of(model, inputs, batches, validation, cast(Any, reply), LARGE_SAME)


@pytest.mark.parametrize("mistake", oom_reference.MISTAKES)
def test_each_mistake_of_micro_batches_is_recognised(mistake: oom_reference.Mistake) -> None:
    cause = large_trainings(mistake)
    assert cause is not None
    assert cause.name == mistake


@pytest.mark.parametrize("report", oom_reference.REPORTS)
def test_each_mistake_of_a_reported_loss_is_recognised(report: oom_reference.Report) -> None:
    assert large_trainings(report=report) is oom_mistakes.REPORTED[report]


@pytest.mark.parametrize("by", oom_reference.VALIDATED)
def test_each_mistake_of_a_validation_is_recognised(by: oom_reference.Validated) -> None:
    assert large_trainings(validated_by=by) is oom_mistakes.VALIDATION[by]


def test_a_right_training_of_the_large_model_shows_no_mistake() -> None:
    assert large_trainings() is None


@pytest.mark.parametrize("seed", SEEDS)
def test_each_mistake_of_a_memory_prediction_is_recognised_and_no_other(seed: int) -> None:
    setups = memory_cases.setups_of(InputGenerator(seed, "lab4.analysis"))
    for known, checkpointed in ((memory.PLAIN, False), (memory.CHECKPOINTED, True)):
        own = [setup for setup in setups if (setup["checkpoint_every"] is not None) is checkpointed]
        for model in ("transformer",) if checkpointed else ("mlp", "transformer"):
            of_model = [setup for setup in own if setup["model"] == model]
            right = [memory.activation_bytes(setup) for setup in of_model]
            assert memory.mistake_in(known, list(zip(of_model, right, strict=True)), model) is None
            for mistake in known:
                wrong = [memory.activation_bytes(setup, mistake) for setup in of_model]
                if model in mistake.models and wrong != right:
                    assert memory.mistake_in(known, list(zip(of_model, wrong, strict=True)), model) is mistake


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


def test_a_warm_up_that_is_still_queued_when_the_clock_starts_is_no_operand_that_is_made() -> None:
    device, call = "vgpu:T4", Call(size=4001, iterations=1, dtype="bfloat16")
    products: list[ProductCount] = [{"device": "cuda", "dtype": "bfloat16", "flops": 2 * 4001**3, "count": 11}]
    result: Result = {**measurement().observed.result, "dtype": "bfloat16", "iterations": 1}
    run = reference.Measurement(call=call, observed=Observation(result=result, products=products), pace=1.5)
    for factor, expected in ((11, "older_work_timed"), (7, "more_is_timed")):  # ten to warm up, and one
        run.observed.result["seconds"] = factor * reference.kernel_seconds(device, run)
        with pytest.raises(CheckFailed) as failure, mistakes.recognised_among_others(device, run):
            raise CheckFailed("wrong")
        assert failure.value.cause is not None
        assert failure.value.cause.name == expected


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


@pytest.mark.parametrize("mistake", ["", *amp.STEPS])
@pytest.mark.parametrize("seed", SEEDS)
def test_each_mistake_of_a_training_at_the_default_scale_is_recognised(seed: int, mistake: str) -> None:
    drawn = default_overflow(InputGenerator(seed, "lab2.scaling.overflow_skips_the_step"))
    came_to = follow_steps(drawn.steps, drawn.overflows, mistake)
    reply = StepsReply(
        result={"optimizer_steps": came_to.taken, "skipped_steps": came_to.skipped},
        before=[weights.ravel().tolist() for weights in came_to.weights[:-1]],
        after=came_to.weights[-1].ravel().tolist(),
        frozen=[0.5, 0.5],
        products=["float16"],
    )
    cause = amp.cause_of_steps(drawn.steps, drawn.overflows, reply)
    assert (cause.name if cause else "") == (amp.STEPS[mistake].name if mistake else "")


@pytest.mark.parametrize("mistake", ["", *scale_by_hand.SCALES])
@pytest.mark.parametrize("seed", SEEDS)
def test_each_mistake_of_a_loss_scale_by_hand_is_recognised(seed: int, mistake: str) -> None:
    inputs = loss_scales(InputGenerator(seed, "lab2.stability.loss_scale_adapts"))
    observed = [mistaken_scales(case.settings, case.overflows, mistake) for case in inputs.cases]
    cause = scale_by_hand.cause_of_scales(inputs, observed)
    assert (cause.name if cause else "") == mistake


def test_what_the_probes_plant_is_what_the_reference_computes_with() -> None:
    assert scaling_reference.OVERFLOWING_INPUT == OVERFLOWING_INPUT
    assert scaling_reference.DISTANT_TARGET == _DISTANT_TARGET
