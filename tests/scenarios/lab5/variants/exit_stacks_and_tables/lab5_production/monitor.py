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
from contextlib import ExitStack, contextmanager
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


class _Sampler(threading.Thread):
    """Calls a function at an interval until it is stopped; it waits on a condition instead of an event."""

    def __init__(self, call: Callable[[], None], interval: float) -> None:
        super().__init__(name="sampler", daemon=True)
        self._call, self._interval, self._ended = call, interval, False
        self._condition = threading.Condition()

    def run(self) -> None:
        while True:
            with self._condition:
                if self._condition.wait_for(lambda: self._ended, self._interval):
                    return
            self._call()

    def stop(self) -> None:
        with self._condition:
            self._ended = True
            self._condition.notify_all()
        self.join()


class GPUMonitor:
    """Samples all GPUs of this machine in the background and takes training metrics, until it is closed.

    A monitor must never be what ends a training. Without NVML it says so once, in one line on standard error, and goes
    on without GPUs. It starts with its construction and ends with `close` or at the end of a `with` block; if a program
    fails before that, the program ends all the same, since the monitor's threads are daemons.

    In a job of several processes only rank 0 monitors: on any other rank the constructor, `log_metrics`, `sample` and
    `close` do nothing, and there are no files, no thread, no NVML and no port.

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
        message: why no GPU is monitored, here and in each snapshot; None when some are.
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
        """Held while the snapshot changes; never while a GPU is read or an alert is reported."""
        self._now = Snapshot(time=time.time())
        self._samples, self._seconds = 0, 0.0
        """Calls of `sample`, and the seconds that all calls of `sample` and `log_metrics` took."""
        self._stop = threading.Event()
        self._closing = ExitStack()
        if not self.active:
            return
        with ExitStack() as stack:
            self._files = MetricFiles(log_dir)
            stack.callback(self._files.close)
            self._reader = GpuReader()
            stack.callback(self._reader.close)
            if self._reader.message:
                sys.stderr.write(f"monitor: {self._reader.message}\n")
                self.message = self._reader.message
                self._now = replace(self._now, message=self.message)
            self.registry.register(self)
            self.sample()
            sampler = _Sampler(self.sample, interval)
            sampler.start()
            stack.callback(sampler.stop)
            if port is not None:
                server = Server(self, port)
                self.url = server.url
                stack.callback(server.close)
            self._closing = stack.pop_all()

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
            with self._timed() as begun:
                logged = dict(zip(metrics, map(float, metrics.values()), strict=True))
                with self._lock:
                    old, now = self._now, time.time()
                    changed = replace(old, time=now, step=step, metrics={**old.metrics, **logged})
                    if step != old.step:
                        changed = replace(changed, step_time=now)
                    self._become(changed, begun)
                    self._files.write(replace(self._now, metrics=logged))

    def sample(self) -> None:
        """Read all GPUs now, update the snapshot and its alerts, and add it to the history.

        The snapshot's time is when it is made, after the GPUs have answered: time never falls. The background thread
        calls this every `interval` seconds, and anybody may.
        """
        if self.active:
            with self._timed() as begun:
                gpus = self._reader.read()
                with self._lock:
                    self._become(replace(self._now, time=time.time(), gpus=gpus), begun)
                    self.history.append(self._now)
                    self._samples += 1

    @contextmanager
    def _timed(self) -> Iterator[list[Alert]]:
        """Adds what the block takes to the seconds; then reports the alerts that it has put into the list."""
        begun: list[Alert] = []
        start = time.perf_counter()
        yield begun
        with self._lock:
            self._seconds += time.perf_counter() - start
        for alert in begun:
            try:
                self._on_alert(alert)
            except Exception as error:
                sys.stderr.write(f"monitor: {alert.rule}: on_alert raised {type(error).__name__}: {error}\n")

    def _become(self, snapshot: Snapshot, begun: list[Alert]) -> None:
        """Under the lock: this is the latest snapshot, with the alerts that fire at it."""
        firing = {(alert.rule, alert.gpu) for alert in self._now.alerts}
        alerts = self._alerts.evaluate(snapshot)
        self._now = replace(snapshot, alerts=alerts)
        begun += [alert for alert in alerts if (alert.rule, alert.gpu) not in firing]

    def snapshot(self) -> Snapshot:
        """Given: the latest readings, the latest value of each metric, and the alerts that fire now."""
        with self._lock:
            return self._now

    def collect(self) -> Iterator[Metric]:
        """Everything for Prometheus: `prometheus_metrics` of the snapshot, and what the monitor itself does.

        prometheus_client calls it at each scrape, in the server's thread. The last two families are the counters
        SAMPLES and SECONDS of `labkit.monitoring.names`: SECONDS is what all samples and all calls of log_metrics took.
        """
        with self._lock:
            latest = self._now
            counters = [(SAMPLES, SAMPLES_HELP, self._samples), (SECONDS, SECONDS_HELP, self._seconds)]
        families = list(prometheus_metrics(latest, dcgm_names=self._dcgm_names))
        for name, text, value in counters:
            family = CounterMetricFamily(name, text)
            family.add_metric([], value)
            families.append(family)
        return iter(families)

    def close(self) -> None:
        """End the thread and wait for it, then close server, files and NVML. A second call does nothing."""
        self._closing.close()  # in the reverse order: server, thread, NVML, files; empty after that

    def __enter__(self) -> "GPUMonitor":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
