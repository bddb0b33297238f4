"""A training job as a Kubernetes manifest starts it: settings from the environment, AMP, DDP, a model and its metadata.

    EPOCHS=2 BATCH_SIZE=32 torchrun --nproc_per_node=2 training_job.py

RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT come from torchrun or from the job's controller.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn, optim
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class JobNet(nn.Module):
    """Convolutions with batch norm, dropout between the linear layers."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d((1, 1))),
        )
        self.classifier = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, classes))

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        result: Tensor = self.classifier(x.view(x.size(0), -1))
        return result


def setup_distributed() -> tuple[int, int, int]:
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    torch.cuda.set_device(local_rank)
    properties = torch.cuda.get_device_properties(local_rank)
    print(f"using GPU {local_rank}: {properties.name}, {properties.total_memory / 1e9:.1f} GB", flush=True)
    dist.init_process_group(backend="nccl")
    return dist.get_rank(), dist.get_world_size(), local_rank


def load_data() -> tuple[TensorDataset, TensorDataset]:
    digits = load_digits()
    images = (torch.as_tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16 - 0.3) / 0.38
    labels = torch.as_tensor(digits.target)
    return TensorDataset(images[:1440], labels[:1440]), TensorDataset(images[1440:], labels[1440:])


def make_loader(dataset: Dataset[tuple[Tensor, ...]], batch: int, workers: int) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(
        dataset, batch, sampler=DistributedSampler(dataset), num_workers=workers, pin_memory=True,
        persistent_workers=workers > 0,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("output"))
    output: Path = parser.parse_args().output
    epochs, batch_size = int(os.environ.get("EPOCHS", "3")), int(os.environ.get("BATCH_SIZE", "64"))
    learning_rate, workers = float(os.environ.get("LEARNING_RATE", "0.003")), int(os.environ.get("WORKERS", "2"))
    mixed = os.environ.get("MIXED_PRECISION", "true").lower() == "true"

    rank, world_size, local_rank = setup_distributed()
    device = torch.device(f"cuda:{local_rank}")
    torch.manual_seed(0)
    train_set, test_set = load_data()
    train_loader = make_loader(train_set, batch_size, workers)
    model = DDP(JobNet().to(device), device_ids=[local_rank], output_device=local_rank)
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=1e-4)
    scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
    scaler = torch.amp.GradScaler("cuda", enabled=mixed)

    for epoch in range(epochs):
        assert isinstance(train_loader.sampler, DistributedSampler)
        train_loader.sampler.set_epoch(epoch)
        model.train()
        running_loss, correct, total, started = 0.0, 0, 0, time.time()
        for inputs, targets in train_loader:
            inputs, targets = inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)
            optimizer.zero_grad()
            with torch.autocast("cuda", enabled=mixed):
                outputs = model(inputs)
                loss = criterion(outputs, targets)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            running_loss += loss.item()
            _, predicted = outputs.max(1)
            total += targets.size(0)
            correct += predicted.eq(targets).sum().item()
        scheduler.step()
        if rank == 0:
            loss_mean, accuracy = running_loss / len(train_loader), 100.0 * correct / total
            print(f"epoch {epoch}: loss {loss_mean:.4f}, accuracy {accuracy:.1f} %, {time.time() - started:.3f} s")

    model.eval()
    counts = torch.zeros(2, device=device)
    with torch.no_grad():
        for inputs, targets in make_loader(test_set, batch_size, 0):
            inputs, targets = inputs.to(device), targets.to(device)
            counts += torch.stack(
                (model(inputs).argmax(1).eq(targets).sum(), torch.tensor(len(targets), device=device))
            )
    dist.all_reduce(counts)
    if rank == 0:
        accuracy = 100 * (counts[0] / counts[1]).item()
        output.mkdir(parents=True, exist_ok=True)
        torch.save(model.module.state_dict(), output / "trained-model.pth")
        metadata = {"accuracy": accuracy, "epochs": epochs, "mixed_precision": mixed, "world_size": world_size}
        (output / "training_metadata.txt").write_text("".join(f"{key}: {value}\n" for key, value in metadata.items()))
        print(f"test accuracy {accuracy:.1f} % on {world_size} GPUs")
        print(f"allocated {torch.cuda.memory_allocated(device) / 1e6:.1f} MB, ", end="")
        print(f"reserved {torch.cuda.memory_reserved(device) / 1e6:.1f} MB")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
