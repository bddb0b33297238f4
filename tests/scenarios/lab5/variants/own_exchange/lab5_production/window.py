"""No DistributedDataParallel: gradients are summed over batches as they are, and over ranks in one flat tensor."""

import time

import torch
import torch.distributed as dist

from .parts import TrainerParts, count_targets


class WindowTrainer(TrainerParts):
    def forward(self, module, inputs, targets):
        with self.autocast():
            outputs = module(inputs.to(self.device))
        wide = torch.promote_types(outputs.dtype, torch.float32)
        return outputs.to(wide), self.criterion(outputs.to(wide), targets.to(self.device))

    def train_window(self, window):
        sizes = [count_targets(targets) for _, targets in window]
        total, stop = self.sum_over_ranks(sum(sizes), float(self.told_to_stop))
        self.stopping = bool(stop)
        if total == 0:
            self.progress.skipped_steps += 1
            return False
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        losses = []
        for size, (inputs, targets) in zip(sizes, window, strict=True):
            _, mean = self.forward(self.model, inputs, targets)
            if size == 0:
                continue
            losses.append(mean.detach().double() * size)
            self.scaler.scale(mean * (size / total)).backward()
        if self.world_size > 1:
            flat = torch.cat([parameter.grad.flatten() for parameter in parameters])
            dist.all_reduce(flat)
            parts = flat.split([parameter.numel() for parameter in parameters])
            for parameter, part in zip(parameters, parts, strict=True):
                parameter.grad.copy_(part.view_as(parameter))
        self.scaler.unscale_(self.optimizer)
        norm = torch.linalg.vector_norm(torch.stack([parameter.grad.norm() for parameter in parameters]))
        longest = self.config.max_grad_norm
        if longest is not None and torch.isfinite(norm) and norm > longest:
            for parameter in parameters:
                parameter.grad *= longest / (norm + 1e-6)
        finite = bool(torch.isfinite(norm)) or not self.scaler.is_enabled()
        rate = self.scheduler.get_last_lr()[0]
        self.scaler.step(self.optimizer)
        self.scaler.update()
        for loss in losses:
            self.progress.loss_sum += loss
        self.progress.samples += sum(sizes)
        self.samples_since += int(total)
        if not finite:
            self.progress.skipped_steps += 1
            return False
        self.scheduler.step()
        self.steps += 1
        self.progress.optimizer_steps += 1
        if self.steps % self.config.log_every_steps == 0:
            (loss,) = self.sum_over_ranks(sum(loss.item() for loss in losses))
            seconds = time.perf_counter() - self.logged_at
            if self.rank == 0:
                told = {"loss": loss / total, "learning_rate": rate, "grad_norm": norm.item()}
                told["samples_per_second"] = self.samples_since / max(seconds, 1e-9)
                self.log.add(self.steps, {f"train/{name}": value for name, value in told.items()})
            self.logged_at, self.samples_since = time.perf_counter(), 0
        return True
