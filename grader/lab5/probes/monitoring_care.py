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
        shared = _shared(student.module(READINGS), nvml, losing)
        ranks = _by_rank(module, nvml, Path(folder))
        without = _without_gpus(module, nvml)
    unit = _failure(lambda: student.module(READINGS).base_value("furlongs", 1.0))
    return {
        "unit": unit,
        "cases": cases,
        "readings": readings,
        "lost": lost,
        "after": after,
        "left_open": nvml.users,
        "shared": shared,
        "ranks": ranks,
        "without": without,
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


def _shared(module: Any, nvml: FakeNvml, index: int) -> dict[str, Any]:
    """What readers leave of an NVML that somebody else in this process uses, too; and a reading without a counter."""
    nvml.users, nvml.events = 1, 0
    reader = module.GpuReader()
    seen = {"message": plain(reader.message, "GpuReader.message")}
    alone = fields(module.read_gpu(index, index), GpuReading, "read_gpu() without a counter of XID errors")
    seen["xids"] = [reading["xid_errors"] for reading in (alone, _readings(reader)[index])]
    reader.close()
    reader.close()
    seen["users"], seen["events"] = nvml.users, nvml.events
    nvml.error = "DRIVER_NOT_LOADED"
    never = module.GpuReader()
    never.close()
    seen["users_later"] = nvml.users
    nvml.error, nvml.users = None, 0
    return seen


def _by_rank(module: Any, nvml: FakeNvml, folder: Path) -> dict[str, Any]:
    """Where RANK is 1: a monitor that is told nothing, and one that is told to be of rank 0."""
    os.environ["RANK"] = "1"
    started = nvml.started
    try:
        note, alerts = notes()
        other = module.GPUMonitor(folder / "other", port=0, interval=_NEVER, on_alert=lambda alert: note(1))
        other.sample()
        other.log_metrics(1, {"loss": float("nan")})
        other.close()
        silent = [nvml.started - started, (folder / "other").exists(), plain(other.url, "GPUMonitor.url")]
        silent += [len(other.history), len(alerts())]
        with (
            module.GPUMonitor(folder / "new" / "runs", interval=_NEVER, rank=0) as one,
            module.GPUMonitor(interval=_NEVER, rank=0) as two,
        ):
            told = nvml.started - started - silent[0]
            one.log_metrics(1, {"loss": 1.0})
            made = (folder / "new" / "runs" / "metrics.jsonl").exists()
            shared = [one.registry is two.registry, "training_loss" in _text(two)]
    finally:
        del os.environ["RANK"]
    return {"silent": silent, "told": told, "made": made, "shared": shared}


def _without_gpus(module: Any, nvml: FakeNvml) -> dict[str, Any]:
    """A monitor without NVML: what it says, how many snapshots it remembers, whether its threads hold up the end."""
    nvml.error = "LIBRARY_NOT_FOUND"
    before = set(threading.enumerate())
    with module.GPUMonitor(interval=_NEVER) as monitor:
        threads = set(threading.enumerate()) - before
        seen: dict[str, Any] = {"holding_up": sum(not thread.daemon for thread in threads), "many": module.HISTORY + 3}
        messages = [monitor.message, instance(monitor.snapshot(), Snapshot, "GPUMonitor.snapshot()").message]
        seen["messages"] = [plain(message, "message") for message in messages]
        monitor.sample()
        second = monitor.history[-1].time
        for _ in range(seen["many"] - 2):
            monitor.sample()
        seen["remembered"] = len(monitor.history)
        seen["forgotten"] = bool(monitor.history[0].time > second)
    nvml.error = None
    return seen


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
        seen["moments"] = _moments(monitor, losses, lines)
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
        with module.GPUMonitor(Path(folder, "another"), interval=_NEVER) as another:
            another.log_metrics(1, {"loss": 1.0})
        seen["closed"]["left_open"] = _open_below(Path(folder, "another"))
        seen["record"] = student.module(EXPORTING).jsonl_line(Snapshot(time=1.5, metrics={}))
    seen["alerts"] = _with_a_full_mailbox(module, nvml, hot, said)
    seen["alerts"]["others_go_on"] = _beside_a_slow_mailer(module, nvml, hot)
    return seen


def _open_below(folder: Path) -> list[str]:
    """The names of files below a folder that this process has open; none where the system does not tell."""
    found = []
    for descriptor in Path("/proc/self/fd").glob("*"):
        with contextlib.suppress(OSError):
            place = Path(os.readlink(descriptor))
            if place.is_relative_to(folder):
                found.append(place.name.partition(".")[0])
    return sorted(found)


def _text(monitor: Any) -> str:
    return generate_latest(monitor.registry).decode("utf-8")


def _answers(url: Any) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with contextlib.suppress(OSError), opener.open(f"{url}/metrics", timeout=1.0):
        return True
    return False


def _moments(monitor: Any, losses: Sequence[float], file: Path) -> dict[str, Any]:
    """When the step is said to have changed: after a step, after the same again, after a smaller one.

    `taken` is when these snapshots, and that of a sample afterwards, are said to have been taken; `lines` are those of
    `file` after each step.
    """
    moments, taken, lines = [], [], []
    for step, loss in zip((7, 7, 3), losses, strict=True):
        begin = time.time()
        monitor.log_metrics(step, {"loss": torch.tensor(loss)})
        now = instance(monitor.snapshot(), Snapshot, "GPUMonitor.snapshot()")
        end = time.time()
        moments.append([begin, plain(now.step_time, "Snapshot.step_time"), end])
        taken.append([begin, plain(now.time, "Snapshot.time"), end])
        lines.append(file.read_text(encoding="utf-8").count("\n"))
        time.sleep(0.03)
    history, begin = len(monitor.history), time.time()
    monitor.sample()
    taken.append([begin, plain(monitor.history[-1].time, "Snapshot.time"), time.time()])
    history_lengths = [history, len(monitor.history)]
    return {"moments": moments, "taken": taken, "lines": lines, "history": history_lengths, "text": _text(monitor)}


def _costs(monitor: Any, nvml: FakeNvml, logs: int, question: float) -> dict[str, Any]:
    """What `logs` calls of log_metrics, then two samples, took by our clock; and /metrics before, between and after."""
    texts, took = [_text(monitor)], []

    def log() -> None:
        for step in range(logs):
            monitor.log_metrics(100 + step, {"loss": 1.0})

    for call in (log, monitor.sample, monitor.sample):
        nvml.gate = (lambda: time.sleep(question)) if call != log else None
        begin = time.perf_counter()
        call()
        took.append(time.perf_counter() - begin)
        texts.append(_text(monitor))
    nvml.gate = None
    return {"texts": texts, "took": took}


def _beside_a_slow_mailer(module: Any, nvml: FakeNvml, hot: int) -> bool | None:
    """Whether `log_metrics` returns while the sampling thread is in `on_alert`; None where no alert came."""
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
        _failure(monitor.close)


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
