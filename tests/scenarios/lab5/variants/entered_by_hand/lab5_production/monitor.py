"""Task 5.3: watch a training while it runs: GPUs in the background, metrics as they come, alerts on both.

Not for reading GPUs and not for what the exports look like (`labkit.monitoring`, given), nor for when an alert fires
(alerts.py). Not a program: watch.py trains under a monitor.
"""

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

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
        if not self.active:
            return
        self._files = MetricFiles(log_dir)
        self._reader = self._server = self._thread = None
        try:
            self._reader = GpuReader()
            if self._reader.message is not None:
                print(self._reader.message, file=sys.stderr, flush=True)
                self.message = self._reader.message
                self._now = replace(self._now, message=self.message)
            self.registry.register(self)
            self.sample()
            self._thread = threading.Thread(daemon=True, target=self._loop)
            self._thread.start()
            if port is not None:
                self._server = Server(self, port)
                self.url = self._server.url
        except BaseException:
            self.close()
            raise

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
        start = time.perf_counter()
        values = {name: value.item() if hasattr(value, "item") else float(value) for name, value in metrics.items()}
        self._lock.acquire()
        try:
            before, now = self._now, time.time()
            self._now = replace(
                before,
                time=now,
                step=step,
                step_time=before.step_time if before.step == step else now,
                metrics=before.metrics | values,
            )
            begun = self._judge(before)
            self._files.write(replace(self._now, metrics=values))
        finally:
            self._seconds += time.perf_counter() - start
            self._lock.release()
        self._tell(begun)

    def sample(self) -> None:
        """Read all GPUs now, update the snapshot and its alerts, and add it to the history.

        The background thread calls this every `interval` seconds, and anybody may.
        """
        if not self.active:
            return
        start = time.perf_counter()
        gpus = self._reader.read()
        self._lock.acquire()
        try:
            before = self._now
            self._now = replace(before, time=time.time(), gpus=gpus)
            begun = self._judge(before)
            self.history.append(self._now)
            self._samples += 1
        finally:
            self._seconds += time.perf_counter() - start
            self._lock.release()
        self._tell(begun)

    def snapshot(self) -> Snapshot:
        """Given: the latest readings, the latest value of each metric, and the alerts that fire now."""
        with self._lock:
            return self._now

    def collect(self) -> Iterator[Metric]:
        """Everything for Prometheus: `prometheus_metrics` of the snapshot, and what the monitor itself does.

        prometheus_client calls it at each scrape, in the server's thread. The last two families are the counters
        SAMPLES and SECONDS of `labkit.monitoring.names`: SECONDS is what all samples and all calls of log_metrics took.
        """
        self._lock.acquire()
        try:
            found = [*prometheus_metrics(self._now, dcgm_names=self._dcgm_names)]
            found += [
                CounterMetricFamily(SAMPLES, SAMPLES_HELP, self._samples),
                CounterMetricFamily(SECONDS, SECONDS_HELP, self._seconds),
            ]
        finally:
            self._lock.release()
        return iter(found if self.active else [])

    def close(self) -> None:
        """End the thread and wait for it, then close server, files and NVML. A second call does nothing."""
        if not self.active or self._stop.is_set():
            return
        self._stop.set()
        if self._thread is not None:
            while self._thread.is_alive():
                self._thread.join(0.1)
        for part in filter(None, (self._server, self._files, self._reader)):
            part.close()

    def _loop(self) -> None:
        next_one = time.monotonic() + self._interval
        while not self._stop.is_set():
            if time.monotonic() >= next_one:
                self.sample()
                next_one = max(next_one + self._interval, time.monotonic())
            self._stop.wait(min(0.05, max(next_one - time.monotonic(), 0.0)))

    def _judge(self, before: Snapshot) -> list[Alert]:
        alerts = self._alerts.evaluate(self._now)
        self._now = replace(self._now, alerts=alerts)
        known = [(each.rule, each.gpu) for each in before.alerts]
        return [each for each in alerts if (each.rule, each.gpu) not in known]

    def _tell(self, alerts: Sequence[Alert]) -> None:
        for alert in alerts:
            try:
                self._on_alert(alert)
            except Exception as error:
                print(f"{alert.rule}: {type(error).__name__}: {error}", file=sys.stderr)

    def __enter__(self) -> "GPUMonitor":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
