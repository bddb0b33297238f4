"""Task 4.3: a script that runs out of memory, to be mended.

`train_large_model` as it should be; the hand-out has the script that dies on a GPU of 24 GB (oom_fixes.template.py).

Not for what a program does when memory runs out all the same: oom_retry.py.

Run: python -m labs.lab4_memory.oom_fixes
"""

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
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
MEMORY_BYTES = 24 * 2**30  # of a card that is sold as one of 24 GB

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
    model: nn.Module,
    train_loader: Batches,
    val_loader: Batches,
    *,
    epochs: int = 1,
    micro_batch: int = 8,
    learning_rate: float = 1e-4,
    criterion: Callable[[Tensor, Tensor], Tensor] = functional.mse_loss,
) -> LargeTraining:
    """Train with Adam: one optimizer step per batch of `train_loader`, validation at the end of each epoch.

    The results are those of whole batches, to rounding, whatever `micro_batch` is: each step uses the gradient of the
    mean loss over all samples of its batch, also where the last micro-batch or the last batch is shorter. What is
    allocated does not grow from step to step: no loss that is kept holds on to a graph. (A detached loss, one number,
    may wait on the device until it is read.)

    Validation is in evaluation mode and records no graph; afterwards the model is in training mode again.

    Mixed precision and checkpointing are allowed where they help; a model in float64 is computed in float64. Small
    gradients move parameters as well: where losses are of the order of 1e-5, float16 turns their gradients into zeros
    unless they are scaled, and bfloat16 does not.

    Args:
        model: on the device already, where all is computed; trained in place, in training mode, whatever mode it is in
            when it is given.
        train_loader, val_loader: batches (data, target) on the CPU, target in the shape of the output. They can be
            iterated again for each epoch, and need not have a length. The first dimension counts samples, and batches
            may differ in it.
        epochs: passes over `train_loader`.
        micro_batch: samples that are moved to the device and go through the model at once, at most, in training and
            in validation.
        learning_rate: Adam's.
        criterion: maps output and target to the mean loss over their samples, a tensor with a graph.

    Returns:
        A `LargeTraining`; see its fields. Losses are Python numbers. A device whose numbers are not computed (a virtual
        GPU with shapes only) gives 0.0 for each.

    Raises:
        ValueError: `micro_batch` is below 1.

    Source: https://docs.pytorch.org/docs/stable/notes/faq.html#my-model-reports-cuda-runtime-error-2-out-of-memory
    """
    if micro_batch <= 0:
        raise ValueError("a micro-batch has one sample at least")
    place = next(model.parameters()).device
    descent = torch.optim.Adam(model.parameters(), lr=learning_rate)
    score = functools.partial(_score, model, criterion, place)
    reset_peak(str(place))
    trained, validated = [], []
    for _ in range(epochs):
        model.train()
        for batch in _ahead(train_loader):
            parts = _cut(batch, micro_batch)
            shares = np.array([len(part) for part, _ in parts]) / len(batch[0])
            descent.zero_grad()
            means = []
            for part, share in zip(parts, shares.tolist(), strict=True):
                mean = score(*part)
                (mean * share).backward()
                means.append(mean.detach())
                del mean
            descent.step()
            trained.append(float(np.dot([float(mean) for mean in means], shares)))
        model.eval()
        with torch.inference_mode():
            pieces = [(score(*part).item(), len(part[0])) for batch in val_loader for part in _cut(batch, micro_batch)]
        means, sizes = zip(*pieces, strict=True)
        validated.append(float(np.average(means, weights=sizes)))
        model.train()
    return LargeTraining(
        device=place.type,
        micro_batch=micro_batch,
        optimizer_steps=len(trained),
        losses=tuple(trained),
        validation_losses=tuple(validated),
        peak_bytes=peak_bytes(str(place)),
    )


def _ahead(batches: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches; the next one is fetched before one is used."""
    held = []
    for batch in batches:
        held.append(batch)
        if len(held) > 1:
            yield held.pop(0)
    yield from held


def _cut(batch: tuple[Tensor, Tensor], size: int) -> list[tuple[Tensor, Tensor]]:
    return list(zip(*(tensor.split(size) for tensor in batch), strict=True))


def _score(
    model: nn.Module,
    criterion: Callable[[Tensor, Tensor], Tensor],
    place: torch.device,
    data: Tensor,
    target: Tensor,
) -> Tensor:
    return criterion(model(data.to(place)), target.to(place))


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
    parser.add_argument("--layers", type=program.positive_int, default=48, metavar="N", help="blocks of the model")
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
