"""Judges what a monitor is said to cost a training: figures of steps that were made and timed, not of any others.

The probe makes each optimizer step and each `log_metrics` longer by a time that is drawn, and notes when they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from gradebox.assertions import number, require, require_between, require_equal, seconds
from gradebox.fresh import Fresh
from gradebox.submission import Seen, Submission
from grader.shared.cases import full_rows
from grader.shared.programs import picture_and_json

_TIMES = ("bare_step_seconds", "monitored_step_seconds", "log_seconds", "sample_seconds")
_STEPS = 16
"""Who throws a coin for which comes first in a pair gets so many equal ones once in 30 000 times."""
_FLOOR = 0.99
"""Of a sleep: clocks of several kinds agree to less."""


def judge(submission: Submission, fresh: Fresh) -> None:
    """Fail unless the program's `MonitorOverhead` says how long its own steps took."""
    step, log = fresh.uniform(6e-3, 25e-3), fresh.uniform(6e-3, 25e-3)
    options: dict[str, Any] = {"steps": _STEPS, "step_seconds": step, "log_seconds": log, "slow": fresh.integer(14, 30)}
    seen = submission.probe("lab5.watching.program", **options)
    rows = picture_and_json(seen, "python -m labs.lab5_production.watch")
    row: dict[str, Any] = rows[0] if rows and isinstance(rows[0], dict) else {}
    require(
        {"steps", "overhead_ratio", *_TIMES} <= row.keys(),
        "the results of the monitor are no MonitorOverhead",
        "save_json(path, [overhead], device.provenance())",
    )
    for name in _TIMES:
        require_between(row[name], 1e-9, 60, what=name, hint="seconds, by time.perf_counter()")
    require_equal([row["steps"], row.get("device")], [_STEPS, "cpu"], what=f"steps and device, with --steps {_STEPS}")
    ratio = row["monitored_step_seconds"] / row["bare_step_seconds"]
    require_between(
        number(row["overhead_ratio"], "overhead_ratio") + 1,
        0.999 * ratio,
        1.001 * ratio,
        what="1 + overhead_ratio",
        hint="overhead_ratio is monitored / bare - 1: 0.02 where the monitor costs 2 percent",
    )
    for name, (low, high) in limits(seen, _STEPS, step, log).items():
        require_between(
            row[name],
            low,
            high,
            what=f"{name}, each optimizer step made {seconds(step)} longer, each log_metrics {seconds(log)}",
            show=seconds,
            hint="the median of steps that were made and timed, with and without the monitor",
        )
    _require_turns(seen, _STEPS)


def judge_watching(submission: Submission, fresh: Fresh) -> None:
    """Fail unless the monitor is made as asked, and its history drawn as it was."""
    interval = round(fresh.uniform(0.2, 0.9), 3)
    snapshots = _history(fresh)
    reading = fresh.uniform(6e-3, 12e-3)
    options: dict[str, Any] = {"steps": 4, "interval": interval, "snapshots": snapshots, "reading_seconds": reading}
    seen = submission.probe("lab5.watching.watched", device="cpu", **options)
    what = f"measure_overhead(4, interval={interval})"
    require_equal(
        [row for row in seen.monitors if row != [interval, True, True]] if seen.monitors else None,
        [],
        what=f"{what}: monitors that have another interval, no folder or no port, as [interval, folder, port]",
        hint="it logs to files, is ready to be scraped, and samples in this interval",
    )
    require_equal(
        [seen.overhead[name] for name in ("steps", "interval_seconds", "device")], [4, interval, "cpu"],
        what=f"{what}: steps, interval_seconds and device",
    )  # fmt: skip
    require_between(
        seen.overhead["sample_seconds"], _FLOOR * reading, 60,
        what=f"{what}: sample_seconds, where GpuReader.read() takes {seconds(reading)}", show=seconds,
    )  # fmt: skip
    require_equal(seen.on_gpu, "cuda", what="device of measure_overhead(1, device='cuda')")
    start = snapshots[0]["time"]
    shown: dict[str, list[tuple[float, float]]] = {"loss": [], "utilisation of GPU 0": [], "power of GPU 0": []}
    for each in snapshots:
        at, gpu = each["time"] - start, each["gpus"][0]
        if "loss" in each["metrics"]:
            shown["loss"].append((at, each["metrics"]["loss"]))
        if gpu["utilization_ratio"] is not None:
            shown["utilisation of GPU 0"].append((at, gpu["utilization_ratio"]))
        if gpu["power_watts"] is not None and gpu["power_limit_watts"] is not None:
            shown["power of GPU 0"].append((at, gpu["power_watts"] / gpu["power_limit_watts"]))
    for name, points in shown.items():
        factors = (1.0,) if name == "loss" else (1.0, 100.0)  # a share, or percent
        require(
            any(_is_drawn(points, factor, series) for series in seen.drawn for factor in factors),
            f"plot_history() draws no line with the {name} over seconds since the first snapshot, here at "
            f"{', '.join(f'({x:.4g}, {y:.4g})' for x, y in points)}",
            "power as a share of its limit; None is left out, and 0 is a number like any other",
        )


