"""Judges Lab 1's written part: each claim of REPORT.md against the results beside it, and those against physics.

Results must not be faster than the GPU they name, nor hold fewer bytes than the training step's own tensors.
"""

from __future__ import annotations

from collections.abc import Mapping

from gradebox.run.assertions import CheckFailed, require, require_close, require_equal
from gradebox.run.submission import Submission
from grader.lab1.shared.checks.documents import Document
from grader.shared import reports
from labkit.device import known_peaks
from labkit.results import STAGES

LAB = "lab1_gpu_basics"
_WRITE = "why the crossover is where it is, and what limits each size"
_KINDS: reports.Kinds = {
    "device": (str,),
    "crossover_size": (int, str),
    "best_speedup": (int, float),
    "best_speedup_size": (int,),
    "peak_share_4096": (int, float),
    "bound_128": (str,),
    "bound_4096": (str,),
    "memory_bottleneck": (str,),
    "peak_bytes_float32": (int,),
    "peak_bytes_float16": (int,),
    "fp16_saving": (int, float),
    "slowest_operation": (str,),
}


@reports.explained
def judge(submission: Submission) -> None:
    """Fail unless REPORT.md is filled in and each claim follows from the results."""
    claims = reports.claims(submission, LAB, _KINDS, task="1.5", write=_WRITE)
    benchmark = reports.results(submission, LAB, "benchmark.json")
    memory = reports.results(submission, LAB, "memory.json")
    operations = reports.results(submission, LAB, "operations.json")
    reports.require_device(claims["device"], benchmark["provenance"])
    environment = reports.results(submission, LAB, "environment.json")
    for name, document in (("memory", memory), ("operations", operations), ("environment", environment)):
        require_equal(
            document["provenance"].get("device_name"),
            benchmark["provenance"].get("device_name"),
            what=f"provenance.device_name in results/{name}.json",
            hint="Run all four programs with the same --device, and copy the numbers afterwards.",
        )
    _judge_benchmark(claims, benchmark)
    _judge_memory(claims, memory["results"])
    first = max(operations["results"], key=lambda row: row["device_seconds"])
    require_equal(claims["slowest_operation"], first["name"], what="claim slowest_operation")


def _judge_benchmark(claims: Mapping[str, Document], document: Mapping[str, Document]) -> None:
    try:
        rows = {
            row["size"]: (float(row["cpu"]["seconds"]), float(row["gpu"]["seconds"])) for row in document["results"]
        }
    except (KeyError, TypeError, ValueError):
        raise CheckFailed("results/benchmark.json holds no comparisons", "Run the program benchmark again.") from None
    require(
        all(seconds > 0 for both in rows.values() for seconds in both),
        "results/benchmark.json has times that are not above 0",
        "Run the program benchmark again.",
    )
    require({128, 4096} <= rows.keys(), f"results/benchmark.json has sizes {sorted(rows)}, expected 128 to 4096")
    speedup = {size: cpu / gpu for size, (cpu, gpu) in rows.items()}
    wins = [size for size in sorted(rows) if all(speedup[other] > 1 for other in rows if other >= size)]
    crossover = claims["crossover_size"]
    require(
        isinstance(crossover, int) or crossover == "never",
        f'claim crossover_size: saw {crossover!r}, expected a whole number or "never"',
        "Write the number without quotes.",
    )
    require_equal(crossover, wins[0] if wins else "never", what="claim crossover_size")
    best = max(speedup, key=lambda size: speedup[size])
    require_equal(claims["best_speedup_size"], best, what="claim best_speedup_size")
    require_close(claims["best_speedup"], speedup[best], relative=0.02, what="claim best_speedup")
    _judge_against_peak(claims, document["provenance"], {size: gpu for size, (_, gpu) in rows.items()})


def _judge_against_peak(
    claims: Mapping[str, Document], provenance: Mapping[str, Document], took: Mapping[int, float]
) -> None:
    """If the data sheet is known, shares and bounds follow from it, and no time may beat it."""
    peak = (provenance.get("peak_tflops") or {}).get("float32")
    bandwidth, launch = provenance.get("bandwidth_bytes_per_second"), provenance.get("launch_seconds")
    sheet = known_peaks(str(provenance.get("device_name")))
    if sheet is not None:  # a file may have lost or changed its figures
        peak, bandwidth = sheet.tflops.get("float32"), sheet.bandwidth_bytes_per_second
        launch = sheet.launch_seconds
    for name in ("bound_128", "bound_4096"):
        require(claims[name] in ("launch", "memory", "compute"), f"claim {name}: {claims[name]!r} is no bound")
    if not (peak and bandwidth and launch):
        return
    for size, seconds in took.items():
        tflops = 2 * size**3 / seconds / 1e12
        require(tflops <= peak, f"results/benchmark.json: {tflops:.4g} TFLOPS at {size}, above the peak of {peak:.4g}")
    share = 2 * 4096**3 / took[4096] / 1e12 / peak
    require_close(claims["peak_share_4096"], share, relative=0.02, what="claim peak_share_4096")
    for size in (128, 4096):
        limits = {"launch": launch, "memory": 12 * size**2 / bandwidth, "compute": 2 * size**3 / (peak * 1e12)}
        expected = max(limits, key=lambda name: limits[name])
        require_equal(claims[f"bound_{size}"], expected, what=f"claim bound_{size}")


def _judge_memory(claims: Mapping[str, Document], rows: list[Document]) -> None:
    try:
        profiles = {
            str(row["dtype"]).removeprefix("torch."): {stage["stage"]: stage for stage in row["stages"]} for row in rows
        }
        single, half = profiles["float32"], profiles["float16"]
        peaks = {name: int(single[name]["peak_bytes"]) for name in STAGES}
        half_peak = max(int(stage["peak_bytes"]) for stage in half.values())
        model, grown = (int(single[name]["allocated_bytes"]) for name in ("model", "step"))
    except (KeyError, TypeError, ValueError):
        raise CheckFailed(
            "results/memory.json does not hold both profiles", "Run the program memory_profiling again."
        ) from None
    require_equal(claims["memory_bottleneck"], max(peaks, key=lambda name: peaks[name]), what="claim memory_bottleneck")
    require_equal(claims["peak_bytes_float32"], max(peaks.values()), what="claim peak_bytes_float32")
    require_equal(claims["peak_bytes_float16"], half_peak, what="claim peak_bytes_float16")
    saving = 1 - half_peak / max(peaks.values())
    require_close(claims["fp16_saving"], saving, relative=0.02, what="claim fp16_saving")
    require(
        grown >= 3.9 * model > 0,
        f"results/memory.json: {grown} bytes after 'step' with a model of {model}",
        (
            "Run memory_profiling again and leave its file as it is. Parameters, gradients and "
            "Adam's two averages alone are four times the parameters."
        ),
    )
