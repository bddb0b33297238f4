"""Given: TensorBoard's entries of a run, written by one process. Nothing to write here.

Not for sampling a GPU (monitor.py).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from labkit.monitoring.exports import write_scalars

SINK_NAMES = {
    "train/loss": "loss",
    "train/learning_rate": "learning_rate",
    "train/grad_norm": "gradient_norm",
    "train/samples_per_second": "throughput",
    "validation/accuracy": "accuracy",
}
"""What a `GPUMonitor`'s rules and dashboards call the metrics; others keep TensorBoard's names."""


class MetricSink(Protocol):
    """An object that takes the trainer's metrics, a `GPUMonitor` for example."""

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of one step."""


class Log:
    """TensorBoard entries below `folder`, opened with the first entry.

    Args:
        folder: for the event files.
        sink: gets the same under SINK_NAMES, if there is one.
    """

    def __init__(self, folder: Path, sink: MetricSink | None = None) -> None:
        self._folder, self._sink = folder, sink
        self._writer: Any = None
        self._resumed_at: int | None = None

    def resume_at(self, step: int) -> None:
        """Entries of later steps than this one, which a killed run may have left, no longer count."""
        self.close()
        self._resumed_at = step

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """One entry for each metric."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter  # not at the top: it costs half a second in every rank

            purge = None if self._resumed_at is None else self._resumed_at + 1
            self._writer = SummaryWriter(str(self._folder), purge_step=purge)
        write_scalars(self._writer, metrics, step)
        if self._sink is not None:
            self._sink.log_metrics(step, {SINK_NAMES.get(name, name): value for name, value in metrics.items()})

    def close(self) -> None:
        """Write what is left; harmless if nothing was added, and the log can still be added to."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
