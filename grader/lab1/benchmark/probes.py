"""Probes of Lab 1's benchmark: descriptions of the machine, comparisons, refusals, and the program."""

from __future__ import annotations

import functools
import platform
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TypeVar, cast

import torch

from gradebox.sandbox.probe_loader import Student
from grader.lab1.benchmark.cases import (
    BenchmarkPictures,
    Compare,
    CompareCall,
    CompareReply,
    ComparisonRow,
    Described,
    DescribeEnvironment,
    EndingsReply,
    EnvironmentReply,
    RefusedProducts,
)
from grader.lab1.shared.cases.plots import PicturesReply
from grader.lab1.shared.probes.benchmark import BENCHMARK, called
from grader.lab1.shared.probes.plots import comparison, draw
from grader.shared.probes.calls import on_device
from grader.shared.probes.endings import ending
from grader.shared.probes.record import watch_products
from grader.shared.probes.support import fields, run_program, sequence
from labkit.results import Comparison, Environment

T = TypeVar("T")


def environment(student: Student, inputs: DescribeEnvironment) -> EnvironmentReply:
    """What `check_environment` says of each device, and without pynvml, beside what this process finds."""
    check = student.module("lab1_gpu_basics.environment").check_environment
    on_gpu = torch.cuda.is_available()
    busy = torch.empty(2**24, dtype=torch.uint8, device=student.device)  # what is free is less than all

    def described(*devices: str) -> Described:
        shown = f"check_environment({', '.join(map(repr, devices))})"
        return cast("Described", fields(check(*devices), Environment, shown))

    descriptions = [described() if device is None else described(device) for device in inputs.devices]
    endings = [ending(functools.partial(check, device)) for device in inputs.refused]
    driver = _driver()
    bare, driverless = (_with_pynvml(module, described) for module in (None, _driverless()))
    del busy
    return EnvironmentReply(
        described=descriptions,
        endings=endings,
        without_pynvml=bare,
        without_driver=driverless,
        python=platform.python_version(),
        torch=str(torch.__version__),
        cuda=torch.version.cuda,
        driver=driver,
        profiler=bool(torch.profiler.kineto_available()),
        device_name=torch.cuda.get_device_name(0) if on_gpu else None,
        processor=platform.processor() or platform.machine(),
        memory_bytes=torch.cuda.get_device_properties(0).total_memory if on_gpu else None,
        capability=list(torch.cuda.get_device_capability(0)) if on_gpu else None,
    )


def _with_pynvml(module: ModuleType | None, call: Callable[[], T]) -> T:
    """What `call` returns while `import pynvml` finds `module`; None: while there is no such package."""
    before = sys.modules.get("pynvml")
    sys.modules["pynvml"] = module  # type: ignore[assignment]
    try:
        return call()
    finally:
        sys.modules.pop("pynvml")
        if before is not None:
            sys.modules["pynvml"] = before


def _driverless() -> ModuleType:
    """pynvml as it is on a machine with NVIDIA's library, whose driver is not loaded: every function says so."""
    import pynvml

    def unloaded(*_: object, **__: object) -> object:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    replaced = ModuleType("pynvml")
    for name, value in vars(pynvml).items():
        asks = name.startswith("nvml") and callable(value) and name not in ("nvmlErrorString", "nvmlExceptionClass")
        setattr(replaced, name, unloaded if asks else value)
    return replaced


def _driver() -> str | None:
    """What NVML says, or None without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return None


def refused_products(student: Student, inputs: RefusedProducts) -> EndingsReply:
    """How `benchmark_matmul` ends with each case's arguments, on the GPU unless they name a device."""
    run = student.module(BENCHMARK).benchmark_matmul
    return EndingsReply(
        endings=[
            ending(functools.partial(called, run, case, case.get("device", student.device))) for case in inputs.cases
        ]
    )


def compare(student: Student, inputs: Compare) -> CompareReply:
    """`compare_cpu_gpu` once per call, and the products that ran meanwhile."""
    run = student.module(BENCHMARK).compare_cpu_gpu

    def compared(call: CompareCall) -> object:
        arguments: dict[str, object] = {**on_device(student), **call}
        if "dtype" in call:
            arguments["dtype"] = getattr(torch, call["dtype"])
        rows: object = run(**arguments)
        return rows

    answers: list[list[ComparisonRow]] = []
    with watch_products(student.gpu) as products:
        for call in inputs.calls:
            rows = sequence(compared(call), "compare_cpu_gpu()")
            answers.append(
                [
                    cast("ComparisonRow", fields(row, Comparison, f"compare_cpu_gpu()[{index}]"))
                    for index, row in enumerate(rows)
                ]
            )
        ran = products.counts()
    endings = [ending(functools.partial(compared, call)) for call in inputs.refused]
    return CompareReply(rows=answers, products=ran, endings=endings)


def pictures(student: Student, inputs: BenchmarkPictures) -> PicturesReply:
    """Run the benchmark program with these arguments; then `plot_speedup` of made-up comparisons."""
    made = [[comparison(int(size), cpu, gpu) for size, cpu, gpu in rows] for rows in inputs.plots]
    program = functools.partial(run_program, student, BENCHMARK, inputs.command)
    return draw(program, "plot_speedup", lambda: student.module(BENCHMARK).plot_speedup, made)
