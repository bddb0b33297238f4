"""Probes of Lab 5's monitor as it runs: when it asks the GPUs, and what happens if something next to it fails."""

from __future__ import annotations

import atexit
import contextlib
import io
import math
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import cast

from gradebox.sandbox.probe_loader import Student
from grader.lab5.monitoring.cases import (
    Background,
    BackgroundReply,
    Failing,
    FailingReply,
    FullMailbox,
    LeftBehind,
)
from grader.lab5.monitoring.probes.fake_nvml import FakeNvml
from grader.lab5.monitoring.probes.monitors import (
    MONITOR,
    NEVER,
    PATIENCE_SECONDS,
    history_of,
    latest_celsius,
    report_of,
    settled,
    snapshot_of,
    wait_for,
    without_alerts,
)
from grader.shared.probes.endings import ending
from grader.shared.probes.kept import function, gate, notes, started
from grader.shared.probes.support import StudentObject, plain
from grader.shared.probes.threads import running_threads
from labkit.monitoring import RULES, Alert

_SETTLED_SECONDS = 0.1
"""Ten intervals, in which each thread that samples has asked."""
_AT_ONCE_SECONDS, _TRIES = 0.5, 4
"""On a busy machine a call that waits for nobody may take longer, but not each time."""
_SLOW_ANSWER_SECONDS = 2.2
"""For how long a GPU does not answer: more than one or two seconds, which is what people wait for a thread."""


def background(student: Student, inputs: Background) -> BackgroundReply:
    """Who asks the GPUs, while metrics are logged, while a question takes long, and after the end.

    And whether the history comes to show that GPU 0 has got `celsius` degrees meanwhile.
    """
    nvml = FakeNvml(inputs.gpus)
    samples, logs, celsius = inputs.samples, inputs.logs, inputs.celsius
    holds_up = not _ends_by_itself(student, samples)
    module = without_alerts(student)
    before = running_threads()
    with contextlib.redirect_stderr(io.StringIO()):
        monitor = module.GPUMonitor(interval=0.01)
        here = threading.get_ident()
        wait_for(lambda: len(history_of(monitor)) >= samples)
        history = len(monitor.history)
        nvml.gpus[0]["celsius"] = celsius
        wait_for(lambda: latest_celsius(monitor.history) == celsius)
        latest = latest_celsius(monitor.history)
        elsewhere = sum(thread != here for thread in nvml.calls)
        before_logging = len([thread for thread in nvml.calls if thread == here])
        for step in range(logs):
            monitor.log_metrics(step, {"loss": 1.0})
        asked_by_logging = len([thread for thread in nvml.calls if thread == here]) - before_logging

        def log_once() -> None:
            nvml.exempt()
            monitor.log_metrics(logs, {"loss": 1.0})

        nvml.hold()
        reached = wait_for(lambda: bool(nvml.held))
        _settle(nvml)
        waiting = len(nvml.held)
        sampled = len(monitor.history)
        for _ in range(_TRIES):
            has_logged, begin = started(log_once), time.perf_counter()
            logged_meanwhile = has_logged(PATIENCE_SECONDS)
            if not logged_meanwhile or (at_once := time.perf_counter() - begin < _AT_ONCE_SECONDS):
                break
        logged_meanwhile = logged_meanwhile and at_once
        logged_at = plain(snapshot_of(monitor).time, "Snapshot.time") if logged_meanwhile else None
        _settle(nvml)
        # The monitor's own threads wait for answers; who asks now is somebody whom log_metrics has sent.
        asked_by_logging += len(nvml.held) - waiting
        nvml.release()
        has_logged(None)
        answered = wait_for(lambda: len(monitor.history) > sampled)
        sampled_at = plain(list(monitor.history)[sampled].time, "Snapshot.time in history") if answered else None
        closed_meanwhile = _closes_in_a_question(monitor, nvml)
        monitor.close()
        open_after = nvml.users
        snapshots = len(monitor.history)
        threads = len(running_threads() - before)
        at_end = len(nvml.calls)
        time.sleep(0.1)  # ten intervals, in which a thread that was left behind would ask again
        sampled_after_close = len(monitor.history) - snapshots
        monitor.close()
    return BackgroundReply(
        holds_up=holds_up,
        history=history,
        latest=latest,
        elsewhere=elsewhere,
        asked_by_logging=asked_by_logging,
        reached=reached,
        logged_meanwhile=logged_meanwhile,
        logged_at=logged_at,
        sampled_at=sampled_at,
        closed_meanwhile=closed_meanwhile,
        sampled_after_close=sampled_after_close,
        asked_after_close=len(nvml.calls) - at_end + nvml.questions_while_closed,
        threads_left=threads,
        left_open=open_after,
    )


def _ends_by_itself(student: Student, samples: int) -> bool:
    """Whether a program ends that fails while its monitor samples: threads may hold it up, and exit handlers."""
    if child := os.fork():
        ended = wait_for(lambda: os.waitpid(child, os.WNOHANG)[0] != 0)
        if not ended:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        return ended
    try:
        atexit._clear()  # those of this process
        monitor = without_alerts(student).GPUMonitor(interval=0.01)
        end = time.monotonic() + _SLOW_ANSWER_SECONDS
        while len(monitor.history) < samples and time.monotonic() < end:
            time.sleep(0.005)
        # What the interpreter does when a program ends, in this order.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    finally:
        os._exit(0)


