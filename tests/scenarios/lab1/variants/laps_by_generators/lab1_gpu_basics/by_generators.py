"""The functions of the lab by generators, coroutines and functools."""

from __future__ import annotations

import functools
import heapq
import itertools
import time
from collections import Counter, defaultdict

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from labkit.results import STAGES, Comparison, MatmulResult, MemoryProfile, OperationTime, StageMemory


def _laps(work, lengths, wait):
    """Seconds per call, one lap after the other, each begun when somebody asks for it."""
    for length in lengths:
        wait()
        began = time.perf_counter_ns()
        for _ in itertools.repeat(None, length):
            work()
        wait()
        yield (time.perf_counter_ns() - began) / length / 1e9


def benchmark_matmul(device, size, iterations=100, *, dtype=torch.float32, warmup=10):
    if min(size, iterations) < 1 or warmup < 0:
        raise ValueError(f"cannot multiply {size} x {size} matrices {iterations} times after {warmup}")
    device = torch.device(device)
    operands = tuple(torch.rand((size, size), dtype=dtype, device=device) for _ in range(2))
    work = functools.partial(torch.matmul, *operands, out=torch.empty_like(operands[0]))
    wait = functools.partial(torch.cuda.synchronize, device) if device.type == "cuda" else (lambda: None)
    next(_laps(work, [warmup], wait), None) if warmup else None
    whole, rest = divmod(iterations, 7)
    lengths = [7] * whole + [rest] * (rest > 0) if iterations >= 35 else [1] * iterations
    seconds = float(np.median(list(_laps(work, lengths, wait))))
    return MatmulResult(
        device=device.type,
        dtype=str(dtype).rpartition(".")[2],
        size=size,
        iterations=sum(lengths),
        seconds=seconds,
        tflops=size**3 / seconds / 5e11,
    )


def compare_cpu_gpu(sizes=(128, 512, 1024, 2048, 4096), device="cuda", iterations=100, *, dtype=torch.float32,
                    cpu_iterations=5):  # fmt: skip
    if torch.device(device).type != "cuda":
        raise ValueError("compare with a GPU")
    sizes = list(sizes)
    gpus = [benchmark_matmul(device, size, iterations, dtype=dtype) for size in sizes]
    cpus = map(functools.partial(benchmark_matmul, "cpu", iterations=cpu_iterations, dtype=dtype, warmup=2), sizes)
    return [
        Comparison(size=gpu.size, cpu=cpu, gpu=gpu, speedup=cpu.seconds / gpu.seconds)
        for cpu, gpu in zip(cpus, gpus, strict=True)
    ]


def find_crossover(comparisons):
    falling = sorted(comparisons, key=lambda each: -each.size)
    return min((each.size for each in itertools.takewhile(lambda each: each.speedup > 1, falling)), default=None)


def classify_bound(size, *, peak_tflops, bandwidth_bytes_per_second, launch_seconds, bytes_per_element=4):
    if any(number < 1 for number in (size, bytes_per_element)):
        raise ValueError("sizes start at 1")
    if not (peak_tflops > 0 and bandwidth_bytes_per_second > 0):
        raise ValueError("a device has a peak and a bandwidth")
    times = (
        (launch_seconds, "launch"),
        (3 * size * size * bytes_per_element / bandwidth_bytes_per_second, "memory"),
        (2 * size * size * size / peak_tflops / 1e12, "compute"),
    )
    return functools.reduce(lambda best, other: other if other[0] > best[0] else best, times)[1]


def _step(create_model, create_batch, device, dtype):
    """A training step that stops after each of its stages; its locals live as long as it does."""
    torch.cuda.empty_cache()
    yield
    model = create_model().to(device).to(dtype)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    yield
    features, classes = create_batch()
    features, classes = features.to(device).to(dtype), classes.to(device)
    logits = model(features)
    yield
    loss = torch.nn.CrossEntropyLoss()(logits, classes)
    yield
    loss.backward()
    yield
    optimizer.step()
    yield
    model.zero_grad()
    optimizer.zero_grad()
    yield


def profile_training_memory(create_model=None, create_batch=None, *, device="cuda", dtype=torch.float32):
    from . import memory_profiling

    if not str(device).startswith("cuda"):
        raise ValueError("a GPU is what this is about")
    step = _step(
        create_model or memory_profiling.default_model, create_batch or memory_profiling.default_batch, device, dtype
    )
    readings = []
    for stage in STAGES:
        torch.cuda.reset_peak_memory_stats(device)
        next(step)
        statistics = torch.cuda.memory_stats(device)
        readings.append(
            StageMemory(
                stage=stage,
                allocated_bytes=statistics["allocated_bytes.all.current"],
                reserved_bytes=statistics["reserved_bytes.all.current"],
                peak_bytes=statistics["allocated_bytes.all.peak"],
            )
        )
    step.close()
    return MemoryProfile(device="cuda", dtype=str(dtype).split(".")[1], stages=tuple(readings))


def stage_increases(profile):
    held = [0, *(stage.allocated_bytes for stage in profile.stages)]
    return {
        stage.stage: after - before
        for stage, (before, after) in zip(profile.stages, itertools.pairwise(held), strict=True)
    }


def find_bottleneck(profile):
    return functools.reduce(lambda top, each: each if each.peak_bytes > top.peak_bytes else top, profile.stages).stage


def profile_operations(step, *, device="cuda", steps=5, warmup=2):
    if warmup < 0 or steps <= 0:
        raise ValueError("record one step at least")
    activities = {ProfilerActivity.CPU}
    if on_gpu := torch.device(device).type == "cuda":
        activities.add(ProfilerActivity.CUDA)
    for _ in range(warmup):
        step()
    if on_gpu:
        torch.cuda.synchronize(device)
    recording = profile(activities=activities)
    recording.start()
    for _ in range(steps):
        step()
    if on_gpu:
        torch.cuda.synchronize(device)
    recording.stop()
    calls, times = Counter(), defaultdict(lambda: [0.0, 0.0])
    for event in recording.events():
        if event.name.startswith("aten::") and event.device_type == torch.autograd.DeviceType.CPU:
            calls[event.name] += 1
            times[event.name][0] += event.self_cpu_time_total / 1e6
            times[event.name][1] += event.self_device_time_total / 1e6
    found = [
        OperationTime(name=name, calls=count, cpu_seconds=times[name][0], device_seconds=times[name][1])
        for name, count in calls.items()
    ]
    return sorted(found, key=lambda each: -(each.device_seconds if on_gpu else each.cpu_seconds))


def slowest(operations, count=5):
    if count <= 0:
        raise ValueError("look at one at least")
    of_host = all(each.device_seconds == 0 for each in operations)
    return heapq.nlargest(count, operations, key=lambda each: each.cpu_seconds if of_host else each.device_seconds)
