"""Judges Lab 5's monitor: a machine without NVML, what fails next to it, its exports, the background, alerts.

The GPUs are made up (`probes/fake_nvml.py`), so what they say is known to the last digit; no check depends on how fast
this machine is.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Mapping

from gradebox.course.criterion import builds_on, criterion, requires
from gradebox.run.assertions import (
    Cause,
    CheckFailed,
    number,
    recognising,
    require,
    require_between,
    require_close,
    require_equal,
)
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab5.monitoring.cases import Exported, ExportedReply, LeftBehind, Logs, MomentsReply
from grader.lab5.monitoring.cases import drawn as cases
from grader.lab5.monitoring.checks.alerts import (
    DROPPED,
    NOT_FINITE_LEFT_OUT,
    REPORTED_EVERY_TIME,
    cause_of_missing_alerts,
    judge_at_once,
    judge_over_time,
    judge_reported,
)
from grader.lab5.monitoring.checks.exports import last_families, length, records, series
from grader.lab5.monitoring.checks.mistakes import (
    ASKED,
    FILES_NOT_COUNTED,
    LEFT_OPEN,
    MESSAGE_KEPT,
    NO_THREAD,
    THREAD_LEFT,
    TIME_FALLS,
)

SINGLE = 1e-6
"""TensorBoard keeps float32."""
_SHARE = 0.6
"""Of the time that a call takes by the probe's clock, at least so much is counted: threads may be made to wait."""
_OS_ERRORS = ["OSError", "FileExistsError", "NotADirectoryError"]


