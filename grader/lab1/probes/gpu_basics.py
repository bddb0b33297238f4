"""Probes of Lab 1: what the student's environment, benchmark and analysis report, beside what the GPU really did."""

from __future__ import annotations

import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

from gradebox.sandbox.measuring import measures
from grader.shared.probes.calls import on_device
from grader.shared.probes.card import full_precision, wake
from grader.shared.probes.endings import ending
from grader.shared.probes.record import next_stage, reading, watch_products
from grader.shared.probes.support import fields, plain, sequence
from labkit.results import Comparison, Environment, MatmulResult

BENCHMARK = "lab1_gpu_basics.benchmark"


def environment(student: Any, *, devices: Sequence[str | None], refused: Sequence[str] = ()) -> dict[str, Any]:
    """What `check_environment` says of each of `devices`, and without pynvml, beside what this process finds.

    Args:
        refused: devices that there are not.
    """
    check = student.module("lab1_gpu_basics.environment").check_environment
    on_gpu = torch.cuda.is_available()
    busy = torch.empty(2**24, dtype=torch.uint8, device=student.device)  # what is free is less than all
    told = [
        fields(check() if device is None else check(device), Environment, f"check_environment({device!r})")
        for device in devices
    ]
    endings = [ending(lambda: check(device)) for device in refused]  # noqa: B023 - called at once
    driver = _driver()
    bare, driverless = (
        _with_pynvml(module, lambda: fields(check(), Environment, "check_environment()"))
        for module in (None, _driverless())
    )
    del busy
    return {
        "told": told,
        "endings": endings,
        "without_pynvml": bare,
        "without_driver": driverless,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "driver": driver,
        "profiler": bool(torch.profiler.kineto_available()),
        "device_name": torch.cuda.get_device_name(0) if on_gpu else None,
        "processor": platform.processor() or platform.machine(),
        "memory_bytes": torch.cuda.get_device_properties(0).total_memory if on_gpu else None,
        "capability": list(torch.cuda.get_device_capability(0)) if on_gpu else None,
    }


def _with_pynvml(module: ModuleType | None, call: Callable[[], Any]) -> Any:
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

    def unloaded(*_: Any, **__: Any) -> Any:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    found = ModuleType("pynvml")
    for name, value in vars(pynvml).items():
        asks = name.startswith("nvml") and callable(value) and name not in ("nvmlErrorString", "nvmlExceptionClass")
        setattr(found, name, unloaded if asks else value)
    return found


def _driver() -> str | None:
    """What NVML says, or None without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return None


@measures("time")
def matmul(
    student: Any,
    *,
    calls: Sequence[dict[str, Any]],
    warm: bool = False,
    busy_products: int = 0,
    truth: bool = False,
) -> dict[str, Any]:
    """Call `benchmark_matmul` once per entry of `calls` (its arguments) and report results and products.

    Args:
        calls: with `as_object` the device is a `torch.device`; with `busy` so many products of the call's size are
            queued before it, whatever `busy_products` says.
        warm: use the device before the first call, so that only the student's own mistakes cost time.
        busy_products: before each call, queue this many products of the call's size without waiting for them.
        truth: also measure each product independently, around the student's call (real GPU only).

    Each call is a stage of its own, with what is queued before it.
    """
    module = student.module(BENCHMARK)
    observed: list[dict[str, Any]] = []
    host_seconds = 0.0
    if truth:
        wake()
    for call in calls:
        arguments = {"device": student.device, **call}
        _typed(arguments)
        size, dtype = arguments["size"], arguments.get("dtype", torch.float32)
        busy = arguments.pop("busy", busy_products)
        if arguments.pop("as_object", False):
            arguments["device"] = torch.device(arguments["device"])
        if warm:
            _queue_products(arguments["device"], size, dtype, 3)
            _synchronize()
        # Measured before a first, cold call it would do the student's warm-up for them.
        truths = _true_seconds(size, dtype) if truth and (warm or observed) else []
        next_stage(student.gpu)
        if busy:
            _queue_products(arguments["device"], size, dtype, busy)
        with watch_products(student.gpu) as products:
            result = _benchmark(module.benchmark_matmul, arguments)
            ran = products.counts()
        if truth:
            truths += _true_seconds(size, dtype)
            host_seconds = host_seconds or _host_seconds()
        observed.append(
            {
                "result": fields(result, MatmulResult, f"benchmark_matmul({arguments['device']!r}, {size})"),
                "products": ran,
                "truth": truths,
                "host_seconds": host_seconds,
                "tf32": truth and torch.backends.cuda.matmul.fp32_precision == "tf32",
                "idle_at_start": None
                if student.gpu is None
                else reading(student.gpu, "idle_at_start", 0, size=size, timed=arguments.get("iterations", 100)),
            }
        )
    return {"calls": observed}


def _benchmark(run: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Device and size by their places, as the document calls it; and nothing that the call does not name."""
    others = {name: value for name, value in arguments.items() if name not in ("device", "size")}
    return run(arguments["device"], arguments["size"], **others)


def _typed(arguments: dict[str, Any]) -> None:
    """A dtype by its name becomes PyTorch's."""
    if "dtype" in arguments:
        arguments["dtype"] = getattr(torch, arguments["dtype"])


