"""Ranks that meet through a store, by what the environment says; batches of a sampler of our own; loader processes.

Checkpoints are read by rank 0 alone and told to the others, and accumulation switches DistributedDataParallel's own
flag instead of a context.
"""

import argparse
import copy
import math
import os
import socket
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817
from torch.utils.data import DataLoader, Sampler

from labkit import data, models, plotting
from labkit.device import open_device
from labkit.results import AccumulationResult, DdpTraining, save_json


def make_store(rank, world_size, address, timeout):
    if address is None or address == "env://":
        try:
            host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        except KeyError:
            raise ValueError("MASTER_ADDR and MASTER_PORT must be set where no init_method is given") from None
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # torchrun listens there already
            return dist.PrefixStore("ours", dist.TCPStore(host, port, world_size, False, timeout))
        return dist.TCPStore(host, port, world_size, rank == 0, timeout)
    url = urlparse(address)
    if url.scheme == "file":
        return dist.FileStore(url.path, world_size)
    return dist.TCPStore(url.hostname, url.port, world_size, rank == 0, timeout)


def setup(rank, world_size, *, init_method=None, device=None, timeout_seconds=600.0):
    if rank < 0 or rank >= world_size:
        raise ValueError(f"{rank=} {world_size=}")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    place = torch.device(device)
    backend = "gloo"
    if device == "cuda":
        gpus = torch.cuda.device_count()
        if int(os.environ.get("LOCAL_WORLD_SIZE", world_size)) <= gpus:
            backend = "nccl"
        place = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank)) % gpus)
        torch.cuda.set_device(place)
    timeout = timedelta(seconds=timeout_seconds)
    store = make_store(rank, world_size, init_method, timeout)
    store.set_timeout(timeout)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)
    return place


def cleanup():
    with suppress(AssertionError, ValueError):  # there was none
        dist.destroy_process_group()


@contextmanager
def joined(*arguments, **options):
    place = setup(*arguments, **options)
    try:
        yield place
    finally:
        cleanup()


