"""How a step is shared out among the ranks that there are, and which learning rate goes with it.

After a restart on fewer or more ranks the batch of each rank times the ranks is another batch, and the learning rate
that was found for the old one no longer fits. Either a step keeps its samples (GLOBAL_BATCH_SIZE), or the rate follows:

- sgd: in proportion (Goyal et al. 2017, Accurate, Large Minibatch SGD)
- adamw: with the square root (Malladi et al. 2022, On the SDEs and Scaling Rules for Adaptive Gradient Algorithms)
"""

import math
from dataclasses import dataclass

from cluster.job.settings import SettingError, Settings

POWERS = {"sgd": 1.0, "adamw": 0.5}
"""Of the ratio of the batches, by which the learning rate changes."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One step."""

    ranks: int
    batch_size: int
    """Samples that a rank takes at once."""
    accumulation_steps: int
    learning_rate: float

    @property
    def samples(self) -> int:
        """Behind a step, on all ranks."""
        return self.ranks * self.batch_size * self.accumulation_steps

    def __str__(self) -> str:
        shares = f"{self.ranks} ranks x {self.batch_size} x {self.accumulation_steps} batches"
        return f"{self.samples} samples a step ({shares}), learning rate {self.learning_rate:.6g}"


def make_plan(settings: Settings, ranks: int) -> Plan:
    """The plan for so many ranks.

    With GLOBAL_BATCH_SIZE the step has as many samples on any number of ranks, if they can be shared out evenly; else
    some less, and the learning rate follows. BATCH_SIZE is then the most that a rank takes at once. Without it
    every rank takes BATCH_SIZE, and the rate follows where LEARNING_RATE_BATCH says which batch it was found for.

    Raises:
        SettingError: there are more ranks than samples in a step.
    """
    batch, times = settings.batch_size, settings.accumulation_steps
    if settings.global_batch_size is not None:
        if settings.global_batch_size < ranks:
            raise SettingError(
                f"GLOBAL_BATCH_SIZE={settings.global_batch_size} is less than a sample for each of {ranks} ranks"
            )
        share = settings.global_batch_size // ranks
        times = -(-share // batch)
        batch = share // times
    found_for = settings.learning_rate_batch or settings.global_batch_size
    ratio = ranks * batch * times / found_for if found_for else 1.0
    rate = settings.learning_rate * math.pow(ratio, POWERS[settings.optimizer])
    return Plan(ranks=ranks, batch_size=batch, accumulation_steps=times, learning_rate=rate)
