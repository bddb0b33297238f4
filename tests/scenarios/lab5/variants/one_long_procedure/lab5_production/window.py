"""Task 5.3, its first half: a window of batches, and the one optimizer step that they make together.

Not for epochs, validation and checkpoints (trainer.py), and not for the methods themselves (Labs 2 and 3).
"""

import time

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .parts import Batch, TrainerParts, count_targets


class WindowTrainer(TrainerParts):
    """A trainer's parts, and how they make a step."""

    def forward(self, module: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs and mean loss of a batch, which is moved to the device first; for training and validation alike.

        The forward pass runs in autocast, the loss is computed outside of it, from outputs that are float32 at least.

        Args:
            module: `replica` (its backward pass exchanges gradients) or `model` (nothing of it communicates).
        """
        x = inputs.to(self.device)
        y = targets.to(self.device)
        context = self.autocast()
        context.__enter__()
        try:
            outputs = module(x)
        finally:
            context.__exit__(None, None, None)
        if outputs.dtype == torch.float16 or outputs.dtype == torch.bfloat16:
            outputs = outputs.to(torch.float32)
        return outputs, self.criterion(outputs, y)

    def train_window(self, window: list[Batch]) -> bool:
        """Make one optimizer step along the gradient of the mean loss over all samples of a window on all ranks.

        Gradients are exchanged once, and clipped once, to `max_grad_norm`. A float16 step whose gradients are not
        finite is left out: nothing moves but the loss scale. A window in which no target counts, on any rank, is left
        out, too: nothing moves. Sets `stopping`, adds to `progress` and `steps`, and after every `log_every_steps`
        steps logs as `train_epoch` says.

        Args:
            window: this rank's batches of it, at least one; every rank has as many.

        Returns:
            Whether the step was taken.
        """
        # 1. What is in the window, on all ranks; whether one of them was told to stop.
        counts = [count_targets(targets) for _, targets in window]
        samples, told = self.sum_over_ranks(float(sum(counts)), 1.0 if self.told_to_stop else 0.0)
        self.stopping = told > 0
        if samples == 0:
            self.progress.skipped_steps += 1
            return False

        # 2. Each rank's part of the gradient of the sum of losses / samples, from the module itself: nothing communicates.
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        for p in parameters:
            p.grad = None
        loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        for k in range(len(window)):
            if counts[k] == 0:
                continue
            _, loss = self.forward(self.model, window[k][0], window[k][1])
            self.scaler.scale(loss * (counts[k] / samples)).backward()
            loss_sum += loss.detach().to(torch.float64) * counts[k]

        # 3. One exchange: all gradients of a dtype are one vector, summed over the ranks.
        if self.world_size > 1:
            for dtype in sorted({p.dtype for p in parameters}, key=str):
                same = [p for p in parameters if p.dtype == dtype]
                vector = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in same])
                dist.all_reduce(vector)
                start = 0
                for p in same:
                    p.grad = vector[start : start + p.numel()].view_as(p).clone()
                    start += p.numel()

        # 4. The step.
        rate = self.optimizer.param_groups[0]["lr"]
        self.scaler.unscale_(self.optimizer)
        gradients = [p.grad for p in parameters if p.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g).to(torch.float64) for g in gradients]))
        if self.config.max_grad_norm is not None:
            shrink = torch.clamp(self.config.max_grad_norm / norm, max=1.0)
            for g in gradients:
                g.mul_(shrink)
        scale = self.scaler.get_scale() if self.scaler.is_enabled() else 1.0
        self.scaler.step(self.optimizer)
        self.scaler.update()
        taken = not self.scaler.is_enabled() or self.scaler.get_scale() >= scale > 0

        # 5. What is counted, and what is told.
        self.progress.loss_sum += loss_sum
        self.progress.samples += sum(counts)
        self.samples_since += int(samples)
        if not taken:
            self.progress.skipped_steps += 1
            return False
        self.scheduler.step()
        self.steps += 1
        self.progress.optimizer_steps += 1
        if self.steps % self.config.log_every_steps == 0:
            (everywhere,) = self.sum_over_ranks(float(loss_sum))
            now = time.perf_counter()
            if self.rank == 0:
                metrics = {}
                metrics["train/loss"] = everywhere / samples
                metrics["train/learning_rate"] = float(rate)
                metrics["train/grad_norm"] = float(norm)
                metrics["train/samples_per_second"] = self.samples_since / (now - self.logged_at)
                self.log.add(self.steps, metrics)
            self.logged_at = now
            self.samples_since = 0
        return True
