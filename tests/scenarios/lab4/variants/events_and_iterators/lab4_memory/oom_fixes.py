import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from labkit import program
from labkit.device import GPU_24_GB, is_simulated, open_device
from labkit.results import LargeTraining, save_json

from .oom_retry import run_with_oom_retry
from .readings import peak_bytes, reset_peak

RESULTS = Path(__file__).parent / "results"
BATCH, LENGTH, HIDDEN = 64, 512, 4096
MEMORY_BYTES = 24 * 10**9

Batches = Iterable[tuple[Tensor, Tensor]]


class VeryLargeModel(nn.Module):
    """`num_layers` linear layers of `hidden_size` x `hidden_size` with bias, and ReLU after each but the last.

    Maps [N, ..., hidden_size] to the same shape. With the defaults 0.8 billion parameters: with gradients and Adam's
    two averages 12.9 GB in float32. Its parameters are those of `layers`, a list of `nn.Linear`.
    """

    def __init__(self, num_layers: int = 48, hidden_size: int = HIDDEN) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(hidden_size, hidden_size) for _ in range(num_layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = functional.relu(layer(x))
        output: Tensor = self.layers[-1](x)
        return output


def train_large_model(
    model, train_loader, val_loader, *, epochs=1, micro_batch=8, learning_rate=1e-4, criterion=functional.mse_loss
):
    """The same names in training and in validation, all in one scope; a scaler for float16; fused Adam."""
    if micro_batch < 1:
        raise ValueError("micro_batch")
    device = next(model.parameters()).device
    low = device.type == "cuda" and next(model.parameters()).dtype == torch.float32
    scaler = torch.amp.GradScaler(device.type, enabled=low)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate, fused=device.type == "cuda")
    reset_peak(str(device))
    train_sizes = [len(data) for data, _ in train_loader]
    all_losses, all_validation_losses, steps = [], [], 0
    for _ in range(epochs):
        model.train()
        for (data, target), size in zip(train_loader, train_sizes, strict=True):
            batch_loss = 0
            for x, y in zip(data.split(micro_batch), target.split(micro_batch), strict=True):
                x, y = x.to(device), y.to(device)
                with torch.autocast(device.type, torch.float16, enabled=low):
                    output = model(x)
                loss = criterion(output.to(y.dtype), y)
                scaler.scale(loss * len(x) / size).backward()
                batch_loss += loss.detach() * len(x) / size
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=False)
            all_losses.append(batch_loss)
            steps += 1
        model.eval()
        totals = []
        with torch.set_grad_enabled(False):
            for data, target in val_loader:
                for x, y in zip(data.split(micro_batch), target.split(micro_batch), strict=True):
                    x, y = x.to(device), y.to(device)
                    output = model(x)
                    loss = criterion(output, y)
                    totals.append((loss, len(x)))
        count = sum(n for _, n in totals)
        all_validation_losses.append(float(sum(value * n for value, n in totals) / count))
    model.train()
    return LargeTraining(
        device=str(device.type),
        micro_batch=micro_batch,
        optimizer_steps=steps,
        losses=tuple(value.item() for value in all_losses),
        validation_losses=tuple(all_validation_losses),
        peak_bytes=peak_bytes(str(device)),
    )


def large_batches(count: int, *, batch: int = BATCH, length: int = LENGTH, hidden: int = HIDDEN) -> Batches:
    """`count` batches of sequences, as data and as target: [batch, length, hidden] float32 on the CPU, all zeros.

    One row stands for all of them (an expanded tensor), so that the host needs no memory for what nobody looks at.
    """
    row = torch.zeros(1, 1, hidden)
    return [(row.expand(batch, length, hidden), row.expand(batch, length, hidden)) for _ in range(count)]


def main(argv: Sequence[str] | None = None) -> int:
    """Find a micro-batch that fits into 24 GB, train two steps with it, and write OUT/oom.json.

    Without an NVIDIA GPU it runs on a virtual one of 24 GB; of a larger real GPU it takes 24 GB.

    Returns:
        0.
    """
    parser = program.make_parser(__doc__ or "", results=RESULTS)
    parser.add_argument("--micro-batch", type=program.positive_int, default=BATCH, metavar="N", help="to begin with")
    parser.add_argument("--layers", type=program.positive_int, default=48, metavar="N")
    options = parser.parse_args(argv)
    name = options.device
    if name in ("auto", "vgpu") and not is_simulated() and (name == "vgpu" or not torch.cuda.is_available()):
        name = f"vgpu:{GPU_24_GB}"
    with open_device(name, values=False) as device:
        sizes = {"length": 8, "hidden": 64} if device.torch_device == "cpu" else {"length": LENGTH, "hidden": HIDDEN}
        if device.torch_device == "cuda" and not device.simulated:
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, MEMORY_BYTES / total))

        def attempt(micro_batch: int) -> LargeTraining:
            print(f"micro-batches of {micro_batch} ...")
            with torch.device(device.torch_device):
                model = VeryLargeModel(options.layers, sizes["hidden"])
            batches = large_batches(2, **sizes)
            return train_large_model(model, batches, large_batches(1, **sizes), micro_batch=micro_batch)

        result, micro_batch = run_with_oom_retry(attempt, options.micro_batch)
        peak = "" if result.peak_bytes is None else f", at a peak of {result.peak_bytes / 1e9:.2f} GB"
        print(f"{result.optimizer_steps} steps of {BATCH} samples in micro-batches of {micro_batch}{peak}")
        program.print_written(save_json(options.out / "oom.json", [result], device.provenance()))
    return 0


if __name__ == "__main__":
    sys.exit(program.run(main))
