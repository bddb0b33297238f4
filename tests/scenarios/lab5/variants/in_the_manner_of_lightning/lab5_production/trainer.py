"""Task 5.1 in the manner of PyTorch Lightning: a module of steps, a loop, callbacks."""

import contextlib
import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional
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
from .schedule import warmup_cosine


class Callback:
    """What may happen; nothing does."""

    def on_batch_end(self, trainer: "ProductionTrainer", loss: Tensor, samples: int) -> None:
        """A batch went backward."""

    def on_step_end(self, trainer: "ProductionTrainer", outputs: "StepOutputs") -> None:
        """The optimizer stepped."""

    def on_step_skipped(self, trainer: "ProductionTrainer") -> None:
        """It did not."""


@dataclasses.dataclass
class StepOutputs:
    """Of an optimizer step."""

    loss: Tensor
    samples: int
    learning_rate: float
    gradient_norm: Tensor


class RateScheduler(Callback):
    """Moves the learning rate."""

    def on_step_end(self, trainer: "ProductionTrainer", outputs: StepOutputs) -> None:
        trainer.scheduler.step()


class ProgressCounter(Callback):
    """Adds to the progress of the epoch."""

    def on_batch_end(self, trainer: "ProductionTrainer", loss: Tensor, samples: int) -> None:
        trainer.progress.loss_sum = trainer.progress.loss_sum + loss.double() * samples
        trainer.progress.samples += samples

    def on_step_end(self, trainer: "ProductionTrainer", outputs: StepOutputs) -> None:
        trainer.steps += 1
        trainer.progress.optimizer_steps += 1

    def on_step_skipped(self, trainer: "ProductionTrainer") -> None:
        trainer.progress.skipped_steps += 1


class StepLogger(Callback):
    """Last of all."""

    def on_step_end(self, trainer: "ProductionTrainer", outputs: StepOutputs) -> None:
        trainer.log_step(**vars(outputs))


