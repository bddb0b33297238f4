"""What one batch does, as hooks; the loop that calls them is in trainer.py."""

import torch
from torch import nn

from .parts import TrainerParts, count_targets


class WindowTrainer(TrainerParts):
    """Steps: training_step for each batch, then optimizer_step."""

    def forward(self, module, inputs, targets):
        """Outputs and mean loss."""
        x, y = self.transfer_batch_to_device((inputs, targets))
        with torch.autocast(self.device.type, dtype=self.dtype, enabled=self.config.dtype != "float32"):
            outputs = module(x)
        outputs = outputs if outputs.dtype.itemsize >= 4 else outputs.to(torch.float32)
        return outputs, self.criterion(outputs, y)

    def transfer_batch_to_device(self, batch):
        return tuple(part.to(self.device) for part in batch)

    def training_step(self, batch, share, last):
        count = count_targets(batch[1])
        if self.world_size > 1:
            self.replica.require_backward_grad_sync = last
        outputs, mean = self.forward(self.replica, *batch)
        loss = mean * share(count) if count else outputs.sum() * 0
        self.scaler.scale(loss).backward()
        return mean.detach().to(torch.float64) * count if count else torch.zeros_like(self.progress.loss_sum)

    def optimizer_step(self):
        """Clips and steps; the norm before clipping, and whether the step was made."""
        self.scaler.unscale_(self.optimizer)
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        if self.config.max_grad_norm is not None:
            nn.utils.clip_grads_with_norm_(self.model.parameters(), self.config.max_grad_norm, norm)
        self.made = False
        hook = self.optimizer.register_step_post_hook(lambda *_: setattr(self, "made", True))
        self.scaler.step(self.optimizer)
        self.scaler.update()
        hook.remove()
        return norm, self.made

    def train_window(self, window):
        """One optimizer step."""
        samples = sum(count_targets(targets) for _, targets in window)
        total, told = self.sum_over_ranks(samples, float(self.told_to_stop))
        self.stopping = bool(told)
        if total == 0:
            self.progress.skipped_steps += 1
            return False
        self.optimizer.zero_grad(set_to_none=True)
        losses = [
            self.training_step(batch, lambda count: count * self.world_size / total, batch is window[-1])
            for batch in window
        ]
        rate = self.scheduler.get_last_lr()[0]
        norm, made = self.optimizer_step()
        window_loss = torch.stack(losses).sum()
        self.progress.loss_sum += window_loss
        self.progress.samples += samples
        self.samples_since += round(total)
        if not made:
            self.progress.skipped_steps += 1
            return False
        self.steps += 1
        self.progress.optimizer_steps += 1
        self.scheduler.step()
        if self.steps % self.config.log_every_steps == 0:
            self.on_train_batch_end(window_loss.item(), total, rate, norm.item())
        return True
