"""Task 4.1: keep the inputs of a few segments instead of every activation, and compute the rest again in backward.

Not for attention (flash_attention.py), whose scores need not be kept in any case.

Run: python -m labs.lab4_memory.gradient_checkpointing
"""

import functools
import itertools
import operator
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from labkit import plotting, program
from labkit.device import open_device
from labkit.models import TransformerBlock
from labkit.progress import track
from labkit.results import CheckpointingResult, save_json

from .readings import now, peak_bytes, reset_peak

RESULTS = Path(__file__).parent / "results"
INTERVALS = (None, 1, 2, 3, 4, 6, 12)
MEBIBYTE = 2**20


class CheckpointedTransformer(nn.Module):
    """Transformer blocks one after the other, in segments that are checkpointed as one.

    Maps [N, length, width] to the same shape. In training mode, with gradients enabled, the forward pass keeps the
    input of each segment and nothing from inside it; backward computes a segment again when it gets there. Outputs and
    gradients are those of the same model without checkpointing, also with dropout: a block that is computed again
    draws the same random numbers as the first time, and the generators (the device's and the CPU's) go on afterwards as
    if nothing had happened. All of this holds whether or not the model's input requires a gradient, and with several
    forward passes before one backward pass. The gradients of all parameters are there in any case.

    The last segment may be kept as a whole, because backward needs it at once (`checkpoint_sequential` does that).

    In evaluation mode (`model.eval()`) and under `torch.no_grad()` nothing is checkpointed, and every block runs once.

    Args:
        num_layers: blocks, at least 1.
        width, heads, dropout: of each block, a `labkit.models.TransformerBlock`. Nothing else has parameters.
        checkpoint_every: blocks per segment (a length, not the number of segments); where it does not divide
            `num_layers` the last segment is shorter, and more than `num_layers` make one segment. None: no
            checkpointing. The names of the parameters do not depend on it, so one state dict fits every interval.

    Raises:
        ValueError: `num_layers` or `checkpoint_every` is below 1.

    Source: T. Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost" (arXiv:1604.06174), section 4;
        https://docs.pytorch.org/docs/stable/checkpoint.html
    """

    def __init__(
        self,
        num_layers: int = 12,
        *,
        width: int = 256,
        heads: int = 8,
        dropout: float = 0.1,
        checkpoint_every: int | None = 1,
    ) -> None:
        """Create the blocks; see the class."""
        super().__init__()
        if num_layers <= 0 or (checkpoint_every or 1) <= 0 or checkpoint_every == 0:
            raise ValueError(f"{num_layers} layers in segments of {checkpoint_every}")
        make = functools.partial(TransformerBlock, width, heads, dropout=dropout)
        self.blocks = nn.ModuleList(make() for _ in range(num_layers))
        self.interval = checkpoint_every

    def forward(self, x: Tensor) -> Tensor:
        """Run all blocks; see the class."""
        layers = list(self.blocks)
        whole = self.interval is None or not (self.training and torch.is_grad_enabled())
        if whole:
            return functools.reduce(lambda hidden, layer: layer(hidden), layers, x)
        remaining = iter(layers)
        for segment in iter(lambda: nn.Sequential(*itertools.islice(remaining, self.interval)), None):
            if not len(segment):
                break
            x = checkpoint(segment, x, use_reentrant=False)
        return x


def measure_checkpointing(
    intervals: Sequence[int | None] = INTERVALS,
    *,
    device: str = "cuda",
    num_layers: int = 12,
    width: int = 512,
    heads: int = 8,
    batch: int = 8,
    length: int = 512,
    steps: int = 5,
    warmup: int = 1,
) -> list[CheckpointingResult]:
    """Measure time and memory of a training step with each interval.

    A step: gradients to None, the model's output for one input that lies on the device and requires no gradient, the
    mean of its squares, backward. No optimizer. Nothing may look at a value: a virtual GPU that computes shapes only,
    which is enough here and fast, has no values to look at.

    Args:
        intervals: values of `checkpoint_every`.
        device: "cuda" or "cpu".
        num_layers, width, heads: of `CheckpointedTransformer`, in training mode with its default dropout.
        batch, length: of the input, [batch, length, width] float32.
        steps: timed steps per interval.
        warmup: steps before them, untimed.

    Returns:
        One `CheckpointingResult` per interval, in order: step_seconds is the *median* over the timed steps, each timed
        from an idle device to an idle device; peak_bytes is the most that was allocated on the device during them,
        everything included. The model of one interval is gone before the next is made.

    Raises:
        ValueError: `steps` is below 1 or `warmup` below 0.
    """
    # readings.median_seconds and readings.peak_bytes.
    if steps <= 0 or warmup < 0:
        raise ValueError("one step at least, and no negative warm-up")

    def measured(interval: int | None) -> CheckpointingResult:
        model = CheckpointedTransformer(num_layers, width=width, heads=heads, checkpoint_every=interval).to(device)
        tokens = torch.rand(batch, length, width).to(device)
        marks = []
        for number in range(warmup + steps):
            if number == warmup:
                reset_peak(device)
            marks.append(now(device))
            for parameter in model.parameters():
                parameter.grad = None
            torch.mean(model(tokens) ** 2).backward()
        marks.append(now(device))
        return CheckpointingResult(
            device=torch.device(device).type,
            checkpoint_every=interval,
            step_seconds=float(np.median(np.diff(marks)[warmup:])),
            peak_bytes=peak_bytes(device),
        )

    return [measured(interval) for interval in intervals]


