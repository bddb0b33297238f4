"""Judges what Lab 5's monitor says where there is nothing to say: queries that fail, GPUs that are lost, no NVML.

`monitoring.py` asks, and exports GPUs as here.
"""

from __future__ import annotations

from typing import Any

from gradebox.assertions import number, require, require_between, require_close, require_equal
from gradebox.fresh import Fresh
from gradebox.submission import Seen, Submission
from grader.lab5.checks import monitoring_care as care
from grader.lab5.truth.monitor import COUNTERS, DCGM, GAUGES, gpu, reasons, records, series
from grader.shared.cases import full_rows

_SINGLE_QUERIES: list[dict[str, str]] = [
    {"memory_used_bytes": "used_bytes", "memory_total_bytes": "total_bytes"},
    {"temperature_celsius": "celsius"},
    {"power_watts": "power_milliwatts"},
    {"power_limit_watts": "limit_milliwatts"},
    {"sm_clock_hertz": "sm_megahertz"},
    {"memory_clock_hertz": "memory_megahertz"},
]
"""What a GPU may tell by itself: fields, and where `fake_nvml` takes them from."""
RAW = {
    **{field: key for query in _SINGLE_QUERIES if len(query) == 1 for field, key in query.items()},
    "energy_joules": "energy_millijoules",
}
"""Fields that a GPU may lack without lacking another, and where `fake_nvml` takes them from."""
_ERRORS = ("NOT_SUPPORTED", "NO_PERMISSION", "FUNCTION_NOT_FOUND", "UNKNOWN")
_WHICH = ("index", "uuid", "name", "up")
"""The fields of a reading that are not measured."""
Logs = list[tuple[int, dict[str, Any]]]
"""Steps, and what was logged of each."""


def logs_of(fresh: Fresh) -> Logs:
    """What a training logs at two steps; the same for all checks of a grading."""
    draw = fresh.shared("lab5.logs")

    def some(low: float, high: float) -> float:
        return round(draw.uniform(low, high), 4)

    step = draw.integer(5, 50)
    return [
        (
            step,
            {"loss": some(2, 3), "accuracy": some(0.1, 0.4), "learning_rate": some(1e-3, 1e-2), "val/loss": some(2, 3)},
        ),
        (
            step + draw.integer(5, 50),
            {
                "loss": some(1, 2),
                "accuracy": some(0.5, 0.9),
                "throughput": some(1e3, 9e3),
                "gradient_norm": some(0.1, 0.9),
            },
        ),
    ]


def exported(submission: Submission, fresh: Fresh, **changes: Any) -> tuple[list[dict[str, Any]], Seen]:
    """Two GPUs that nobody has seen, and what was exported of them; the same for all checks of a grading."""
    draw = fresh.shared("lab5.monitoring")
    gpus = [gpu(draw, index) for index in range(2)]
    inputs: dict[str, Any] = {"gpus": gpus, "logs": logs_of(fresh), **changes}
    return gpus, submission.probe("lab5.monitoring.exported", device="cpu", **inputs)


