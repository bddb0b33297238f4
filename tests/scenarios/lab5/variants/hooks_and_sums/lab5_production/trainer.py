"""Task 5.1: PyTorch's hooks and schedulers do most of it."""

import dataclasses
import functools
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import lr_scheduler

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


class ProductionTrainer(TrainerBase):
    """A window's gradient is a sum of losses until its end."""

    def __init__(
        self,
        model: nn.Module,
        train_loader: ResumableLoader,
        val_loader: Iterable[Batch],
        config: TrainerConfig,
        monitor: MetricSink | None = None,
    ) -> None:
        super().__init__(model, train_loader, val_loader, config)
        self.replica = model
        self._handles: list[Any] = []
        if self.world_size > 1:
            # For what it does when it is made: it compares the models and copies that of rank 0.
            self.replica = DistributedDataParallel(
                model, device_ids=[self.device] if self.device.type == "cuda" else None
            )
        settings = {"params": self.parameters, "lr": config.learning_rate, "weight_decay": config.weight_decay}
        kinds = {
            "adamw": torch.optim.AdamW,
            "sgd": functools.partial(torch.optim.SGD, momentum=config.momentum),
        }
        self.optimizer = kinds[config.optimizer](**settings)
        self.optimizer.register_step_post_hook(self._after_step)
        self.scheduler = self._sequence(config.epochs * math.ceil(len(train_loader) / config.accumulation_steps))
        self.scaler = torch.GradScaler(
            self.device.type, init_scale=config.initial_scale, enabled=self.dtype == torch.float16
        )
        self.log = Log(self.folder / "tensorboard", monitor)

    def _sequence(self, total: int) -> lr_scheduler.LRScheduler:
        """A line up, a cosine down, a constant: one after the other."""
        warmup, minimum = self.config.warmup_steps, self.config.minimum_ratio
        parts: list[Any] = []
        milestones = []
        if warmup > 0:
            rising = lr_scheduler.LinearLR(
                self.optimizer, start_factor=1 / warmup, end_factor=1.0, total_iters=max(warmup - 1, 1)
            )
            parts.append(rising)
            milestones.append(warmup)
        if total > warmup:
            lowest = minimum * self.config.learning_rate
            parts.append(lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=total - warmup, eta_min=lowest))
            milestones.append(total)
        parts.append(lr_scheduler.ConstantLR(self.optimizer, factor=minimum, total_iters=2**40))
        return lr_scheduler.SequentialLR(self.optimizer, parts, milestones)

    def _after_step(self, *_: Any) -> None:
        self.steps += 1
        self.progress.optimizer_steps += 1

    def forward(self, module: nn.Module, inputs: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype in (torch.float16, torch.bfloat16)):
            logits = module(inputs.to(self.device))
            return logits, nn.functional.cross_entropy(logits, classes.to(self.device))

    def _exchange(self, parameter: nn.Parameter) -> None:
        self._handles.append(dist.all_reduce(parameter.grad, async_op=True))

    def train_window(self, window: list[Batch]) -> bool:
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        if self.world_size > 1:
            for buffer in self.model.buffers():
                dist.broadcast(buffer, src=0)
        sums: list[Tensor] = []
        count = 0
        for inputs, classes in window[:-1]:
            sums.append(self._backward(inputs, classes))
            count += len(classes)
        # From here on each gradient that is complete is on its way at once.
        hooks = [
            parameter.register_post_accumulate_grad_hook(self._exchange)
            for parameter in self.parameters
            if self.world_size > 1
        ]
        inputs, classes = window[-1]
        sums.append(self._backward(inputs, classes))
        count += len(classes)
        for hook in hooks:
            hook.remove()
        while self._handles:
            self._handles.pop().wait()
        self.scaler.unscale_(self.optimizer)
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        torch._foreach_div_(gradients, float(count * self.world_size))
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(each) for each in gradients]))
        if self.config.max_grad_norm is not None:
            factor = self.config.max_grad_norm / torch.clamp(norm, min=self.config.max_grad_norm)
            torch._foreach_mul_(gradients, factor)
        rate, before = self.optimizer.param_groups[0]["lr"], self.steps
        self.scaler.step(self.optimizer)
        self.scaler.update()
        loss_sum = torch.stack(sums).sum()
        self.progress.loss_sum = loss_sum + self.progress.loss_sum
        self.progress.samples += count
        if self.steps == before:
            self.progress.skipped_steps += 1
            return False
        self.scheduler.step()
        self.log_step(loss=loss_sum / count, samples=count, learning_rate=rate, gradient_norm=norm)
        return True

    def _backward(self, inputs: Tensor, classes: Tensor) -> Tensor:
        _, mean = self.forward(self.model, inputs, classes)
        self.scaler.scale(mean * len(classes)).backward()
        return mean.detach().double() * len(classes)

    def train_epoch(self, epoch: int) -> EpochResult:
        self.begin_epoch(epoch)
        self.model.train()
        size = self.config.accumulation_steps
        window: list[Batch] = []
        for batch in self.train_loader:
            window.append(batch)
            if len(window) == size or self.train_loader.position == len(self.train_loader):
                taken = self.train_window(window)
                window.clear()
                if self.epoch_is_complete() or self.stop_requested():
                    break
                if taken and self.config.save_every_steps and self.steps % self.config.save_every_steps == 0:
                    self.save_checkpoint(epoch)
        loss_sum, samples = self.sum_over_ranks(self.progress.loss_sum, self.progress.samples)
        return EpochResult(
            epoch=epoch,
            complete=self.epoch_is_complete(),
            loss=loss_sum / samples,
            samples=int(samples),
            optimizer_steps=self.progress.optimizer_steps,
            skipped_steps=self.progress.skipped_steps,
        )

    def validate(self) -> ValidationResult:
        modes = {name: module.training for name, module in self.model.named_modules(remove_duplicate=True)}
        outputs: list[Tensor] = []

        def collect(logits: Tensor, classes: Tensor, mean: Tensor) -> None:
            right = (logits.detach().argmax(1) == classes.to(self.device)).sum()
            outputs.append(torch.stack([mean.double() * len(classes), right.double()]))

        self.model.eval()
        samples = 0
        with torch.set_grad_enabled(False):
            for inputs, classes in self.val_loader:
                logits, mean = self.forward(self.model, inputs, classes)
                collect(logits, classes, mean)
                samples += len(classes)
        for name, module in self.model.named_modules():
            module.training = modes[name]
        sums = torch.stack(outputs).sum(0).tolist() if outputs else [0.0, 0.0]
        loss, right, samples_of_all = self.sum_over_ranks(*sums, samples)
        if samples_of_all == 0:
            raise ValueError("validation needs a sample on some rank")
        return ValidationResult(
            loss=loss / samples_of_all, accuracy=right / samples_of_all, samples=int(samples_of_all)
        )

    def _dictionary(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "scaler": self.scaler.state_dict(),
            "steps": torch.tensor(self.steps),
            "epochs": [dataclasses.astuple(each) for each in self.epochs],
            "validations": [dataclasses.astuple(each) for each in self.validations],
        }

    def save_checkpoint(self, epoch: int) -> Path:
        done = self.progress
        ranks = self.gather_from_ranks(
            {
                "random": capture_random_state(),
                "loader": self.train_loader.state_dict(),
                "done": (float(done.loss_sum), done.samples, done.optimizer_steps, done.skipped_steps),
            }
        )
        path = checkpoint_path(self.folder / "checkpoints", self.steps)
        if self.rank == 0:
            write_checkpoint(
                path, {**self._dictionary(), "epoch": epoch, "ranks": ranks}, keep=self.config.keep_checkpoints
            )
        self.wait_for_ranks()
        return path

    def load_checkpoint(self, path: Path | str) -> int:
        state = read_checkpoint(path)
        ranks = state["ranks"]
        if self.world_size != len(ranks):
            raise ValueError(f"{path}: {len(ranks)} ranks wrote it, {self.world_size} read it")
        own = ranks[self.rank]
        self.train_loader.load_state_dict(own["loader"])
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.scaler.load_state_dict(state["scaler"])
        self.steps = int(state["steps"])
        self.progress = Progress(*own["done"])
        self.epochs = [_filled(EpochResult, each) for each in state["epochs"]]
        self.validations = [_filled(ValidationResult, each) for each in state["validations"]]
        self.log.resume_at(self.steps)
        self.next_epoch = state["epoch"]
        if self.train_loader.position == len(self.train_loader):
            self.next_epoch += 1
        restore_random_state(own["random"])
        return self.next_epoch


def _filled(kind: Any, values: Iterable[Any]) -> Any:
    names = (field.name for field in dataclasses.fields(kind))
    return kind(**dict(zip(names, values, strict=True)))
