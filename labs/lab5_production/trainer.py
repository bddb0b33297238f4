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
        raise NotImplementedError(
            "Task 5.1 is open: write ProductionTrainer.__init__ "
            "in labs/lab5_production/trainer.py (about 21 lines)"
        )

    def forward(self, module: nn.Module, inputs: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and mean cross entropy of a batch, which is moved to the device first; for training and validation.

        Both are computed in autocast to `self.dtype`, unless that is float32.

        Args:
            module: `replica` (its backward pass exchanges gradients) or `model` (nothing of it communicates).
        """
        # TODO(task 5.1): move both, then autocast around the module and the loss.
        raise NotImplementedError(
            "Task 5.1 is open: write ProductionTrainer.forward "
            "in labs/lab5_production/trainer.py (about 5 lines)"
        )

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
        raise NotImplementedError(
            "Task 5.1 is open: write ProductionTrainer.train_window "
            "in labs/lab5_production/trainer.py (about 29 lines)"
        )

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
        raise NotImplementedError(
            "Task 5.1 is open: write ProductionTrainer.train_epoch "
            "in labs/lab5_production/trainer.py (about 20 lines)"
        )

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
        raise NotImplementedError(
            "Task 5.1 is open: write ProductionTrainer.validate "
            "in labs/lab5_production/trainer.py (about 17 lines)"
        )

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
        raise NotImplementedError(
            "Task 5.1 is open: write ProductionTrainer.save_checkpoint "
            "in labs/lab5_production/trainer.py (about 22 lines)"
        )

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
        raise NotImplementedError(
            "Task 5.1 is open: write ProductionTrainer.load_checkpoint "
            "in labs/lab5_production/trainer.py (about 17 lines)"
        )
