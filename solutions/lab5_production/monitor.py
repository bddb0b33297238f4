"""Task 5.5: watch a training while it runs: GPUs in the background, metrics as they come, alerts on both.

Not for a fleet of machines: there, let Prometheus collect what each of these exports, beside NVIDIA's DCGM.

Run: python -m labs.lab5_production.monitor [--port 9400] [--view]
"""

import os
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from labkit import data, models, plotting, program
from labkit.device import open_device
from labkit.monitoring import RULES, Alert, Rule, Snapshot
from labkit.monitoring.names import SAMPLES, SAMPLES_HELP, SECONDS, SECONDS_HELP
from labkit.monitoring.terminal import LiveView
from labkit.monitoring.web import Server
from labkit.progress import track
from labkit.results import MonitorOverhead, save_json

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
    on without GPUs; what one GPU cannot tell is absent everywhere. It starts with its construction and ends with
    `close` or at the end of a `with` block.

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
        on_alert: called once for every alert that begins to fire, and again only after it had stopped.
        rank: this process's rank; None: the environment variable RANK, else 0.

    Attributes:
        message: why no GPU is monitored; None when some are.
        url: where the server is, "http://127.0.0.1:PORT"; None without one.
        registry: a CollectorRegistry of its own (two monitors do not disturb each other) that collects this monitor.
        history: the latest snapshots, oldest first, one per sample; at most HISTORY.

    Raises:
        OSError: the folder cannot be made, or the port is taken.
        ValueError: `interval` is not above 0.
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
        # 5. Start the server last: it asks for snapshots at once.
        # --- solution: task 5.5 ---
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
        self._stop = threading.Event()
        self._now = Snapshot(time=time.time())
        self._samples, self._seconds = 0, 0.0
        self._jsonl: Any = None
        self._writer: Any = None
        self._server: Server | None = None
        if not self.active:
            return
        if log_dir is not None:
            from torch.utils.tensorboard import SummaryWriter

            Path(log_dir).mkdir(parents=True, exist_ok=True)
            self._jsonl = (Path(log_dir) / "metrics.jsonl").open("a", encoding="utf-8")
            self._writer = SummaryWriter(str(log_dir))
        self._reader = GpuReader()
        self.message = self._reader.message
        if self.message is not None:
            print(f"monitor: {self.message}", file=sys.stderr)
        self._now = replace(self._now, message=self.message)
        self.registry.register(self)
        self.sample()
        self._thread = threading.Thread(target=self._run, name="gpu-monitor", daemon=True)
        self._thread.start()
        if port is not None:
            self._server = Server(self, port)
            self.url = self._server.url
        # --- end ---

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
        # TODO(task 5.5):
        # 1. Make every value a float.
        # 2. Under the lock: update the snapshot (time, step, step_time, metrics), evaluate the alerts.
        # 3. Write the line, and flush it; write TensorBoard's scalars.
        # --- solution: task 5.5 ---
        if not self.active:
            return
        start = time.perf_counter()
        logged = {name: float(value) for name, value in metrics.items()}
        with self._lock:
            now = time.time()
            step_time = self._now.step_time if step == self._now.step else now
            known = {**self._now.metrics, **logged}
            begun = self._update(time=now, step=step, step_time=step_time, metrics=known)
            entry = replace(self._now, metrics=logged)
            if self._jsonl is not None:
                self._jsonl.write(jsonl_line(entry))
                self._jsonl.flush()
            if self._writer is not None:
                write_tensorboard(self._writer, entry)
            self._seconds += time.perf_counter() - start
        for alert in begun:
            self._on_alert(alert)
        # --- end ---

    def sample(self) -> None:
        """Read all GPUs now, evaluate the alerts, and remember the snapshot; the background thread calls this."""
        # TODO(task 5.5):
        # 1. Read without holding the lock: some queries last 20 ms, and log_metrics must not wait for them.
        # 2. Under the lock: update the snapshot, evaluate the alerts, append to the history.
        # --- solution: task 5.5 ---
        if not self.active:
            return
        start = time.perf_counter()
        gpus = self._reader.read()
        with self._lock:
            begun = self._update(time=time.time(), gpus=gpus)
            self.history.append(self._now)
            self._samples += 1
            self._seconds += time.perf_counter() - start
        for alert in begun:
            self._on_alert(alert)
        # --- end ---

    def snapshot(self) -> Snapshot:
        """The latest readings, the latest value of each metric, and the alerts that fire now."""
        # TODO(task 5.5):
        # 1. Return it; it is frozen.
        # --- solution: task 5.5 ---
        with self._lock:
            return self._now
        # --- end ---

    def collect(self) -> Iterator[Metric]:
        """Everything for Prometheus: `prometheus_metrics` of the snapshot, and what the monitor itself does.

        prometheus_client calls it at each scrape, in the server's thread. The last two families are the counters
        SAMPLES and SECONDS of `labkit.monitoring.names`: SECONDS is what all samples and all calls of log_metrics took.
        """
        # TODO(task 5.5):
        # 1. The snapshot's metrics.
        # 2. The two counters.
        # --- solution: task 5.5 ---
        with self._lock:
            snapshot, samples, seconds = self._now, self._samples, self._seconds
        yield from prometheus_metrics(snapshot, dcgm_names=self._dcgm_names)
        yield CounterMetricFamily(SAMPLES, SAMPLES_HELP, value=samples)
        yield CounterMetricFamily(SECONDS, SECONDS_HELP, value=seconds)
        # --- end ---

    def close(self) -> None:
        """End the thread and wait for it, then close server, files and NVML. A second call does nothing."""
        # TODO(task 5.5):
        # 1. Tell the thread to stop, and join it: it must not ask an NVML that is gone.
        # 2. Close the rest.
        # --- solution: task 5.5 ---
        if not self.active or self._stop.is_set():
            return
        self._stop.set()
        self._thread.join()
        if self._server is not None:
            self._server.close()
        if self._jsonl is not None:
            self._jsonl.close()
            self._writer.close()
        self._reader.close()
        # --- end ---

    def __enter__(self) -> "GPUMonitor":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # --- solution only ---
    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            self.sample()

    def _update(self, **changes: Any) -> tuple[Alert, ...]:
        """Change the snapshot, under the lock; the alerts that begin to fire."""
        before = {(alert.rule, alert.gpu) for alert in self._now.alerts}
        changed = replace(self._now, **changes)
        self._now = replace(changed, alerts=self._alerts.evaluate(changed))
        return tuple(alert for alert in self._now.alerts if (alert.rule, alert.gpu) not in before)

    # --- end ---


