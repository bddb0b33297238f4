"""Probes of Lab 5's monitor: what it exports, when it asks the GPUs, and what happens if something next to it fails.

The monitor runs here as it would in a training; `sample` is called by the probe if it matters when.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import math
import os
import socket
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric

from gradebox.sandbox.probe_loader import WrongReturn
from grader.lab5.probes.fake_nvml import FakeNvml
from grader.shared.probes.endings import ending
from grader.shared.probes.endings import refused as is_refused
from grader.shared.probes.kept import notes
from grader.shared.probes.support import finite_or_text, instance, plain, sequence
from labkit.monitoring import RULES, Alert, GpuReading, Snapshot

MONITOR, ALERTS = "lab5_production.monitor", "lab5_production.alerts"
_NEVER = 3600.0
"""An interval in which the background thread does not get to a second sample."""
_SLOW_ANSWER_SECONDS = 2.2
"""For how long a GPU does not answer: more than one or two seconds, which is what people wait for a thread."""
_PATIENCE_SECONDS = 8.0
"""For what a thread does within milliseconds."""
_ROUNDS = 5
"""Of calls that are timed: on a busy machine a thread now and then waits for longer than the calls take."""


class _NoAlerts:
    """An `AlertEngine` with which nothing fires."""

    def __init__(self, rules: Sequence[Any] = RULES) -> None:
        self.rules = tuple(rules)

    def evaluate(self, snapshot: Any) -> tuple[Any, ...]:
        """None, ever."""
        return ()


def without_alerts(student: Any) -> Any:
    """The student's monitor module, whose monitors need no alerts.py: a mistake there is charged where it shows."""
    module = student.module(MONITOR)
    module.AlertEngine = _NoAlerts
    return module


@contextlib.contextmanager
def monitored(student: Any, **options: Any) -> Iterator[Any]:
    """A monitor, which is closed at the end; by itself it has no arguments, as the assignment has it.

    No alerts without `on_alert`.
    """
    module = student.module(MONITOR) if "on_alert" in options else without_alerts(student)
    monitor = module.GPUMonitor(**options)
    try:
        yield monitor
    finally:
        monitor.close()


def snapshot_of(monitor: Any) -> Any:
    return instance(monitor.snapshot(), Snapshot, "GPUMonitor.snapshot()")


def history_of(monitor: Any) -> Any:
    return instance(getattr(monitor, "history", None), Sized, "GPUMonitor.history")


def exported(
    student: Any, *, gpus: Sequence[Mapping[str, Any]], logs: Sequence[tuple[int, Mapping[str, float | str]]]
) -> dict[str, Any]:
    """Everything that a monitor exported: what Prometheus scrapes, TensorBoard's scalars, and metrics.jsonl.

    `logs` are steps with their metrics ("nan" and "inf" are strings: JSON has none).
    """
    nvml = FakeNvml(gpus)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        lines = Path(folder, "new", "metrics.jsonl")
        counts = []
        with monitored(student, log_dir=lines.parent, port=0, interval=_NEVER) as monitor:
            first = _scrape(monitor)
            monitor.sample()
            for step, metrics in logs:
                monitor.log_metrics(step, {name: float(value) for name, value in metrics.items()})
                counts.append(lines.read_text(encoding="utf-8").count("\n") if lines.is_file() else 0)
            text = _scrape(monitor)
            url = monitor.url
        with monitored(student, dcgm_names=True) as monitor:
            by_dcgm = _text(monitor)
        return {
            "by_dcgm": by_dcgm,
            "first": first,
            "text": text,
            "jsonl": lines.read_text(encoding="utf-8") if lines.is_file() else None,
            "lines": counts,
            "scalars": _scalars(Path(folder)),
            "left_open": nvml.users,
            "answers": _answers(url),
        }


def _scrape(monitor: Any) -> str:
    """What Prometheus would get."""
    if not isinstance(monitor.url, str):
        raise WrongReturn(f"GPUMonitor(port=0).url is {monitor.url!r}, expected the server's address")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{monitor.url}/metrics", timeout=_PATIENCE_SECONDS) as answer:
            return str(answer.read().decode("utf-8"))
    except (OSError, http.client.HTTPException) as error:
        _text(monitor)  # what fails in the server's thread fails here too, and is reported
        raise WrongReturn(f"GPUMonitor's server gives no /metrics: {error!r}") from error


