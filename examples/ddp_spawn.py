"""Data parallel training with one process per GPU, started by `mp.spawn`; scaling from one GPU to all.

After PyTorch's DDP tutorial. Every size of the world trains on the same samples: the batch per GPU shrinks as GPUs are
added, so the losses agree and the time per epoch tells the speedup.
"""

from __future__ import annotations

import argparse
import os
import socket
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


def make_model(width: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


def worker(rank: int, world_size: int, port: int, options: argparse.Namespace, folder: str) -> None:
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", str(port)
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=world_size)

    model = DDP(make_model(options.width).to(rank), device_ids=[rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(options.batch_size, 64, generator=generator)
    labels = inputs[:, :10].argmax(dim=1)
    mine = slice(rank, None, world_size)
    inputs, labels = inputs[mine].to(rank), labels[mine].to(rank)

    losses, started = [], 0.0
    for step in range(options.steps + 1):
        if step == 1:  # the first step makes contexts, handles and buckets
            torch.cuda.synchronize()
            dist.barrier()
            started = time.perf_counter()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - started) / options.steps

    # The loss of the whole batch is the mean of the ranks' losses; the models must not have drifted apart.
    history = torch.stack(losses)
    dist.all_reduce(history)
    history /= world_size
    checksum = torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).double().sum().view(1)
    everyone = [torch.empty_like(checksum) for _ in range(world_size)]
    dist.all_gather(everyone, checksum)
    drift = max(abs(float(other - checksum)) for other in everyone)
    if rank == 0:
        result = {"seconds": seconds, "first": float(history[0]), "last": float(history[-1]), "drift": drift}
        torch.save(result, Path(folder, "result.pt"))
    dist.barrier()
    dist.destroy_process_group()


def run(world_size: int, options: argparse.Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, args=(world_size, free_port(), options, folder), nprocs=world_size, join=True)  # type: ignore[attr-defined,no-untyped-call]
        result: dict[str, float] = torch.load(Path(folder, "result.pt"))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=1024, help="over all GPUs")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--worlds", type=int, nargs="*", help="numbers of GPUs (default: 1 and all)")
    options = parser.parse_args()

    worlds = options.worlds or sorted({1, torch.cuda.device_count()})
    print(f"{torch.cuda.device_count()} GPUs; batch of {options.batch_size} in all")
    base = 0.0
    for world_size in worlds:
        result = run(world_size, options)
        seconds = result["seconds"]
        base = base or seconds
        print(
            f"{world_size} GPUs: {seconds * 1e3:.3f} ms per step, speedup {base / seconds:.2f}, "
            f"efficiency {base / seconds / world_size * worlds[0]:.0%}, "
            f"loss {result['first']:.4f} -> {result['last']:.4f}, drift {result['drift']:.1e}"
        )


if __name__ == "__main__":
    main()
