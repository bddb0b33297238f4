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
        raise NotImplementedError(
            "Task 5.3 is open: write WindowTrainer.forward "
            "in labs/lab5_production/window.py (about 7 lines)"
        )

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
        raise NotImplementedError(
            "Task 5.3 is open: write WindowTrainer.train_window "
            "in labs/lab5_production/window.py (about 56 lines)"
        )
