"""A loader that knows where it is: batches in an order that depends on seed, epoch and rank only, from any position.

Not for making batches fast (`torch.utils.data.DataLoader` does that inside), and not for data sets that draw random
numbers in worker processes: those depend on when the workers were started.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class ResumableLoader:
    """Batches of one rank's share of a data set; goes on in the middle of an epoch where it stopped.

    In epoch e the samples are drawn in an order that depends on `seed` and e, and are dealt out to the ranks in turn.
    The loader draws nothing from the global random numbers, so that where it is has no influence on anything else.

    `for batch in loader` gives the rest of the current epoch, and begins the next one if the current one is over. Its
    position counts a batch from the moment at which it is handed out; batches that worker processes have fetched in
    advance do not count.

    Args:
        dataset: samples by index, with a length.
        batch_size: samples in a batch of this rank; the last one of an epoch may have fewer.
        shuffle: draw a new order for every epoch; otherwise they come by number.
        seed: of the order.
        rank, world_size: whose share; None: those of the process group, or 0 of 1 where there is none.
        padded: whether a few samples (fewer than `world_size`) are drawn twice where the samples cannot be divided
            evenly, so that all ranks have the same number of batches. Right for training, where they step together;
            wrong for a validation, which must count each sample once.
        num_workers, pin_memory, collate_fn: as for DataLoader.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        padded: bool = True,
        num_workers: int = 0,
        pin_memory: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        joined = dist.is_available() and dist.is_initialized()
        self.dataset = dataset
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.rank = (dist.get_rank() if joined else 0) if rank is None else rank
        self.world_size = (dist.get_world_size() if joined else 1) if world_size is None else world_size
        self.padded = padded
        self.num_workers = num_workers
        self.pin_memory = pin_memory
        self.collate_fn = collate_fn
        self.epoch = 0
        self.position = 0
        if batch_size < 1 or not 0 <= self.rank < self.world_size:
            raise ValueError(f"no batches of {batch_size} for rank {self.rank} of {self.world_size}")

    def __len__(self) -> int:
        """Batches of a whole epoch on this rank, wherever the loader is."""
        samples = len(self.dataset)  # type: ignore[arg-type]
        share = len(range(0 if self.padded else self.rank, samples, self.world_size))
        return -(-share // self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch."""
        self.epoch, self.position = epoch, 0

    def state_dict(self) -> dict[str, int]:
        """Where it is, and what that depends on: plain numbers."""
        samples = len(self.dataset)  # type: ignore[arg-type]
        return {"epoch": self.epoch, "position": self.position, **self._order(), "samples": samples}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go where another loader was.

        Raises:
            ValueError: that one had another order (seed, batch size, number of ranks or samples), so its position means
                nothing here.
        """
        own = self.state_dict()
        if different := [
            f"{key} {state[key]}, here {own[key]}"
            for key in own
            if key not in ("epoch", "position") and state[key] != own[key]
        ]:
            raise ValueError(f"the position is that of another loader: {'; '.join(different)}")
        self.epoch, self.position = state["epoch"], state["position"]

    def __iter__(self) -> Iterator[Any]:
        if self.position >= len(self):
            self.set_epoch(self.epoch + 1)
        epoch, share = self.epoch, self._share()
        batches = [share[start : start + self.batch_size] for start in range(0, len(share), self.batch_size)]
        loader = DataLoader(
            self.dataset,
            batch_sampler=batches[self.position :],
            num_workers=self.num_workers,
            pin_memory=self.pin_memory,
            collate_fn=self.collate_fn,
            generator=torch.Generator().manual_seed(self.seed),
        )
        for batch in loader:
            if self.epoch != epoch:
                raise RuntimeError("the loader was sent elsewhere while its batches were being handed out")
            self.position += 1
            yield batch

    def _order(self) -> dict[str, int]:
        return {
            "seed": self.seed,
            "shuffle": int(self.shuffle),
            "batch_size": self.batch_size,
            "world_size": self.world_size,
        }

    def _share(self) -> list[int]:
        """The numbers of this rank's samples in this epoch, in their order."""
        samples = len(self.dataset)  # type: ignore[arg-type]
        if self.shuffle:
            generator = torch.Generator().manual_seed((self.seed * 1_000_003 + self.epoch) % 2**63)
            order = torch.randperm(samples, generator=generator).tolist()
        else:
            order = list(range(samples))
        if self.padded and samples:
            order += [order[index % samples] for index in range(-samples % self.world_size)]
        return order[self.rank :: self.world_size]
