"""Judges Lab 5's monitor: a machine without NVML, what fails next to it, its exports, the background, alerts.

The GPUs are made up (`probes/fake_nvml.py`), so what they say is known to the last digit; no check depends on how fast
this machine is.
"""

from __future__ import annotations

from typing import Any

from gradebox.course.criterion import builds_on, criterion, requires
from gradebox.run.assertions import number, require, require_between, require_close, require_equal
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab5.checks import alerts
from grader.lab5.truth.monitor import gpu, records, series

SINGLE = 1e-6
"""TensorBoard keeps float32."""
_SHARE = 0.6
"""Of the time that a call takes by the probe's clock, at least so much is counted: threads may be made to wait."""
_QUESTION = 0.004
"""Seconds that a GPU takes for each answer, while samples are timed."""
_OS_ERRORS = ["OSError", "FileExistsError", "NotADirectoryError"]
Logs = list[tuple[int, dict[str, Any]]]
"""Steps, and what was logged of each."""


def logs_of(generator: InputGenerator) -> Logs:
    """What a training logs at three steps, the last of them smaller, as after a resume."""
    draw = generator.shared("lab5.logs")

    def some(low: float, high: float) -> float:
        return round(draw.uniform(low, high), 4)

    step, more = draw.integer(5, 50), draw.integer(5, 50)
    begun = {"loss": some(2, 3), "accuracy": some(0.1, 0.4), "learning_rate": some(1e-3, 1e-2), "val/loss": some(2, 3)}
    later = {"loss": some(1, 2), "accuracy": some(0.5, 0.9), "throughput": some(1e3, 9e3)}
    last = {"loss": "nan", "gradient_norm": "inf"}
    return [(step, begun), (step + more, later), (step + more - draw.integer(1, 4), last)]