class Shares(Sampler):
    """Batches of numbers: contiguous slices of this epoch's order, filled up from its end."""

    def __init__(self, samples, batch, rank, world, seed):
        self.samples, self.batch, self.rank, self.world, self.seed, self.epoch = samples, batch, rank, world, seed, 0

    def __len__(self):
        return math.ceil(math.ceil(self.samples / self.world) / self.batch)

    def __iter__(self):
        generator = torch.Generator().manual_seed(hash((self.seed, self.epoch)) % 2**31)
        order = torch.randperm(self.samples, generator=generator)
        each = -(-self.samples // self.world)
        order = torch.cat([order, order[self.samples - (each * self.world - self.samples) :]])
        yield from (part.tolist() for part in order[self.rank * each : (self.rank + 1) * each].split(self.batch))


def evaluate(model, dataset, *, device=None, batch_size=64):
    if not len(dataset):
        raise ValueError("evaluate() of nothing")
    group = dist.is_initialized()
    rank, world = (dist.get_rank(), dist.get_world_size()) if group else (0, 1)
    inner = model.module if isinstance(model, DDP) else model
    device = device if device is not None else next(inner.parameters()).device
    modes = {module: module.training for module in inner.modules()}
    inner.eval()
    hits = 0
    for number, (x, y) in enumerate(DataLoader(dataset, batch_size=batch_size)):
        if number % world == rank:  # every world-th batch; some ranks have one more
            with torch.no_grad():
                hits += int((inner(x.to(device)).argmax(1).cpu() == y).sum())
    for module, mode in modes.items():
        module.training = mode
    told = [hits]
    if group:
        told = [None] * world
        dist.all_gather_object(told, hits)
    return sum(told) / len(dataset)


def train(
    rank,
    world_size,
    init_method=None,
    *,
    device=None,
    model=None,
    dataset=None,
    test_dataset=None,
    criterion=None,
    epochs=3,
    batch_size=32,
    learning_rate=0.1,
    momentum=0.9,
    seed=0,
    checkpoint=None,
    timeout_seconds=600.0,
):
    with joined(rank, world_size, init_method=init_method, device=device, timeout_seconds=timeout_seconds) as place:
        if dataset is None:
            dataset = data.load("digits")
            if test_dataset is None:
                test_dataset = data.load("digits", split="test")
        if model is None:
            model = models.mlp()
        if criterion is None:
            criterion = torch.nn.functional.cross_entropy
        ddp = DDP(model.to(place), gradient_as_bucket_view=True)
        ddp.train()
        optimizer = torch.optim.SGD(ddp.parameters(), lr=learning_rate, momentum=momentum, foreach=True)
        shares = Shares(len(dataset), batch_size, rank, world_size, seed)
        loader = DataLoader(dataset, batch_sampler=shares, num_workers=1, multiprocessing_context="fork")
        first = 0
        if checkpoint and Path(checkpoint).is_file():
            first = load_checkpoint(checkpoint, ddp, optimizer)
        clock, losses, steps = time.monotonic(), [], 0
        for epoch in range(first, epochs):
            shares.epoch = epoch
            torch.manual_seed(seed + 31 * rank + 1009 * epoch)
            seen = []
            for x, y in loader:
                optimizer.zero_grad(set_to_none=True)
                loss = criterion(ddp(x.to(place, non_blocking=True)), y.to(place, non_blocking=True))
                loss.backward()
                optimizer.step()
                seen.append((loss.item() * len(y), len(y)))
                steps += 1
            everybody = [None] * world_size
            dist.all_gather_object(everybody, [sum(column) for column in zip(*seen, strict=True)])
            losses.append(sum(total for total, _ in everybody) / sum(count for _, count in everybody))
            if checkpoint:
                save_checkpoint(checkpoint, ddp, optimizer, epoch + 1)
        accuracy = evaluate(ddp, test_dataset) if test_dataset is not None else None
        if place.type == "cuda":
            torch.cuda.synchronize()
        took = time.monotonic() - clock
        backend = dist.get_backend()
        del ddp, optimizer
    return DdpTraining(
        device=place.type,
        backend=backend,
        world_size=world_size,
        batch_size=batch_size,
        effective_batch_size=batch_size * world_size,
        epochs=max(epochs, first),
        losses=tuple(losses),
        optimizer_steps=steps,
        accuracy=accuracy,
        seconds=took,
    )


def counted(y):
    return (y != -100).sum().item() if not y.is_floating_point() else y.size(0)


def train_with_accumulation(model, train_loader, accumulation_steps=4, *, optimizer=None, criterion=None, device=None):
    """Gradients of sums are gathered, and divided once everybody's count is known."""
    if accumulation_steps <= 0:
        raise ValueError("accumulation_steps")
    device = next(model.parameters()).device if device is None else device
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if optimizer is None else optimizer
    criterion = nn.CrossEntropyLoss() if criterion is None else criterion
    model.train()
    world = dist.get_world_size() if dist.is_initialized() else 1
    windows, losses, batches = [], [], len(train_loader)
    sums = torch.zeros(2, dtype=torch.float64, device=device)
    optimizer.zero_grad()
    for number, (x, y) in enumerate(train_loader, start=1):
        last = number % accumulation_steps == 0 or number == batches
        model.require_backward_grad_sync = last
        x, y = x.to(device), y.to(device)
        loss = criterion(model(x), y) * counted(y)
        loss.backward()
        sums += torch.tensor([loss.item(), counted(y)], dtype=torch.float64, device=device)
        if last:
            if dist.is_initialized():
                dist.all_reduce(sums)
            total, count = sums.tolist()
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(world / count)
            optimizer.step()
            optimizer.zero_grad()
            windows.append(int(count))
            losses.append(total / count)
            sums.zero_()
    return AccumulationResult(
        optimizer_steps=len(windows),
        micro_batches=batches,
        effective_batch_sizes=tuple(windows),
        losses=tuple(losses),
    )


def save_checkpoint(path, model, optimizer, epoch):
    path = Path(path).absolute()
    if not (dist.is_initialized() and dist.get_rank()):
        inner = getattr(model, "module", model)
        content = copy.deepcopy((inner.state_dict(), optimizer.state_dict(), epoch))
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            try:
                torch.save(dict(zip(("model", "optimizer", "epoch"), content, strict=True)), file)
            except BaseException:
                os.unlink(file.name)
                raise
        Path(file.name).rename(path)
    if dist.is_initialized():
        dist.broadcast_object_list([True], src=0)


def load_checkpoint(path, model, optimizer=None):
    content = [None]
    if not dist.is_initialized() or dist.get_rank() == 0:
        content = [torch.load(path, map_location="cpu", weights_only=False)]
    if dist.is_initialized():
        dist.broadcast_object_list(content, src=0)
    state = content[0]
    getattr(model, "module", model).load_state_dict(state["model"])
    if optimizer is not None:
        optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]


def worker(rank, size, port, options, device, queue):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    answer = train(
        rank, size, device=device, epochs=options.epochs, batch_size=options.batch_size, checkpoint=options.checkpoint
    )
    if rank == 0:
        queue.put(answer)


def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results"))
    for name, value in (("--world-size", 2), ("--epochs", 5), ("--batch-size", 32)):
        parser.add_argument(name, type=int, default=value)
    parser.add_argument("--checkpoint")
    options = parser.parse_args(argv)
    torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    size = int(os.environ["WORLD_SIZE"]) if torchrun else options.world_size
    with open_device(options.device, gpus=size) as device:
        if torchrun:
            answer = train(
                int(os.environ["RANK"]),
                size,
                "env://",
                device=device.torch_device,
                epochs=options.epochs,
                batch_size=options.batch_size,
                checkpoint=options.checkpoint,
            )
            if os.environ["RANK"] != "0":
                return 0
        else:
            context = torch.multiprocessing.get_context("spawn")
            queue = context.SimpleQueue()
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            ranks = [
                context.Process(target=worker, args=(rank, size, port, options, device.torch_device, queue))
                for rank in range(size)
            ]
            for process in ranks:
                process.start()
            answer = queue.get()
            for process in ranks:
                process.join()
        save_json(options.out / "training.json", [answer], device.provenance())
        figure, (axis,) = plotting.new_figure("Loss", x_label="epoch", y_label="loss")
        axis.plot(range(len(answer.losses)), answer.losses)
        plotting.save_png(figure, options.out / "training.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
