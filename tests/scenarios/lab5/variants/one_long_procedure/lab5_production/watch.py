"""Task 5.5: train under a monitor, and measure what the monitor costs the training.

Not for monitoring (monitor.py), nor for a real training: train.py.

Run: python -m labs.lab5_production.watch [--port 9400] [--view]
"""

import contextlib
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
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
    seconds = {"bare": np.zeros(steps), "monitored": np.zeros(steps), "log": np.zeros(steps)}
    for number in range(5):
        training.step(number)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        monitor = stack.enter_context(GPUMonitor(folder, port=0, interval=interval))
        for number in range(steps):
            first = number % 4 in (0, 3)
            for monitored in (first, not first):
                start = time.perf_counter()
                metrics = training.step(number)
                if not monitored:
                    seconds["bare"][number] = time.perf_counter() - start
                    continue
                before = time.perf_counter()
                monitor.log_metrics(number, metrics)
                end = time.perf_counter()
                seconds["monitored"][number] = end - start
                seconds["log"][number] = end - before
        samples = np.zeros(7)
        for number in range(len(samples)):
            start = time.perf_counter()
            monitor.sample()
            samples[number] = time.perf_counter() - start
        gpus = len(monitor.snapshot().gpus)
    median = {name: float(np.median(all_seconds)) for name, all_seconds in seconds.items()}
    return MonitorOverhead(
        device=device,
        steps=steps,
        interval_seconds=interval,
        gpus=gpus,
        bare_step_seconds=median["bare"],
        monitored_step_seconds=median["monitored"],
        overhead_ratio=median["monitored"] / median["bare"] - 1,
        log_seconds=median["log"],
        sample_seconds=float(samples.mean()),
    )


def plot_history(history: Sequence[Snapshot], path: Path | str) -> Path:
    """Plot the loss, and GPU 0's utilisation and power (a share of its limit), over seconds since the first snapshot.

    Args:
        history: one or more snapshots, oldest first.
        path: the PNG file to write.

    Returns:
        The path written.
    """
    rows = []
    for seen in history:
        loss, busy, power = seen.metrics.get("loss"), None, None
        for gpu in seen.gpus:
            if gpu.index == 0:
                busy = gpu.utilization_ratio
                if gpu.power_watts is not None and gpu.power_limit_watts:
                    power = gpu.power_watts / gpu.power_limit_watts
        rows.append([seen.time - history[0].time, *(np.nan if each is None else each for each in (loss, busy, power))])
    table = np.array(rows, dtype=np.float64)
    figure, axes = plotting.new_figure("A monitored training", columns=2, x_label="seconds", share_y=False)
    axes[0].set_ylabel("loss")
    axes[1].set_ylabel("share (GPU 0)")
    names = {1: (0, "loss"), 2: (1, "utilisation"), 3: (1, "power / limit")}
    for column, (axis, label) in names.items():
        there = np.isfinite(table[:, column])
        if there.any():
            color = plotting.COLORS[column - 1]
            axes[axis].plot(table[there, 0], table[there, column], color=color, label=label, marker=".")
            axes[axis].legend(loc="best")
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
    print("first what a monitor costs, beside a training on the CPU")
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
        program.print_written(
            save_json(options.out / "monitoring.json", [overhead], device.provenance()),
            plot_history(history, options.out / "monitoring.png"),
        )
    return 0


if __name__ == "__main__":
    sys.exit(program.run(main))
