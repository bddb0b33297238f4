"""How made-up GPUs, logged metrics and snapshots are drawn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gradebox.run.input_generator import InputGenerator
from grader.lab5.monitoring.cases import (
    Background,
    ByRank,
    Evaluate,
    Exported,
    Failing,
    Logs,
    MadeUpGpu,
    Moments,
    Raised,
    ReadingCase,
    RuleChange,
    SnapshotCase,
    WithoutNvml,
)

HOT = 85
"""Degrees above which a GPU counts as hot."""
WAITS = {
    "GpuHot": 60.0,
    "GpuThrottled": 30.0,
    "GpuMemoryNearlyFull": 60.0,
    "GpuUnderused": 300.0,
    "GpuErrors": 0.0,
    "GpuLost": 0.0,
    "LossNotFinite": 0.0,
    "TrainingStalled": 0.0,
}
"""The rules in labkit's order, and how many seconds each of them waits."""
THRESHOLDS = {"GpuHot": float(HOT), "GpuMemoryNearlyFull": 0.95, "GpuUnderused": 0.5, "TrainingStalled": 300.0}
"""Of the rules that compare with something."""
SLOWED_BY = ("hardware_slowdown", "hardware_thermal_slowdown", "power_brake", "thermal_slowdown")
"""The reasons for throttling that count."""
QUESTION_SECONDS = 0.004
"""For which a GPU takes to answer, while samples are timed."""


def gpu(generator: InputGenerator, index: int) -> MadeUpGpu:
    """What one GPU knows, in NVML's units; nothing else is supported."""
    total = generator.integer(16_000_000_000, 80_000_000_000)
    return {
        "uuid": f"GPU-{generator.integer(10**8, 10**9 - 1)}-{index}",
        "name": f"Made-up GPU {generator.integer(10, 99)}",
        "used_bytes": int(total * generator.uniform(0.2, 0.8)),
        "total_bytes": total,
        "celsius": generator.integer(41, 79),
        "power_milliwatts": generator.integer(90_001, 299_999),
    }


def _gpus(generator: InputGenerator, count: int) -> list[MadeUpGpu]:
    draw = generator.shared("lab5.monitoring")
    return [gpu(draw, index) for index in range(count)]


def logs(generator: InputGenerator) -> Logs:
    """What a training logs at three steps, the last of them smaller, as after a resume."""
    draw = generator.shared("lab5.logs")

    def some(low: float, high: float) -> float:
        return round(draw.uniform(low, high), 4)

    step, more = draw.integer(5, 50), draw.integer(5, 50)
    return [
        (
            step,
            {
                "loss": some(2, 3),
                "accuracy": some(0.1, 0.4),
                "learning_rate": round(draw.uniform(1e-5, 9e-5), 8),  # small, as rates are: no digit may be lost
                "val/loss": some(2, 3),
            },
        ),
        (step + more, {"loss": some(1, 2), "accuracy": some(0.5, 0.9), "throughput": some(1e3, 9e3)}),
        (step + more - draw.integer(1, 4), {"loss": "nan", "gradient_norm": "inf"}),
    ]


def without_nvml(generator: InputGenerator) -> list[tuple[str, WithoutNvml]]:
    """Machines without a GPU to monitor, each with the reason in words."""
    logged = logs(generator)[:2]
    other = generator.shuffled([("DRIVER_NOT_LOADED", "without a driver"), ("NO_PERMISSION", "without permission")])[0]
    reasons = (("LIBRARY_NOT_FOUND", "without NVML's library"), other, (None, "without any GPU"))
    return [(reason, WithoutNvml(error=error, logs=logged)) for error, reason in reasons]


def failing(generator: InputGenerator) -> Failing:
    """A GPU that names no temperature until it is hot."""
    draw = generator.shared("lab5.failing")
    cool = gpu(draw, 0)
    del cool["celsius"]
    interval, hot = -round(draw.uniform(0.1, 2.0), 2), draw.integer(86, 99)
    return Failing(gpus=[cool], interval=interval, hot=hot, mailbox=draw.integer(1000, 9999))


def exported(generator: InputGenerator) -> Exported:
    """Two GPUs, and three steps."""
    return Exported(gpus=_gpus(generator, 2), logs=logs(generator))


def by_rank(generator: InputGenerator) -> ByRank:
    """The same two GPUs."""
    return ByRank(gpus=_gpus(generator, 2), rank=generator.integer(2, 7))


def moments(generator: InputGenerator) -> Moments:
    """The first of them."""
    return Moments(gpus=_gpus(generator, 1), logs=60, filed=400, question=QUESTION_SECONDS)


