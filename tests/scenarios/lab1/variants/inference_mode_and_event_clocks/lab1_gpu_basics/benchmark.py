"""Task 1.2: time matrix products on the CPU and on the GPU, and say what limits them.

Not for memory (memory_profiling.py) nor for finding the slow operation of a model (profiler.py).

Run: python -m labs.lab1_gpu_basics.benchmark
"""

import functools
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch

from labkit import plotting, program
from labkit.device import Device, open_device
from labkit.progress import track
from labkit.results import Comparison, MatmulResult, save_json

from ._timing import clock_for, dtype_name, log, logged


@functools.cache
def _compiled_enabled() -> bool:
    return not hasattr(torch, "compile")


RESULTS = Path(__file__).parent / "results"
SIZES = (128, 512, 1024, 2048, 4096)


@logged
def benchmark_matmul(
    device: str | torch.device,
    size: int,
    iterations: int = 100,
    *,
    dtype: torch.dtype = torch.float32,
    warmup: int = 10,
) -> MatmulResult:
    """Time the product of two random `size` x `size` matrices, and nothing but the product.

    A GPU works asynchronously: `a @ b` only puts the product into a queue and returns. So the device must be idle when
    the clock is started (else earlier work is counted) and idle again before it is stopped (else the product is not).
    The first products on a device also pay for loading libraries and choosing kernels: hence the warm-up.

    Args:
        device: "cpu" or "cuda".
        size: rows and columns of both operands, shape [size, size].
        iterations: products to time; 1 is legal.
        dtype: element type of the operands. They are created on the device in this type before the clock starts.
        warmup: products before the first timed one; 0 is legal.

    Returns:
        A `MatmulResult`. `seconds` is the *median* of the seconds per product over repeated measurements, so that one
        disturbed product does not spoil the result: time the products singly or in blocks, at least five measurements
        when `iterations` is at least 5. `tflops` is 2 size^3 / seconds / 1e12. `iterations` is the number of timed
        products, `device` the device's type ("cuda"), `dtype` a name such as "float32".

    Raises:
        ValueError: `size` or `iterations` is below 1, or `warmup` below 0.

    Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution
    """
    for name, value, least in (("size", size, 1), ("iterations", iterations, 1), ("warmup", warmup, 0)):
        if value < least:
            raise ValueError(f"{name} must be at least {least}, not {value}")
    place = torch.device(device)
    with torch.inference_mode():
        generator = torch.Generator(device=place).manual_seed(size)
        left, right = torch.randn(2, size, size, device=place, dtype=dtype, generator=generator).unbind()
        product = functools.partial(torch.matmul, left, right)
        for _ in range(warmup):
            product()
        clock = clock_for(place)
        samples = []
        remaining = iterations
        while remaining:
            count = min(remaining, max(1, iterations // 20))
            samples.append(clock.measure(product, count))
            remaining -= count
    median = statistics.median(samples)
    log.info(f"{size=}: {median * 1e3:.3f} ms over {len(samples)} samples")
    return MatmulResult(
        device=place.type,
        dtype=dtype_name(dtype),
        size=size,
        iterations=iterations,
        seconds=median,
        tflops=2 * size**3 / median / 1e12,
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
        device: the GPU, "cuda".
        iterations: timed products per size on the GPU.
        dtype: on both sides. CPUs are very slow in float16.
        cpu_iterations: timed products per size on the CPU: fewer, because a large one takes a second.

    Returns:
        One `Comparison` per size, in the order of `sizes`; `speedup` is CPU seconds / GPU seconds.

    Raises:
        ValueError: `device` is "cpu" (there is nothing to compare), or a number is below 1.
    """
    if torch.device(device).type == "cpu":
        raise ValueError("compare_cpu_gpu wants a GPU")
    gpu_results = {size: benchmark_matmul(device, size, iterations, dtype=dtype) for size in sizes}
    cpu_results = {size: benchmark_matmul("cpu", size, cpu_iterations, dtype=dtype, warmup=2) for size in sizes}
    return [
        Comparison(
            size=n, cpu=cpu_results[n], gpu=gpu_results[n], speedup=cpu_results[n].seconds / gpu_results[n].seconds
        )
        for n in sizes
    ]


def find_crossover(comparisons: Sequence[Comparison]) -> int | None:
    """Find the size from which on the GPU pays.

    Args:
        comparisons: one per size, in any order.

    Returns:
        The smallest measured size for which, and for every larger measured size, the GPU is faster (speedup above 1);
        None if there is none. A lucky small size below a slower one does not count.
    """
    slower = [c.size for c in comparisons if c.speedup <= 1.0]
    floor = max(slower, default=0)
    return min((c.size for c in comparisons if c.size > floor), default=None)


def peak_share(result: MatmulResult, peak_tflops: float) -> float:
    """How much of the device's peak a product reached.

    Args:
        result: a measurement.
        peak_tflops: what the data sheet promises for the dtype of that measurement.

    Returns:
        The ratio of measured to peak TFLOPS, 1.0 at the peak (not percent).

    Raises:
        ValueError: `peak_tflops` is not above 0.
    """
    if peak_tflops <= 0:
        raise ValueError(f"{peak_tflops=} is not above 0")
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
    if size < 1 or bytes_per_element < 1:
        raise ValueError("size and bytes_per_element are at least 1")
    if peak_tflops <= 0 or bandwidth_bytes_per_second <= 0:
        raise ValueError("peaks are above 0")
    launch = launch_seconds
    memory = 3 * size * size * bytes_per_element / bandwidth_bytes_per_second
    compute = 2 * size * size * size / (peak_tflops * 1e12)
    if launch >= memory and launch >= compute:
        return "launch"
    return "memory" if memory >= compute else "compute"


def plot_speedup(comparisons: Sequence[Comparison], path: Path | str) -> Path:
    """Plot the speedup over the matrix size, with a line at 1 where CPU and GPU are equally fast.

    Args:
        comparisons: one per size, in any order.
        path: the PNG file to write.

    Returns:
        The path written.

    Raises:
        OSError: the file cannot be written.
    """
    import numpy as np
    from matplotlib.ticker import ScalarFormatter

    figure, axes = plotting.new_figure("GPU over CPU", x_label="matrix size", y_label="speedup (CPU s / GPU s)")
    axis = axes[0]
    data = np.array(sorted([(c.size, c.speedup) for c in comparisons]))
    axis.plot(data[:, 0], data[:, 1], marker="s", label="speedup")
    axis.plot(data[:, 0], np.ones(len(data)), linestyle=":", label="equally fast")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=10)
    axis.xaxis.set_major_formatter(ScalarFormatter())
    for x, y in data:
        axis.annotate(f"{y:.2g}x", (x, y), textcoords="offset points", xytext=(4, 4))
    axis.legend()
    return plotting.save_png(figure, Path(path))


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
        written = save_json(options.out / "benchmark.json", comparisons, device.provenance())
        drawn = plot_speedup(comparisons, options.out / "speedup.png")
        (options.out / "benchmark.csv").write_text(
            "size,cpu,gpu\n" + "".join(f"{c.size},{c.cpu.seconds},{c.gpu.seconds}\n" for c in comparisons)
        )
        program.print_written(written, drawn, options.out / "benchmark.csv")
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
