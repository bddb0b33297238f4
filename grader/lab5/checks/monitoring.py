"""Judges Lab 5's monitor: units, names and kinds, what is absent, a machine without NVML, the background, alerts.

The GPUs are made up (`probes/fake_nvml.py`), so what they say is known to the last digit; no check depends on
how fast this machine is.
"""

from __future__ import annotations

from typing import Any

from gradebox.assertions import number, require, require_between, require_close, require_equal
from gradebox.criterion import builds_on, criterion, requires
from gradebox.fresh import Fresh
from gradebox.submission import Submission
from grader.lab5.checks import alerts
from grader.lab5.checks import monitoring_absence as absence
from grader.lab5.checks import monitoring_care as care
from grader.lab5.checks.monitoring_absence import exported, logs_of
from grader.lab5.truth import overhead as lab5_overhead
from grader.lab5.truth.monitor import (
    COUNTERS,
    DCGM,
    DCGM_FACTORS,
    GAUGES,
    REASONS,
    gpu,
    kinds,
    readings,
    reasons,
    records,
    series,
)

EXACT = 1e-9
"""Texts of float64 numbers; a wrong unit is off by 1.024 or more (KiB for kB)."""
SINGLE = 1e-6
"""TensorBoard keeps float32."""

_POWER = 10
"""Times as much, or as little, power may be between two questions; milliwatts would be a thousand times as much."""


