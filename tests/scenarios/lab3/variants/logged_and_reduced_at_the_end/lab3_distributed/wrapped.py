"""A training in which every part says what it does, and sums are exchanged when all epochs are through."""

from __future__ import annotations

import functools
import logging
import math
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from labkit import data, models
from labkit.results import DdpTraining, ScalingPoint, StepProfile

LOG = logging.getLogger(__name__)


def noted(function):
    """The function, with a line in the log for each call and its seconds."""

    @functools.wraps(function)
    def wrapper(*args, **options):
        began = time.time()
        result = function(*args, **options)
        LOG.debug("%s: %.6f s", getattr(function, "__name__", type(function).__name__), time.time() - began)
        return result

    return wrapper


@noted
def save_checkpoint(path, model, optimizer, epoch):
    path = Path(path)
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    failed = [None]
    if not dist.is_initialized() or dist.get_rank() == 0:
        with ExitStack() as stack:
            file = tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", suffix=".part", delete=False)
            part = Path(file.name)
            stack.callback(part.unlink, missing_ok=True)
            with file:
                torch.save({"epoch": epoch, "optimizer": optimizer.state_dict(), "model": inner.state_dict()}, file)
            part.replace(path)
    if dist.is_initialized():
        dist.broadcast_object_list(failed, src=0)


@noted
def load_checkpoint(path, model, optimizer=None):
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    where = {parameter.device for parameter in inner.parameters()}.pop()
    state = torch.load(Path(path), map_location=where, weights_only=True)
    inner.load_state_dict(state["model"], strict=True)
    for part in filter(None, [optimizer]):
        part.load_state_dict(state["optimizer"])
    return state["epoch"]


class Meter:
    """Losses of samples, epoch by epoch, on the device."""

    def __init__(self, criterion, device):
        self.criterion, self.device = criterion, device
        self.epochs = []

    def begin(self):
        self.epochs.append(torch.zeros(2, dtype=torch.float64, device=self.device))

    def __call__(self, outputs, targets):
        loss = self.criterion(outputs, targets)
        self.epochs[-1][0] += loss.detach().double() * len(targets)
        self.epochs[-1][1] += len(targets)
        return loss

    def means(self):
        if not self.epochs:
            return ()
        sums = torch.stack(self.epochs)
        dist.all_reduce(sums)
        return tuple(loss / samples for loss, samples in sums.tolist())


def _clock(device):
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.monotonic()


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
    from . import ddp_training as given

    own = given.setup(rank, world_size, init_method=init_method, device=device, timeout_seconds=timeout_seconds)
    with ExitStack() as stack:
        stack.callback(given.cleanup)
        if dataset is None:
            dataset = data.load("digits")
            test_dataset = data.load("digits", split="test") if test_dataset is None else test_dataset
        inner = (models.mlp() if model is None else model).to(own)
        wrapped = DistributedDataParallel(inner, device_ids=None if own.type == "cpu" else [own])
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=learning_rate, momentum=momentum)
        optimizer.register_step_post_hook(lambda *_: LOG.debug("rank %d made a step", rank))
        sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank, shuffle=True, seed=seed)
        loader = DataLoader(dataset, batch_sampler=BatchSampler(sampler, batch_size, drop_last=False))
        first = 0
        if checkpoint is not None and Path(checkpoint).is_file():
            first = load_checkpoint(checkpoint, wrapped, optimizer)
        meter = Meter(nn.CrossEntropyLoss() if criterion is None else criterion, own)
        steps = 0
        began = _clock(own)
        for epoch in range(first, epochs):
            sampler.set_epoch(epoch)
            torch.manual_seed(hash((seed, epoch, rank)) % 2**63)
            wrapped.train()
            meter.begin()
            optimizer.zero_grad()
            for inputs, targets in loader:
                meter(wrapped(inputs.to(own)), targets.to(own)).backward()
                optimizer.step()
                optimizer.zero_grad()
                steps += 1
            if checkpoint is not None:
                save_checkpoint(checkpoint, wrapped, optimizer, epoch + 1)
            LOG.info("epoch %d of %d", epoch + 1, epochs)
        losses = meter.means()
        accuracy = given.evaluate(wrapped, test_dataset, device=own) if test_dataset is not None else None
        seconds = _clock(own) - began
        backend = dist.get_backend()
        return DdpTraining(
            device=own.type,
            backend=backend,
            world_size=world_size,
            batch_size=batch_size,
            effective_batch_size=world_size * batch_size,
            epochs=max(first, epochs),
            losses=losses,
            optimizer_steps=steps,
            accuracy=accuracy,
            seconds=seconds,
        )


class Laps:
    """Seconds between the readings of one clock, by name."""

    def __init__(self, device):
        self.device, self.laps, self.last = device, {}, _clock(device)

    def lap(self, name, *, kept):
        now = _clock(self.device)
        if kept:
            self.laps.setdefault(name, []).append(now - self.last)
        self.last = now

    def median(self, name):
        return statistics.median(self.laps[name])


def measure_rank(
    rank,
    world_size,
    init_method=None,
    *,
    kind="strong",
    batch_size=256,
    device=None,
    model=None,
    batches=None,
    steps=5,
    warmup=2,
):
    from . import measuring as given

    share, rest = {"strong": divmod(batch_size, world_size), "weak": (batch_size, 0)}.get(kind, (0, 1))
    if rest:
        raise ValueError(f"{kind} scaling of {batch_size} samples on {world_size} ranks")
    own = given.setup(rank, world_size, init_method=init_method, device=device)
    with ExitStack() as stack:
        stack.callback(given.cleanup)
        inner = (given.make_model() if model is None else model).to(own)
        wrapped = DistributedDataParallel(inner, device_ids=[own.index] if own.index is not None else None)
        optimizer = torch.optim.SGD(inner.parameters(), lr=1e-4)
        source = given.make_batches(share) if batches is None else batches
        criterion = noted(nn.MSELoss())

        def learn(module, inputs, targets):
            optimizer.zero_grad()
            criterion(module(inputs), targets).backward()
            optimizer.step()

        whole = Laps(own)
        for number in range(-warmup, steps):
            inputs, targets = next(source)
            learn(wrapped, inputs.to(own), targets.to(own))
            whole.lap("step", kept=number >= 0)
        parts = Laps(own)
        for number in range(-warmup, steps):
            inputs, targets = (tensor.to(own) for tensor in next(source))
            parts.lap("data", kept=number >= 0)
            learn(inner, inputs, targets)  # the module alone exchanges nothing
            parts.lap("compute", kept=number >= 0)
        step, read, compute = whole.median("step"), parts.median("data"), parts.median("compute")
        mine = {
            "step": step,
            "data": read,
            "compute": compute,
            "exchange": max(math.fsum((step, -read, -compute)), 0.0),
        }
        table = [None] * world_size
        dist.all_gather_object(table, mine)
        backend = dist.get_backend()
    slowest = max(row["step"] for row in table)
    return ScalingPoint(
        device=own.type,
        backend=backend,
        kind=kind,
        world_size=world_size,
        batch_size=share * world_size,
        step_seconds=slowest,
        samples_per_second=share * world_size / slowest,
        profile=StepProfile(
            data_seconds=tuple(row["data"] for row in table),
            compute_seconds=tuple(row["compute"] for row in table),
            communication_seconds=tuple(row["exchange"] for row in table),
        ),
    )
