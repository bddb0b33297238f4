"""Task 5.3: watch a training while it runs: GPUs in the background, metrics as they come, alerts on both.

Not for reading GPUs and not for what the exports look like (`labkit.monitoring`, given), nor for when an alert fires
(alerts.py). Not a program: watch.py trains under a monitor.
"""

import logging
import os
import sys
import threading
import time
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
from .sampler import Sampler

HISTORY = 3600
"""Snapshots that a monitor remembers: an hour at one per second."""


class _Collector:
    """What Prometheus collects; the monitor's registry has one of these."""

    def __init__(self, monitor: "GPUMonitor") -> None:
        self.monitor = monitor
        self.began = time.time()

    def collect(self) -> Iterator[Metric]:
        monitor, now = self.monitor, time.time()
        for family in prometheus_metrics(monitor.snapshot(), dcgm_names=monitor._dcgm_names):
            family.samples = [sample._replace(timestamp=now) for sample in family.samples]
            yield family
        for name, text, number in (
            (SAMPLES, SAMPLES_HELP, monitor._samples),
            (SECONDS, SECONDS_HELP, monitor._seconds),
        ):
            family = CounterMetricFamily(name, text)
            family.add_metric([], number, created=self.began, timestamp=now)
            yield family


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
        self._parts = []
        if not self.active:
            return
        try:
            self._files = self._with(MetricFiles(log_dir))
            self._reader = self._with(GpuReader())
            self.message = self._reader.message
            self._now = replace(self._now, message=self.message)
            if self.message is not None:
                logging.getLogger("monitor").warning("%s", self.message)
            self.registry.register(_Collector(self))
            self.sample()
            if port is not None:
                server = Server(self, port)
                self._with(server)
                self.url = server.url
            self._with(Sampler(self.sample, interval)).start()
        except Exception:
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
        if self.active:
            began = time.monotonic()
            logged = dict(zip(metrics, map(float, metrics.values()), strict=True))

            def change(now: Snapshot, moment: float) -> Snapshot:
                since = moment if now.step_time is None or step != now.step else now.step_time
                return replace(now, step=step, step_time=since, metrics={**now.metrics, **logged})

            self._report(self._advance(change, lambda now: self._files.write(replace(now, metrics=logged))))
            self._spent(time.monotonic() - began)

    def sample(self) -> None:
        """Read all GPUs now, update the snapshot and its alerts, and add it to the history.

        The background thread calls this every `interval` seconds, and anybody may.
        """
        if self.active:
            began = time.monotonic()
            gpus = self._reader.read()
            begun = self._advance(lambda now, moment: replace(now, gpus=gpus), self.history.append)
            self._report(begun)
            self._spent(time.monotonic() - began, samples=1)

    def snapshot(self) -> Snapshot:
        """Given: the latest readings, the latest value of each metric, and the alerts that fire now."""
        with self._lock:
            return self._now

    def collect(self) -> Iterator[Metric]:
        """Everything for Prometheus: `prometheus_metrics` of the snapshot, and what the monitor itself does.

        prometheus_client calls it at each scrape, in the server's thread. The last two families are the counters
        SAMPLES and SECONDS of `labkit.monitoring.names`: SECONDS is what all samples and all calls of log_metrics took.
        """
        yield from _Collector(self).collect() if self.active else ()

    def close(self) -> None:
        """End the thread and wait for it, then close server, files and NVML. A second call does nothing."""
        with self._lock:
            parts, self._parts = self._parts, []
        for part in sorted(parts, key=lambda part: not isinstance(part, Sampler)):
            part.close()

    def _with(self, part: Any) -> Any:
        self._parts.append(part)
        return part

    def _advance(self, change: Callable[[Snapshot, float], Snapshot], then: Callable[[Snapshot], None]) -> list[Alert]:
        """The next snapshot, and what is to be done with it, as one; the alerts that begin with it."""
        with self._lock:
            moment = max(time.time(), self._now.time)
            changed = change(replace(self._now, time=moment), moment)
            before = [(alert.rule, alert.gpu, alert.since) for alert in self._now.alerts]
            self._now = replace(changed, alerts=self._alerts.evaluate(changed))
            then(self._now)
            return [alert for alert in self._now.alerts if (alert.rule, alert.gpu, alert.since) not in before]

    def _report(self, alerts: Sequence[Alert]) -> None:
        for alert in alerts:
            try:
                self._on_alert(alert)
            except Exception:
                logging.getLogger("monitor").exception("on_alert failed")

    def _spent(self, seconds: float, samples: int = 0) -> None:
        with self._lock:
            self._seconds += seconds
            self._samples += samples

    def __enter__(self) -> "GPUMonitor":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
