"""Task 5.5: watch a training while it runs: GPUs in the background, metrics as they come, alerts on both.

Not for a fleet of machines: there, let Prometheus collect what each of these exports, beside NVIDIA's DCGM. Nor a
program: watch.py trains under a monitor.
"""

import contextlib
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
from labkit.monitoring.names import SAMPLES, SAMPLES_HELP, SECONDS, SECONDS_HELP
from labkit.monitoring.web import Server

from .alerts import AlertEngine
from .exporting import prometheus_metrics
from .gpu_readings import GpuReader
from .sinks import open_sinks, say

RESULTS = Path(__file__).parent / "results"
HISTORY = 3600
"""Snapshots that a monitor remembers: an hour at one per second."""


def print_alert(alert: Alert) -> None:
    """Given: say on standard error that an alert has begun."""
    print(f"alert: {alert.severity}: {alert.message}", file=sys.stderr)


class GPUMonitor:
    """Samples all GPUs of this machine in the background and takes training metrics, until it is closed.

    A monitor must never be what ends a training: without NVML it says so, once, in one line on standard error, and goes
    on without GPUs; what one GPU cannot tell is absent everywhere; when its files cannot be written any more (the disk
    is full), it says so and goes on without them. It starts with its construction and ends with `close` or at the end
    of a `with` block.

    In a job of several processes only rank 0 monitors: on any other one the constructor and all methods do nothing,
    and there are no files, no thread, no NVML and no port.

    Args:
        log_dir: folder for `metrics.jsonl` and TensorBoard's event file; made if need be; None: neither is written. An
            existing `metrics.jsonl` is continued.
        port: where `labkit.monitoring.web.Server` serves Prometheus (/metrics) and people (/); 0 takes a free one;
            None: no server.
        interval: seconds from one sample to the next.
        dcgm_names: export GPU metrics under DCGM's names and in its units.
        rules: what to raise alerts for.
        on_alert: called once for every alert that begins to fire, and again only after it had stopped; by `sample` or
            `log_metrics`, whichever notices it, in its thread. What it raises is told in a line on standard error, and
            ends neither the training nor the sampling.
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
        self.rank = int(os.environ.get("RANK") or 0) if rank is None else rank
        self.registry = CollectorRegistry()
        self.history: deque[Snapshot] = deque(maxlen=HISTORY)
        self.url: str | None = None
        self.message: str | None = None
        self._on_alert, self._dcgm_names = on_alert, dcgm_names
        self._lock, self._asking, self._writing = threading.Lock(), threading.Lock(), threading.Lock()
        self._end = threading.Event()
        self._samples, self._seconds = 0, 0.0
        self._now = Snapshot(time=time.time())
        self._sinks: list[Callable[[Snapshot], None]] = []
        self._open = contextlib.ExitStack()
        self._active = self.rank == 0
        if not self._active:
            self.message = f"rank {self.rank} does not monitor: rank 0 does"
            return
        with contextlib.ExitStack() as opened:
            if not interval > 0:
                raise ValueError(f"interval is {interval}: it must be above 0")
            self._engine = AlertEngine(rules)
            self._reader = GpuReader()
            opened.callback(self._reader.close)
            self.message = self._reader.message
            self._now = replace(self._now, message=self.message)
            if self.message is not None:
                say(f"monitor: {self.message}")
            self.registry.register(self)
            if log_dir is not None:
                self._sinks = open_sinks(Path(log_dir), opened)
            self.sample()
            server = opened.enter_context(contextlib.ExitStack())  # to be closed when the thread has ended
            thread = threading.Thread(target=self._run, args=(interval,), name="monitor-sampler", daemon=True)
            thread.start()
            opened.callback(self._stop, thread)
            if port is not None:
                served = Server(self, port)
                server.callback(served.close)
                self.url = served.url
            self._open = opened.pop_all()

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of a training step: update what is exported, write one line and one set of scalars.

        Cheap enough for every step: it asks no GPU but takes the latest sample. A tensor of one number is
        taken as well, but to read it waits for the GPU. Metrics logged earlier and not now keep their values.

        Args:
            step: the optimizer step they belong to. A step other than the last one is progress, a smaller one too.
            metrics: by name; "loss", "accuracy" (0 to 1), "throughput" (samples per second), "learning_rate" and
                "gradient_norm" have names of their own in Prometheus, others are welcome. Any number, NaN included.

        The line in metrics.jsonl, and the scalars, hold the metrics of this call only, and the latest readings.
        """
        if not self._active:
            return
        began = time.perf_counter()
        mine = {name: float(value) for name, value in metrics.items()}

        def logged(before: Snapshot, now: float) -> Snapshot:
            changed = now if step != before.step else before.step_time
            return replace(before, time=now, step=step, step_time=changed, metrics={**before.metrics, **mine})

        after, begun = self._advance(logged)
        with self._writing:
            try:
                for write in self._sinks:
                    write(replace(after, metrics=mine))
            except OSError as error:
                self._sinks = []
                say(f"monitor: its files cannot be written, the training goes on without them: {error}")
        self._tell(begun)
        self._took(began)

    def sample(self) -> None:
        """Read all GPUs now, evaluate the alerts, and remember the snapshot; the background thread calls this."""
        if not self._active:
            return
        began = time.perf_counter()
        with self._asking:
            gpus = self._reader.read()
            _, begun = self._advance(lambda before, now: replace(before, time=now, gpus=gpus), remember=True)
        self._tell(begun)
        self._took(began)

    def snapshot(self) -> Snapshot:
        """The latest readings, the latest value of each metric, and the alerts that fire now."""
        return self._now

    def collect(self) -> Iterator[Metric]:
        """Everything for Prometheus: `prometheus_metrics` of the snapshot, and what the monitor itself does.

        prometheus_client calls it at each scrape, in the server's thread. The last two families are the counters
        SAMPLES and SECONDS of `labkit.monitoring.names`: SECONDS is what all samples and all calls of log_metrics took.
        """
        if self.rank == 0:
            yield from prometheus_metrics(self._now, dcgm_names=self._dcgm_names)
            yield CounterMetricFamily(SAMPLES, SAMPLES_HELP, value=self._samples)
            yield CounterMetricFamily(SECONDS, SECONDS_HELP, value=self._seconds)

    def close(self) -> None:
        """End the thread and wait for it, then close server, files and NVML. A second call does nothing."""
        self._active = False
        self._open.close()

    def __enter__(self) -> "GPUMonitor":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, interval: float) -> None:
        while not self._end.wait(interval):
            self.sample()

    def _stop(self, thread: threading.Thread) -> None:
        self._end.set()
        if thread is not threading.current_thread():  # an alert's function may close the monitor
            thread.join()

    def _advance(
        self, change: Callable[[Snapshot, float], Snapshot], *, remember: bool = False
    ) -> tuple[Snapshot, list[Alert]]:
        """Make the next snapshot from the last one; also says which alerts are new in it."""
        with self._lock:
            before = self._now
            after = change(before, max(time.time(), before.time))
            after = self._now = replace(after, alerts=self._engine.evaluate(after))
            if remember:
                self.history.append(after)
                self._samples += 1
        known = {(alert.rule, alert.gpu) for alert in before.alerts}
        return after, [alert for alert in after.alerts if (alert.rule, alert.gpu) not in known]

    def _tell(self, begun: Sequence[Alert]) -> None:
        for alert in begun:
            try:
                self._on_alert(alert)
            except Exception as error:
                say(f"monitor: an alert could not be told: {error!r}")

    def _took(self, began: float) -> None:
        with self._lock:
            self._seconds += time.perf_counter() - began