def judge_absent(submission: Submission, fresh: Fresh) -> None:
    """Fail unless what a GPU does not tell is left out, and of a lost one everything that is measured."""
    known = {field: raw for fields in fresh.shuffled(_SINGLE_QUERIES)[:3] for field, raw in fields.items()}
    full, lost, poor = fresh.shuffled(range(3))
    gpus = [gpu(fresh, index) for index in range(3)]
    values = {"gpu": ("full", "lost", "poor"), "named": (True, False), "dcgm": (True, False)}
    drawn = {row["gpu"]: row for row in full_rows(fresh.shared("lab5.absent"), values, 3)}
    dcgm = drawn["poor"]["dcgm"]
    for index, which in ((full, "full"), (lost, "lost"), (poor, "poor")):
        unnamed = () if drawn[which]["named"] else ("uuid", "name")
        kept = (*("uuid", "name"), *known.values()) if which == "poor" else (*gpus[index],)
        errors = {key: fresh.shuffled(_ERRORS)[0] for key in gpus[index]} | {"energy_millijoules": "NO_PERMISSION"}
        gpus[index] = {key: value for key, value in gpus[index].items() if key in kept and key not in unnamed}
        gpus[index]["errors"] = errors
    labels = care.labels_of(str(poor), {"uuid": "", "name": "", **gpus[poor]}, dcgm=dcgm)
    names = {**GAUGES, **DCGM} if dcgm else GAUGES
    _, seen = exported(submission, fresh, gpus=gpus, lost=[lost], dcgm_names=dcgm)
    found = series(seen.text)
    told = {name for name, index in found if index == str(poor)}
    wanted = {"gpu_up", *(names[field] for field in known)}
    where = f"of GPU {poor}, which tells only {', '.join(known)}{', with dcgm_names' if dcgm else ''}"
    require_equal(
        sorted(told),
        sorted(wanted),
        what=f"metrics in /metrics {where}",
        hint="not supported, not permitted and not known are absent, never zero",
    )
    require_equal([key for key in reasons(seen.text) if key[0] == str(poor)], [], what=f"gpu_throttled {where}")
    care.require_labels(seen.text, "gpu_up", labels)
    lines = records(seen.jsonl)
    last = lines[-1]["gpus"] if lines else []
    entry = {reading["index"]: reading for reading in last if isinstance(reading, dict) and "index" in reading}
    require(poor in entry, f"the last line of metrics.jsonl has no GPU {poor}", "every GPU of the snapshot, by index")
    absent = {"throttle_reasons", *GAUGES, *COUNTERS} - known.keys()
    require(
        known.keys() <= entry[poor].keys() and not absent & entry[poor].keys(),
        f"metrics.jsonl has {sorted(entry[poor])} {where}",
        "labkit.monitoring.plain leaves out what is None",
    )
    scalars = {tag for tag, _, _ in seen.scalars if tag.startswith(f"gpu{poor}/")}
    require(
        scalars == {f"gpu{poor}/{field}" for field in known},
        f"TensorBoard has {sorted(scalars)} {where}",
        "only what is a number and is there",
    )
    require((names["power_watts"], str(lost)) in series(seen.first), "the GPU that is lost later is missing at first")
    left = sorted({name for name, index in found if index == str(lost)})
    left += [f"gpu_throttled with reason {key[1]}" for key in reasons(seen.text) if key[0] == str(lost)]
    require_equal(
        left,
        ["gpu_up"],
        what="metrics in /metrics of a GPU that the driver has lost",
        hint="its last values are not its values",
    )
    require(lost in entry, f"the last line of metrics.jsonl has no GPU {lost}, which the driver has lost")
    require_equal(
        _measured(entry[lost]), [], what="what metrics.jsonl says is measured of a GPU that the driver has lost"
    )
    tags = sorted({tag for tag, _, _ in seen.scalars if tag.startswith(f"gpu{lost}/")})
    require_equal(tags, [], what="scalars in TensorBoard of a GPU that the driver has lost")
    hint = "the monitor goes on telling whether a GPU is there: 1 while the driver has it, 0 from then on"
    up = {index: number(found.get(("gpu_up", str(index))), f"gpu_up of GPU {index}", hint) for index in (lost, full)}
    require_between(up[lost], 0, 0, what="gpu_up of a lost GPU", expected="0", hint=hint)
    require_close(up[full], 1, relative=0, what="gpu_up of the GPU beside it")
    _require_handles(submission, fresh)
    care.require_record(submission, fresh)


