import os, tempfile
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data.distributed import DistributedSampler


def setup(rank, world_size):
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "12355")
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo", rank=rank, world_size=world_size)
    if torch.cuda.is_available():
        torch.cuda.set_device(rank % torch.cuda.device_count())


def cleanup():
    dist.destroy_process_group()


def train_with_accumulation(model, train_loader, accumulation_steps=4):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    device = next(model.parameters()).device
    model.train()
    optimizer.zero_grad()
    batches = list(train_loader)
    import contextlib

    for i, (x, y) in enumerate(batches):
        last = (i + 1) % accumulation_steps == 0 or i + 1 == len(batches)
        with contextlib.nullcontext() if last or not hasattr(model, "no_sync") else model.no_sync():
            loss = torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device)) / accumulation_steps
            loss.backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
    return len(batches)


def train(rank, world_size):
    print(f"Running on rank {rank}")
    setup(rank, world_size)
    cleanup()
