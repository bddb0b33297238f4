"""A virtual GPU per test, and the arithmetic of the caching allocator written out by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import vgpu

from .jobs import Job


@pytest.fixture
def gpu() -> Iterator[vgpu.VirtualGPU]:
    """A T4 with real values."""
    with vgpu.attach("T4") as attached:
        yield attached


@pytest.fixture
def shapes() -> Iterator[vgpu.VirtualGPU]:
    """An A100 with shapes only."""
    with vgpu.attach("A100-80GB", values=False) as attached:
        yield attached


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """`job(work)` runs `work(rank)` on every rank of a distributed job."""
    return Job(tmp_path)


def rounded(*sizes: int) -> int:
    """Bytes that tensors of these sizes occupy: each rounded up to 512 (CUDACachingAllocator.cpp, kMinBlockSize)."""
    return sum(-(-size // 512) * 512 for size in sizes)
