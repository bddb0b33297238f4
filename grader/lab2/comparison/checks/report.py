"""Judges Lab 2's written part: compares each claim of REPORT.md with the results, and these with each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from gradebox.run.assertions import CheckFailed, require, require_between, require_close, require_equal
from gradebox.run.submission import Submission
from grader.shared import reports

LAB = "lab2_mixed_precision"
Json: TypeAlias = Any
"""What is in a file that somebody may have edited."""
_WRITE = "why the speedups are what they are, and what the unstable model showed"
_NUMBER = (int, float)
_KINDS: reports.Kinds = {
    "device": (str,),
    "speedup_float16": _NUMBER,
    "speedup_bfloat16": _NUMBER,
    "memory_ratio_float16": _NUMBER,
    "memory_ratio_bfloat16": _NUMBER,
    "accuracy_float32": _NUMBER,
    "accuracy_float16": _NUMBER,
    "accuracy_bfloat16": _NUMBER,
    "recommended": (str,),
    "largest_float16": _NUMBER,
    "skipped_with_large_gradients": (int,),
    "scale_that_fits": _NUMBER,
    "layer_that_overflows": (str,),
}
_LARGE_GRADIENTS, _LARGE_ACTIVATIONS = 2.0**14, 2.0**-20


@reports.explained
def judge(submission: Submission) -> None:
    """Fail unless REPORT.md is filled in and each claim follows from the results."""
    claims = reports.claims(submission, LAB, _KINDS, task="2.4", write=_WRITE)
    precisions = reports.results(submission, LAB, "precisions.json")
    stability = reports.results(submission, LAB, "stability.json")
    reports.require_device(claims["device"], precisions["provenance"])
    _judge_precisions(claims, precisions["results"], on_cpu=precisions["provenance"].get("device") == "cpu")
    _judge_stability(claims, stability["results"])
    require_equal(float(claims["largest_float16"]), 65504.0, what="claim largest_float16")


def _judge_precisions(claims: Mapping[str, Json], rows: list[Json], *, on_cpu: bool) -> None:
    try:
        results = {
            row["dtype"]: (
                float(row["step_seconds"]),
                None if on_cpu else float(row["peak_bytes"]),
                float(row["accuracy"]),
            )
            for row in rows
        }
        base_seconds, base_peak, base_accuracy = results["float32"]
        low = {name: results[name] for name in ("float16", "bfloat16")}
    except (KeyError, TypeError, ValueError):
        raise CheckFailed(
            "results/precisions.json lacks a precision", "Run the program precision_comparison again."
        ) from None
    for name, (took, peak, _) in low.items():
        require_close(claims[f"speedup_{name}"], base_seconds / took, relative=0.02, what=f"claim speedup_{name}")
        if peak is not None and base_peak is not None:
            require_close(
                claims[f"memory_ratio_{name}"], peak / base_peak, relative=0.02, what=f"claim memory_ratio_{name}"
            )
            # Parameters, gradients and Adam's averages stay in float32, so not even half can be saved.
            require(
                0.4 * base_peak <= peak,
                f"results/precisions.json: {name} needs {peak / base_peak:.0%} of float32's memory",
                ("Do not cast the model. Autocast keeps parameters, gradients and the optimizer's state in float32."),
            )
    for name, (_, _, accuracy) in results.items():
        require_between(claims[f"accuracy_{name}"], accuracy - 0.001, accuracy + 0.001, what=f"claim accuracy_{name}")
    eligible = [name for name, (_, _, accuracy) in results.items() if accuracy >= base_accuracy - 0.01]
    limit = 1.05 * min(results[name][0] for name in eligible)
    order = ("bfloat16", "float16", "float32")
    expected = next(name for name in order if name in eligible and results[name][0] <= limit)
    require_equal(claims["recommended"], expected, what="claim recommended, by the rule of conclude()")


def _judge_stability(claims: Mapping[str, Json], rows: list[Json]) -> None:
    try:
        runs = {(row["gain"], row["dtype"], row["scales"][0] != 1): row for row in rows}
        gradients = runs[_LARGE_GRADIENTS, "float16", True]
        activations = runs[_LARGE_ACTIVATIONS, "float16", True]
        skipped, scale = int(gradients["skipped_steps"]), float(gradients["scales"][-1])
        layer, taken = activations["nonfinite_layer"], int(activations["optimizer_steps"])
    except (KeyError, TypeError, ValueError, IndexError):
        raise CheckFailed("results/stability.json lacks a run", "Run the program stability_tests again.") from None
    require_equal(claims["skipped_with_large_gradients"], skipped, what="claim skipped_with_large_gradients")
    require_close(claims["scale_that_fits"], scale, relative=1e-6, what="claim scale_that_fits")
    require_equal(claims["layer_that_overflows"], layer, what="claim layer_that_overflows")
    require_equal(taken, 0, what="results/stability.json: steps taken where activations overflow in float16")