@criterion("lab5.monitoring", early=True)
class TestMonitoring:
    def test_works_without_nvml(self, submission: Submission, generator: InputGenerator) -> None:
        for reason, inputs in cases.without_nvml(generator):
            reply = submission.probe(inputs, device="cpu")
            require_equal(
                reply.said.strip().count("\n") + bool(reply.said.strip()), 1,
                what=f"lines that the monitor prints at its start {reason}", hint=Cause(
                    "silent_without_nvml",
                    "Print the reader's message once, on standard error.",
                    mistake="No message says that no GPU is monitored",
                )
                if not reply.said.strip()
                else "Print one line on standard error.",
            )  # fmt: skip
            require(
                not reply.later.strip(),
                f"{reason} the monitor goes on printing after its start: {reply.later[:120]!r}",
                Cause(
                    "complains_at_every_sample",
                    "Print the message once, at the start. A line per sample fills somebody's disk.",
                    mistake="Without NVML the monitor prints its message again and again",
                ),
            )  # fmt: skip
            first, second = reply.messages
            require(bool(first), f"{reason} GPUMonitor.message is {first!r}", "Report what GpuReader.message says.")
            require_equal(second, first, what=f"message of GPUMonitor.snapshot() {reason}",
                          hint=MESSAGE_KEPT)  # fmt: skip
            loss = series(reply.text).get(("training_loss", ""))
            require_equal(loss, inputs.logs[-1][1]["loss"], what=f"training_loss {reason}",
                          hint="Export the training's metrics without a GPU, too.")  # fmt: skip
            require_equal(
                reply.left_open, 0, what=f"nvmlInit without nvmlShutdown {reason}, after close()",
                hint=LEFT_OPEN if reply.left_open == 1 else "",
            )  # fmt: skip

    @builds_on("alerts_fire")
    def test_ends_no_training(self, submission: Submission, generator: InputGenerator, without: frozenset[str]) -> None:
        inputs = cases.failing(generator)
        reply = submission.probe(inputs, device="cpu")
        alerts = reply.alerts
        rules = sorted({str(alert.rule) for alert in alerts.received})
        what = "if on_alert raises"
        require_equal(
            alerts.error, "", what=f"error of log_metrics() {what}",
            hint=Cause(
                "on_alert_ends_the_training",
                "Catch what `on_alert` raises and report it in a line. It must not end the training.",
                mistake="What on_alert raises comes out of log_metrics, and ends the training",
            ),
        )  # fmt: skip
        if "alerts_fire" not in without:
            # Of a thread that on_alert ended, its alert was received.
            unsampled = rules == ["LossNotFinite"] and alerts.samples_later == 0
            with recognising(lambda: NO_THREAD if unsampled else cause_of_missing_alerts(submission, rules)):
                require_equal(rules, ["GpuHot", "LossNotFinite"], what=f"rules of the alerts given to on_alert, {what}")
            hot = {alert.value for alert in alerts.received if alert.rule == "GpuHot"}
            require_equal(hot, {float(inputs.hot)}, what="value of the alert GpuHot given to on_alert")
            require(
                reply.others_go_on is not None,
                f"a monitor with the one rule GpuHot gave on_alert nothing, and GPU 0 has {inputs.hot} degrees",
                "Call `on_alert` for each alert that begins, however many rules there are.",
            )
        require(
            alerts.samples_later >= 3, f"{alerts.samples_later} samples were taken in the background {what}",
            (
                "Catch what functions of others raise, report it, and go on. An exception ends the "
                "thread that it is raised in."
            ),
        )  # fmt: skip
        require(
            f"mailbox {inputs.mailbox}" in alerts.said or not alerts.received,
            f"nothing on standard error says what was raised {what}",
        )
        require(
            reply.others_go_on is not False, "log_metrics() waited while the sampling thread was in on_alert",
            REPORTED_EVERY_TIME
            if reply.repeated
            else Cause(
                "on_alert_under_the_lock",
                "Call `on_alert` when the lock is free again. A mail that takes a minute is nobody else's minute.",
                mistake="on_alert is called with the lock held, so that log_metrics waits for it",
            ),
        )  # fmt: skip
        for name, case in reply.cases.items():
            right = ["ValueError"] if name.startswith("interval") else _OS_ERRORS
            error = case.error or "nothing"
            require(error in right, f"GPUMonitor() with {name} raised {error}, expected {right[0]}")
            hint: str = "Close what is open before you let the error go on."
            if case.threads or case.left_open:
                hint = _cause_of_what_is_left(submission, generator, case) or hint
            require_equal(
                [case.threads, case.left_open], [0, 0],
                what=f"threads, and nvmlInit without nvmlShutdown, that GPUMonitor() with {name} left behind",
                hint=hint,
            )  # fmt: skip

    def test_training_metrics_logged(self, submission: Submission, generator: InputGenerator) -> None:
        inputs = cases.exported(generator)
        reply = submission.probe(inputs, device="cpu")
        _judge_prometheus(inputs, reply)
        _judge_files(inputs.logs, reply)
        _judge_ranks(submission, generator)
        _judge_moments(submission.probe(cases.moments(generator), device="cpu"))

    def test_sampled_in_background(self, submission: Submission, generator: InputGenerator) -> None:
        inputs = cases.background(generator)
        reply = submission.probe(inputs, device="cpu")
        require(
            reply.history >= inputs.samples and reply.elsewhere > 0,
            f"with an interval of 10 ms, {reply.history} samples after seconds, {reply.elsewhere} questions in the "
            "background",
            NO_THREAD
            if reply.elsewhere == 0
            else "Start a daemon thread that samples until close() stops it.",
        )  # fmt: skip
        require(not reply.holds_up, "a program that fails while its GPUMonitor samples does not end",
                "Make the thread a daemon, and do not wait for it unless you have stopped it.")  # fmt: skip
        require(
            reply.latest == inputs.celsius,
            f"GPU 0 went to {inputs.celsius} degrees, and GPUMonitor.history[-1] did not say so within seconds; it "
            f"says {reply.latest}",
            DROPPED if reply.latest is None else "Append to the history, with each sample, a Snapshot of what it read.",
        )  # fmt: skip
        require_equal(
            reply.asked_by_logging, 0, what=f"questions to GPUs by {inputs.logs} calls of log_metrics", hint=ASKED
        )
        require(reply.reached, "the background thread stopped sampling")
        require(
            reply.logged_meanwhile, "log_metrics() does not return while a GPU takes long to answer",
            Cause(
                "lock_held_while_asking",
                "Hold no lock while you ask the GPUs. A training step would wait with you.",
                mistake="The lock is held while the GPUs are read, so that log_metrics waits",
            ),
        )  # fmt: skip
        require(
            not reply.closed_meanwhile,
            "close() returns, or shuts NVML down, while the thread still waits for a GPU that takes long to answer",
            THREAD_LEFT
            if reply.sampled_after_close > 1  # one that was begun before may end
            else Cause(
                "close_does_not_wait_for_the_thread",
                "Join the thread for as long as it takes. It must not ask an NVML that is gone.",
                mistake="close does not wait until the thread has ended",
            ),
        )
        require_equal(reply.sampled_after_close, 0, what="snapshots added to history after close()")
        require_equal(reply.asked_after_close, 0, what="questions to NVML after close()",
                      hint="Stop the thread, join it, then close the reader.")  # fmt: skip
        require_equal(reply.threads_left, 0, what="threads that close() left behind", hint=THREAD_LEFT)
        require_equal(reply.left_open, 0, what="nvmlInit without nvmlShutdown after close()",
                      hint=LEFT_OPEN if reply.left_open == 1 else "Close the reader.")  # fmt: skip
        if reply.sampled_at is not None and reply.logged_at is not None:
            later = number(reply.sampled_at, "Snapshot.time") - number(reply.logged_at, "Snapshot.time")
            require(
                later > -0.01,
                "a step was logged while a GPU took long to answer: the snapshot of the sample came later, and has a "
                f"time that is {-later:.3g} seconds earlier",
                TIME_FALLS,
            )
        calls = cases.moments(generator)
        moments = submission.probe(calls, device="cpu")
        require_equal(
            moments.lengths, [1, 2], what="snapshots in history after three calls of log_metrics, then a sample"
        )
        require_equal(
            moments.in_history, [3, 0.5],
            what="step and loss in the newest snapshot of history, after both were logged",
            hint="Append the snapshot as it is, with the step and the metrics that are known by then.",
        )  # fmt: skip
        timed = (
            f"{calls.logs} calls of log_metrics",
            f"a call of log_metrics that writes {calls.filed} metrics",
            "a sample",
        )
        for what, rounds in zip(timed, moments.rounds, strict=True):
            # Of several rounds the one of which most was counted: the others may have waited between two calls.
            rises = [(_spent(after) - _spent(before), took) for before, took, after in rounds]
            rose, took = max(rises, key=lambda pair: pair[0] / pair[1])
            require_between(
                rose, _SHARE * took, took,
                what=f"seconds that monitor_seconds_total rose by in {what}, which took {took:.3g} seconds",
                hint=FILES_NOT_COUNTED
                if what == timed[1] and rose < _SHARE * took
                else Cause(
                    "own_time_incomplete",
                    "Add the seconds of each call of `sample` and of `log_metrics`.",
                    mistake=f"monitor_seconds_total leaves out what {what} took",
                )
                if rose == 0
                else "Add up what all samples and all calls of log_metrics took.",
            )  # fmt: skip
        # Each sample asks the GPU several times, and each answer takes this long.
        require(
            min(rises)[0] > cases.QUESTION_SECONDS, "monitor_seconds_total does not rise by what each sample takes",
            "Add to the sum instead of replacing it.",
        )  # fmt: skip

    def test_alerts_fire(self, submission: Submission, generator: InputGenerator) -> None:
        judge_at_once(submission, generator)

    @requires("alerts_fire")
    @builds_on("alerts_fire")
    def test_alerts_wait_and_clear(
        self, submission: Submission, generator: InputGenerator, without: frozenset[str]
    ) -> None:
        own_conditions = "alerts_fire" in without
        judge_over_time(submission, generator, own_conditions=own_conditions)
        judge_reported(submission, generator, own_conditions=own_conditions)