def _history(fresh: Fresh) -> list[dict[str, Any]]:
    """Snapshots with gaps: no loss, a GPU that idles, one that tells nothing or no limit, and another beside it."""
    time, limit = float(fresh.integer(1_700_000_000, 1_800_000_000)), float(fresh.integer(300, 700))
    values = {
        "loss": (True, False), "utilization": ("absent", "none", "some"),
        "power": ("absent", "none", "some"), "limit": (True, False),
    }  # fmt: skip
    drawn = full_rows(fresh.shared("lab5.history"), values, 7)
    whole: dict[str, Any] = {"loss": True, "utilization": "some", "power": "some", "limit": True}
    lacking = [{**whole, name: "absent"} for name in ("utilization", "power")]
    snapshots = []
    for row in fresh.shuffled([*drawn, *lacking]):
        numbers = {"none": 0.0, "some": fresh.uniform(0.2, 0.9)}
        share, power = numbers.get(row["utilization"]), numbers.get(row["power"])
        snapshots.append(
            {
                "time": time,
                "metrics": {"loss": fresh.uniform(0.5, 3.0)} if row["loss"] else {},
                "gpus": [
                    {
                        "index": 0,
                        "utilization_ratio": share,
                        "power_watts": None if power is None else power * limit,
                        "power_limit_watts": limit if row["limit"] else None,
                    },
                    {"index": 1, "utilization_ratio": 0.5, "power_watts": 100.0, "power_limit_watts": 200.0},
                ],
            }
        )
        time += fresh.integer(2, 40) / 8
    return snapshots


def _is_drawn(points: Sequence[tuple[float, float]], factor: float, series: Sequence[list[float]]) -> bool:
    """Whether these points are drawn, and no others between them."""
    return len(series) == len(points) and all(
        abs(x - found[0]) <= 1e-6 and abs(factor * y - found[1]) <= 1e-6 * factor
        for (x, y), found in zip(points, sorted(series), strict=True)
    )


def limits(seen: Seen, steps: int, step_seconds: float, log_seconds: float) -> dict[str, tuple[float, float]]:
    """Between which times the medians of an overhead lie, by when optimizer steps and calls of `log_metrics` were seen.

    From below, by how much longer each was made; from above, by the time from one optimizer step to the next, with and
    without a call between: half of the steps that were timed took at least the median. No limit depends on how fast
    this machine is, or on what else it does.

    Raises:
        CheckFailed: there were too few of them, with and without.
    """
    bare: list[float] = []
    monitored: list[float] = []
    for (start, end), logs in zip(pairwise(seen.steps), _logged(seen), strict=True):
        (monitored if logs else bare).append(end - start)
    for name, periods in (("without", bare), ("with", monitored)):
        require(
            len(periods) >= steps - 2,  # the last has none after it
            f"program with --steps {steps}: {len(periods)} training steps {name} a log_metrics after them were seen",
            "measure_overhead makes and times that many steps, each way",
        )
    calls = [end - begin for begin, end in seen.logs]
    return {
        "bare_step_seconds": (_FLOOR * step_seconds, _longest(bare, steps)),
        "monitored_step_seconds": (_FLOOR * (step_seconds + log_seconds), _longest(monitored, steps)),
        "log_seconds": (_FLOOR * log_seconds, _longest(calls, steps)),
    }


def _require_turns(seen: Seen, steps: int) -> None:
    """Fail unless each way has its turn more than once, and not always the same one comes first.

    The program measures first, and then makes `steps` steps of its own. The last step that it timed is left out: what
    follows it may go by another clock.
    """
    turns = _logged(seen)[:-steps][1 - 2 * steps :]
    changes = sum(one != other for one, other in pairwise(turns))
    shown = ", ".join("with" if logs else "without" for logs in turns)
    what = f"measure_overhead({steps}) made its steps with and without a log_metrics after them in this order: {shown}"
    require(changes >= 3, what, "let them take turns: a machine that gets busier on the way slows both alike")
    require(
        changes < len(turns) - 1,
        f"{what}: in each pair the same one comes first",
        "neither always comes first: without, with, with, without, for example, or as a coin falls",
    )


def _logged(seen: Seen) -> list[bool]:
    """Of each optimizer step that another one follows, whether there was a `log_metrics` between the two."""
    begins = sorted(begin for begin, _ in seen.logs)
    return [any(start < begin < end for begin in begins) for start, end in pairwise(seen.steps)]


def _longest(times: Sequence[float], steps: int) -> float:
    """What the median of `steps` of these times cannot exceed, but for the moments between two readings of a clock."""
    return 1.1 * sorted(times)[-steps // 4] + 1e-3
