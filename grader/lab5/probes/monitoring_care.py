"""Probes of what Lab 5's monitor does when something beside it goes wrong, and of what it counts meanwhile.

A port that is taken, a disk that is full, somebody's `on_alert` that raises, a GPU without a handle, another rank.
"""

from __future__ import annotations

import contextlib
import io
import os
import socket
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from prometheus_client import generate_latest

from grader.lab5.probes.fake_nvml import FakeNvml
from grader.lab5.probes.monitoring import MONITOR
from grader.shared.probes.kept import notes
from grader.shared.probes.ranks import disk_full_after
from grader.shared.probes.support import fields, instance, plain, sequence
from labkit.monitoring import RULES, GpuReading, Snapshot

READINGS, EXPORTING = "lab5_production.gpu_readings", "lab5_production.exporting"
_NEVER = 3600.0
_PATIENCE_SECONDS = 8.0


def _failure(call: Callable[[], Any]) -> str:
    """The error's name; "" where there was none."""
    try:
        call()
    except NotImplementedError:
        raise
    except Exception as error:
        return "OSError" if isinstance(error, OSError) else type(error).__name__
    return ""


def _settled(before: set[threading.Thread]) -> int:
    """Threads more than before, those not counted that end soon."""
    end = time.monotonic() + _PATIENCE_SECONDS / 4
    while (more := len(set(threading.enumerate()) - before)) and time.monotonic() < end:
        time.sleep(0.01)
    return more


def refused(student: Any, *, gpus: Sequence[Mapping[str, Any]], interval: float, losing: int) -> dict[str, Any]:
    """What is left where a monitor cannot begin: a port that is taken, a folder that is a file, an `interval`.

    And what a reader says of GPUs of which some have no handle and one (`losing`) is lost in the middle of a reading,
    before and after its end; and monitors of two ranks.
    """
    nvml = FakeNvml(gpus)
    module = student.module(MONITOR)
    cases: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        file = Path(folder, "file")
        file.write_text("no folder")
        import torch.utils.tensorboard  # noqa: F401  what it starts when it is imported is nobody's

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
                error = _failure(partial(module.GPUMonitor, **given))
                cases[name] = {"error": error, "threads": _settled(before), "left_open": nvml.users - users}
        nvml.users = 0
        reader = student.module(READINGS).GpuReader()
        readings = _readings(reader)
        lost = _lost_while_read(reader, nvml, losing)
        reader.close()
        reader.close()
        after = len(sequence(reader.read(), "GpuReader.read() after close()"))
        ranks = _by_rank(module, nvml, Path(folder))
    unit = _failure(lambda: student.module(READINGS).base_value("furlongs", 1.0))
    return {
        "unit": unit,
        "cases": cases,
        "readings": readings,
        "lost": lost,
        "after": after,
        "left_open": nvml.users,
        "ranks": ranks,
    }


def _readings(reader: Any) -> list[dict[str, Any]]:
    return [fields(each, GpuReading, "GpuReader.read()") for each in sequence(reader.read(), "GpuReader.read()")]


def _lost_while_read(reader: Any, nvml: FakeNvml, index: int) -> list[dict[str, Any] | None]:
    """The readings of a GPU that is lost at once, after one of its answers, after two... and that comes back each time.

    As many as there are answers in a whole reading; None where a reading has left it out.
    """
    many = 1000
    nvml.answers_left[index] = many
    reader.read()
    found: list[dict[str, Any] | None] = []
    for answers in range(many - nvml.answers_left[index]):
        nvml.answers_left[index] = answers
        found.append(next((each for each in _readings(reader) if each["index"] == index), None))
        nvml.lost.discard(index)
    del nvml.answers_left[index]
    return found


def _by_rank(module: Any, nvml: FakeNvml, folder: Path) -> dict[str, Any]:
    """Where RANK is 1: a monitor that is told nothing, and one that is told to be of rank 0."""
    os.environ["RANK"] = "1"
    started = nvml.started
    try:
        other = module.GPUMonitor(folder / "other", port=0, interval=_NEVER)
        other.sample()
        other.log_metrics(1, {"loss": 1.0})
        other.close()
        silent = [nvml.started - started, (folder / "other").exists(), plain(other.url, "GPUMonitor.url")]
        with module.GPUMonitor(interval=_NEVER, rank=0) as one, module.GPUMonitor(interval=_NEVER, rank=0) as two:
            told = nvml.started - started - silent[0]
            one.log_metrics(1, {"loss": 1.0})
            shared = [one.registry is two.registry, "training_loss" in _text(two)]
    finally:
        del os.environ["RANK"]
    return {"silent": silent, "told": told, "shared": shared}


