"""What the probes of this exercise share: ranks that have met, each on a virtual GPU of its own."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, cast

import torch

from gradebox.sandbox.probe_loader import Student
from grader.sharding.shared.cases import Collective
from grader.shared.probes.kept import function
from grader.shared.probes.ranks import group
from grader.shared.probes.record import Reported, memory_since_now, reading

if TYPE_CHECKING:
    from vgpu.runtime.gpu import VirtualGPU


@contextlib.contextmanager
def on_own_gpu(student: Student) -> Iterator[VirtualGPU]:
    """All ranks in one group of NCCL; yields this rank's virtual GPU, which is the current one."""
    torch.cuda.set_device(student.rank)
    with group(student, backend="nccl"):
        gpu: VirtualGPU = student.gpu.machine.gpus[student.rank]
        yield gpu


class Memory:
    """Bytes of tensors on this rank's GPU that somebody can still reach, without cuBLAS's workspace, and on others.

    In this process a number stands for each: the judge alone gets what the record of the GPU says.
    """

    def __init__(self, gpu: VirtualGPU) -> None:
        _clear()
        self._here = memory_since_now(gpu)
        self._elsewhere = [memory_since_now(other) for other in gpu.machine.gpus if other is not gpu]

    def added(self) -> Reported:
        """The most that was held here beyond what was at the beginning."""
        return self._here.added()

    def held(self) -> Reported:
        """What is held here now beyond that."""
        _clear()
        return self._here.held()

    def elsewhere(self) -> list[Reported]:
        """The most that was held on each other rank's GPU, as this process sees it."""
        return [memory.added() for memory in self._elsewhere]


def _heap() -> Callable[[], int | None]:
    """Has `ctypes` for itself: no global of a module leads there."""
    import ctypes

    class MallocInfo(ctypes.Structure):
        """What glibc says of its heaps, mallinfo(3)."""

        _fields_ = tuple(
            (name, ctypes.c_size_t)
            for name in (
                *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
                *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
            )
        )

    try:
        look = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):  # another C library
        return lambda: None
    look.restype = MallocInfo

    def in_use() -> int:
        gc.collect()
        heaps = look()
        return int(heaps.uordblks + heaps.hblkhd)

    return in_use


host_bytes = function(_heap())
"""Bytes of the host's memory that are in use, whatever they are of; None if nobody counts them. The values of a virtual
GPU are among them."""


def _clear() -> None:
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()


def recorded(gpu: VirtualGPU, begin: int, end: int | None = None) -> list[Collective]:
    """What ranks sent each other between two marks of the virtual GPU's record, or from one until now.

    In this process a number stands for it: the judge alone gets what the record says.
    """
    return cast("list[Collective]", reading(gpu, "collectives", begin, end))
