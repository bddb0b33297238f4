"""Task 1.2: time matrix products on the CPU and on the GPU, and say what limits them.

Not for memory (memory_profiling.py) nor for finding the slow operation of a model (profiler.py).

Run: python -m labs.lab1_gpu_basics.benchmark
"""

import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch

from labkit import plotting, program
from labkit.device import Device, open_device
from labkit.progress import track
from labkit.results import Comparison, MatmulResult, save_json

RESULTS = Path(__file__).parent / "results"
SIZES = (128, 512, 1024, 2048, 4096)

# --- solution only ---
BLOCKS = 5
"""Timed blocks per measurement: the median of five survives two disturbed ones, and fewer, longer blocks keep the cost
of synchronising and of reading the clock small against the work."""

# --- end ---


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
        device: "cpu" or "cuda", perhaps with the current GPU's index ("cuda:0"), as a text or as a `torch.device`.
        size: rows and columns of both operands, shape [size, size].
        iterations: products to time, in all measurements together; 1 is legal.
        dtype: element type of the operands. They are created on the device in this type before the clock starts.
            Float32 means float32: TF32 stays off, as it is in PyTorch unless you switch it on.
        warmup: products before the first timed one; 0 is legal.

    Returns:
        A `MatmulResult`. `seconds` is the *median* of the seconds per product over repeated measurements, so that one
        disturbed product does not spoil the result: time the products singly or in blocks, at least five measurements
        when `iterations` is at least 5. Seconds are wall time, not the time of a busy processor.
        `tflops` is 2 size^3 / seconds / 1e12. `iterations` is the number of timed products: that many, also where
        blocks of one length do not add up to it. `device` is the device's type alone ("cuda"), `dtype` a name such as
        "float32".

    Raises:
        ValueError: `size` or `iterations` is below 1, or `warmup` below 0.

    Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution
    """
    # TODO(task 1.2):
    # 1. Refuse arguments that make no sense.
    # 2. Create both operands on the device, in dtype.
    # 3. Warm up, untimed.
    # 4. Several times: wait for the device, start the clock, queue products, wait for the device, stop the clock.
    # 5. Take the median of the seconds per product and compute TFLOPS from it.
    # --- solution: task 1.2 ---
    if size < 1 or iterations < 1 or warmup < 0:
        raise ValueError(f"size and iterations start at 1, warmup at 0; got {size}, {iterations}, {warmup}")
    device = torch.device(device)
    left = torch.randn(size, size, device=device, dtype=dtype)
    right = torch.randn(size, size, device=device, dtype=dtype)
    product = torch.empty_like(left)  # written again and again: no allocation inside the timed region

    for _ in range(warmup):
        torch.mm(left, right, out=product)

    seconds_per_product = []
    for block in _blocks(iterations):
        _synchronize(device)
        start = time.perf_counter()
        for _ in range(block):
            torch.mm(left, right, out=product)
        _synchronize(device)
        seconds_per_product.append((time.perf_counter() - start) / block)

    seconds = statistics.median(seconds_per_product)
    return MatmulResult(
        device=device.type,
        dtype=str(dtype).removeprefix("torch."),
        size=size,
        iterations=iterations,
        seconds=seconds,
        tflops=2 * size**3 / seconds / 1e12,
    )
    # --- end ---


# --- solution only ---
def _blocks(iterations: int) -> list[int]:
    """Split the iterations into at most BLOCKS blocks whose lengths differ by one at most."""
    count = min(iterations, BLOCKS)
    return [iterations // count + (index < iterations % count) for index in range(count)]


def _synchronize(device: torch.device) -> None:
    """Wait until the device is idle; a CPU always is, because its operations return when they are done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# --- end ---


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
        device: the GPU, "cuda", perhaps with the index of the current one ("cuda:0").
        iterations: timed products per size on the GPU.
        dtype: on both sides. CPUs are very slow in float16.
        cpu_iterations: timed products per size on the CPU: fewer by default, because a large one takes a second.

    Returns:
        One `Comparison` per size, in the order of `sizes`; `speedup` is CPU seconds / GPU seconds.

    Raises:
        ValueError: `device` is "cpu" (there is nothing to compare), or a number is below 1.
    """
    # TODO(task 1.2):
    # 1. Refuse to compare the CPU with itself.
    # 2. For each size call benchmark_matmul for the CPU and for the GPU.
    # 3. Put both results and their ratio into a Comparison.
    # --- solution: task 1.2 ---
    if torch.device(device).type == "cpu":
        raise ValueError('device must be a GPU, such as "cuda": the CPU is the other side of the comparison')
    comparisons = []
    for size in sizes:
        cpu = benchmark_matmul("cpu", size, cpu_iterations, dtype=dtype, warmup=1)
        gpu = benchmark_matmul(device, size, iterations, dtype=dtype)
        comparisons.append(Comparison(size=size, cpu=cpu, gpu=gpu, speedup=cpu.seconds / gpu.seconds))
    return comparisons
    # --- end ---


def find_crossover(comparisons: Sequence[Comparison]) -> int | None:
    """Find the size from which on the GPU pays.

    Args:
        comparisons: one per size, in any order; perhaps none at all.

    Returns:
        The smallest measured size for which, and for every larger measured size, the GPU is faster (speedup above 1);
        None if there is none. A lucky small size below a slower one does not count.
    """
    # TODO(task 1.2):
    # 1. Look at the sizes from the largest to the smallest.
    # 2. Stop at the first one where the GPU is not faster; the answer is the last one before it.
    # --- solution: task 1.2 ---
    crossover = None
    for comparison in sorted(comparisons, key=lambda comparison: comparison.size, reverse=True):
        if comparison.speedup <= 1:
            break
        crossover = comparison.size
    return crossover
    # --- end ---


def peak_share(result: MatmulResult, peak_tflops: float) -> float:
    """How much of the device's peak a product reached.

    Args:
        result: a measurement.
        peak_tflops: the peak of the data sheet for the dtype of that measurement.

    Returns:
        The ratio of measured to peak TFLOPS, 1.0 at the peak (not percent), and more if a product was faster than
        the data sheet's peak.

    Raises:
        ValueError: `peak_tflops` is not above 0.
    """
    # TODO(task 1.2): divide, after refusing a peak that makes no sense.
    # --- solution: task 1.2 ---
    if peak_tflops <= 0:
        raise ValueError(f"peak_tflops must be above 0, got {peak_tflops}")
    return result.tflops / peak_tflops
    # --- end ---


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
    # TODO(task 1.2):
    # 1. Refuse arguments that make no sense.
    # 2. Compute the three times in seconds; mind that peak_tflops counts in 1e12.
    # 3. Return the name of the longest.
    # --- solution: task 1.2 ---
    if size < 1 or bytes_per_element < 1 or peak_tflops <= 0 or bandwidth_bytes_per_second <= 0:
        raise ValueError("size, bytes_per_element, peak_tflops and bandwidth_bytes_per_second must be above 0")
    seconds: dict[Literal["launch", "memory", "compute"], float] = {
        "launch": launch_seconds,
        "memory": 3 * size**2 * bytes_per_element / bandwidth_bytes_per_second,
        "compute": 2 * size**3 / (peak_tflops * 1e12),
    }
    return max(seconds, key=lambda bound: seconds[bound])  # max keeps the first of equal ones
    # --- end ---


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
    # TODO(task 1.2):
    # 1. Take a figure from labkit.plotting.new_figure; both axes want a logarithmic scale.
    # 2. Draw speedup over size, and the line at 1.
    # 3. Write it with labkit.plotting.save_png.
    # --- solution: task 1.2 ---
    ordered = sorted(comparisons, key=lambda comparison: comparison.size)
    sizes = [comparison.size for comparison in ordered]
    figure, (axis,) = plotting.new_figure(
        "Matrix product: GPU against CPU", x_label="rows and columns", y_label="speedup (CPU time / GPU time)"
    )
    axis.plot(sizes, [comparison.speedup for comparison in ordered], "o-", color=plotting.COLORS[0])
    axis.axhline(1, color=plotting.COLORS[1], linestyle="--", label="equally fast")
    for comparison in ordered:
        axis.annotate(
            f"{comparison.speedup:.3g}x",
            (comparison.size, comparison.speedup),
            xytext=(0, 9),
            textcoords="offset points",
            ha="center",
        )
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter("{x:g}")
    axis.set_xticks(sizes, labels=[str(size) for size in sizes])
    axis.margins(y=0.15)
    axis.legend(frameon=False)
    return plotting.save_png(figure, path)
    # --- end ---


def main(argv: Sequence[str] | None = None) -> int:
    """Compare CPU and GPU over all sizes; print a table; write OUT/benchmark.json and OUT/speedup.png.

    With `--device cpu` there is nothing to compare: the CPU's times alone are measured and written, without a plot.

    Both files say that a virtual GPU was used, where it was: the picture with the word "simulated".

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
        # TODO(task 1.2):
        # 1. Save the comparisons with save_json as OUT/benchmark.json, with device.provenance().
        # 2. Draw OUT/speedup.png with plot_speedup.
        # 3. Print both paths with program.print_written.
        # --- solution: task 1.2 ---
        written = save_json(options.out / "benchmark.json", comparisons, device.provenance())
        program.print_written(written, plot_speedup(comparisons, options.out / "speedup.png"))
        # --- end ---
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