def unharmed(
    student: Any, *, gpus: Sequence[Mapping[str, Any]], hot: int, losses: Sequence[float], logs: int, question: float
) -> dict[str, Any]:
    """Whether a training goes on when the disk is full and when `on_alert` raises; and what is counted of whom.

    Each of the GPU's answers takes `question` seconds while it is sampled once. GPU 0 gets `hot`.
    """
    nvml = FakeNvml(gpus)
    module = student.module(MONITOR)
    said = io.StringIO()
    seen: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        lines = Path(folder, "metrics.jsonl")
        lines.write_text('{"earlier": true}\n', encoding="utf-8")
        monitor = module.GPUMonitor(folder, port=0, interval=_NEVER)
        url = monitor.url
        seen["moments"] = _moments(monitor, losses)
        seen["costs"] = _costs(monitor, nvml, logs, question)
        before = said.getvalue()
        seen["lines"] = lines.read_text(encoding="utf-8").splitlines()[0]
        seen["full"] = []
        with disk_full_after(lines.stat().st_size + 20):
            for step in range(3):
                error = _failure(partial(monitor.log_metrics, 1000 + step, {"loss": losses[0] + step}))
                told = said.getvalue()[len(before) :]
                before += told
                seen["full"].append({"error": error, "said": told})
            seen["after_full"] = _text(monitor)
            error = _failure(monitor.close)
        seen["closed"] = {"error": error, "answers": _answers(url)}
        seen["record"] = student.module(EXPORTING).jsonl_line(Snapshot(time=1.5, metrics={}))
    seen["alerts"] = _with_a_full_mailbox(module, nvml, hot, said)
    return seen


def _text(monitor: Any) -> str:
    return generate_latest(monitor.registry).decode("utf-8")


def _answers(url: Any) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with contextlib.suppress(OSError), opener.open(f"{url}/metrics", timeout=1.0):
        return True
    return False


def _moments(monitor: Any, losses: Sequence[float]) -> dict[str, Any]:
    """When the step is said to have changed: after a step, after the same again, after a smaller one."""
    moments = []
    for step, loss in zip((7, 7, 3), losses, strict=True):
        begin = time.time()
        monitor.log_metrics(step, {"loss": torch.tensor(loss)})
        now = instance(monitor.snapshot(), Snapshot, "GPUMonitor.snapshot()")
        moments.append([begin, plain(now.step_time, "Snapshot.step_time"), time.time()])
        time.sleep(0.03)
    history = len(monitor.history)
    monitor.sample()
    return {"moments": moments, "history": [history, len(monitor.history)], "text": _text(monitor)}


def _costs(monitor: Any, nvml: FakeNvml, logs: int, question: float) -> dict[str, Any]:
    """What `logs` calls of log_metrics, then a sample, took by our clock; and /metrics before, between and after."""
    texts, took = [_text(monitor)], []

    def log() -> None:
        for step in range(logs):
            monitor.log_metrics(100 + step, {"loss": 1.0})

    for call in (log, monitor.sample):
        nvml.gate = (lambda: time.sleep(question)) if call != log else None
        begin = time.perf_counter()
        call()
        took.append(time.perf_counter() - begin)
        texts.append(_text(monitor))
    nvml.gate = None
    return {"texts": texts, "took": took}


_ON_ALERT = """
def on_alert(alert):
    note(alert.rule)
    raise RuntimeError("the mailbox is full")
"""


def _raising(note: Callable[[Any], None]) -> Callable[[Any], None]:
    """An `on_alert` that raises; of no file, since who logs a traceback reads the files of its frames."""
    names: dict[str, Any] = {"note": note}
    exec(compile(_ON_ALERT, "<on_alert>", "exec"), names)
    on_alert: Callable[[Any], None] = names["on_alert"]
    return on_alert


def _with_a_full_mailbox(module: Any, nvml: FakeNvml, hot: int, said: io.StringIO) -> dict[str, Any]:
    """An `on_alert` that raises, called by a training's thread and by the background's."""
    rules = [replace(rule, for_seconds=0.0) for rule in RULES if rule.name in ("GpuHot", "LossNotFinite")]
    note, told = notes()
    before = len(said.getvalue())
    threading.excepthook = lambda _: None
    with contextlib.redirect_stderr(said):
        monitor = module.GPUMonitor(interval=0.01, rules=rules, on_alert=_raising(note))
        try:
            error = _failure(lambda: monitor.log_metrics(1, {"loss": float("nan")}))
            nvml.gpus[0]["celsius"] = hot
            end = time.monotonic() + _PATIENCE_SECONDS
            while "GpuHot" not in told() and time.monotonic() < end:
                time.sleep(0.005)
            samples = len(monitor.history)
            while len(monitor.history) < samples + 3 and time.monotonic() < end:
                time.sleep(0.005)
            more = len(monitor.history) - samples
        finally:
            nvml.gpus[0].pop("celsius")
            _failure(monitor.close)
    rules_told = sorted({str(plain(rule, "Alert.rule")) for rule in told()})
    return {"error": error, "told": rules_told, "samples_later": more, "said": said.getvalue()[before:]}
