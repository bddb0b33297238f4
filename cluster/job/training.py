"""One rank of the job: data, network, Lab 5's trainer, and where it begins, also with another number of ranks."""

import importlib
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cluster.job.augmentation import AugmentedDataset, AugmentedLoader
from cluster.job.plan import Plan
from cluster.job.settings import Settings
from cluster.models import resnet18
from labkit import data, models
from labkit.loader import ResumableLoader

CLASSES = 10
VALIDATION_FACTOR = 4
"""Batches of the validation are so many times larger: they keep nothing for a backward pass."""


def package(settings: Settings, module: str) -> Any:
    """A module of the Lab 5 package that the settings name."""
    return importlib.import_module(f"{settings.package}.{module}")


def make_model(name: str, channels: int, size: int) -> nn.Module:
    """The network for square pictures."""
    return resnet18(channels, CLASSES) if name == "resnet18" else models.small_cnn(channels, size, CLASSES)


def ranks() -> int:
    """In the process group; 1 without one."""
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1


def make_trainer(settings: Settings, plan: Plan, device: torch.device, *, monitor: Any = None) -> Any:
    """Lab 5's trainer as settings and plan say; in a process group, one rank of it."""
    training, validation = (
        data.load(settings.dataset_type, split=split, data_dir=settings.data_dir) for split in ("train", "test")
    )
    config = package(settings, "config").TrainerConfig(
        output_dir=str(settings.output_dir),
        epochs=settings.epochs,
        optimizer=settings.optimizer,
        learning_rate=plan.learning_rate,
        weight_decay=1e-4,
        dtype=settings.dtype(device.type),
        accumulation_steps=plan.accumulation_steps,
        save_every_steps=settings.save_every_steps,
        patience=settings.patience,
        seed=settings.seed,
    )
    _, channels, size, _ = training.tensors[0].shape
    torch.manual_seed(settings.seed)
    model = make_model(settings.model, channels, size).to(device)
    fast: dict[str, Any] = {"num_workers": settings.workers, "pin_memory": device.type == "cuda"}
    train_loader = ResumableLoader(training, plan.batch_size, seed=settings.seed, **fast)
    if settings.augmented:
        moved = AugmentedDataset(training, black=data.black(settings.dataset_type), seed=settings.seed)
        train_loader = AugmentedLoader(moved, plan.batch_size, seed=settings.seed, **fast)
    val_loader = ResumableLoader(validation, VALIDATION_FACTOR * plan.batch_size, shuffle=False, padded=False, **fast)
    return package(settings, "trainer").ProductionTrainer(model, train_loader, val_loader, config, monitor=monitor)


def begin(settings: Settings, plan: Plan, trainer: Any) -> str:
    """Bring the trainer to where the job was; returns what was done, for people.

    With the same number of ranks `fit` itself goes on with the same bits. With another one, as after an elastic restart
    on fewer nodes, no position of a loader means anything: parameters and the optimizer's state are taken over, and the
    epoch that was being trained begins again.
    """
    newest: list[Path | None] = [None]
    checkpoints = package(settings, "checkpoints")
    if trainer.rank == 0:
        newest = [checkpoints.latest_checkpoint(settings.output_dir / "checkpoints")]
    if trainer.world_size > 1:
        torch.distributed.broadcast_object_list(newest, src=0)
    if newest[0] is None:
        return "from the beginning"
    state = checkpoints.read_checkpoint(newest[0])
    then, batch_size = len(state["ranks"]), state["ranks"][0]["loader"]["batch_size"]
    if then == trainer.world_size and batch_size == plan.batch_size:
        return f"from {newest[0].name}"
    trainer.model.load_state_dict(state["model"])
    trainer.optimizer.load_state_dict(state["optimizer"])
    trainer.scaler.load_state_dict(state["scaler"])
    complete = len(state["epochs"])
    _catch_up(trainer, complete)
    results = importlib.import_module("labkit.results")
    trainer.epochs = [results.EpochResult(**each) for each in state["epochs"]]
    trainer.validations = [results.ValidationResult(**each) for each in state["validations"]]
    trainer.steps, trainer.next_epoch = state["steps"], complete
    of = f"{then} ranks with batches of {batch_size}"
    return f"from the parameters of {newest[0].name}, of {of}, at the beginning of epoch {complete}"


def _catch_up(trainer: Any, epochs: int) -> None:
    """The learning rate of this epoch, by the number of steps that an epoch has now."""
    per_epoch = -(-len(trainer.train_loader) // trainer.config.accumulation_steps)
    state = trainer.scheduler.state_dict()
    trainer.scheduler.load_state_dict({**state, "last_epoch": epochs * per_epoch})
    for group, initial, factor in zip(
        trainer.optimizer.param_groups, trainer.scheduler.base_lrs, trainer.scheduler.lr_lambdas, strict=True
    ):
        group["lr"] = initial * factor(epochs * per_epoch)
