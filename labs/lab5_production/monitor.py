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
    of a `with` block; a program that fails before that ends all the same, since its threads are daemons.

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
            `log_metrics`, whichever notices it, in its thread, which alone waits for it: while one thread mails, others
            log, sample and ask. What it raises is told in a line on standard error, and ends neither the training nor
            the sampling.
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
        # TODO(task 5.5):
        # 1. Not rank 0: remember that, and nothing more.
        # 2. A GpuReader; say its message if it has one. A registry, with this monitor registered.
        # 3. Open metrics.jsonl to append, and a SummaryWriter (import it here: it is slow to import).
        # 4. Take the first sample, then start a daemon thread that takes one every `interval` seconds.
        # 5. Start the server last: it asks for snapshots at once. Where it does not start, close what is open.
        raise NotImplementedError(
            "Task 5.5 is open: write GPUMonitor.__init__ "
            "in labs/lab5_production/monitor.py (about 70 lines)"
        )

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of a training step: update what is exported, write one line and one set of scalars.

        Cheap enough for every step: it asks no GPU but takes the latest sample. A tensor of one number is
        taken as well, but to read it waits for the GPU. Metrics logged earlier and not now keep their values.

        Args:
            step: the optimizer step they belong to. A step other than the last one is progress, a smaller one too.
            metrics: by name; "loss", "accuracy" (0 to 1), "throughput" (samples per second), "learning_rate" and
                "gradient_norm" have names of their own in Prometheus, others are welcome. Any number, NaN included.

        The line in metrics.jsonl, and the scalars, hold the metrics of this call only, and the latest readings. The
        line is in the file when the call returns, for whoever watches.
        """
        # TODO(task 5.5):
        # 1. Make every value a float.
        # 2. Under the lock: update the snapshot (time, step, step_time, metrics), evaluate the alerts.
        # 3. Write the line, and flush it; write TensorBoard's scalars. On an OSError: say it once, write no more.
        raise NotImplementedError(
            "Task 5.5 is open: write GPUMonitor.log_metrics "
            "in labs/lab5_production/monitor.py (about 12 lines)"
        )

    def sample(self) -> None:
        """Read all GPUs now, evaluate the alerts, and remember the snapshot; the background thread calls this."""
        # TODO(task 5.5):
        # 1. Read without holding the lock: some queries last 20 ms, and log_metrics must not wait for them.
        # 2. Under the lock: update the snapshot, evaluate the alerts, append to the history.
        raise NotImplementedError(
            "Task 5.5 is open: write GPUMonitor.sample "
            "in labs/lab5_production/monitor.py (about 10 lines)"
        )

    def snapshot(self) -> Snapshot:
        """The latest readings, the latest value of each metric, and the alerts that fire now."""
        # TODO(task 5.5):
        # 1. Return it; it is frozen.
        raise NotImplementedError(
            "Task 5.5 is open: write GPUMonitor.snapshot "
            "in labs/lab5_production/monitor.py (about 2 lines)"
        )

    def collect(self) -> Iterator[Metric]:
        """Everything for Prometheus: `prometheus_metrics` of the snapshot, and what the monitor itself does.

        prometheus_client calls it at each scrape, in the server's thread. The last two families are the counters
        SAMPLES and SECONDS of `labkit.monitoring.names`: SECONDS is what all samples and all calls of log_metrics took.
        """
        # TODO(task 5.5):
        # 1. The snapshot's metrics.
        # 2. The two counters.
        raise NotImplementedError(
            "Task 5.5 is open: write GPUMonitor.collect "
            "in labs/lab5_production/monitor.py (about 5 lines)"
        )

    def close(self) -> None:
        """End the thread and wait for it, then close server, files and NVML. A second call does nothing."""
        # TODO(task 5.5):
        # 1. Tell the thread to stop, and join it: it must not ask an NVML that is gone.
        # 2. Close the rest.
        raise NotImplementedError(
            "Task 5.5 is open: write GPUMonitor.close "
            "in labs/lab5_production/monitor.py (about 8 lines)"
        )

    def __enter__(self) -> "GPUMonitor":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