def _settle(nvml: FakeNvml) -> None:
    """Wait until no further thread comes to ask, while no answer is given."""
    before = -1
    while len(nvml.held) != before:
        before = len(nvml.held)
        time.sleep(_SETTLED_SECONDS)


def _closes_in_a_question(monitor: StudentObject, nvml: FakeNvml) -> bool:
    """Close the monitor while its thread waits for an answer; whether close() returned, or shut NVML down, first."""
    nvml.hold()
    wait_for(lambda: bool(nvml.held))
    has_closed = started(monitor.close)
    early = has_closed(_SLOW_ANSWER_SECONDS) or nvml.users == 0
    nvml.release()
    has_closed(PATIENCE_SECONDS)
    return early


def failing(student: Student, inputs: Failing) -> FailingReply:
    """What is left if a monitor cannot begin, and what a training sees of an `on_alert` that raises or takes long."""
    nvml = FakeNvml(inputs.gpus)
    module, said, interval = student.module(MONITOR), io.StringIO(), inputs.interval
    cases: dict[str, LeftBehind] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(said):
        file = Path(folder, "file")
        file.write_text("no folder")
        import torch.utils.tensorboard  # noqa: F401  the threads that its import starts are nobody's

        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            options: dict[str, dict[str, object]] = {
                "a port that is taken": {"log_dir": Path(folder, "port"), "port": port, "interval": NEVER},
                "a log_dir that is a file": {"log_dir": file, "interval": NEVER},
                f"interval={interval}": {"interval": interval},
                "interval=0": {"interval": 0},
            }
            for name, arguments in options.items():
                before, users = running_threads(), nvml.users
                error = ending(partial(module.GPUMonitor, **arguments))
                cases[name] = LeftBehind(error=error, threads=settled(before), left_open=nvml.users - users)
    nvml.users = 0
    alerts = _with_a_full_mailbox(module, nvml, inputs.hot, inputs.mailbox)
    others_go_on, repeated = _beside_a_slow_mailer(module, nvml, inputs.hot)
    return FailingReply(
        cases=cases,
        alerts=alerts,
        others_go_on=others_go_on,
        repeated=repeated,
    )


_ON_ALERT = """
def on_alert(alert):
    raise RuntimeError(heard(alert))
"""


def _raising(note: Callable[[object], None], text: str) -> Callable[[Alert], None]:
    """An `on_alert` that raises; it belongs to no file, since a logged traceback shows the files of its frames.

    Only what it is called with itself is noted: `heard` is in its globals, where somebody could call it by hand, and
    have the note without the error.
    """
    names: dict[str, object] = {}
    exec(compile(_ON_ALERT, "<on_alert>", "exec"), names)
    on_alert = cast(FunctionType, names["on_alert"])
    code = on_alert.__code__

    @function
    def heard(alert: object) -> str:
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame.f_code is not code:
            frame = frame.f_back
        if frame is not None:
            note(alert)
        return text

    names["heard"] = heard
    return on_alert


def _with_a_full_mailbox(module: ModuleType, nvml: FakeNvml, hot: int, mailbox: int) -> FullMailbox:
    """An `on_alert` that raises, called by a training's thread and by the background's."""
    rules = [replace(rule, for_seconds=0.0) for rule in RULES if rule.name in ("GpuHot", "LossNotFinite")]
    (note, received), said = notes(), io.StringIO()
    threading.excepthook = lambda _: None
    with contextlib.redirect_stderr(said):
        monitor = module.GPUMonitor(interval=0.01, rules=rules, on_alert=_raising(note, f"mailbox {mailbox} is full"))
        try:
            error = ending(lambda: monitor.log_metrics(1, {"loss": math.nan}))
            nvml.gpus[0]["celsius"] = hot
            wait_for(lambda: any(getattr(alert, "rule", "") == "GpuHot" for alert in received()))
            samples = len(history_of(monitor))
            wait_for(lambda: len(monitor.history) >= samples + 3)
            more = len(monitor.history) - samples
        finally:
            nvml.gpus[0].pop("celsius")
            ending(monitor.close)
    alerts = [report_of(alert) for alert in received()]
    return FullMailbox(error=error, received=alerts, samples_later=more, said=said.getvalue())


def _beside_a_slow_mailer(module: ModuleType, nvml: FakeNvml, hot: int) -> tuple[bool | None, bool]:
    """Whether `log_metrics` returns while the sampling thread is in `on_alert`; None if no alert came.

    And whether it called `on_alert` itself, with the alert that is reported already.
    """
    rules = [replace(rule, for_seconds=0.0) for rule in RULES if rule.name == "GpuHot"]
    wait, is_reached, open_gate = gate(2 * PATIENCE_SECONDS)
    note, callers = notes()

    heard = function(note)

    def on_alert(_: Alert) -> None:
        heard(threading.get_ident())
        wait()

    monitor = module.GPUMonitor(interval=0.01, rules=rules, on_alert=on_alert)
    logging, logging_thread = notes()

    def log() -> None:
        logging(threading.get_ident())
        monitor.log_metrics(1, {"loss": 1.0})

    try:
        nvml.gpus[0]["celsius"] = hot
        if not wait_for(is_reached):
            return None, False
        has_logged = started(log)
        return has_logged(PATIENCE_SECONDS), not set(logging_thread()).isdisjoint(callers())
    finally:
        nvml.gpus[0].pop("celsius")
        open_gate()
        ending(monitor.close)
