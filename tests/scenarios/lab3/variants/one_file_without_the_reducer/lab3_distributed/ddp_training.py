"""Everything in one file, gradients reduced by hand: no reducer of DistributedDataParallel, no DistributedSampler.

Ranks started here meet at a TCP port that the system picks; checkpoints have the names of the model they were given.
"""

import argparse
import datetime
import json
import os
import socket
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F  # noqa: N812

from labkit import data, models, plotting
from labkit.device import open_device
from labkit.results import AccumulationResult, DdpTraining, save_json

HERE = Path(__file__).parent


def setup(rank, world_size, *, init_method=None, device=None, timeout_seconds=600.0):
    if rank not in range(world_size):
        raise ValueError("no such rank")
    if init_method is None:
        try:
            init_method = f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        except KeyError as missing:
            raise ValueError(f"where to meet? {missing} is not set") from None
    timeout = datetime.timedelta(seconds=timeout_seconds)
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        dist.init_process_group("gloo", init_method, timeout, world_size, rank)
        return torch.device("cpu")
    local, neighbours = int(os.getenv("LOCAL_RANK", rank)), int(os.getenv("LOCAL_WORLD_SIZE", world_size))
    count = torch.cuda.device_count()
    torch.cuda.set_device(local % count)
    dist.init_process_group("gloo" if neighbours > count else "nccl", init_method, timeout, world_size, rank)
    return torch.device(f"cuda:{local % count}")


def cleanup():
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def total(number, device, dtype=torch.float64):
    value = torch.tensor([number], dtype=dtype, device=device)
    if dist.is_initialized():
        dist.all_reduce(value)
    return value.item()


def reduce_gradients(parameters, divisor):
    """One flat message of all gradients; parameters without one take part with zeros."""
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    message = torch.cat([part.reshape(-1) for part in parts])
    if dist.is_initialized():
        dist.all_reduce(message)
    message /= divisor
    start = 0
    for parameter in parameters:
        piece = message[start : start + parameter.numel()].view_as(parameter).clone()
        start += parameter.numel()
        if parameter.grad is not None:
            parameter.grad = piece


def evaluate(model, dataset, *, device=None, batch_size=64):
    if len(dataset) == 0:
        raise ValueError("nothing to evaluate")
    device = device or next(iter(model.parameters())).device
    inside = getattr(model, "module", model)
    awake = [part for part in inside.modules() if part.training]
    inside.train(False)
    rank = dist.get_rank() if dist.is_initialized() else 0
    share = len(dataset) * rank // world(), len(dataset) * (rank + 1) // world()
    right = 0
    with torch.inference_mode():
        for begin in range(*share, batch_size):
            pairs = [dataset[i] for i in range(begin, min(begin + batch_size, share[1]))]
            x, y = torch.stack([p[0] for p in pairs]).to(device), torch.stack([p[1] for p in pairs]).to(device)
            right += (inside(x).max(dim=-1).indices == y).sum().item()
    for part in awake:
        part.training = True
    return total(right, device) / len(dataset)


def share_of(dataset, epoch, seed, rank, size):
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(seed + 7919 * epoch)).tolist()
    order += order[: -len(order) % size]
    return order[rank::size]


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
    place = setup(rank, world_size, init_method=init_method, device=device, timeout_seconds=timeout_seconds)
    try:
        if dataset is None:
            dataset, test_dataset = data.load("digits"), test_dataset or data.load("digits", split="test")
        model = (model or models.mlp()).to(place)
        criterion = criterion or F.cross_entropy
        model.train()
        with torch.no_grad():
            for tensor in [*model.parameters(), *model.buffers()]:
                dist.broadcast(tensor, 0)
        parameters = list(model.parameters())
        optimizer = torch.optim.SGD(parameters, lr=learning_rate, momentum=momentum)
        first = load_checkpoint(checkpoint, model, optimizer) if checkpoint and os.path.exists(checkpoint) else 0
        began, losses, steps = time.perf_counter(), [], 0
        for epoch in range(first, epochs):
            torch.manual_seed(1 + seed + 1000 * rank + 100_000 * epoch)
            mine, loss_sum = share_of(dataset, epoch, seed, rank, world_size), 0.0
            for begin in range(0, len(mine), batch_size):
                pairs = [dataset[i] for i in mine[begin : begin + batch_size]]
                x, y = torch.stack([p[0] for p in pairs]).to(place), torch.stack([p[1] for p in pairs]).to(place)
                for parameter in parameters:
                    parameter.grad = None
                loss = criterion(model(x), y)
                (loss * len(x)).backward()
                reduce_gradients(parameters, total(len(x), place))
                optimizer.step()
                loss_sum += loss.item() * len(x)
                steps += 1
            losses.append(total(loss_sum, place) / total(len(mine), place))
            if checkpoint:
                save_checkpoint(checkpoint, model, optimizer, epoch + 1)
        accuracy = evaluate(model, test_dataset, device=place) if test_dataset is not None else None
        if place.type == "cuda":
            torch.cuda.synchronize()
        return DdpTraining(
            device=place.type,
            backend=dist.get_backend(),
            world_size=world_size,
            batch_size=batch_size,
            effective_batch_size=world_size * batch_size,
            epochs=max(first, epochs),
            losses=tuple(losses),
            optimizer_steps=steps,
            accuracy=accuracy,
            seconds=time.perf_counter() - began,
        )
    finally:
        cleanup()


