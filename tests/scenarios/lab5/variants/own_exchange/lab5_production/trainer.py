"""Task 5.1, without DistributedDataParallel: no gradient is reduced, every rank gathers those of all."""

from collections.abc import Iterable
from dataclasses import asdict, replace
from math import ceil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

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
    """Ranks hold equal models, and make equal steps of equal gradients."""

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
        if self.world_size > 1:
            for tensor in model.state_dict().values():
                dist.broadcast(tensor, src=0)
        common: dict[str, Any] = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
        if config.optimizer == "sgd":
            self.optimizer = torch.optim.SGD(self.parameters, momentum=config.momentum, **common)
        else:
            self.optimizer = torch.optim.AdamW(self.parameters, **common)
        self.scheduler = make_scheduler(
            self.optimizer,
            warmup_steps=config.warmup_steps,
            total_steps=ceil(len(train_loader) / config.accumulation_steps) * config.epochs,
            minimum_ratio=config.minimum_ratio,
        )
        self.scaler = torch.amp.GradScaler(
            self.device.type, init_scale=config.initial_scale, enabled=config.dtype == "float16"
        )
        self.log = Log(self.folder / "tensorboard", monitor)

    def forward(self, module: nn.Module, inputs: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        inputs, classes = inputs.to(self.device), classes.to(self.device)
        with torch.amp.autocast(self.device.type, dtype=self.dtype, enabled=self.config.dtype != "float32"):
            logits = module(inputs)
            loss = nn.functional.nll_loss(nn.functional.log_softmax(logits, dim=1), classes)
        return logits, loss

    def _gathered(self, own: Tensor) -> Tensor:
        """The mean over the ranks, which all have equally many samples."""
        if self.world_size == 1:
            return own
        all_of_them = [torch.empty_like(own) for _ in range(self.world_size)]
        dist.all_gather(all_of_them, own)
        return torch.stack(all_of_them).mean(dim=0)

    def _synchronize_buffers(self) -> None:
        if self.world_size > 1:
            for buffer in self.model.buffers():
                dist.broadcast(buffer, src=0)

    def train_window(self, window: list[Batch]) -> bool:
        self._synchronize_buffers()
        samples = sum(classes.shape[0] for _, classes in window)
        gradients = [torch.zeros_like(parameter) for parameter in self.parameters]
        loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        for inputs, classes in window:
            _, loss = self.forward(self.model, inputs, classes)
            share = self.scaler.scale(loss * (classes.shape[0] / samples))
            found = torch.autograd.grad(share, self.parameters, allow_unused=True, materialize_grads=True)
            for gradient, more in zip(gradients, found, strict=True):
                gradient.add_(more)
            loss_sum.add_(loss.detach(), alpha=classes.shape[0])
        vector = self._gathered(parameters_to_vector(gradients))
        sizes = [parameter.numel() for parameter in self.parameters]
        for parameter, gradient in zip(self.parameters, vector.split(sizes), strict=True):
            parameter.grad = gradient.view_as(parameter)
        self.scaler.unscale_(self.optimizer)
        norm = vector.norm()  # parameters look into it
        limit = self.config.max_grad_norm
        if limit is not None:
            vector.mul_((limit / (norm + 1e-6)).clamp(max=1.0))

        rate = float(self.optimizer.param_groups[0]["lr"])
        # GradScaler notes on each device whether it found a gradient that is not finite.
        notes = self.scaler._found_inf_per_device(self.optimizer) if self.scaler.is_enabled() else {}
        overflow = any(bool(note) for note in notes.values())
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        done = self.progress
        self.progress = replace(
            done,
            loss_sum=done.loss_sum + loss_sum,
            samples=done.samples + samples,
            optimizer_steps=done.optimizer_steps + (not overflow),
            skipped_steps=done.skipped_steps + overflow,
        )
        if overflow:
            return False
        self.scheduler.step()
        self.steps += 1
        self.log_step(loss=loss_sum / samples, samples=samples, learning_rate=rate, gradient_norm=norm)
        return True

    def train_epoch(self, epoch: int) -> EpochResult:
        self.begin_epoch(epoch)
        self.model.train(True)
        source = iter(self.train_loader)
        complete = stopped = False
        while not (complete or stopped):
            window = []
            for _ in range(self.config.accumulation_steps):
                batch = next(source, None)
                if batch is None:
                    break
                window.append(batch)
            taken = self.train_window(window)
            complete = self.epoch_is_complete()
            stopped = not complete and self.stop_requested()
            if complete or stopped or not taken or not self.config.save_every_steps:
                continue
            if self.steps % self.config.save_every_steps == 0:
                self.save_checkpoint(epoch)
        mine = (self.progress.loss_sum, self.progress.samples)
        loss_sum, samples = self.sum_over_ranks(*mine)
        return EpochResult(
            epoch=epoch, complete=complete, loss=loss_sum / samples, samples=round(samples),
            optimizer_steps=self.progress.optimizer_steps, skipped_steps=self.progress.skipped_steps,
        )  # fmt: skip

    @torch.inference_mode()
    def validate(self) -> ValidationResult:
        modes = {module: module.training for module in self.model.modules()}
        for module in modes:
            module.training = False
        loss_sum, right, samples = 0.0, 0, 0
        for inputs, classes in self.val_loader:
            logits, loss = self.forward(self.model, inputs, classes)
            loss_sum += loss.item() * classes.shape[0]
            right += int((logits.max(dim=1).indices.cpu() == classes.cpu()).sum())
            samples += classes.shape[0]
        for module, mode in modes.items():
            module.training = mode
        loss_sum, right_sum, everywhere = self.sum_over_ranks(loss_sum, right, samples)
        if everywhere < 1:
            raise ValueError("no rank has anything to validate")
        return ValidationResult(loss=loss_sum / everywhere, accuracy=right_sum / everywhere, samples=round(everywhere))

    def save_checkpoint(self, epoch: int) -> Path:
        path = checkpoint_path(self.folder / "checkpoints", self.steps)
        progress = asdict(replace(self.progress, loss_sum=float(self.progress.loss_sum)))
        random = capture_random_state()
        everybody = {
            "random": self.gather_from_ranks(random),
            "loader": self.gather_from_ranks(self.train_loader.state_dict()),
            "progress": self.gather_from_ranks(progress),
        }
        failure: list[Any] = [None]
        if self.rank == 0:
            own = {name: getattr(self, name).state_dict() for name in ("model", "optimizer", "scheduler", "scaler")}
            results = {
                "epochs": list(map(asdict, self.epochs)),
                "validations": list(map(asdict, self.validations)),
            }
            try:
                write_checkpoint(
                    path,
                    {"own": own, "everybody": everybody, "results": results, "steps": self.steps, "epoch": epoch},
                    keep=self.config.keep_checkpoints,
                )
            except (OSError, RuntimeError) as error:
                failure = [error]
        if self.world_size > 1:
            dist.broadcast_object_list(failure, src=0)
        if failure[0] is not None:
            raise failure[0]
        return path

    def load_checkpoint(self, path: Path | str) -> int:
        state = read_checkpoint(path)
        everybody = state["everybody"]
        if len(everybody["loader"]) != self.world_size:
            raise ValueError(f"{path} is of {len(everybody['loader'])} ranks, there are {self.world_size} now")
        random, loader, progress = (everybody[name][self.rank] for name in ("random", "loader", "progress"))
        self.train_loader.load_state_dict(loader)
        for name, own in state["own"].items():
            getattr(self, name).load_state_dict(own)
        self.steps = state["steps"]
        self.progress = Progress(**progress)
        self.epochs[:] = [EpochResult(**row) for row in state["results"]["epochs"]]
        self.validations[:] = [ValidationResult(**row) for row in state["results"]["validations"]]
        self.log.resume_at(self.steps)
        batches_left = loader["position"] < len(self.train_loader)
        self.next_epoch = state["epoch"] if batches_left else state["epoch"] + 1
        restore_random_state(random)
        return self.next_epoch
