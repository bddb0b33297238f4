"""A class per idea, einsum for the product, torch.accelerator for waiting, NumPy for the analysis."""

from __future__ import annotations

import argparse
import pathlib
import time
from dataclasses import asdict, dataclass, field

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from labkit.device import is_simulated, open_device
from labkit.results import Comparison, MatmulResult, save_json

SIZES = (128, 512, 1024, 2048, 4096)


@dataclass
class Stopwatch:
    device: torch.device
    laps: list[float] = field(default_factory=list)

    def _settle(self) -> None:
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def __enter__(self) -> Stopwatch:
        self._settle()
        self._begin = time.time()
        return self

    def __exit__(self, *exception: object) -> None:
        self._settle()
        self.laps.append(time.time() - self._begin)


class MatmulBenchmark:
    def __init__(self, device, size, dtype):
        self.device = torch.device(device)
        with self.device:
            self.a = torch.randn(size, size).to(dtype)
            self.b = torch.randn(size, size).to(dtype)
        self.size = size

    def product(self):
        return torch.einsum("ij,jk->ik", self.a, self.b)

    def run(self, iterations, warmup):
        for _ in range(warmup):
            self.product()
        watch = Stopwatch(self.device)
        lengths = [len(part) for part in np.array_split(np.arange(iterations), min(iterations, 9))]
        for length in lengths:
            with watch:
                for _ in range(length):
                    self.product()
        return np.median(np.divide(watch.laps, lengths))


def benchmark_matmul(device, size, iterations=100, *, dtype=torch.float32, warmup=10):
    for name, value, least in (("size", size, 1), ("iterations", iterations, 1), ("warmup", warmup, 0)):
        if value < least:
            raise ValueError(f"{name} must be at least {least}")
    benchmark = MatmulBenchmark(device, size, dtype)
    seconds = benchmark.run(iterations, warmup)
    return MatmulResult(
        device=str(benchmark.a.device.type),
        dtype=str(dtype).removeprefix("torch."),
        size=size,
        iterations=iterations,
        seconds=float(seconds),
        tflops=float(2 * size**3 / seconds * 1e-12),
    )


def compare_cpu_gpu(sizes=SIZES, device="cuda", iterations=100, *, dtype=torch.float32, cpu_iterations=10):
    if torch.device(device).type == "cpu":
        raise ValueError("nothing to compare")

    def rows():
        for size in sizes:
            sides = [
                benchmark_matmul(where, size, count, dtype=dtype)
                for where, count in (("cpu", cpu_iterations), (device, iterations))
            ]
            yield Comparison(size=size, cpu=sides[0], gpu=sides[1], speedup=sides[0].seconds / sides[1].seconds)

    return tuple(rows())


def find_crossover(comparisons):
    sizes = np.array([row.size for row in comparisons])
    order = np.argsort(sizes)
    wins = np.array([row.speedup > 1 for row in comparisons])[order]
    tail = np.logical_and.accumulate(wins[::-1])[::-1]
    return sizes[order][tail][0] if tail.any() else None


def peak_share(result, peak_tflops):
    if not peak_tflops > 0:
        raise ValueError(peak_tflops)
    return np.float64(result.tflops) / peak_tflops


def classify_bound(size, *, peak_tflops, bandwidth_bytes_per_second, launch_seconds, bytes_per_element=4):
    if min(size, bytes_per_element) < 1 or min(peak_tflops, bandwidth_bytes_per_second) <= 0:
        raise ValueError("below the least")
    names = np.array(["launch", "memory", "compute"])
    limits = [
        launch_seconds,
        3 * size**2 * bytes_per_element / bandwidth_bytes_per_second,
        2 * size**3 / peak_tflops / 1e12,
    ]
    return names[np.argmax(limits)]


def plot_speedup(comparisons, path):
    figure = Figure(figsize=(5, 4))
    FigureCanvasAgg(figure)
    axis = figure.add_subplot()
    axis.bar([str(row.size) for row in comparisons], [row.speedup for row in comparisons])
    axis.axhline(1.0)
    axis.set(xlabel="size", ylabel="speedup", yscale="log")
    if is_simulated():
        axis.set_title("simulated")
    figure.savefig(path)
    return pathlib.Path(path)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", default=str(pathlib.Path(__file__).with_name("results")))
    parser.add_argument("--sizes", default=SIZES, type=lambda text: [int(part) for part in text.split(",")])
    parser.add_argument("--iterations", default=100, type=int)
    options = parser.parse_args(argv)
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    with open_device(options.device, values=False) as device:
        rows = compare_cpu_gpu(options.sizes, iterations=options.iterations)
        save_json(out / "benchmark.json", rows, device.provenance())
        plot_speedup(rows, out / "speedup.png")
    print(*map(asdict, rows), sep="\n")
    return 0
