"""torch.utils.benchmark does the timing: it warms up and synchronises by itself."""

import statistics

import torch
import torch.utils.benchmark as bench

from labkit.results import MatmulResult

from . import reference
from .reference import (  # noqa: F401
    SIZES,
    classify_bound,
    find_crossover,
    peak_share,
    plot_speedup,
)


def benchmark_matmul(device, size, iterations=100, *, dtype=torch.float32, warmup=10):
    if size < 1 or iterations < 1 or warmup < 0:
        raise ValueError("size and iterations start at 1, warmup at 0")
    left = torch.empty(size, size, device=device, dtype=dtype).uniform_(-1, 1)
    right = torch.empty_like(left).uniform_(-1, 1)
    timer = bench.Timer("torch.mm(left, right)", globals={"torch": torch, "left": left, "right": right})
    if warmup:
        timer.timeit(warmup)
    blocks = min(iterations, 5)
    lengths = [iterations // blocks] * (blocks - 1)
    measured = [timer.timeit(length) for length in [*lengths, iterations - sum(lengths)]]
    seconds = statistics.median(measurement.median for measurement in measured)
    return MatmulResult(
        device=left.device.type,
        dtype=str(dtype).replace("torch.", ""),
        size=size,
        iterations=iterations,
        seconds=seconds,
        tflops=2 * size**3 / seconds / 1e12,
    )


def compare_cpu_gpu(*arguments, **options):
    reference.benchmark_matmul = benchmark_matmul
    return reference.compare_cpu_gpu(*arguments, **options)


def main(argv=None):
    reference.benchmark_matmul = benchmark_matmul
    return reference.main(argv)