@criterion("lab5.monitoring", early=True)
class TestMonitoring:
    def test_works_without_nvml(self, submission: Submission, generator: InputGenerator) -> None:
        """Goes on without NVML, and says so once."""
        logs = logs_of(generator)[:2]
        other = generator.shuffled(
            [("DRIVER_NOT_LOADED", "without a driver"), ("NO_PERMISSION", "without permission")]
        )[0]
        for error, reason in (("LIBRARY_NOT_FOUND", "without NVML's library"), other, (None, "without any GPU")):
            seen = submission.probe("lab5.monitoring.without_nvml", device="cpu", error=error, logs=logs)
            require_equal(
                seen.said.strip().count("\n") + bool(seen.said.strip()), 1,
                what=f"lines that the monitor prints at its start {reason}", hint="one line on standard error",
            )  # fmt: skip
            require(
                not seen.later.strip(), f"{reason} the monitor goes on printing after its start: {seen.later[:120]!r}",
                "print the message once: a line per sample fills somebody's disk",
            )  # fmt: skip
            first, second = seen.messages
            require(bool(first), f"{reason} GPUMonitor.message is {first!r}", "GpuReader.message says why")
            require_equal(second, first, what=f"message of GPUMonitor.snapshot() {reason}")
            found = series(seen.text)
            require_equal(found.get(("training_loss", "")), logs[-1][1]["loss"], what=f"training_loss {reason}",
                          hint="training metrics go on without a GPU")  # fmt: skip
            require_equal(seen.left_open, 0, what=f"nvmlInit without nvmlShutdown {reason}, after close()")

    @builds_on("alerts_fire")
    def test_ends_no_training(self, submission: Submission, generator: InputGenerator) -> None:
        """Ends no training, and leaves nothing behind."""
        draw = generator.shared("lab5.failing")
        given = [{key: value for key, value in gpu(draw, 0).items() if key != "celsius"}]
        interval, hot = -round(draw.uniform(0.1, 2.0), 2), draw.integer(86, 99)
        seen = submission.probe("lab5.monitoring.failing", device="cpu", gpus=given, interval=interval, hot=hot)
        found = seen.alerts
        what = "if on_alert raises"
        require_equal(found["error"], "", what=f"error of log_metrics() {what}", hint="see on_alert in the docstring")
        require_equal(
            found["received"], ["GpuHot", "LossNotFinite"], what=f"rules of the alerts given to on_alert, {what}"
        )
        require(
            found["samples_later"] >= 3, f"{found['samples_later']} samples were taken in the background {what}",
            "an exception ends a thread: catch what others' functions raise, report it, and go on",
        )  # fmt: skip
        require("mailbox" in found["said"], f"nothing on standard error says what was raised {what}")
        require(
            seen.others_go_on is not False, "log_metrics() waited while the sampling thread was in on_alert",
            "call on_alert when the lock is free again: a mail that takes a minute is nobody else's minute",
        )  # fmt: skip
        for name, case in seen.cases.items():
            wanted = ["ValueError"] if name.startswith("interval") else _OS_ERRORS
            error = case["error"] or "nothing"
            require(error in wanted, f"GPUMonitor() with {name} raised {error}, expected {wanted[0]}")
            require_equal(
                [case["threads"], case["left_open"]], [0, 0],
                what=f"threads, and nvmlInit without nvmlShutdown, that GPUMonitor() with {name} left behind",
                hint="close what is open before the error goes on",
            )  # fmt: skip

    @builds_on("ends_no_training")
    def test_training_metrics_logged(self, submission: Submission, generator: InputGenerator) -> None:
        """Exports metrics and readings, from rank 0 alone."""
        draw, logs = generator.shared("lab5.monitoring"), logs_of(generator)
        gpus = [gpu(draw, index) for index in range(2)]
        seen = submission.probe("lab5.monitoring.exported", device="cpu", gpus=gpus, logs=logs)
        _judge_prometheus(seen, gpus, logs)
        _judge_files(seen, logs)
        _judge_ranks(submission, gpus)
        moments = submission.probe("lab5.monitoring.moments", device="cpu", gpus=gpus[:1], logs=60, question=_QUESTION)
        (begin, first, end), (_, again, _), (low, smaller, high) = moments.steps
        hint = "step_time is when the step last changed: a stalled training may log the same step again"
        require_between(number(first, "Snapshot.step_time"), begin - 0.01, end + 0.01, what="step_time of step 7")
        require_equal(again, first, what="step_time after step 7 was logged again", hint=hint)
        require_between(
            number(smaller, "Snapshot.step_time"), low - 0.01, high + 0.01, what="step_time of step 3", hint=hint
        )
        for name, (begin, taken, end) in zip(("log_metrics",) * 3 + ("sample",), moments.taken, strict=True):
            what = f"time of the snapshot after a call of {name}"
            require_between(number(taken, "Snapshot.time"), begin - 0.01, end + 0.01, what=what)

    @builds_on("training_metrics_logged")
    def test_sampled_in_background(self, submission: Submission, generator: InputGenerator) -> None:
        """Samples in a thread that nobody waits for."""
        draw = generator.shared("lab5.monitoring")
        samples, celsius = 4, generator.integer(20, 40)  # it begins above that
        options: dict[str, Any] = {"gpus": [gpu(draw, 0)], "samples": samples, "logs": 25, "celsius": celsius}
        seen = submission.probe("lab5.monitoring.background", device="cpu", **options)
        require(
            seen.history >= samples and seen.elsewhere > 0,
            f"with an interval of 10 ms, {seen.history} samples after seconds, {seen.elsewhere} questions in the "
            "background", "start a daemon thread that samples until close() tells it to stop",
        )  # fmt: skip
        require_equal(seen.holding_up, 0, what="threads of a GPUMonitor that are no daemons",
                      hint="a program that fails before close() would never end")  # fmt: skip
        require(
            seen.followed, f"GPU 0 went to {celsius} degrees, and GPUMonitor.history[-1] did not say so within seconds",
            "each sample appends a Snapshot of what the GPUs said then",
        )  # fmt: skip
        require_equal(
            seen.asked_by_logging, 0, what="questions to GPUs by 25 calls of log_metrics", hint="take the latest sample"
        )
        require(seen.reached, "the background thread stopped sampling")
        require(
            seen.logged_meanwhile, "log_metrics() does not return while a GPU takes long to answer",
            "hold no lock while you ask: a training step would wait with you",
        )  # fmt: skip
        require(
            not seen.closed_meanwhile,
            "close() returns, or shuts NVML down, while the thread still waits for a GPU that takes long to answer",
            "join the thread for as long as it takes: it must not ask an NVML that is gone",
        )
        require_equal(seen.sampled_after_close, 0, what="snapshots added to history after close()")
        require_equal(seen.asked_after_close, 0, what="questions to NVML after close()",
                      hint="stop the thread, join it, then close the reader")  # fmt: skip
        require_equal(
            seen.threads_left, 0, what="threads that close() left behind", hint="tell it to stop, and join it"
        )
        require_equal(seen.left_open, 0, what="nvmlInit without nvmlShutdown after close()", hint="close the reader")
        gpus = [gpu(generator.shared("lab5.monitoring"), 0)]
        moments = submission.probe("lab5.monitoring.moments", device="cpu", gpus=gpus, logs=60, question=_QUESTION)
        require_equal(
            moments.lengths, [1, 2], what="snapshots in history after three calls of log_metrics, then a sample"
        )
        for what, rounds in zip(("60 calls of log_metrics", "a sample"), moments.rounds, strict=True):
            # Of several rounds the one of which most was counted: the others may have waited between two calls.
            rises = [(_spent(after) - _spent(before), took) for before, took, after in rounds]
            rose, took = max(rises, key=lambda pair: pair[0] / pair[1])
            require_between(
                rose, _SHARE * took, took,
                what=f"seconds that monitor_seconds_total rose by in {what}, which took {took:.3g} seconds",
                hint="it is what all samples and all calls of log_metrics took",
            )  # fmt: skip
        # Each sample asks the GPU several times, and each answer takes this long.
        require(
            min(rises)[0] > _QUESTION, "monitor_seconds_total does not rise by what each sample takes",
            "it is a sum: add to it",
        )  # fmt: skip

    def test_alerts_fire(self, submission: Submission, generator: InputGenerator) -> None:
        """Raises the alerts that the rules ask for."""
        alerts.judge_alerts(submission, generator, at_once=True)

    @requires("alerts_fire")
    def test_alerts_wait_and_clear(self, submission: Submission, generator: InputGenerator) -> None:
        """Raises alerts once they last, and clears them."""
        alerts.judge_alerts(submission, generator, at_once=False)
        alerts.judge_reported(submission, generator)