def train_with_accumulation(model, train_loader, accumulation_steps=4, *, optimizer=None, criterion=None, device=None):
    if accumulation_steps < 1:
        raise ValueError("at least one batch makes a window")
    inside = getattr(model, "module", model)
    parameters = list(inside.parameters())
    device = device or parameters[0].device
    optimizer = optimizer or torch.optim.SGD(parameters, lr=0.1)
    criterion = criterion or F.cross_entropy
    inside.train()
    losses, sizes, batches, in_window, count, loss_sum = [], [], 0, 0, 0, 0.0

    def finish():
        everywhere = total(count, device)
        reduce_gradients(parameters, everywhere)
        optimizer.step()
        sizes.append(round(everywhere))
        losses.append(total(loss_sum, device) / everywhere)
        for parameter in parameters:
            parameter.grad = None

    for parameter in parameters:
        parameter.grad = None
    for x, y in train_loader:
        n = len(y) if y.is_floating_point() else int(y.ne(-100).sum())
        loss = criterion(inside(x.to(device)), y.to(device)) * n
        loss.backward()
        count, loss_sum, in_window, batches = count + n, loss_sum + loss.item(), in_window + 1, batches + 1
        if in_window == accumulation_steps:
            finish()
            count, loss_sum, in_window = 0, 0.0, 0
    if in_window:
        finish()
    return AccumulationResult(
        optimizer_steps=len(sizes), micro_batches=batches, effective_batch_sizes=tuple(sizes), losses=tuple(losses)
    )


def save_checkpoint(path, model, optimizer, epoch):
    path = os.fspath(path)
    if not dist.is_initialized() or dist.get_rank() == 0:
        try:
            with open(path + ".new", "wb") as file:
                torch.save([model.state_dict(), optimizer.state_dict(), epoch], file)
                file.flush()
                os.fsync(file.fileno())
            os.rename(path + ".new", path)
        except BaseException:
            os.unlink(path + ".new")
            raise
    if dist.is_initialized():
        dist.all_reduce(torch.zeros(1, device=next(model.parameters()).device))


def load_checkpoint(path, model, optimizer=None):
    weights, state, epoch = torch.load(path, map_location="cpu")
    plain = {name.removeprefix("module."): value for name, value in weights.items()}
    getattr(model, "module", model).load_state_dict(plain)
    if optimizer is not None:
        optimizer.load_state_dict(state)
    return epoch


def _worker(rank, world_size, port, device, epochs, batch_size, checkpoint, answer):
    result = train(
        rank,
        world_size,
        f"tcp://127.0.0.1:{port}",
        device=device,
        epochs=epochs,
        batch_size=batch_size,
        checkpoint=checkpoint,
    )
    if rank == 0:
        Path(answer).write_text(json.dumps(asdict(result)))


def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--checkpoint")
    options = parser.parse_args(argv)
    rank = int(os.environ.get("RANK", -1))
    size = int(os.environ.get("WORLD_SIZE", options.world_size))
    with open_device(options.device, gpus=size) as device:
        rest = (device.torch_device, options.epochs, options.batch_size, options.checkpoint)
        with tempfile.TemporaryDirectory() as folder:
            answer = f"{folder}/result.json"
            if rank < 0:
                with socket.socket() as s:
                    s.bind(("localhost", 0))
                    port = s.getsockname()[1]
                mp.spawn(_worker, args=(size, port, *rest, answer), nprocs=size, join=True)
                document = json.loads(Path(answer).read_text())
                result = DdpTraining(**{**document, "losses": tuple(document["losses"])})
            else:
                result = train(
                    rank,
                    size,
                    device=rest[0],
                    epochs=options.epochs,
                    batch_size=options.batch_size,
                    checkpoint=options.checkpoint,
                )
        if rank < 1:
            save_json(options.out / "training.json", [result], device.provenance())
            figure, (axis,) = plotting.new_figure("Loss")
            axis.plot(result.losses, marker="s")
            plotting.save_png(figure, options.out / "loss.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
