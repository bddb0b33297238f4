"""Given for Task 5.2: a training pipeline as one finds them, slower than it need be. Nothing is to be written here.

Its data set takes time to decode its samples, its loop reads the norm of every gradient after every step, and its
batches are small. Its settings are in `PipelineSettings`; profiling.py finds out which of them
matter.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from labkit.profiling import TrainingJob
from labkit.results import PipelineSettings

WIDTH, LAYERS = 512, 16
SAMPLES = 1 << 15
STORED = 1 << 11
"""Different samples in memory; the others repeat them."""
DECODE_SECONDS = 3e-6
"""What decoding a sample costs the host."""
AS_FOUND = PipelineSettings()


class EncodedSamples(Dataset[tuple[Tensor, Tensor]]):
    """Random inputs and targets [width] that must be decoded, batch by batch, before they can be used.

    Args:
        decode_seconds: per sample; the host does nothing else meanwhile.
        width: numbers per sample.
        samples: how many there are.
    """

    def __init__(self, decode_seconds: float = DECODE_SECONDS, *, width: int = WIDTH, samples: int = SAMPLES) -> None:
        generator = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(min(samples, STORED), width, generator=generator)
        self.decode_seconds, self.samples = decode_seconds, samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, targets = self.__getitems__([index])
        return inputs[0], targets[0]

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        """A whole batch at once, [len(indices), width] twice; DataLoader calls this where it is there."""
        time.sleep(self.decode_seconds * len(indices))
        inputs = self.inputs[torch.tensor(indices) % len(self.inputs)]
        return inputs, inputs


def as_it_is(batch: Any) -> Any:
    """The batch, which needs no collating; a function with a name, so that spawned workers find it."""
    return batch


def read_every_norm(every: int) -> Callable[[int, nn.Module, Tensor], object]:
    """Logging as one finds it: after every `every`-th step it reads the norm of each gradient, one by one."""

    def look(step: int, model: nn.Module, loss: Tensor) -> list[float]:
        if (step + 1) % every:
            return []
        norms = [parameter.grad.norm().item() for parameter in model.parameters() if parameter.grad is not None]
        return [loss.item(), *norms]

    return look


def make_job(settings: PipelineSettings, device: str = "cuda") -> TrainingJob:
    """The pipeline with these settings: LAYERS linear layers of WIDTH that learn to repeat what they see."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))).to(device)
    loader = DataLoader(
        EncodedSamples(),
        batch_size=settings.batch_size,
        num_workers=settings.num_workers,
        pin_memory=settings.pin_memory and device == "cuda",
        collate_fn=as_it_is,
        drop_last=True,
        persistent_workers=settings.num_workers > 0,
        prefetch_factor=4 if settings.num_workers else None,
    )
    return TrainingJob(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-3),
        loader=loader,
        batch_size=settings.batch_size,
        device=device,
        non_blocking=settings.pin_memory,
        after_step=read_every_norm(settings.log_every),
    )
