"""Task 5.3: a trainer for one process or many, that can be killed at any moment and goes on with the same bits.

Not for its parts (parts.py), single steps (window.py), starting ranks (launch.py), files (checkpoints.py) or a program
(train.py).
"""

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
from .parts import Batch, Progress, count_targets
from .phases import ENDS, Phase, evaluating, judge
from .telling import when_terminated
from .window import WindowTrainer

STATEFUL = ("model", "optimizer", "scheduler", "scaler")
HISTORY = ("epochs", "validations")


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
        loader = self.train_loader
        if loader.epoch != epoch or not 0 < loader.position < len(loader):
            loader.set_epoch(epoch)
            self.progress = self.no_progress()
        self.next_epoch = epoch
        self.replica.train()
        self.logged_at, self.samples_since = time.perf_counter(), 0
        every = self.config.save_every_steps
        for window in self._windows():
            taken = self.train_window(window)
            rest = loader.position < len(loader)
            if self.stopping:
                break
            if taken and rest and every is not None and self.steps % every == 0:
                self.save_checkpoint(epoch)
        complete = loader.position >= len(loader)
        self.next_epoch = epoch + complete
        loss_sum, samples = self.sum_over_ranks(self.progress.loss_sum.item(), float(self.progress.samples))
        return EpochResult(
            epoch=epoch,
            complete=complete,
            loss=loss_sum / samples if samples else None,
            samples=int(samples),
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
                of_rank_0 = buffer.detach().clone(memory_format=torch.contiguous_format)
                dist.broadcast(of_rank_0, 0)
                buffer.detach().copy_(of_rank_0)
        if isinstance(self.val_loader, ResumableLoader):
            self.val_loader.set_epoch(0)  # all of it, in the same order each time
        tally = torch.zeros(2, dtype=torch.float64, device=self.device)
        samples = odd = 0
        with evaluating(self.model), torch.no_grad():
            for inputs, targets in self.val_loader:
                if not (count := count_targets(targets)):
                    continue
                outputs, loss = self.forward(self.model, inputs, targets)
                samples += count
                tally[0] += loss.double() * count
                if outputs.ndim == 2 and targets.ndim == 1 and not targets.is_floating_point():
                    tally[1] += (outputs.argmax(1) == targets.to(self.device)).sum()
                else:
                    odd += 1
        loss_sum, right, all_samples, all_odd = self.sum_over_ranks(*tally.tolist(), float(samples), float(odd))
        if not all_samples:
            raise ValueError("there is no validation sample on any rank")
        return ValidationResult(
            loss=loss_sum / all_samples,
            accuracy=None if all_odd else right / all_samples,
            samples=int(all_samples),
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
        own = {
            "random": capture_random_state(),
            "loader": self.train_loader.state_dict(),
            "progress": {
                **{name: getattr(self.progress, name) for name in ("samples", "optimizer_steps", "skipped_steps")},
                "loss_sum": self.progress.loss_sum.item(),
            },
        }
        ranks: list[Any] = [own]
        if self.world_size > 1:
            ranks = [None] * self.world_size
            dist.all_gather_object(ranks, own)
        path = checkpoint_path(self.folder / "checkpoints", self.steps)
        try:
            if self.rank == 0:
                state = {name: getattr(self, name).state_dict() for name in STATEFUL}
                history = {name: [dataclasses.asdict(each) for each in getattr(self, name)] for name in HISTORY}
                whole = {**state, **history, "steps": self.steps, "epoch": epoch, "ranks": ranks}
                write_checkpoint(path, whole, keep=self.config.keep_checkpoints)
        finally:
            if self.world_size > 1:
                dist.barrier()
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
        state = read_checkpoint(path)
        if (ranks := len(state["ranks"])) != self.world_size:
            raise ValueError(f"{path} is of a run with {ranks} ranks, this one has {self.world_size}")
        own = state["ranks"][self.rank]
        self.train_loader.load_state_dict(own["loader"])
        for name in STATEFUL:
            if state[name] or name != "scaler":  # that of a scaler which does nothing is empty
                getattr(self, name).load_state_dict(state[name])
        self.steps = state["steps"]
        self.epochs = [EpochResult(**each) for each in state["epochs"]]
        self.validations = [ValidationResult(**each) for each in state["validations"]]
        loss_sum = torch.tensor(own["progress"]["loss_sum"], dtype=torch.float64, device=self.device)
        self.progress = Progress(**{**own["progress"], "loss_sum": loss_sum})
        left = self.train_loader.position < len(self.train_loader)
        self.next_epoch = state["epoch"] if left else state["epoch"] + 1
        restore_random_state(own["random"])
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
        began = time.perf_counter()
        self.told_to_stop = self.stopping = False
        with contextlib.ExitStack() as stack:
            stack.callback(self.log.close)
            stack.enter_context(when_terminated(self._tell_to_stop))
            phase = Phase.BEGIN
            while phase not in ENDS:
                phase = getattr(self, f"_{phase.value}")()
        verdict = judge(self.validations)
        return TrainerRun(
            device=self.device.type,
            dtype=self.config.dtype,
            world_size=self.world_size,
            ended=phase.value,
            epochs=tuple(self.epochs),
            validations=tuple(self.validations),
            best_epoch=None if verdict.best is None else self.epochs[verdict.best].epoch,
            optimizer_steps=self.steps,
            learning_rate=self.optimizer.param_groups[0]["lr"],
            final_scale=self.scaler.get_scale() if self.scaler.is_enabled() else None,
            seconds=time.perf_counter() - began,
        )

    def _windows(self) -> Iterator[list[Batch]]:
        """The rest of the epoch; no batch is taken before its window is asked for."""
        loader = self.train_loader
        if loader.position >= len(loader):
            return
        batches = iter(loader)
        while loader.position < len(loader):
            yield list(itertools.islice(batches, self.config.accumulation_steps))

    def _tell_to_stop(self) -> None:
        self.told_to_stop = True

    # The phases of `fit`: each does its work and says which comes next.

    def _begin(self) -> Phase:
        if self.next_epoch is None:
            found = [None]
            if self.rank == 0 and (newest := latest_checkpoint(self.folder / "checkpoints")) is not None:
                found = [str(newest)]
            if self.world_size > 1:
                dist.broadcast_object_list(found, 0)
            if found[0] is None:
                self.next_epoch = 0
            else:
                self.load_checkpoint(found[0])
        return Phase.DECIDE

    def _decide(self) -> Phase:
        assert self.next_epoch is not None
        if self.next_epoch >= self.config.epochs:
            return Phase.FINISHED
        patience = self.config.patience
        if patience is not None and judge(self.validations).in_vain >= patience:
            return Phase.EARLY
        return Phase.SIGNAL if self.stopping else Phase.TRAIN

    def _train(self) -> Phase:
        assert self.next_epoch is not None
        result = self.train_epoch(self.next_epoch)
        if not result.complete:
            self.save_checkpoint(result.epoch)
            return Phase.SIGNAL
        self.epochs.append(result)
        return Phase.ASSESS

    def _assess(self) -> Phase:
        result = self.validate()
        self.validations.append(result)
        if self.rank == 0:
            entry = {"validation/loss": result.loss, "validation/accuracy": result.accuracy}
            self.log.add(self.steps, {name: value for name, value in entry.items() if value is not None})
        return Phase.KEEP

    def _keep(self) -> Phase:
        epoch = self.epochs[-1].epoch
        if self.rank == 0 and judge(self.validations).best == len(self.validations) - 1:
            write_checkpoint(self.folder / "best.pt", {"model": self.model.state_dict(), "epoch": epoch})
        self.save_checkpoint(epoch)
        return Phase.DECIDE
