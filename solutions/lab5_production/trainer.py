"""Task 5.3: a trainer for one process or many, that can be killed at any moment and goes on with the same bits.

Not for its parts (parts.py), single steps (window.py), starting ranks (launch.py), files (checkpoints.py) or a program
(train.py).
"""

import dataclasses
import itertools
import math
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from labkit.results import EpochResult, TrainerRun, ValidationResult

from .checkpoints import (
    capture_random_state,
    checkpoint_path,
    latest_checkpoint,
    read_checkpoint,
    restore_random_state,
    write_checkpoint,
)
from .parts import Progress, count_targets
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
        # TODO(task 5.3):
        # 1. Go to the beginning of the epoch, unless the loader is in the middle of it. Training mode.
        # 2. Take the batches in windows (itertools.islice), each to train_window.
        # 3. Save in the middle, stop in the middle.
        # 4. Sum up loss and samples over the ranks.
        # --- solution: task 5.3 ---
        loader, every = self.train_loader, self.config.save_every_steps
        if loader.epoch != epoch or not 0 < loader.position < len(loader):
            loader.set_epoch(epoch)
            self.progress = self.no_progress()
        self.next_epoch = epoch
        self.model.train()
        batches = iter(loader)
        self.logged_at, self.samples_since = time.perf_counter(), 0
        while window := list(itertools.islice(batches, self.config.accumulation_steps)):
            taken = self.train_window(window)
            if loader.position >= len(loader):
                self.next_epoch = epoch + 1
                break
            if self.stopping:
                break
            if taken and every is not None and self.steps % every == 0:
                self.save_checkpoint(epoch)
        loss_sum, samples = self.sum_over_ranks(self.progress.loss_sum.item(), self.progress.samples)
        return EpochResult(
            epoch=epoch,
            complete=self.next_epoch > epoch,
            loss=loss_sum / samples if samples else None,
            samples=int(samples),
            optimizer_steps=self.progress.optimizer_steps,
            skipped_steps=self.progress.skipped_steps,
        )
        # --- end ---

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
        # TODO(task 5.3):
        # 1. Make the ranks' buffers equal (dist.broadcast). Evaluation mode; remember the mode of every module.
        # 2. Per batch: mean loss times its samples, right ones, samples.
        # 3. Sum all three over the ranks, then divide.
        # --- solution: task 5.3 ---
        if self.world_size > 1:
            for buffer in self.model.buffers():
                dist.broadcast(buffer, src=0)
        modes = [(module, module.training) for module in self.model.modules()]
        self.model.eval()
        loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        right = torch.zeros((), dtype=torch.int64, device=self.device)
        samples, other = 0, 0
        with torch.no_grad():
            for inputs, targets in self.val_loader:
                count = count_targets(targets)
                outputs, mean = self.forward(self.model, inputs, targets)
                if count:
                    loss_sum += mean.double() * count
                samples += count
                if outputs.ndim == 2 and targets.ndim == 1 and not targets.is_floating_point():
                    right += (outputs.argmax(dim=1) == targets.to(self.device)).sum()
                else:
                    other += 1
        for module, training in modes:
            module.training = training
        totals = self.sum_over_ranks(loss_sum.item(), right.item(), samples, other)
        if not totals[2]:
            raise ValueError("there are no samples to validate with")
        accuracy = None if totals[3] else totals[1] / totals[2]
        return ValidationResult(loss=totals[0] / totals[2], accuracy=accuracy, samples=int(totals[2]))
        # --- end ---

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
        # TODO(task 5.3):
        # 1. Collect what each rank has of its own (dist.all_gather_object, if there are others).
        # 2. Rank 0: write_checkpoint with all of it.
        # 3. All ranks: wait for rank 0.
        # --- solution: task 5.3 ---
        own = {
            "random": capture_random_state(),
            "loader": self.train_loader.state_dict(),
            "progress": {**vars(self.progress), "loss_sum": self.progress.loss_sum.item()},
        }
        ranks: list[Any] = [own]
        if self.world_size > 1:
            ranks = [None] * self.world_size
            dist.all_gather_object(ranks, own)
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
        if self.world_size > 1:
            dist.barrier()
        return path
        # --- end ---

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
        # TODO(task 5.3): everything that save_checkpoint saved, random numbers last; then tell the log (resume_at).
        # --- solution: task 5.3 ---
        state = read_checkpoint(path)
        if len(state["ranks"]) != self.world_size:
            raise ValueError(f"{path} is of a run on {len(state['ranks'])} ranks, this one has {self.world_size}")
        own = state["ranks"][self.rank]
        self.train_loader.load_state_dict(own["loader"])
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.scaler.load_state_dict(state["scaler"])
        self.steps = state["steps"]
        loss_sum = torch.tensor(own["progress"]["loss_sum"], dtype=torch.float64, device=self.device)
        self.progress = Progress(**{**own["progress"], "loss_sum": loss_sum})
        self.epochs = [EpochResult(**each) for each in state["epochs"]]
        self.validations = [ValidationResult(**each) for each in state["validations"]]
        complete = self.train_loader.position >= len(self.train_loader)
        self.next_epoch = int(state["epoch"]) + int(complete)
        self.log.resume_at(self.steps)
        restore_random_state(own["random"])
        return self.next_epoch
        # --- end ---

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
        # TODO(task 5.3):
        # 1. Find out where to begin; rank 0 decides which checkpoint is the newest (dist.broadcast_object_list).
        # 2. Inside when_terminated(...): per epoch train, validate, remember, log, save.
        # 3. Out of patience and complete runs train nothing, also right after a resume.
        # --- solution: task 5.3 ---
        started = time.perf_counter()
        if self.next_epoch is None:
            newest = [latest_checkpoint(self.folder / "checkpoints") if self.rank == 0 else None]
            if self.world_size > 1:
                dist.broadcast_object_list(newest, src=0)
            self.next_epoch = 0 if newest[0] is None else self.load_checkpoint(newest[0])
        self.told_to_stop = self.stopping = False
        with when_terminated(self._tell_to_stop):
            while self.next_epoch < self.config.epochs and not self._out_of_patience() and not self.stopping:
                self._fit_epoch(self.next_epoch)
        self.log.close()
        finished = self.next_epoch >= self.config.epochs
        early = not finished and self._out_of_patience()
        return TrainerRun(
            device=self.device.type,
            dtype=self.config.dtype,
            world_size=self.world_size,
            ended="finished" if finished else "early" if early else "signal",
            epochs=tuple(self.epochs),
            validations=tuple(self.validations),
            best_epoch=self._best_epoch(),
            optimizer_steps=self.steps,
            learning_rate=float(self.optimizer.param_groups[0]["lr"]),
            final_scale=self.scaler.get_scale() if self.scaler.is_enabled() else None,
            seconds=time.perf_counter() - started,
        )
        # --- end ---

    # --- solution only ---
    def _tell_to_stop(self) -> None:
        self.told_to_stop = True

    def _fit_epoch(self, epoch: int) -> None:
        result = self.train_epoch(epoch)
        if result.complete:
            validation = self.validate()
            self.epochs.append(result)
            self.validations.append(validation)
            if self.rank == 0:
                metrics = {"validation/loss": validation.loss, "validation/accuracy": validation.accuracy}
                self.log.add(self.steps, {name: value for name, value in metrics.items() if value is not None})
                if self._best_epoch() == epoch:
                    write_checkpoint(self.folder / "best.pt", {"model": self.model.state_dict(), "epoch": epoch})
        self.save_checkpoint(epoch)

    def _best_epoch(self) -> int | None:
        best: int | None = None
        lowest = math.inf
        for epoch, validation in zip(self.epochs, self.validations, strict=True):
            if validation.loss < lowest:
                best, lowest = epoch.epoch, validation.loss
        return best

    def _out_of_patience(self) -> bool:
        if self.config.patience is None or not self.epochs:
            return False
        best = self._best_epoch()
        since = self.epochs[-1].epoch - (self.epochs[0].epoch - 1 if best is None else best)
        return since >= self.config.patience

    # --- end ---
