"""Given: what a trainer is made of: replica, optimizer, scheduler, scaler, log. Nothing to write here.

Not for training (trainer.py): nothing here makes a step.
"""

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from labkit.loader import ResumableLoader
from labkit.results import EpochResult, ValidationResult

from .config import TrainerConfig
from .schedule import make_scheduler
from .telling import Log, MetricSink

IGNORED = -100
"""A target that does not count, as for `torch.nn.functional.cross_entropy`."""
Batch = tuple[Tensor, Tensor]
"""Inputs and targets, on the CPU."""


def count_targets(targets: Tensor) -> int:
    """Given: how many samples (or tokens) the mean loss of a batch is over.

    Integer targets of any shape count one by one, IGNORED ones not at all; of numbers [N, ...] each of the N counts.
    """
    return len(targets) if targets.is_floating_point() else int(torch.count_nonzero(targets != IGNORED))


@dataclasses.dataclass
class Progress:
    """Given: what one rank has done of the current epoch."""

    loss_sum: Tensor
    """Mean losses of this rank's batches, each times the samples it is over: float64, on the device, where adding to it
    waits for nothing."""
    samples: int = 0
    """On this rank."""
    optimizer_steps: int = 0
    skipped_steps: int = 0


class TrainerParts:
    """Given: the parts of a `ProductionTrainer`, which says what the arguments are, and two small helpers."""

    def __init__(
        self,
        model: nn.Module,
        train_loader: ResumableLoader,
        val_loader: Iterable[Batch],
        config: TrainerConfig,
        *,
        criterion: Callable[[Tensor, Tensor], Tensor] | None = None,
        device: str | torch.device | None = None,
        monitor: MetricSink | None = None,
    ) -> None:
        self.device = torch.device(device) if device is not None else next(model.parameters()).device
        self.model = model.to(self.device)
        self.train_loader, self.val_loader, self.config = train_loader, val_loader, config
        self.criterion = criterion or nn.CrossEntropyLoss()
        self.rank, self.world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        if config.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS refuses
            torch.use_deterministic_algorithms(True)
        torch.manual_seed(config.seed + self.rank)
        self.replica: nn.Module = self.model
        if self.world_size > 1:
            gpu = [self.device.index] if self.device.type == "cuda" else None
            self.replica = DistributedDataParallel(self.model, device_ids=gpu)
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.parameters = parameters
        """Those that are trained: a walk through all modules, and once is enough."""
        self.optimizer: torch.optim.Optimizer = (
            torch.optim.AdamW(parameters, config.learning_rate, weight_decay=config.weight_decay)
            if config.optimizer == "adamw"
            else torch.optim.SGD(parameters, config.learning_rate, config.momentum, weight_decay=config.weight_decay)
        )
        self.scheduler = make_scheduler(
            self.optimizer,
            warmup_steps=config.warmup_steps,
            total_steps=config.epochs * -(-len(train_loader) // config.accumulation_steps),
            minimum_ratio=config.minimum_ratio,
        )
        self.dtype: torch.dtype = getattr(torch, config.dtype)
        self.scaler = torch.amp.GradScaler(
            self.device.type, init_scale=config.initial_scale, enabled=self.dtype == torch.float16
        )
        self.steps = 0
        self.progress = self.no_progress()
        self.next_epoch: int | None = None
        """The first epoch that is not complete; None before anything was trained or loaded."""
        self.epochs: list[EpochResult] = []
        self.validations: list[ValidationResult] = []
        """What `fit` has made, those before a resume included."""
        self.told_to_stop = False
        """Whether this process was; see `stopping`."""
        self.stopping = False
        """Whether any rank was told to stop: the same on all of them."""
        self.folder = Path(config.output_dir)
        self.log = Log(self.folder / "tensorboard", monitor)
        self.logged_at = time.perf_counter()
        """When the last step was logged, or the epoch began."""
        self.samples_since = 0
        """On all ranks."""

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        """Given: around the forward pass; does nothing for float32, not even enter an autocast that is off: 5 us."""
        if self.dtype == torch.float32:
            return contextlib.nullcontext()
        on: contextlib.AbstractContextManager[None] = torch.autocast(self.device.type, self.dtype)
        return on

    def no_progress(self) -> Progress:
        """Given: that of an epoch which has just begun."""
        return Progress(torch.zeros((), dtype=torch.float64, device=self.device))

    def sum_over_ranks(self, *numbers: float) -> list[float]:
        """Given: each number, summed over the ranks (float64). A collective: every rank must come."""
        if self.world_size == 1:
            return list(numbers)
        total = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return [float(number) for number in total.tolist()]
