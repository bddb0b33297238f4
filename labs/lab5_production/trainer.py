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
        raise NotImplementedError(
            "Task 5.3 is open: write ProductionTrainer.train_epoch "
            "in labs/lab5_production/trainer.py (about 26 lines)"
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
        # TODO(task 5.3):
        # 1. Make the ranks' buffers equal (dist.broadcast). Evaluation mode; remember the mode of every module.
        # 2. Per batch: mean loss times its samples, right ones, samples.
        # 3. Sum all three over the ranks, then divide.
        raise NotImplementedError(
            "Task 5.3 is open: write ProductionTrainer.validate "
            "in labs/lab5_production/trainer.py (about 26 lines)"
        )

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
        raise NotImplementedError(
            "Task 5.3 is open: write ProductionTrainer.save_checkpoint "
            "in labs/lab5_production/trainer.py (about 26 lines)"
        )

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
        raise NotImplementedError(
            "Task 5.3 is open: write ProductionTrainer.load_checkpoint "
            "in labs/lab5_production/trainer.py (about 19 lines)"
        )

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
        raise NotImplementedError(
            "Task 5.3 is open: write ProductionTrainer.fit "
            "in labs/lab5_production/trainer.py (about 53 lines)"
        )
