"""Probes of Lab 5's tuning: what the student measures of settings, and which of them it takes.

Everything here runs on a virtual GPU with shapes only; times are simulated.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from grader.shared.probes.support import fields, sequence
from labkit.profiling import TrainingJob
from labkit.results import PipelineSettings, TuningPoint

TUNING = "lab5_production.tuning"


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


def _maker(
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


def tuned(
    student: Any, *, maker: dict[str, Any], settings: Sequence[dict[str, Any]], steps: int, warmup: int
) -> dict[str, Any]:
    """`tune` over settings, and the bytes on the GPU whenever a job was asked for.

    Without workspaces: before torch 2.15 PyTorch keeps those of cuBLAS, whoever multiplied first.
    """
    module, make, held = student.module(TUNING), _maker(**maker), []
    _use_everything_once(make)

    def watched(each: PipelineSettings) -> TrainingJob:
        by_category = student.gpu.memory_by_category()
        held.append(sum(size for name, size in by_category.items() if name != "workspaces"))
        return make(each)

    points = sequence(
        module.tune(watched, [PipelineSettings(**each) for each in settings], steps=steps, warmup=warmup), "tune()"
    )
    return {"points": [fields(point, TuningPoint, "tune()") for point in points], "held": held}


def tuned_truth(
    student: Any, *, maker: dict[str, Any], settings: Sequence[dict[str, Any]], steps: int, warmup: int
) -> dict[str, Any]:
    """Settings measured by ourselves: samples per second, and how busy the GPU's own timeline says it is."""
    make, points = _maker(**maker), []
    _use_everything_once(make)
    for each in settings:
        points.append(_measured(make(PipelineSettings(**each)), student.gpu, steps, warmup))
        gc.collect()
        torch.cuda.empty_cache()
    return {"points": points}


def _use_everything_once(make: Callable[[PipelineSettings], TrainingJob]) -> None:
    """What a process pays for the first use of an operation is nobody's figure, whatever is measured first."""
    job = make(PipelineSettings())
    job.train(0, *next(job.batches()))
    torch.cuda.synchronize()


def _measured(job: TrainingJob, gpu: Any, steps: int, warmup: int) -> dict[str, float]:
    batches = job.batches()
    start = 0.0
    for step in range(warmup + steps):
        if step == warmup:
            torch.cuda.synchronize()
            start = gpu.now()
        job.train(step, *next(batches))
    torch.cuda.synchronize()
    seconds = gpu.now() - start
    busy = sum(kernel.seconds for kernel in gpu.timeline if kernel.start >= start and "Memcpy" not in kernel.name)
    return {"samples_per_second": steps * job.batch_size / seconds, "utilization": busy / seconds}


def chosen(student: Any, *, points: Sequence[dict[str, Any]], tolerances: Sequence[float | None]) -> dict[str, Any]:
    """`choose` among made-up points, with each tolerance; and among none."""
    module = student.module(TUNING)
    made = [TuningPoint(**{**each, "settings": PipelineSettings(**each["settings"])}) for each in points]
    best = []
    for tolerance in tolerances:
        options = {} if tolerance is None else {"tolerance": tolerance}
        best.append(fields(module.choose(made, **options), TuningPoint, "choose()"))
    try:
        module.choose([])
    except ValueError:
        return {"best": best, "refused": True}
    except Exception:
        return {"best": best, "refused": False}
    return {"best": best, "refused": False}
