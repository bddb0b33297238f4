"""Task 6.6: your kernels on the roofline: the least work that they need, and the most that the device can do.

Run: python -m labs.kernels_exercise.roofline
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import triton

from labkit import plotting, program
from labkit.device import Peaks, open_device
from labkit.progress import track
from labkit.results import KernelPlace, KernelWork, save_json

from .flash_attention import flash_attention
from .matmul import matmul
from .softmax import softmax
from .vector_add import vector_add

RESULTS = Path(__file__).parent / "results"


def vector_add_work(count: int, element_bytes: int) -> KernelWork:
    """What the sum of two vectors of `count` elements takes: an addition for each, two reads and a write.

    Args:
        count: elements of each vector.
        element_bytes: bytes of an element.
    """
    # TODO(task 6.6): count with a pencil.
    raise NotImplementedError(
        "Task 6.6 is open: write vector_add_work "
        "in labs/kernels_exercise/roofline.py (about 1 line)"
    )


def softmax_work(rows: int, columns: int, element_bytes: int) -> KernelWork:
    """What a fused softmax takes, which reads each element once and writes it once.

    Each element is compared with the largest, has it taken off, is exponentiated, added and divided: 5 operations.
    """
    # TODO(task 6.6): count with a pencil.
    raise NotImplementedError(
        "Task 6.6 is open: write softmax_work "
        "in labs/kernels_exercise/roofline.py (about 1 line)"
    )


def matmul_work(m: int, n: int, k: int, element_bytes: int) -> KernelWork:
    """What the product of [m, k] and [k, n] takes, a multiplication and an addition being two operations."""
    # TODO(task 6.6): count with a pencil.
    raise NotImplementedError("Task 6.6 is open: write matmul_work in labs/kernels_exercise/roofline.py (about 1 line)")


def attention_work(
    batch: int, heads: int, length: int, head_dim: int, element_bytes: int, *, causal: bool = False
) -> KernelWork:
    """What flash attention's forward pass takes: its two products, Q, K, V and the output, and nothing quadratic.

    Of the operations those of the products are counted, for the pairs of a query and a key that it sees, its own
    included. The log of the sum, a float32 for each query, is written, too.
    """
    # TODO(task 6.6): how many pairs are there with a causal mask?
    raise NotImplementedError(
        "Task 6.6 is open: write attention_work "
        "in labs/kernels_exercise/roofline.py (about 3 lines)"
    )


def place(kernel: str, work: KernelWork, seconds: float, *, peak_flops: float, bytes_per_second: float) -> KernelPlace:
    """Place a kernel on the roofline of a device.

    Args:
        kernel: its name.
        work: what it cannot do without.
        seconds: of one run.
        peak_flops: floating-point operations per second that the device reaches at best, in the kernel's precision.
        bytes_per_second: of the device's memory.

    Returns:
        All fields of `KernelPlace`. The ridge, where both roofs meet, belongs to "compute".

    Raises:
        ValueError: seconds, the work's bytes, or one of the device's figures are not above 0.

    Source: S. Williams, A. Waterman, D. Patterson, "Roofline", CACM 52(4), 2009.
    """
    # TODO(task 6.6):
    # 1. Refuse what cannot be divided by.
    # 2. FLOPs per byte; the lower one of the two roofs there; what was reached.
    raise NotImplementedError("Task 6.6 is open: write place in labs/kernels_exercise/roofline.py (about 13 lines)")


_PRODUCTS = ("matmul", "flash attention")
"""Those that tensor cores compute."""


def measure_kernels(
    elements: int, rows: int, size: int, length: int, *, device: str, peaks: Peaks
) -> list[KernelPlace]:
    """Given: the four kernels in float16, measured and placed.

    Args:
        elements: of each vector.
        rows: of the softmax, each of 1000 columns.
        size: of the product's three sides.
        length: of four heads of width 64, causal.
        device: "cuda".
        peaks: of the device.
    """

    def random(*shape: int) -> Any:
        return torch.randn(*shape, device=device, dtype=torch.float16)

    x, y, matrix, a, b = random(elements), random(elements), random(rows, 1000), random(size, size), random(size, size)
    q, k, v = (random(1, 4, length, 64) for _ in range(3))
    kernels: dict[str, tuple[KernelWork, Callable[[], object]]] = {
        "vector add": (vector_add_work(elements, 2), lambda: vector_add(x, y)),
        "softmax": (softmax_work(rows, 1000, 2), lambda: softmax(matrix)),
        "matmul": (matmul_work(size, size, size, 2), lambda: matmul(a, b)),
        "flash attention": (
            attention_work(1, 4, length, 64, 2, causal=True),
            lambda: flash_attention(q, k, v, causal=True),
        ),
    }
    places = []
    for name in track(list(kernels), "kernels"):
        work, run = kernels[name]
        run()
        seconds = triton.testing.do_bench(run, return_mode="median") / 1e3
        peak = peaks.tflops["float16" if name in _PRODUCTS else "float32"] * 1e12
        places.append(place(name, work, seconds, peak_flops=peak, bytes_per_second=peaks.bandwidth_bytes_per_second))
    return places


def plot_roofline(places: Sequence[KernelPlace], path: Path, *, peaks: Peaks) -> Path:
    """Given: two roofs, of products in float16 and of all else in float32, and the kernels below theirs.

    Returns:
        The path written.
    """
    figure, (axes,) = plotting.new_figure("Roofline", x_label="FLOPs per byte", y_label="FLOPs per second", columns=1)
    bandwidth, (least, most) = peaks.bandwidth_bytes_per_second, (2.0**-4, 2.0**11)
    for dtype, line in (("float16", "-"), ("float32", "--")):
        peak = peaks.tflops[dtype] * 1e12
        corners = [least, peak / bandwidth, most]
        name = "products, float16" if dtype == "float16" else "all else, float32"
        axes.loglog(
            corners, [min(peak, corner * bandwidth) for corner in corners], line, color=plotting.INK, label=name
        )
    for number, point in enumerate(places):
        axes.plot(point.intensity, point.achieved_flops, "o", color=plotting.COLORS[number % 4], label=point.kernel)
    axes.legend()
    return plotting.save_png(figure, path)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and place all kernels; print a table; write OUT/kernels.json and OUT/roofline.png."""
    parser = program.make_parser(__doc__ or "", results=RESULTS)
    parser.add_argument("--elements", type=program.positive_int, default=1 << 18, help="of each vector")
    parser.add_argument("--rows", type=program.positive_int, default=256, help="of the softmax")
    parser.add_argument("--size", type=program.positive_int, default=256, help="of the product's sides")
    parser.add_argument("--length", type=program.positive_int, default=256, help="of the attention")
    options = parser.parse_args(argv)
    with open_device(options.device) as device:
        if device.peaks is None:
            print(f"error: {device.name} has no roofline here: no data sheet is known", file=sys.stderr)
            return 1
        places = measure_kernels(
            options.elements, options.rows, options.size, options.length, device=device.torch_device, peaks=device.peaks
        )
        program.print_table(
            f"Kernels on {device.name}",
            ("kernel", "FLOPs/byte", "bound", "microseconds", "share of the roof"),
            [
                (point.kernel, f"{point.intensity:.2f}", point.bound, f"{point.seconds * 1e6:.1f}",
                 f"{point.achieved_flops / point.attainable_flops:.1%}")
                for point in places
            ],
        )  # fmt: skip
        program.print_written(
            save_json(options.out / "kernels.json", places, device.provenance()),
            plot_roofline(places, options.out / "roofline.png", peaks=device.peaks),
        )
    return 0


if __name__ == "__main__":
    sys.exit(program.run(main))
