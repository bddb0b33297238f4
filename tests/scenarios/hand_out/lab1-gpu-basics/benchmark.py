import torch
import time
import matplotlib.pyplot as plt


def benchmark_matmul(device, size, iterations=100):
    """Benchmark matrix multiplication"""
    a = torch.randn(size, size, device=device)
    b = torch.randn(size, size, device=device)
    for _ in range(10):
        a @ b
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(iterations):
        a @ b
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
    seconds = (time.perf_counter() - start) / iterations
    tflops = 2 * size**3 / seconds / 1e12
    return seconds, tflops


if __name__ == "__main__":
    sizes = [128, 512, 1024, 2048, 4096]
    speedups = []
    for n in sizes:
        cpu, _ = benchmark_matmul("cpu", n, 5)
        gpu, tf = benchmark_matmul("cuda", n)
        speedups.append(cpu / gpu)
        print(n, cpu, gpu, tf)
    plt.plot(sizes, speedups)
    plt.savefig("results/speedup.png")