class _Training:
    """Given: a small model on the digits, one step at a time."""

    def __init__(self, device: str, *, batch_size: int = 128, width: int = 512) -> None:
        torch.manual_seed(0)
        self.images, self.labels = (tensor.to(device) for tensor in data.load("digits").tensors)
        self.model = models.mlp(hidden=(width, width)).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.batch_size, self.device = batch_size, device

    def step(self, number: int) -> dict[str, float]:
        """One optimizer step; waits for the device."""
        start = time.perf_counter()
        first = number * self.batch_size % (len(self.labels) - self.batch_size)
        rows = slice(first, first + self.batch_size)
        output = self.model(self.images[rows])
        loss = torch.nn.functional.cross_entropy(output, self.labels[rows])
        self.optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 10.0)
        self.optimizer.step()
        accuracy = (output.argmax(1) == self.labels[rows]).float().mean()
        metrics = {"loss": loss.item(), "accuracy": accuracy.item(), "gradient_norm": norm.item()}
        metrics["throughput"] = self.batch_size / (time.perf_counter() - start)
        return metrics | {"learning_rate": self.optimizer.param_groups[0]["lr"]}


def measure_overhead(steps: int = 200, *, device: str = "cpu", interval: float = 1.0) -> MonitorOverhead:
    """Time training steps without and with a monitor that logs each of them to files and is ready to be scraped.

    Steps with and without take turns, so that whatever else the machine does meets both alike. The monitor runs
    throughout: what its thread takes from the steps between two calls, it takes from both; `sample_seconds` says it.

    Args:
        steps: steps to time, each way.
        device: "cpu" or "cuda".
        interval: of the monitor.

    Returns:
        A `MonitorOverhead`; step and log seconds are medians.
    """
    # TODO(task 5.5):
    # 1. A _Training, some steps to warm up, and a GPUMonitor that writes to a temporary folder.
    # 2. By turns: time a step; time a step and log_metrics, and log_metrics alone.
    # 3. Medians; the ratio; time sample() a few times.
    # --- solution: task 5.5 ---
    import tempfile

    training = _Training(device)
    for number in range(10):
        training.step(number)
    bare, monitored, logs, samples = [], [], [], []
    with tempfile.TemporaryDirectory() as folder, GPUMonitor(folder, port=0, interval=interval) as monitor:
        for number in range(steps):
            start = time.perf_counter()
            training.step(number)
            bare.append(time.perf_counter() - start)
            start = time.perf_counter()
            metrics = training.step(number)
            before_log = time.perf_counter()
            monitor.log_metrics(number, metrics)
            end = time.perf_counter()
            monitored.append(end - start)
            logs.append(end - before_log)
        for _ in range(5):
            start = time.perf_counter()
            monitor.sample()
            samples.append(time.perf_counter() - start)
        gpus = len(monitor.snapshot().gpus)
    return MonitorOverhead(
        device=device,
        steps=steps,
        interval_seconds=interval,
        gpus=gpus,
        bare_step_seconds=statistics.median(bare),
        monitored_step_seconds=statistics.median(monitored),
        overhead_ratio=statistics.median(monitored) / statistics.median(bare) - 1,
        log_seconds=statistics.median(logs),
        sample_seconds=statistics.mean(samples),
    )
    # --- end ---


