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
from grader.shared.programs import picture_and_json

_TIMES = ("bare_step_seconds", "monitored_step_seconds", "log_seconds", "sample_seconds")
_STEPS = 12
_FLOOR = 0.99
"""Of a sleep: clocks of several kinds agree to less."""


def judge(submission: Submission, fresh: Fresh) -> None:
    """Fail unless the program's `MonitorOverhead` says how long its own steps took."""
    step, log = fresh.uniform(6e-3, 25e-3), fresh.uniform(6e-3, 25e-3)
    seen = submission.probe("lab5.monitoring.program", steps=_STEPS, step_seconds=step, log_seconds=log)
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
    begins = sorted(begin for begin, _ in seen.logs)
    for start, end in pairwise(seen.steps):
        (monitored if any(start < begin < end for begin in begins) else bare).append(end - start)
    for name, periods in (("without", bare), ("with", monitored)):
        require(
            len(periods) >= steps - 2,  # the last has none after it
            f"program with --steps {steps}: {len(periods)} training steps {name} a log_metrics after them were seen",
            "measure_overhead makes and times that many steps, each way",
        )
    logs = [end - begin for begin, end in seen.logs]
    return {
        "bare_step_seconds": (_FLOOR * step_seconds, _longest(bare, steps)),
        "monitored_step_seconds": (_FLOOR * (step_seconds + log_seconds), _longest(monitored, steps)),
        "log_seconds": (_FLOOR * log_seconds, _longest(logs, steps)),
    }


def _longest(times: Sequence[float], steps: int) -> float:
    """What the median of `steps` of these times cannot exceed, but for the moments between two readings of a clock."""
    return 1.1 * sorted(times)[-steps // 4] + 1e-3
