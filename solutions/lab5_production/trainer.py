"""Task 5.1: a trainer for one process or many, that can be killed at any moment and goes on with the same bits.

Not for a run from start to end, and not for what the ranks say to each other (base.py, given). Nor for files
(checkpoints.py, given) or a program (train.py, given).
"""

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterable
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
        # TODO(task 5.1):
        # 1. The replica: DistributedDataParallel if there are other ranks (on a GPU it wants device_ids).
        # 2. The optimizer, and make_scheduler with the number of optimizer steps of the whole run.
        # 3. A torch.amp.GradScaler, enabled for float16 only, that begins with config.initial_scale.
        # 4. A Log in the folder "tensorboard" of `self.folder`, with the monitor.
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
        # TODO(task 5.1): move both, then autocast around the module and the loss.
        # --- solution: task 5.1 ---
        inputs = inputs.to(self.device, non_blocking=True)
        classes = classes.to(self.device, non_blocking=True)
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            logits = module(inputs)
            return logits, nn.functional.cross_entropy(logits, classes)
        # --- end ---

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
        # TODO(task 5.1):
        # 1. Per batch: forward, the loss weighted by its share of the window's samples (Task 3.3), scaled backward;
        #    no_sync for all batches except the last.
        # 2. Unscale, clip, step, update (Task 2.2). A step was skipped only if update() lowered the scale.
        # 3. If the step was taken: scheduler, `steps`, log_step. The norm is logged even if nothing is clipped.
        # Read no number from the GPU (`item()`): each one makes the CPU wait.
        # --- solution: task 5.1 ---
        samples = sum(len(classes) for _, classes in window)
        self.optimizer.zero_grad()
        loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        for index, (inputs, classes) in enumerate(window):
            is_last, share = index == len(window) - 1, len(classes) / samples
            with contextlib.nullcontext() if is_last else self._without_exchange():
                _, mean = self.forward(self.replica, inputs, classes)
                # A product with 1 would be a kernel in the forward pass and one in the backward pass.
                self.scaler.scale(mean if share == 1 else mean * share).backward()
            loss_sum.add_(mean.detach(), alpha=len(classes))  # one kernel, and nothing waits for it
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.parameters, self.config.max_grad_norm or math.inf)  # inf only measures
        scale, learning_rate = self.scaler.get_scale(), self.optimizer.param_groups[0]["lr"]
        self.scaler.step(self.optimizer)
        self.scaler.update()
        taken = self.scaler.get_scale() >= scale
        if taken:
            self.scheduler.step()
            self.steps += 1
            self.log_step(loss=loss_sum / samples, samples=samples, learning_rate=learning_rate, gradient_norm=norm)
        self.progress.loss_sum = self.progress.loss_sum + loss_sum
        self.progress.samples += samples
        self.progress.optimizer_steps += taken
        self.progress.skipped_steps += not taken
        return taken
        # --- end ---

    # --- solution only ---
    def _without_exchange(self) -> contextlib.AbstractContextManager[None]:
        if isinstance(self.replica, DistributedDataParallel):
            silent: contextlib.AbstractContextManager[None] = self.replica.no_sync()
            return silent
        return contextlib.nullcontext()

    # --- end ---

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
        # TODO(task 5.1):
        # 1. begin_epoch; training mode.
        # 2. Take the batches in windows (itertools.islice) and pass each window to train_window.
        # 3. After each window, in this order: stop at the end of the epoch (epoch_is_complete); stop if a rank
        #    must (stop_requested); save if it is time to.
        # 4. Sum `progress.loss_sum` and `progress.samples` over the ranks.
        # --- solution: task 5.1 ---
        self.begin_epoch(epoch)
        self.model.train()
        every, complete = self.config.save_every_steps, False
        batches = iter(self.train_loader)
        while window := list(itertools.islice(batches, self.config.accumulation_steps)):
            taken = self.train_window(window)
            complete = self.epoch_is_complete()
            if complete or self.stop_requested():
                break
            if taken and every is not None and self.steps % every == 0:
                self.save_checkpoint(epoch)
        loss_sum, samples = self.sum_over_ranks(self.progress.loss_sum, self.progress.samples)
        return EpochResult(
            epoch=epoch,
            complete=complete,
            loss=loss_sum / samples,
            samples=int(samples),
            optimizer_steps=self.progress.optimizer_steps,
            skipped_steps=self.progress.skipped_steps,
        )
        # --- end ---

    def validate(self) -> ValidationResult:
        """Mean loss and accuracy over the validation samples of all ranks, each sample counted once and equally.

        The model is evaluated in evaluation mode and without gradients; afterwards each of its modules is in the mode
        it was in before. The ranks may have different numbers of batches, so nothing in a forward pass may
        communicate: that of DistributedDataParallel may.

        Raises:
            ValueError: no rank has a sample.
        """
        # TODO(task 5.1):
        # 1. Evaluation mode; remember the mode of every module.
        # 2. Per batch: mean loss times its samples, correct predictions, samples.
        # 3. Sum all three over the ranks, then divide. Put the modes back.
        # --- solution: task 5.1 ---
        modes = [(module, module.training) for module in self.model.modules()]
        self.model.eval()
        loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        correct = torch.zeros((), dtype=torch.int64, device=self.device)
        samples = 0
        with torch.no_grad():
            for inputs, classes in self.val_loader:
                logits, mean = self.forward(self.model, inputs, classes)
                loss_sum.add_(mean, alpha=len(classes))
                correct += (logits.argmax(dim=1) == classes.to(self.device)).sum()
                samples += len(classes)
        for module, training in modes:
            module.training = training
        loss_total, correct_total, total = self.sum_over_ranks(loss_sum, correct, samples)
        if not total:
            raise ValueError("there are no samples to validate with")
        return ValidationResult(loss=loss_total / total, accuracy=correct_total / total, samples=int(total))
        # --- end ---

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
        # TODO(task 5.1):
        # 1. Gather what each rank has of its own. A file holds plain values: dataclasses.asdict, numbers, tensors.
        # 2. Rank 0: write_checkpoint with all of it.
        # 3. All ranks: wait for rank 0.
        # --- solution: task 5.1 ---
        own = {
            "random": capture_random_state(),
            "loader": self.train_loader.state_dict(),
            "progress": {**vars(self.progress), "loss_sum": float(self.progress.loss_sum)},
        }
        ranks = self.gather_from_ranks(own)
        path = checkpoint_path(self.folder / "checkpoints", self.steps)
        if self.rank == 0:
            state = {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scheduler": self.scheduler.state_dict(),
                "scaler": self.scaler.state_dict(),
                "steps": self.steps,
                "epoch": epoch,
                "ranks": ranks,
                "epochs": [dataclasses.asdict(each) for each in self.epochs],
                "validations": [dataclasses.asdict(each) for each in self.validations],
            }
            write_checkpoint(path, state, keep=self.config.keep_checkpoints)
        self.wait_for_ranks()
        return path
        # --- end ---

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
        # TODO(task 5.1):
        # 1. read_checkpoint; compare the number of ranks. The loader checks its own order.
        # 2. Put back all that save_checkpoint saved, and inform the log. Random numbers last.
        # --- solution: task 5.1 ---
        state = read_checkpoint(path)
        if len(state["ranks"]) != self.world_size:
            raise ValueError(f"{path} is from a run on {len(state['ranks'])} ranks, this one has {self.world_size}")
        own = state["ranks"][self.rank]
        self.train_loader.load_state_dict(own["loader"])
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.scaler.load_state_dict(state["scaler"])
        self.steps = state["steps"]
        self.progress = Progress(**own["progress"])
        self.epochs = [EpochResult(**each) for each in state["epochs"]]
        self.validations = [ValidationResult(**each) for each in state["validations"]]
        self.next_epoch = int(state["epoch"]) + int(self.epoch_is_complete())
        self.log.resume_at(self.steps)
        restore_random_state(own["random"])
        return self.next_epoch
        # --- end ---
