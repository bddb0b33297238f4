"""Judges what Lab 5's monitor does when something beside it goes wrong, and what it counts. `monitoring.py` asks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from gradebox.assertions import number, require, require_between, require_close, require_equal
from gradebox.fresh import Fresh
from gradebox.submission import Seen, Submission
from grader.lab5.truth.monitor import gpu, records, series

_LABEL = re.compile(r'(\w+)="([^"]*)"')
_SHARE = 0.6
"""Of the time that a call takes by the probe's clock, at least so much is counted: threads may be made to wait."""


def unharmed(submission: Submission, fresh: Fresh) -> tuple[int, list[float], Seen]:
    """A monitor to which bad things happen; the same for all checks of a grading."""
    draw = fresh.shared("lab5.unharmed")
    hot, losses = draw.integer(86, 99), [round(draw.uniform(1, 3), 3) for _ in range(3)]
    given = [{key: value for key, value in gpu(draw, 0).items() if key != "celsius"}]
    seen = submission.probe(
        "lab5.monitoring_care.unharmed", device="cpu", gpus=given, hot=hot, losses=losses, logs=60, question=0.004
    )
    return hot, losses, seen


def refused(submission: Submission, fresh: Fresh) -> tuple[int, int, Seen]:
    """Monitors that cannot begin; and GPUs of which one has no handle, and one is lost: both indices, what was seen."""
    draw = fresh.shared("lab5.refused")
    gpus = [gpu(draw, index) for index in range(3)]
    index, losing = draw.shuffled(range(3))[:2]
    gpus[index]["no_handle"] = True
    interval = -round(draw.uniform(0.1, 2.0), 2)
    options: dict[str, Any] = {"gpus": gpus, "interval": interval, "losing": losing}
    return index, losing, submission.probe("lab5.monitoring_care.refused", device="cpu", **options)


def require_no_training_ended(submission: Submission, fresh: Fresh) -> None:
    """Fail unless a full disk and an `on_alert` that raises cost a line each, and nothing else."""
    _, losses, seen = unharmed(submission, fresh)
    first, *later = seen.full
    for place, each in enumerate(seen.full):
        require_equal(
            each["error"], "", what=f"error of log_metrics() number {place} on a disk that is full",
            hint="a monitor never ends a training: say it, and go on without files",
        )  # fmt: skip
    require(bool(first["said"].strip()), "the monitor says nothing when its disk is full", "one line on standard error")
    said = "".join(each["said"] for each in later)
    require(not said.strip(), f"the monitor says again and again that its disk is full: {said[:120]!r}", "say it once")
    loss = series(seen.after_full).get(("training_loss", ""))
    require_equal(loss, losses[0] + 2, what="training_loss in /metrics, logged when the disk was full")
    require_equal(seen.closed["error"], "", what="error of close() after the disk was full")
    alerts = seen.alerts
    what = "where on_alert raises"
    require_equal(alerts["error"], "", what=f"error of log_metrics() {what}", hint="see on_alert in the docstring")
    require_equal(alerts["told"], ["GpuHot", "LossNotFinite"], what=f"rules of the alerts given to on_alert, {what}")
    require(
        alerts["samples_later"] >= 3,
        f"{alerts['samples_later']} samples were taken {what} in the background",
        "an exception ends a thread: catch what others' functions raise, say it, and go on",
    )
    require("mailbox" in alerts["said"], f"{what}, nothing on standard error says what it raised")
    require(
        alerts["others_go_on"] is not False,
        "log_metrics() of the training waited while the sampling thread was in on_alert",
        "call on_alert when the lock is free again: a mail that takes a minute is nobody else's minute",
    )


def require_counted(submission: Submission, fresh: Fresh) -> None:
    """Fail unless the monitor's own time is that of samples and of log_metrics, and nothing is left where it fails."""
    _, _, seen = unharmed(submission, fresh)
    spent = [
        number(series(text).get(("monitor_seconds_total", "")), "monitor_seconds_total") for text in seen.costs["texts"]
    ]
    names = ("60 calls of log_metrics", "a sample", "another sample")
    calls = zip(names, seen.costs["took"], pairwise(spent), strict=True)
    for what, took, (before, after) in calls:
        require_between(
            after - before,
            _SHARE * took,
            took,
            what=f"seconds that monitor_seconds_total rose by in {what}, which took {took:.3g} seconds",
            hint="it is what all samples and all calls of log_metrics took",
        )
    before, after = seen.moments["history"]
    require_equal([before, after], [1, 2], what="snapshots in history after three calls of log_metrics, then a sample")
    _, _, other = refused(submission, fresh)
    without = other.without
    require_equal(
        [without["remembered"], without["forgotten"]],
        [without["many"] - 3, True],
        what=f"snapshots in history after {without['many']} samples, and whether the oldest are forgotten",
        hint="at most HISTORY, the latest",
    )
    require_equal(
        without["holding_up"], 0,
        what="threads of a GPUMonitor that are no daemons", hint="a program that fails before close() would never end",
    )  # fmt: skip
    for name, case in other.cases.items():
        wanted = "ValueError" if name.startswith("interval") else "OSError"
        require_equal(case["error"], wanted, what=f"error of GPUMonitor() with {name}")
        require_equal(
            [case["threads"], case["left_open"]],
            [0, 0],
            what=f"threads, and nvmlInit without nvmlShutdown, that GPUMonitor() with {name} left behind",
            hint="close what is open before the error goes on",
        )
    require(not seen.closed["answers"], "the server still answers after close()")
    require_equal(seen.closed["left_open"], [], what="files of log_dir that are open after close()")


