"""A trainer with hooks, in the manner of frameworks; contexts entered and left by hand, batches fetched by a thread."""

import queue
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from labkit import data, models
from labkit.results import DdpTraining

from . import checkpoints


class Fetched:
    """Batches that a thread fetches while others are computed."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        ready = queue.Queue(maxsize=2)

        batches = iter(self.loader)  # which draws a random number: here, not in the thread

        def fetch():
            try:
                for batch in batches:
                    ready.put((batch, None))
                ready.put((None, None))
            except Exception as error:
                ready.put((None, error))

        threading.Thread(target=fetch, daemon=True).start()
        while True:
            batch, error = ready.get()
            if error is not None:
                raise error
            if batch is None:
                return
            yield batch


class Hook:
    def on_start(self, trainer):
        pass

    def on_epoch_start(self, trainer):
        pass

    def on_epoch_end(self, trainer):
        pass

    def on_end(self, trainer):
        pass


class Seeds(Hook):
    def __init__(self, seed):
        self.seed = seed

    def on_epoch_start(self, trainer):
        trainer.sampler.set_epoch(trainer.epoch)
        torch.manual_seed(self.seed * 1_000_003 + trainer.epoch * 1009 + trainer.rank)


class Checkpoints(Hook):
    def __init__(self, path):
        self.path = path

    def on_start(self, trainer):
        if Path(self.path).exists():
            trainer.epoch = checkpoints.load_checkpoint(self.path, trainer.model, trainer.optimizer)

    def on_epoch_end(self, trainer):
        checkpoints.save_checkpoint(self.path, trainer.model, trainer.optimizer, trainer.epoch)


class Accuracy(Hook):
    def __init__(self, dataset):
        self.dataset = dataset

    def on_end(self, trainer):
        trainer.accuracy = evaluate(trainer.replica, self.dataset)


class Trainer:
    def __init__(self, model, dataset, place, rank, ranks, criterion, options, hooks):
        self.model, self.place, self.rank = model.to(place).train(), place, rank
        self.criterion, self.hooks = criterion or torch.nn.CrossEntropyLoss(), hooks
        self.replica = DistributedDataParallel(self.model, static_graph=True)
        self.optimizer = torch.optim.SGD(self.model.parameters(), **options["sgd"], fused=True)
        self.sampler = DistributedSampler(dataset, ranks, rank, seed=options["seed"])
        self.loader = DataLoader(dataset, options["batch_size"], sampler=self.sampler)
        self.epoch, self.steps, self.losses, self.accuracy = 0, 0, [], None

    def call(self, moment):
        for hook in self.hooks:
            getattr(hook, moment)(self)

    def training_step(self, batch):
        x, y = (tensor.to(self.place) for tensor in batch)
        loss = self.criterion(self.replica(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.steps += 1
        return loss.item() * len(y), float(len(y))

    def fit(self, epochs):
        self.call("on_start")
        while self.epoch < epochs:
            self.call("on_epoch_start")
            told = [self.training_step(batch) for batch in Fetched(self.loader)]
            sums = torch.tensor(told, dtype=torch.float64, device=self.place).sum(dim=0)
            dist.all_reduce(sums)
            self.losses.append((sums[0] / sums[1]).item())
            self.epoch += 1
            self.call("on_epoch_end")
        self.call("on_end")


def train(
    rank, world_size, init_method=None, *, device=None, model=None, dataset=None, test_dataset=None, criterion=None,
    epochs=3, batch_size=32, learning_rate=0.1, momentum=0.9, seed=0, checkpoint=None, timeout_seconds=600.0,
):  # fmt: skip
    from .ddp_training import cleanup, setup  # which imports this module

    place = setup(rank, world_size, init_method=init_method, device=device, timeout_seconds=timeout_seconds)
    try:
        if dataset is None:
            dataset, test_dataset = data.load("digits"), test_dataset or data.load("digits", split="test")
        hooks = [Seeds(seed)]
        hooks += [Checkpoints(checkpoint)] if checkpoint else []
        hooks += [Accuracy(test_dataset)] if test_dataset else []
        options = {"sgd": {"lr": learning_rate, "momentum": momentum}, "seed": seed, "batch_size": batch_size}
        trainer = Trainer(model or models.mlp(), dataset, place, rank, world_size, criterion, options, hooks)
        began = time.perf_counter_ns()
        trainer.fit(epochs)
        if place.type == "cuda":
            torch.cuda.synchronize()
        took = (time.perf_counter_ns() - began) / 1e9
        backend = dist.get_backend()
        trainer.replica = None
    finally:
        cleanup()
    return DdpTraining(
        device=place.type, backend=backend, world_size=world_size, batch_size=batch_size,
        effective_batch_size=world_size * batch_size, epochs=trainer.epoch, losses=tuple(trainer.losses),
        optimizer_steps=trainer.steps, accuracy=trainer.accuracy, seconds=took,
    )  # fmt: skip


def evaluate(model, dataset, *, device=None, batch_size=64):
    samples = len(dataset)
    if samples < 1:
        raise ValueError("no samples")
    net = getattr(model, "module", model)
    place = device or next(net.parameters()).device
    world, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
    modes = [part.training for part in model.modules()]
    model.eval()
    quiet = torch.no_grad()
    quiet.__enter__()
    try:
        right = 0
        for batch in DataLoader(dataset, batch_size, sampler=range(rank, samples, world)):
            right += (net(batch[0].to(place)).argmax(1) == batch[1].to(place)).sum().item()
    finally:
        quiet.__exit__(None, None, None)
        for part, mode in zip(model.modules(), modes, strict=True):
            part.training = mode
    if world > 1:
        told = torch.tensor(right, device=place)
        dist.all_reduce(told)
        right = told.item()
    return right / samples