def _cause_of_what_is_left(submission: Submission, generator: InputGenerator, case: LeftBehind) -> Cause | None:
    """If a monitor that could not begin leaves what `close` leaves as well, the mistake is in `close`."""
    with contextlib.suppress(CheckFailed):
        closed = submission.probe(cases.background(generator), device="cpu")
        if case.threads and closed.sampled_after_close > 1 and not case.left_open:
            return THREAD_LEFT
        if case.left_open == closed.left_open == 1 and not case.threads:
            return LEFT_OPEN
    return None


def _is_never_shut_down(reply: ExportedReply) -> bool:
    """Whether each of the two monitors left NVML initialised."""
    return reply.left_open == 2


def _spent(text: str) -> float:
    return number(series(text).get(("monitor_seconds_total", "")), "monitor_seconds_total")


def _judge_moments(reply: MomentsReply) -> None:
    """Times of steps and of snapshots."""
    (begin, first, end), (_, again, _), (low, smaller, high) = reply.steps
    hint = Cause(
        "step_time_of_every_call",
        "Keep `step_time` if the step is the same as before. A stalled training may log the same step again.",
        mistake="step_time is the time of the last call, also when the step is the same",
    )
    require_between(number(first, "Snapshot.step_time"), begin - 0.01, end + 0.01, what="step_time of step 7")
    require_equal(again, first, what="step_time after step 7 was logged again", hint=hint)
    require_between(
        number(smaller, "Snapshot.step_time"), low - 0.01, high + 0.01, what="step_time of step 3, after step 7",
        hint="Take the time of this call if the step is another one. A smaller step is a change, too.",
    )  # fmt: skip
    for name, (begin, taken, end) in zip(("log_metrics",) * 3 + ("sample",), reply.taken, strict=True):
        what = f"time of the snapshot after a call of {name}"
        require_between(number(taken, "Snapshot.time"), begin - 0.01, end + 0.01, what=what)


