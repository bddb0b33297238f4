"""Judges Lab 5's written part: each claim of REPORT.md against the results beside it, and those against each other."""

from __future__ import annotations

from gradebox.run.assertions import CheckFailed, require, require_close, require_equal
from gradebox.run.submission import Submission
from grader.shared import reports
from grader.shared.programs import Json

LAB = "lab5_production"
_WRITE = (
    "what a resume must restore, where the time of a step went, what was changed for it, what you would be woken up for"
)
_NUMBER = (int, float)
_KINDS: reports.Kinds = {
    "device": (str,),
    "epochs": (int,),
    "optimizer_steps": (int,),
    "skipped_steps": (int,),
    "best_epoch": (int,),
    "best_accuracy": _NUMBER,
    "bottleneck_as_found": (str,),
    "utilization_as_found": _NUMBER,
    "utilization_tuned": _NUMBER,
    "speedup": _NUMBER,
    "tuned_batch_size": (int,),
    "tuned_num_workers": (int,),
    "monitor_overhead": _NUMBER,
}


@reports.explained
def judge(submission: Submission) -> None:
    """Fail unless REPORT.md is filled in and each claim follows from the results."""
    claims = reports.claims(submission, LAB, _KINDS, task="5.6", write=_WRITE)
    documents = {name: reports.results(submission, LAB, f"{name}.json") for name in _PARTS}
    reports.require_device(claims["device"], documents["training"]["provenance"])
    for name, part in _PARTS.items():
        try:
            part(claims, documents[name]["results"])
        except (KeyError, TypeError, ValueError, IndexError, ZeroDivisionError):
            raise CheckFailed(
                f"results/{name}.json lacks what the report is about", "Run the program that writes this file again."
            ) from None


def _judge_training(claims: reports.Claims, rows: list[Json]) -> None:
    (run,) = rows
    require_equal(claims["epochs"], len(run["epochs"]), what="claim epochs")
    require_equal(claims["optimizer_steps"], run["optimizer_steps"], what="claim optimizer_steps")
    require_equal(
        sum(epoch["optimizer_steps"] for epoch in run["epochs"]), run["optimizer_steps"],
        what="results/training.json: optimizer_steps of all epochs",
    )  # fmt: skip
    skipped = sum(epoch["skipped_steps"] for epoch in run["epochs"])
    require_equal(claims["skipped_steps"], skipped, what="claim skipped_steps")
    require_equal(claims["best_epoch"], run["best_epoch"], what="claim best_epoch")
    (best,) = [
        test
        for epoch, test in zip(run["epochs"], run["validations"], strict=True)
        if epoch["epoch"] == run["best_epoch"]
    ]
    require_equal(
        best["loss"], min(test["loss"] for test in run["validations"]),
        what="results/training.json: validation loss of the best epoch",
    )  # fmt: skip
    require_close(claims["best_accuracy"], best["accuracy"], relative=0.005, what="claim best_accuracy")


def _judge_profiling(claims: reports.Claims, rows: list[Json]) -> None:
    as_found, tuned = rows[0], rows[-1]
    require_equal(claims["bottleneck_as_found"], as_found["bottleneck"], what="claim bottleneck_as_found")
    for name, stage in (("utilization_as_found", as_found), ("utilization_tuned", tuned)):
        require_close(claims[name], stage["point"]["utilization"], relative=0.02, what=f"claim {name}")
    speedup = tuned["point"]["samples_per_second"] / as_found["point"]["samples_per_second"]
    require_close(claims["speedup"], speedup, relative=0.02, what="claim speedup")
    require(speedup > 1, f"results/profiling.json: the tuned pipeline is {speedup:.3g} times as fast as it was found")
    for name in ("batch_size", "num_workers"):
        require_equal(claims[f"tuned_{name}"], tuned["point"]["settings"][name], what=f"claim tuned_{name}")


def _judge_monitoring(claims: reports.Claims, rows: list[Json]) -> None:
    (row,) = rows
    overhead = row["monitored_step_seconds"] / row["bare_step_seconds"] - 1
    apart = abs(float(claims["monitor_overhead"]) - overhead)
    require(
        apart <= max(0.02 * abs(overhead), 0.0006),
        f"claim monitor_overhead: saw {claims['monitor_overhead']}, expected {overhead:.3g}",
        "Compute monitored_step_seconds / bare_step_seconds - 1.",
    )


_PARTS = {"training": _judge_training, "profiling": _judge_profiling, "monitoring": _judge_monitoring}
