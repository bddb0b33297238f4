from statistics import median
from time import perf_counter as now

import torch

from labkit import plotting
from labkit.results import Comparison as Both
from labkit.results import MatmulResult as R

from . import kept_benchmark as kept

SIZES = kept.SIZES


def no(bad):
    if bad:
        raise ValueError


def benchmark_matmul(device, size, iterations=100, *, dtype=torch.float32, warmup=10):
    no(size < 1 or iterations < 1 or warmup < 0)
    a, b = torch.randn(2, size, size, device=device).to(dtype)
    s = torch.cuda.synchronize if a.is_cuda else tuple
    t = []
    for _ in range(-warmup, iterations):
        s(), t.append(now()), a.mm(b), s()
        t[-1] = now() - t[-1]
    m = median(t[warmup:])
    return R(
        device=a.device.type,
        dtype=f"{dtype}"[6:],
        size=size,
        iterations=iterations,
        seconds=m,
        tflops=2e-12 * size**3 / m,
    )


def compare_cpu_gpu(sizes=SIZES, device="cuda", iterations=100, *, dtype=torch.float32, cpu_iterations=5):
    no(torch.device(device).type == "cpu")
    out = []
    for n in sizes:
        c = benchmark_matmul("cpu", n, cpu_iterations, dtype=dtype, warmup=1)
        g = benchmark_matmul(device, n, iterations, dtype=dtype)
        out += [Both(size=n, cpu=c, gpu=g, speedup=c.seconds / g.seconds)]
    return out


def find_crossover(comparisons):
    w = {c.size: c.speedup > 1 for c in comparisons}
    return min((n for n in w if all(w[m] for m in w if m >= n)), default=None)


def peak_share(result, peak_tflops):
    no(peak_tflops <= 0)
    return result.tflops / peak_tflops


def classify_bound(size, *, peak_tflops, bandwidth_bytes_per_second, launch_seconds, bytes_per_element=4):
    no(min(size, bytes_per_element) < 1 or min(peak_tflops, bandwidth_bytes_per_second) <= 0)
    t = {
        "launch": launch_seconds,
        "memory": 3 * size**2 * bytes_per_element / bandwidth_bytes_per_second,
        "compute": 2e-12 * size**3 / peak_tflops,
    }
    return max(t, key=t.get)


def plot_speedup(comparisons, path):
    f, (x,) = plotting.new_figure("")
    x.semilogx(*zip(*sorted((c.size, c.speedup) for c in comparisons), strict=True), base=2)
    x.axline((1, 1), (2, 1))
    return plotting.save_png(f, path)


for name in ("benchmark_matmul", "compare_cpu_gpu", "find_crossover", "peak_share", "classify_bound", "plot_speedup"):
    setattr(kept, name, locals()[name])
main = kept.main
