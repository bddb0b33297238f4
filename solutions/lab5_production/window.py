"""Task 5.3, its first half: a window of batches, and the one optimizer step that they make together.

Not for epochs, validation and checkpoints (trainer.py), and not for the methods themselves (Labs 2 and 3).
"""

import contextlib
import math
import time

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .parts import Batch, TrainerParts, count_targets


class WindowTrainer(TrainerParts):
    """A trainer's parts, and how they make a step."""

    def forward(self, module: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs and mean loss of a batch, which is moved to the device first; for training and validation alike.

        The forward pass runs in autocast, the loss is computed outside of it, from outputs that are float32 at least.

        Args:
            module: `replica` (its backward pass exchanges gradients) or `model` (nothing of it communicates).
        """
        # TODO(task 5.3): move, autocast, float16 and bfloat16 outputs to float32, criterion.
        # --- solution: task 5.3 ---
        inputs = inputs.to(self.device, non_blocking=True)
        targets = targets.to(self.device, non_blocking=True)
        with self.autocast():
            outputs = module(inputs)
        if outputs.dtype in (torch.float16, torch.bfloat16):
            outputs = outputs.float()
        return outputs, self.criterion(outputs, targets)
        # --- end ---

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
        # TODO(task 5.3):
        # 1. Count the window's samples on all ranks, and ask the ranks whether one was told to stop: one collective.
        #    Where there are none, nothing is to be done.
        # 2. Per batch: forward, loss weighted as in Task 3.3, scaled backward; no_sync but for the last batch.
        # 3. Unscale, clip, step, update (Task 2.2); the scheduler only if the step was taken.
        # 4. Add to `progress` and `steps`; log, rank 0 alone, though a sum over the ranks needs all of them.
        # Read no number from the GPU (`item()`) that is not needed: each one makes the CPU wait.
        # --- solution: task 5.3 ---
        counts = [count_targets(targets) for _, targets in window]
        everywhere, stop = self.sum_over_ranks(sum(counts), self.told_to_stop)
        self.stopping = stop > 0
        if not everywhere:
            self.progress.skipped_steps += 1
            return False
        self.optimizer.zero_grad()
        means = []
        for index, ((inputs, targets), count) in enumerate(zip(window, counts, strict=True)):
            with self._without_exchange(when=index < len(window) - 1):
                outputs, mean = self.forward(self.replica, inputs, targets)
                weight = count * self.world_size / everywhere
                # A product with 1 would be a kernel in the forward pass and one in the backward pass.
                loss = outputs.sum() * 0.0 if not count else mean if weight == 1.0 else mean * weight
                self.scaler.scale(loss).backward()
            if count:
                # One kernel: in float64, as the sum is, and nothing waits for it.
                self.progress.loss_sum.add_(mean.detach(), alpha=count)
                means.append((mean.detach(), count))
        self.scaler.unscale_(self.optimizer)
        logs = (self.steps + 1) % self.config.log_every_steps == 0
        norm = None
        if logs or self.config.max_grad_norm is not None:  # math.inf only measures
            norm = nn.utils.clip_grad_norm_(self.parameters, self.config.max_grad_norm or math.inf)
        scale = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        taken = self.scaler.get_scale() >= scale  # an overflow makes it smaller, and nothing else does
        learning_rate = self.optimizer.param_groups[0]["lr"]
        if taken:
            self.scheduler.step()
            self.steps += 1
        self.progress.optimizer_steps += taken
        self.progress.skipped_steps += not taken
        self.progress.samples += sum(counts)
        self.samples_since += int(everywhere)
        if taken and logs:
            self._log_step(means, everywhere, learning_rate, norm)
        return taken
        # --- end ---

    # --- solution only ---
    def _without_exchange(self, *, when: bool) -> contextlib.AbstractContextManager[None]:
        if when and isinstance(self.replica, DistributedDataParallel):
            silent: contextlib.AbstractContextManager[None] = self.replica.no_sync()
            return silent
        return contextlib.nullcontext()

    def _log_step(
        self, means: list[tuple[Tensor, int]], samples: float, learning_rate: float, norm: Tensor | None
    ) -> None:
        (total,) = self.sum_over_ranks(sum(mean.item() * count for mean, count in means))
        now = time.perf_counter()
        if self.rank == 0:
            metrics = {
                "train/loss": total / samples,
                "train/learning_rate": learning_rate,
                "train/grad_norm": math.nan if norm is None else norm.item(),
                "train/samples_per_second": self.samples_since / max(now - self.logged_at, 1e-9),
            }
            self.log.add(self.steps, metrics)
        self.logged_at, self.samples_since = now, 0

    # --- end ---
