"""Recognises mistakes in Lab 3's scaling analysis, by reference runs and formulas that make them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from gradebox.run.assertions import Cause
from grader.lab3.scaling.cases.analysis import Point, Profile
from grader.lab3.scaling.cases.measuring import MeasuredReply, TimedReply
from grader.lab3.scaling.reference import DEFAULT_THRESHOLD, LOSSES, Named, bottleneck, split

_STEP = "lab3.scaling.step_seconds_equal_reference"
_PARTS = "lab3.scaling.profile_equals_reference"
_STRONG = "lab3.scaling.speedup_and_efficiency_strong"
_SAME = 0.015
"""Of a step, simulated: two styles of the same measurement differ by less."""

TIMES: Mapping[str, Cause] = {
    cause.name: cause
    for cause in (
        Cause(
            "device_not_waited_for",
            "Call torch.cuda.synchronize() before each reading of the clock.",
            _STEP,
            mistake="The clock is read while the GPU is still busy",
        ),
        Cause(
            "averaged",
            "Take the median of the timed steps (statistics.median): one late batch moves a mean.",
            _STEP,
            mistake="Steps are averaged, so that one late batch counts; each figure is a median",
        ),
        Cause(
            "whole_without_exchange",
            "Time the whole step outside of no_sync(), through the wrapper.",
            _STEP,
            mistake="The whole step is timed without the exchange of gradients",
        ),
        Cause(
            "batch_left_out",
            "Start the clock before the next batch is taken: a whole step begins at the end of the step before.",
            _STEP,
            mistake="The time until the batch has come is left out of the whole step",
        ),
        Cause(
            "optimizer_left_out",
            "Stop the clock after `optimizer.step()`, once the device is idle.",
            _STEP,
            mistake="The optimizer's step is left out of the time",
        ),
        Cause(
            "parts_with_exchange",
            "Time data_seconds and compute_seconds in further steps, inside no_sync() or with the module alone.",
            _PARTS,
            mistake="data_seconds and compute_seconds are timed in steps that exchange gradients",
        ),
        Cause(
            "parts_without_warmup",
            "Make `warmup` untimed steps before the timed ones, in both sorts of steps.",
            _PARTS,
            mistake="The steps without exchange are timed from the first one on, without a warm-up",
        ),
    )
}
"""By which names `reference_run` knows them."""


def cause_of_times(
    measured: Sequence[MeasuredReply], right: Sequence[TimedReply], timed: Callable[[str], Sequence[TimedReply]]
) -> Cause | None:
    """The mistake with which a reference run comes to all ranks' figures; `timed` makes that run."""
    if _explains(measured, right):
        return None
    return next((cause for name, cause in TIMES.items() if _explains(measured, timed(name))), None)


def _explains(measured: Sequence[MeasuredReply], timed: Sequence[TimedReply]) -> bool:
    """Whether all figures are those of a reference run."""
    slack = _SAME * max(reply.step_seconds for reply in timed)
    expected = [max(reply.step_seconds for reply in timed)]
    for reply in timed:
        expected += [reply.data_seconds, reply.compute_seconds]
        expected.append(max(0.0, reply.step_seconds - reply.data_seconds - reply.compute_seconds))
    for seen in measured:
        figures = [seen.point["step_seconds"]]
        parts = [seen.point["profile"].get(f"{name}_seconds") for name in ("data", "compute", "communication")]
        if not all(isinstance(part, list) and len(part) == len(timed) for part in parts):
            return False
        figures += [part[rank] for rank in range(len(timed)) for part in parts if isinstance(part, list)]
        if not all(isinstance(figure, float) for figure in figures):
            return False
        pairs = zip(figures, expected, strict=True)
        if not all(isinstance(figure, float) and abs(figure - value) <= slack for figure, value in pairs):
            return False
    return True


_ALONE = "Compare with the measurement of this kind on one process, wherever it is among the points."
NO_BASE = Cause(
    "base_of_several_processes",
    "Raise a ValueError where no point of this kind was measured on one process.",
    _STRONG,
    mistake="speedup() and efficiency() find something to compare with where nothing was measured on one process",
)
_WORK = "Compare samples per second: a step on n processes does n times the work under weak scaling."