def _spent(text: str) -> float:
    return number(series(text).get(("monitor_seconds_total", "")), "monitor_seconds_total")


def _judge_prometheus(seen: Any, gpus: list[dict[str, Any]], logs: Logs) -> None:
    """The text that Prometheus scrapes."""
    (_, before), (_, after), (third, _) = logs
    found = series(seen.text)
    for index, raw in enumerate(gpus):
        told = found.get(("gpu_temperature_celsius", str(index)))
        require_equal(told, float(raw["celsius"]), what=f"gpu_temperature_celsius of GPU {index} in /metrics",
                      hint="collect yields what prometheus_metrics makes of the snapshot")  # fmt: skip
    by_dcgm = series(seen.by_dcgm).get(("DCGM_FI_DEV_GPU_TEMP", "0"))
    require_equal(by_dcgm, float(gpus[0]["celsius"]), what="DCGM_FI_DEV_GPU_TEMP of GPU 0 with dcgm_names=True")
    for name, value in {
        "training_accuracy_ratio": after["accuracy"],
        "training_samples_per_second": after["throughput"],
        "training_learning_rate": before["learning_rate"],
        "training_val_loss": before["val/loss"],
        "training_step": float(third),
    }.items():
        require_equal(found.get((name, "")), value, what=f"{name} in /metrics", hint="the value that was logged last")
    loss = found.get(("training_loss", ""), 0.0)
    require(loss != loss, f"training_loss in /metrics is {loss} after a loss that is not a number", "export NaN")
    early = [name for name, _ in series(seen.first) if name.startswith("training_")]
    require_equal(early, [], what="training metrics in /metrics before any was logged")
    counters = [line.split()[2:] for line in seen.text.splitlines() if line.startswith("# TYPE ")][-2:]
    wanted = [["monitor_samples_total", "counter"], ["monitor_seconds_total", "counter"]]
    require_equal(counters, wanted, what="last two families in /metrics, and their types", hint="see collect()")
    require_equal(found.get(("monitor_samples_total", "")), 2.0, what="monitor_samples_total after two samples")


def _judge_files(seen: Any, logs: Logs) -> None:
    """metrics.jsonl and TensorBoard's scalars."""
    lines = records(seen.jsonl)
    hint = "the line is there when log_metrics returns: who looks after a crash reads the file"
    require_equal(seen.lines, [1, 2, 3], what="lines in metrics.jsonl after one, two, three steps", hint=hint)
    require_equal([record["step"] for record in lines], [step for step, _ in logs], what="steps in metrics.jsonl")
    shown = {"nan": "NaN", "inf": "Infinity"}
    require_equal(
        [record["metrics"] for record in lines],
        [{name: shown.get(value, value) for name, value in metrics.items()} for _, metrics in logs],
        what="metrics in metrics.jsonl", hint="those of this call only, one line each",
    )  # fmt: skip
    require_equal([len(record["gpus"]) for record in lines], [2, 2, 2], what="GPUs in each line of metrics.jsonl")
    found = sorted((row for row in seen.scalars if row[0].startswith("training/")), key=str)
    wanted = sorted(
        ([f"training/{name}", step, value] for step, metrics in logs for name, value in metrics.items()), key=str
    )
    require_equal([row[:2] for row in found], [row[:2] for row in wanted], what="scalars in TensorBoard, and steps")
    for (tag, step, value), (_, _, expected) in zip(found, wanted, strict=True):
        if isinstance(expected, str):
            require_equal(value, expected, what=f"scalar {tag} at step {step}")
        else:
            require_close(value, expected, relative=SINGLE, what=f"scalar {tag} at step {step}")
    require_equal(seen.left_open, 0, what="nvmlInit without nvmlShutdown after close()")
    require(not seen.answers, "the server still answers after close()", "close() closes the server, too")


def _judge_ranks(submission: Submission, gpus: list[dict[str, Any]]) -> None:
    """Only rank 0 monitors."""
    seen = submission.probe("lab5.monitoring.by_rank", device="cpu", gpus=gpus)
    nothing = {"starts of NVML": 0, "a folder": False, "an address": None, "snapshots": 0, "alerts": 0, "threads": 0}
    require_equal(seen.silent, nothing, what="what a monitor has if RANK is 1 in the environment",
                  hint="rank 0 alone monitors: every method begins with a look at `active`")  # fmt: skip
    require_equal(seen.started, 2, what="starts of NVML by two monitors with rank=0, if RANK is 1")
    require_equal(
        seen.shared, [False, False],
        what="whether two monitors have one registry, and one of them the other's training_loss",
        hint="register with the monitor's own registry: two monitors do not disturb each other",
    )  # fmt: skip
