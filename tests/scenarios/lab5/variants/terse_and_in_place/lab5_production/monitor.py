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
        self._open = []
        if not self.active:
            return
        try:
            self._files, self._reader = self._opened(MetricFiles(log_dir)), self._opened(GpuReader())
            if m := self._reader.message:
                print(m, file=sys.stderr)
            self.message, self._now = m, replace(self._now, message=m)
            self.registry.register(self), self.sample()
            (t := threading.Thread(target=lambda: [self.sample() for _ in self._ticks()], daemon=True)).start()
            self._open.append(lambda: (self._stop.set(), t.join()))
            self.url = self._opened(Server(self, port)).url if port is not None else None
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
        t, m = time.perf_counter(), {k: float(v) for k, v in metrics.items()}
        with self._lock:
            s = self._now
            new = self._set(
                step=step, metrics={**s.metrics, **m}, **({} if s.step == step else {"step_time": time.time()})
            )
            self._files.write(replace(self._now, metrics=m))
            self._seconds += time.perf_counter() - t
        self._tell(new)

    def sample(self) -> None:
        """Read all GPUs now, update the snapshot and its alerts, and add it to the history.

        The background thread calls this every `interval` seconds, and anybody may.
        """
        if not self.active:
            return
        t, gpus = time.perf_counter(), self._reader.read()
        with self._lock:
            new = self._set(gpus=gpus)
            self.history.append(self._now)
            self._samples += 1
            self._seconds += time.perf_counter() - t
        self._tell(new)

    def snapshot(self) -> Snapshot:
        """Given: the latest readings, the latest value of each metric, and the alerts that fire now."""
        with self._lock:
            return self._now

    def collect(self) -> Iterator[Metric]:
        """Everything for Prometheus: `prometheus_metrics` of the snapshot, and what the monitor itself does.

        prometheus_client calls it at each scrape, in the server's thread. The last two families are the counters
        SAMPLES and SECONDS of `labkit.monitoring.names`: SECONDS is what all samples and all calls of log_metrics took.
        """
        if self.active:
            yield from prometheus_metrics(self.snapshot(), dcgm_names=self._dcgm_names)
            yield CounterMetricFamily(SAMPLES, SAMPLES_HELP, self._samples)
            yield CounterMetricFamily(SECONDS, SECONDS_HELP, self._seconds)

    def close(self) -> None:
        """End the thread and wait for it, then close server, files and NVML. A second call does nothing."""
        while self._open:
            self._open.pop()()

    def _opened(self, x):
        self._open.append(x.close)
        return x

    def _ticks(self):
        while not self._stop.wait(self._interval):
            yield

    def _set(self, **new):
        s = replace(self._now, time=time.time(), **new)
        old, self._now = self._now.alerts, replace(s, alerts=self._alerts.evaluate(s))
        return [a for a in self._now.alerts if (a.rule, a.gpu) not in {(b.rule, b.gpu) for b in old}]

    def _tell(self, alerts):
        for a in alerts:
            try:
                self._on_alert(a)
            except Exception as e:
                print("on_alert:", repr(e).replace("\n", " "), file=sys.stderr)

    def __enter__(self) -> "GPUMonitor":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
