"""Checkpointed layers, accumulation over slices, autocast for float32 models."""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from labkit import program
from labkit.device import GPU_24_GB, is_simulated, open_device
from labkit.results import LargeTraining, save_json

from .oom_retry import run_with_oom_retry


class VeryLargeModel(nn.Module):
    def __init__(self, num_layers=48, hidden_size=4096):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(hidden_size, hidden_size) for _ in range(num_layers)])

    def forward(self, x):
        if not torch.is_grad_enabled():
            return self._some(x, 0, len(self.layers))
        for first in range(0, len(self.layers), 6):
            x = checkpoint(self._some, x, first, first + 6, use_reentrant=False)
        return x

    def _some(self, x, first, last):
        for number, layer in list(enumerate(self.layers))[first:last]:
            x = layer(x)
            if number + 1 < len(self.layers):
                x = x.relu()
        return x


def train_large_model(
    model, train_loader, val_loader, *, epochs=1, micro_batch=8, learning_rate=1e-4, criterion=functional.mse_loss
):
    if micro_batch < 1:
        raise ValueError("micro_batch")
    parameters = list(model.parameters())
    device = parameters[0].device
    adam = torch.optim.Adam(parameters, learning_rate, foreach=False)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    losses, validation = [], []

    def loss_of(data, target):
        with torch.autocast(device.type, torch.bfloat16):
            output = model(data.to(device))
        return criterion(output.to(target.dtype), target.to(device))

    for _ in range(epochs):
        model.train()
        batches, held_out = list(train_loader), list(val_loader)
        for data, target in batches:
            samples = data.shape[0]
            kept = torch.zeros((), dtype=torch.float64, device=device)
            for first in range(0, samples, micro_batch):
                piece = slice(first, first + micro_batch)
                weight = data[piece].shape[0] / samples
                loss = loss_of(data[piece], target[piece])
                (loss * weight).backward()
                kept += loss.detach() * weight
                del loss
            adam.step()
            adam.zero_grad()
            losses.append(kept)
        model.eval()
        with torch.inference_mode():
            count, total = 0, 0.0
            for data, target in held_out:
                for first in range(0, data.shape[0], micro_batch):
                    piece = slice(first, first + micro_batch)
                    size = data[piece].shape[0]
                    total += float(loss_of(data[piece], target[piece])) * size
                    count += size
            validation.append(total / count)
        model.train()
    return LargeTraining(
        device=device.type,
        micro_batch=micro_batch,
        optimizer_steps=len(losses),
        losses=tuple(float(loss) for loss in losses),
        validation_losses=tuple(validation),
        peak_bytes=torch.cuda.max_memory_allocated() if device.type == "cuda" else None,
    )


def main(argv=None):
    parser = program.make_parser("oom", results=Path(__file__).parent / "results")
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