def _judge_prometheus(inputs: Exported, reply: ExportedReply) -> None:
    """The text that Prometheus scrapes."""
    (_, before), (_, after), (third, _) = inputs.logs
    values = series(reply.text)
    without_readings = not any(name.startswith("gpu_") for name, _ in values)
    for index, gpu in enumerate(inputs.gpus):
        celsius = values.get(("gpu_temperature_celsius", str(index)))
        require_equal(
            celsius, float(gpu["celsius"]), what=f"gpu_temperature_celsius of GPU {index} in /metrics",
            hint=DROPPED if without_readings else "Yield from collect() what prometheus_metrics makes of the snapshot.",
        )  # fmt: skip
    by_dcgm = series(reply.by_dcgm).get(("DCGM_FI_DEV_GPU_TEMP", "0"))
    celsius = float(inputs.gpus[0]["celsius"])
    require_equal(by_dcgm, celsius, what="DCGM_FI_DEV_GPU_TEMP of GPU 0 with dcgm_names=True")
    for name, value in {
        "training_accuracy_ratio": after["accuracy"],
        "training_samples_per_second": after["throughput"],
        "training_learning_rate": before["learning_rate"],
        "training_val_loss": before["val/loss"],
        "training_step": float(third),
    }.items():
        require_equal(
            values.get((name, "")), value, what=f"{name} in /metrics",
            hint=_cause_of_metrics(inputs.logs, values) or "the value that was logged last",
        )  # fmt: skip
    loss = values.get(("training_loss", ""), 0.0)
    require(
        loss != loss, f"training_loss in /metrics is {loss} after a loss that is not a number",
        NOT_FINITE_LEFT_OUT if loss in (after["loss"], 0.0) else "Export a number that is NaN as NaN.",
    )  # fmt: skip
    early = [name for name, _ in series(reply.first) if name.startswith("training_")]
    require_equal(early, [], what="training metrics in /metrics before any was logged")
    counters = [["monitor_samples_total", "counter"], ["monitor_seconds_total", "counter"]]
    what = "last two families in /metrics, and their types"
    require_equal(
        last_families(reply.text, 2),
        counters,
        what=what,
        hint="Yield the two counters that the docstring of collect() names.",
    )
    samples = values.get(("monitor_samples_total", ""))
    require_equal(
        samples, 2.0, what=f"monitor_samples_total after two samples and {len(inputs.logs)} calls of log_metrics",
        hint=ASKED if samples == 2 + len(inputs.logs) else "",
    )  # fmt: skip


def _cause_of_metrics(logs: Logs, values: Mapping[tuple[str, str], float]) -> Cause | None:
    """The mistake that leads to these training metrics: only the last call's, or a step that never falls."""
    steps = [float(step) for step, _ in logs]
    names = {name for name, _ in values if name.startswith("training_")}
    if names.isdisjoint({"training_accuracy_ratio", "training_samples_per_second", "training_learning_rate"}):
        return Cause(
            "earlier_metrics_forgotten",
            "Keep the latest value of every name in the snapshot: the metrics before, updated by those of this call.",
            mistake="A metric that is not in the last call is gone from Prometheus",
        )
    if values.get(("training_step", "")) == max(steps) > steps[-1]:
        return Cause(
            "step_never_falls",
            "Take the step of the call as it is. After a resume it is a smaller one.",
            mistake="A step that is smaller than the one before is not taken",
        )
    return None