def _answers(url: Any) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with contextlib.suppress(OSError), opener.open(f"{url}/metrics", timeout=1.0):
        return True
    return False


def _scalars(folder: Path) -> list[Any]:
    """[tag, step, value] of all scalars that TensorBoard's own reader finds; numbers that are not finite as strings."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util import tensor_util

    found = []
    for path in sorted(folder.rglob("events.out.tfevents.*")):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                number = float(tensor_util.make_ndarray(value.tensor).item())
                found.append([value.tag, event.step, number if math.isfinite(number) else str(number)])
    return found


def moments(student: Any, *, gpus: Sequence[Mapping[str, Any]], logs: int, question: float) -> dict[str, Any]:
    """Times of snapshots and of steps, and the seconds that a monitor says it took.

    Steps 7, 7 and 3 are logged, then a sample is taken. Each of the GPU's answers takes `question` seconds in one of
    two more samples.
    """
    nvml = FakeNvml(gpus)
    steps, taken = [], []
    with contextlib.redirect_stderr(io.StringIO()), monitored(student, interval=_NEVER) as monitor:
        for step in (7, 7, 3):
            begin = time.time()
            monitor.log_metrics(step, {"loss": torch.tensor(0.5)})
            now = snapshot_of(monitor)
            end = time.time()
            steps.append([begin, plain(now.step_time, "Snapshot.step_time"), end])
            taken.append([begin, plain(now.time, "Snapshot.time"), end])
            time.sleep(0.03)
        before, begin = len(history_of(monitor)), time.time()
        monitor.sample()
        now = snapshot_of(monitor)
        taken.append([begin, plain(now.time, "Snapshot.time"), time.time()])
        lengths = [before, len(history_of(monitor))]

        def log() -> None:
            for step in range(logs):
                monitor.log_metrics(100 + step, {"loss": 1.0})

        rounds: list[list[Any]] = []
        for call in (log, monitor.sample):
            nvml.gate = (lambda: time.sleep(question)) if call != log else None
            rounds.append([])
            for _ in range(_ROUNDS):
                text, begin = _text(monitor), time.perf_counter()
                call()
                rounds[-1].append([text, time.perf_counter() - begin, _text(monitor)])
    return {"steps": steps, "taken": taken, "lengths": lengths, "rounds": rounds}


def _text(monitor: Any) -> str:
    for family in instance(monitor.collect(), Iterable, "GPUMonitor.collect()"):
        instance(family, Metric, "GPUMonitor.collect(), for each family,")
    return generate_latest(monitor.registry).decode("utf-8")


def by_rank(student: Any, *, gpus: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """If RANK is 1: a monitor that is given no rank, and two that are given rank 0."""
    nvml = FakeNvml(gpus)
    os.environ["RANK"] = "1"
    note, alerts = notes()
    before = set(threading.enumerate())
    with tempfile.TemporaryDirectory() as base, contextlib.redirect_stderr(io.StringIO()):
        other = student.module(MONITOR).GPUMonitor(
            Path(base, "other"), port=0, interval=_NEVER, on_alert=lambda alert: note(1)
        )
        other.sample()
        other.log_metrics(1, {"loss": math.nan})
        other.close()
        silent = {
            "starts of NVML": nvml.started,
            "a folder": Path(base, "other").exists(),
            "an address": plain(other.url, "GPUMonitor.url"),
            "snapshots": len(history_of(other)),
            "alerts": len(alerts()),
            "threads": len(set(threading.enumerate()) - before),
        }
        with monitored(student, rank=0) as one, monitored(student, rank=0) as two:
            one.log_metrics(1, {"loss": 1.0})
            shared = [one.registry is two.registry, "training_loss" in _text(two)]
            started = nvml.started
    return {"silent": silent, "started": started, "shared": shared}


def without_nvml(student: Any, *, error: str | None, logs: Sequence[tuple[int, Mapping[str, float]]]) -> dict[str, Any]:
    """What a monitor says and exports if NVML does not start, or (no `error`) starts and has no GPU."""
    nvml = FakeNvml([], error=error)
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said), monitored(student) as monitor:
        said_first = said.getvalue()
        for step, metrics in logs:
            monitor.sample()
            monitor.log_metrics(step, metrics)
        text = _text(monitor)
        messages = [plain(each.message, "message") for each in (monitor, snapshot_of(monitor))]
    later = said.getvalue()[len(said_first) :]
    return {"said": said_first, "later": later, "text": text, "messages": messages, "left_open": nvml.users}


def background(
    student: Any, *, gpus: Sequence[Mapping[str, Any]], samples: int, logs: int, celsius: int
) -> dict[str, Any]:
    """Who asks the GPUs, while metrics are logged, while a question takes long, and after the end.

    And whether the history comes to show that GPU 0 has got `celsius` degrees meanwhile.
    """
    nvml = FakeNvml(gpus)
    module = without_alerts(student)
    before = set(threading.enumerate())
    with contextlib.redirect_stderr(io.StringIO()):
        monitor = module.GPUMonitor(interval=0.01)
        here = threading.get_ident()
        holding_up = sum(not thread.daemon for thread in set(threading.enumerate()) - before)
        _wait_for(lambda: len(history_of(monitor)) >= samples)
        history = len(monitor.history)
        nvml.gpus[0]["celsius"] = celsius
        followed = history >= samples and _wait_for(lambda: _latest_celsius(monitor.history) == celsius)
        elsewhere = sum(thread != here for thread in nvml.calls)
        asked = len([thread for thread in nvml.calls if thread == here])
        for step in range(logs):
            monitor.log_metrics(step, {"loss": 1.0})
        asked_by_logging = len([thread for thread in nvml.calls if thread == here]) - asked
        inside, go_on = threading.Event(), threading.Event()
        logger = threading.Thread(target=monitor.log_metrics, args=(logs, {"loss": 1.0}), daemon=True)

        def wait_inside() -> None:
            if threading.get_ident() != logger.ident:
                inside.set()
                go_on.wait(3 * _PATIENCE_SECONDS)

        nvml.gate = wait_inside
        reached = inside.wait(_PATIENCE_SECONDS)
        logger.start()
        logger.join(_PATIENCE_SECONDS)
        logged_meanwhile = not logger.is_alive()
        nvml.gate = None
        go_on.set()
        logger.join()
        closed_meanwhile = _closes_in_a_question(monitor, nvml)
        monitor.close()
        open_after = nvml.users
        snapshots = len(monitor.history)
        threads = len(set(threading.enumerate()) - before)
        at_end = len(nvml.calls)
        time.sleep(0.1)  # ten intervals, in which a thread that was left behind would ask again
        later = len(monitor.history) - snapshots
        monitor.close()
    return {
        "holding_up": holding_up,
        "history": history,
        "followed": followed,
        "elsewhere": elsewhere,
        "asked_by_logging": asked_by_logging,
        "reached": reached,
        "logged_meanwhile": logged_meanwhile,
        "closed_meanwhile": closed_meanwhile,
        "sampled_after_close": later,
        "asked_after_close": len(nvml.calls) - at_end + nvml.asked_while_closed,
        "threads_left": threads,
        "left_open": open_after,
    }


def _closes_in_a_question(monitor: Any, nvml: FakeNvml) -> bool:
    """Close the monitor while its thread waits for an answer; whether close() returned, or shut NVML down, first."""
    inside, go_on = threading.Event(), threading.Event()

    def wait_inside() -> None:
        inside.set()
        go_on.wait(3 * _PATIENCE_SECONDS)

    nvml.gate = wait_inside
    inside.wait(_PATIENCE_SECONDS)
    closer = threading.Thread(target=monitor.close, daemon=True)
    closer.start()
    closer.join(_SLOW_ANSWER_SECONDS)
    early = not closer.is_alive() or nvml.users == 0
    nvml.gate = None
    go_on.set()
    closer.join(_PATIENCE_SECONDS)
    return early


def _wait_for(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + _PATIENCE_SECONDS
    while not (met := condition()) and time.monotonic() < end:
        time.sleep(0.005)
    return met


def _latest_celsius(history: Any) -> Any:
    """What the latest snapshot says of GPU 0; None if it says nothing."""
    try:
        return plain(history[-1].gpus[0].temperature_celsius, "temperature_celsius in GPUMonitor.history")
    except (LookupError, TypeError, AttributeError):
        return None


def evaluate(student: Any, *, rules: Mapping[str, Mapping[str, Any]], snapshots: Sequence[Any]) -> dict[str, Any]:
    """The alerts of one engine at one snapshot after the other; `rules` changes thresholds and times by rule."""
    engine = student.module(ALERTS).AlertEngine([replace(rule, **rules.get(rule.name, {})) for rule in RULES])
    alerts = []
    unknown = replace(RULES[0], name="GpuIsTired")
    refused = is_refused(lambda: student.module(ALERTS).AlertEngine([unknown]).evaluate(Snapshot(time=0.0)))
    for given in snapshots:
        gpus = tuple(GpuReading(**{**gpu, **_tuples(gpu)}) for gpu in given.get("gpus", []))
        metrics = {name: float(value) for name, value in given.get("metrics", {}).items()}
        snapshot = Snapshot(**{**given, "gpus": gpus, "metrics": metrics})
        alerts.append([_alert(alert) for alert in sequence(engine.evaluate(snapshot), "AlertEngine.evaluate()")])
    return {"alerts": alerts, "refused": refused}


def _tuples(gpu: Mapping[str, Any]) -> dict[str, Any]:
    reasons = gpu.get("throttle_reasons")
    return {} if reasons is None else {"throttle_reasons": tuple(reasons)}


def _alert(alert: Any) -> dict[str, Any]:
    if not isinstance(alert, Alert):
        raise WrongReturn(f"AlertEngine.evaluate() returned a {type(alert).__name__}, expected labkit.monitoring.Alert")
    return {
        "rule": plain(alert.rule, "Alert.rule"),
        "gpu": plain(alert.gpu, "Alert.gpu"),
        "severity": plain(alert.severity, "Alert.severity"),
        "since": finite_or_text(alert.since, "Alert.since"),
        "value": finite_or_text(alert.value, "Alert.value"),
        "message": str(plain(alert.message, "Alert.message")),
    }


def raised(
    student: Any, *, gpus: Sequence[Mapping[str, Any]], celsius: Sequence[Sequence[float]], lost: Sequence[bool]
) -> dict[str, Any]:
    """Which alerts a monitor hands to `on_alert`, after each sample of GPUs that get hot and cool down.

    `celsius` has the degrees of all GPUs at each step. The loss is not a number at the steps where it is `lost`.
    """
    nvml = FakeNvml(gpus)
    rules = [replace(rule, for_seconds=0.0) for rule in RULES if rule.name in ("GpuHot", "LossNotFinite")]
    on_alert, received = notes()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        with monitored(student, log_dir=folder, rules=rules, on_alert=on_alert) as monitor:
            for step, values in enumerate(celsius):
                for index, value in enumerate(values):
                    nvml.gpus[index]["celsius"] = value
                monitor.sample()
                monitor.log_metrics(step, {"loss": math.nan if lost[step] else 1.0})
            alerts = sequence(snapshot_of(monitor).alerts, "Snapshot.alerts")
            firing = [[_alert(alert)[name] for name in ("rule", "gpu")] for alert in alerts]
        lines = Path(folder, "metrics.jsonl").read_text(encoding="utf-8")
    return {"received": [_alert(alert) for alert in received()], "firing": firing, "jsonl": lines}


def failing(student: Any, *, gpus: Sequence[Mapping[str, Any]], interval: float, hot: int) -> dict[str, Any]:
    """What is left if a monitor cannot begin, and what a training sees of an `on_alert` that raises or takes long."""
    nvml = FakeNvml(gpus)
    module, said = student.module(MONITOR), io.StringIO()
    cases: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(said):
        file = Path(folder, "file")
        file.write_text("no folder")
        import torch.utils.tensorboard  # noqa: F401  the threads that its import starts are nobody's

        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            options: dict[str, dict[str, Any]] = {
                "a port that is taken": {"log_dir": Path(folder, "port"), "port": port, "interval": _NEVER},
                "a log_dir that is a file": {"log_dir": file, "interval": _NEVER},
                f"interval={interval}": {"interval": interval},
                "interval=0": {"interval": 0},
            }
            for name, given in options.items():
                before, users = set(threading.enumerate()), nvml.users
                error = ending(partial(module.GPUMonitor, **given))
                cases[name] = {"error": error, "threads": _settled(before), "left_open": nvml.users - users}
    nvml.users = 0
    return {
        "cases": cases,
        "alerts": _with_a_full_mailbox(module, nvml, hot),
        "others_go_on": _beside_a_slow_mailer(module, nvml, hot),
    }


def _settled(before: set[threading.Thread]) -> int:
    """Threads more than before, those not counted that end soon."""
    end = time.monotonic() + _PATIENCE_SECONDS / 4
    while (more := len(set(threading.enumerate()) - before)) and time.monotonic() < end:
        time.sleep(0.01)
    return more


_ON_ALERT = """
def on_alert(alert):
    note(alert.rule)
    raise RuntimeError("the mailbox is full")
