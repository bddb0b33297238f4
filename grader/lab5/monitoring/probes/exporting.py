"""Probes of what Lab 5's monitor exports: to Prometheus, to TensorBoard, to a file; on which rank, and without NVML.

The monitor runs here as it would in a training; `sample` is called by the probe if it matters when.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from gradebox.sandbox.probe_loader import Student
from grader.lab5.monitoring.cases import (
    ByRank,
    ByRankReply,
    Exported,
    ExportedReply,
    Moments,
    MomentsReply,
    Timed,
    WithoutNvml,
    WithoutNvmlReply,
)
from grader.lab5.monitoring.probes.fake_nvml import FakeNvml
from grader.lab5.monitoring.probes.monitors import (
    MONITOR,
    NEVER,
    answers,
    history_of,
    metrics_of,
    monitored,
    scalars,
    scrape,
    snapshot_of,
)
from grader.shared.probes.kept import function, nap, notes
from grader.shared.probes.looks import exists, read_text, written_bytes
from grader.shared.probes.support import StudentObject, plain
from grader.shared.probes.threads import running_threads

_SHORTEST_MESSAGE = 8
"""Bytes."""
_MORE = 100
"""Samples and steps after which a monitor that complains now and then has done so."""
_ROUNDS = 5
"""Of calls that are timed: on a busy machine a thread now and then waits for longer than the calls take."""

_IDLE_SECONDS = 0.005, 0.02
"""Between a call that is timed and a look at the metrics, drawn between these."""


def exported(student: Student, inputs: Exported) -> ExportedReply:
    """Everything that a monitor exported: what Prometheus scrapes, TensorBoard's scalars, and metrics.jsonl."""
    nvml = FakeNvml(inputs.gpus)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        lines = Path(folder, "new", "metrics.jsonl")
        counts = []
        with monitored(student, log_dir=lines.parent, port=0, interval=NEVER) as monitor:
            first = scrape(monitor)
            monitor.sample()
            for step, metrics in inputs.logs:
                monitor.log_metrics(step, {name: float(value) for name, value in metrics.items()})
                counts.append((read_text(lines) or "").count("\n"))
            text = scrape(monitor)
            url = monitor.url
        with monitored(student, dcgm_names=True) as monitor:
            by_dcgm = metrics_of(monitor)
        return ExportedReply(
            by_dcgm=by_dcgm,
            first=first,
            text=text,
            jsonl=read_text(lines),
            lines=counts,
            scalars=scalars(Path(folder)),
            left_open=nvml.users,
            answers=answers(url),
        )


def moments(student: Student, inputs: Moments) -> MomentsReply:
    """Times of snapshots and of steps, and the seconds that a monitor says it took.

    Steps 7, 7 and 3 are logged, then a sample is taken. Then calls are timed: of `log_metrics`, also with `filed`
    metrics that are written to files, and of `sample`, in which each of the GPU's answers takes `question` seconds.
    """
    nvml = FakeNvml(inputs.gpus)
    steps: list[Timed] = []
    taken: list[Timed] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stderr(io.StringIO()),
        monitored(student, interval=NEVER) as monitor,
        monitored(student, log_dir=folder, interval=NEVER) as filing,
    ):
        for step in (7, 7, 3):
            begin = time.time()
            monitor.log_metrics(step, {"loss": torch.tensor(0.5)})
            now = snapshot_of(monitor)
            end = time.time()
            steps.append((begin, plain(now.step_time, "Snapshot.step_time"), end))
            taken.append((begin, plain(now.time, "Snapshot.time"), end))
            time.sleep(0.03)
        before, begin = len(history_of(monitor)), time.time()
        monitor.sample()
        now = snapshot_of(monitor)
        taken.append((begin, plain(now.time, "Snapshot.time"), time.time()))
        lengths = [before, len(history_of(monitor))]
        newest = monitor.history[-1] if lengths[1] else None
        in_history = [getattr(newest, "step", None), dict(getattr(newest, "metrics", {})).get("loss")]
        logs = inputs.logs

        def log() -> None:
            for step in range(logs):
                monitor.log_metrics(100 + step, {"loss": 1.0})

        many = {f"layer {index}": 1.0 for index in range(inputs.filed)}

        def log_many() -> None:
            filing.log_metrics(1, many)

        rounds = [[_timed(monitor, log) for _ in range(_ROUNDS)], [_timed(filing, log_many) for _ in range(_ROUNDS)]]
        nvml.question_seconds = inputs.question
        rounds.append([_timed(monitor, monitor.sample) for _ in range(_ROUNDS)])
    return MomentsReply(
        steps=steps, taken=taken, lengths=lengths, in_history=plain(in_history, "GPUMonitor.history"), rounds=rounds
    )


