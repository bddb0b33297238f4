"""Closures and a generator of micro-batches; the optimizer fused where that works; no classes but the model."""

import contextlib
import itertools
import sys

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from labkit import program
from labkit.device import GPU_24_GB, is_simulated, open_device
from labkit.results import LargeTraining, save_json

from .oom_retry import run_with_oom_retry


class VeryLargeModel(nn.Module):
    def __init__(self, num_layers=48, hidden_size=4096):
        super().__init__()
        self.layers = nn.ModuleList(itertools.starmap(nn.Linear, [(hidden_size, hidden_size)] * num_layers))

    def forward(self, x):
        *first, last = self.layers
        for layer in first:
            x = F.relu(layer(x), inplace=True)
        return last(x)


def pieces(loader, size):
    """(batch's samples, data, target) of each micro-batch, batch by batch."""
    for data, target in loader:
        yield [(len(data), data[i : i + size], target[i : i + size]) for i in range(0, len(data), size)]


def train_large_model(
    model, train_loader, val_loader, *, epochs=1, micro_batch=8, learning_rate=1e-4, criterion=F.mse_loss
):
    if micro_batch <= 0:
        raise ValueError(f"micro_batch={micro_batch}")
    where = next(model.parameters()).device
    on_gpu = where.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(where)
    adam = torch.optim.Adam(model.parameters(), lr=learning_rate, foreach=not on_gpu)

    def run(batches, *, learn):
        found = []
        model.train(learn)
        mode = contextlib.nullcontext() if learn else torch.inference_mode()
        mode.__enter__()
        for batch in batches:
            numbers = []
            for total, data, target in batch:
                loss = criterion(model(data.to(where)), target.to(where))
                if learn:
                    torch.autograd.backward(loss.mul(len(data) / total))
                numbers.append((loss.item() * len(data), len(data)))
                loss = None
            if learn:
                adam.step()
                for parameter in model.parameters():
                    parameter.grad = None
            found.append(numbers)
        mode.__exit__(None, None, None)
        return found

    def mean(pairs):
        return sum(loss for loss, _ in pairs) / sum(count for _, count in pairs)

    steps, checked = [], []
    for parameter in model.parameters():
        parameter.grad = None
    for _ in range(epochs):
        steps += map(mean, run(pieces(train_loader, micro_batch), learn=True))
        checked.append(mean(list(itertools.chain(*run(pieces(val_loader, micro_batch), learn=False)))))
    model.train()
    return LargeTraining(
        device=where.type,
        micro_batch=micro_batch,
        optimizer_steps=len(steps),
        losses=tuple(steps),
        validation_losses=tuple(checked),
        peak_bytes=torch.cuda.max_memory_allocated(where) if on_gpu else None,
    )


def main(argv=None):
    parser = program.make_parser("oom", results=program.Path("results") if hasattr(program, "Path") else "results")
    parser.add_argument("--micro-batch", type=int, default=64)
    options = parser.parse_args(argv)
    with open_device("auto" if is_simulated() else f"vgpu:{GPU_24_GB}", values=False) as device:
        row = torch.zeros(1, 1, 4096).expand(64, 512, 4096)

        def attempt(size):
            with torch.device("cuda"):
                model = VeryLargeModel()
            return train_large_model(model, [(row, row)], [(row, row)], micro_batch=size)

        result, _ = run_with_oom_retry(attempt, options.micro_batch)
        program.print_written(save_json(options.out / "oom.json", [result], device.provenance()))
    return 0


if __name__ == "__main__":
    sys.exit(program.run(main))
