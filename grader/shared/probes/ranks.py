"""What the probes of several labs that run in ranks have in common: meeting, samples by number, a full disk.

Imports nothing of `grader`: samples and losses of this module are handed to submissions.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import itertools
import os
import resource
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import Dataset

if TYPE_CHECKING:
    from gradebox.sandbox.probe_loader import Student

TIMEOUT_SECONDS = 10.0
"""How long a rank waits for one that does not come; a right solution never waits longer than a slow machine needs."""
GPU_TIMEOUT_SECONDS = 30.0
"""The same where ranks start a real GPU first: without persistence mode its driver alone may need ten seconds."""


class Indexed(Dataset[tuple[Tensor, Tensor]]):
    """Samples by number."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        # Cut up once: to index a tensor for each sample takes longer than all else that is done with it.
        self._samples = list(zip(inputs.unbind(), targets.unbind(), strict=True))

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._samples[index]


def half_squares(outputs: Tensor, targets: Tensor) -> Tensor:
    """Half the squared distance, mean over samples."""
    return 0.5 * (outputs - targets).square().sum(dim=1).mean()


def failing_loss(
    usual: Callable[[Tensor, Tensor], Tensor], at: int, message: str, error: str
) -> Callable[[Tensor, Tensor], Tensor]:
    """The usual loss, of which the call number `at` and all later ones raise this built-in exception."""
    calls = itertools.count(1)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        if next(calls) >= at:
            raise getattr(builtins, error)(message)
        return usual(outputs, targets)

    return loss


def numbered(inputs: Tensor) -> Tensor:
    """Each sample's number before its values, in float64."""
    return torch.cat([torch.arange(len(inputs), dtype=torch.float64).unsqueeze(1), inputs.double()], dim=1)


@contextlib.contextmanager
def group(student: Student, name: str = "ours", *, backend: str = "gloo") -> Iterator[None]:
    """A process group that the probe makes, for what is judged without the student's `setup`."""
    dist.init_process_group(
        backend,
        init_method=f"{student.rendezvous}-{name}",
        rank=student.rank,
        world_size=student.ranks,
        timeout=timedelta(seconds=TIMEOUT_SECONDS),
    )
    yield
    dist.destroy_process_group()


@contextlib.contextmanager
def full_disk(disk_bytes: int, room: int) -> Iterator[None]:
    """The disk of the working directory is full but for `room` bytes: writing fails in the middle, whoever writes.

    Args:
        disk_bytes: that a check has given to this run. Where the disk has another size, it is not the run's own; then
            no file can grow beyond `room` bytes.
        room: in bytes.
    """
    if not _is_own_disk(disk_bytes):
        with _no_file_beyond(room):
            yield
        return
    # A file without a name, of which nobody is told; it goes with its descriptor.
    filler = os.open(".", os.O_TMPFILE | os.O_RDWR)
    try:
        while not _filled(filler, room):
            time.sleep(0.01)  # another rank is writing
        yield
    finally:
        os.close(filler)


def _filled(filler: int, room: int) -> bool:
    """Let a file take all of the disk but `room` bytes; false if somebody else has taken some of it meanwhile."""
    status = os.statvfs(".")
    try:
        os.posix_fallocate(filler, 0, max(1, status.f_bavail - room // status.f_frsize) * status.f_frsize)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False
    return True


def _is_own_disk(size: int) -> bool:
    status = os.statvfs(".")
    return hasattr(os, "O_TMPFILE") and status.f_blocks * status.f_frsize == size


@contextlib.contextmanager
def _no_file_beyond(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
