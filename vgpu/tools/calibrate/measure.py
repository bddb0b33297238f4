"""Measures the workloads on whatever "cuda" is: a real GPU, or the virtual one with `--virtual`.

Run as a process of its own (`python -m vgpu.tools.calibrate.measure out.json`), so that both begin in the same state.
It uses only PyTorch's public functions, which is the point: the virtual GPU must answer them as the real one does. Not
here: what is measured (`vgpu.tools.calibrate.workloads`), and what becomes of it (`vgpu.tools.calibrate.compare`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from vgpu.tools.calibrate.workloads import Step, Workload, workloads

ROUNDS = 7
_WARM_UP_CALLS = 3
# How long the device is kept busy while calls queue up behind it, at most: the calls must take the host less.
_HOLD_SECONDS = 0.02
_MEMORY = ("allocated", "peak allocated", "reserved", "peak reserved")


def machine() -> dict[str, Any]:
    """What a result depends on: the GPU, its driver, the host, and versions."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": torch.cuda.get_device_name(0), "compute_capability": list(torch.cuda.get_device_capability(0)),
        "memory_bytes": properties.total_memory, "multiprocessors": properties.multi_processor_count,
        "driver": _driver(), "host": platform.processor() or platform.machine(), "cores": os.cpu_count(),
        "platform": platform.platform(), "python": platform.python_version(), "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
    }  # fmt: skip


def _driver() -> str | None:
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            return str(pynvml.nvmlSystemGetDriverVersion())
        finally:
            pynvml.nvmlShutdown()
    except Exception:  # no pynvml, or no NVML: the version is only reported
        return None


def start_up() -> list[dict[str, Any]]:
    """First uses, which must come before anything else: context, cuBLAS, cuDNN. Seconds."""
    clock = time.perf_counter
    entries = []

    def timed(name: str, call: Callable[[], Any]) -> None:
        begin = clock()
        call()
        torch.cuda.synchronize()
        entries.append(_entry("start-up", name, "seconds", clock() - begin))

    timed("CUDA context, first tensor", lambda: torch.zeros(1, device="cuda"))
    free, total = torch.cuda.mem_get_info()
    context = total - free - torch.cuda.memory_reserved()
    a = torch.zeros(64, 64, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() + a.nbytes  # and the product
    timed("cuBLAS, first product", lambda: a @ a)
    workspace = torch.cuda.max_memory_allocated() - before
    x, w = torch.zeros(1, 8, 8, 8, device="cuda"), torch.zeros(8, 8, 3, 3, device="cuda")
    timed("cuDNN, first convolution", lambda: torch.nn.functional.conv2d(x, w))
    entries.append(_entry("memory", "CUDA context", "bytes", context))
    entries.append(_entry("memory", "cuBLAS workspace", "bytes", workspace))
    return entries


def _entry(group: str, name: str, unit: str, value: float, spread: float = 0.0) -> dict[str, Any]:
    return {"group": group, "name": name, "unit": unit, "value": value, "spread_ratio": spread}


def measure(chosen: Sequence[Workload], rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """One entry per workload and quantity: group, name, unit, median value and spread, or an "error" instead."""
    entries: list[dict[str, Any]] = []
    for workload in chosen:
        try:
            entries += _measure(workload, rounds)
        except (RuntimeError, TypeError, ValueError) as error:  # unsupported there, or out of memory
            text = str(error).splitlines()[0]
            entries.append({"group": workload.group, "name": workload.name, "unit": "seconds", "error": text})
        if workload.memory:  # modules have reference cycles
            gc.collect()
        torch.cuda.empty_cache()
    return entries


def _measure(workload: Workload, rounds: int) -> list[dict[str, Any]]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = workload.tf32
    try:
        torch.cuda.reset_peak_memory_stats()
        step = workload.make()
        for _ in range(_WARM_UP_CALLS):
            step()
        torch.cuda.synchronize()
        timer = {"device": _device_seconds, "host": _host_seconds, "both": _total_seconds}[workload.clock]
        times = sorted(timer(step, workload.repeats) for _ in range(rounds))
        middle = statistics.median(times)
        spread = (times[(3 * len(times)) // 4] - times[len(times) // 4]) / middle if middle else 0.0
        entries = [_entry(workload.group, workload.name, "seconds", middle, spread)]
        if workload.moved_bytes:
            entries[0]["moved_bytes"] = workload.moved_bytes
        if workload.memory:
            values = (
                torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(), torch.cuda.memory_reserved(),
                torch.cuda.max_memory_reserved(),
            )  # fmt: skip
            for name, size in zip(_MEMORY, values, strict=True):
                entries.append(_entry("memory", f"{workload.name}: {name}", "bytes", size))
        return entries
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _device_seconds(step: Step, repeats: int) -> float:
    """Seconds of device time per call. The calls wait behind a spinning kernel, so none waits for its launch."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    rate = getattr(torch.cuda.get_device_properties(0), "clock_rate", 2_000_000) * 1e3
    torch.cuda._sleep(int(_HOLD_SECONDS * rate))
    begin.record()
    for _ in range(repeats):
        step()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / repeats


def _host_seconds(step: Step, repeats: int) -> float:
    """Seconds until a call returns, without waiting for the device."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(repeats):
        step()
    seconds = time.perf_counter() - begin
    torch.cuda.synchronize()
    return seconds / repeats


def _total_seconds(step: Step, repeats: int) -> float:
    """Seconds per call until the device is done with all of them."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(repeats):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / repeats


def everything(rounds: int = ROUNDS) -> dict[str, Any]:
    """The machine and every entry, for a fresh process."""
    entries = start_up()
    return {"machine": machine(), "entries": entries + measure(workloads(), rounds)}


def main(argv: Sequence[str] | None = None) -> int:
    """Write the result as JSON."""
    parser = argparse.ArgumentParser(prog="python -m vgpu.tools.calibrate.measure", description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--virtual", metavar="SPEC", help="measure on this virtual GPU, with shapes only")
    options = parser.parse_args(argv)
    if options.virtual is None:
        result = everything()
    else:
        from vgpu.torch_integration.attach import attach

        # Deterministic: every round would be the same.
        with attach(options.virtual, values=False, force=True):
            result = everything(rounds=1)
    options.path.write_text(json.dumps(result, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
