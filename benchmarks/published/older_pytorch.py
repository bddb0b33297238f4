"""Kernels as PyTorch had them before version 2.8, for tables that are older than that.

Not here: how long they take (`vgpu.runtime.operations.traffic`), and which rows of a table ran them
(`benchmarks.published.held_out`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from vgpu.runtime.operations import traffic

_LOSS_THREADS = 32


@contextmanager
def before_2_8() -> Iterator[None]:
    """Select rows element by element, and add up a loss of classes by one warp.

    Both changed in the spring of 2025 (pytorch/pytorch issue 151612, pull request 149548).
    """
    now = traffic.VECTORS_IN_GATHER, traffic.MOST_LOSS_THREADS
    traffic.VECTORS_IN_GATHER, traffic.MOST_LOSS_THREADS = False, _LOSS_THREADS
    try:
        yield
    finally:
        traffic.VECTORS_IN_GATHER, traffic.MOST_LOSS_THREADS = now
