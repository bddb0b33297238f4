"""Segments as modules of their own, made once; hooks that forget what was saved and compute it again when asked."""

import sys
import time
from pathlib import Path

import torch
from torch import nn

from labkit import plotting, program
from labkit.device import open_device
from labkit.models import TransformerBlock
from labkit.results import CheckpointingResult, save_json


class _Segment(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.inner = nn.ModuleList(blocks)

    def plain(self, x):
        for block in self.inner:
            x = block(x)
        return x

    def forward(self, x):
        """Saved-tensor hooks: a number goes in, and the first one that is asked for computes all of them again."""
        devices = [x.device] if x.is_cuda else []
        seed_cpu, seed_gpu = torch.get_rng_state(), [torch.cuda.get_rng_state(d) for d in devices]
        cast = {"dtype": torch.get_autocast_dtype("cuda"), "enabled": torch.is_autocast_enabled("cuda")}
        kept, count = {}, [0]
        source = x.detach()

        def pack(_):
            count[0] += 1
            return count[0] - 1

        def unpack(index):
            if not kept:
                place = iter(range(count[0]))
                with torch.random.fork_rng(devices), torch.enable_grad(), torch.autocast("cuda", **cast):
                    torch.set_rng_state(seed_cpu)
                    for d, state in zip(devices, seed_gpu, strict=True):
                        torch.cuda.set_rng_state(state, d)
                    again = source.detach().requires_grad_()
                    with torch.autograd.graph.saved_tensors_hooks(
                        lambda t: kept.__setitem__(next(place), t.detach()), lambda _: None
                    ):
                        self.plain(again)
            return kept.pop(index)

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            return self.plain(x)


class CheckpointedTransformer(nn.Module):
    def __init__(self, num_layers=12, *, width=256, heads=8, dropout=0.1, checkpoint_every=1):
        super().__init__()
        if num_layers < 1 or (checkpoint_every is not None and checkpoint_every < 1):
            raise ValueError("1 at least")
        self.checkpointed = checkpoint_every is not None
        blocks = [TransformerBlock(width, heads, dropout=dropout) for _ in range(num_layers)]
        step = checkpoint_every or num_layers
        self.blocks = nn.ModuleList(blocks)
        # A plain list: the names of the parameters do not depend on the interval.
        self.segments = [_Segment(blocks[i : i + step]) for i in range(0, num_layers, step)]

    def forward(self, x):
        remember = not (self.checkpointed and self.training and torch.is_grad_enabled())
        for segment in self.segments:
            x = segment.plain(x) if remember else segment(x)
        return x


def measure_checkpointing(
    intervals=(None, 1, 2, 3, 4, 6, 12), *, device="cuda", num_layers=12, width=512, heads=8, batch=8, length=512,
    steps=5, warmup=1,
):  # fmt: skip
    if steps < 1 or warmup < 0:
        raise ValueError("steps")
    on_gpu = torch.device(device).type == "cuda"
    results = []
    for interval in intervals:
        model = CheckpointedTransformer(num_layers, width=width, heads=heads, checkpoint_every=interval).to(device)
        inputs = torch.ones(batch, length, width, device=device)
        times = []
        for index in range(warmup + steps):
            if on_gpu and index == warmup:
                torch.cuda.reset_peak_memory_stats()
            begin = time.perf_counter()
            if on_gpu:
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                torch.cuda.synchronize()
                start.record()
            for parameter in model.parameters():
                parameter.grad = None
            output = model(inputs)
            loss = output.pow(2).mean()
            loss.backward()
            if on_gpu:
                end.record()
                end.synchronize()
            times.append(start.elapsed_time(end) / 1000 if on_gpu else time.perf_counter() - begin)
        times = sorted(times[warmup:])
        results.append(
            CheckpointingResult(
                device=torch.device(device).type,
                checkpoint_every=interval,
                step_seconds=times[len(times) // 2],
                peak_bytes=torch.cuda.max_memory_allocated() if on_gpu else None,
            )
        )
        del model, inputs, output, loss, parameter
    return results


def best_interval(results, *, budget_bytes):
    order = sorted((r.step_seconds, r.peak_bytes, i) for i, r in enumerate(results) if r.peak_bytes <= budget_bytes)
    if not order:
        raise ValueError("no interval fits")
    return results[order[0][2]]


def plot_checkpointing(results, path):
    figure, (axis,) = plotting.new_figure("checkpointing", x_label="ms", y_label="MiB")
    axis.scatter([r.step_seconds * 1e3 for r in results], [r.peak_bytes / 2**20 for r in results])
    for r in results:
        axis.text(r.step_seconds * 1e3, r.peak_bytes / 2**20, str(r.checkpoint_every))
    return plotting.save_png(figure, path)


def main(argv=None):
    parser = program.make_parser("checkpointing", results=Path(__file__).parent / "results")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--layers", type=int, default=12)
    options = parser.parse_args(argv)
    with open_device(options.device, values=False) as device:
        table = measure_checkpointing(steps=options.steps, num_layers=options.layers, device=device.torch_device)
        print(save_json(options.out / "checkpointing.json", table, device.provenance()))
        if device.torch_device != "cpu":
            print(plot_checkpointing(table, options.out / "checkpointing.png"))
    return 0


if __name__ == "__main__":
    sys.exit(program.run(main))
