"""A few loops, each between two synchronisations, with the operands made on the device; a script-like style."""

import json
import platform
import sys
from pathlib import Path
from time import monotonic_ns

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch

from labkit.device import is_simulated, open_device
from labkit.results import Comparison, MatmulResult

SIZES = (128, 512, 1024, 2048, 4096)


def wait(device):
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def positive(**numbers):
    for name, number in numbers.items():
        if number <= 0:
            raise ValueError(f"{name} = {number}")


def benchmark_matmul(device, size, iterations=100, *, dtype=torch.float32, warmup=10):
    if not (size >= 1 and iterations >= 1 and warmup >= 0):
        raise ValueError(f"bad arguments {size=} {iterations=} {warmup=}")
    x = torch.ones(size, size, dtype=dtype, device=device)
    y = torch.full_like(x, 0.5)
    for _ in range(warmup):
        z = x.matmul(y)
    wait(device)

    repeats = 7 if iterations >= 7 else iterations
    samples = []
    left = iterations
    for r in range(repeats):
        n = left // (repeats - r)
        left -= n
        t = monotonic_ns()
        for _ in range(n):
            z = x.matmul(y)
        wait(device)
        samples.append((monotonic_ns() - t) / n / 1e9)
    del z
    samples.sort()
    middle = len(samples) // 2
    seconds = samples[middle] if len(samples) % 2 else (samples[middle - 1] + samples[middle]) / 2
    return MatmulResult(
        device=torch.device(device).type,
        dtype={torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}.get(
            dtype, str(dtype)[6:]
        ),
        size=size,
        iterations=iterations,
        seconds=seconds,
        tflops=(size**3 + size**3) / seconds * 1e-12,
    )


def compare_cpu_gpu(sizes=SIZES, device="cuda", iterations=100, *, dtype=torch.float32, cpu_iterations=10):
    if torch.device(device).type == "cpu":
        raise ValueError("compare with a GPU")
    cpus = {n: benchmark_matmul("cpu", n, cpu_iterations, dtype=dtype, warmup=1) for n in sizes}
    gpus = {n: benchmark_matmul(device, n, iterations, dtype=dtype) for n in sizes}
    return [Comparison(size=n, cpu=cpus[n], gpu=gpus[n], speedup=cpus[n].seconds / gpus[n].seconds) for n in sizes]


def find_crossover(comparisons):
    faster = {c.size: c.gpu.seconds < c.cpu.seconds for c in comparisons}
    slow = [n for n, wins in faster.items() if not wins]
    fast = [n for n in faster if not slow or n > max(slow)]
    return min(fast) if fast else None


def peak_share(result, peak_tflops):
    positive(peak_tflops=peak_tflops)
    return result.tflops / peak_tflops


def classify_bound(size, *, peak_tflops, bandwidth_bytes_per_second, launch_seconds, bytes_per_element=4):
    positive(size=size, bytes=bytes_per_element, peak=peak_tflops, bandwidth=bandwidth_bytes_per_second)
    candidates = [
        (launch_seconds, "launch"),
        (bytes_per_element * 3.0 * size**2 / bandwidth_bytes_per_second, "memory"),
        (2.0 * size**3 / (1e12 * peak_tflops), "compute"),
    ]
    return max(candidates, key=lambda c: c[0])[1]


def plot_speedup(comparisons, path):
    comparisons = sorted(comparisons, key=lambda c: c.size)
    plt.figure()
    plt.plot([c.size for c in comparisons], [c.speedup for c in comparisons], marker="o")
    plt.hlines(1, 0, max(c.size for c in comparisons))
    plt.xlabel("matrix size")
    plt.ylabel("speedup")
    plt.grid(True)
    if is_simulated():
        plt.title("simulated times")
    plt.savefig(path)
    plt.close()
    return path


def option(argv, name, default):
    return argv[argv.index(name) + 1] if name in argv else default


def main(argv=None):
    argv = list(sys.argv[1:] if argv is None else argv)
    out = Path(option(argv, "--out", Path(__file__).parent / "results"))
    out.mkdir(parents=True, exist_ok=True)
    sizes = [int(n) for n in option(argv, "--sizes", "128,512,1024,2048,4096").split(",")]
    with open_device(option(argv, "--device", "auto"), values=False) as device:
        rows = compare_cpu_gpu(sizes, "cuda", int(option(argv, "--iterations", 100)))
        plot_speedup(rows, out / "speedup.png")
    document = {
        "schema": 1,
        "provenance": {"python": platform.python_version(), "simulated": device.simulated},
        "results": [],
    }
    for c in rows:
        document["results"].append({"size": c.size, "cpu": vars(c.cpu), "gpu": vars(c.gpu), "speedup": c.speedup})
    (out / "benchmark.json").write_text(json.dumps(document))
