"""Task 5.5: watch a training while it runs: GPUs in the background, metrics as they come, alerts on both.

Not for a fleet of machines: there, let Prometheus collect what each of these exports, beside NVIDIA's DCGM. Nor a
program: watch.py trains under a monitor.
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
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from labkit.monitoring import RULES, Alert, Rule, Snapshot
from labkit.monitoring.names import SAMPLES, SAMPLES_HELP, SECONDS, SECONDS_HELP
from labkit.monitoring.web import Server

from .alerts import AlertEngine
from .exporting import jsonl_line, prometheus_metrics, write_tensorboard
from .gpu_readings import GpuReader

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
        self.rank = rank if rank is not None else int(os.environ.get("RANK", "0") or "0")
        self.message = None
        self.url = None
        self.registry = CollectorRegistry()
        self.history = deque(maxlen=HISTORY)
        self.on_alert = on_alert
        self.dcgm_names = dcgm_names
        self.interval = interval
        self.state = Snapshot(time=time.time())
        self.condition = threading.Condition()  # guards everything below, and wakes the sampler at the end
        self.files: dict[str, Any] = {}
        self.file_lock = threading.Lock()
        self.read_lock = threading.Lock()
        self.samples, self.seconds = 0, 0.0
        self.closed = True
        self.thread = self.server = self.reader = None
        if self.rank != 0:
            self.message = f"only rank 0 monitors, and this is rank {self.rank}"
            return
        if not interval > 0:
            raise ValueError(f"a monitor cannot sample every {interval} seconds")
        self.engine = AlertEngine(rules)
        self.closed = False
        try:
            self.reader = GpuReader()
            self.message = self.reader.message
            if self.message is not None:
                print(f"GPUMonitor: {self.message}", file=sys.stderr)
            self.state = replace(self.state, message=self.message)
            self.registry.register(self)
            if log_dir is not None:
                from torch.utils.tensorboard import SummaryWriter

                os.makedirs(log_dir, exist_ok=True)
                self.files["jsonl"] = open(Path(log_dir, "metrics.jsonl"), "a", encoding="utf-8")
                self.files["tensorboard"] = SummaryWriter(log_dir=os.fspath(log_dir))
            self.sample()
            self.thread = threading.Thread(target=self._sample_for_ever, daemon=True)
            self.thread.start()
            if port is not None:
                self.server = Server(self, port)
                self.url = self.server.url
        except BaseException:
            self.close()
            raise

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
        if self.closed:
            return
        start = time.perf_counter()
        numbers = {name: float(value) for name, value in metrics.items()}
        with self.condition:
            old = self.state
            now = max(time.time(), old.time)
            new = replace(
                old,
                time=now,
                step=step,
                step_time=old.step_time if old.step == step else now,
                metrics={**old.metrics, **numbers},
            )
            new = replace(new, alerts=self.engine.evaluate(new))
            self.state = new
        own = replace(new, metrics=numbers)
        with self.file_lock:
            if self.files:
                try:
                    self.files["jsonl"].write(jsonl_line(own))
                    self.files["jsonl"].flush()
                    write_tensorboard(self.files["tensorboard"], own)
                except OSError as error:
                    print(f"GPUMonitor: cannot write any more, goes on without files: {error}", file=sys.stderr)
                    self._close_files()
        self._tell_new(old, new)
        with self.condition:
            self.seconds += time.perf_counter() - start

    def sample(self) -> None:
        """Read all GPUs now, evaluate the alerts, and remember the snapshot; the background thread calls this."""
        if self.closed:
            return
        start = time.perf_counter()
        with self.read_lock:
            readings = self.reader.read()
            with self.condition:
                old = self.state
                new = replace(old, time=max(time.time(), old.time), gpus=readings)
                new = replace(new, alerts=self.engine.evaluate(new))
                self.state = new
                self.history.append(new)
                self.samples += 1
        self._tell_new(old, new)
        with self.condition:
            self.seconds += time.perf_counter() - start

    def snapshot(self) -> Snapshot:
        """The latest readings, the latest value of each metric, and the alerts that fire now."""
        with self.condition:
            return self.state

    def collect(self) -> Iterator[Metric]:
        """Everything for Prometheus: `prometheus_metrics` of the snapshot, and what the monitor itself does.

        prometheus_client calls it at each scrape, in the server's thread. The last two families are the counters
        SAMPLES and SECONDS of `labkit.monitoring.names`: SECONDS is what all samples and all calls of log_metrics took.
        """
        if self.rank != 0:
            return
        with self.condition:
            state, samples, seconds = self.state, self.samples, self.seconds
        for family in prometheus_metrics(state, dcgm_names=self.dcgm_names):
            yield family
        for name, text, value in ((SAMPLES, SAMPLES_HELP, samples), (SECONDS, SECONDS_HELP, seconds)):
            family = CounterMetricFamily(name, text)
            family.add_metric([], value)
            yield family

    def close(self) -> None:
        """End the thread and wait for it, then close server, files and NVML. A second call does nothing."""
        with self.condition:
            if self.closed:
                return
            self.closed = True
            self.condition.notify_all()
        if self.thread is not None and self.thread is not threading.current_thread():
            self.thread.join()
        if self.server is not None:
            self.server.close()
        with self.file_lock:
            self._close_files()
        if self.reader is not None:
            self.reader.close()

    def __enter__(self) -> "GPUMonitor":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _sample_for_ever(self) -> None:
        took = 0.0
        while True:
            with self.condition:
                if self.closed or self.condition.wait_for(lambda: self.closed, timeout=max(self.interval - took, 1e-3)):
                    return
            start = time.perf_counter()
            self.sample()
            took = time.perf_counter() - start

    def _tell_new(self, old: Snapshot, new: Snapshot) -> None:
        """Outside of every lock: whoever is told may call the monitor."""
        known = [(each.rule, each.severity, each.gpu, each.since) for each in old.alerts]
        for alert in new.alerts:
            if (alert.rule, alert.severity, alert.gpu, alert.since) not in known:
                try:
                    self.on_alert(alert)
                except Exception as error:
                    line = f"GPUMonitor: on_alert failed: {type(error).__name__}: {error}".replace("\n", " ")
                    print(line, file=sys.stderr)

    def _close_files(self) -> None:
        for file in self.files.values():
            try:
                file.close()
            except OSError:
                pass
        self.files = {}
