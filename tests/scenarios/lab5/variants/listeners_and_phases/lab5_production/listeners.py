"""What happens after a window, as small listeners that are told of its outcome, in their order."""

import time
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Ballot:
    """What the ranks have agreed on."""

    counts: tuple[int, ...]
    """Of each batch of this rank."""
    samples: int
    """On all ranks."""
    stop: bool


@dataclass(frozen=True)
class Outcome:
    """A window that is over."""

    ballot: Ballot
    losses: Tensor | None
    """Mean losses of this rank's batches times their samples."""
    taken: bool
    norm: Tensor | None
    rate: float

    def after_step(self, *, taken: bool, norm: Tensor) -> "Outcome":
        return replace(self, taken=taken, norm=norm)


def count(trainer: Any, outcome: Outcome) -> None:
    progress = trainer.progress
    if outcome.losses is not None:
        progress.loss_sum += outcome.losses
    progress.samples += sum(outcome.ballot.counts)
    progress.optimizer_steps += outcome.taken
    progress.skipped_steps += not outcome.taken
    trainer.steps += outcome.taken
    trainer.samples_since += outcome.ballot.samples


def tell(trainer: Any, outcome: Outcome) -> None:
    if not outcome.taken or trainer.steps % trainer.config.log_every_steps:
        return
    assert outcome.losses is not None and outcome.norm is not None
    (losses,) = trainer.sum_over_ranks(outcome.losses.item())
    if trainer.rank == 0:
        norm = outcome.norm.item()
        entry = {
            "train/loss": losses / outcome.ballot.samples,
            "train/learning_rate": outcome.rate,
            "train/grad_norm": norm,
            "train/samples_per_second": trainer.samples_since / max(time.perf_counter() - trainer.logged_at, 1e-9),
        }
        trainer.log.add(trainer.steps, entry)
    trainer.logged_at, trainer.samples_since = time.perf_counter(), 0


LISTENERS = (count, tell)
