"""Task 5.1: a trainer for one process or many, that can be killed at any moment and goes on with the same bits.

Not for a run from start to end, and not for what the ranks say to each other (base.py, given). Nor for files
(checkpoints.py, given) or a program (train.py, given).
"""

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
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

_STATEFUL = ("model", "optimizer", "scheduler", "scaler")


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
        # --- solution: task 5.1 ---
        self.replica = self.model
        if self.world_size > 1:
            gpu = [self.device.index] if self.device.type == "cuda" else None
            self.replica = DistributedDataParallel(self.model, device_ids=gpu)
        rate, decay = config.learning_rate, config.weight_decay
        self.optimizer = (
            torch.optim.AdamW(self.parameters, rate, weight_decay=decay)
            if config.optimizer == "adamw"
            else torch.optim.SGD(self.parameters, rate, config.momentum, weight_decay=decay)
        )
        steps_per_epoch = math.ceil(len(train_loader) / config.accumulation_steps)
        self.scheduler = make_scheduler(
            self.optimizer,
            warmup_steps=config.warmup_steps,
            total_steps=config.epochs * steps_per_epoch,
            minimum_ratio=config.minimum_ratio,
        )
        self.scaler = torch.amp.GradScaler(
            self.device.type, init_scale=config.initial_scale, enabled=self.dtype == torch.float16
        )
        self.log = Log(self.folder / "tensorboard", monitor)
        # --- end ---

    def forward(self, module: nn.Module, inputs: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and mean cross entropy of a batch, which is moved to the device first; for training and validation.

        Both are computed in autocast to `self.dtype`, unless that is float32.

        Args:
            module: `replica` (its backward pass exchanges gradients) or `model` (nothing of it communicates).
        """
        here, there = self.device, self.device.type
        inputs, classes = inputs.to(here), classes.to(here)
        with contextlib.ExitStack() as stack:
            if self.dtype is not torch.float32:
                stack.enter_context(torch.autocast(there, dtype=self.dtype))
            logits = module(inputs)
            return logits, nn.functional.nll_loss(nn.functional.log_softmax(logits, dim=1), classes)

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
        # Read no number from the GPU (`item()`): each one makes the CPU wait.
        sizes = [len(classes) for _, classes in window]
        samples = sum(sizes)
        for parameter in self.parameters:
            parameter.grad = None
        means = []
        with contextlib.ExitStack() as quiet:
            if self.world_size > 1:
                quiet.enter_context(self.replica.no_sync())
            for batch, size in zip(window[:-1], sizes[:-1], strict=True):
                means.append(self._backward(batch, size / samples))
        means.append(self._backward(window[-1], sizes[-1] / samples))
        total = torch.stack(means).double() @ torch.tensor(sizes, dtype=torch.float64).to(self.device)
        self.scaler.unscale_(self.optimizer)
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        if self.config.max_grad_norm is not None:
            nn.utils.clip_grads_with_norm_(self.parameters, self.config.max_grad_norm, norm)
        rate, before = self.scheduler.get_last_lr()[0], self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        taken = not self.scaler.get_scale() < before
        done = self.progress
        self.progress = Progress(
            done.loss_sum + total,
            done.samples + samples,
            done.optimizer_steps + taken,
            done.skipped_steps + (not taken),
        )
        if taken:
            self.steps += 1
            self.log_step(loss=total / samples, samples=samples, learning_rate=rate, gradient_norm=norm)
            self.scheduler.step()
        return taken

    def _backward(self, batch: Batch, share: float) -> Tensor:
        """The mean loss of a batch, whose gradient counts for this share of a window."""
        _, mean = self.forward(self.replica, *batch)
        self.scaler.scale(share * mean).backward()
        return mean.detach()

    @contextlib.contextmanager
    def _resting(self) -> Iterator[None]:
        """Evaluation mode; afterwards every module is in its own again."""
        with contextlib.ExitStack() as stack:
            for module in self.model.modules():
                stack.callback(setattr, module, "training", module.training)
            self.model.eval()
            stack.enter_context(torch.inference_mode())
            yield

    def train_epoch(self, epoch: int) -> EpochResult:
        """Train one epoch, or the rest of it if the loader is in the middle of it. The model ends in training mode.

        The batches are taken in windows of `accumulation_steps`; the last window of an epoch may be shorter.

        After every `save_every_steps` steps of the run a checkpoint is saved, but not at the end of the epoch: there
        `fit` validates first. If a rank was told to stop, all ranks leave the epoch after the same window.

        Args:
            epoch: its number, from 0 on; the loader's order depends on it.

        Returns:
            An `EpochResult`, the same on every rank. It includes the part of the epoch before a resume.
        """
        self.begin_epoch(epoch)
        for module in self.model.modules():
            module.training = True
        supply = iter(self.train_loader)
        complete = False
        for window in iter(lambda: list(itertools.islice(supply, self.config.accumulation_steps)), []):
            due = self.train_window(window) and self.steps % (self.config.save_every_steps or self.steps + 1) == 0
            complete = self.epoch_is_complete()
            if complete or self.stop_requested():
                break
            if due:
                self.save_checkpoint(epoch)
        own = self.progress
        loss, samples = self.sum_over_ranks(own.loss_sum, own.samples)
        return EpochResult(
            epoch=epoch,
            complete=complete,
            loss=loss / samples,
            samples=round(samples),
            optimizer_steps=own.optimizer_steps,
            skipped_steps=own.skipped_steps,
        )

    def validate(self) -> ValidationResult:
        """Mean loss and accuracy over the validation samples of all ranks, each sample counted once and equally.

        The model is evaluated in evaluation mode and without gradients; afterwards each of its modules is in the mode
        it was in before. The ranks may have different numbers of batches, so nothing in a forward pass may
        communicate: that of DistributedDataParallel may.

        Raises:
            ValueError: no rank has a sample.
        """
        rows = [(0.0, 0.0, 0.0)]
        with self._resting():
            for inputs, classes in self.val_loader:
                logits, mean = self.forward(self.model, inputs, classes)
                right = torch.eq(logits.argmax(dim=-1).cpu(), classes.cpu()).sum()
                rows.append((float(mean) * len(classes), float(right), float(len(classes))))
        loss, right, samples = self.sum_over_ranks(*np.array(rows, dtype=np.float64).sum(axis=0).tolist())
        if samples < 1:
            raise ValueError("nobody has a sample to validate with")
        return ValidationResult(loss=loss / samples, accuracy=right / samples, samples=round(samples))

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
        own = {
            "random": capture_random_state(),
            "loader": self.train_loader.state_dict(),
            "progress": {**dataclasses.asdict(self.progress), "loss_sum": float(self.progress.loss_sum)},
        }
        everybody = self.gather_from_ranks(own)
        path = checkpoint_path(self.folder / "checkpoints", self.steps)
        if self.rank == 0:
            state = {name: getattr(self, name).state_dict() for name in _STATEFUL}
            state |= {name: list(map(dataclasses.asdict, getattr(self, name))) for name in ("epochs", "validations")}
            write_checkpoint(
                path,
                {**state, "steps": self.steps, "epoch": epoch, "ranks": everybody},
                keep=self.config.keep_checkpoints,
            )
        self.wait_for_ranks()
        return path

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
        ranks = state.pop("ranks")
        if len(ranks) != self.world_size:
            raise ValueError(f"{path} has {len(ranks)} ranks, and this run {self.world_size}")
        own = ranks[self.rank]
        self.train_loader.load_state_dict(own["loader"])
        for name in _STATEFUL:
            getattr(self, name).load_state_dict(state.pop(name))
        self.steps, self.progress = state["steps"], Progress(**own["progress"])
        self.epochs = [EpochResult(**each) for each in state["epochs"]]
        self.validations = [ValidationResult(**each) for each in state["validations"]]
        self.next_epoch = state["epoch"] + (1 if self.epoch_is_complete() else 0)
        self.log.resume_at(self.steps)
        restore_random_state(own["random"])
        return self.next_epoch