def best_interval(results: Sequence[CheckpointingResult], *, budget_bytes: int) -> CheckpointingResult:
    """The interval to train with when a step may take `budget_bytes` at its peak.

    Args:
        results: measurements, in any order; all with a peak.
        budget_bytes: what a step may take; exactly that much is still allowed.

    Returns:
        Of the results whose peak fits, the one with the fewest seconds per step; of equally fast ones the one with the
        smallest peak.

    Raises:
        ValueError: none fits.
    """
    affordable = sorted(
        (result for result in results if result.peak_bytes is not None and budget_bytes >= result.peak_bytes),
        key=operator.attrgetter("step_seconds", "peak_bytes"),
    )
    for best in affordable:
        return best
    raise ValueError(f"{budget_bytes} bytes are too few for each interval")


def plot_checkpointing(results: Sequence[CheckpointingResult], path: Path | str) -> Path:
    """Plot the peak in MiB against the milliseconds of a step, one labelled point per interval.

    Args:
        results: one or more, with peaks.
        path: the PNG file to write.

    Returns:
        The path written.

    Raises:
        OSError: the file cannot be written.
    """
    # --- solution: task 4.1 ---
    figure, (axis,) = plotting.new_figure(
        "Checkpointing: memory against time", x_label="milliseconds per step", y_label="peak MiB"
    )
    for result in results:
        point = (result.step_seconds * 1e3, (result.peak_bytes or 0) / MEBIBYTE)
        kept = result.checkpoint_every is None
        axis.plot(*point, "s" if kept else "o", color=plotting.COLORS[1 if kept else 0])
        label = "none" if kept else f"every {result.checkpoint_every}"
        axis.annotate(label, point, xytext=(7, 4), textcoords="offset points")
    axis.margins(x=0.15, y=0.08)
    axis.set_ylim(bottom=0)
    return plotting.save_png(figure, path)
    # --- end ---


def main(argv: Sequence[str] | None = None) -> int:
    """Measure all intervals; print a table; write OUT/checkpointing.json and OUT/checkpointing.png.

    A CPU gives no peaks, and so there is no picture. The paths of what was written are printed.

    Both files say that a virtual GPU was used, where it was: the picture with the word "simulated".

    Returns:
        0.
    """
    parser = program.make_parser(__doc__ or "", results=RESULTS)
    parser.add_argument("--steps", type=program.positive_int, default=5, metavar="N", help="timed steps per interval")
    parser.add_argument("--layers", type=program.positive_int, default=12, metavar="N", help="blocks of the model")
    options = parser.parse_args(argv)
    # Only times and memory matter here, so a virtual GPU need not compute any number.
    with open_device(options.device, values=False) as device:
        size: dict[str, int] = {"width": 64, "batch": 2, "length": 64} if device.torch_device == "cpu" else {}
        size["num_layers"] = options.layers
        results: list[CheckpointingResult] = []
        for interval in track(INTERVALS, "checkpointing", lambda interval: f"interval {interval}"):
            results += measure_checkpointing([interval], device=device.torch_device, steps=options.steps, **size)
        plain = results[0]
        rows = [
            (
                result.checkpoint_every or "none",
                f"{result.step_seconds * 1e3:.4g}",
                f"{result.step_seconds / plain.step_seconds - 1:+.1%}",
                "-" if result.peak_bytes is None else f"{result.peak_bytes / MEBIBYTE:.1f}",
            )
            for result in results
        ]
        program.print_table("Checkpointing", ("interval", "ms per step", "more time", "peak MiB"), rows)
        # --- solution: task 4.1 ---
        written = [save_json(options.out / "checkpointing.json", results, device.provenance())]
        if plain.peak_bytes is not None:
            half = plain.peak_bytes // 2
            try:
                best = f"checkpoint every {best_interval(results, budget_bytes=half).checkpoint_every}"
            except ValueError:
                best = "no interval fits"
            print(f"best within {half / MEBIBYTE:.0f} MiB: {best}")
            written.append(plot_checkpointing(results, options.out / "checkpointing.png"))
        program.print_written(*written)
        # --- end ---
    return 0


if __name__ == "__main__":
    sys.exit(program.run(main))
