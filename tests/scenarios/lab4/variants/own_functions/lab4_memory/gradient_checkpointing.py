"""Checkpointing by an autograd function of one's own, with the states of both generators."""

import contextlib
import sys
from pathlib import Path

import torch
from torch import nn

from labkit import plotting, program
from labkit.device import open_device
from labkit.models import TransformerBlock
from labkit.results import CheckpointingResult, save_json

from .readings import median_seconds, peak_bytes


def _state(device):
    return torch.get_rng_state(), torch.cuda.get_rng_state() if device.type == "cuda" else None


def _restore(state):
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1])


@contextlib.contextmanager
def _as_before(state, device):
    present = _state(device)
    _restore(state)
    yield
    _restore(present)


class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, segment, x, *parameters):
        ctx.segment, ctx.state = segment, _state(x.device)
        ctx.save_for_backward(x)
        ctx.parameters = parameters
        with torch.no_grad():
            return segment(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with _as_before(ctx.state, x.device), torch.enable_grad():
            output = ctx.segment(x)
        gradients = torch.autograd.grad(output, (x, *ctx.parameters), gradient)
        return None, *gradients


class CheckpointedTransformer(nn.Module):
    def __init__(self, num_layers=12, *, width=256, heads=8, dropout=0.1, checkpoint_every=1):
        super().__init__()
        if num_layers < 1 or (checkpoint_every is not None and checkpoint_every < 1):
            raise ValueError
        self.stack = nn.Sequential()
        for number in range(num_layers):
            self.stack.add_module(f"block_{number}", TransformerBlock(width, heads, dropout=dropout))
        self.interval = checkpoint_every

    def forward(self, x):
        if self.interval is None or not (self.training and torch.is_grad_enabled()):
            return self.stack(x)
        first = 0
        while first < len(self.stack):
            segment = self.stack[first : first + self.interval]
            x = Recompute.apply(segment, x, *segment.parameters())
            first += self.interval
        return x


def measure_checkpointing(
    intervals=(None, 1, 2, 3, 4, 6, 12), *, device="cuda", num_layers=12, width=512, heads=8, batch=8, length=512,
    steps=5, warmup=1,
):  # fmt: skip
    if not (steps > 0 <= warmup):
        raise ValueError

    def measure(interval):
        model = CheckpointedTransformer(num_layers, width=width, heads=heads, checkpoint_every=interval).to(device)
        x = torch.zeros(batch, length, width, device=device)

        def step():
            model.zero_grad()
            torch.mean(torch.square(model(x))).backward()

        took = median_seconds(step, device, steps=steps, warmup=warmup)
        return CheckpointingResult(
            device=device, checkpoint_every=interval, step_seconds=took, peak_bytes=peak_bytes(device)
        )

    return [measure(interval) for interval in intervals]


def best_interval(results, *, budget_bytes):
    fitting = sorted((r.step_seconds, r.peak_bytes, i) for i, r in enumerate(results) if r.peak_bytes <= budget_bytes)
    if fitting:
        return results[fitting[0][2]]
    raise ValueError("too small a budget")


def plot_checkpointing(results, path):
    figure, (axis,) = plotting.new_figure("memory")
    for r in results:
        axis.plot([1000 * r.step_seconds], [r.peak_bytes / 1048576], "x", label=f"{r.checkpoint_every} blocks")
    axis.set(xlabel="ms", ylabel="MiB")
    axis.legend()
    return plotting.save_png(figure, path)


def main(argv=None):
    parser = program.make_parser("x", results=Path(__file__).parent / "results")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--layers", type=int, default=12)
    options = parser.parse_args(argv)
    with open_device(options.device, values=False) as device:
        rows = measure_checkpointing(device=device.torch_device, num_layers=options.layers, steps=options.steps)
        program.print_written(save_json(options.out / "checkpointing.json", rows, device.provenance()))
        if rows[0].peak_bytes:
            program.print_written(plot_checkpointing(rows, options.out / "checkpointing.png"))
    return 0


if __name__ == "__main__":
    sys.exit(program.run(main))