def plot_history(history: Sequence[Snapshot], path: Path | str) -> Path:
    """Plot GPU 0's utilisation and power, or without GPUs the loss, over the seconds since the first snapshot.

    Args:
        history: one or more snapshots, oldest first.
        path: the PNG file to write.

    Returns:
        The path written.
    """
    # TODO(task 5.5):
    # 1. Take a figure of two columns, with an axis each, from labkit.plotting.new_figure(share_y=False).
    # 2. Draw what there is; leave out what is None.
    # 3. Save it with labkit.plotting.save_png.
    # --- solution: task 5.5 ---
    start = history[0].time
    figure, (left, right) = plotting.new_figure(
        "What the monitor saw", columns=2, x_label="seconds", y_label="", share_y=False
    )
    left.set_title("training loss")
    losses = [(seen.time - start, seen.metrics["loss"]) for seen in history if "loss" in seen.metrics]
    left.plot([x for x, _ in losses], [y for _, y in losses], color=plotting.COLORS[0])
    right.set_title("GPU 0")
    for field, label, color in (
        ("utilization_ratio", "utilisation, ratio", plotting.COLORS[1]),
        ("power_watts", "power, share of the limit", plotting.COLORS[2]),
    ):
        points = []
        for seen in history:
            for gpu in seen.gpus[:1]:
                value = getattr(gpu, field)
                limit = gpu.power_limit_watts if field == "power_watts" else 1.0
                if value is not None and limit:
                    points.append((seen.time - start, value / limit))
        right.plot([x for x, _ in points], [y for _, y in points], color=color, label=label)
    right.set_ylim(0, 1.05)
    right.legend(frameon=False, fontsize=9)
    return plotting.save_png(figure, path)
    # --- end ---


def main(argv: Sequence[str] | None = None) -> int:
    """Train under a monitor, then measure what it costs; write OUT/monitoring.json and OUT/monitoring.png.

    What it costs is measured with the model on the CPU, where a real clock runs, whatever the device is.

    Returns:
        0.
    """
    parser = program.make_parser(__doc__ or "", results=RESULTS)
    parser.add_argument("--steps", type=program.positive_int, default=400, help="training steps (default: 400)")
    parser.add_argument("--port", type=int, default=None, help="serve /metrics and a page for people at this port")
    parser.add_argument("--view", action="store_true", help="show what the monitor sees in this terminal")
    options = parser.parse_args(argv)
    overhead = measure_overhead(min(options.steps, 200))
    with open_device(options.device) as device:
        interval = 0.02 if device.simulated else 0.2  # a virtual GPU's time is short
        with GPUMonitor(port=options.port, interval=interval) as monitor, LiveView(monitor, shown=options.view):
            if monitor.url is not None:
                print(f"serving {monitor.url}")
            training = _Training(device.torch_device)
            for step in track(range(options.steps), "step"):
                monitor.log_metrics(step, training.step(step))
            monitor.sample()
            history = list(monitor.history)
        program.print_table(
            "What a monitor costs",
            ("bare step", "monitored step", "overhead", "log_metrics", "sample"),
            [
                (
                    f"{overhead.bare_step_seconds * 1e3:.3f} ms",
                    f"{overhead.monitored_step_seconds * 1e3:.3f} ms",
                    f"{overhead.overhead_ratio:.1%}",
                    f"{overhead.log_seconds * 1e6:.0f} µs",
                    f"{overhead.sample_seconds * 1e3:.2f} ms",
                )
            ],
        )
        # TODO(task 5.5):
        # 1. Save the overhead with save_json as OUT/monitoring.json, with device.provenance().
        # 2. Draw OUT/monitoring.png with plot_history.
        # 3. Print both paths with program.print_written.
        # --- solution: task 5.5 ---
        written = save_json(options.out / "monitoring.json", [overhead], device.provenance())
        program.print_written(written, plot_history(history, options.out / "monitoring.png"))
        # --- end ---
    return 0


if __name__ == "__main__":
    sys.exit(program.run(main))