def require_step_times(submission: Submission, fresh: Fresh) -> None:
    """Fail unless the time of a step is when it changed; one with RANK 1 is silent; a file is continued."""
    _, losses, seen = unharmed(submission, fresh)
    (begin, first, end), (_, again, _), (low, smaller, high) = seen.moments["moments"]
    hint = "step_time is when the step last changed: a stalled training may log the same step again"
    require_between(number(first, "Snapshot.step_time"), begin - 0.01, end + 0.01, what="step_time of step 7")
    require_equal(again, first, what="step_time after step 7 was logged again", hint=hint)
    require_between(
        number(smaller, "Snapshot.step_time"), low - 0.01, high + 0.01, what="step_time of step 3", hint=hint
    )
    for name, (begin, taken, end) in zip(("log_metrics",) * 3 + ("sample",), seen.moments["taken"], strict=True):
        what = f"time of the snapshot after a call of {name}"
        require_between(number(taken, "Snapshot.time"), begin - 0.01, end + 0.01, what=what)
    found = series(seen.moments["text"])
    moment = number(found.get(("training_last_step_timestamp_seconds", "")), "training_last_step_timestamp_seconds")
    require_close(moment, smaller, relative=1e-12, what="training_last_step_timestamp_seconds in /metrics")
    loss = number(found.get(("training_loss", "")), "training_loss")
    require_close(loss, losses[-1], relative=1e-6, what="training_loss, logged as a tensor of one number")
    hint = "write a line and flush it: who watches a training, or looks after a crash, reads the file"
    lines = [2, 3, 4]
    require_equal(seen.moments["lines"], lines, what="lines in metrics.jsonl after one, two, three steps", hint=hint)
    require_equal(seen.lines, '{"earlier": true}', what="first line of a metrics.jsonl that was there before")
    _, _, other = refused(submission, fresh)
    require_equal(
        other.ranks["silent"], [0, False, None, 0, 0],
        what="where RANK is 1 in the environment: starts of NVML, whether its folder is there, url, snapshots, alerts",
        hint="rank 0 alone monitors; without the argument the environment says which rank this is",
    )  # fmt: skip
    require(other.ranks["made"], "no metrics.jsonl in a log_dir of which two folders were missing", "made if need be")
    hint = "a CollectorRegistry of its own: two monitors do not disturb each other"
    what = "whether two monitors have one registry, and one of them the other's training_loss"
    require_equal(other.ranks["shared"], [False, False], what=what, hint=hint)
    require_equal(
        other.ranks["told"], 2, what="starts of NVML by two monitors with rank=0, RANK is 1", hint="the argument counts"
    )


def require_record(submission: Submission, fresh: Fresh) -> None:
    """Fail unless a line without a step has no step."""
    _, _, seen = unharmed(submission, fresh)
    (record,) = records(seen.record, needed=("time", "metrics", "gpus", "alerts"))
    require(seen.record.endswith("\n"), f"jsonl_line() gives {seen.record!r}, without a newline at its end")
    require_equal(
        record,
        {"time": 1.5, "metrics": {}, "gpus": [], "alerts": []},
        what="jsonl_line() of a snapshot before the first step",
    )


def require_labels(text: str, name: str, labels: dict[str, str]) -> None:
    """Fail unless a metric has a time series with these labels, and no others."""
    lines = [line for line in text.splitlines() if line.startswith(f"{name}{{")]
    parts = [f'{label}="{value}"' for label, value in labels.items()]
    require(
        any(all(part in line for part in parts) and line.count('="') == len(parts) for line in lines),
        f"/metrics has no time series {name}{{{', '.join(parts)}}}",
        f"labels as in labkit.monitoring.names; there are: {'; '.join(lines[:2]) or 'none'}",
    )


def labels_of(index: str, raw: dict[str, Any], *, dcgm: bool = False) -> dict[str, str]:
    """The labels of a GPU's time series."""
    uuid, name = ("UUID", "modelName") if dcgm else ("uuid", "name")
    return {"gpu": index, uuid: raw["uuid"], name: raw["name"]}


def require_labels_everywhere(text: str, gpus: Sequence[dict[str, Any]], *, dcgm: bool = False) -> None:
    """Fail unless every time series of every GPU has its labels: what lacks one cannot be joined with the others."""
    for line in text.splitlines():
        found = dict(_LABEL.findall(line))
        if line.startswith("#") or "gpu" not in found:
            continue
        name = line.partition("{")[0]
        found.pop("reason", None)
        index = found["gpu"]
        require(index in map(str, range(len(gpus))), f"/metrics has a GPU {index!r}, and there are {len(gpus)}")
        require_equal(
            found,
            labels_of(index, gpus[int(index)], dcgm=dcgm),
            what=f"labels of {name} in /metrics{', with dcgm_names' if dcgm else ''}",
            hint="all GPU metrics have the same labels",
        )
