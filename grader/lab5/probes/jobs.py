"""Training jobs that Lab 5's probes hand to a submission: their globals lead to nothing that knows an answer.

Imports nothing of `grader`: whoever holds a job holds this module.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from labkit.profiling import TrainingJob
from labkit.results import PipelineSettings


class _Loader:
    """Batches that take their time to come: `load_seconds`, and longer for some at the beginning."""

    def __init__(
        self, samples: int, width: int, naps: Iterator[None], on_batch: Callable[[int], None] | None, *, pinned: bool
    ) -> None:
        self._batch = (torch.zeros(samples, width), torch.zeros(samples, width))
        if pinned:
            self._batch = (self._batch[0].pin_memory(), self._batch[1].pin_memory())
        self._naps, self._on_batch = naps, on_batch

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            next(self._naps)
            if self._on_batch is not None:
                self._on_batch(1)
            yield self._batch


def _naps(load_seconds: float, slow: Sequence[float]) -> Iterator[None]:
    """Sleeps as long as each batch takes; how long that is lies where no attribute shows it."""
    yield
    for seconds in itertools.chain(slow, itertools.repeat(load_seconds)):
        time.sleep(seconds)
        yield


def _model(width: int, layers: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))).cuda()


def _look(step: int, model: nn.Module, loss: Tensor) -> None:
    """Metrics as in the slow pipeline: every gradient's norm, one by one."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.norm().item()


def job_of(
    *,
    samples: int,
    width: int,
    layers: int,
    load_seconds: float,
    look: bool = False,
    slow: Sequence[float] = (),
    on_batch: Callable[[int], None] | None = None,
    pinned: bool = False,
) -> TrainingJob:
    """A job whose batches take so long to come; `on_batch` is called for each that is taken.

    With `pinned` memory, copies to the device are not waited for.
    """
    model = _model(width, layers)
    naps = _naps(load_seconds, slow)
    next(naps)
    return TrainingJob(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-3),
        loader=_Loader(samples, width, naps, on_batch, pinned=pinned),
        non_blocking=pinned,
        batch_size=samples,
        device="cuda",
        after_step=_look if look else None,
    )


class _Encoded(Dataset[tuple[Tensor, Tensor]]):
    """Samples that take time to decode, a whole batch at once."""

    def __init__(self, width: int, decode_seconds: float) -> None:
        self.width, self.decode_seconds = width, decode_seconds

    def __len__(self) -> int:
        return 1 << 16

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        time.sleep(self.decode_seconds * len(indices))
        return torch.zeros(len(indices), self.width), torch.zeros(len(indices), self.width)


def _as_it_is(batch: Any) -> Any:
    return batch


def maker_of(
    *, width: int, layers: int, decode_seconds: float, too_large: int
) -> Callable[[PipelineSettings], TrainingJob]:
    """Makes jobs of settings; batches of `too_large` samples need more memory than any GPU has."""

    def make(settings: PipelineSettings) -> TrainingJob:
        def criterion(outputs: Tensor, targets: Tensor) -> Tensor:
            if settings.batch_size >= too_large:
                torch.empty(1 << 42, dtype=torch.uint8, device="cuda")
            return nn.functional.mse_loss(outputs, targets)

        model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))).cuda()
        loader = DataLoader(
            _Encoded(width, decode_seconds),
            batch_size=settings.batch_size,
            num_workers=settings.num_workers,
            pin_memory=settings.pin_memory,
            collate_fn=_as_it_is,
        )
        return TrainingJob(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=1e-3),
            loader=loader,
            batch_size=settings.batch_size,
            device="cuda",
            criterion=criterion,
            non_blocking=settings.pin_memory,
        )

    return make
