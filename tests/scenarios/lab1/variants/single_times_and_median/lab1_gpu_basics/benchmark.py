"""One time per product, each between two synchronisations, and NumPy's median; the reference's analysis is kept."""

from time import perf_counter_ns

import numpy as np
import torch

from labkit.results import MatmulResult

from . import reference
from .reference import (  # noqa: F401
    SIZES,
    classify_bound,
    find_crossover,
    peak_share,
    plot_speedup,
)


@torch.inference_mode()
def benchmark_matmul(device, size, iterations=100, *, dtype=torch.float32, warmup=10):
    if min(size, iterations) < 1 or warmup < 0:
        raise ValueError("size and iterations start at 1, warmup at 0")
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(size)
    operands = torch.randn(2, size, size, generator=generator, dtype=torch.float32).to(dtype).to(device)
    stream_done = torch.cuda.synchronize if operands.is_cuda else (lambda: None)
    times = np.empty(warmup + iterations)
    for index in range(warmup + iterations):
        stream_done()
        begin = perf_counter_ns()
        torch.bmm(operands[:1], operands[1:])
        stream_done()
        times[index] = 1e-9 * (perf_counter_ns() - begin)
    seconds = np.median(times[warmup:])
    return MatmulResult(
        device=torch.device(device).type,
        dtype=str(dtype).rpartition(".")[2],
        size=size,
        iterations=iterations,
        seconds=seconds,
        tflops=np.float64(2) * size**3 / seconds / 1e12,
    )


def compare_cpu_gpu(*arguments, **options):
    reference.benchmark_matmul = benchmark_matmul
    return reference.compare_cpu_gpu(*arguments, **options)


def main(argv=None):
    reference.benchmark_matmul = benchmark_matmul
    return reference.main(argv)
