"""Training jobs that Lab 5's probes hand to a submission: their globals lead to nothing that knows an answer.

Imports nothing of `grader`: whoever holds a job holds this module.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from grader.shared.probes.handed_out import linear, zeros
from grader.shared.probes.kept import naps
from grader.shared.probes.loaders import Loader, loader
from labkit.profiling import TrainingJob
from labkit.results import PipelineSettings

Batch = TypeVar("Batch")


def _loader(
    samples: int,
    width: int,
    wait: Callable[[], None],
    on_batch: Callable[[int], None] | None,
    *,
    on_pass: Callable[[int], None] | None,
    pinned: bool,
) -> Loader[tuple[Tensor, Tensor]]:
    """Batches that take their time to come: `load_seconds`, and longer for some at the beginning."""
    inputs, targets = zeros(samples, width), zeros(samples, width)
    batch = (inputs.pin_memory(), targets.pin_memory()) if pinned else (inputs, targets)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        if on_pass is not None:
            on_pass(1)
        while True:
            wait()
            if on_batch is not None:
                on_batch(1)
            yield batch

    return loader(batches)


def _model(width: int, layers: int) -> nn.Sequential:
    return nn.Sequential(*(linear(width, width) for _ in range(layers))).cuda()


def _look(step: int, model: nn.Module, loss: Tensor) -> None:
    """Metrics as in the slow pipeline, of every gradient one by one: its norm, and its largest and smallest element."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            for figure in (parameter.grad.norm(), parameter.grad.max(), parameter.grad.min()):
                figure.item()


def job_of(
    *,
    samples: int,
    width: int,
    layers: int,
    load_seconds: float,
    look: bool = False,
    slow: Sequence[float] = (),
    on_batch: Callable[[int], None] | None = None,
    on_pass: Callable[[int], None] | None = None,
    pinned: bool = False,
) -> TrainingJob:
    """A job whose batches take so long to come; `on_batch` is called for each that is taken, `on_pass` when the loader
    begins.

    With `pinned` memory, copies to the device are not waited for.
    """
    model = _model(width, layers)
    wait = naps(itertools.chain(slow, itertools.repeat(load_seconds)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    return TrainingJob(
        model=model,
        optimizer=optimizer,
        criterion=nn.functional.mse_loss,
        loader=_loader(samples, width, wait, on_batch, on_pass=on_pass, pinned=pinned),
        non_blocking=pinned,
        batch_size=samples,
        device="cuda",
        after_step=_look if look else None,
    )


class _Encoded(Dataset[tuple[Tensor, Tensor]]):
    """Samples that take time to decode, a whole batch at once; and a batch takes its own time on top of that."""

    def __init__(self, width: int, decode_seconds: float, batch_seconds: float) -> None:
        self.width, self.decode_seconds, self.batch_seconds = width, decode_seconds, batch_seconds

    def __len__(self) -> int:
        return 1 << 16

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        time.sleep(self.batch_seconds + self.decode_seconds * len(indices))
        return torch.zeros(len(indices), self.width), torch.zeros(len(indices), self.width)


def _as_it_is(batch: Batch) -> Batch:
    return batch


def maker_of(
    *,
    width: int,
    layers: int,
    decode_seconds: float,
    too_large: int,
    late_batch: int = 0,
    late_steps: Sequence[int] = (),
    late_seconds: float = 0.0,
    slow_batch: int = 0,
    slow_seconds: float = 0.0,
) -> Callable[[PipelineSettings], TrainingJob]:
    """Makes jobs of settings; batches of `too_large` samples need more memory than any GPU has, larger ones at once.

    With batches of `late_batch` samples the steps of these numbers take so much longer; with batches of `slow_batch`
    samples each batch takes so much longer to come.
    """

    def run_out() -> None:
        torch.empty(1 << 42, dtype=torch.uint8, device="cuda")

    def make(settings: PipelineSettings) -> TrainingJob:
        steps = itertools.count()
        if settings.batch_size > too_large:
            run_out()

        def criterion(outputs: Tensor, targets: Tensor) -> Tensor:
            if settings.batch_size >= too_large:
                run_out()
            if settings.batch_size == late_batch and next(steps) in late_steps:
                time.sleep(late_seconds)
            return nn.functional.mse_loss(outputs, targets)

        model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))).cuda()
        loader = DataLoader(
            _Encoded(width, decode_seconds, slow_seconds if settings.batch_size == slow_batch else 0.0),
            batch_size=settings.batch_size,
            num_workers=settings.num_workers,
            pin_memory=settings.pin_memory,
            collate_fn=_as_it_is,
            # Other methods pickle the data set, which imports the grader next to the submission. They are the default
            # on macOS, and on Linux from Python 3.14 on.
            multiprocessing_context="fork" if settings.num_workers else None,
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
