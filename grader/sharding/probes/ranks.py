"""What the probes of this exercise share: ranks that have met, each on a virtual GPU of its own. No answers here."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import torch

from grader.shared.probes.ranks import group


@contextlib.contextmanager
def on_own_gpu(student: Any) -> Iterator[Any]:
    """All ranks in one group of NCCL; yields this rank's virtual GPU, which is the current one."""
    torch.cuda.set_device(student.rank)
    with group(student, backend="nccl"):
        yield student.gpu.machine.gpus[student.rank]


def allocated() -> int:
    """Bytes of tensors that somebody can still reach, without cuBLAS's workspace."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    return int(torch.cuda.memory_allocated())
