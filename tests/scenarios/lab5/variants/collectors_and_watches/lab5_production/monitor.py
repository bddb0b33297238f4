"""State in one place, sinks for what is logged, a timer that starts the next one, and a collector for Prometheus."""

import logging
import os
import pathlib
import time
from collections import deque
from threading import Lock, Timer

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from labkit.monitoring import RULES, Snapshot, names
from labkit.monitoring.web import Server

from . import alerts, exporting, gpu_readings

HISTORY = 3600
_log = logging.getLogger("gpu-monitor")


def print_alert(alert):
    _log.error("alert (%s): %s", alert.severity, alert.message)


class _Lines:
    def __init__(self, folder):
        self.path = folder / "metrics.jsonl"

    def take(self, snapshot):
        with self.path.open("a", encoding="utf-8") as file:
            file.write(exporting.jsonl_line(snapshot))

    def close(self):
        pass


class _Events:
    def __init__(self, folder):
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(log_dir=folder, flush_secs=5)

    def take(self, snapshot):
        exporting.write_tensorboard(self.writer, snapshot)

    def close(self):
        self.writer.close()


class _Collector(Collector):
    def __init__(self, monitor):
        self.monitor = monitor

    def collect(self):
        return self.monitor.collect()

    def describe(self):
        return []


class GPUMonitor:
    def __init__(
        self,
        log_dir=None,
        *,
        port=None,
        interval=1.0,
        dcgm_names=False,
        rules=RULES,
        on_alert=print_alert,
        rank=None,
    ):
        if not interval > 0:
            raise ValueError("interval must be positive")
        self.message = self.url = None
        self.registry = CollectorRegistry(auto_describe=False)
        self.history = deque(maxlen=HISTORY)
        self.silent = (rank if rank is not None else int(os.getenv("RANK") or 0)) != 0
        self.gpus, self.metrics, self.firing = (), {}, ()
        self.step = self.step_time = None
        self.time = time.time()
        if self.silent:
            return
        self.interval, self.dcgm_names, self.on_alert = interval, dcgm_names, on_alert
        self.engine = alerts.AlertEngine(rules)
        self.state, self.asking = Lock(), Lock()
        self.samples, self.seconds = 0, 0.0
        self.closed = False
        self.sinks = []
        if log_dir is not None:
            folder = pathlib.Path(log_dir)
            folder.mkdir(parents=True, exist_ok=True)
            self.sinks = [_Lines(folder), _Events(folder)]
        self.reader = gpu_readings.GpuReader()
        self.message = self.reader.message
        if self.message:
            _log.warning("monitor: %s", self.message)
        self.registry.register(_Collector(self))
        try:
            self.server = None if port is None else Server(self, port)
        except OSError:
            for sink in self.sinks:
                sink.close()
            self.reader.close()
            raise
        self.sample()
        if self.server:
            self.url = self.server.url
        self._wind()

    def _wind(self):
        self.timer = Timer(self.interval, self._tick)
        self.timer.daemon = True
        self.timer.start()

    def _tick(self):
        self.sample()
        with self.state:
            if not self.closed:
                self._wind()

    def _judge(self):
        """With the state's lock held: what fires now, and what of it is new."""
        before = {(alert.rule, alert.gpu) for alert in self.firing}
        self.firing = self.engine.evaluate(self._snapshot())
        return [alert for alert in self.firing if (alert.rule, alert.gpu) not in before]

    def _snapshot(self, metrics=None):
        return Snapshot(
            time=self.time,
            step=self.step,
            step_time=self.step_time,
            metrics=dict(self.metrics if metrics is None else metrics),
            gpus=self.gpus,
            alerts=self.firing,
            message=self.message,
        )

    def log_metrics(self, step, metrics):
        if self.silent:
            return
        begin = time.perf_counter()
        metrics = {name: float(value) for name, value in metrics.items()}
        with self.state:
            self.time = time.time()
            if step != self.step:
                self.step, self.step_time = step, self.time
            self.metrics.update(metrics)
            new = self._judge()
            logged = self._snapshot(metrics)
            for sink in self.sinks:
                try:
                    sink.take(logged)
                except OSError as error:
                    _log.error("%s cannot be written: %s", type(sink).__name__, error)
                    self.sinks = []
                    break
            self.seconds += time.perf_counter() - begin
        self._tell(new)

    def sample(self):
        if self.silent:
            return
        begin = time.perf_counter()
        with self.asking:
            readings = self.reader.read()
        with self.state:
            self.gpus, self.time = readings, time.time()
            new = self._judge()
            self.history.append(self._snapshot())
            self.samples += 1
            self.seconds += time.perf_counter() - begin
        self._tell(new)

    def _tell(self, new):
        for alert in new:
            try:
                self.on_alert(alert)
            except Exception:
                _log.exception("on_alert")

    def snapshot(self):
        if self.silent:
            return self._snapshot()
        with self.state:
            return self._snapshot()

    def collect(self):
        with self.state:
            now, samples, seconds = self._snapshot(), self.samples, self.seconds
        counters = [
            CounterMetricFamily(names.SAMPLES, names.SAMPLES_HELP, value=samples),
            CounterMetricFamily(names.SECONDS, names.SECONDS_HELP, value=seconds),
        ]
        return [*exporting.prometheus_metrics(now, dcgm_names=self.dcgm_names), *counters]

    def close(self):
        if self.silent or self.closed:
            return
        with self.state:
            self.closed = True
            timer = self.timer
        timer.cancel()
        timer.join()
        if self.server:
            self.server.close()
        for sink in self.sinks:
            sink.close()
        self.reader.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