def _require_handles(submission: Submission, fresh: Fresh) -> None:
    """Fail unless a GPU without a handle, and one that is lost in the middle of a reading, are ones that are not up."""
    without, losing, seen = care.refused(submission, fresh)
    up: list[Any] = [[index, index != without] for index in range(3)]
    what = f"GpuReader.read(), where NVML gives no handle of GPU {without}"
    found = [[reading["index"], reading["up"]] for reading in seen.readings]
    require_equal(found, up, what=f"index and up of {what}", hint="it is there, as one that is not up; others are read")
    require_equal(_measured(seen.readings[without]), [], what=f"fields of GPU {without} that are measured, in {what}")
    require(bool(seen.lost), f"GpuReader.read() asks GPU {losing} nothing")
    for answers, reading in enumerate(seen.lost):
        what = f"GpuReader.read(), where GPU {losing} is lost after {answers} of its answers"
        require(reading is not None, f"{what}, has no GPU {losing}", "it is there, as one that is not up")
        hint = "NVMLError_GpuIsLost, whatever was asked: what was read before is not kept"
        require_equal(reading["up"], False, what=f"up of GPU {losing} in {what}", hint=hint)
        require_equal(_measured(reading), [], what=f"fields of GPU {losing} that are measured, in {what}", hint=hint)
    require_equal(seen.unit, "KeyError", what="error of base_value('furlongs', 1.0)")
    require_equal(seen.after, 0, what="readings of GpuReader.read() after close()")
    require_equal(seen.left_open, 0, what="nvmlInit without nvmlShutdown after GpuReader.close()")
    first, second = seen.without["messages"]
    require(bool(first), "GPUMonitor.message is empty where NVML is missing")
    require_equal(second, first, what="message of GPUMonitor.snapshot(), where NVML is missing", hint="the monitor's")
    require_equal(seen.shared["message"], None, what="GpuReader.message where GPUs can be read")
    require_equal(
        [value is None for value in seen.shared["xids"]], [True, False],
        what=f"whether xid_errors is None in read_gpu(handle, {losing}) without a counter, and in GpuReader.read()",
    )  # fmt: skip
    require_equal(seen.shared["events"], 0, what="event sets of NVML (XidCounter) still open after GpuReader.close()")
    hint = (
        "NVML counts its users, and another one of this process has started it, too: each start wants one nvmlShutdown"
    )
    require_equal(seen.shared["users"], 1, what="users of NVML left, of one, after close() and close()", hint=hint)
    require_equal(
        seen.shared["users_later"], 1,
        what="users of NVML left, of one, after close() of a GpuReader whose nvmlInit had failed", hint=hint,
    )  # fmt: skip


def _measured(reading: dict[str, Any]) -> list[str]:
    """The fields of a reading that are there, but for those that say which GPU it is of."""
    return sorted(name for name, value in reading.items() if value is not None and name not in _WHICH)


def judge_without_nvml(submission: Submission, fresh: Fresh) -> None:
    """Fail unless a monitor goes on without NVML, and says once why there are no GPUs."""
    logs = logs_of(fresh)
    loss = logs[-1][1]["loss"]
    other = fresh.shuffled([("DRIVER_NOT_LOADED", "without a driver"), ("NO_PERMISSION", "without permission")])[0]
    uncounted = ("UNKNOWN", "where NVML starts and cannot count the GPUs")
    for error, reason in (
        ("LIBRARY_NOT_FOUND", "without NVML's library"),
        other,
        (None, "without any GPU"),
        uncounted,
    ):
        options: dict[str, Any] = {"at_start": False} if reason == uncounted[1] else {}
        seen = submission.probe("lab5.monitoring.without_nvml", device="cpu", error=error, logs=logs, **options)
        require(bool(seen.said.strip()), f"{reason} the monitor says nothing", "one line on standard error")
        require(bool(seen.message), f"{reason} GPUMonitor.message is {seen.message!r}", "why no GPU is monitored")
        require(
            not seen.later.strip(),
            f"{reason} the monitor goes on talking after its start: {seen.later[:120]!r}",
            "once: a line per sample fills somebody's disk",
        )
        require_equal(
            seen.said.strip().count("\n") + 1, 1, what=f"lines that the monitor says {reason}", hint="one line"
        )
        require(
            series(seen.text).get(("training_loss", "")) == loss,
            f"{reason} /metrics has no training_loss of {loss}",
            "training metrics go on without a GPU",
        )
        require(
            not any(name.startswith("gpu_") for name, _ in series(seen.text)),
            f"{reason} /metrics has GPU metrics",
            "absent, never zero",
        )
        require_equal(len(records(seen.jsonl)), len(logs), what=f"lines of metrics.jsonl {reason}")
        require_equal(seen.left_open, 0, what=f"nvmlInit without nvmlShutdown {reason}, after close()")
