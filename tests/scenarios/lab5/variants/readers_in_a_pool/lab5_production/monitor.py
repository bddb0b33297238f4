"""Task 5.3: watch a training while it runs: GPUs in the background, metrics as they come, alerts on both.

Not for reading GPUs and not for what the exports look like (`labkit.monitoring`, given), nor for when an alert fires
(alerts.py). Not a program: watch.py trains under a monitor.
"""

import os
import queue
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from labkit.monitoring import RULES, Alert, Rule, Snapshot
from labkit.monitoring.exports import MetricFiles, prometheus_metrics
from labkit.monitoring.gpus import GpuReader
from labkit.monitoring.names import SAMPLES, SAMPLES_HELP, SECONDS, SECONDS_HELP
from labkit.monitoring.web import Server

from .alerts import AlertEngine

HISTORY = 3600
"""Snapshots that a monitor remembers: an hour at one per second."""


def print_alert(alert: Alert) -> None:
    """Given: say on standard error that an alert has begun."""
    print(f"alert: {alert.severity}: {alert.message}", file=sys.stderr)


class GPUMonitor:
    """Samples all GPUs of this machine in the background and takes training metrics, until it is closed.

    A monitor must never be what ends a training. Without NVML it says so once, in one line on standard error, and goes
    on without GPUs. It starts with its construction and ends with `close` or at the end of a `with` block; if a program
    fails before that, the program ends all the same, since the monitor's threads are daemons.

    In a job of several processes only rank 0 monitors: on any other rank the constructor and all methods do nothing,
    and there are no files, no thread, no NVML and no port.

    Args:
        log_dir: folder for `metrics.jsonl` and TensorBoard's event file (`MetricFiles`); None: neither is written.
        port: where `labkit.monitoring.web.Server` serves Prometheus (/metrics) and people (/); 0 takes a free one;
            None: no server.
        interval: seconds from one sample to the next.
        dcgm_names: export GPU metrics under DCGM's names and in its units.
        rules: what to raise alerts for.
        on_alert: called once for every alert that begins to fire, and again only after it had stopped; by `sample` or
            `log_metrics`, whichever notices it, in its thread. While it works, other threads can log, sample and ask.
            What it raises is reported in a line on standard error, and ends neither the training nor the sampling.
        rank: this process's rank; None: the environment variable RANK, else 0.

    Attributes:
        message: why no GPU is monitored; None when some are.
        url: where the server is, "http://127.0.0.1:PORT"; None without one.
        registry: a CollectorRegistry of its own (two monitors do not disturb each other) that collects this monitor.
        history: the latest snapshots, oldest first, one per sample; at most HISTORY.

    Raises:
        OSError: the folder cannot be made, or the port is taken.
        ValueError: `interval` is not above 0.
        In either case nothing is left behind: no thread, no port, and NVML closed.
    """

    def __init__(
        self,
        log_dir: Path | str | None = None,
        *,
        port: int | None = None,
        interval: float = 1.0,
        dcgm_names: bool = False,
        rules: Sequence[Rule] = RULES,
        on_alert: Callable[[Alert], None] = print_alert,
        rank: int | None = None,
    ) -> None:
        """Take the first sample and start the thread that takes the others; see the class."""
        if interval <= 0:
            raise ValueError(f"interval is a time above 0, not {interval}")
        self.active = (int(os.environ.get("RANK", "0")) if rank is None else rank) == 0
        self.message: str | None = None
        self.url: str | None = None
        self.registry = CollectorRegistry()
        self.history: deque[Snapshot] = deque(maxlen=HISTORY)
        self._interval, self._dcgm_names, self._on_alert = interval, dcgm_names, on_alert
        self._alerts = AlertEngine(rules)
        self._lock = threading.RLock()
        """Held while the snapshot changes; never while a GPU is asked or an alert is reported."""
        self._now = Snapshot(time=time.time())
        self._samples, self._seconds = 0, 0.0
        """Calls of `sample`, and the seconds that all calls of `sample` and `log_metrics` took."""
        self._stop = threading.Event()
        self._ready = threading.Condition(threading.Lock())
        self._asked: deque[queue.SimpleQueue[Any]] = deque()
        self._closed = not self.active
        if self._closed:
            return
        self._files = MetricFiles(log_dir)
        self._reader = GpuReader()
        self.message = self._reader.message
        if self.message is not None:
            sys.stderr.write(f"{self.message}\n")
        self._now = replace(self._now, message=self.message)
        self._readers = threading.Thread(target=self._read_when_asked, name="gpu-reader", daemon=True)
        self._readers.start()
        self.registry.register(self)
        self._ticker = threading.Thread(target=self._tick, name="gpu-ticker", daemon=True)
        self._server = None
        begun = False
        try:
            self.sample()
            self._ticker.start()
            if port is not None:
                self._server = Server(self, port)
                self.url = self._server.url
            begun = True
        finally:
            if not begun:
                self.close()

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of a training step: update the snapshot, report alerts that begin, write to the files.

        Cheap enough for every step: it asks no GPU but takes the latest sample. A tensor of one number is taken as
        well, but to read it waits for the GPU. Metrics that were logged earlier and are not now keep their values.

        Args:
            step: the optimizer step they belong to. `step_time` of the snapshot is when the step last changed; a
                smaller step is a change, too.
            metrics: by name; "loss", "accuracy" (0 to 1), "throughput" (samples per second), "learning_rate" and
                "gradient_norm" have names of their own in Prometheus, others are welcome. Any number, NaN included.

        What is written has the metrics of this call only, and the latest readings.
        """
        if not self.active:
            return
        began = time.perf_counter_ns()
        written = {}
        for name, value in metrics.items():
            written[name] = float(value)
        self._lock.acquire()
        try:
            moment = max(self._now.time, time.time())
            step_time = moment
            if step == self._now.step:
                step_time = self._now.step_time
            begun = self._change(
                time=moment, step=step, step_time=step_time, metrics=dict(self._now.metrics, **written)
            )
            self._files.write(replace(self._now, metrics=written))
        finally:
            self._lock.release()
        self._finish(begun, began, 0)

    def sample(self) -> None:
        """Read all GPUs now, update the snapshot and its alerts, and add it to the history.

        The background thread calls this every `interval` seconds, and anybody may.
        """
        if not self.active:
            return
        began = time.perf_counter_ns()
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._ready.acquire()
        if self._closed:
            answer.put(())
        else:
            self._asked.append(answer)
            self._ready.notify_all()
        self._ready.release()
        gpus = answer.get()
        if isinstance(gpus, BaseException):
            raise gpus
        self._lock.acquire()
        try:
            begun = self._change(time=max(self._now.time, time.time()), gpus=gpus)
            self.history.append(self._now)
        finally:
            self._lock.release()
        self._finish(begun, began, 1)

    def snapshot(self) -> Snapshot:
        """Given: the latest readings, the latest value of each metric, and the alerts that fire now."""
        with self._lock:
            return self._now

    def collect(self) -> Iterator[Metric]:
        """Everything for Prometheus: `prometheus_metrics` of the snapshot, and what the monitor itself does.

        prometheus_client calls it at each scrape, in the server's thread. The last two families are the counters
        SAMPLES and SECONDS of `labkit.monitoring.names`: SECONDS is what all samples and all calls of log_metrics took.
        """
        if not self.active:
            return iter(())
        self._lock.acquire()
        snapshot, samples, seconds = self._now, self._samples, self._seconds
        self._lock.release()
        families = list(prometheus_metrics(snapshot, dcgm_names=self._dcgm_names))
        families.append(CounterMetricFamily(SAMPLES, SAMPLES_HELP, value=samples))
        families.append(CounterMetricFamily(SECONDS, SECONDS_HELP, value=seconds))
        return iter(families)

    def close(self) -> None:
        """End the thread and wait for it, then close server, files and NVML. A second call does nothing."""
        self._ready.acquire()
        first, self._closed = not self._closed, True
        self._ready.notify_all()
        self._ready.release()
        if not first:
            return
        if self._ticker.is_alive():
            self._ticker.join()
        self._readers.join()
        for part in (self._server, self._files, self._reader):
            if part is not None:
                part.close()

    def _read_when_asked(self) -> None:
        """The only thread that asks a GPU; several who ask at once get the same answer."""
        while True:
            self._ready.acquire()
            self._ready.wait_for(lambda: self._asked or self._closed)
            waiting = list(self._asked)
            self._asked.clear()
            self._ready.release()
            if not waiting:
                return
            try:
                answer: Any = self._reader.read()
            except BaseException as error:
                answer = error
            for each in waiting:
                each.put(answer)

    def _tick(self) -> None:
        deadline = time.monotonic() + self._interval
        while True:
            self._ready.acquire()
            while not self._closed and (left := deadline - time.monotonic()) > 0:
                self._ready.wait(timeout=min(left, 1e6))
            ended = self._closed
            self._ready.release()
            if ended:
                return
            self.sample()
            deadline = max(deadline + self._interval, time.monotonic())

    def _change(self, **changes: Any) -> list[Alert]:
        firing = {(alert.rule, alert.gpu) for alert in self._now.alerts}
        next_one = replace(self._now, **changes)
        self._now = replace(next_one, alerts=self._alerts.evaluate(next_one))
        return [alert for alert in self._now.alerts if (alert.rule, alert.gpu) not in firing]

    def _finish(self, begun: Sequence[Alert], began: int, samples: int) -> None:
        for alert in begun:
            try:
                self._on_alert(alert)
            except Exception:
                sys.stderr.write(f"monitor: {traceback.format_exc().splitlines()[-1]}\n")
        self._lock.acquire()
        self._seconds += (time.perf_counter_ns() - began) * 1e-9
        self._samples += samples
        self._lock.release()

    def __enter__(self) -> "GPUMonitor":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