"""


def _raising(note: Callable[[Any], None]) -> Callable[[Any], None]:
    """An `on_alert` that raises; it belongs to no file, since a logged traceback shows the files of its frames."""
    names: dict[str, Any] = {"note": note}
    exec(compile(_ON_ALERT, "<on_alert>", "exec"), names)
    on_alert: Callable[[Any], None] = names["on_alert"]
    return on_alert


def _with_a_full_mailbox(module: Any, nvml: FakeNvml, hot: int) -> dict[str, Any]:
    """An `on_alert` that raises, called by a training's thread and by the background's."""
    rules = [replace(rule, for_seconds=0.0) for rule in RULES if rule.name in ("GpuHot", "LossNotFinite")]
    (note, received), said = notes(), io.StringIO()
    threading.excepthook = lambda _: None
    with contextlib.redirect_stderr(said):
        monitor = module.GPUMonitor(interval=0.01, rules=rules, on_alert=_raising(note))
        try:
            error = ending(lambda: monitor.log_metrics(1, {"loss": math.nan}))
            nvml.gpus[0]["celsius"] = hot
            _wait_for(lambda: "GpuHot" in received())
            samples = len(history_of(monitor))
            _wait_for(lambda: len(monitor.history) >= samples + 3)
            more = len(monitor.history) - samples
        finally:
            nvml.gpus[0].pop("celsius")
            ending(monitor.close)
    rules_received = sorted({str(plain(rule, "Alert.rule")) for rule in received()})
    return {"error": error, "received": rules_received, "samples_later": more, "said": said.getvalue()}


def _beside_a_slow_mailer(module: Any, nvml: FakeNvml, hot: int) -> bool | None:
    """Whether `log_metrics` returns while the sampling thread is in `on_alert`; None if no alert came."""
    rules = [replace(rule, for_seconds=0.0) for rule in RULES if rule.name == "GpuHot"]
    mailing, mailed, logged = threading.Event(), threading.Event(), threading.Event()

    def on_alert(_: Any) -> None:
        mailing.set()
        mailed.wait(2 * _PATIENCE_SECONDS)

    monitor = module.GPUMonitor(interval=0.01, rules=rules, on_alert=on_alert)

    def log() -> None:
        monitor.log_metrics(1, {"loss": 1.0})
        logged.set()

    try:
        nvml.gpus[0]["celsius"] = hot
        if not mailing.wait(_PATIENCE_SECONDS):
            return None
        threading.Thread(target=log, daemon=True).start()
        return logged.wait(_PATIENCE_SECONDS)
    finally:
        nvml.gpus[0].pop("celsius")
        mailed.set()
        ending(monitor.close)
