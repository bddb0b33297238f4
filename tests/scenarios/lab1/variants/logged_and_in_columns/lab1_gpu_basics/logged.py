"""Every function says to the log what it begins and ends; numbers are kept in columns."""

from __future__ import annotations

import contextlib
import functools
import logging
import platform
import time
from dataclasses import replace

import torch
from torch.profiler import ProfilerActivity, schedule

from labkit import plotting
from labkit.device import is_simulated
from labkit.results import Environment, MatmulResult, OperationTime

LOG = logging.getLogger(__name__)


def logged(function):
    """Say when a function begins, and how long it took."""

    @functools.wraps(function)
    def wrapper(*args, **options):
        began = time.monotonic()
        LOG.debug("%s(%r, %r)", function.__name__, args, options)
        try:
            return function(*args, **options)
        finally:
            LOG.debug("%s took %.3f s", function.__name__, time.monotonic() - began)

    return wrapper


@contextlib.contextmanager
def _nvml():
    """NVML, or None where it does not answer."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:
        LOG.info("no NVML: %s", error)
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


@logged
def check_environment(device=None):
    if device not in {None, "cpu", "cuda"}:
        raise ValueError(f"unknown device {device}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("no GPU")
    driver = None
    with _nvml() as nvml:
        if nvml is not None:
            with contextlib.suppress(nvml.NVMLError):
                driver = nvml.nvmlSystemGetDriverVersion()
    found = Environment(
        python=platform.python_version(),
        torch=torch.__version__,
        cuda=torch.version.cuda,
        driver=driver.decode() if isinstance(driver, bytes) else driver,
        device="cpu",
        device_name=platform.processor() or platform.machine(),
        memory_bytes=None,
        compute_capability=None,
        profiler=bool(torch.profiler.kineto_available()),
        simulated=is_simulated(),
    )
    if device == "cpu" or (device is None and not torch.cuda.is_available()):
        return found
    return replace(
        found,
        device="cuda",
        device_name=torch.cuda.get_device_name(0),
        memory_bytes=torch.cuda.get_device_properties(0).total_memory,
        compute_capability=tuple(torch.cuda.get_device_capability(0)),
    )


@logged
def benchmark_matmul(device, size, iterations=100, *, dtype=torch.float32, warmup=10):
    for name, number, least in (("size", size, 1), ("iterations", iterations, 1), ("warmup", warmup, 0)):
        if number < least:
            raise ValueError(f"{name} is {number}, less than {least}")
    a, b = torch.empty(2, size, size, dtype=dtype, device=device).normal_().unbind()
    into = a.new_empty(a.shape)
    on_gpu = a.is_cuda
    for number in range(warmup):
        torch.mm(a, b, out=into)
        LOG.debug("warm-up %d", number)
    if on_gpu:
        # Events between all products, read once at the end.
        torch.cuda.synchronize(a.device)
        times = []
        for _ in range(iterations):
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            torch.cuda.synchronize(a.device)
            marks[0].record()
            torch.mm(a, b, out=into)
            marks[1].record()
            torch.cuda.synchronize(a.device)
            times.append(marks[0].elapsed_time(marks[1]) * 1e-3)
    else:
        times = []
        for _ in range(iterations):
            began = time.perf_counter()
            torch.mm(a, b, out=into)
            times.append(time.perf_counter() - began)
    times.sort()
    seconds = (times[len(times) // 2] + times[~(len(times) // 2)]) / 2
    LOG.info("%d products of %d: %.3g s", iterations, size, seconds)
    return MatmulResult(
        device=a.device.type,
        dtype=f"{dtype}"[6:],
        size=size,
        iterations=len(times),
        seconds=seconds,
        tflops=2e-12 * size**3 / seconds,
    )


@logged
def peak_share(result, peak_tflops):
    if not peak_tflops > 0:
        raise ValueError("a peak is above 0")
    return float(result.tflops) / float(peak_tflops)


@logged
def plot_speedup(comparisons, path):
    columns = sorted((each.size, each.speedup) for each in comparisons)
    figure, [axis] = plotting.new_figure("Where the GPU pays", x_label="size of the matrices", y_label="times faster")
    axis.set(xscale="log", yscale="log")
    axis.plot([0.5 * columns[0][0], 2 * columns[-1][0]], [1, 1], ":", label="the same")
    axis.scatter(*zip(*columns, strict=True))
    axis.plot(*zip(*columns, strict=True), alpha=0.5)
    axis.legend()
    return plotting.save_png(figure, path)


@logged
def compare_precisions(create_model=None, create_batch=None, *, device="cuda"):
    from . import memory_profiling as given

    measure = functools.partial(
        given.profile_training_memory,
        create_model or given.default_model,
        create_batch or given.default_batch,
        device=device,
    )
    return tuple(measure(dtype=dtype) for dtype in (torch.float32, torch.float16))


@logged
def plot_memory(profiles, path):
    figure, axes = plotting.new_figure("Memory by stage", columns=len(profiles), x_label="stage", y_label="MiB")
    for axis, profile in zip(axes, profiles, strict=True):
        for offset, field in enumerate(("allocated_bytes", "reserved_bytes", "peak_bytes")):
            heights = [getattr(stage, field) / 2**20 for stage in profile.stages]
            places = [number + 0.27 * offset for number in range(len(heights))]
            axis.bar(places, heights, width=0.25, label=field.removesuffix("_bytes"))
        axis.set_xticks([number + 0.27 for number in range(len(profile.stages))])
        axis.set_xticklabels([stage.stage for stage in profile.stages], rotation=45)
        axis.set_title(profile.dtype)
        axis.legend()
    return plotting.save_png(figure, path)


@logged
def profile_operations(step, *, device="cuda", steps=5, warmup=2):
    if steps < 1:
        raise ValueError("steps")
    if warmup < 0:
        raise ValueError("warmup")
    gpu = torch.device(device).type == "cuda"
    call = logged(step) if hasattr(step, "__name__") else step
    recorder = torch.profiler.profile(
        activities=[ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * gpu],
        schedule=schedule(wait=warmup, warmup=0, active=steps, repeat=1) if warmup else None,
        record_shapes=False,
    )
    with recorder:
        for number in range(warmup + steps):
            call()
            if gpu and number + 1 in (warmup, warmup + steps):
                torch.cuda.synchronize()
            if warmup:
                recorder.step()
    rows = [
        OperationTime(
            name=row.key,
            calls=row.count,
            cpu_seconds=row.self_cpu_time_total / 1_000_000,
            device_seconds=row.self_device_time_total / 1_000_000,
        )
        for row in recorder.key_averages()
        if row.key.startswith("aten::") and row.device_type == torch.autograd.DeviceType.CPU
    ]
    rows.sort(key=lambda row: row.device_seconds if gpu else row.cpu_seconds, reverse=True)
    return rows
