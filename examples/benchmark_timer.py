"""Benchmarks: `torch.utils.benchmark` compares two ways to take batched dot products; CUDA events time products.

After PyTorch's benchmark recipe (`batched_dot_mul_sum`, `batched_dot_bmm`) and its note on CUDA events. Operations
on the GPU return before they are done: `Timer` waits for the GPU, a naive clock does not, and the script shows that.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch import Tensor
from torch.utils import benchmark


def batched_dot_mul_sum(a: Tensor, b: Tensor) -> Tensor:
    """Multiply and add up."""
    return a.mul(b).sum(-1)


def batched_dot_bmm(a: Tensor, b: Tensor) -> Tensor:
    """The same through a batched matrix product."""
    return torch.bmm(a.view(len(a), 1, -1), b.view(len(b), -1, 1)).flatten(-3)


def compare(device: str, rows: list[tuple[int, int]], min_run_time: float) -> list[benchmark.Measurement]:
    results = []
    for batch, length in rows:
        a, b = torch.ones(batch, length, device=device), torch.ones(batch, length, device=device)
        assert batched_dot_mul_sum(a, b).allclose(batched_dot_bmm(a, b))
        for name in ("batched_dot_mul_sum", "batched_dot_bmm"):
            timer = benchmark.Timer(
                stmt=f"{name}(a, b)",
                globals={"a": a, "b": b, name: globals()[name]},
                label="batched dot",
                sub_label=f"[{batch}, {length}]",
                description=f"{name} {device}",
            )
            results.append(timer.blocked_autorange(min_run_time=min_run_time))
    return results


def product_tflops(size: int, dtype: torch.dtype, repeats: int) -> float:
    """Median TFLOPS of square products, timed by CUDA events around each."""
    a, b = torch.randn(size, size, device="cuda", dtype=dtype), torch.randn(size, size, device="cuda", dtype=dtype)
    for _ in range(3):
        a @ b
    starts = [torch.cuda.Event(enable_timing=True) for _ in range(repeats)]
    ends = [torch.cuda.Event(enable_timing=True) for _ in range(repeats)]
    for start, end in zip(starts, ends, strict=True):
        start.record()
        a @ b
        end.record()
    torch.cuda.synchronize()
    milliseconds: float = statistics.median(start.elapsed_time(end) for start, end in zip(starts, ends, strict=True))
    return 2 * size**3 / (milliseconds * 1e-3) / 1e12


def naive_against_synchronised(size: int, repeats: int) -> tuple[float, float]:
    """Seconds per product when the clock is read too early, and when it is read after `synchronize`."""
    a = torch.randn(size, size, device="cuda")
    a @ a
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        a @ a
    early = time.perf_counter() - start
    torch.cuda.synchronize()
    return early / repeats, (time.perf_counter() - start) / repeats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 1024, 2048])
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 1024])
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--min-run-time", type=float, default=0.2)
    options = parser.parse_args()

    rows = [(options.batch_size, length) for length in options.lengths]
    results = compare("cpu", rows, options.min_run_time) + compare("cuda", rows, options.min_run_time)
    benchmark.Compare(results).print()
    slowest = {device: max(r.median for r in results if device in r.description) for device in ("cpu", "cuda")}
    print(f"the slowest on the GPU is {slowest['cpu'] / slowest['cuda']:.1f} times as fast as the slowest on the CPU")

    for dtype in (torch.float32, torch.float16):
        for size in options.sizes:
            print(f"{dtype} {size:5d}: {product_tflops(size, dtype, options.repeats):8.3f} TFLOPS")
    early, true = naive_against_synchronised(max(options.sizes), options.repeats)
    print(f"without synchronize {early * 1e6:.1f} us, with {true * 1e6:.1f} us per product")


if __name__ == "__main__":
    main()
