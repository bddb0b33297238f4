"""CUDA events around every product; the CPU by a plain clock."""

import argparse
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from labkit import plotting
from labkit.device import open_device
from labkit.results import Comparison, MatmulResult, save_json

SIZES = (128, 512, 1024, 2048, 4096)


def _on_gpu(a, b, iterations, warmup):
    for _ in range(warmup):
        a @ b
    pairs = []
    for _ in range(iterations):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        a @ b
        end.record()
        pairs.append((begin, end))
    torch.cuda.synchronize()
    return median(begin.elapsed_time(end) for begin, end in pairs) / 1000


def _on_cpu(a, b, iterations, warmup):
    times = []
    for i in range(warmup + iterations):
        begin = perf_counter()
        a @ b
        if i >= warmup:
            times.append(perf_counter() - begin)
    return median(times)


def benchmark_matmul(device, size, iterations=100, *, dtype=torch.float32, warmup=10):
    if size < 1 or iterations < 1 or warmup < 0:
        raise ValueError("size and iterations must be positive, warmup must not be negative")
    a, b = (torch.rand((size, size), dtype=dtype).to(device) for _ in range(2))
    measure = _on_gpu if a.is_cuda else _on_cpu
    seconds = measure(a, b, iterations, warmup)
    name = str(dtype).split(".")[1]
    return MatmulResult(
        device=a.device.type,
        dtype=name,
        size=size,
        iterations=iterations,
        seconds=seconds,
        tflops=2e-12 * size**3 / seconds,
    )


def compare_cpu_gpu(sizes=SIZES, device="cuda", iterations=100, *, dtype=torch.float32, cpu_iterations=5):
    if str(device).startswith("cpu"):
        raise ValueError("a GPU is needed")
    rows = []
    for n in sizes:
        cpu = benchmark_matmul("cpu", n, cpu_iterations, dtype=dtype, warmup=1)
        gpu = benchmark_matmul(device, n, iterations, dtype=dtype)
        rows.append(Comparison(size=n, cpu=cpu, gpu=gpu, speedup=cpu.seconds / gpu.seconds))
    return rows


def find_crossover(comparisons):
    rows = sorted(comparisons, key=lambda row: row.size)
    for i, row in enumerate(rows):
        if all(later.speedup > 1 for later in rows[i:]):
            return row.size
    return None


def peak_share(result, peak_tflops):
    if peak_tflops <= 0:
        raise ValueError("a peak is above 0")
    return 2 * result.size**3 / result.seconds / (peak_tflops * 1e12)


def classify_bound(size, *, peak_tflops, bandwidth_bytes_per_second, launch_seconds, bytes_per_element=4):
    if not (size >= 1 and bytes_per_element >= 1 and peak_tflops > 0 and bandwidth_bytes_per_second > 0):
        raise ValueError("figures of a device are above 0")
    memory = 3 * size * size * bytes_per_element / bandwidth_bytes_per_second
    compute = 2 * size**3 / peak_tflops / 1e12
    if launch_seconds >= memory and launch_seconds >= compute:
        return "launch"
    return "memory" if memory >= compute else "compute"


def plot_speedup(comparisons, path):
    figure, (axis,) = plotting.new_figure("Speedup", x_label="size", y_label="speedup")
    comparisons = sorted(comparisons, key=lambda row: row.size)
    axis.loglog([row.size for row in comparisons], [row.speedup for row in comparisons], "s-")
    axis.plot([min(row.size for row in comparisons), max(row.size for row in comparisons)], [1, 1], ":")
    return plotting.save_png(figure, path)


def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--iterations", type=int, default=100)
    options = parser.parse_args(argv)
    with open_device(options.device, values=False) as device:
        rows = compare_cpu_gpu([int(part) for part in options.sizes.split(",")], iterations=options.iterations)
        save_json(options.out / "benchmark.json", rows, device.provenance())
        plot_speedup(rows, options.out / "speedup.png")
    return 0
