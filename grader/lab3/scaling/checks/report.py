"""Judges Lab 3's written part: each claim of REPORT.md against the results beside it, and those against each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradebox.run.assertions import CheckFailed, require, require_between, require_close, require_equal
from gradebox.run.submission import Submission
from grader.lab3.scaling.reference import bottleneck, split
from grader.shared import reports

LAB = "lab3_distributed"
_WRITE = "what keeps more processes from being faster, and what you would do about it"
_NUMBER = (int, float)
_KINDS: reports.Kinds = {
    "device": (str,),
    "largest_world_size": (int,),
    "speedup_strong": _NUMBER,
    "efficiency_strong": _NUMBER,
    "speedup_weak": _NUMBER,
    "efficiency_weak": _NUMBER,
    "communication_share_strong": _NUMBER,
    "communication_share_weak": _NUMBER,
    "bottleneck_strong": (str,),
    "accuracy": _NUMBER,
    "backend": (str,),
}


@reports.explained
def judge(submission: Submission) -> None:
    """Fail unless REPORT.md is filled in and each claim follows from the results."""
    claims = reports.claims(submission, LAB, _KINDS, task="3.6", write=_WRITE)
    scaling = reports.results(submission, LAB, "scaling.json")
    training = reports.results(submission, LAB, "training.json")["results"][0]
    reports.require_device(claims["device"], scaling["provenance"])
    try:
        rows = {(row["kind"], int(row["world_size"])): row for row in scaling["results"]}
        largest = max(size for _, size in rows)
        chosen = {kind: (rows[kind, 1], rows[kind, largest]) for kind in ("strong", "weak")}
        rates = {kind: [_rate(row) for row in pair] for kind, pair in chosen.items()}
        parts = {kind: split(last["profile"]) for kind, (_, last) in chosen.items()}
        accuracy, backend = float(training["accuracy"]), training["backend"]
    except (KeyError, TypeError, ValueError):
        raise CheckFailed("results/scaling.json or training.json lacks a figure", "Run both programs again.") from None
    require(largest > 1, "results/scaling.json has one process only, so it says nothing of scaling")
    require_equal(claims["largest_world_size"], largest, what="claim largest_world_size")
    for kind, (alone, together) in rates.items():
        ratio = together / alone
        require_close(claims[f"speedup_{kind}"], ratio, relative=0.02, what=f"claim speedup_{kind}")
        require_close(claims[f"efficiency_{kind}"], ratio / largest, relative=0.02, what=f"claim efficiency_{kind}")
        share = parts[kind]["communication"] / sum(parts[kind].values())
        what = f"claim communication_share_{kind}"
        require_between(claims[f"communication_share_{kind}"], share - 0.01, share + 0.01, what=what)
    require_equal(claims["bottleneck_strong"], bottleneck(parts["strong"]), what="claim bottleneck_strong")
    require_between(claims["accuracy"], accuracy - 0.001, accuracy + 0.001, what="claim accuracy")
    require_equal(claims["backend"], backend, what="claim backend")


def _rate(row: Mapping[str, Any]) -> float:
    """Samples per second; fails if the row contradicts itself. `Any`: whatever the submission's file has."""
    rate = float(row["batch_size"]) / float(row["step_seconds"])
    require_close(
        float(row["samples_per_second"]), rate, relative=0.001, what="results/scaling.json, samples_per_second"
    )
    return rate
