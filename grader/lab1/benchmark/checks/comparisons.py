"""Judges what is counted and compared: products of a call, rows of `compare_cpu_gpu` and of its results file."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from gradebox.run.assertions import Cause, CheckFailed, positive, require, require_close, require_equal, shown
from grader.lab1.benchmark.cases import ComparisonRow, Measured
from grader.lab1.shared.cases.products import Result
from grader.lab1.shared.checks.documents import Document
from grader.lab1.shared.checks.measuring import as_written
from grader.lab1.shared.checks.mistakes import BLOCKS_OF_ALL, REMAINDER, recognised_elsewhere, recognised_fields
from grader.lab1.shared.reference import WARM_UP, Measurement

MANY = 60
_OWN_WARM_UP = 3
"""Products per timed one: `torch.utils.benchmark` runs two before each measurement."""
_BLOCKS = 5
"""Measurements that a result is the median of, at least."""
_PASS_DTYPE = "Pass `dtype` on to benchmark_matmul for both sides."
DTYPE_NOT_PASSED_ON = Cause(
    "dtype_not_passed_on",
    _PASS_DTYPE,
    "lab1.benchmark.all_sizes_compared",
    mistake="compare_cpu_gpu passes dtype on for one side only: the other one is measured in float32",
)
NOT_PASSED_ON = Cause(
    "iterations_not_passed_on",
    "Pass `iterations` on to benchmark_matmul for the GPU, and `cpu_iterations` for the CPU.",
    "lab1.benchmark.all_sizes_compared",
    mistake="compare_cpu_gpu does not pass iterations or cpu_iterations on to benchmark_matmul",
)
WARM_UP_COUNTED = Cause(
    "warm_up_counted",
    "Report as `iterations` how many products were timed, and leave the warm-up out.",
    "lab1.benchmark.returns_result",
    mistake="The warm-up counts among the iterations that MatmulResult reports",
)
UPSIDE_DOWN = Cause(
    "speedup_upside_down",
    "Divide the CPU's seconds by the GPU's: above 1 the GPU is faster.",
    "lab1.benchmark.all_sizes_compared",
    mistake="The speedup is turned over: GPU time / CPU time instead of CPU time / GPU time",
)
FIELDS = Cause(
    "field_of_the_result",
    "Fill each field with what its line in the docstring says: `size` and `iterations` as they were given.",
    "lab1.benchmark.returns_result",
    mistake="MatmulResult.size or MatmulResult.iterations is not the number that was passed",
)
"""What is measured can be judged all the same."""


def require_counted(measured: Measurement, own_warm_up: int) -> None:
    """Fail unless as many products ran as were asked for, in the type asked for, and the result says so.

    Args:
        measured: a call.
        own_warm_up: products that a call of this submission runs before the first timed one if nothing else is said.
    """
    call, result, iterations = measured.call, measured.observed.result, measured.iterations
    what, warmup = as_written(call), call.get("warmup", max(0, own_warm_up))
    place = call.get("device", "cuda").partition(":")[0]
    with recognised_fields(measured):
        require_equal(
            [result["device"], result["dtype"]],
            [place, measured.dtype],
            what=f"{what}: device and dtype of its MatmulResult",
        )
    require_equal(
        [result["size"], result["iterations"]],
        [call["size"], iterations],
        what=f"{what}: size and iterations of its MatmulResult",
        hint=fields_mistake([result["size"], result["iterations"]], call["size"], iterations, warmup),
    )
    ran, least = measured.count(), warmup + iterations
    # Some timers warm up by themselves, even for each product.
    with recognised_elsewhere(measured):
        require(
            least <= ran <= _OWN_WARM_UP * (iterations + 4) + (warmup if "warmup" in call else MANY),
            f"{what} ran {ran} products of {call['size']} in {measured.dtype}, expected {least}",
            _counted(ran - warmup, iterations)
            or "Run `warmup` products before the first timed one, and time `iterations` products in all measurements "
            "together, a last and shorter block included.",
        )


def _counted(timed: int, iterations: int) -> Cause | None:
    """The mistake that a number of timed products shows."""
    if iterations > _BLOCKS and timed == iterations * _BLOCKS:
        return BLOCKS_OF_ALL
    whole = {iterations // blocks * blocks for blocks in range(2, iterations)}
    return REMAINDER if timed < iterations and timed in whole else None


def fields_mistake(fields: Sequence[object], size: int | None, iterations: int, warmup: int) -> Cause:
    """The mistake that size and iterations of a result show."""
    return WARM_UP_COUNTED if warmup and list(fields) == [size, iterations + warmup] else FIELDS


def require_compared(
    row: ComparisonRow,
    iterations: int,
    cpu_iterations: int | None = None,
    dtype: str = "float32",
    reported: Callable[[int], object] | None = None,
) -> None:
    """Fail unless one comparison is of a CPU with a GPU, and its ratio the right way up.

    Args:
        row: the comparison.
        iterations: that were asked for on the GPU.
        cpu_iterations: that were asked for on the CPU, if any were.
        dtype: of both sides.
        reported: what the submission's benchmark_matmul reports as iterations on the GPU if it is given so many.
    """
    what = f"compare_cpu_gpu() at {row['size']}"
    sides: dict[str, Result] = {"cpu": row["cpu"], "gpu": row["gpu"]}
    require(str(row["cpu"]["device"]) == "cpu", f"{what}: .cpu was measured on {row['cpu']['device']!r}")
    require(str(row["gpu"]["device"]).startswith("cuda"), f"{what}: .gpu was measured on {row['gpu']['device']!r}")
    actual = row["gpu"]["iterations"]
    if actual != iterations and reported is not None and reported(iterations) == actual:
        cause = fields_mistake([None, actual], None, iterations, WARM_UP)
        raise CheckFailed(f"{what}: .gpu.iterations: saw {shown(actual)}, expected {iterations}", cause)
    require_equal(actual, iterations, what=f"{what}: .gpu.iterations", hint=NOT_PASSED_ON)
    if cpu_iterations is not None:
        what_cpu = f"{what}: .cpu.iterations"
        require_equal(row["cpu"]["iterations"], cpu_iterations, what=what_cpu, hint=NOT_PASSED_ON)
    kinds = {side: str(result["dtype"]).removeprefix("torch.") for side, result in sides.items()}
    for side, kind in kinds.items():
        hint = DTYPE_NOT_PASSED_ON if sorted(kinds.values()) == sorted(("float32", dtype)) else _PASS_DTYPE
        require_equal(kind, dtype, what=f"{what}: .{side}.dtype", hint=hint)
    cpu, gpu = (positive(result["seconds"], f"{what}: .{side}.seconds") for side, result in sides.items())
    require_close(
        row["speedup"],
        cpu / gpu,
        relative=1e-6,
        what=f"{what}, speedup = cpu.seconds / gpu.seconds",
        hint=_turned_over(row["speedup"], cpu / gpu),
    )


def compared(row: Document) -> Measured:
    """Size and times of a row of benchmark.json, which may be anything; fails unless it also has their ratio."""
    try:
        cpu, gpu = (positive(row[side]["seconds"], f"benchmark.json: {side}.seconds") for side in ("cpu", "gpu"))
        size, ratio = row["size"], row["speedup"]
    except (KeyError, TypeError):
        raise CheckFailed(
            "benchmark.json holds no comparisons", "Save what compare_cpu_gpu returns with labkit.results.save_json."
        ) from None
    hint = _turned_over(ratio, cpu / gpu)
    require_close(ratio, cpu / gpu, relative=1e-3, what=f"benchmark.json: speedup at {size}", hint=hint)
    return size, cpu, gpu


def _turned_over(seen: object, ratio: float) -> str:
    if isinstance(seen, float) and seen > 0 and math.isclose(seen, 1 / ratio, rel_tol=1e-3):
        return UPSIDE_DOWN
    return "Divide the CPU's seconds by the GPU's."
