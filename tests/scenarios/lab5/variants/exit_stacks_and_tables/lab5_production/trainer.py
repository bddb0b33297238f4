"""Task 5.1: a trainer for one process or many, that can be killed at any moment and goes on with the same bits.

Not for a run from start to end, and not for what the ranks say to each other (base.py, given). Nor for files
(checkpoints.py, given) or a program (train.py, given).
"""

import dataclasses
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from labkit.loader import ResumableLoader
from labkit.results import EpochResult, ValidationResult

from .base import Batch, Progress, TrainerBase
from .checkpoints import (
    capture_random_state,
    checkpoint_path,
    read_checkpoint,
    restore_random_state,
    write_checkpoint,
)
from .config import TrainerConfig
from .log import Log, MetricSink
from .schedule import make_scheduler


def _windows(batches: Iterable[Batch], length: int) -> Iterator[list[Batch]]:
    """Lists of `length` batches, taken one by one; the last list may be shorter."""
    window: list[Batch] = []
    for batch in batches:
        window.append(batch)
        if len(window) == length:
            yield window
            window = []
    if window:
        yield window


class ProductionTrainer(TrainerBase):
    """Trains a classifier as a `TrainerConfig` says; alone, or as one rank of a process group that was joined before.

    In a process group every rank makes a trainer of an equal model and the same configuration, and calls the same
    methods in the same order. `TrainerBase` has the attributes and the methods that you need; read it first.

    Args:
        model: maps a batch of inputs to logits [N, classes]; on its device already, and trained there in place.
        train_loader: this rank's batches (inputs, classes [N]). The k-th batches of all ranks have equally many
            samples; the last batch of an epoch may be smaller than the others.
        val_loader: this rank's share of the validation batches, each sample on one rank only. The ranks may have
            different numbers of batches, one of them none.
        config: everything else that the run depends on.
        monitor: receives the same metrics as TensorBoard, from rank 0.
    """

    def __init__(
        self,
        model: nn.Module,
        train_loader: ResumableLoader,
        val_loader: Iterable[Batch],
        config: TrainerConfig,
        monitor: MetricSink | None = None,
    ) -> None:
        """Build the parts of the trainer: `replica`, `optimizer`, `scheduler`, `scaler` and `log`.

        The optimizer is AdamW or SGD with momentum (`config.optimizer`), over `self.parameters`, with the
        configuration's learning rate and weight decay. The scheduler counts optimizer steps: those of all epochs,
        where the last window of an epoch may be shorter. `make_scheduler` makes the schedule.
        """
        super().__init__(model, train_loader, val_loader, config)
        distributed = self.world_size > 1
        places = {"device_ids": [self.device.index]} if self.device.type == "cuda" else {}
        self.replica = DistributedDataParallel(model, **places) if distributed else model
        options: dict[str, float] = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
        if config.optimizer == "adamw":
            self.optimizer = torch.optim.AdamW(self.parameters, **options)
        else:
            self.optimizer = torch.optim.SGD(self.parameters, momentum=config.momentum, **options)
        whole, rest = divmod(len(train_loader), config.accumulation_steps)
        self.scheduler = make_scheduler(
            self.optimizer,
            warmup_steps=config.warmup_steps,
            total_steps=(whole + (rest > 0)) * config.epochs,
            minimum_ratio=config.minimum_ratio,
        )
        scaled = config.dtype == "float16"
        self.scaler = torch.amp.GradScaler(self.device.type, init_scale=config.initial_scale, enabled=scaled)
        self.log = Log(self.folder / "tensorboard", monitor)

    def forward(self, module: nn.Module, inputs: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and mean cross entropy of a batch, which is moved to the device first; for training and validation.

        Both are computed in autocast to `self.dtype`, unless that is float32.

        Args:
            module: `replica` (its backward pass exchanges gradients) or `model` (nothing of it communicates).
        """
        batch = [part.to(self.device) for part in (inputs, classes)]
        with ExitStack() as stack:
            if self.dtype is not torch.float32:
                stack.enter_context(torch.autocast(self.device.type, dtype=self.dtype))
            logits = module(batch[0])
            loss = nn.CrossEntropyLoss()(logits, batch[1])
        return logits, loss

    def train_window(self, window: list[Batch]) -> bool:
        """Make one optimizer step along the gradient of the mean loss over all samples of a window on all ranks.

        Each batch goes through `forward` and backward by itself: that is what accumulation is for. Gradients are
        exchanged once per window, and clipped once, to `max_grad_norm` (None: not clipped). A float16
        step whose gradients are not finite is skipped: nothing moves except the loss scale. The scheduler moves once
        for each step that was taken.

        Adds to `steps` and `progress` (the samples and the loss of a skipped window, too), and passes each step that
        was taken to `log_step`.

        Args:
            window: this rank's batches, at least one; the last window of an epoch may have fewer than the others.

        Returns:
            Whether the step was taken.
        """
        sizes = [classes.numel() for _, classes in window]
        self.model.zero_grad(set_to_none=True)
        means: list[Tensor] = []
        for left, (inputs, classes) in zip(reversed(range(len(window))), window, strict=True):
            with ExitStack() as stack:
                if left and isinstance(self.replica, DistributedDataParallel):
                    stack.enter_context(self.replica.no_sync())
                _, mean = self.forward(self.replica, inputs, classes)
                weighted = mean * (classes.numel() / sum(sizes))
                self.scaler.scale(weighted).backward()
            means.append(mean.detach())
        total = torch.stack(means).double() @ torch.tensor(sizes, dtype=torch.float64, device=self.device)

        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.get_total_norm([each.grad for each in self.parameters if each.grad is not None])
        if self.config.max_grad_norm is not None:
            nn.utils.clip_grads_with_norm_(self.parameters, self.config.max_grad_norm, norm)
        rate = float(self.scheduler.get_last_lr()[0])
        before = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        skipped = self.scaler.get_scale() < before

        progress = self.progress
        self.progress = dataclasses.replace(
            progress,
            loss_sum=total + progress.loss_sum,
            samples=progress.samples + sum(sizes),
            optimizer_steps=progress.optimizer_steps + (not skipped),
            skipped_steps=progress.skipped_steps + skipped,
        )
        if skipped:
            return False
        self.steps += 1
        self.log_step(loss=total / sum(sizes), samples=sum(sizes), learning_rate=rate, gradient_norm=norm)
        self.scheduler.step()
        return True

    def train_epoch(self, epoch: int) -> EpochResult:
        """Train one epoch, or the rest of it if the loader is in the middle of it. The model ends in training mode.

        The batches are taken in windows of `accumulation_steps`; the last window of an epoch may be shorter.

        After every `save_every_steps` steps of the run a checkpoint is saved, but not at the end of the epoch: there
        `fit` validates first. If a rank must stop, all ranks leave the epoch after the same window.

        Args:
            epoch: its number, from 0 on; the loader's order depends on it.

        Returns:
            An `EpochResult`, the same on every rank. It includes the part of the epoch before a resume.
        """
        self.begin_epoch(epoch)
        self.replica.train()
        done = False
        for window in _windows(self.train_loader, self.config.accumulation_steps):
            taken = self.train_window(window)
            if done := self.epoch_is_complete():
                break
            if self.stop_requested():
                break
            if self.config.save_every_steps and taken and not self.steps % self.config.save_every_steps:
                self.save_checkpoint(epoch)
        loss, samples = self.sum_over_ranks(self.progress.loss_sum, self.progress.samples)
        return EpochResult(
            epoch=epoch,
            complete=done,
            loss=loss / samples,
            samples=round(samples),
            optimizer_steps=self.progress.optimizer_steps,
            skipped_steps=self.progress.skipped_steps,
        )

    def validate(self) -> ValidationResult:
        """Mean loss and accuracy over the validation samples of all ranks, each sample counted once and equally.

        The model is evaluated in evaluation mode and without gradients; afterwards each of its modules is in the mode
        it was in before. The ranks may have different numbers of batches, so nothing in a forward pass may
        communicate: that of DistributedDataParallel may.

        Raises:
            ValueError: no rank has a sample.
        """
        training = {module for module in self.model.modules() if module.training}
        losses: list[Tensor] = []
        hits: list[Tensor] = []
        counts: list[int] = []
        try:
            self.model.eval()
            for batch in self.val_loader:
                with torch.no_grad():
                    logits, mean = self.forward(self.model, *batch)
                counts.append(len(batch[1]))
                losses.append(mean.double() * counts[-1])
                hits.append(torch.eq(logits.max(dim=-1).indices, batch[1].to(self.device)).sum())
        finally:
            for module in self.model.modules():
                module.training = module in training
        nothing = torch.zeros(1, dtype=torch.float64, device=self.device)
        sums = self.sum_over_ranks(sum(losses, nothing).sum(), sum(hits, nothing).sum(), sum(counts))
        loss, correct, samples = sums
        if samples == 0:
            raise ValueError("no rank has a sample to validate with")
        return ValidationResult(loss=loss / samples, accuracy=correct / samples, samples=round(samples))

    def save_checkpoint(self, epoch: int) -> Path:
        """Save everything that the rest of the run depends on, to `checkpoint_path(folder/checkpoints, steps)`.

        Called by every rank, between two windows. Rank 0 alone writes, and no rank returns before the file is
        complete; `keep_checkpoints` of them are kept. Saving draws no random number and changes nothing.

        A run depends on: model, optimizer, scheduler, scaler and `steps`; of *each* rank, the state of its random
        numbers, its loader's position and its `progress`; and the `epochs` and `validations` that `fit` has made.

        Args:
            epoch: the epoch that is being trained, or was trained last.

        Returns:
            The path of the file.

        Raises:
            OSError, RuntimeError: rank 0 could not write it.
        """
        mine = (
            capture_random_state(),
            self.train_loader.state_dict(),
            {
                key: float(value) if key == "loss_sum" else value
                for key, value in dataclasses.asdict(self.progress).items()
            },
        )
        every = self.gather_from_ranks(mine)
        target = checkpoint_path(self.folder / "checkpoints", self.steps)
        if self.rank == 0:
            parts = {name: getattr(self, name).state_dict() for name in ("model", "optimizer", "scheduler", "scaler")}
            random, loaders, progresses = zip(*every, strict=True)
            write_checkpoint(
                target,
                {
                    **parts,
                    "counters": {"steps": self.steps, "epoch": epoch},
                    "random": list(random),
                    "loaders": list(loaders),
                    "progress": list(progresses),
                    "past": [
                        (vars(one), vars(other)) for one, other in zip(self.epochs, self.validations, strict=True)
                    ],
                },
                keep=self.config.keep_checkpoints,
            )
        self.wait_for_ranks()
        return target

    def load_checkpoint(self, path: Path | str) -> int:
        """Go to where the run was when `save_checkpoint` wrote this file. Called by every rank.

        TensorBoard's entries of later steps, which a killed run may have left, no longer count (`Log.resume_at`).
        `next_epoch` becomes what is returned, so that `fit` goes on from there.

        Returns:
            The epoch to train next: the one that was being trained if batches of it are left, else the one after it.

        Raises:
            ValueError: the run had another number of ranks, or its loader another order, so that it cannot go on with
                the same bits.
            OSError: there is no such file.
            RuntimeError: it belongs to another model.
        """
        state = read_checkpoint(path)
        ranks = len(state["random"])
        if ranks != self.world_size:
            raise ValueError(f"{path}: {ranks} ranks wrote it, and there are {self.world_size}")
        self.train_loader.load_state_dict(state["loaders"][self.rank])
        for name in ("model", "optimizer", "scheduler", "scaler"):
            getattr(self, name).load_state_dict(state[name])
        self.steps = int(state["counters"]["steps"])
        self.progress = Progress(**state["progress"][self.rank])
        self.epochs, self.validations = [], []
        for epoch, validation in state["past"]:
            self.epochs.append(EpochResult(**epoch))
            self.validations.append(ValidationResult(**validation))
        self.log.resume_at(self.steps)
        self.next_epoch = state["counters"]["epoch"]
        self.epoch_is_complete()  # moves on to the next one
        restore_random_state(state["random"][self.rank])
        assert self.next_epoch is not None
        return self.next_epoch