def background(generator: InputGenerator) -> Background:
    """The first of them, which gets colder than it is at the beginning."""
    draw = generator.shared("lab5.background")
    celsius, logs = draw.integer(20, 40), draw.integer(150, 600)
    return Background(gpus=_gpus(generator, 1), samples=4, logs=logs, celsius=celsius)


_GOOD: ReadingCase = {
    "temperature_celsius": 60.0,
    "utilization_ratio": 0.9,
    "memory_used_bytes": 10,
    "memory_total_bytes": 20,
    "throttle_reasons": ["power_cap"],
    "ecc_errors": 0,
    "xid_errors": 0,
}
UNKNOWN: ReadingCase = {
    "temperature_celsius": None,
    "utilization_ratio": None,
    "memory_used_bytes": None,
    "memory_total_bytes": None,
    "throttle_reasons": None,
    "ecc_errors": None,
    "xid_errors": None,
}


def _start(generator: InputGenerator) -> float:
    return float(generator.integer(1_700_000_000, 1_800_000_000))


def snapshots_at_once(generator: InputGenerator) -> Iterator[Evaluate]:
    """Rules and snapshots to evaluate, one engine each: no rule waits, and each snapshot stands for itself."""
    start = _start(generator)
    others = generator.shuffled(range(2, 8))[:2]  # a GPU's index is not its place in the snapshot
    rules: dict[str, RuleChange] = {name: {"for_seconds": 0.0} for name in WAITS}
    limits = {
        "GpuHot": float(generator.integer(70, 95)),
        "GpuMemoryNearlyFull": generator.integer(9, 14) / 16,  # exact, also as a percentage or in bytes
        "GpuUnderused": generator.uniform(0.2, 0.8),
    }
    drawn: dict[str, RuleChange] = {
        name: {**rule, "threshold": limits[name]} if name in limits else rule for name, rule in rules.items()
    }
    for changed, second in zip((rules, drawn), others, strict=True):
        yield Evaluate(
            rules=changed,
            snapshots=[
                {
                    "time": start + number,
                    "step": number,
                    "step_time": start + number,
                    "metrics": {"loss": 1.0},
                    "gpus": [{"index": 0, **_GOOD}, {"index": second, **_GOOD, **case}],
                }
                for number, case in enumerate(_readings(generator, changed))
            ],
        )
    losses: list[dict[str, float | str]] = [{}, {"loss": 3.0}, {"loss": "nan"}, {"loss": 2.0}, {"loss": "inf"}]
    losses = generator.shuffled([*losses, {"loss": "-inf"}, {"accuracy": 0.5}])
    yield Evaluate(
        rules={}, snapshots=[{"time": start + number, "metrics": metrics} for number, metrics in enumerate(losses)]
    )
    stalled: dict[str, RuleChange] = {"TrainingStalled": {"threshold": float(generator.integer(20, 900))}}
    for changed in ({}, stalled):
        limit = _limit(changed, "TrainingStalled")
        waits = generator.shuffled([None, 0.0, limit - 1, limit, limit + 1, limit + 3000, 1.0])
        yield Evaluate(
            rules=changed,
            snapshots=[
                {
                    "time": start + 10_000 * n,
                    "step": n,
                    "step_time": None if wait is None else start + 10_000 * n - wait,
                }
                for n, wait in enumerate(waits)
            ],
        )


def _limit(rules: Mapping[str, RuleChange], name: str) -> float:
    """The threshold of a rule, which may be another one than labkit's."""
    return rules.get(name, {}).get("threshold", THRESHOLDS[name])


def _readings(generator: InputGenerator, rules: Mapping[str, RuleChange]) -> list[ReadingCase]:
    """What one GPU says instead of good readings, some of them at the limits of rules."""
    limit, share, full = (_limit(rules, name) for name in ("GpuHot", "GpuUnderused", "GpuMemoryNearlyFull"))
    slowed: list[ReadingCase] = [{"throttle_reasons": ["power_cap", reason]} for reason in SLOWED_BY]
    cases: list[ReadingCase] = [
        {},
        {"temperature_celsius": limit},
        {"temperature_celsius": limit + 0.5},
        {"utilization_ratio": share},
        {"utilization_ratio": generator.uniform(0.0, 0.9 * share)},
        {"utilization_ratio": generator.uniform(1.1 * share, 0.9)},
        {"utilization_ratio": 0.0},
        {"memory_used_bytes": round(1600 * full), "memory_total_bytes": 1600},
        {"memory_used_bytes": round(1600 * full) + 1, "memory_total_bytes": 1600},
        {"memory_used_bytes": 20, "memory_total_bytes": None},
        {"memory_used_bytes": None},
        {"throttle_reasons": ["idle"]},
        *slowed,
        {"ecc_errors": generator.integer(1, 5)},
        {"ecc_errors": None, "xid_errors": 2},
        {"temperature_celsius": None, "utilization_ratio": 0.1, "ecc_errors": 3},
        {"utilization_ratio": None, "temperature_celsius": limit + 9.0},
        {"xid_errors": None, "ecc_errors": 1},
        UNKNOWN,
        {**UNKNOWN, "up": False},
    ]
    return generator.shuffled(cases)


