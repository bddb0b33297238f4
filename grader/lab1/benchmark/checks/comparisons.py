"""Judges what is counted and compared: products of a call, rows of `compare_cpu_gpu` and of its results file."""

from __future__ import annotations

from gradebox.run.assertions import Cause, CheckFailed, positive, require, require_close, require_equal
from grader.lab1.benchmark.cases import ComparisonRow, Measured
from grader.lab1.shared.cases.products import Result
from grader.lab1.shared.checks.documents import Document
from grader.lab1.shared.checks.measuring import as_written
from grader.lab1.shared.checks.mistakes import recognised_elsewhere, recognised_fields
from grader.lab1.shared.reference import Measurement

MANY = 60
_OWN_WARM_UP = 3
"""Products per timed one: `torch.utils.benchmark` runs two before each measurement."""
FIELDS = Cause(
    "field_of_the_result",
    "Fill each field with what its line in the docstring says: `size` and `iterations` as they were given.",
    "lab1.benchmark.returns_result",
    mistake="MatmulResult.size or MatmulResult.iterations is not the number that was passed",
)
"""What is measured can be judged all the same."""


def require_counted(measured: Measurement) -> None:
    """Fail unless as many products ran as were asked for, in the type asked for, and the result says so."""
    call, result, iterations = measured.call, measured.observed.result, measured.iterations
    what, warmup = as_written(call), call.get("warmup", 0)
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
        hint=FIELDS,
    )
    ran, least = measured.count(), warmup + iterations
    # Some timers warm up by themselves, even for each product.
    with recognised_elsewhere(measured):
        require(
            least <= ran <= _OWN_WARM_UP * (iterations + 4) + (warmup if "warmup" in call else MANY),
            f"{what} ran {ran} products of {call['size']} in {measured.dtype}, expected {least}",
            "Run `warmup` products before the first timed one, and time `iterations` products in all measurements "
            "together, a last and shorter block included.",
        )


def require_compared(
    row: ComparisonRow, iterations: int, cpu_iterations: int | None = None, dtype: str = "float32"
) -> None:
    """Fail unless one comparison is of a CPU with a GPU, and its ratio the right way up."""
    what = f"compare_cpu_gpu() at {row['size']}"
    sides: dict[str, Result] = {"cpu": row["cpu"], "gpu": row["gpu"]}
    require(str(row["cpu"]["device"]) == "cpu", f"{what}: .cpu was measured on {row['cpu']['device']!r}")
    require(str(row["gpu"]["device"]).startswith("cuda"), f"{what}: .gpu was measured on {row['gpu']['device']!r}")
    hint = Cause(
        FIELDS.name,
        "Pass `iterations` and `cpu_iterations` on to benchmark_matmul, which reports them as they were given.",
        FIELDS.check,
        mistake="MatmulResult.iterations is not the number that was passed",
    )
    require_equal(row["gpu"]["iterations"], iterations, what=f"{what}: .gpu.iterations", hint=hint)
    if cpu_iterations is not None:
        require_equal(row["cpu"]["iterations"], cpu_iterations, what=f"{what}: .cpu.iterations", hint=hint)
    for side, result in sides.items():
        kind = str(result["dtype"]).removeprefix("torch.")
        require_equal(kind, dtype, what=f"{what}: .{side}.dtype")
    cpu, gpu = (positive(result["seconds"], f"{what}: .{side}.seconds") for side, result in sides.items())
    require_close(row["speedup"], cpu / gpu, relative=1e-6, what=f"{what}, speedup = cpu.seconds / gpu.seconds")


def compared(row: Document) -> Measured:
    """Size and times of a row of benchmark.json, which may be anything; fails unless it also has their ratio."""
    try:
        cpu, gpu = (positive(row[side]["seconds"], f"benchmark.json: {side}.seconds") for side in ("cpu", "gpu"))
        size, ratio = row["size"], row["speedup"]
    except (KeyError, TypeError):
        raise CheckFailed(
            "benchmark.json holds no comparisons", "save what compare_cpu_gpu returns with labkit.results.save_json"
        ) from None
    require_close(ratio, cpu / gpu, relative=1e-3, what=f"benchmark.json: speedup at {size}")
    return size, cpu, gpu
