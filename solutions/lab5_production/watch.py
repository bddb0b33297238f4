"""Given: train under a monitor, and measure what the monitor costs the training. Nothing to write here.

Not for monitoring (monitor.py), nor for a real training: train.py.

Run: python -m labs.lab5_production.watch [--port 9400] [--view]
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from labkit import data, models, plotting, program
from labkit.device import open_device
from labkit.monitoring import Snapshot
from labkit.monitoring.terminal import LiveView
from labkit.progress import track
from labkit.results import MonitorOverhead, save_json

from .monitor import GPUMonitor

RESULTS = Path(__file__).parent / "results"
LOADING_SECONDS = 0.005
"""What a loader would take for a batch, so that there is something to see: the GPU waits for most of the time."""


class _Training:
    """A small model on the digits, one step at a time."""

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

    Steps with and without take turns, and neither always comes first, so that whatever else the machine does meets both
    alike. The monitor runs throughout: what its thread takes from the steps between two calls, it takes from both;
    `sample_seconds` says it.

    Args:
        steps: steps to time, each way.
        device: "cpu" or "cuda".
        interval: of the monitor.

    Returns:
        A `MonitorOverhead`; step and log seconds are medians.
    """
    training = _Training(device)
    for number in range(10):
        training.step(number)
    bare, monitored, logs, samples = [], [], [], []
    with tempfile.TemporaryDirectory() as folder, GPUMonitor(folder, port=0, interval=interval) as monitor:
        for number in range(2 * steps):
            start = time.perf_counter()
            metrics = training.step(number)
            trained = time.perf_counter()
            if number % 4 in (0, 3):  # without, with, with, without: neither always comes first
                bare.append(trained - start)
                continue
            monitor.log_metrics(number, metrics)
            end = time.perf_counter()
            monitored.append(end - start)
            logs.append(end - trained)
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


def plot_history(history: Sequence[Snapshot], path: Path | str) -> Path:
    """Plot the loss, and GPU 0's utilisation and power (a share of its limit), over seconds since the first snapshot.

    Args:
        history: one or more snapshots, oldest first.
        path: the PNG file to write.

    Returns:
        The path written.
    """
    start = history[0].time
    figure, (left, right) = plotting.new_figure(
        "What the monitor saw", columns=2, x_label="seconds", y_label="", share_y=False
    )
    left.set_title("training loss")
    losses = [(snapshot.time - start, snapshot.metrics["loss"]) for snapshot in history if "loss" in snapshot.metrics]
    left.plot([x for x, _ in losses], [y for _, y in losses], color=plotting.COLORS[0])
    right.set_title("GPU 0")
    for field, label, color in (
        ("utilization_ratio", "utilisation, ratio", plotting.COLORS[1]),
        ("power_watts", "power, share of the limit", plotting.COLORS[2]),
    ):
        points = []
        for snapshot in history:
            for gpu in snapshot.gpus[:1]:
                value = getattr(gpu, field)
                limit = gpu.power_limit_watts if field == "power_watts" else 1.0
                if value is not None and limit:
                    points.append((snapshot.time - start, value / limit))
        right.plot([x for x, _ in points], [y for _, y in points], color=color, label=label)
    right.set_ylim(0, 1.05)
    right.legend(frameon=False, fontsize=9)
    return plotting.save_png(figure, path)


def main(argv: Sequence[str] | None = None) -> int:
    """Train under a monitor, then measure what it costs; write OUT/monitoring.json and OUT/monitoring.png.

    What it costs is measured with the model on the CPU, where a real clock runs, whatever the device is.

    Returns:
        0.
    """
    parser = program.make_parser(__doc__ or "", results=RESULTS)
    parser.add_argument("--steps", type=program.positive_int, default=400, help="training steps")
    parser.add_argument("--port", type=int, default=None, help="serve /metrics and a page for people at this port")
    parser.add_argument("--view", action="store_true", help="show what the monitor sees in this terminal")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)  # small products: more threads bring nothing, and wait for each other on a busy machine
    print("first what a monitor costs, compared with a training on the CPU")
    overhead = measure_overhead(min(options.steps, 200))
    with open_device(options.device) as device:
        interval = 0.02 if device.simulated else 0.2  # a virtual GPU's time is short
        with GPUMonitor(port=options.port, interval=interval) as monitor, LiveView(monitor, shown=options.view):
            if monitor.url is not None:
                print(f"serving {monitor.url}")
            training = _Training(device.torch_device)
            steps = range(options.steps)
            for step in steps if options.view else track(steps, "step"):
                time.sleep(LOADING_SECONDS)
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
        written = save_json(options.out / "monitoring.json", [overhead], device.provenance())
        program.print_written(written, plot_history(history, options.out / "monitoring.png"))
    return 0


if __name__ == "__main__":
    sys.exit(program.run(main))
