"""Training without sharding: PyTorch's own optimizers on one GPU, without a submission.

No other probe imports this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch.optim import Optimizer

from gradebox.sandbox.probe_loader import Student
from grader.sharding.zero.cases import TrainReply, TrainUnsharded
from grader.sharding.zero.probes.steps import follow


def train(student: Student, inputs: TrainUnsharded) -> TrainReply:
    """What `optimizer.train` returns, of the optimizer class itself."""

    def make(groups: Iterable[dict[str, Any]], kind: Callable[..., Optimizer], **options: float) -> Optimizer:
        return kind(groups, **options)

    return TrainReply(runs=[follow(case, inputs.numbers, inputs.slopes, make) for case in inputs.cases])
