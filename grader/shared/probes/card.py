"""Probes of a real card: how fast it multiplies and how much memory it has. No code of a submission is there.

Not here: whether its pace is even (`pace`), and what checks make of the answers (`grader.shared.cards`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import torch

from gradebox.sandbox.measuring import measures
from gradebox.sandbox.probe_loader import Student
from grader.shared.cases import CardReply, MeasureCard

_SIZE = 2049
"""Odd, as most sizes are that checks draw: an odd size takes another path through the library. Large enough that a
launch is little beside the product; the slowest card takes half a second for it in float64."""
_SECONDS = 0.05
"""Of products in each dtype: an idle card needs some of it to raise its clock."""
_WAKE_SECONDS = 0.1
_FEWEST = 3
DTYPES = ("float32", "float16", "bfloat16", "float64")


@measures("time", "device memory")
def measured(student: Student, inputs: MeasureCard) -> CardReply:
    """Floating-point operations per second of a square product by dtype (`flops`), and the card's memory."""
    flops = {dtype: _flops(getattr(torch, dtype)) for dtype in DTYPES}
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return CardReply(flops=flops, free_bytes=free, memory_bytes=total)


def _flops(dtype: torch.dtype) -> float:
    matrix = torch.ones(_SIZE, _SIZE, device="cuda", dtype=dtype)
    took: list[float] = []
    with full_precision():
        begun = time.perf_counter()
        while len(took) < _FEWEST or time.perf_counter() - begun < _SECONDS:
            torch.cuda.synchronize()
            start = time.perf_counter()
            torch.mm(matrix, matrix)
            torch.cuda.synchronize()
            took.append(time.perf_counter() - start)
    return 2 * _SIZE**3 / min(took)


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Float32 products in the block are float32, even if a submission has switched on TF32."""
    settings = torch.backends.cuda.matmul
    before = settings.fp32_precision
    settings.fp32_precision = "ieee"
    try:
        yield
    finally:
        settings.fp32_precision = before


def wake() -> None:
    """Let the card's clock rise, without a product: libraries stay as cold as they were."""
    matrix = torch.ones(_SIZE, _SIZE, device="cuda")
    begun = time.perf_counter()
    while time.perf_counter() - begun < _WAKE_SECONDS:
        torch.cos(matrix)
        torch.cuda.synchronize()