class ProductionTrainer(TrainerBase):
    """Methods named as there."""

    def __init__(
        self,
        model: nn.Module,
        train_loader: ResumableLoader,
        val_loader: Iterable[Batch],
        config: TrainerConfig,
        monitor: MetricSink | None = None,
    ) -> None:
        super().__init__(model, train_loader, val_loader, config)
        self.configure_strategy()
        self.configure_optimizers()
        self.scaler = torch.amp.GradScaler(
            self.device.type, init_scale=config.initial_scale, enabled=config.dtype == "float16"
        )
        self.log = Log(self.folder / "tensorboard", monitor)
        self.callbacks: list[Callback] = [ProgressCounter(), RateScheduler(), StepLogger()]

    def configure_strategy(self) -> None:
        options: dict[str, Any] = {"device_ids": [self.device]} if self.device.type == "cuda" else {}
        self.replica = self.model if self.world_size == 1 else DistributedDataParallel(self.model, **options)

    def configure_optimizers(self) -> None:
        config = self.config
        group = {"params": self.parameters, "lr": config.learning_rate, "weight_decay": config.weight_decay}
        self.optimizer = (
            torch.optim.SGD([group], momentum=config.momentum, foreach=False)
            if config.optimizer == "sgd"
            else torch.optim.AdamW([group], fused=True)
        )
        windows = (len(self.train_loader) + config.accumulation_steps - 1) // config.accumulation_steps
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer,
            lambda step: warmup_cosine(
                step,
                warmup_steps=config.warmup_steps,
                total_steps=windows * config.epochs,
                minimum_ratio=config.minimum_ratio,
            ),
        )

    def call(self, hook: str, *arguments: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, hook)(self, *arguments)

    def precision(self) -> contextlib.AbstractContextManager[Any]:
        if self.config.dtype == "float32":
            return contextlib.nullcontext()
        return torch.autocast(device_type=self.device.type, dtype=self.dtype)

    def forward(self, module: nn.Module, inputs: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        inputs, classes = self.transfer_batch_to_device((inputs, classes))
        with self.precision():
            logits = module(inputs)
            return logits, functional.cross_entropy(logits, classes)

    def transfer_batch_to_device(self, batch: Batch) -> Batch:
        inputs, classes = batch
        return inputs.to(self.device), classes.to(self.device)

    def training_step(self, batch: Batch) -> Tensor:
        return self.forward(self.replica, *batch)[1]

    def backward(self, loss: Tensor, share: float) -> None:
        self.scaler.scale(loss * share).backward()

    def clip_gradients(self) -> Tensor:
        self.scaler.unscale_(self.optimizer)
        limit = self.config.max_grad_norm
        return nn.utils.clip_grad_norm_(self.parameters, float("inf") if limit is None else limit, foreach=True)

    def optimizer_step(self) -> bool:
        before = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return self.scaler.get_scale() >= before

    def train_window(self, window: list[Batch]) -> bool:
        samples = [len(classes) for _, classes in window]
        total = torch.zeros((), device=self.device)
        for number, batch in enumerate(window):
            accumulating = number + 1 < len(window) and self.world_size > 1
            with self.replica.no_sync() if accumulating else contextlib.nullcontext():
                loss = self.training_step(batch)
                self.backward(loss, samples[number] / sum(samples))
            self.call("on_batch_end", loss.detach(), samples[number])
            total = total + loss.detach() * samples[number]
        norm = self.clip_gradients()
        rate = self.optimizer.param_groups[0]["lr"]
        if not self.optimizer_step():
            self.call("on_step_skipped")
            return False
        outputs = StepOutputs(total / sum(samples), sum(samples), rate, norm)
        self.call("on_step_end", outputs)
        return True

    def should_stop(self) -> bool:
        return self.epoch_is_complete() or self.stop_requested()

    def save_is_due(self, taken: bool) -> bool:
        every = self.config.save_every_steps
        return taken and every is not None and self.steps % every == 0

    def train_epoch(self, epoch: int) -> EpochResult:
        self.begin_epoch(epoch)
        for module in {self.replica, self.model}:
            module.train()
        batches = iter(self.train_loader)
        while True:
            window = [batch for _, batch in zip(range(self.config.accumulation_steps), batches, strict=False)]
            taken = self.train_window(window)
            if self.should_stop():
                break
            if self.save_is_due(taken):
                self.save_checkpoint(epoch)
        return self.on_train_epoch_end(epoch)

    def on_train_epoch_end(self, epoch: int) -> EpochResult:
        loss_sum, samples = self.sum_over_ranks(self.progress.loss_sum, self.progress.samples)
        return EpochResult(
            epoch=epoch,
            complete=self.train_loader.position == len(self.train_loader),
            loss=loss_sum / samples,
            samples=int(samples),
            optimizer_steps=self.progress.optimizer_steps,
            skipped_steps=self.progress.skipped_steps,
        )

    @contextlib.contextmanager
    def evaluating(self):
        modes = [module.training for module in self.model.modules()]
        self.model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            for module, mode in zip(self.model.modules(), modes, strict=True):
                module.training = mode

    def validation_step(self, batch: Batch) -> tuple[Tensor, Tensor, int]:
        logits, loss = self.forward(self.model, *batch)
        right = logits.argmax(dim=1).eq(batch[1].to(logits.device)).sum()
        return loss.double() * len(batch[1]), right, len(batch[1])

    def validate(self) -> ValidationResult:
        with self.evaluating():
            outputs = [self.validation_step(batch) for batch in self.val_loader]
        sums = [sum(column) for column in zip(*outputs, strict=True)] or [0, 0, 0]
        loss, right, samples = self.sum_over_ranks(*sums)
        if samples == 0:
            raise ValueError("the validation has no samples")
        return ValidationResult(loss=loss / samples, accuracy=right / samples, samples=int(samples))

    def rank_state_dict(self) -> dict[str, Any]:
        progress = dataclasses.asdict(self.progress)
        progress["loss_sum"] = float(progress["loss_sum"])
        return {
            "rng": capture_random_state(),
            "loader": self.train_loader.state_dict(),
            "progress": progress,
        }

    def load_rank_state_dict(self, state: dict[str, Any]) -> None:
        self.progress = Progress(**state["progress"])
        restore_random_state(state["rng"])

    def save_checkpoint(self, epoch: int) -> Path:
        path = checkpoint_path(self.folder / "checkpoints", self.steps)
        checkpoint = {
            "epoch": epoch,
            "global_step": self.steps,
            "state_dict": self.model.state_dict(),
            "optimizer_states": [self.optimizer.state_dict()],
            "lr_schedulers": [self.scheduler.state_dict()],
            "GradScaler": self.scaler.state_dict(),
            "ranks": self.gather_from_ranks(self.rank_state_dict()),
            "results": [
                [dataclasses.asdict(train), dataclasses.asdict(val)]
                for train, val in zip(self.epochs, self.validations, strict=True)
            ],
        }
        if self.rank == 0:
            write_checkpoint(path, checkpoint, keep=self.config.keep_checkpoints)
        self.wait_for_ranks()
        return path

    def load_checkpoint(self, path: Path | str) -> int:
        checkpoint = read_checkpoint(path)
        if len(checkpoint["ranks"]) != self.world_size:
            raise ValueError(f"{path} wants {len(checkpoint['ranks'])} ranks")
        own = checkpoint["ranks"][self.rank]
        self.train_loader.load_state_dict(own["loader"])
        self.model.load_state_dict(checkpoint["state_dict"])
        (optimizer,), (scheduler,) = checkpoint["optimizer_states"], checkpoint["lr_schedulers"]
        self.optimizer.load_state_dict(optimizer)
        self.scheduler.load_state_dict(scheduler)
        self.scaler.load_state_dict(checkpoint["GradScaler"])
        self.steps = checkpoint["global_step"]
        self.epochs = [EpochResult(**train) for train, _ in checkpoint["results"]]
        self.validations = [ValidationResult(**val) for _, val in checkpoint["results"]]
        self.next_epoch = checkpoint["epoch"]
        self.epoch_is_complete()  # then it is the next one
        self.log.resume_at(self.steps)
        self.load_rank_state_dict(own)
        return self.next_epoch