def matmul_refusals(student: Any, *, cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How `benchmark_matmul` ends with each case's arguments, on the GPU unless they name a device."""
    run = student.module(BENCHMARK).benchmark_matmul
    return {"endings": [ending(lambda: _benchmark(run, {"device": student.device, **case})) for case in cases]}  # noqa: B023


def _queue_products(device: str | torch.device, size: int, dtype: torch.dtype, count: int) -> None:
    left = torch.ones(size, size, device=device, dtype=dtype)
    for _ in range(count):
        torch.mm(left, left)


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


_HELD_CYCLES = 4_000_000
"""Of a kernel that does nothing: two milliseconds or more, in which the host puts ten products behind it."""


def _true_seconds(size: int, dtype: torch.dtype) -> list[float]:
    """Quartiles of the seconds per product on a real GPU, by two methods that are both right.

    Of the products alone, which wait in the queue, so that no launch is in it; and of single products by the host's
    clock, from an idle device to an idle device, watched as the submission's are: on an H100 that takes some 5 % longer
    for products of milliseconds, and 30 to 60 us more for short ones. On a card whose clock changes they lie apart.
    """
    left = torch.randn(size, size, device="cuda").to(dtype)
    right = torch.randn(size, size, device="cuda").to(dtype)
    out = torch.empty_like(left)
    with full_precision():
        for _ in range(10):
            torch.mm(left, right, out=out)
        return [
            *_held_seconds(lambda: torch.mm(left, right, out=out)),
            *_waited_seconds(lambda: torch.mm(left, right)),
        ]


def _host_seconds() -> float:
    """What the host takes for a product that costs the device nothing, watched, from an idle device to an idle one."""
    tiny = torch.ones(16, 16, device="cuda")
    torch.mm(tiny, tiny)
    return max(_waited_seconds(lambda: torch.mm(tiny, tiny)))


def _held_seconds(launch: Callable[[], object], count: int = 10, blocks: int = 5) -> list[float]:
    found: list[float] = []
    for _ in range(blocks):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(_HELD_CYCLES)
        start.record()
        for _ in range(count):
            launch()
        stop.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(stop) / 1e3 / count)
    return _quartiles(found)


def _waited_seconds(launch: Callable[[], object], count: int = 9) -> list[float]:
    found: list[float] = []
    with watch_products(None):
        for _ in range(count):
            torch.cuda.synchronize()
            start = time.perf_counter()
            launch()
            torch.cuda.synchronize()
            found.append(time.perf_counter() - start)
    return _quartiles(found)


def _quartiles(found: Sequence[float]) -> list[float]:
    """The lower and the upper one: a median of such times lies between them, whatever a single one was."""
    low, _, high = statistics.quantiles(found, n=4, method="inclusive")
    return [low, high]


def compare(
    student: Any,
    *,
    calls: Sequence[dict[str, Any]],
    refused: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """`compare_cpu_gpu` once per entry of `calls` (its arguments), and the products that ran meanwhile.

    Args:
        refused: arguments that make no sense.
    """
    run, compared = student.module(BENCHMARK).compare_cpu_gpu, []
    with watch_products(student.gpu) as products:
        for call in calls:
            arguments = dict(call)
            _typed(arguments)
            rows = sequence(run(**{**on_device(student), **arguments}), "compare_cpu_gpu()")
            compared.append([fields(row, Comparison, f"compare_cpu_gpu()[{i}]") for i, row in enumerate(rows)])
        ran = products.counts()
    endings = [ending(lambda: run(**{**on_device(student), **case})) for case in refused]  # noqa: B023
    return {"rows": compared, "products": ran, "endings": endings}


def _comparison(size: int, cpu_seconds: float, gpu_seconds: float) -> Comparison:
    def result(device: str, seconds: float) -> MatmulResult:
        tflops = 2 * size**3 / seconds / 1e12
        return MatmulResult(device=device, dtype="float32", size=size, iterations=100, seconds=seconds, tflops=tflops)

    cpu, gpu = result("cpu", cpu_seconds), result("cuda", gpu_seconds)
    return Comparison(size=size, cpu=cpu, gpu=gpu, speedup=cpu_seconds / gpu_seconds)


def crossover(student: Any, *, cases: Sequence[Sequence[Sequence[float]]]) -> dict[str, Any]:
    """`find_crossover` on each case: rows of (size, CPU seconds, GPU seconds)."""
    find = student.module(BENCHMARK).find_crossover
    return {
        "sizes": [
            plain(find([_comparison(int(size), cpu, gpu) for size, cpu, gpu in case]), "find_crossover()")
            for case in cases
        ]
    }


def bounds(student: Any, *, cases: Sequence[dict[str, Any]], refused: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """`classify_bound` with each case's arguments, and with those that make no sense."""
    classify = student.module(BENCHMARK).classify_bound
    return {
        "bounds": [plain(classify(**case), "classify_bound()") for case in cases],
        "endings": [ending(lambda: classify(**case)) for case in refused],  # noqa: B023
    }


def peak_share(student: Any, *, cases: Sequence[dict[str, float]], refused: Sequence[float] = ()) -> dict[str, Any]:
    """`peak_share` of results that took these seconds, and with peaks that make no sense."""
    share = student.module(BENCHMARK).peak_share
    return {
        "shares": [
            plain(share(_comparison(int(case["size"]), 1.0, case["seconds"]).gpu, case["peak_tflops"]), "peak_share()")
            for case in cases
        ],
        "endings": [ending(lambda: share(_comparison(64, 1.0, 1e-3).gpu, peak)) for peak in refused],  # noqa: B023
    }
