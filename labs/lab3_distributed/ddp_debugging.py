"""Task 3.5: a training script that has five faults. Find them and fix them.

They are the usual ones: a hang, replicas that drift apart, data that several ranks go through again, a port that is in
use, and parameters that take no part. Each hides some of the others.

Two heads share one body, but each stage of a curriculum trains one head only. The model, the data and the loop are all
that there is: no checkpoints, no evaluation.

Run: python -m labs.lab3_distributed.ddp_debugging
"""

import functools
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from labkit import data, program
from labkit.device import open_device
from labkit.results import DdpTraining, save_json

from .ddp_training import cleanup, setup
from .ranks import run_ranks

RESULTS = Path(__file__).parent / "results"


class TwoHeads(nn.Module):
    """A classifier of digits (`head = 0`), and of even and odd ones (`head = 1`). One head is used at a time."""

    def __init__(self, head: int = 0, in_features: int = 64) -> None:
        super().__init__()
        self.head = head
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(in_features, 32), nn.ReLU())
        self.heads = nn.ModuleList([nn.Linear(32, 10), nn.Linear(32, 2)])

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.heads[self.head](self.body(images))
        return logits


def train_two_heads(
    rank: int,
    world_size: int,
    init_method: str | None = None,
    *,
    device: str | None = None,
    model: nn.Module | None = None,
    dataset: Dataset[Any] | None = None,
    epochs: int = 2,
    batch_size: int = 32,
    learning_rate: float = 0.05,
    timeout_seconds: float = 600.0,
) -> DdpTraining:
    """Be one rank of a training like that of `ddp_training.train`, without checkpoint, test and seeds.

    What it must do, however many ranks there are and whatever else runs on the machine: meet at `init_method`; end on
    every rank; leave all replicas equal, trained by SGD without momentum on the mean gradient of all ranks; give each
    rank its own share of the samples, drawn again in each epoch, and leave none of them out; train models in which some
    parameters take no part in the forward pass.

    Args:
        rank: this process's number.
        world_size: number of processes.
        init_method: see `ddp_training.setup`, as for `device` and `timeout_seconds`.
        device: "cpu" or "cuda".
        model: maps inputs to logits [N, classes]; trained in place. None: `TwoHeads()`.
        dataset: pairs (input, class), the same on every rank. None: the training images of digits.
        epochs: how often to go through it.
        batch_size: samples per step on each rank.
        learning_rate: of SGD.
        timeout_seconds: how long to wait for a rank that does not come.

    Returns:
        A `DdpTraining`, the same on every rank except for `seconds`: each rank reads its own clock.
    """
    # TODO(task 3.5): everything from here to the end of the function is yours to fix; the docstring is right.
    own = setup(rank, world_size, init_method="tcp://127.0.0.1:29500", device=device, timeout_seconds=timeout_seconds)
    try:
        dataset = dataset or data.load("digits")
        module = (model or TwoHeads()).to(own).train()
        replica = DistributedDataParallel(module)
        optimizer = torch.optim.SGD(module.parameters(), lr=learning_rate)
        loader = DataLoader(dataset, batch_size, shuffle=True)

        losses: list[float] = []
        start = time.perf_counter()
        for epoch in range(epochs):
            total = torch.zeros(2, dtype=torch.float64, device=own)  # losses of samples, samples
            for images, labels in loader:
                images, labels = images.to(own), labels.to(own)
                loss = functional.cross_entropy(replica.module(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += torch.stack([loss.detach().double() * len(images), total.new_tensor(len(images))])
            if rank == 0:
                dist.all_reduce(total)
                print(f"epoch {epoch}: loss {float(total[0] / total[1]):.4f}")
            losses.append(float(total[0] / total[1]))
        seconds = time.perf_counter() - start
        backend = str(dist.get_backend())
        del replica
    finally:
        cleanup()
    return DdpTraining(
        device=own.type,
        backend=backend,
        world_size=world_size,
        batch_size=batch_size,
        effective_batch_size=batch_size * world_size,
        epochs=epochs,
        losses=tuple(losses),
        optimizer_steps=epochs * len(loader),
        accuracy=None,
        seconds=seconds,
    )


def _train_on(name: str, *place: Any, data_dir: Path | None, device: str) -> DdpTraining:
    """One rank of a training on a data set of `labkit.data`; each rank makes a model of its own."""
    if name == "digits":
        return train_two_heads(*place, device=device)
    dataset = data.load(name, data_dir=data_dir)
    model = TwoHeads(in_features=dataset[0][0].numel())
    return train_two_heads(*place, device=device, model=model, dataset=dataset)


def main(argv: Sequence[str] | None = None) -> int:
    """Train with two ranks, on digits unless --data names another data set; write OUT/debugging.json.

    Returns:
        0.
    """
    parser = program.make_parser(__doc__ or "", results=RESULTS)
    parser.add_argument("--world-size", type=program.positive_int, default=2, metavar="N", help="ranks")
    data.add_options(parser)
    options = parser.parse_args(argv)
    data.load(options.data, data_dir=options.data_dir)  # one error here is better than one from each rank
    with open_device(options.device, gpus=options.world_size) as device:
        of_rank = functools.partial(_train_on, options.data, data_dir=options.data_dir, device=device.torch_device)
        training = run_ranks(of_rank, options.world_size)[0]
        program.print_written(save_json(options.out / "debugging.json", [training], device.provenance()))
    return 0


if __name__ == "__main__":
    sys.exit(program.run(main))
