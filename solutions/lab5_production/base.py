"""Given: what surrounds a trainer's own work: its attributes, the other ranks, and a run from start to end.

Read it before you write trainer.py, which fills in what is missing here. `fit` calls the methods that you write there.
"""

import dataclasses
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from labkit.loader import ResumableLoader
from labkit.results import EpochResult, TrainerRun, ValidationResult

from .checkpoints import latest_checkpoint, write_checkpoint
from .config import TrainerConfig
from .log import Log

Batch = tuple[Tensor, Tensor]
"""Inputs and classes, on the CPU."""


@dataclasses.dataclass
class Progress:
    """What one rank has done of the current epoch."""

    loss_sum: float | Tensor = 0.0
    """Mean losses of this rank's batches, each times its samples. A tensor on the device: adding to it waits for
    nothing."""
    samples: int = 0
    optimizer_steps: int = 0
    skipped_steps: int = 0


class TrainerBase:
    """The arguments of a `ProductionTrainer`, what it needs of the other ranks, and `fit`."""

    replica: nn.Module
    """The model itself, or in a process group a DistributedDataParallel around it."""
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler
    """`step()` once for each optimizer step that was taken."""
    scaler: torch.amp.GradScaler
    """Enabled for float16 only; otherwise its methods change nothing."""
    log: Log

    def __init__(
        self, model: nn.Module, train_loader: ResumableLoader, val_loader: Iterable[Batch], config: TrainerConfig
    ) -> None:
        self.model, self.train_loader, self.val_loader, self.config = model, train_loader, val_loader, config
        self.device = next(model.parameters()).device
        self.dtype: torch.dtype = getattr(torch, config.dtype)
        self.rank, self.world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        if config.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS refuses
            torch.use_deterministic_algorithms(True)
        torch.manual_seed(config.seed + self.rank)
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        """Those that are trained."""
        self.folder = Path(config.output_dir)
        self.steps = 0
        """Optimizer steps that were taken in all."""
        self.progress = Progress()
        self.next_epoch: int | None = None
        """The first epoch that is not complete; None before anything was trained or loaded."""
        self.epochs: list[EpochResult] = []
        self.validations: list[ValidationResult] = []
        """What `fit` has made, the part before a resume included."""
        self._told_to_stop = self.stopping = False
        self._logged_at, self._samples_since = time.perf_counter(), 0

    def begin_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch, unless the loader is in the middle of it: then go on from there."""
        if self.train_loader.epoch != epoch or not 0 < self.train_loader.position < len(self.train_loader):
            self.train_loader.set_epoch(epoch)
            self.progress = Progress()
        self.next_epoch = epoch
        self._logged_at, self._samples_since = time.perf_counter(), 0

    def epoch_is_complete(self) -> bool:
        """Whether the loader has handed out all batches of its epoch."""
        complete = self.train_loader.position >= len(self.train_loader)
        if complete:
            self.next_epoch = self.train_loader.epoch + 1
        return complete

    def sum_over_ranks(self, *numbers: float | Tensor) -> list[float]:
        """Each number, summed over the ranks (float64). A collective: every rank must call it."""
        if self.world_size == 1:
            return [float(number) for number in numbers]
        total = torch.stack([torch.as_tensor(each, dtype=torch.float64, device=self.device) for each in numbers])
        dist.all_reduce(total)
        return [float(number) for number in total.tolist()]

    def gather_from_ranks(self, own: Any) -> list[Any]:
        """Objects of every rank, by rank. A collective: every rank must call it."""
        values: list[Any] = [own]
        if self.world_size > 1:
            values = [None] * self.world_size
            dist.all_gather_object(values, own)
        return values

    def wait_for_ranks(self) -> None:
        """Wait until every rank has come here."""
        if self.world_size > 1:
            dist.barrier()

    def stop_requested(self) -> bool:
        """Whether any rank got SIGTERM: the same answer on every rank. A collective."""
        (stopping,) = self.sum_over_ranks(self._told_to_stop)
        self.stopping = stopping > 0
        return self.stopping

    def log_step(self, *, loss: Tensor, samples: int, learning_rate: float, gradient_norm: Tensor) -> None:
        """Take the metrics of an optimizer step; every `log_every_steps` steps, rank 0 writes them to the log.

        Called by every rank after each step that was taken, once `steps` counts it.

        Args:
            loss: mean over this rank's samples of the window, as it was before the step.
            samples: of the window, on this rank.
            learning_rate: of this step.
            gradient_norm: of all parameters together, before clipping.
        """
        self._samples_since += samples * self.world_size
        if self.steps % self.config.log_every_steps:
            return
        (loss_sum,) = self.sum_over_ranks(loss)
        now = time.perf_counter()
        if self.rank == 0:
            metrics = {
                "train/loss": loss_sum / self.world_size,
                "train/learning_rate": learning_rate,
                "train/grad_norm": gradient_norm.item(),
                "train/samples_per_second": self._samples_since / max(now - self._logged_at, 1e-9),
            }
            self.log.add(self.steps, metrics)
        self._logged_at, self._samples_since = now, 0

    def train_epoch(self, epoch: int) -> EpochResult:
        """See `ProductionTrainer`."""
        raise NotImplementedError

    def validate(self) -> ValidationResult:
        """See `ProductionTrainer`."""
        raise NotImplementedError

    def save_checkpoint(self, epoch: int) -> Path:
        """See `ProductionTrainer`."""
        raise NotImplementedError

    def load_checkpoint(self, path: Path | str) -> int:
        """See `ProductionTrainer`."""
        raise NotImplementedError

    def fit(self) -> TrainerRun:
        """Train until the last epoch, until validation no longer improves, or until SIGTERM comes.

        Begins where `load_checkpoint` or `train_epoch` left this trainer; else with the newest checkpoint of the run
        that can be read; else at the beginning. So the same command starts a run and continues it.

        Each complete epoch is validated, then a checkpoint is saved. The parameters of the best epoch so far are in
        `output_dir/best.pt`, as {"model": state_dict, "epoch": number}. With `patience` = p the run ends after p
        epochs in a row whose validation loss was not below the lowest one before; a loss that is not a number is never
        the lowest. After SIGTERM (to any rank) the current window is finished and a checkpoint saved.

        Returns:
            A `TrainerRun`, the same on every rank except for `seconds`; its `epochs` are the complete ones. It ended
            "finished" if the last epoch is complete, even if patience ran out there.
        """
        started = time.perf_counter()
        if self.next_epoch is None:
            newest = self.gather_from_ranks(latest_checkpoint(self.folder / "checkpoints") if self.rank == 0 else None)[
                0
            ]  # rank 0 decides which one it is
            self.next_epoch = 0 if newest is None else self.load_checkpoint(newest)
        self._told_to_stop = self.stopping = False
        with _on_sigterm(self._stop):
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

    def _stop(self) -> None:
        self._told_to_stop = True

    def _fit_epoch(self, epoch: int) -> None:
        result = self.train_epoch(epoch)
        if result.complete:
            validation = self.validate()
            self.epochs.append(result)
            self.validations.append(validation)
            if self.rank == 0:
                self.log.add(
                    self.steps, {"validation/loss": validation.loss, "validation/accuracy": validation.accuracy}
                )
                if self._best_epoch() == epoch:
                    write_checkpoint(self.folder / "best.pt", {"model": self.model.state_dict(), "epoch": epoch})
        self.save_checkpoint(epoch)
        self.stop_requested()  # SIGTERM may have come during the validation

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


@contextmanager
def _on_sigterm(call: Callable[[], None]) -> Iterator[None]:
    """Call `call` instead of dying when SIGTERM comes in this block (Slurm, Kubernetes, torchrun and `kill` send it).

    Only the main thread of a process can receive signals; in other threads this changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: call())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
