"""Task 1.2: time matrix products on the CPU and on the GPU, and say what limits them.

Not for memory (memory_profiling.py) nor for finding the slow operation of a model (profiler.py).

Run: python -m labs.lab1_gpu_basics.benchmark
"""

import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial, reduce
from itertools import repeat, takewhile
from pathlib import Path
from typing import Literal

import torch
from matplotlib.collections import LineCollection

from labkit import plotting, program
from labkit.device import Device, open_device
from labkit.progress import track
from labkit.results import Comparison, MatmulResult, save_json

from .pipes import consume, insist, insist_at_least, insist_positive, kind_of, name_of, timer, times

RESULTS = Path(__file__).parent / "results"
SIZES = (128, 512, 1024, 2048, 4096)


def benchmark_matmul(
    device: str | torch.device,
    size: int,
    iterations: int = 100,
    *,
    dtype: torch.dtype = torch.float32,
    warmup: int = 10,
) -> MatmulResult:
    """Time the product of two `size` x `size` matrices (random ones, say), and nothing but the product.

    A GPU works asynchronously: `a @ b` only puts the product into a queue and returns. So the device must be idle when
    the clock is started (else earlier work is counted) and idle again before it is stopped (else the product is not).
    The first products on a device also pay for loading libraries and choosing kernels: hence the warm-up.

    Args:
        device: "cpu" or "cuda", perhaps with the GPU's index ("cuda:0"), as a text or as a `torch.device`.
        size: rows and columns of both operands, shape [size, size].
        iterations: products to time, in all measurements together; 1 is legal.
        dtype: element type of the operands. They are created on the device in this type before the clock starts.
        warmup: products before the first timed one; 0 is legal.

    Returns:
        A `MatmulResult`. `seconds` is the *median* of the seconds per product over repeated measurements, so that one
        disturbed product does not spoil the result: time the products singly or in blocks, at least five measurements
        when `iterations` is at least 5. Seconds are those that pass (wall time), not those of a busy processor.
        `tflops` is 2 size^3 / seconds / 1e12. `iterations` is the number of timed products: that many, also where
        blocks of one length do not add up to it. `device` is the device's type alone ("cuda"), `dtype` a name such as
        "float32".

    Raises:
        ValueError: `size` or `iterations` is below 1, or `warmup` below 0.

    Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution
    """
    insist_at_least(1, size=size, iterations=iterations)
    insist_at_least(0, warmup=warmup)
    product = partial(torch.matmul, *torch.rand(2, size, size, device=device, dtype=dtype).unbind())
    times(warmup, product)
    with ThreadPoolExecutor(max_workers=1) as one_by_one:
        seconds = statistics.median(one_by_one.map(timer(device), repeat(product, iterations)))
    return MatmulResult(
        device=kind_of(device),
        dtype=name_of(dtype),
        size=size,
        iterations=iterations,
        seconds=seconds,
        tflops=2 * size**3 / seconds / 1e12,
    )


def compare_cpu_gpu(
    sizes: Sequence[int] = SIZES,
    device: str = "cuda",
    iterations: int = 100,
    *,
    dtype: torch.dtype = torch.float32,
    cpu_iterations: int = 5,
) -> list[Comparison]:
    """Time the same products on the CPU and on a GPU.

    Args:
        sizes: rows and columns of the operands, one comparison each.
        device: the GPU, "cuda", perhaps with its index ("cuda:0").
        iterations: timed products per size on the GPU.
        dtype: on both sides. CPUs are very slow in float16.
        cpu_iterations: timed products per size on the CPU: fewer by default, because a large one takes a second.

    Returns:
        One `Comparison` per size, in the order of `sizes`; `speedup` is CPU seconds / GPU seconds.

    Raises:
        ValueError: `device` is "cpu" (there is nothing to compare), or a number is below 1.
    """
    insist(kind_of(device) != "cpu", "the CPU cannot be compared with itself")
    insist_at_least(1, iterations=iterations, cpu_iterations=cpu_iterations)
    consume(insist_at_least(1, size=size) for size in sizes)
    on_cpu = partial(benchmark_matmul, "cpu", iterations=cpu_iterations, dtype=dtype, warmup=2)
    on_gpu = partial(benchmark_matmul, device, iterations=iterations, dtype=dtype)
    return [
        Comparison(size=size, cpu=cpu, gpu=gpu, speedup=cpu.seconds / gpu.seconds)
        for size, cpu, gpu in ((size, on_cpu(size), on_gpu(size)) for size in sizes)
    ]


def find_crossover(comparisons: Sequence[Comparison]) -> int | None:
    """Find the size from which on the GPU pays.

    Args:
        comparisons: one per size, in any order; perhaps none at all.

    Returns:
        The smallest measured size for which, and for every larger measured size, the GPU is faster (speedup above 1);
        None if there is none. A lucky small size below a slower one does not count.
    """
    downwards = sorted(comparisons, key=lambda one: -one.size)
    return reduce(lambda _, one: one.size, takewhile(lambda one: one.speedup > 1, downwards), None)


def peak_share(result: MatmulResult, peak_tflops: float) -> float:
    """How much of the device's peak a product reached.

    Args:
        result: a measurement.
        peak_tflops: what the data sheet promises for the dtype of that measurement.

    Returns:
        The ratio of measured to peak TFLOPS, 1.0 at the peak (not percent), and more where a product was faster than
        the data sheet promises.

    Raises:
        ValueError: `peak_tflops` is not above 0.
    """
    insist_positive(peak_tflops=peak_tflops)
    return result.tflops / peak_tflops


