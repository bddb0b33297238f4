import sys
import time
from pathlib import Path
from statistics import median

import torch
from torch.utils.checkpoint import checkpoint

from labkit import plotting, program
from labkit.device import open_device
from labkit.models import TransformerBlock
from labkit.results import CheckpointingResult, save_json


class CheckpointedTransformer(torch.nn.ModuleList):
    def __init__(self, num_layers=12, *, width=256, heads=8, dropout=0.1, checkpoint_every=1):
        if min(num_layers, 1 if checkpoint_every is None else checkpoint_every) < 1:
            raise ValueError
        super().__init__(TransformerBlock(width, heads, dropout=dropout) for _ in range(num_layers))
        self.n = checkpoint_every

    def forward(self, x):
        on = self.n is not None and self.training and torch.is_grad_enabled()
        n = self.n if on else len(self)
        for s in [torch.nn.Sequential(*list(self)[i : i + n]) for i in range(0, len(self), n)]:
            x = checkpoint(s, x, use_reentrant=False, determinism_check="none") if on else s(x)
        return x


def measure_checkpointing(
    intervals=(None, 1, 2, 3, 4, 6, 12),
    *,
    device="cuda",
    num_layers=12,
    width=512,
    heads=8,
    batch=8,
    length=512,
    steps=5,
    warmup=1,
):
    if steps < 1 or warmup < 0:
        raise ValueError
    return [one(i, device, num_layers, width, heads, (batch, length, width), steps, warmup) for i in intervals]


def one(i, device, num_layers, width, heads, shape, steps, warmup):
    wait = torch.cuda.synchronize if device != "cpu" else bool
    m = CheckpointedTransformer(num_layers, width=width, heads=heads, checkpoint_every=i).to(device)
    x, t = torch.ones(shape, device=device), []
    for k in range(warmup + steps):
        if k == warmup and device != "cpu":
            torch.cuda.reset_peak_memory_stats()
        wait()
        a = time.perf_counter()
        m.zero_grad()
        m(x).pow(2).mean().backward()
        wait()
        t += [time.perf_counter() - a]
    peak = torch.cuda.max_memory_allocated() if device != "cpu" else None
    kind = torch.device(device).type
    return CheckpointingResult(device=kind, checkpoint_every=i, step_seconds=median(t[warmup:]), peak_bytes=peak)


def best_interval(results, *, budget_bytes):
    return min((r for r in results if r.peak_bytes <= budget_bytes), key=lambda r: (r.step_seconds, r.peak_bytes))


def plot_checkpointing(results, path):
    f, (a,) = plotting.new_figure("memory and time", x_label="ms", y_label="MiB")
    a.scatter([r.step_seconds * 1e3 for r in results], [r.peak_bytes / 2**20 for r in results])
    for r in results:
        a.text(r.step_seconds * 1e3, r.peak_bytes / 2**20, str(r.checkpoint_every))
    return plotting.save_png(f, path)


def main(argv=None):
    p = program.make_parser("checkpointing", results=Path(__file__).parent / "results")
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--layers", type=int, default=12)
    o = p.parse_args(argv)
    with open_device(o.device, values=False) as d:
        r = measure_checkpointing(steps=o.steps, num_layers=o.layers, device=d.torch_device)
        j = save_json(o.out / "checkpointing.json", r, d.provenance())
        program.print_written(j, *([plot_checkpointing(r, o.out / "checkpointing.png")] if r[0].peak_bytes else []))
    return 0


if __name__ == "__main__":
    sys.exit(program.run(main))
