"""Task 5.1, without `with`."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

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
    """What is entered is left by hand."""

    def __init__(
        self,
        model: nn.Module,
        train_loader: ResumableLoader,
        val_loader: Iterable[Batch],
        config: TrainerConfig,
        monitor: MetricSink | None = None,
    ) -> None:
        TrainerBase.__init__(self, model, train_loader, val_loader, config)
        if self.world_size == 1:
            self.replica = model
        elif self.device.type == "cuda":
            self.replica = DistributedDataParallel(model, [self.device.index], self.device.index)
        else:
            self.replica = DistributedDataParallel(model, bucket_cap_mb=1)
        if config.optimizer == "adamw":
            self.optimizer = torch.optim.AdamW(self.parameters)
        else:
            self.optimizer = torch.optim.SGD(self.parameters, lr=1.0, momentum=config.momentum)
        for group in self.optimizer.param_groups:
            group["lr"] = config.learning_rate
            group["weight_decay"] = config.weight_decay
        windows, rest = divmod(len(train_loader), config.accumulation_steps)
        if rest:
            windows += 1
        self.scheduler = make_scheduler(
            self.optimizer,
            warmup_steps=config.warmup_steps,
            total_steps=windows * config.epochs,
            minimum_ratio=config.minimum_ratio,
        )
        self.scaler = torch.amp.GradScaler(self.device.type, config.initial_scale, enabled=config.dtype == "float16")
        self.log = Log(self.folder.joinpath("tensorboard"), monitor)

    def forward(self, module: nn.Module, inputs: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        inputs = inputs.to(self.device)
        classes = classes.to(self.device)
        context = torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32)
        context.__enter__()
        try:
            logits = module(inputs)
            return logits, nn.functional.cross_entropy(logits, classes)
        finally:
            context.__exit__(None, None, None)

    def train_window(self, window: list[Batch]) -> bool:
        self.model.zero_grad()
        samples = 0
        for batch in window:
            samples += batch[1].numel()
        loss_sum = torch.zeros((), dtype=torch.float32, device=self.device)
        left = len(window)
        while left:
            inputs, classes = window[len(window) - left]
            left -= 1
            exchange = getattr(self.replica, "require_backward_grad_sync", None)
            if exchange is not None:
                self.replica.require_backward_grad_sync = left == 0
            mean = self.forward(self.replica, inputs, classes)[1]
            self.scaler.scale(mean).backward(torch.full_like(mean, classes.numel() / samples))
            loss_sum += mean.detach() * classes.numel()
            if exchange is not None:
                self.replica.require_backward_grad_sync = exchange
        self.progress.loss_sum += loss_sum.double()
        self.progress.samples += samples
        self.scaler.unscale_(self.optimizer)
        if self.config.max_grad_norm is None:
            norm = nn.utils.get_total_norm([each.grad for each in self.parameters if each.grad is not None])
        else:
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.config.max_grad_norm)
        rate = self.scheduler.get_last_lr()[-1]
        overflow = self.scaler.is_enabled() and not bool(norm.isfinite())
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if overflow:
            self.progress.skipped_steps += 1
            return False
        self.scheduler.step()
        self.steps += 1
        self.progress.optimizer_steps += 1
        self.log_step(loss=loss_sum / samples, samples=samples, learning_rate=rate, gradient_norm=norm)
        return True

    def train_epoch(self, epoch: int) -> EpochResult:
        self.begin_epoch(epoch)
        self.replica.train()
        iterator = iter(self.train_loader)
        result = None
        while result is None:
            window: list[Batch] = []
            try:
                while len(window) < self.config.accumulation_steps:
                    window.append(next(iterator))
            except StopIteration:
                pass
            taken = self.train_window(window)
            if self.epoch_is_complete():
                result = self._result(epoch, complete=True)
            elif self.stop_requested():
                result = self._result(epoch, complete=False)
            elif taken and self.steps % (self.config.save_every_steps or self.steps + 1) == 0:
                self.save_checkpoint(epoch)
        return result

    def _result(self, epoch: int, *, complete: bool) -> EpochResult:
        total = self.sum_over_ranks(self.progress.loss_sum, float(self.progress.samples))
        return EpochResult(
            epoch=epoch,
            complete=complete,
            loss=total[0] / total[1],
            samples=int(total[1]),
            optimizer_steps=self.progress.optimizer_steps,
            skipped_steps=self.progress.skipped_steps,
        )

    def validate(self) -> ValidationResult:
        modes = []
        for module in self.model.modules():
            modes.append(module.training)
            module.training = False
        recorded = torch.is_grad_enabled()
        torch.set_grad_enabled(False)
        loss_sum = right = samples = 0
        try:
            for inputs, classes in self.val_loader:
                logits, mean = self.forward(self.model, inputs, classes)
                loss_sum += mean.double() * classes.numel()
                right += logits.topk(1).indices.squeeze(1).eq(classes.to(logits.device)).sum()
                samples += classes.numel()
        finally:
            torch.set_grad_enabled(recorded)
            for module in self.model.modules():
                module.training = modes.pop(0)
        loss_sum, right, samples = self.sum_over_ranks(loss_sum, right, samples)
        if not samples > 0:
            raise ValueError("cannot validate without samples")
        return ValidationResult(loss=loss_sum / samples, accuracy=right / samples, samples=int(samples))

    def save_checkpoint(self, epoch: int) -> Path:
        progress = dataclasses.asdict(self.progress)
        progress["loss_sum"] = torch.as_tensor(progress["loss_sum"], dtype=torch.float64).tolist()
        ranks = self.gather_from_ranks([capture_random_state(), self.train_loader.state_dict(), progress])
        path = checkpoint_path(self.folder / "checkpoints", self.steps)
        if self.rank == 0:
            state: dict[str, Any] = {"ranks": ranks, "epoch": epoch, "steps": self.steps}
            for name in "model", "optimizer", "scheduler", "scaler":
                state[name] = getattr(self, name).state_dict()
            for name in "epochs", "validations":
                state[name] = []
                for result in getattr(self, name):
                    state[name].append(vars(result))
            write_checkpoint(path, state, keep=self.config.keep_checkpoints)
        self.wait_for_ranks()
        return path

    def load_checkpoint(self, path: Path | str) -> int:
        state = read_checkpoint(path)
        if self.world_size != len(state["ranks"]):
            raise ValueError(f"{path} does not fit {self.world_size} ranks")
        random, loader, progress = state["ranks"][self.rank]
        self.train_loader.load_state_dict(loader)
        for name in "model", "optimizer", "scheduler", "scaler":
            getattr(self, name).load_state_dict(state[name])
        self.steps = state["steps"]
        self.progress = Progress(**progress)
        self.epochs = [EpochResult(**table) for table in state["epochs"]]
        self.validations = [ValidationResult(**table) for table in state["validations"]]
        self.log.resume_at(self.steps)
        self.next_epoch = self.train_loader.epoch + (self.train_loader.position >= len(self.train_loader))
        restore_random_state(random)
        return self.next_epoch
