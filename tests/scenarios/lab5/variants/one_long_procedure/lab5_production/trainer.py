"""Task 5.3: a trainer for one process or many, that can be killed at any moment and goes on with the same bits.

Not for its parts (parts.py), single steps (window.py), starting ranks (launch.py), files (checkpoints.py) or a program
(train.py).
"""

import dataclasses
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from labkit.loader import ResumableLoader
from labkit.results import EpochResult, TrainerRun, ValidationResult

from .checkpoints import (
    capture_random_state,
    checkpoint_path,
    latest_checkpoint,
    read_checkpoint,
    restore_random_state,
    write_checkpoint,
)
from .parts import IGNORED, count_targets
from .telling import when_terminated
from .window import WindowTrainer


class ProductionTrainer(WindowTrainer):
    """Trains a model as a `TrainerConfig` says; alone, or as one rank of a process group that was joined before.

    In a process group every rank makes a trainer of an equal model and the same configuration, and calls the same
    methods in the same order. Attributes that stay valid: `model` (the module itself, on the device), `optimizer`,
    `scheduler`, `scaler`, `steps` (optimizer steps taken so far, skipped ones not counted).

    Args:
        model: any module that maps a batch of inputs to outputs; trained in place.
        train_loader: this rank's batches (inputs, targets); every rank has as many.
        val_loader: this rank's share of the validation batches, each sample on one rank only; the ranks may have
            different numbers of batches.
        config: what the run depends on, besides.
        criterion: maps (outputs, targets) to the mean loss over the samples (or tokens: see `count_targets`) of a
            batch; None: cross entropy.
        device: None: where the model is.
        monitor: told the same metrics as TensorBoard, by rank 0.
    """

    def train_epoch(self, epoch: int) -> EpochResult:
        """Train one epoch, or the rest of it where the loader is in the middle of it; the model ends in training mode.

        The batches are taken in windows of `accumulation_steps`; the last window of an epoch may be shorter. For each
        window the optimizer makes one step along the gradient of the mean loss over *all* samples (or tokens) of the
        window on *all* ranks, clipped to `max_grad_norm`. Gradients are exchanged once per window.

        The learning rate moves once per optimizer step. A float16 step whose gradients are not finite is left out:
        nothing moves but the loss scale, and it does not count in `steps`. A window in which no target counts, on any
        rank, is left out as well: nothing moves, and it counts as skipped. Forward passes run in autocast; the loss is
        computed in float32 (or in float64, if the outputs are). Windows that were left out have their samples and their
        loss in the result all the same.

        After every `save_every_steps` optimizer steps a checkpoint is saved, but not at the end of the epoch: there
        validation comes first (`fit`). After every `log_every_steps` steps rank 0 alone writes an entry with the
        number of the step to TensorBoard: train/loss (of that window, all ranks), train/learning_rate (of that step),
        train/grad_norm (before clipping; where nothing is clipped, too), train/samples_per_second (all ranks, since the
        entry before, or since the epoch began).

        If a rank was told to stop, all ranks leave the epoch after the same window.

        Args:
            epoch: its number, from 0 on; the loader's order depends on it.

        Returns:
            An `EpochResult`, the same on every rank.
        """
        loader, config = self.train_loader, self.config
        if loader.epoch != epoch or loader.position == 0 or loader.position >= len(loader):
            loader.set_epoch(epoch)
            self.progress = self.no_progress()
        self.next_epoch = epoch
        self.model.train()
        self.replica.train()
        self.samples_since = 0
        self.logged_at = time.perf_counter()
        window = []
        for batch in loader if len(loader) else ():
            window.append(batch)
            over = loader.position == len(loader)
            if len(window) < config.accumulation_steps and not over:
                continue
            taken = self.train_window(window)
            window = []
            if over or self.stopping:
                break
            if taken and config.save_every_steps and self.steps % config.save_every_steps == 0:
                self.save_checkpoint(epoch)
        complete = loader.position >= len(loader)
        if complete:
            self.next_epoch = epoch + 1
        sums = self.sum_over_ranks(float(self.progress.loss_sum), float(self.progress.samples))
        return EpochResult(
            epoch=epoch,
            complete=complete,
            loss=None if sums[1] == 0 else sums[0] / sums[1],
            samples=round(sums[1]),
            optimizer_steps=self.progress.optimizer_steps,
            skipped_steps=self.progress.skipped_steps,
        )

    def validate(self) -> ValidationResult:
        """Mean loss and accuracy over the validation samples of all ranks, each sample counted once and equally.

        The model is evaluated in evaluation mode, without gradients, in autocast as in training; afterwards each of its
        modules is in the mode it was in before. The ranks may have different numbers of batches, one of them none, so
        nothing in a forward pass may communicate: DistributedDataParallel's may. Buffers of all ranks (batch norm's)
        are first made rank 0's. Targets that do not count (`count_targets`) count neither in the loss nor in the
        accuracy; a batch may have no others.

        Raises:
            ValueError: no rank has a sample.
        """
        if self.world_size > 1:
            for buffer in self.model.buffers():
                copy = buffer.data.contiguous()
                dist.broadcast(copy, src=0)
                buffer.data.copy_(copy)
        training = [module for module in self.model.modules() if module.training]
        self.model.eval()
        if isinstance(self.val_loader, ResumableLoader):
            self.val_loader.set_epoch(0)
        losses, rights, counts, classified = [], [], [], True
        try:
            with torch.no_grad():
                for inputs, targets in self.val_loader:
                    count = count_targets(targets)
                    if count == 0:
                        continue
                    outputs, loss = self.forward(self.model, inputs, targets)
                    counts.append(count)
                    losses.append(loss.to(torch.float64))
                    if outputs.dim() != 2 or targets.dim() != 1 or targets.is_floating_point():
                        classified = False
                    if classified:
                        own = targets.to(self.device)
                        rights.append(((outputs.argmax(dim=1) == own) & (own != IGNORED)).sum())
        finally:
            for module in training:
                module.training = True
        weights = np.array(counts, dtype=np.float64)
        means = torch.stack(losses).cpu().numpy() if losses else np.zeros(0)
        right = int(torch.stack(rights).sum()) if rights else 0
        sums = self.sum_over_ranks(
            float(np.sum(means * weights)), float(right), float(weights.sum()), float(not classified)
        )
        if sums[2] == 0:
            raise ValueError("no rank has a validation sample")
        accuracy = sums[1] / sums[2] if sums[3] == 0 else None
        return ValidationResult(loss=sums[0] / sums[2], accuracy=accuracy, samples=round(sums[2]))

    def save_checkpoint(self, epoch: int) -> Path:
        """Save everything that the rest of the run depends on, to `checkpoint_path(output_dir/checkpoints, steps)`.

        Called by every rank, between two windows; rank 0 alone writes, and no rank returns before the file is complete.
        Old checkpoints go as `keep_checkpoints` says. Saving draws no random number and changes nothing.

        What a run depends on: model, optimizer, scheduler, scaler and `steps`; of *each* rank, the state of its random
        numbers, its loader's position and its `progress`; and what `fit` has made so far, which early stopping goes by.

        Args:
            epoch: the epoch that is being trained, or was trained last.

        Returns:
            The path of the file.

        Raises:
            OSError, RuntimeError: it could not be written (on rank 0).
        """
        path = checkpoint_path(self.folder / "checkpoints", self.steps)
        mine = {
            "loader": self.train_loader.state_dict(),
            "loss_sum": float(self.progress.loss_sum),
            "samples": self.progress.samples,
            "optimizer_steps": self.progress.optimizer_steps,
            "skipped_steps": self.progress.skipped_steps,
            "generators": capture_random_state(),
        }
        everybody: list[Any] = [mine]
        if self.world_size > 1:
            everybody = [None for _ in range(self.world_size)]
            dist.all_gather_object(everybody, mine)
        if self.rank == 0:
            try:
                whole = {
                    "epoch": epoch,
                    "steps": self.steps,
                    "model": self.model.state_dict(),
                    "optimizer": self.optimizer.state_dict(),
                    "scheduler": self.scheduler.state_dict(),
                    "scaler": self.scaler.state_dict(),
                    "of_each_rank": everybody,
                    "epochs": [dataclasses.asdict(result) for result in self.epochs],
                    "validations": [dataclasses.asdict(result) for result in self.validations],
                }
                write_checkpoint(path, whole, keep=self.config.keep_checkpoints)
            finally:
                if self.world_size > 1:
                    dist.broadcast_object_list(["written or not"], src=0)
        else:
            dist.broadcast_object_list([None], src=0)
        return path

    def load_checkpoint(self, path: Path | str) -> int:
        """Go to where the run was when `save_checkpoint` wrote this file. Called by every rank.

        Entries of later steps that a killed run has left in TensorBoard no longer count (`Log.resume_at`).

        Returns:
            The epoch to train next: the one that was being trained if batches of it were left, else the one after it.

        Raises:
            ValueError: the run had another number of ranks, or its loader another order, so that it cannot go on with
                the same bits.
            OSError: there is no such file.
            RuntimeError: it belongs to another model.
        """
        whole = read_checkpoint(path)
        if len(whole["of_each_rank"]) != self.world_size:
            raise ValueError(
                f"{path}: {len(whole['of_each_rank'])} ranks have saved this, {self.world_size} would load it"
            )
        mine = whole["of_each_rank"][self.rank]
        self.train_loader.load_state_dict(mine["loader"])
        self.model.load_state_dict(whole["model"])
        self.optimizer.load_state_dict(whole["optimizer"])
        self.scheduler.load_state_dict(whole["scheduler"])
        if self.scaler.is_enabled() and whole["scaler"]:
            self.scaler.load_state_dict(whole["scaler"])
        self.steps = whole["steps"]
        self.progress = self.no_progress()
        self.progress.loss_sum += mine["loss_sum"]
        self.progress.samples = mine["samples"]
        self.progress.optimizer_steps = mine["optimizer_steps"]
        self.progress.skipped_steps = mine["skipped_steps"]
        self.epochs = [EpochResult(**result) for result in whole["epochs"]]
        self.validations = [ValidationResult(**result) for result in whole["validations"]]
        self.next_epoch = whole["epoch"]
        if self.train_loader.position >= len(self.train_loader):
            self.next_epoch += 1
        restore_random_state(mine["generators"])
        self.log.resume_at(self.steps)
        return self.next_epoch

    def fit(self) -> TrainerRun:
        """Train until the last epoch, until validation no longer improves, or until SIGTERM comes.

        Begins where `load_checkpoint` or `train_epoch` left this trainer; else with the newest checkpoint of the run
        that can be read; else at the beginning. So the same command starts a run and continues it.

        Each complete epoch is validated; then rank 0 adds validation/loss and validation/accuracy to TensorBoard (step:
        `steps`), and a checkpoint is saved. The parameters of the best epoch so far are in `output_dir/best.pt`, as
        {"model": state_dict, "epoch": number}.

        With `patience` = p the run ends after p complete epochs in a row whose validation loss was not below the lowest
        one before; a loss that is not a number is never the lowest, and nothing is compared with it. After SIGTERM (to
        any rank) the current window is finished and a checkpoint saved; the run then ends in good order, and a later
        `fit` makes the steps that it would have made. Where it comes outside of a window, during a validation for
        example, at most one window follows.

        Returns:
            A `TrainerRun`, the same on every rank but for `seconds`; its `epochs` are the complete ones. It ended
            "finished" if the last epoch is complete, be patience at its end or not.
        """
        start = time.perf_counter()
        config = self.config
        self.told_to_stop, self.stopping = False, False

        if self.next_epoch is None:
            choice = [None]
            if self.rank == 0:
                newest = latest_checkpoint(self.folder / "checkpoints")
                choice = [None if newest is None else str(newest)]
            if self.world_size > 1:
                dist.broadcast_object_list(choice, src=0)
            if choice[0] is not None:
                self.load_checkpoint(choice[0])
            else:
                self.next_epoch = 0

        ended = ""
        best = None
        with when_terminated(lambda: setattr(self, "told_to_stop", True)):
            while not ended:
                # Where the run stands: the lowest loss so far, and the epochs since.
                losses = np.array([each.loss for each in self.validations], dtype=np.float64)
                best = None if np.isnan(losses).all() else int(np.nanargmin(losses))
                vain = len(losses) if best is None else len(losses) - 1 - best
                if self.next_epoch >= config.epochs:
                    ended = "finished"
                elif config.patience is not None and vain >= config.patience:
                    ended = "early"
                elif self.stopping:
                    ended = "signal"
                else:
                    epoch = self.next_epoch
                    result = self.train_epoch(epoch)
                    if result.complete:
                        tested = self.validate()
                        before = losses[~np.isnan(losses)]
                        self.epochs.append(result)
                        self.validations.append(tested)
                        if self.rank == 0:
                            told = {"validation/loss": tested.loss}
                            if tested.accuracy is not None:
                                told["validation/accuracy"] = tested.accuracy
                            self.log.add(self.steps, told)
                            if not math.isnan(tested.loss) and (len(before) == 0 or tested.loss < before.min()):
                                weights = {"model": self.model.state_dict(), "epoch": epoch}
                                write_checkpoint(self.folder / "best.pt", weights)
                    self.save_checkpoint(epoch)
                    if not result.complete:
                        ended = "signal"
        self.log.close()

        return TrainerRun(
            device=self.device.type,
            dtype=config.dtype,
            world_size=self.world_size,
            ended=ended,
            epochs=tuple(self.epochs),
            validations=tuple(self.validations),
            best_epoch=None if best is None else self.epochs[best].epoch,
            optimizer_steps=self.steps,
            learning_rate=float(self.optimizer.param_groups[0]["lr"]),
            final_scale=float(self.scaler.get_scale()) if self.scaler.is_enabled() else None,
            seconds=time.perf_counter() - start,
        )
