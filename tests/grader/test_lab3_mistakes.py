"""Lab 3's recognised mistakes: what a mistake leads to is recognised as that one, and what is right as none."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest

from gradebox.run.assertions import Cause, CheckFailed
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab3.accumulation.cases import Pass, PassReply, classification
from grader.lab3.accumulation.checks.passes import require_right
from grader.lab3.accumulation.reference import WRONG_LOSSES, follow, losses_with
from grader.lab3.scaling.cases.analysis import KINDS, points
from grader.lab3.scaling.checks import mistakes
from grader.lab3.scaling.reference import LOSSES, named_steps, shared_steps, split
from grader.lab3.setup.cases.joining import Meeting, MeetingReply, SetupReply, by_environment, with_devices
from grader.lab3.setup.checks import joining

SEEDS = range(4)


def passed(case: Pass, mistake: str) -> list[PassReply]:
    """What the ranks report of right weights and, with a mistake, wrong losses."""
    right = follow(case)
    return [
        PassReply(
            result={
                "optimizer_steps": len(right.losses),
                "micro_batches": len(case.sizes[0]),
                "losses": losses_with(case, mistake, rank) if mistake else right.losses,
            },
            weight=right.weight,
            frozen=np.ones(1),
            reduced_bytes=0,
        )
        for rank in range(len(case.sizes))
    ]


@pytest.mark.parametrize("mistake", WRONG_LOSSES)
@pytest.mark.parametrize("seed", SEEDS)
def test_each_mistake_in_losses_is_recognised(seed: int, mistake: str) -> None:
    case = classification(InputGenerator(seed, "losses"), [[3, 5, 2, 7, 4], [4, 6, 1, 2, 9]], 2)
    require_right(case, passed(case, ""), "training", "")
    with pytest.raises(CheckFailed) as failed:
        require_right(case, passed(case, mistake), "training", "")
    assert failed.value.cause is not None
    assert failed.value.cause.name == f"losses_{mistake}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", SEEDS)
def test_mistakes_in_speedups_are_recognised(seed: int, kind: str) -> None:
    measured, ratios = points(InputGenerator(seed, "points"))
    own = {str(point["world_size"]): point for point in measured if point["kind"] == kind}
    right: dict[str, object] = {str(size): ratio for size, ratio in ratios[kind].items()}
    shares: dict[str, object] = {str(size): ratio / size for size, ratio in ratios[kind].items()}
    by_time: dict[str, object] = {size: own["1"]["step_seconds"] / point["step_seconds"] for size, point in own.items()}
    first = next(iter(own.values()))["samples_per_second"]
    by_first: dict[str, object] = {size: point["samples_per_second"] / first for size, point in own.items()}

    def name(speedups: dict[str, object], efficiencies: dict[str, object]) -> str:
        cause = mistakes.cause_of_ratios(measured, kind, speedups, efficiencies)
        return "" if cause is None else cause.name

    assert name(right, shares) == ""
    assert name(right, right) == "efficiency_is_speedup"
    assert name(by_first, shares) == "another_base"
    if kind == "weak":
        assert name(by_time, shares) == "weak_as_if_strong"
    else:
        assert name(right, by_time) == "efficiency_is_speedup"  # under strong scaling T(1) / T(n) is the speedup


@pytest.mark.parametrize("seed", SEEDS)
def test_mistakes_in_parts_and_names_of_steps_are_recognised(seed: int) -> None:
    generator = InputGenerator(seed, "steps")
    profiles = [profile for profile, _ in shared_steps(generator)]
    assert mistakes.cause_of_parts(profiles, [split(profile) for profile in profiles]) is None
    wrong = [{**split(profile), "communication": max(profile["communication_seconds"])} for profile in profiles]
    cause = mistakes.cause_of_parts(profiles, wrong)
    assert cause is not None
    assert cause.name == "parts_largest_communication"
    of_the_slowest = [
        {**split(profile), "communication": profile["communication_seconds"][work.index(max(work))]}
        for profile in profiles
        if (work := [sum(pair) for pair in zip(profile["data_seconds"], profile["compute_seconds"], strict=True)])
    ]
    cause = mistakes.cause_of_parts(profiles, of_the_slowest)
    assert cause is not None
    assert cause.name == "parts_communication_of_the_slowest"
    steps = named_steps(generator)
    largest = [max(LOSSES, key=lambda loss: split(step.profile)[loss]) for step in steps]
    cause = mistakes.cause_of_names(steps, largest, list)
    assert cause is not None
    assert cause.name == "bottleneck_never_compute"


def met(meeting: Meeting, rank: int, backend: str, device: str) -> MeetingReply:
    number = int(device.removeprefix("cuda:")) if device != "cpu" else None
    return MeetingReply(
        place=[rank, 2], sum=2.0, left=True, device=device, current=number, backend=backend,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("cause", "gpus"),
    [(joining.ALWAYS_GLOO, 2), (joining.LOCAL_RANK_IGNORED, 2), (joining.NCCL_ON_SHARED_GPUS, 2)],
    ids=lambda value: getattr(value, "name", str(value)),
)
@pytest.mark.parametrize("seed", SEEDS)
def test_mistakes_of_setup_are_recognised(seed: int, cause: Cause, gpus: int) -> None:
    generator = InputGenerator(seed, "meetings")
    meetings = [*with_devices(generator, simulated=True), *by_environment(generator, simulated=True)]

    def replies(mistake: Cause | None) -> list[SetupReply]:
        made = []
        for rank in range(2):
            reply = SetupReply(meetings=[], left_alone="", refused={}, gpus=gpus)
            for meeting in meetings:
                place = joining.place_of(meeting, reply, rank, 2)
                backend, device = place.with_mistake(mistake) if mistake else (place.backend, place.device)
                reply.meetings.append(met(meeting, rank, backend, device))
            made.append(reply)
        return made

    nobody = cast("Submission", None)
    joining.require_joined(nobody, meetings, replies(None))
    with pytest.raises(CheckFailed) as failed:
        joining.require_joined(nobody, meetings, replies(cause))
    assert failed.value.cause is cause
