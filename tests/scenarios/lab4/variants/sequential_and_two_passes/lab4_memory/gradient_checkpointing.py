"""checkpoint_sequential, which keeps the last segment; plain blocks fill it up where the interval does not divide."""

import json
import statistics
import sys
import time
from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential

from labkit import plotting, program
from labkit.device import open_device
from labkit.models import TransformerBlock
from labkit.results import CheckpointingResult


class CheckpointedTransformer(nn.Sequential):
    def __init__(self, num_layers=12, *, width=256, heads=8, dropout=0.1, checkpoint_every=1):
        if num_layers < 1 or (checkpoint_every is not None and checkpoint_every < 1):
            raise ValueError("at least 1")
        super().__init__(*[TransformerBlock(width, heads, dropout=dropout) for _ in range(num_layers)])
        self.every = checkpoint_every

    def forward(self, x):
        if self.every and self.training and torch.is_grad_enabled():
            missing = -len(self) % self.every
            chain = [*self, *[nn.Identity()] * missing]
            return checkpoint_sequential(chain, len(chain) // self.every, x, use_reentrant=False)
        return super().forward(x)


def measure_checkpointing(
    intervals=(None, 1, 2, 3, 4, 6, 12), *, device="cuda", num_layers=12, width=512, heads=8, batch=8, length=512,
    steps=5, warmup=1,
):  # fmt: skip
    if steps < 1 or warmup < 0:
        raise ValueError("steps start at 1")
    table = []
    gpu = device != "cpu"
    for every in intervals:
        net = CheckpointedTransformer(num_layers, width=width, heads=heads, checkpoint_every=every)
        net = net.to(device).train()
        x = torch.randn(batch, length, width, device=device)
        times = []
        for index in range(warmup + steps):
            if gpu and index == warmup:
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
            for p in net.parameters():
                p.grad = None
            if gpu:
                torch.cuda.synchronize()
            begin = time.perf_counter()
            (net(x) ** 2).mean().backward()
            if gpu:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
        peak = torch.cuda.max_memory_allocated() if gpu else None
        seconds = statistics.median(times[warmup:])
        kind = "cuda" if gpu else "cpu"
        table.append(CheckpointingResult(device=kind, checkpoint_every=every, step_seconds=seconds, peak_bytes=peak))
        del net, x, p
    return table


def best_interval(results, *, budget_bytes):
    best = None
    for row in results:
        if row.peak_bytes > budget_bytes:
            continue
        faster = best is None or row.step_seconds < best.step_seconds
        if faster or (row.step_seconds == best.step_seconds and row.peak_bytes < best.peak_bytes):
            best = row
    if best is None:
        raise ValueError("nothing fits")
    return best


def plot_checkpointing(results, path):
    figure, (axes,) = plotting.new_figure("checkpointing", x_label="ms per step", y_label="peak in MiB")
    ordered = sorted(results, key=lambda row: row.step_seconds)
    axes.plot([row.step_seconds * 1e3 for row in ordered], [row.peak_bytes / 2**20 for row in ordered], "o--")
    for row in ordered:
        place = row.step_seconds * 1e3, row.peak_bytes / 2**20
        axes.annotate(f"interval {row.checkpoint_every or 'none'}", place, rotation=30)
    return plotting.save_png(figure, path)


def main(argv=None):
    parser = program.make_parser("checkpointing", results=Path(__file__).parent / "results")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--layers", type=int, default=12)
    options = parser.parse_args(argv)
    with open_device(options.device, values=False) as device:
        table = measure_checkpointing(device=device.torch_device, steps=options.steps, num_layers=options.layers)
        options.out.mkdir(parents=True, exist_ok=True)
        document = {
            "schema": 1,
            "kind": "CheckpointingResult",
            "provenance": asdict(device.provenance()),
            "results": [asdict(row) for row in table],
        }
        (options.out / "checkpointing.json").write_text(json.dumps(document))
        print("wrote checkpointing.json")
        if table[0].peak_bytes is not None:
            print("wrote", plot_checkpointing(table, options.out / "checkpointing.png"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
