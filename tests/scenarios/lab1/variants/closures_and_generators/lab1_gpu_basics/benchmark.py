"""Functions that make functions; measurements come out of a generator."""

import functools
import itertools
import statistics
import sys
import time
from pathlib import Path

import torch

from labkit import plotting, program
from labkit.device import open_device
from labkit.results import Comparison, MatmulResult, save_json

RESULTS = Path(__file__).parent / "results"
SIZES = (128, 512, 1024, 2048, 4096)


def waiter(device):
    return functools.partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None


def multiplier(size, device, dtype):
    left, right = (torch.randn(size, size).to(device=device, dtype=dtype) for _ in range(2))

    def multiply():
        return left @ right

    return multiply


def laps(multiply, wait, lengths):
    for length in lengths:
        wait()
        begin = time.monotonic()
        for _ in itertools.repeat(None, length):
            multiply()
        wait()
        yield (time.monotonic() - begin) / length


def lengths_of(iterations, parts=6):
    ends = [round(iterations * k / min(parts, iterations)) for k in range(min(parts, iterations) + 1)]
    return [after - before for before, after in itertools.pairwise(ends)]


def at_least(least, **values):
    for name, value in values.items():
        if value < least:
            raise ValueError(f"{name} is {value}, less than {least}")


def above_zero(**values):
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"{name} is {value}")


def benchmark_matmul(device, size, iterations=100, *, dtype=torch.float32, warmup=10):
    at_least(1, size=size, iterations=iterations)
    at_least(0, warmup=warmup)
    device = torch.device(device)
    multiply, wait = multiplier(size, device, dtype), waiter(device)
    for _ in range(warmup):
        multiply()
    seconds = statistics.median(laps(multiply, wait, lengths_of(iterations)))
    return MatmulResult(
        device=device.type,
        dtype=str(dtype)[len("torch.") :],
        size=size,
        iterations=iterations,
        seconds=seconds,
        tflops=size * size * (2 * size) / (seconds * 1e12),
    )


def compare_cpu_gpu(sizes=SIZES, device="cuda", iterations=100, *, dtype=torch.float32, cpu_iterations=5):
    if "cpu" in str(device):
        raise ValueError("CPU against CPU")
    at_least(1, iterations=iterations, cpu_iterations=cpu_iterations, **{f"size {n}": n for n in sizes})

    def side(where, count):
        return [benchmark_matmul(where, size, count, dtype=dtype, warmup=2) for size in sizes]

    return [
        Comparison(size=cpu.size, cpu=cpu, gpu=gpu, speedup=cpu.seconds / gpu.seconds)
        for cpu, gpu in zip(side("cpu", cpu_iterations), side(device, iterations), strict=True)
    ]


def find_crossover(comparisons):
    downwards = sorted(((one.size, one.speedup) for one in comparisons), reverse=True)
    return min((size for size, _ in itertools.takewhile(lambda pair: pair[1] > 1, downwards)), default=None)


def peak_share(result, peak_tflops):
    above_zero(peak_tflops=peak_tflops)
    return result.tflops / peak_tflops


def classify_bound(size, *, peak_tflops, bandwidth_bytes_per_second, launch_seconds, bytes_per_element=4):
    at_least(1, size=size, bytes_per_element=bytes_per_element)
    above_zero(peak_tflops=peak_tflops, bandwidth_bytes_per_second=bandwidth_bytes_per_second)
    limits = (
        launch_seconds,
        bytes_per_element * size**2 * 3 / bandwidth_bytes_per_second,
        size**3 * 2 / 1e12 / peak_tflops,
    )
    return ("launch", "memory", "compute")[limits.index(max(limits))]


def plot_speedup(comparisons, path):
    figure, (axis,) = plotting.new_figure("Speedup", x_label="size", y_label="CPU time / GPU time")
    axis.scatter([one.size for one in comparisons], [one.speedup for one in comparisons])
    axis.hlines([1], *axis.get_xlim())
    axis.set(xscale="log", yscale="log")
    return plotting.save_png(figure, path)


def main(argv=None):
    parser = program.make_parser(__doc__, results=RESULTS)
    parser.add_argument("--sizes", type=program.positive_ints, default=SIZES)
    parser.add_argument("--iterations", type=program.positive_int, default=100)
    options = parser.parse_args(argv)
    with open_device(options.device, values=False) as device:
        rows = compare_cpu_gpu(options.sizes, device.torch_device, options.iterations)
        program.print_written(
            save_json(options.out / "benchmark.json", rows, device.provenance()),
            plot_speedup(rows, options.out / "speedup.png"),
        )
    return 0


if __name__ == "__main__":
    sys.exit(program.run(main))
