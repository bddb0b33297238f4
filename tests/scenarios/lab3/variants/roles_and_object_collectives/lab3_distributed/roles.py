"""Who does what in Lab 3: Deal hands out samples, Meter adds up losses, Stopwatch reads the clock.

Ranks talk to each other in Python objects here: the numbers are few.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import default_collate

T = TypeVar("T")


def from_all(mine: T) -> list[T]:
    """What every rank says, in their order."""
    if not dist.is_initialized():
        return [mine]
    said: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(said, mine)
    return said


def from_first(mine: T) -> T:
    """What rank 0 says."""
    if not dist.is_initialized():
        return mine
    box = [mine]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def bare(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, DistributedDataParallel) else model


def mix(*parts: object) -> int:
    """A number of 64 bits out of several: others give another one."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little")


@dataclass(frozen=True)
class Deal:
    """Deals the samples of an epoch out to the ranks, and makes batches of this rank's hand."""

    dataset: Any
    batch_size: int
    rank: int
    world_size: int
    seed: int = 0

    @property
    def share(self) -> int:
        return -(-len(self.dataset) // self.world_size)

    def __len__(self) -> int:
        return -(-self.share // self.batch_size)

    def epoch(self, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        deck = np.random.default_rng(mix("deal", self.seed, number)).permutation(len(self.dataset))
        hand = np.resize(deck, self.share * self.world_size)[self.rank :: self.world_size]  # goes round at the end
        return draw(self.dataset, hand.tolist(), self.batch_size)


def draw(dataset: Any, numbers: list[int], batch_size: int) -> Iterator[Any]:
    """Batches of these samples."""
    while numbers:
        now, numbers = numbers[:batch_size], numbers[batch_size:]
        yield default_collate([dataset[number] for number in now])


@dataclass
class Meter:
    """Mean over all that any rank has added."""

    entries: list[tuple[Tensor, int]] = field(default_factory=list)

    def add(self, mean: Tensor, count: int) -> None:
        self.entries.append((mean.detach(), count))

    def close(self) -> float:
        pairs = from_all(
            (sum(mean.double().item() * count for mean, count in self.entries), sum(c for _, c in self.entries))
        )
        self.entries.clear()
        totals, counts = zip(*pairs, strict=True)
        return sum(totals) / sum(counts)


class Stopwatch:
    """Reads the clock when the device is idle."""

    def __init__(self, device: torch.device) -> None:
        self._wait: Callable[[], object] = (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else bool
        self.lap()

    def lap(self) -> float:
        """Seconds since the last reading."""
        self._wait()
        before, self._last = getattr(self, "_last", 0.0), perf_counter()
        return self._last - before