def classify_bound(
    size: int,
    *,
    peak_tflops: float,
    bandwidth_bytes_per_second: float,
    launch_seconds: float,
    bytes_per_element: int = 4,
) -> Literal["launch", "memory", "compute"]:
    """Say what a `size` x `size` product must wait for, from the figures of the device alone.

    The roofline model: three times are needed whatever the program does, and the longest one decides.
    - launch: `launch_seconds`, to put one kernel into the queue;
    - memory: 3 size^2 bytes_per_element / bandwidth, to read two matrices and write one;
    - compute: 2 size^3 / peak, for the multiplications and additions.

    Args:
        size: rows and columns of both operands.
        peak_tflops: peak of the dtype, 1e12 operations per second.
        bandwidth_bytes_per_second: of the device's memory.
        launch_seconds: host time of one launch.
        bytes_per_element: 4 for float32, 2 for float16.

    Returns:
        "launch", "memory" or "compute": the longest of the three times; of equal ones the first in this order.

    Raises:
        ValueError: `size` or `bytes_per_element` is below 1, or a peak or bandwidth is not above 0.

    Source: Williams, Waterman, Patterson: "Roofline", Communications of the ACM 52(4), 2009.
    """
    insist_at_least(1, size=size, bytes_per_element=bytes_per_element)
    insist_positive(peak_tflops=peak_tflops, bandwidth_bytes_per_second=bandwidth_bytes_per_second)
    needed = {
        "launch": launch_seconds,
        "memory": 3 * size**2 * bytes_per_element / bandwidth_bytes_per_second,
        "compute": 2 * size**3 / (peak_tflops * 1e12),
    }
    return max(needed, key=needed.__getitem__)


def plot_speedup(comparisons: Sequence[Comparison], path: Path | str) -> Path:
    """Plot the speedup over the matrix size, with a line at 1 where CPU and GPU are equally fast.

    Args:
        comparisons: one per size, in any order; a line that joins them goes from the smallest size to the largest.
        path: the PNG file to write.

    Returns:
        The path written, as it was given.

    Raises:
        OSError: the file cannot be written.
    """
    figure, (axis,) = plotting.new_figure(
        "Speedup of a matrix product", x_label="matrix size", y_label="CPU time / GPU time"
    )
    points = sorted((one.size, one.speedup) for one in comparisons)
    sizes = [size for size, _ in points]
    axis.set(xscale="log", yscale="log")
    axis.scatter(*zip(*points, strict=True), marker="s", color=plotting.COLORS[1], label="speedup")
    axis.add_collection(LineCollection([points], colors=plotting.COLORS[1]))
    axis.axline((sizes[0], 1), (2 * sizes[-1], 1), color=plotting.INK, linestyle="dotted", label="as fast as the CPU")
    axis.set_xticks(sizes, list(map(str, sizes)))
    axis.legend()
    return plotting.save_png(figure, path)


def main(argv: Sequence[str] | None = None) -> int:
    """Compare CPU and GPU over all sizes; print a table; write OUT/benchmark.json and OUT/speedup.png.

    With `--device cpu` there is nothing to compare: the CPU's times alone are measured and written, without a plot.

    Returns:
        0.
    """
    parser = program.make_parser(__doc__ or "", results=RESULTS)
    parser.add_argument("--sizes", type=program.positive_ints, default=SIZES, metavar="N,N", help="matrix sizes")
    parser.add_argument("--iterations", type=program.positive_int, default=100, metavar="N", help="on the GPU")
    options = parser.parse_args(argv)
    # Only times matter here, so a virtual GPU need not compute the products: a hundred of 4096 x 4096 take minutes.
    with open_device(options.device, values=False) as device:
        if device.torch_device == "cpu":
            alone = [benchmark_matmul("cpu", size, 5, warmup=1) for size in track(options.sizes, "CPU")]
            _print_cpu_times(alone)
            program.print_written(save_json(options.out / "benchmark.json", alone, device.provenance()))
            return 0
        comparisons: list[Comparison] = []
        for size in track(options.sizes, "CPU and GPU"):
            comparisons += compare_cpu_gpu([size], device.torch_device, options.iterations)
        _print_comparisons(comparisons, device)
        crossover = find_crossover(comparisons)
        print("the GPU never pays" if crossover is None else f"the GPU pays from size {crossover} on")
        save = partial(save_json, results=comparisons, provenance=device.provenance())
        draw = partial(plot_speedup, comparisons)
        program.print_written(save(options.out / "benchmark.json"), draw(options.out / "speedup.png"))
    return 0


def _print_cpu_times(results: Sequence[MatmulResult]) -> None:
    rows = [(result.size, f"{result.seconds * 1e3:.4g}", f"{result.tflops:.3g}") for result in results]
    program.print_table("Matrix product on the CPU", ("size", "ms", "TFLOPS"), rows)


def _print_comparisons(comparisons: Sequence[Comparison], device: Device) -> None:
    rows = []
    for comparison in comparisons:
        cpu, gpu = comparison.cpu, comparison.gpu
        share, bound = "-", "-"
        if device.peaks is not None:
            peak = device.peaks.tflops["float32"]
            share = f"{peak_share(gpu, peak):.1%}"
            bound = classify_bound(
                comparison.size,
                peak_tflops=peak,
                bandwidth_bytes_per_second=device.peaks.bandwidth_bytes_per_second,
                launch_seconds=device.peaks.launch_seconds,
            )
        times = (f"{cpu.seconds * 1e3:.4g}", f"{gpu.seconds * 1e3:.4g}", f"{comparison.speedup:.3g}")
        rows.append((comparison.size, *times, f"{gpu.tflops:.3g}", share, bound))
    columns = ("size", "CPU ms", "GPU ms", "speedup", "GPU TFLOPS", "of peak", "bound by")
    program.print_table("Matrix product on the CPU and on the GPU", columns, rows)


if __name__ == "__main__":
    sys.exit(program.run(main))
