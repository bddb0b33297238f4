"""Where a monitor writes: each sink is a function that takes a snapshot."""

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path

from labkit.monitoring import Snapshot

from .exporting import jsonl_line, write_tensorboard


def say(text: str) -> None:
    """One line on standard error, if there is one."""
    with contextlib.suppress(OSError, ValueError):
        print(" ".join(text.split()), file=sys.stderr, flush=True)


def _quietly(close: Callable[[], None]) -> None:
    with contextlib.suppress(OSError):
        close()


def open_sinks(folder: Path, opened: contextlib.ExitStack) -> list[Callable[[Snapshot], None]]:
    """metrics.jsonl and TensorBoard's events in a folder, which `opened` closes."""
    from torch.utils.tensorboard import SummaryWriter

    folder.mkdir(parents=True, exist_ok=True)
    lines = open(folder / "metrics.jsonl", "a+b")
    opened.callback(_quietly, lines.close)
    if lines.seek(0, 2):
        lines.seek(-1, 2)
        if lines.read(1) != b"\n":  # a killed process left half a line
            lines.write(b"\n")
    writer = SummaryWriter(str(folder))
    opened.callback(_quietly, writer.close)

    def write_line(snapshot: Snapshot) -> None:
        lines.write(jsonl_line(snapshot).encode())
        lines.flush()

    return [write_line, lambda snapshot: write_tensorboard(writer, snapshot)]
