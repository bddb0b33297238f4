"""Judges Lab 4's written part: it compares each claim of REPORT.md with the results, and these with each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from gradebox.run.assertions import CheckFailed, require, require_close, require_equal
from gradebox.run.submission import Submission
from grader.lab4.analysis.cases import PARTS
from grader.shared import reports

Claims: TypeAlias = Mapping[str, Any]
"""Each claim has one of the types in `_KINDS`."""
Row: TypeAlias = Any
"""JSON that a student committed. It is read as what the lab's program writes; if it is something else, that raises a
KeyError, a TypeError or a ValueError, and `judge` says so."""

LAB = "lab4_memory"
_WRITE = "what checkpointing and a fused kernel save and cost, which faults killed the script, where the memory goes"
_NUMBER = (int, float)
_KINDS: reports.Kinds = {
    "device": (str,),
    "peak_bytes_plain": (int,),
    "peak_bytes_every_1": (int,),
    "time_ratio_every_1": _NUMBER,
    "best_interval": (int,),
    "attention_backend": (str,),
    "memory_ratio_4096": _NUMBER,
    "speedup_4096": _NUMBER,
    "longest_standard": (int,),
    "longest_flash": (int,),
    "micro_batch": (int,),
    "oom_peak_bytes": (int,),
    "activation_share": _NUMBER,
    "worst_prediction": _NUMBER,
}
_LEAST_OOM_BYTES = 12 * 48 * (4096**2 + 4096)
"""Parameters and Adam's averages of the large model: below that nobody trained it."""


@reports.explained
def judge(submission: Submission) -> None:
    """Fail unless REPORT.md is filled in and each claim follows from the results."""
    claims = reports.claims(submission, LAB, _KINDS, task="4.6", write=_WRITE)
    documents = {
        name: reports.results(submission, LAB, f"{name}.json")
        for name in ("checkpointing", "attention", "oom", "memory")
    }
    reports.require_device(claims["device"], documents["checkpointing"]["provenance"])
    for name, part in (
        ("checkpointing", _judge_checkpointing),
        ("attention", _judge_attention),
        ("oom", _judge_oom),
        ("memory", _judge_memory),
    ):
        try:
            part(claims, documents[name]["results"])
        except (KeyError, TypeError, ValueError, ZeroDivisionError):
            raise CheckFailed(
                f"results/{name}.json lacks what the report is about", "Run the program that writes this file again."
            ) from None


def _judge_checkpointing(claims: Claims, rows: list[Row]) -> None:
    by_interval = {row["checkpoint_every"]: (float(row["step_seconds"]), int(row["peak_bytes"])) for row in rows}
    (plain_seconds, plain_peak), (seconds, peak) = by_interval[None], by_interval[1]
    require_equal(claims["peak_bytes_plain"], plain_peak, what="claim peak_bytes_plain")
    require_equal(claims["peak_bytes_every_1"], peak, what="claim peak_bytes_every_1")
    require(
        peak < plain_peak and plain_seconds < seconds < 2 * plain_seconds,
        f"results/checkpointing.json: a checkpointed step takes {seconds / plain_seconds:.2f} times as long and "
        f"{peak / plain_peak:.2f} of the memory",
        (
            "Run gradient_checkpointing again and leave its file as it is. One more forward pass "
            "takes less than twice the time."
        ),
    )
    require_close(claims["time_ratio_every_1"], seconds / plain_seconds, relative=0.02, what="claim time_ratio_every_1")
    fitting = {every: row for every, row in by_interval.items() if every is not None and row[1] <= plain_peak / 2}
    best = min(fitting, key=lambda every: fitting[every])
    require_equal(claims["best_interval"], best, what="claim best_interval")


def _judge_attention(claims: Claims, rows: list[Row]) -> None:
    done = {
        (row["method"], row["length"]): (float(row["seconds"]), int(row["peak_bytes"]))
        for row in rows
        if row["seconds"] is not None
    }
    backends = {row["backend"] for row in rows if row["method"] == "flash"}
    require_equal([claims["attention_backend"]], sorted(backends), what="claim attention_backend")
    left_out = {(row["method"], row["length"]) for row in rows if row.get("left_out") is not None}
    require(
        not left_out & {("standard", 4096), ("flash", 4096)},
        "results/attention.json: standard or flash attention of 4096 tokens was left out, which the report is about",
        "Run the program again with --seconds 600.",
    )
    standard, flash = done["standard", 4096], done["flash", 4096]
    require_close(claims["memory_ratio_4096"], standard[1] / flash[1], relative=0.02, what="claim memory_ratio_4096")
    require_close(claims["speedup_4096"], standard[0] / flash[0], relative=0.02, what="claim speedup_4096")
    for method in ("standard", "flash"):
        longest = max(length for name, length in done if name == method)
        require_equal(claims[f"longest_{method}"], longest, what=f"claim longest_{method}")


def _judge_oom(claims: Claims, rows: list[Row]) -> None:
    (row,) = rows
    require_equal(claims["micro_batch"], row["micro_batch"], what="claim micro_batch")
    require_equal(claims["oom_peak_bytes"], row["peak_bytes"], what="claim oom_peak_bytes")
    require(
        row["peak_bytes"] >= _LEAST_OOM_BYTES,
        f"results/oom.json: a peak of {row['peak_bytes']} bytes is less than the model and its averages",
        "Run the program with all its layers.",
    )


def _judge_memory(claims: Claims, rows: list[Row]) -> None:
    errors = [
        abs(row["predicted"][part] / row["measured"][part] - 1)
        for row in rows
        for part in PARTS
        if row["measured"][part] > 0
    ]
    worst = max(errors)
    require(
        abs(float(claims["worst_prediction"]) - worst) <= max(0.02 * worst, 1e-6),
        f"claim worst_prediction: saw {claims['worst_prediction']}, expected {worst:.3g}",
    )
    setup = {"model": "transformer", "optimizer": "adam", "dtype": "float32", "checkpoint_every": None}
    (row,) = [row for row in rows if all(row["setup"][name] == value for name, value in setup.items())]
    held = row["measured"]
    share = held["activation_bytes"] / sum(held[part] for part in PARTS)
    require_close(claims["activation_share"], share, relative=0.02, what="claim activation_share")