def _judge_files(logs: Logs, reply: ExportedReply) -> None:
    """metrics.jsonl and TensorBoard's scalars."""
    lines = records(reply.jsonl)
    hint = "Write the line before log_metrics returns. After a crash the file is all that is left."
    require_equal(reply.lines, [1, 2, 3], what="lines in metrics.jsonl after one, two, three steps", hint=hint)
    require_equal([record["step"] for record in lines], [step for step, _ in logs], what="steps in metrics.jsonl")
    shown = {"nan": "NaN", "inf": "Infinity"}
    expected_metrics: list[dict[str, float | str]] = [
        {name: shown.get(value, value) if isinstance(value, str) else value for name, value in metrics.items()}
        for _, metrics in logs
    ]
    all_so_far = [functools.reduce(operator.or_, expected_metrics[: place + 1]) for place in range(len(logs))]
    actual_metrics = [record["metrics"] for record in lines]
    require_equal(
        actual_metrics, expected_metrics, what="metrics in metrics.jsonl",
        hint=Cause(
            "old_metrics_repeated",
            "Write a snapshot with the metrics of this call only. The snapshot itself keeps those of earlier calls.",
            mistake="Each line of metrics.jsonl repeats the metrics of earlier calls",
        )
        if actual_metrics == all_so_far
        else "Write one line per call, with the metrics of this call only.",
    )  # fmt: skip
    require_equal([length(record["gpus"]) for record in lines], [2, 2, 2], what="GPUs in each line of metrics.jsonl")
    actual = sorted((row for row in reply.scalars if row[0].startswith("training/")), key=str)
    expected = sorted(
        ((f"training/{name}", step, value) for step, metrics in logs for name, value in metrics.items()), key=str
    )
    names, expected_names = ([[tag, step] for tag, step, _ in rows] for rows in (actual, expected))
    require_equal(names, expected_names, what="scalars in TensorBoard, and steps")
    for (tag, step, value), (_, _, logged) in zip(actual, expected, strict=True):
        if isinstance(logged, str):
            require_equal(value, logged, what=f"scalar {tag} at step {step}")
        else:
            require_close(value, logged, relative=SINGLE, what=f"scalar {tag} at step {step}")
    if not _is_never_shut_down(reply):  # else another check says so
        require_equal(reply.left_open, 0, what="nvmlInit without nvmlShutdown after close(), by two monitors")
    require(
        not reply.answers, "the server still answers after close()",
        Cause("server_left_running", "Close the server in `close`.", mistake="The server still runs after close"),
    )  # fmt: skip


def _judge_ranks(submission: Submission, generator: InputGenerator) -> None:
    """Only rank 0 monitors."""
    inputs = cases.by_rank(generator)
    reply = submission.probe(inputs, device="cpu")
    nothing = {"starts of NVML": 0, "a folder": False, "an address": None, "snapshots": 0, "alerts": 0, "threads": 0}
    require_equal(reply.silent, nothing, what=f"what a monitor has if RANK is {inputs.rank} in the environment",
                      hint=Cause(
                          "every_rank_monitors",
                          "Let every method begin with a look at `active`. Only rank 0 monitors.",
                          mistake="Every rank monitors: one that is not rank 0 has files, a thread, a port or NVML",
                      ))  # fmt: skip
    require_equal(reply.started, 2, what=f"starts of NVML by two monitors with rank=0, if RANK is {inputs.rank}")
    others_loss = any(name == "training_loss" for name, _ in series(reply.idle_text))
    require_equal(
        [reply.one_registry, others_loss], [False, False],
        what="whether two monitors have one registry, and one of them the other's training_loss",
        hint=Cause(
            "one_registry_for_all",
            "Register with the monitor's own `registry`. Two monitors do not disturb each other.",
            mistake="Two monitors export through one registry",
        ),
    )  # fmt: skip
