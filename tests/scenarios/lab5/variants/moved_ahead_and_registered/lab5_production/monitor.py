"""The monitor, whose calls are timed by a context manager and whose thread waits on a condition."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from dataclasses import replace

from prometheus_client.core import CounterMetricFamily

from labkit.monitoring.exports import MetricFiles, prometheus_metrics
from labkit.monitoring.gpus import GpuReader
from labkit.monitoring.names import SAMPLES, SAMPLES_HELP, SECONDS, SECONDS_HELP
from labkit.monitoring.web import Server

from . import kept_monitor
from .kept_monitor import HISTORY, print_alert  # noqa: F401

LOG = logging.getLogger(__name__)


class GPUMonitor(kept_monitor.GPUMonitor):
    """Opens what it needs on a stack, which close() unwinds."""

    def __init__(self, log_dir=None, *, port=None, rank=None, **options):
        super().__init__(log_dir, port=port, rank=1, **options)  # the base starts nothing on another rank
        rank = int(os.environ.get("RANK") or 0) if rank is None else rank
        self.active = rank == 0
        self._stack = contextlib.ExitStack()
        if not self.active:
            return
        with contextlib.ExitStack() as stack:
            self._files = MetricFiles(log_dir)
            stack.callback(self._files.close)
            self._reader = GpuReader()
            stack.callback(self._reader.close)
            served = stack.enter_context(contextlib.ExitStack())
            if self._reader.message:
                self.message = self._reader.message
                print(f"monitor: {self.message}", file=sys.stderr)
                self._now = replace(self._now, message=self.message)
            self.registry.register(self)
            self.sample()
            thread = threading.Thread(target=self._every_interval, daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(self._stop.set)
            if port is not None:
                server = Server(self, port)
                self.url = server.url
                served.callback(server.close)
            self._stack = stack.pop_all()
        LOG.debug("monitoring %d GPUs", len(self._now.gpus))

    def _every_interval(self):
        while True:
            if self._stop.wait(timeout=self._interval):
                return
            self.sample()

    @contextlib.contextmanager
    def _timed(self):
        began = time.monotonic()
        try:
            yield
        finally:
            took = time.monotonic() - began
            with self._lock:
                self._seconds += took

    def log_metrics(self, step, metrics):
        if not self.active:
            return
        with self._timed():
            values = dict(zip(metrics, map(float, metrics.values()), strict=True))
            with self._lock:
                moment = time.time()
                since = moment if self._now.step != step else self._now.step_time
                begun = self._update(step=step, step_time=since, time=moment, metrics=dict(self._now.metrics) | values)
                self._files.write(replace(self._now, metrics=values))
        self._report(begun)

    def sample(self):
        if not self.active:
            return
        with self._timed():
            gpus = self._reader.read()
            with self._lock:
                begun = self._update(gpus=gpus, time=time.time())
                self.history.append(self._now)
                self._samples += 1
        self._report(begun)

    def collect(self):
        with self._lock:
            rows = ((SAMPLES, SAMPLES_HELP, self._samples), (SECONDS, SECONDS_HELP, self._seconds))
            families = list(prometheus_metrics(self._now, dcgm_names=self._dcgm_names))
        return iter([*families, *(CounterMetricFamily(name, text, value=value) for name, text, value in rows)])

    def close(self):
        self._stack.close()
