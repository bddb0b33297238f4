"""Probes of Lab 5's monitor: what it tells of GPUs that say what the check wants, and when it asks them.

The monitor runs here as it would in a training; `sample` is called by the probe where it matters when.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import math
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import torch
from prometheus_client import generate_latest

from gradebox.sandbox.student import WrongReturn
from grader.lab5.probes.fake_nvml import FakeNvml
from grader.shared.probes.endings import refused as is_refused
from grader.shared.probes.kept import notes
from grader.shared.probes.support import fields, finite_or_text, instance, plain, sequence
from labkit.monitoring import RULES, Alert, GpuReading, Snapshot

MONITOR, ALERTS = "lab5_production.monitor", "lab5_production.alerts"
_NEVER = 3600.0
"""An interval in which the background thread does not get to a second sample."""
_SLOW_ANSWER_SECONDS = 2.2
"""For how long a GPU does not answer: more than one or two seconds, which is what people wait for a thread."""
_PATIENCE_SECONDS = 8.0
"""For what a thread does within milliseconds."""


def exported(
    student: Any,
    *,
    gpus: Sequence[Mapping[str, Any]],
    logs: Sequence[tuple[int, Mapping[str, float | str]]],
    dcgm_names: bool = False,
    lost: Sequence[int] = (),
    rank: int | None = None,
) -> dict[str, Any]:
    """Everything that a monitor exported: what Prometheus scrapes, TensorBoard's scalars, and metrics.jsonl.

    `logs` are steps with their metrics ("nan" and "inf" are strings: JSON has none); `lost` GPUs are lost before the
    last of two samples.
    """
    nvml = FakeNvml(gpus)
    module = student.module(MONITOR)
    before = set(threading.enumerate())
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        named = {} if rank is None else {"rank": rank}
        monitor = module.GPUMonitor(folder, port=0, interval=_NEVER, dcgm_names=dcgm_names, **named)
        try:
            first = _scrape(monitor) if rank is None else ""
            nvml.lost.update(lost)
            monitor.sample()
            for step, metrics in logs:
                monitor.log_metrics(step, {name: float(value) for name, value in metrics.items()})
            text = _scrape(monitor) if rank is None else ""
            url = monitor.url
            threads = len(set(threading.enumerate()) - before)
        finally:
            monitor.close()
        lines = Path(folder, "metrics.jsonl")
        return {
            "first": first,
            "text": text,
            "jsonl": lines.read_text(encoding="utf-8") if lines.is_file() else None,
            "scalars": _scalars(Path(folder)),
            "files": sorted(path.name for path in Path(folder).rglob("*") if path.is_file()),
            "url": url,
            "threads": threads,
            "started": nvml.started,
            "left_open": nvml.users,
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
        generate_latest(monitor.registry)  # what fails in the server's thread fails here too, and is told
        raise WrongReturn(f"GPUMonitor's server gives no /metrics: {error!r}") from error


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


def without_nvml(
    student: Any, *, error: str | None, logs: Sequence[tuple[int, Mapping[str, float]]], at_start: bool = True
) -> dict[str, Any]:
    """What a monitor says and exports where NVML does not start, or (no `error`) starts and has no GPU.

    Not `at_start`: NVML starts, and then cannot say how many GPUs there are.
    """
    nvml = FakeNvml([], error=error, at_start=at_start)
    module = student.module(MONITOR)
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        monitor = module.GPUMonitor(folder, port=0, interval=_NEVER)
        try:
            said_first = said.getvalue()
            for step, metrics in logs:
                monitor.sample()
                monitor.log_metrics(step, metrics)
            text = _scrape(monitor)
            message = plain(monitor.message, "GPUMonitor.message")
        finally:
            monitor.close()
        later = said.getvalue()[len(said_first) :]
        lines = Path(folder, "metrics.jsonl").read_text(encoding="utf-8")
    return {
        "said": said_first,
        "later": later,
        "text": text,
        "jsonl": lines,
        "message": message,
        "left_open": nvml.users,
    }


def background(
    student: Any, *, gpus: Sequence[Mapping[str, Any]], samples: int, logs: int, celsius: int
) -> dict[str, Any]:
    """Who asks the GPUs, while metrics are logged, while a question takes long, and after the end.

    And whether the history comes to show that GPU 0 has got `celsius` degrees meanwhile.
    """
    nvml = FakeNvml(gpus)
    module = student.module(MONITOR)
    before = set(threading.enumerate())
    with contextlib.redirect_stderr(io.StringIO()):
        monitor = module.GPUMonitor(interval=0.01)
        here = threading.get_ident()
        instance(monitor.history, Sized, "GPUMonitor.history")
        _wait_for(lambda: len(monitor.history) >= samples)
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
    """What the latest snapshot says of GPU 0; None where it says nothing."""
    try:
        return plain(history[-1].gpus[0].temperature_celsius, "temperature_celsius in GPUMonitor.history")
    except (LookupError, TypeError, AttributeError):
        return None


def evaluate(student: Any, *, rules: Mapping[str, Mapping[str, Any]], snapshots: Sequence[Any]) -> dict[str, Any]:
    """The alerts of one engine at one snapshot after the other; `rules` changes thresholds and times by rule."""
    engine = student.module(ALERTS).AlertEngine([replace(rule, **rules.get(rule.name, {})) for rule in RULES])
    told = []
    unknown = replace(RULES[0], name="GpuIsTired")
    refused = is_refused(lambda: student.module(ALERTS).AlertEngine([unknown]).evaluate(Snapshot(time=0.0)))
    for given in snapshots:
        gpus = tuple(GpuReading(**{**gpu, **_tuples(gpu)}) for gpu in given.get("gpus", []))
        metrics = {name: float(value) for name, value in given.get("metrics", {}).items()}
        snapshot = Snapshot(**{**given, "gpus": gpus, "metrics": metrics})
        told.append([_alert(alert) for alert in sequence(engine.evaluate(snapshot), "AlertEngine.evaluate()")])
    return {"alerts": told, "refused": refused}


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
    module = student.module(MONITOR)
    rules = [replace(rule, for_seconds=0.0) for rule in RULES if rule.name in ("GpuHot", "LossNotFinite")]
    on_alert, told = notes()
    counts: list[int] = []
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        monitor = module.GPUMonitor(folder, interval=_NEVER, rules=rules, on_alert=on_alert)
        for step, values in enumerate(celsius):
            for index, value in enumerate(values):
                nvml.gpus[index]["celsius"] = value
            monitor.sample()
            monitor.log_metrics(step, {"loss": math.nan if lost[step] else 1.0})
            counts.append(len(told()))
        snapshot = instance(monitor.snapshot(), Snapshot, "GPUMonitor.snapshot()")
        firing = [
            [_alert(alert)[name] for name in ("rule", "gpu")] for alert in sequence(snapshot.alerts, "Snapshot.alerts")
        ]
        monitor.close()
        lines = Path(folder, "metrics.jsonl").read_text(encoding="utf-8")
    return {"told": [_alert(alert) for alert in told()], "counts": counts, "firing": firing, "jsonl": lines}


def on_this_device(student: Any, *, work: int) -> dict[str, Any]:
    """What a monitor says of the device that this grading runs on, after some products.

    On a real GPU `nvml` is what NVML itself says: how many GPUs there are, and the watts of the first; None where it
    does not tell them.
    """
    monitor = student.module(MONITOR).GPUMonitor(interval=_NEVER)
    matrix = torch.ones(work, work, device=student.device)
    for _ in range(50):
        matrix @ matrix
    torch.cuda.synchronize()
    monitor.sample()
    snapshot = instance(monitor.snapshot(), Snapshot, "GPUMonitor.snapshot()")
    monitor.close()
    gpus = sequence(snapshot.gpus, "Snapshot.gpus")
    nvml = _nvml() if student.gpu is None else {"gpus": 1, "watts": None}
    if not gpus and nvml["gpus"]:
        raise WrongReturn("GPUMonitor.snapshot() has no GPU on a machine with one, after sample()")
    reading = fields(gpus[0], GpuReading, "Snapshot.gpus[0]") if gpus else {}
    return {"reading": reading, "total_bytes": torch.cuda.mem_get_info()[1], "nvml": nvml}


def _nvml() -> dict[str, Any]:
    """How many GPUs NVML finds, 0 where it does not start, and the watts of the first, None where it has none."""
    try:
        pynvml.nvmlInit()
        found: dict[str, Any] = {"gpus": int(pynvml.nvmlDeviceGetCount()), "watts": None}
    except pynvml.NVMLError:
        return {"gpus": 0, "watts": None}
    with contextlib.suppress(pynvml.NVMLError):
        found["watts"] = pynvml.nvmlDeviceGetPowerUsage(pynvml.nvmlDeviceGetHandleByIndex(0)) / 1e3
    return found
