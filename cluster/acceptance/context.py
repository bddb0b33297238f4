"""What a stage is given: who this rank is, its device, and how to say where it stands."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from cluster.acceptance.options import Options, Sizes
from labkit.device import Device


@dataclass(kw_only=True)
class Context:
    """One rank of the run."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    options: Options
    sizes: Sizes
    device: Device
    at: Callable[[str], None]
    """Tells the watchdog where this rank stands, before each thing that can hang. All ranks say the same in the same
    order."""
    planned_collectives: int = 0
    issued_collectives: int = 0
    kept: dict[str, Any] = field(default_factory=dict)
    """What one stage leaves for a later one of this rank."""

    @property
    def on_gpu(self) -> bool:
        """Whether this rank works on a GPU, real or virtual."""
        return self.device.torch_device == "cuda"

    @property
    def index(self) -> int:
        """CUDA's number of this rank's GPU: its local rank, or 0 where it is shown a single one of several.

        `srun --gpus-per-task=1` sets CUDA_VISIBLE_DEVICES so for each task.
        """
        bound = self.local_world_size > 1 and "CUDA_VISIBLE_DEVICES" in os.environ and torch.cuda.device_count() == 1
        return 0 if bound else self.local_rank

    @property
    def torch_device(self) -> torch.device:
        """The device of this rank."""
        return torch.device("cuda", self.index) if self.on_gpu else torch.device("cpu")

    def synchronize(self) -> None:
        """Wait until the device has nothing left to do."""
        if self.on_gpu:
            torch.cuda.synchronize()

    def has_fault(self, kind: str) -> bool:
        """Whether this fault was injected at this rank."""
        return any(fault.kind == kind and fault.rank == self.rank for fault in self.options.inject)
