"""Task 5.1."""

import contextlib as c
import dataclasses as d
import itertools as it

import torch
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from labkit.results import EpochResult, ValidationResult

from .base import Progress, TrainerBase
from .checkpoints import capture_random_state, checkpoint_path, read_checkpoint, restore_random_state, write_checkpoint
from .log import Log
from .schedule import make_scheduler


class ProductionTrainer(TrainerBase):
    """Few words."""

    def __init__(self, model, train_loader, val_loader, config, monitor=None):
        super().__init__(model, train_loader, val_loader, config)
        self.replica = DistributedDataParallel(model) if self.world_size > 1 else model
        o = {"lr": config.learning_rate, "weight_decay": config.weight_decay, "foreach": True}
        self.optimizer = (
            torch.optim.AdamW(self.parameters, **o)
            if config.optimizer == "adamw"
            else torch.optim.SGD(self.parameters, momentum=config.momentum, **o)
        )
        self.scheduler = make_scheduler(
            self.optimizer,
            warmup_steps=config.warmup_steps,
            total_steps=config.epochs * len(range(0, len(train_loader), config.accumulation_steps)),
            minimum_ratio=config.minimum_ratio,
        )
        half = config.dtype == "float16"
        self.scaler = torch.amp.GradScaler(self.device.type, init_scale=config.initial_scale, enabled=half)
        self.log = Log(self.folder / "tensorboard", monitor)

    def forward(self, module, inputs, classes):
        with torch.autocast(self.device.type, self.dtype) if self.dtype != torch.float32 else c.nullcontext():
            logits = module(inputs.to(self.device))
            return logits, cross_entropy(logits, classes.to(self.device))

    def train_window(self, window):
        n, m, limit = sum(len(y) for _, y in window), self.replica, self.config.max_grad_norm
        mean = torch.zeros((), device=self.device)
        for i, (x, y) in enumerate(window, 1):
            with m.no_sync() if m is not self.model and i < len(window) else c.nullcontext():
                loss = self.forward(m, x, y)[1].mul(len(y) / n)
                self.scaler.scale(loss).backward()
                mean += loss.detach()
        self.progress.loss_sum += mean * n
        self.progress.samples += n
        self.scaler.unscale_(self.optimizer)
        grads = [p.grad for p in self.parameters if p.grad is not None]
        norm = torch.stack(torch._foreach_norm(grads)).norm()
        if limit:
            torch._foreach_mul_(grads, (limit / (norm + 1e-6)).clamp_(max=1))
        lr, scale = self.scheduler.get_last_lr()[0], self.scaler.get_scale()
        self.scaler.step(self.optimizer), self.scaler.update(), self.optimizer.zero_grad()
        taken = scale <= self.scaler.get_scale()
        self.steps += taken
        self.progress.optimizer_steps += taken
        self.progress.skipped_steps += not taken
        if taken:
            self.scheduler.step()
            self.log_step(loss=mean, samples=n, learning_rate=lr, gradient_norm=norm)
        return taken

    def train_epoch(self, epoch):
        self.begin_epoch(epoch), self.replica.train()
        batches, every = iter(self.train_loader), self.config.save_every_steps
        while True:
            taken = self.train_window([*it.islice(batches, self.config.accumulation_steps)])
            if (complete := self.epoch_is_complete()) or self.stop_requested():
                break
            if taken and every and not self.steps % every:
                self.save_checkpoint(epoch)
        p = self.progress
        loss, n = self.sum_over_ranks(p.loss_sum, p.samples)
        return EpochResult(
            epoch=epoch,
            complete=complete,
            loss=loss / n,
            samples=int(n),
            optimizer_steps=p.optimizer_steps,
            skipped_steps=p.skipped_steps,
        )

    @torch.no_grad()
    def validate(self):
        modes = [(m, m.training) for m in self.model.modules()]
        sums = [0.0, 0, 0]
        try:
            self.model.eval()
            for x, y in self.val_loader:
                logits, loss = self.forward(self.model, x, y)
                right = (logits.argmax(1) == y.to(self.device)).sum()
                sums = [a + b for a, b in zip(sums, (loss.double() * len(y), right, len(y)), strict=True)]
        finally:
            [setattr(m, "training", t) for m, t in modes]
        loss, right, n = self.sum_over_ranks(*sums)
        if n == 0:
            raise ValueError("no samples")
        return ValidationResult(loss=loss / n, accuracy=right / n, samples=int(n))

    def _stateful(self):
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler, "scaler": self.scaler}

    def save_checkpoint(self, epoch):
        path = checkpoint_path(self.folder / "checkpoints", self.steps)
        p = d.replace(self.progress, loss_sum=torch.as_tensor(self.progress.loss_sum).cpu())
        own = self.gather_from_ranks((d.asdict(p), self.train_loader.state_dict(), capture_random_state()))
        if not self.rank:
            results = [[d.asdict(r) for r in rs] for rs in (self.epochs, self.validations)]
            parts = {k: v.state_dict() for k, v in self._stateful().items()}
            state = dict(parts, own=own, results=results, steps=self.steps, epoch=epoch)
            write_checkpoint(path, state, keep=self.config.keep_checkpoints)
        self.wait_for_ranks()
        return path

    def load_checkpoint(self, path):
        s = read_checkpoint(path)
        if len(s["own"]) != self.world_size:
            raise ValueError(f"{path}: {len(s['own'])} ranks, not {self.world_size}")
        progress, loader, random = s["own"][self.rank]
        self.train_loader.load_state_dict(loader)
        [v.load_state_dict(s[k]) for k, v in self._stateful().items()]
        progress["loss_sum"] = progress["loss_sum"].to(self.device)
        self.progress, self.steps = Progress(**progress), s["steps"]
        self.epochs, self.validations = (
            [r(**t) for t in ts] for r, ts in zip((EpochResult, ValidationResult), s["results"], strict=True)
        )
        self.next_epoch = s["epoch"] + (self.train_loader.position == len(self.train_loader))
        self.log.resume_at(self.steps), restore_random_state(random)
        return self.next_epoch