def cause_of_ratios(
    points: Sequence[Point], kind: str, speedups: Mapping[str, object], efficiencies: Mapping[str, object]
) -> Cause | None:
    """The mistake that leads to all speedups, or to all efficiencies where the speedups are right."""
    own = {str(point["world_size"]): point for point in points if point["kind"] == kind}
    seconds = {size: point["step_seconds"] for size, point in own.items()}
    rates = {size: point["samples_per_second"] for size, point in own.items()}
    right = {size: rate / rates["1"] for size, rate in rates.items()}
    slowest, first, last = max(seconds, key=lambda size: seconds[size]), next(iter(own)), list(own)[-1]
    by_time = {size: seconds["1"] / taken for size, taken in seconds.items()}
    if _same(speedups, right) and _same(efficiencies, {size: ratio / int(size) for size, ratio in right.items()}):
        return None
    if _same(speedups, right):
        wrong = {
            "efficiency_is_speedup": (right, "efficiency() returns the speedup: it is not divided by the world size"),
            "efficiency_in_percent": (
                {size: 100 * ratio / int(size) for size, ratio in right.items()},
                "efficiency() returns percent, not shares",
            ),
            "efficiency_is_a_ratio_of_times": (by_time, "efficiency() is T(1) / T(n), whatever the kind of scaling"),
        }
        for name, (values, mistake) in wrong.items():
            if _same(efficiencies, values):
                return Cause(name, "Divide the speedup by the world size.", _STRONG, mistake=mistake)
        return None
    if _same(speedups, by_time):
        return Cause(
            "weak_as_if_strong",
            _WORK,
            "lab3.scaling.speedup_and_efficiency_weak",
            mistake="The speedup is T(1) / T(n) under weak scaling, too, as if the work had not grown",
        )
    if _same(speedups, {size: int(size) * ratio for size, ratio in by_time.items()}):
        return Cause(
            "strong_as_if_weak", _WORK, _STRONG, mistake="The speedup is n T(1) / T(n) under strong scaling, too"
        )
    if _same(speedups, {size: 1 / ratio for size, ratio in right.items()}):
        return Cause("speedup_upside_down", _ALONE, _STRONG, mistake="The speedup is upside down: T(n) / T(1)")
    bases = {
        first: "The speedup is against the first measurement, not against the one on one process",
        last: "The speedup is against the last measurement, not against the one on one process",
        slowest: "The speedup is against the slowest measurement, not against the one on one process",
    }
    for size, mistake in bases.items():
        if _same(speedups, {other: rate / rates[size] for other, rate in rates.items()}):
            return Cause("another_base", _ALONE, _STRONG, mistake=mistake)
    return None


def _same(answers: Mapping[str, object], expected: Mapping[str, float]) -> bool:
    return sorted(answers) == sorted(expected) and all(
        isinstance(answer, (int, float)) and abs(answer - expected[size]) <= 1e-6 * abs(expected[size])
        for size, answer in answers.items()
    )


_SPLIT = "Follow the docstring's line for each of the four; together they are the step."


_PARTS_MISTAKES = {
    "mean_communication": "The mean of all ranks is taken for communication, so that waiting counts",
    "mean_communication_alone": "The mean of all ranks is taken for communication, so that waiting for a slow rank "
    "counts as communication and not as imbalance",
    "communication_of_the_slowest": "The communication of the slowest rank is taken, and another rank may have less",
    "largest_communication": "The largest communication of any rank is taken, which is mostly waiting",
    "imbalance_of_compute": "Imbalance leaves out data_seconds: a rank that waits for its data is a slow one, too",
    "imbalance_to_the_fastest": "Imbalance is against the fastest rank, not against the mean",
}


