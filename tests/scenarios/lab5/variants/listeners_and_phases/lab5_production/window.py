"""Task 5.3, its first half: a window of batches, and the one optimizer step that they make together.

Not for epochs, validation and checkpoints (trainer.py), and not for the methods themselves (Labs 2 and 3).
"""

import contextlib

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .listeners import LISTENERS, Ballot, Outcome
from .parts import Batch, TrainerParts, count_targets

HALVES = (torch.float16, torch.bfloat16)


class WindowTrainer(TrainerParts):
    """A trainer's parts, and how they make a step."""

    def forward(self, module: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs and mean loss of a batch, which is moved to the device first; for training and validation alike.

        The forward pass runs in autocast, the loss is computed outside of it, from outputs that are float32 at least.

        Args:
            module: `replica` (its backward pass exchanges gradients) or `model` (nothing of it communicates).
        """
        inputs, targets = inputs.to(self.device), targets.to(self.device)
        with self.autocast():
            outputs = module(inputs)
        if outputs.dtype in HALVES:
            outputs = outputs.float()
        return outputs, self.criterion(outputs, targets)

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
        ballot = self._vote(window)
        self.stopping = ballot.stop
        outcome = Outcome(ballot, None, False, None, self.optimizer.param_groups[0]["lr"])
        if ballot.samples:
            outcome = self._step(self._gradients(window, ballot))
        for hear in LISTENERS:
            hear(self, outcome)
        return outcome.taken

    def _vote(self, window: list[Batch]) -> Ballot:
        """What all ranks must agree on before the window: one collective."""
        counts = tuple(count_targets(targets) for _, targets in window)
        everywhere, told = self.sum_over_ranks(float(sum(counts)), float(self.told_to_stop))
        return Ballot(counts, int(everywhere), told > 0)

    def _gradients(self, window: list[Batch], ballot: Ballot) -> Outcome:
        """Backward passes of all batches; the last one exchanges."""
        self.optimizer.zero_grad()
        losses = torch.zeros_like(self.progress.loss_sum)
        last = len(window) - 1
        for number, ((inputs, targets), count) in enumerate(zip(window, ballot.counts, strict=True)):
            with self._alone() if number < last else contextlib.nullcontext():
                outputs, loss = self.forward(self.replica, inputs, targets)
                if count:
                    losses += loss.detach().double() * count
                    share = loss * (count * self.world_size / ballot.samples)  # DDP takes the mean over the ranks
                else:  # 0 / 0; the other ranks wait for this backward pass all the same
                    share = outputs.sum() * 0.0
                self.scaler.scale(share).backward()
        return Outcome(ballot, losses, False, None, self.optimizer.param_groups[0]["lr"])

    def _alone(self) -> contextlib.AbstractContextManager[None]:
        return self.replica.no_sync() if isinstance(self.replica, DistributedDataParallel) else contextlib.nullcontext()

    def _step(self, before: Outcome) -> Outcome:
        """Unscale, clip, step; the optimizer itself tells whether it was let to."""
        self.scaler.unscale_(self.optimizer)
        parameters = [each for group in self.optimizer.param_groups for each in group["params"]]
        if self.config.max_grad_norm is None:
            norm = torch.nn.utils.get_total_norm([each.grad for each in parameters if each.grad is not None])
        else:
            norm = torch.nn.utils.clip_grad_norm_(parameters, self.config.max_grad_norm)
        calls: list[None] = []
        hook = self.optimizer.register_step_post_hook(lambda *_: calls.append(None))
        try:
            self.scaler.step(self.optimizer)
        finally:
            hook.remove()
        self.scaler.update()
        if calls:
            self.scheduler.step()
        return before.after_step(taken=bool(calls), norm=norm)
