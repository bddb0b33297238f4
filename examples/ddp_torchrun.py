"""Data parallel training started by torchrun, with a snapshot from which it resumes.

    torchrun --standalone --nproc_per_node=gpu ddp_torchrun.py --epochs 4 --snapshot snapshot.pt

After PyTorch's tutorial series on DDP ("Fault-tolerant Distributed Training with torchrun").
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def make_data(samples: int, features: int) -> TensorDataset:
    """A linear relation with a little noise, the same on every rank."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(samples, features, generator=generator)
    weights = torch.randn(features, 1, generator=generator) / features**0.5
    return TensorDataset(inputs, inputs @ weights + 0.01 * torch.randn(samples, 1, generator=generator))


class Trainer:
    """Trains a model on this process's GPU and keeps a snapshot of it."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.rank = int(os.environ["RANK"])
        self.gpu = int(os.environ["LOCAL_RANK"])
        self.snapshot = Path(options.snapshot)
        self.first_epoch = 0
        torch.manual_seed(0)
        features, hidden = options.features, options.hidden
        model = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, 1)).to(self.gpu)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
        if self.snapshot.exists():
            saved = torch.load(self.snapshot, map_location=f"cuda:{self.gpu}")
            model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.first_epoch = saved["epochs_run"]
            print(f"[GPU {self.gpu}] resuming at epoch {self.first_epoch}", flush=True)
        self.model = DDP(model, device_ids=[self.gpu])
        dataset = make_data(options.samples, options.features)
        self.sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(dataset)
        self.loader = DataLoader(dataset, options.batch_size, sampler=self.sampler, pin_memory=True)

    def run_epoch(self, epoch: int) -> Tensor:
        """Returns the mean loss over all ranks."""
        self.sampler.set_epoch(epoch)
        total = torch.zeros((), device=self.gpu)
        for inputs, targets in self.loader:
            inputs, targets = inputs.to(self.gpu, non_blocking=True), targets.to(self.gpu, non_blocking=True)
            self.optimizer.zero_grad()
            loss = F.mse_loss(self.model(inputs), targets)
            loss.backward()
            self.optimizer.step()
            total += loss.detach()
        mean = total / len(self.loader)
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        return mean

    def train(self, epochs: int) -> None:
        for epoch in range(self.first_epoch, epochs):
            started = time.perf_counter()
            loss = self.run_epoch(epoch).item()
            seconds = time.perf_counter() - started
            if self.rank == 0:
                world = dist.get_world_size()
                print(
                    f"epoch {epoch} | {world} GPUs | {len(self.loader)} steps each | loss {loss:.5f} | {seconds:.4f} s"
                )
                state = {"model": self.model.module.state_dict(), "optimizer": self.optimizer.state_dict()}
                torch.save({**state, "epochs_run": epoch + 1}, self.snapshot)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--features", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=64, help="per GPU")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--snapshot", default="snapshot.pt")
    options = parser.parse_args()

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend="nccl")
    try:
        Trainer(options).train(options.epochs)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