def _wrong_parts(mistake: str, profile: Profile) -> dict[str, float]:
    """The parts of a step by `split_step` with a mistake."""
    right, communication, compute = split(profile), profile["communication_seconds"], profile["compute_seconds"]
    work = [data + own for data, own in zip(profile["data_seconds"], compute, strict=True)]
    mean = statistics.fmean(communication)
    changed = {
        "mean_communication": {"communication": mean},
        "mean_communication_alone": {"communication": mean, "imbalance": 0.0},
        "communication_of_the_slowest": {"communication": communication[work.index(max(work))]},
        "largest_communication": {"communication": max(communication)},
        "imbalance_of_compute": {"imbalance": max(compute) - statistics.fmean(compute)},
        "imbalance_to_the_fastest": {"imbalance": max(work) - min(work)},
    }
    return {**right, **changed[mistake]}


def _parts_cause(mistake: str) -> Cause:
    check = "lab3.scaling.communication_share_found"
    return Cause(f"parts_{mistake}", _SPLIT, check, mistake=_PARTS_MISTAKES[mistake])


def cause_of_parts(profiles: Sequence[Profile], parts: Sequence[Mapping[str, object]]) -> Cause | None:
    """The mistake that leads to the parts of all steps."""
    for mistake in _PARTS_MISTAKES:
        pairs = zip(parts, profiles, strict=True)
        if all(_are(actual, _wrong_parts(mistake, profile)) for actual, profile in pairs):
            return _parts_cause(mistake)
    return None


def _are(actual: Mapping[str, object], expected: Mapping[str, float]) -> bool:
    whole = sum(expected.values())
    return actual.keys() == expected.keys() and all(
        isinstance(value, (int, float)) and abs(value - expected[name]) <= 1e-6 * whole
        for name, value in actual.items()
    )


def cause_of_names(
    steps: Sequence[Named], names: Sequence[object], parts: Callable[[], Sequence[Mapping[str, object]]]
) -> Cause | None:
    """The mistake that leads to all names of bottlenecks: in naming them, or in the parts of the steps.

    `parts` asks for those that the submission's `split_step` returns.
    """

    def wrong(mistake: str, step: Named) -> str:
        parts = split(step.profile)
        threshold = DEFAULT_THRESHOLD if step.threshold is None else step.threshold
        limit = threshold * sum(parts.values())
        if mistake == "first_above":
            return next((loss for loss in LOSSES if parts[loss] >= limit), "compute")
        if mistake == "last_of_equal":
            name = max(reversed(LOSSES), key=lambda loss: parts[loss])
        else:
            name = max(LOSSES, key=lambda loss: parts[loss])
        if mistake == "never_compute":
            return name
        if mistake == "threshold_ignored":
            limit = DEFAULT_THRESHOLD * sum(parts.values())
        above = parts[name] > limit if mistake == "above_only" else parts[name] >= limit
        return name if above else "compute"

    mistakes = {
        "first_above": "The first loss that reaches the threshold is named, not the largest",
        "last_of_equal": "Of equal losses the last one is named, not the first",
        "threshold_ignored": "The default threshold is used, whatever threshold is given",
        "above_only": "A loss that is just at the threshold is not named",
        "never_compute": "A loss below the threshold is named, and not compute",
    }
    for name, mistake in mistakes.items():
        if [wrong(name, step) for step in steps] == list(names):
            hint = "Find the largest loss first (of equal ones the first), then compare it with threshold * step."
            return Cause(f"bottleneck_{name}", hint, "lab3.scaling.bottleneck_named", mistake=mistake)
    return _cause_of_names_by_parts(steps, names, parts())


def _cause_of_names_by_parts(
    steps: Sequence[Named], names: Sequence[object], parts: Sequence[Mapping[str, object]]
) -> Cause | None:
    thresholds = [DEFAULT_THRESHOLD if step.threshold is None else step.threshold for step in steps]
    for mistake in _PARTS_MISTAKES:
        wrong = [_wrong_parts(mistake, step.profile) for step in steps]
        if all(_are(actual, expected) for actual, expected in zip(parts, wrong, strict=True)):
            named = [bottleneck(*pair) for pair in zip(wrong, thresholds, strict=True)]
            return _parts_cause(mistake) if named == list(names) else None
    return None