def _timed(monitor: StudentObject, call: Callable[[], object]) -> tuple[str, float, str]:
    """The monitor's metrics before a call, its seconds, and the metrics after it.

    Between the call and each look nothing is done for a while, longer than the call takes, which is no time of it.
    """
    text = metrics_of(monitor)
    nap(random.uniform(*_IDLE_SECONDS))()
    begin = time.perf_counter()
    call()
    took = time.perf_counter() - begin
    nap(random.uniform(*_IDLE_SECONDS) + random.uniform(1.0, 2.0) * took)()
    return text, took, metrics_of(monitor)


def by_rank(student: Student, inputs: ByRank) -> ByRankReply:
    """If RANK is not 0: a monitor that is given no rank, and two that are given rank 0."""
    nvml = FakeNvml(inputs.gpus)
    os.environ["RANK"] = str(inputs.rank)
    note, alerts = notes()
    before = running_threads()
    with tempfile.TemporaryDirectory() as base, contextlib.redirect_stderr(io.StringIO()):
        other = student.module(MONITOR).GPUMonitor(
            Path(base, "other"), port=0, interval=NEVER, on_alert=function(lambda alert: note(1))
        )
        other.sample()
        other.log_metrics(1, {"loss": math.nan})
        other.close()
        silent: dict[str, object] = {
            "starts of NVML": nvml.started,
            "a folder": exists(Path(base, "other")),
            "an address": plain(other.url, "GPUMonitor.url"),
            "snapshots": len(history_of(other)),
            "alerts": len(alerts()),
            "threads": len(running_threads() - before),
        }
        with monitored(student, rank=0) as logging, monitored(student, rank=0) as idle:
            logging.log_metrics(1, {"loss": 1.0})
            return ByRankReply(
                silent=silent,
                one_registry=logging.registry is idle.registry,
                idle_text=metrics_of(idle),
                started=nvml.started,
            )


def without_nvml(student: Student, inputs: WithoutNvml) -> WithoutNvmlReply:
    """What a monitor says and exports if NVML does not start, or (no `error`) starts and has no GPU."""
    nvml = FakeNvml([], error=inputs.error)
    said = io.StringIO()
    with (
        contextlib.redirect_stderr(said),
        contextlib.redirect_stdout(said),
        monitored(student) as monitor,
        _written_past_python() as written,
    ):
        said_first, before = said.getvalue(), written_bytes()
        for step, metrics in inputs.logs:
            monitor.sample()
            monitor.log_metrics(step, metrics)
        for _ in range(_MORE):
            monitor.sample()
            monitor.log_metrics(step, metrics)
        text = metrics_of(monitor)
        messages = [plain(message, "message") for message in (monitor.message, snapshot_of(monitor).message)]
        past_python, after = written(), written_bytes()
    hidden = 0 if before is None or after is None else after - before - len(past_python.encode())
    # A thread may be woken through a pipe, by a byte for each sample; a message is longer.
    if not past_python and hidden >= _SHORTEST_MESSAGE * (len(inputs.logs) + _MORE):
        past_python = f"{hidden} bytes, to a descriptor of its own"
    later = said.getvalue()[len(said_first) :] + past_python
    return WithoutNvmlReply(said=said_first, later=later, text=text, messages=messages, left_open=nvml.users)


@contextlib.contextmanager
def _written_past_python() -> Iterator[Callable[[], str]]:
    """A function that says what was written by the numbers of standard output and error, and not by `sys.stderr`."""
    with tempfile.TemporaryFile() as file:
        kept = {stream: os.dup(stream) for stream in (1, 2)}
        for stream in kept:
            os.dup2(file.fileno(), stream)
        try:
            yield lambda: os.pread(file.fileno(), 2**16, 0).decode(errors="replace")
        finally:
            for stream, descriptor in kept.items():
                os.dup2(descriptor, stream)
                os.close(descriptor)
