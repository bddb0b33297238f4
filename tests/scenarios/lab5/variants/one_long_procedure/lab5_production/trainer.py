"""Task 5.1."""

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.distributed as dist
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


class ProductionTrainer(TrainerBase):
    """See the lab."""

    def __init__(
        self,
        model: nn.Module,
        train_loader: ResumableLoader,
        val_loader: Iterable[Batch],
        config: TrainerConfig,
        monitor: MetricSink | None = None,
    ) -> None:
        """Everything in one go."""
        super().__init__(model, train_loader, val_loader, config)

        if self.world_size > 1:
            # It gives all ranks the parameters of rank 0; the gradients are exchanged below, by hand.
            if self.device.type == "cuda":
                self.replica = DistributedDataParallel(model, device_ids=[self.device])
            else:
                self.replica = DistributedDataParallel(model)
        else:
            self.replica = model

        if config.optimizer == "sgd":
            self.optimizer = torch.optim.SGD(
                self.parameters,
                lr=config.learning_rate,
                momentum=config.momentum,
                weight_decay=config.weight_decay,
            )
        elif config.optimizer == "adamw":
            self.optimizer = torch.optim.AdamW(
                self.parameters, lr=config.learning_rate, weight_decay=config.weight_decay
            )

        per_epoch = 0
        left = len(train_loader)
        while left > 0:
            left -= config.accumulation_steps
            per_epoch += 1
        total_steps = per_epoch * config.epochs
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer,
            lambda step: warmup_cosine(
                step,
                warmup_steps=config.warmup_steps,
                total_steps=total_steps,
                minimum_ratio=config.minimum_ratio,
            ),
        )
        self.scaler = torch.amp.GradScaler(
            self.device.type, init_scale=config.initial_scale, enabled=config.dtype == "float16"
        )
        self.log = Log(Path(os.path.join(config.output_dir, "tensorboard")), monitor)

    def forward(self, module: nn.Module, inputs: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        """Two branches."""
        inputs = inputs.to(self.device)
        classes = classes.to(self.device)
        if self.config.dtype == "float32":
            logits = module(inputs)
            loss = nn.functional.cross_entropy(logits, classes)
        else:
            with torch.autocast(self.device.type, dtype=self.dtype):
                logits = module(inputs)
                loss = nn.functional.cross_entropy(logits, classes)
        return logits, loss

    def train_window(self, window: list[Batch]) -> bool:
        """The exchange is one all-reduce of a flat buffer, after the last backward pass."""
        for parameter in self.parameters:
            parameter.grad = None
        if self.world_size > 1:
            for buffer in self.model.buffers():  # as DistributedDataParallel does
                dist.broadcast(buffer, 0)

        samples = 0
        for _, classes in window:
            samples += len(classes)
        mean_of_window = torch.zeros((), device=self.device)
        for inputs, classes in window:
            _, loss = self.forward(self.model, inputs, classes)
            part = loss * (len(classes) / samples)
            self.scaler.scale(part).backward()
            mean_of_window += part.detach()
        self.progress.loss_sum = self.progress.loss_sum + mean_of_window.double() * samples
        self.progress.samples += samples

        if self.world_size > 1:
            for parameter in self.parameters:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            flat = torch.cat([parameter.grad.reshape(-1) for parameter in self.parameters])
            dist.all_reduce(flat)
            flat /= self.world_size
            position = 0
            for parameter in self.parameters:
                parameter.grad.copy_(flat[position : position + parameter.numel()].view_as(parameter))
                position += parameter.numel()

        self.scaler.unscale_(self.optimizer)
        squares = torch.zeros((), device=self.device)
        for parameter in self.parameters:
            if parameter.grad is not None:
                squares += parameter.grad.float().pow(2).sum()
        norm = squares.sqrt()
        if self.config.max_grad_norm is not None:
            factor = torch.where(norm > self.config.max_grad_norm, self.config.max_grad_norm / norm, 1.0)
            for parameter in self.parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)

        learning_rate = self.optimizer.param_groups[0]["lr"]
        scale = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.scaler.get_scale() < scale:
            self.progress.skipped_steps += 1
            return False
        self.scheduler.step()
        self.steps += 1
        self.progress.optimizer_steps += 1
        self.log_step(loss=mean_of_window, samples=samples, learning_rate=learning_rate, gradient_norm=norm)
        return True

    def train_epoch(self, epoch: int) -> EpochResult:
        """One loop over batches, which fills a window."""
        self.begin_epoch(epoch)
        self.model.train()
        self.replica.train()
        complete = False
        window: list[Batch] = []
        for batch in self.train_loader:
            window.append(batch)
            last = self.train_loader.position == len(self.train_loader)
            if len(window) < self.config.accumulation_steps and not last:
                continue
            stepped = self.train_window(window)
            window = []
            if self.epoch_is_complete():
                complete = True
                break
            if self.stop_requested():
                break
            if self.config.save_every_steps is None or not stepped:
                continue
            if self.steps % self.config.save_every_steps == 0:
                self.save_checkpoint(epoch)
        loss_sum, samples = self.sum_over_ranks(self.progress.loss_sum, self.progress.samples)
        return EpochResult(
            epoch=epoch,
            complete=complete,
            loss=loss_sum / samples,
            samples=int(samples),
            optimizer_steps=self.progress.optimizer_steps,
            skipped_steps=self.progress.skipped_steps,
        )

    def validate(self) -> ValidationResult:
        """Modes in a dictionary by name."""
        modes = {}
        for name, module in self.model.named_modules():
            modes[name] = module.training
        self.model.eval()
        loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        right = torch.zeros((), dtype=torch.int64, device=self.device)
        samples = 0
        try:
            with torch.no_grad():
                for inputs, classes in self.val_loader:
                    logits, loss = self.forward(self.model, inputs, classes)
                    loss_sum += loss.double() * len(classes)
                    right += logits.argmax(1).eq(classes.to(self.device)).sum()
                    samples += len(classes)
        finally:
            for name, module in self.model.named_modules():
                module.training = modes[name]
        totals = self.sum_over_ranks(loss_sum, right, samples)
        if totals[2] == 0:
            raise ValueError("there is nothing to validate with")
        return ValidationResult(loss=totals[0] / totals[2], accuracy=totals[1] / totals[2], samples=round(totals[2]))

    def save_checkpoint(self, epoch: int) -> Path:
        """One dictionary; every rank learns whether it was written."""
        path = checkpoint_path(self.folder / "checkpoints", self.steps)
        own = {}
        own["random"] = capture_random_state()
        own["loader"] = self.train_loader.state_dict()
        own["loss_sum"] = float(self.progress.loss_sum)
        own["samples"] = self.progress.samples
        own["optimizer_steps"] = self.progress.optimizer_steps
        own["skipped_steps"] = self.progress.skipped_steps
        ranks = self.gather_from_ranks(own)
        error = None
        if self.rank == 0:
            state = {}
            state["epoch"] = epoch
            state["steps"] = self.steps
            state["ranks"] = ranks
            state["model"] = self.model.state_dict()
            state["optimizer"] = self.optimizer.state_dict()
            state["scheduler"] = self.scheduler.state_dict()
            state["scaler"] = self.scaler.state_dict()
            state["epochs"] = [dataclasses.asdict(result) for result in self.epochs]
            state["validations"] = [dataclasses.asdict(result) for result in self.validations]
            try:
                write_checkpoint(path, state, keep=self.config.keep_checkpoints)
            except (OSError, RuntimeError) as caught:
                error = caught
        told = self.gather_from_ranks(None if error is None else str(error))
        if error is not None:
            raise error
        if told[0] is not None:
            raise RuntimeError(f"rank 0 could not write {path}: {told[0]}")
        return path

    def load_checkpoint(self, path: Path | str) -> int:
        """In the order of the dictionary."""
        state = read_checkpoint(path)
        if len(state["ranks"]) != self.world_size:
            raise ValueError(f"{path} is of {len(state['ranks'])} ranks, and here are {self.world_size}")
        own = state["ranks"][self.rank]
        self.train_loader.load_state_dict(own["loader"])
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.scaler.load_state_dict(state["scaler"])
        self.steps = state["steps"]
        self.progress = Progress(own["loss_sum"], own["samples"], own["optimizer_steps"], own["skipped_steps"])
        self.epochs = []
        for table in state["epochs"]:
            self.epochs.append(EpochResult(**table))
        self.validations = []
        for table in state["validations"]:
            self.validations.append(ValidationResult(**table))
        self.log.resume_at(self.steps)
        if self.train_loader.position < len(self.train_loader):
            self.next_epoch = state["epoch"]
        else:
            self.next_epoch = state["epoch"] + 1
        restore_random_state(own["random"])
        return self.next_epoch
