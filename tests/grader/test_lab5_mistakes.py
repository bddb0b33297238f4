"""References of Lab 5 that make a mistake: without one they are right, and with one they are recognised as that one."""

from __future__ import annotations

import numpy as np
import pytest

from gradebox.run.input_generator import InputGenerator
from grader.lab5.monitoring.cases import AlertReport, Evaluate, EvaluateReply
from grader.lab5.monitoring.cases.drawn import snapshots_at_once, snapshots_over_time
from grader.lab5.monitoring.checks import alerts
from grader.lab5.monitoring.reference import CONDITION_MISTAKES, WAITING_MISTAKES, expected_alerts
from grader.lab5.pipeline.cases import Batches, TrainedEpochs, Training
from grader.lab5.pipeline.cases.drawn import trainings
from grader.lab5.pipeline.checks.mistakes import CAUSES, Run, cause_of_epochs, cause_of_rates, cause_of_resume
from grader.lab5.pipeline.reference import LOG_MISTAKES, RATE_MISTAKES, STEP_MISTAKES, rates, simulate
from grader.lab5.profiling.cases.drawn import timelines
from grader.lab5.profiling.checks.mistakes import cause_of_choices, cause_of_names, cause_of_times
from grader.lab5.profiling.reference.accounts import MISTAKES, account
from grader.lab5.profiling.reference.constructed import (
    BOTTLENECK_MISTAKES,
    CHOICE_MISTAKES,
    TOLERATED,
    bottleneck_by,
    bottlenecks,
    cheapest,
    choice,
    chosen_by,
)

SEEDS = (1, 2, 3)


def _batches(training: Training, ranks: int, seed: int) -> list[Batches]:
    """The samples of each rank's batches, in an order of their own in each epoch."""
    draw = np.random.default_rng(seed)
    by_rank: list[Batches] = [[] for _ in range(ranks)]
    for _ in range(training.config["epochs"]):
        order = draw.permutation(len(training.classes)).tolist()
        order += order[: -len(order) % ranks]
        for rank, batches in enumerate(by_rank):
            own = order[rank::ranks]
            batches += [own[start : start + training.batch_size] for start in range(0, len(own), training.batch_size)]
    return by_rank


def _runs(seed: int, mistake: str = "") -> list[Run]:
    """What trainings come to with a mistake in them."""
    runs: list[Run] = []
    for ranks in (1, 2):
        for training in trainings(InputGenerator(seed, "mistakes"), ranks):
            batches = _batches(training, ranks, seed)
            of_ranks = [
                TrainedEpochs(
                    results=[],
                    batches=batches[rank],
                    validated=0,
                    modes=[],
                    rates=rates(training, ranks, mistake=mistake if mistake in RATE_MISTAKES else "")[:-1],
                    steps=0,
                    weight=simulate(training, batches, mistake=mistake, rank=rank).weight,
                    frozen=True,
                    logged_samples=[],
                    reduced_gradients=1.0,
                    written_bytes=None,
                )
                for rank in range(ranks)
            ]
            runs.append((training, of_ranks))
    return runs


def test_there_are_words_for_each_mistake_of_a_step() -> None:
    assert set(CAUSES) == {*STEP_MISTAKES, *RATE_MISTAKES, *LOG_MISTAKES}
    assert all(cause.mistake and cause.check for cause in CAUSES.values())


@pytest.mark.parametrize("seed", SEEDS)
def test_right_weights_show_no_mistake(seed: int) -> None:
    assert cause_of_epochs(_runs(seed)) is None


@pytest.mark.parametrize("mistake", STEP_MISTAKES)
@pytest.mark.parametrize("seed", SEEDS)
def test_each_mistake_of_a_step_is_recognised(seed: int, mistake: str) -> None:
    if mistake == "clipped_while_scaled":  # only float16 scales
        return
    runs, right = _runs(seed, mistake), _runs(seed)
    weights, right_weights = ([run.weight for _, of_ranks in each for run in of_ranks] for each in (runs, right))
    cause = cause_of_epochs(runs)
    if all(np.allclose(a, b, rtol=1e-4) for a, b in zip(weights, right_weights, strict=True)):
        assert cause is None  # with AdamW the size of a gradient has no influence
        return
    assert cause is not None
    assert cause.name == CAUSES[mistake].name


