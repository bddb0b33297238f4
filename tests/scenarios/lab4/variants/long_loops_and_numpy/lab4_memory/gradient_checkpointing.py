"""Task 4.1: keep the inputs of a few segments instead of every activation, and compute the rest again in backward.

Not for attention (flash_attention.py), whose scores need not be kept in any case.

Run: python -m labs.lab4_memory.gradient_checkpointing
"""

import sys
import timeit
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from labkit import plotting, program
from labkit.device import open_device
from labkit.models import TransformerBlock
from labkit.progress import track
from labkit.results import CheckpointingResult, save_json

RESULTS = Path(__file__).parent / "results"
INTERVALS = (None, 1, 2, 3, 4, 6, 12)
MEBIBYTE = 2**20


class Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, n, x, *weights):
        ctx.run, ctx.n = run, n
        ctx.cpu = torch.get_rng_state()
        ctx.gpu = torch.cuda.get_rng_state(x.device) if x.is_cuda else None
        ctx.cast = torch.is_autocast_enabled(x.device.type), torch.get_autocast_dtype(x.device.type)
        ctx.save_for_backward(x)
        ctx.weights = weights
        for i in range(*n):
            x = run[i](x)
        return x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        keep_cpu = torch.get_rng_state()
        keep_gpu = torch.cuda.get_rng_state(x.device) if x.is_cuda else None
        x = x.detach().requires_grad_(ctx.needs_input_grad[2])
        torch.set_rng_state(ctx.cpu)
        if x.is_cuda:
            torch.cuda.set_rng_state(ctx.gpu, x.device)
        y = x
        try:
            with torch.enable_grad(), torch.autocast(x.device.type, enabled=ctx.cast[0], dtype=ctx.cast[1]):
                for i in range(*ctx.n):
                    y = ctx.run[i](y)
        finally:
            torch.set_rng_state(keep_cpu)
            if x.is_cuda:
                torch.cuda.set_rng_state(keep_gpu, x.device)
        wanted = [t for t in (x, *ctx.weights) if t.requires_grad]
        found = iter(torch.autograd.grad(y, wanted, grad))
        return None, None, *(next(found) if t.requires_grad else None for t in (x, *ctx.weights))


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
        if num_layers < 1:
            raise ValueError("num_layers < 1")
        self.step = checkpoint_every
        if checkpoint_every is not None and checkpoint_every < 1:
            raise ValueError("checkpoint_every < 1")
        self.layers = nn.ModuleList()
        while len(self.layers) < num_layers:
            self.layers.append(TransformerBlock(width, heads, dropout=dropout))

    def forward(self, x: Tensor) -> Tensor:
        """Run all blocks; see the class."""
        total = len(self.layers)
        i = 0
        while i < total:
            plain = self.step is None or not self.training or not torch.is_grad_enabled()
            if plain or i + self.step >= total:
                for j in range(i, total):
                    x = self.layers[j](x)
                return x
            weights = []
            for j in range(i, i + self.step):
                weights += list(self.layers[j].parameters())
            x = Replay.apply(self.layers, (i, i + self.step), x, *weights)
            i += self.step
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
    if steps < 1 or warmup < 0:
        raise ValueError("steps < 1 or warmup < 0")
    gpu = torch.device(device).type == "cuda"
    out = []
    for k in intervals:
        m = CheckpointedTransformer(num_layers, width=width, heads=heads, checkpoint_every=k)
        m = m.to(device)
        m.train()
        x = torch.from_numpy(np.random.default_rng(0).standard_normal((batch, length, width), dtype=np.float32)).to(
            device
        )
        s = np.zeros(warmup + steps)
        for i in range(warmup + steps):
            if gpu:
                torch.cuda.synchronize(device)
                if i == warmup:
                    torch.cuda.reset_peak_memory_stats(device)
            t = timeit.default_timer()
            for p in m.parameters():
                p.grad = None
            y = m(x)
            loss = (y * y).mean()
            loss.backward()
            if gpu:
                torch.cuda.synchronize(device)
            s[i] = timeit.default_timer() - t
            del y, loss
        peak = torch.cuda.memory_stats(device)["allocated_bytes.all.peak"] if gpu else None
        out.append(
            CheckpointingResult(
                device="cuda" if gpu else "cpu",
                checkpoint_every=k,
                step_seconds=float(np.median(s[warmup:])),
                peak_bytes=peak,
            )
        )
        del m, x, p
    return out


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
    best = None
    for r in results:
        if r.peak_bytes > budget_bytes:
            continue
        if (
            best is None
            or r.step_seconds < best.step_seconds
            or (r.step_seconds == best.step_seconds and r.peak_bytes < best.peak_bytes)
        ):
            best = r
    if best is None:
        raise ValueError("no interval fits")
    return best


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
    fig, axes = plotting.new_figure("checkpointing")
    ax = axes[0]
    ax.set_xlabel("ms")
    ax.set_ylabel("MiB")
    ax.scatter(np.array([r.step_seconds for r in results]) * 1000, np.array([r.peak_bytes for r in results]) / MEBIBYTE)
    for r in results:
        ax.annotate(f"{r.checkpoint_every}", (r.step_seconds * 1000, r.peak_bytes / MEBIBYTE))
    return plotting.save_png(fig, Path(path))


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
        for interval in track(INTERVALS, "interval"):
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
        j = save_json(options.out / "checkpointing.json", results, device.provenance())
        if plain.peak_bytes is None:
            program.print_written(j)
        else:
            fits = [r for r in results if r.peak_bytes * 2 <= plain.peak_bytes]
            print(
                "best for half the memory:",
                best_interval(fits, budget_bytes=plain.peak_bytes).checkpoint_every if fits else "none fits",
            )
            program.print_written(j, plot_checkpointing(results, options.out / "checkpointing.png"))
    return 0


if __name__ == "__main__":
    sys.exit(program.run(main))
