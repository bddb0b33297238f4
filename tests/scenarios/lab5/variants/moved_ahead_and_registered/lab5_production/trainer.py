"""Batches go to the device before the one in front of them is computed."""

from __future__ import annotations

import contextlib
import itertools
import math

import torch
from torch import nn

from labkit.results import EpochResult, ValidationResult

from . import kept_trainer


class ProductionTrainer(kept_trainer.ProductionTrainer):
    """The same parts; another way through the batches."""

    def _moved(self, batches):
        """Batches on the device, each moved there while the one in front waits to be computed."""
        waiting = []
        for batch in batches:
            waiting.append(tuple(part.to(self.device, non_blocking=True) for part in batch))
            if len(waiting) == 2:
                yield waiting.pop(0)
        yield from waiting

    def train_window(self, window):
        samples = sum(classes.numel() for _, classes in window)
        losses = []
        self.optimizer.zero_grad(set_to_none=True)
        *silent, last = self._moved(window)
        with contextlib.ExitStack() as stack:
            if self.world_size > 1:
                stack.enter_context(self.replica.no_sync())
            for batch in silent:
                losses.append(self._backward(*batch, samples))
        losses.append(self._backward(*last, samples))
        self.scaler.unscale_(self.optimizer)
        limit = math.inf if self.config.max_grad_norm is None else self.config.max_grad_norm
        norm = nn.utils.clip_grad_norm_(self.parameters, limit)
        before, rate = self.scaler.get_scale(), self.scheduler.get_last_lr()[0]
        self.scaler.step(self.optimizer)
        self.scaler.update()
        taken = not self.scaler.get_scale() < before
        loss_sum = torch.stack(losses).sum()
        self.progress.loss_sum = loss_sum + self.progress.loss_sum
        self.progress.samples += samples
        if not taken:
            self.progress.skipped_steps += 1
            return False
        self.progress.optimizer_steps += 1
        self.scheduler.step()
        self.steps += 1
        self.log_step(loss=loss_sum / samples, samples=samples, learning_rate=rate, gradient_norm=norm)
        return True

    def _backward(self, inputs, classes, samples):
        _, mean = self.forward(self.replica, inputs, classes)
        self.scaler.scale(mean * (len(classes) / samples)).backward()
        return mean.detach().double() * len(classes)

    def train_epoch(self, epoch):
        self.begin_epoch(epoch)
        self.model.train()
        every = self.config.save_every_steps or math.inf
        batches = iter(self.train_loader)
        windows = iter(lambda: list(itertools.islice(batches, self.config.accumulation_steps)), [])
        complete = False
        for window in windows:
            taken = self.train_window(window)
            complete = self.epoch_is_complete()
            if complete:
                break
            if self.stop_requested():
                break
            if taken and self.steps % every == 0:
                self.save_checkpoint(epoch)
        total, count = self.sum_over_ranks(self.progress.loss_sum, self.progress.samples)
        return EpochResult(
            epoch=epoch,
            loss=total / count,
            samples=round(count),
            complete=complete,
            optimizer_steps=self.progress.optimizer_steps,
            skipped_steps=self.progress.skipped_steps,
        )

    @torch.no_grad()
    def validate(self):
        was_training = {module for module in self.model.modules() if module.training}
        self.model.eval()
        rows = [torch.zeros(3, dtype=torch.float64, device=self.device)]
        for inputs, classes in self._moved(list(self.val_loader)):
            logits, mean = self.forward(self.model, inputs, classes)
            right = logits.argmax(-1).eq(classes).sum()
            rows.append(
                torch.stack([mean.double() * len(classes), right.double(), right.new_tensor(len(classes)).double()])
            )
        for module in was_training:
            module.training = True
        loss, right, samples = self.sum_over_ranks(*torch.stack(rows).sum(0))
        if samples == 0:
            raise ValueError("nobody has a validation sample")
        return ValidationResult(loss=loss / samples, accuracy=right / samples, samples=int(samples))