@pytest.mark.parametrize("mistake", RATE_MISTAKES)
@pytest.mark.parametrize("seed", SEEDS)
def test_each_mistake_of_a_schedule_is_recognised_by_rates_and_by_weights(seed: int, mistake: str) -> None:
    if mistake == "moves_on_overflow":  # nothing overflows here
        return
    runs = _runs(seed, mistake)
    assert cause_of_rates(runs).name == CAUSES[mistake].name
    cause = cause_of_epochs(runs)
    assert cause is not None
    assert cause.name == CAUSES[mistake].name


def test_two_mistakes_are_not_recognised_as_one() -> None:
    runs = [*_runs(1, "no_weight_decay")[::2], *_runs(1, "never_clipped")[1::2]]
    assert cause_of_epochs(runs) is None


@pytest.mark.parametrize(
    ("lost", "name"),
    [(["optimizer"], "not_resumed: optimizer"), (["optimizer", "steps"], "not_resumed: optimizer, steps"), ([], "")],
)
def test_a_resume_is_recognised_by_what_did_not_come_back(lost: list[str], name: str) -> None:
    saved = {"weights": "a", "optimizer": "b", "steps": "c", "random": "d"}
    loaded = {key: "other" if key in lost else value for key, value in saved.items()}
    cause = cause_of_resume([[saved, loaded]])
    assert (cause.name if cause else "") == name


def test_random_numbers_of_rank_0_are_recognised() -> None:
    saved = [{"weights": "a", "random": number} for number in ("first", "second")]
    cause = cause_of_resume([[saved[0], saved[0]], [saved[1], saved[0]]])
    assert cause is not None
    assert cause.name == "state_of_rank_0"


def _reply(inputs: Evaluate, mistake: str) -> EvaluateReply:
    reports = [
        [
            AlertReport(rule=each.rule, gpu=each.gpu, severity="", since=each.since, value=each.value, message="")
            for each in firing
        ]
        for firing in expected_alerts(inputs.rules, inputs.snapshots, mistake)
    ]
    return EvaluateReply(alerts=reports, refused=True)


@pytest.mark.parametrize("mistake", ["", *CONDITION_MISTAKES, *WAITING_MISTAKES])
@pytest.mark.parametrize("seed", SEEDS)
def test_each_mistake_of_an_alert_is_recognised(seed: int, mistake: str) -> None:
    draw = snapshots_over_time if mistake in WAITING_MISTAKES else snapshots_at_once
    runs = [(inputs, _reply(inputs, mistake)) for inputs in draw(InputGenerator(seed, "alerts"))]
    cause = alerts._cause_of(runs)
    assert cause is (alerts._CAUSES[mistake] if mistake else None)


@pytest.mark.parametrize("mistake", ["", *MISTAKES])
@pytest.mark.parametrize("seed", SEEDS)
def test_each_mistake_of_an_account_is_recognised(seed: int, mistake: str) -> None:
    cases = timelines(InputGenerator(seed, "accounts")).timelines
    times = [{f"{name}_seconds": value for name, value in account(case, mistake).items()} for case in cases]
    cause = cause_of_times(cases, times)
    assert (cause.name if cause else "") == (f"idle_time_explained: {mistake}" if mistake else "")


@pytest.mark.parametrize("mistake", BOTTLENECK_MISTAKES)
@pytest.mark.parametrize("seed", SEEDS)
def test_each_mistake_of_a_bottleneck_is_recognised(seed: int, mistake: str) -> None:
    right, inputs = bottlenecks(InputGenerator(seed, "bottlenecks"))
    steps = list(zip(inputs.times, inputs.targets, strict=True))
    assert [bottleneck_by("", times, target) for times, target in steps] == right
    cause = cause_of_names(inputs, [bottleneck_by(mistake, times, target) for times, target in steps])
    assert cause is not None
    assert cause.name == f"bottleneck_named: {mistake}"


@pytest.mark.parametrize("mistake", CHOICE_MISTAKES)
@pytest.mark.parametrize("seed", SEEDS)
def test_each_mistake_of_a_choice_is_recognised(seed: int, mistake: str) -> None:
    choices = choice(InputGenerator(seed, "choices"))

    def chosen(by: str) -> list[object]:
        return [chosen_by(by, choices.points, tolerance).case(choices.fastest) for tolerance in choices.tolerances]

    right = [
        cheapest(choices.points, TOLERATED if tolerance is None else tolerance).case(choices.fastest)
        for tolerance in choices.tolerances
    ]
    assert chosen("") == right
    if chosen(mistake) == right:  # a limit that no point of these lies on
        return
    cause = cause_of_choices(choices, chosen(mistake))  # type: ignore[arg-type]
    assert cause is not None
    assert chosen(cause.name.removeprefix("cheapest_fast_setting_chosen: ")) == chosen(mistake)
