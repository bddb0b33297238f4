"""CUDA events around blocks, begun and ended by hand; the rest of the reference is kept."""

from __future__ import annotations

import time
from contextlib import ExitStack

import torch

from labkit.results import MatmulResult

from . import kept_benchmark
from .kept_benchmark import (  # noqa: F401
    SIZES,
    classify_bound,
    find_crossover,
    peak_share,
    plot_speedup,
)


class HostLap:
    """A lap by the host's clock."""

    def __enter__(self):
        self.began = time.perf_counter_ns()
        return self

    def __exit__(self, *error):
        self.took = time.perf_counter_ns() - self.began

    def seconds(self):
        return self.took / 1_000_000_000


class DeviceLap:
    """A lap by the device's own clock."""

    def __enter__(self):
        torch.cuda.current_stream().synchronize()
        self.began = torch.cuda.Event(enable_timing=True)
        self.ended = torch.cuda.Event(enable_timing=True)
        self.began.record()
        return self

    def __exit__(self, *error):
        self.ended.record()
        self.ended.synchronize()

    def seconds(self):
        return self.began.elapsed_time(self.ended) / 1_000


def benchmark_matmul(device, size, iterations=100, *, dtype=torch.float32, warmup=10):
    if not (size > 0 and iterations > 0 and warmup >= 0):
        raise ValueError("what is there to measure?")
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        left = torch.eye(size, dtype=dtype, device=device)
        right = torch.ones_like(left)
        out = torch.zeros_like(left)
        lap = DeviceLap if left.device.type == "cuda" else HostLap
        for _ in range(warmup):
            torch.matmul(left, right, out=out)
        times = []
        for block in torch.arange(iterations).tensor_split(min(iterations, 7)):
            current = lap()
            current.__enter__()
            for _ in range(block.numel()):
                torch.matmul(left, right, out=out)
            current.__exit__(None, None, None)
            times.append(current.seconds() / block.numel())
    seconds = torch.tensor(times, dtype=torch.float64).quantile(0.5).item()
    return MatmulResult(
        device=left.device.type,
        dtype=repr(dtype).replace("torch.", ""),
        size=size,
        iterations=iterations,
        seconds=seconds,
        tflops=2 * (size / 1e4) ** 3 / seconds,
    )


def compare_cpu_gpu(*arguments, **options):
    kept_benchmark.benchmark_matmul = benchmark_matmul
    return kept_benchmark.compare_cpu_gpu(*arguments, **options)


def main(argv=None):
    kept_benchmark.benchmark_matmul = benchmark_matmul
    return kept_benchmark.main(argv)
