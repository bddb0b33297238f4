"""Task 5.1: a trainer of phases and events."""

import enum
import itertools
import operator
from collections.abc import Iterable, Iterator
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from labkit.loader import ResumableLoader
from labkit.results import EpochResult, ValidationResult

from . import checkpoints
from .base import Batch, Progress, TrainerBase
from .config import TrainerConfig
from .events import Events
from .log import Log, MetricSink
from .schedule import make_scheduler


class Phase(enum.Enum):
    """What an epoch does next."""

    TRAIN = enum.auto()
    COMPLETE = enum.auto()
    STOPPED = enum.auto()
    SAVE = enum.auto()


class ProductionTrainer(TrainerBase):
    """The optimizer says by a hook whether it stepped; listeners count, move the rate and log."""

    def __init__(
        self,
        model: nn.Module,
        train_loader: ResumableLoader,
        val_loader: Iterable[Batch],
        config: TrainerConfig,
        monitor: MetricSink | None = None,
    ) -> None:
        super().__init__(model, train_loader, val_loader, config)
        self.replica = self._replicated()
        makers = {
            "adamw": lambda: torch.optim.AdamW(
                self.parameters, lr=config.learning_rate, weight_decay=config.weight_decay
            ),
            "sgd": lambda: torch.optim.SGD(
                self.parameters, config.learning_rate, config.momentum, weight_decay=config.weight_decay
            ),
        }
        self.optimizer = makers[config.optimizer]()
        self.scheduler = make_scheduler(
            self.optimizer,
            warmup_steps=config.warmup_steps,
            total_steps=-(-len(train_loader) // config.accumulation_steps) * config.epochs,
            minimum_ratio=config.minimum_ratio,
        )
        self.scaler = torch.amp.GradScaler(
            self.device.type, init_scale=config.initial_scale, enabled=self.dtype is torch.float16
        )
        self.log = Log(self.folder / "tensorboard", monitor)
        self._took_it = False
        self.optimizer.register_step_post_hook(self._stepped)
        self._events = Events()
        self._events.on("window", self._count_samples)
        self._events.on("taken", self._count_step)
        self._events.on("taken", lambda **what: self.scheduler.step())
        self._events.on("taken", lambda **what: self.log_step(**what))
        self._events.on("skipped", self._count_skip)

    def _replicated(self) -> nn.Module:
        if self.world_size == 1:
            return self.model
        ids = None if self.device.type == "cpu" else [self.device.index or 0]
        return DistributedDataParallel(self.model, device_ids=ids, gradient_as_bucket_view=True)

    def _stepped(self, *_: Any) -> None:
        self._took_it = True

    def _count_samples(self, loss: Tensor, samples: int) -> None:
        self.progress.loss_sum = self.progress.loss_sum + loss * samples
        self.progress.samples += samples

    def _count_step(self, **what: Any) -> None:
        self.steps += 1
        self.progress.optimizer_steps += 1

    def _count_skip(self) -> None:
        self.progress.skipped_steps += 1

    def forward(self, module: nn.Module, inputs: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        criterion = nn.CrossEntropyLoss()
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not torch.float32):
            inputs, classes = (each.to(self.device, non_blocking=True) for each in (inputs, classes))
            logits = module(inputs)
            return logits, criterion(logits, classes)

    def _backward(self, inputs: Tensor, classes: Tensor, share: float) -> Tensor:
        _, loss = self.forward(self.replica, inputs, classes)
        self.scaler.scale(loss * share).backward()
        return loss.detach().double() * share

    def train_window(self, window: list[Batch]) -> bool:
        self.optimizer.zero_grad(set_to_none=True)
        *silent, (last_inputs, last_classes) = window
        counts = [len(classes) for _, classes in window]
        samples = sum(counts)
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        if silent and isinstance(self.replica, DistributedDataParallel):
            with self.replica.no_sync():
                for (inputs, classes), count in zip(silent, counts, strict=False):
                    loss += self._backward(inputs, classes, count / samples)
        else:
            for (inputs, classes), count in zip(silent, counts, strict=False):
                loss += self._backward(inputs, classes, count / samples)
        loss += self._backward(last_inputs, last_classes, counts[-1] / samples)
        self._events.emit("window", loss=loss, samples=samples)

        self.scaler.unscale_(self.optimizer)
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if self.config.max_grad_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(self.parameters, self.config.max_grad_norm, norm)
        (rate,) = {group["lr"] for group in self.optimizer.param_groups}
        self._took_it = False
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self._took_it:
            self._events.emit("taken", loss=loss, samples=samples, learning_rate=rate, gradient_norm=norm)
        else:
            self._events.emit("skipped")
        return self._took_it

    def _windows(self) -> Iterator[list[Batch]]:
        batches = iter(self.train_loader)
        while window := list(itertools.islice(batches, self.config.accumulation_steps)):
            yield window

    def _next_phase(self, taken: bool) -> Phase:
        if self.epoch_is_complete():
            return Phase.COMPLETE
        if self.stop_requested():
            return Phase.STOPPED
        every = self.config.save_every_steps
        return Phase.SAVE if taken and every and self.steps % every == 0 else Phase.TRAIN

    def train_epoch(self, epoch: int) -> EpochResult:
        self.begin_epoch(epoch)
        self.replica.train()
        windows, phase, taken = self._windows(), Phase.TRAIN, False
        while phase not in (Phase.COMPLETE, Phase.STOPPED):
            match phase:
                case Phase.TRAIN:
                    taken = self.train_window(next(windows))
                    phase = self._next_phase(taken)
                case Phase.SAVE:
                    self.save_checkpoint(epoch)
                    phase = Phase.TRAIN
        windows.close()
        loss, samples = self.sum_over_ranks(self.progress.loss_sum, self.progress.samples)
        return EpochResult(
            epoch=epoch,
            complete=phase is Phase.COMPLETE,
            loss=loss / samples,
            samples=int(samples),
            optimizer_steps=self.progress.optimizer_steps,
            skipped_steps=self.progress.skipped_steps,
        )

    @torch.no_grad()
    def validate(self) -> ValidationResult:
        training = [module for module in self.model.modules() if module.training]
        self.model.eval()
        sums = torch.zeros(3, dtype=torch.float64, device=self.device)
        for inputs, classes in self.val_loader:
            logits, loss = self.forward(self.model, inputs, classes)
            right = (logits.argmax(dim=-1) == classes.to(self.device)).count_nonzero()
            sums += torch.stack([loss.double() * len(classes), right.double(), sums.new_tensor(len(classes))])
        for module in training:
            module.training = True
        loss, right, samples = self.sum_over_ranks(*sums.unbind())
        if not samples:
            raise ValueError("no rank has a sample to validate")
        return ValidationResult(loss=loss / samples, accuracy=right / samples, samples=int(samples))

    _PARTS = ("model", "optimizer", "scheduler", "scaler")

    def save_checkpoint(self, epoch: int) -> Path:
        path = checkpoints.checkpoint_path(self.folder / "checkpoints", self.steps)
        loss_sum, *counts = astuple(self.progress)
        ranks = self.gather_from_ranks(
            (checkpoints.capture_random_state(), self.train_loader.state_dict(), [float(loss_sum), *counts])
        )
        if self.rank == 0:
            state = {name: getattr(self, name).state_dict() for name in self._PARTS}
            state |= {"steps": self.steps, "epoch": epoch, "ranks": ranks}
            state |= {name: [asdict(each) for each in getattr(self, name)] for name in ("epochs", "validations")}
            checkpoints.write_checkpoint(path, state, keep=self.config.keep_checkpoints)
        self.wait_for_ranks()
        return path

    def load_checkpoint(self, path: Path | str) -> int:
        state = checkpoints.read_checkpoint(path)
        ranks = state["ranks"]
        if (there := len(ranks)) != self.world_size:
            raise ValueError(f"{path}: saved by {there} ranks, cannot go on with {self.world_size}")
        random, loader, progress = ranks[self.rank]
        self.train_loader.load_state_dict(loader)
        for name in self._PARTS:
            getattr(self, name).load_state_dict(state[name])
        self.steps, self.progress = state["steps"], Progress(*progress)
        self.epochs = [EpochResult(**each) for each in state["epochs"]]
        self.validations = [ValidationResult(**each) for each in state["validations"]]
        self.log.resume_at(self.steps)
        over = operator.ge(self.train_loader.position, len(self.train_loader))
        self.next_epoch = state["epoch"] + over
        checkpoints.restore_random_state(random)
        return self.next_epoch