@criterion("lab5.monitoring", early=True)
class TestMonitoring:
    def test_base_units(self, submission: Submission, fresh: Fresh) -> None:
        """Exports every reading in its base unit."""
        gpus, seen = exported(submission, fresh)
        found = series(seen.text)
        for index, raw in enumerate(gpus):
            for field, value in readings(raw).items():
                name = GAUGES.get(field) or COUNTERS[field]
                told = found.get((name, str(index)))
                require(told is not None, f"/metrics has no {name} of GPU {index}, which tells it", "see GPU_METRICS")
                require_close(
                    float(told or 0),
                    value,
                    relative=EXACT,
                    what=f"{name} of GPU {index} in /metrics",
                    hint="NVML's unit stands beside its query; the base unit is in the name",
                )
        scalars = {(tag, step): value for tag, step, value in seen.scalars}
        last, _ = logs_of(fresh)[-1]
        for field in readings(gpus[1]):
            told = scalars.get((f"gpu1/{field}", last))
            require(told is not None, f"TensorBoard has no scalar gpu1/{field} at step {last}", "write_tensorboard")
            wanted = readings(gpus[1])[field]
            require_close(float(told or 0), wanted, relative=SINGLE, what=f"scalar gpu1/{field}")
        own = submission.probe("lab5.monitoring.on_this_device", work=2048, values=False)
        _require_own_gpu(own, simulated=submission.device.simulated)

    @builds_on("base_units")
    def test_conventional_names(self, submission: Submission, fresh: Fresh) -> None:
        """Names and types its metrics by convention."""
        gpus, seen = exported(submission, fresh)
        told_kinds = kinds(seen.text)
        for names, kind in ((GAUGES, "gauge"), (COUNTERS, "counter")):
            for name in names.values():
                require_equal(
                    told_kinds.get(name),
                    kind,
                    what=f"# TYPE of {name} in /metrics",
                    hint="a counter only rises: rate() and increase() rely on it; everything else is a gauge",
                )
        care.require_labels(seen.text, "gpu_power_watts", care.labels_of("1", gpus[1]))
        care.require_labels(seen.text, "gpu_throttled", {**care.labels_of("1", gpus[1]), "reason": "power_cap"})
        care.require_labels_everywhere(seen.text, gpus)
        for index, raw in enumerate(gpus):
            by_reason = {(str(index), name): float(bool(raw["reasons"] & bit)) for bit, name in REASONS.items()}
            own = {key: value for key, value in reasons(seen.text).items() if key[0] == str(index)}
            what = f"gpu_throttled by GPU and reason, where NVML's answer is {raw['reasons']:#x}"
            require_equal(own, by_reason, what=what, hint="one time series per reason of THROTTLE_REASONS, 1 or 0")
        require_equal(
            [name for name in told_kinds if name.startswith("training_")],
            [name for name in told_kinds if name.startswith("training_") and (name, "") in series(seen.text)],
            what="training metrics in /metrics that have labels",
        )
        early = [name for name, _ in series(seen.first) if name.startswith("training_")]
        require_equal(early, [], what="training metrics in /metrics before any was logged", hint="once one was logged")
        last = [line.split()[2] for line in seen.text.splitlines() if line.startswith("# TYPE ")][-2:]
        require_equal(last, ["monitor_samples_total", "monitor_seconds_total"], what="last two families in /metrics")
        for name in ("monitor_samples_total", "monitor_seconds_total"):
            require_equal(told_kinds.get(name), "counter", what=f"# TYPE of {name} in /metrics", hint="see collect()")
        samples = number(series(seen.text).get(("monitor_samples_total", "")), "monitor_samples_total in /metrics")
        require_close(samples, 2, relative=0, what="monitor_samples_total")
        silent = fresh.shuffled(list(absence.RAW))[:3]
        keys = {absence.RAW[field] for field in silent}
        poor = {key: value for key, value in gpus[0].items() if key not in keys}
        _, by_dcgm = exported(submission, fresh, dcgm_names=True, gpus=[poor, gpus[1]])
        found = series(by_dcgm.text)
        dcgm_kinds = kinds(by_dcgm.text)
        for field, name in DCGM.items():
            kind = "untyped" if field in COUNTERS else "gauge"
            require_equal(dcgm_kinds.get(name), kind, what=f"# TYPE of {name} in /metrics, with dcgm_names")
            told = found.get((name, "1"))
            require(told is not None, f"with dcgm_names, /metrics has no {name} of GPU 1", "exactly this name")
            wanted = readings(gpus[1])[field] * DCGM_FACTORS.get(field, 1.0)
            require_close(float(told or 0), wanted, relative=EXACT, what=f"{name} with dcgm_names", hint="DCGM's unit")
            there = (name, "0") in found
            require_equal(
                there, field not in silent,
                what=f"whether /metrics has {name} of GPU 0, which does not tell {', '.join(sorted(silent))}, with "
                "dcgm_names", hint="what a GPU cannot tell is absent, under whatever name",
            )  # fmt: skip
        care.require_labels(by_dcgm.text, "DCGM_FI_DEV_POWER_USAGE", care.labels_of("1", gpus[1], dcgm=True))
        care.require_labels_everywhere(by_dcgm.text, gpus, dcgm=True)

    @builds_on("conventional_names")
    def test_absent_not_zero(self, submission: Submission, fresh: Fresh) -> None:
        """Leaves out what a GPU does not tell."""
        absence.judge_absent(submission, fresh)

    def test_works_without_nvml(self, submission: Submission, fresh: Fresh) -> None:
        """Goes on without NVML, and says so once."""
        absence.judge_without_nvml(submission, fresh)

    def test_ends_no_training(self, submission: Submission, fresh: Fresh) -> None:
        """Ends no training, whatever goes wrong beside it."""
        care.require_no_training_ended(submission, fresh)

    @builds_on("ends_no_training")
    def test_training_metrics_logged(self, submission: Submission, fresh: Fresh) -> None:
        """Logs the metrics of the training."""
        given = logs_of(fresh)
        (first, before), (second, after) = given
        third = fresh.integer(first + 1, second - 1)  # a step may fall: a training that was resumed
        logs: absence.Logs = [*given, (third, {"loss": "nan", "gradient_norm": "inf"})]
        _, seen = exported(submission, fresh, logs=logs)
        found = series(seen.text)
        names = {
            "training_accuracy_ratio": after["accuracy"],
            "training_samples_per_second": after["throughput"],
            "training_learning_rate": before["learning_rate"],
            "training_val_loss": before["val/loss"],
            "training_step": float(third),
        }
        for name, value in names.items():
            require_equal(
                found.get((name, "")), value, what=f"{name} in /metrics", hint="the value that was logged last, a gauge"
            )
        loss = found.get(("training_loss", ""), 0.0)
        require(loss != loss, f"training_loss in /metrics is {loss} after a loss that is not a number", "export NaN")
        lines = records(seen.jsonl)
        require_equal([record["step"] for record in lines], [first, second, third], what="steps in metrics.jsonl")
        require_equal(
            [record["metrics"] for record in lines],
            [before, after, {"loss": "NaN", "gradient_norm": "Infinity"}],
            what="metrics in metrics.jsonl",
            hint="those of this call, one line each",
        )
        told = [[tag, step, value] for tag, step, value in seen.scalars if tag.startswith("training/")]
        wanted = [[f"training/{name}", step, value] for step, metrics in logs for name, value in metrics.items()]
        told.sort(key=str)
        wanted.sort(key=str)
        require_equal([row[:2] for row in told], [row[:2] for row in wanted], what="scalars in TensorBoard, and steps")
        for (tag, step, value), (_, _, expected) in zip(told, wanted, strict=True):
            if isinstance(expected, str):
                require_equal(value, expected, what=f"scalar {tag} at step {step}")
            else:
                require_close(value, expected, relative=SINGLE, what=f"scalar {tag} at step {step}")
        _, other = exported(submission, fresh, rank=1)
        require(
            not other.files and other.url is None and other.started == 0 and other.threads == 0,
            f"on rank 1 the monitor writes {other.files or 'nothing'}, serves {other.url}, starts NVML {other.started} "
            f"times and {other.threads} threads",
            "rank 0 alone monitors",
        )
        care.require_step_times(submission, fresh)

    @builds_on("absent_not_zero")
    def test_sampled_in_background(self, submission: Submission, fresh: Fresh) -> None:
        """Samples in the background."""
        draw = fresh.shared("lab5.monitoring")
        samples, celsius = 4, fresh.integer(20, 40)  # it begins above that
        options: dict[str, Any] = {"gpus": [gpu(draw, 0)], "samples": samples, "logs": 25, "celsius": celsius}
        seen = submission.probe("lab5.monitoring.background", device="cpu", **options)
        require(
            seen.history >= samples and seen.elsewhere > 0,
            f"with an interval of 10 ms, {seen.history} samples after seconds, {seen.elsewhere} questions in the "
            "background",
            "a daemon thread that samples until close() tells it to stop",
        )
        require(
            seen.followed,
            f"GPU 0 went to {celsius} degrees, and GPUMonitor.history[-1] did not come to say so within seconds",
            "each sample in the background appends a Snapshot of what the GPUs said then",
        )
        require_equal(
            seen.asked_by_logging, 0, what="questions to GPUs by 25 calls of log_metrics", hint="take the latest sample"
        )
        require(seen.reached, "the background thread stopped sampling")
        require(
            seen.logged_meanwhile,
            "log_metrics() does not return while a GPU takes long to answer",
            "hold no lock while you ask: a training step would wait with you",
        )
        require(
            not seen.closed_meanwhile,
            "close() returns, or shuts NVML down, while the thread still waits for a GPU that takes long to answer",
            "join the thread for as long as it takes: it must not ask an NVML that is gone",
        )
        require_equal(seen.sampled_after_close, 0, what="snapshots added to history after close()")
        require_equal(
            seen.asked_after_close,
            0,
            what="questions to NVML after close()",
            hint="stop the thread, join it, then NVML",
        )
        require_equal(
            seen.threads_left, 0, what="threads that close() left behind", hint="tell it to stop, and join it"
        )
        require_equal(
            seen.left_open, 0, what="nvmlInit without nvmlShutdown after close()", hint="one shutdown for each init"
        )
        care.require_counted(submission, fresh)

    def test_alerts_fire(self, submission: Submission, fresh: Fresh) -> None:
        """Raises the alerts that the rules ask for."""
        alerts.judge_alerts(submission, fresh, at_once=True)

    @requires("alerts_fire")
    def test_alerts_wait_and_clear(self, submission: Submission, fresh: Fresh) -> None:
        """Raises alerts once they last, and clears them."""
        alerts.judge_alerts(submission, fresh, at_once=False)
        alerts.judge_told(submission, fresh)

    def test_overhead_measured(self, submission: Submission, fresh: Fresh) -> None:
        """Measures what it costs a training step."""
        lab5_overhead.judge(submission, fresh)
        lab5_overhead.judge_watching(submission, fresh)


def _require_own_gpu(own: Any, *, simulated: bool) -> None:
    """Fail unless the reading of this machine's GPU is in base units; a real one may have no figure of some kinds."""
    watts, total = (own.reading.get(name) for name in ("power_watts", "memory_total_bytes"))
    what = "power_watts of this machine's GPU"
    if simulated:
        require_between(watts, 1, 3000, what=what, hint="watts, not milliwatts")
        require_close(total, own.total_bytes, relative=0.1, what="memory_total_bytes of this machine's GPU")
        return
    real = own.nvml["watts"]
    if real is None:
        require(watts is None, f"{what}: saw {watts!r}, but NVML does not tell it", "what is not told is None")
    else:
        low, high = real / _POWER, _POWER * real
        require_between(watts, low, high, what=what, expected=f"about {real:g}", hint="watts, not milliwatts")