def snapshots_over_time(generator: InputGenerator) -> Iterator[Evaluate]:
    """Rules and snapshots to evaluate, one engine each: conditions come, hold, break and come again."""
    start = _start(generator)
    seconds = generator.integer(20, 90)
    rules: dict[str, RuleChange] = {
        "GpuHot": {"for_seconds": float(seconds)},
        "GpuMemoryNearlyFull": {"threshold": 0.6, "for_seconds": float(generator.integer(20, 90))},
        "GpuThrottled": {"for_seconds": float(generator.integer(40, 90))},
    }
    unchanged: dict[str, RuleChange] = {}
    for changed in (unchanged, rules):
        wait = changed.get("GpuHot", {}).get("for_seconds", WAITS["GpuHot"])
        moments = [0.0, wait / 2, wait - 1, wait, wait + 5, wait + 6, wait + 7, 1.5 * wait + 7, 2 * wait + 8]
        moments += [2 * wait + 9, 2 * wait + 10, 3 * wait + 10]
        hot_at: list[int | None] = [1, 1, 1, 1, 1, 0, 1, 1, 1, 1, None, 1]
        full_from = generator.integer(1, 4)
        later = generator.integer(1, 3)  # another GPU gets hot while the first one is, and waits from then on
        places, indices = generator.shuffled(range(3)), [0, *sorted(generator.shuffled(range(2, 8))[:2])]
        snapshots: list[SnapshotCase] = []
        for number, (moment, hot) in enumerate(zip(moments, hot_at, strict=True)):
            changing: ReadingCase = {**_GOOD, "memory_used_bytes": 20 if number >= full_from else 10}
            changing["temperature_celsius"] = None if hot is None else 60.0 + 30.0 * hot
            slowed: ReadingCase = {**_GOOD, "throttle_reasons": ["power_brake"] if number % 2 else ["thermal_slowdown"]}
            hot_later: ReadingCase = {**_GOOD, "temperature_celsius": 90.0 if number >= later else 60.0}
            readings = [changing, hot_later, slowed]
            gpus: list[ReadingCase] = [
                {"index": index, **readings[place]} for index, place in zip(indices, places, strict=True)
            ]
            snapshots.append({"time": start + moment, "metrics": {"loss": 1.0}, "gpus": gpus})
        yield Evaluate(rules=changed, snapshots=snapshots)


def taking_turns(generator: InputGenerator) -> list[list[bool]]:
    """Three conditions that come, hold, go and come again; one begins while another holds, or ends, or is away."""
    lead, hold, gap = generator.integer(1, 3), generator.integer(2, 3), generator.integer(1, 3)
    row = [False] * lead + [True] * hold + [False] * gap + [True] * generator.integer(1, 2) + [False]
    last = generator.integer(2, hold + gap)
    return [[False] * shift + row + [False] * (last - shift) for shift in (*generator.shuffled([0, 1]), last)]


def raised(generator: InputGenerator) -> tuple[list[list[bool]], Raised]:
    """Whether each of two GPUs is hot at each step, and whether the loss is lost; and GPUs that are."""
    draw = generator.shared("lab5.monitoring")
    first, second, lost = turns = taking_turns(generator)
    celsius: list[list[float]] = [
        [HOT + generator.integer(1, 9) if on else HOT - generator.integer(0, 3) for on in hot]
        for hot in zip(first, second, strict=True)
    ]
    return turns, Raised(gpus=[gpu(draw, index) for index in range(2)], celsius=celsius, lost=lost)


WITHOUT = {
    Background.probe: "one course of events of one GPU; what it is about is threads",
    ByRank.probe: "one course of events: this process is rank 1",
    Evaluate.probe: "each condition by itself, and rows of snapshots in which they come and go",
    Exported.probe: "three steps whose metrics are drawn, and two GPUs",
    Failing.probe: "one course of events; its numbers are drawn",
    Moments.probe: "one course of events: the same step, a smaller one, samples",
    Raised.probe: "three conditions whose times are drawn; each begins while another holds",
    WithoutNvml.probe: "three reasons, all of them in every grading",
    "lab5.monitoring.monitors.monitored": "a helper of other probes",
}
