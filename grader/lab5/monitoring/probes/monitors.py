"""How the monitor's probes run a monitor of the submission's, and what they read of it."""

from __future__ import annotations

import contextlib
import http.client
import math
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from pathlib import Path
from types import ModuleType

from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric

from gradebox.sandbox.probe_loader import Student, WrongReturn
from grader.lab5.monitoring.cases import AlertReport
from grader.shared.probes.looks import files_below
from grader.shared.probes.support import StudentObject, finite_or_text, instance, plain
from grader.shared.probes.threads import running_threads
from labkit.monitoring import RULES, Alert, Rule, Snapshot

MONITOR, ALERTS = "lab5_production.monitor", "lab5_production.alerts"
NEVER = 3600.0
"""An interval in which the background thread does not get to a second sample."""
PATIENCE_SECONDS = 8.0
"""For what a thread does within milliseconds."""


class _NoAlerts:
    """An `AlertEngine` with which nothing fires."""

    def __init__(self, rules: Sequence[Rule] = RULES) -> None:
        self.rules = tuple(rules)

    def evaluate(self, snapshot: object) -> tuple[Alert, ...]:
        """None, ever."""
        return ()


def without_alerts(student: Student) -> ModuleType:
    """The student's monitor module, whose monitors need no alerts.py: a mistake there is charged where it shows."""
    module = student.module(MONITOR)
    module.AlertEngine = _NoAlerts  # type: ignore[attr-defined]
    return module


@contextlib.contextmanager
def monitored(student: Student, **options: object) -> Iterator[StudentObject]:
    """A monitor, which is closed at the end; by itself it has no arguments, as the assignment has it.

    No alerts without `on_alert`.
    """
    module = student.module(MONITOR) if "on_alert" in options else without_alerts(student)
    monitor = module.GPUMonitor(**options)
    try:
        yield monitor
    finally:
        monitor.close()


def snapshot_of(monitor: StudentObject) -> Snapshot:
    """Its latest snapshot."""
    return instance(monitor.snapshot(), Snapshot, "GPUMonitor.snapshot()")


def history_of(monitor: StudentObject) -> Sized:
    """Its latest snapshots."""
    return instance(getattr(monitor, "history", None), Sized, "GPUMonitor.history")  # type: ignore[type-abstract]


def metrics_of(monitor: StudentObject) -> str:
    """What Prometheus would get, without the server."""
    families = instance(monitor.collect(), Iterable, "GPUMonitor.collect()")  # type: ignore[type-abstract]
    for family in families:
        instance(family, Metric, "GPUMonitor.collect(), for each family,")
    return generate_latest(monitor.registry).decode("utf-8")


def scrape(monitor: StudentObject) -> str:
    """What Prometheus would get."""
    if not isinstance(monitor.url, str):
        raise WrongReturn(f"GPUMonitor(port=0).url is {monitor.url!r}, expected the server's address")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{monitor.url}/metrics", timeout=PATIENCE_SECONDS) as answer:
            return str(answer.read().decode("utf-8"))
    except (OSError, http.client.HTTPException) as error:
        metrics_of(monitor)  # what fails in the server's thread fails here too, and is reported
        raise WrongReturn(f"GPUMonitor's server gives no /metrics: {error!r}") from error


def answers(url: object) -> bool:
    """Whether there is a server at an address."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with contextlib.suppress(OSError), opener.open(f"{url}/metrics", timeout=1.0):
        return True
    return False


def scalars(folder: Path) -> list[tuple[str, int, float | str]]:
    """Tag, step and value of all scalars that TensorBoard's own reader finds; values that are not finite as texts."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util import tensor_util

    rows: list[tuple[str, int, float | str]] = []
    for name in files_below(folder):
        if not name.rpartition("/")[2].startswith("events.out.tfevents."):
            continue
        for event in EventFileLoader(f"{folder}/{name}").Load():
            for value in event.summary.value:
                number = float(tensor_util.make_ndarray(value.tensor).item())
                rows.append((value.tag, event.step, number if math.isfinite(number) else str(number)))
    return rows


def report_of(alert: object) -> AlertReport:
    """An alert that the submission raised."""
    if not isinstance(alert, Alert):
        raise WrongReturn(f"AlertEngine.evaluate() returned a {type(alert).__name__}, expected labkit.monitoring.Alert")
    return AlertReport(
        rule=plain(alert.rule, "Alert.rule"),
        gpu=plain(alert.gpu, "Alert.gpu"),
        severity=plain(alert.severity, "Alert.severity"),
        since=finite_or_text(alert.since, "Alert.since"),
        value=finite_or_text(alert.value, "Alert.value"),
        message=str(plain(alert.message, "Alert.message")),
    )


def latest_celsius(history: StudentObject) -> object:
    """What the latest snapshot says of GPU 0; None if it says nothing."""
    try:
        return plain(history[-1].gpus[0].temperature_celsius, "temperature_celsius in GPUMonitor.history")
    except (LookupError, TypeError, AttributeError):
        return None


def wait_for(condition: Callable[[], bool]) -> bool:
    """Wait until a condition holds, if it comes to hold soon; whether it does."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not (met := condition()) and time.monotonic() < end:
        time.sleep(0.005)
    return met


def settled(before: set[int]) -> int:
    """Threads more than before, those not counted that end soon."""
    end = time.monotonic() + PATIENCE_SECONDS / 4
    while (more := len(running_threads() - before)) and time.monotonic() < end:
        time.sleep(0.01)
    return more
