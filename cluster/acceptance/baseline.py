"""Compares a run with an earlier report of the same machine: what got slower, and by how much."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.acceptance.checks.bandwidth import STREAMS
from cluster.acceptance.options import Options
from cluster.acceptance.verdict import Check, Part, Threshold, compared
from labkit.results import ResultsError

NOT_SLOWER = Threshold(
    value=0.9,
    unit="of the earlier report's value",
    relation="at least",
    source="ours: runs on an idle machine differ by a few percent",
)
MOST_SHOWN = 3
COMPARED = ("rate against the data sheet", "memory bandwidth: copy", "memory bandwidth: triad", "bus bandwidth")
"""Ends of the names of checks whose figures an earlier report has as well."""
ALIKE = ("device_name", "simulated", "world_size")
"""What two reports must have in common to be compared."""


@dataclass(frozen=True)
class Baseline:
    """An earlier report."""

    path: Path
    document: dict[str, Any]


def read(path: Path, options: Options) -> Baseline:
    """Read an earlier report.

    Raises:
        ResultsError: it is no report of this test, or of no run that this one could be compared with.
        OSError: it cannot be read.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        document["performance"]["collectives"], [document[name] for name in ALIKE]
    except (ValueError, KeyError, TypeError) as error:
        raise ResultsError(f"--baseline {path}: not a report of cluster.acceptance ({error!r})") from error
    try:
        problem = _incomplete(document, training=not options.validation_only)
    except (KeyError, TypeError, AttributeError) as error:
        problem = f"it is damaged ({error!r})"
    if problem:
        raise ResultsError(f"--baseline {path}: {problem}; give the report of a run that went through and was well")
    return Baseline(path, document)


def _incomplete(document: Mapping[str, Any], *, training: bool) -> str:
    """Why nothing could be compared with this report; empty where all could."""
    if document["acceptance"]["status"] not in ("PASS", "INCOMPLETE"):
        return f"its verdict is {document['acceptance']['status']}"
    if document["injected_faults"]:
        return f"faults were injected: {', '.join(document['injected_faults'])}"
    performance, ranks = document["performance"], document["world_size"]
    if len({product["rank"] for product in performance["products"]}) < ranks or not ranks:
        return "it has no products of some ranks"
    if ranks > 1 and not performance["collectives"]:
        return "it has no collectives"
    if training and len((performance["training"] or {}).get("images_per_second") or {}) < ranks:
        return "it has no training of some ranks (or leave it out here as well: --validation-only)"
    wrong = [key for key, value in _figures(document).items() if not isinstance(value, int | float) or not value > 0]
    return f"{wrong[0][1]} is no rate" if wrong else ""


def judge(document: Mapping[str, Any], earlier: Baseline) -> list[Check]:
    """Checks of every figure that both have. Needs a GPU: on a CPU nothing is compared."""
    other = earlier.document
    differing = [name for name in ALIKE if document[name] != other[name]]
    if differing or document["device"] != "cuda":
        reason = ", ".join(f"{name} {other[name]!r} then, {document[name]!r} now" for name in differing)
        return [
            _check(
                "comparable",
                "run",
                f"not compared with {earlier.path}: {reason or 'this run had no GPU'}",
            )
        ]
    checks = []
    now, then = _figures(document), _figures(other)
    for (part, name, subject, rank), value in now.items():
        before = then.pop((part, name, subject, rank), None)
        if before:
            ratio = value / before
            checks.append(
                Check(
                    name=f"baseline: {name}",
                    part=part,
                    subject=subject,
                    rank=rank,
                    status=compared(ratio, NOT_SLOWER),
                    evidence=f"{value:.4g} now, {before:.4g} on {other['test_timestamp']}: {ratio:.2f} of it",
                    remedy="what changed since: driver, firmware, cabling, cooling, neighbours on the node?",
                    measured=ratio,
                    threshold=NOT_SLOWER,
                )
            )
    trained = document["performance"]["training"] is not None
    left = [(name, subject) for part, name, subject, _ in then if part != "training" or trained]
    if checks and left:
        shown = ", ".join(f"{name} ({subject})" for name, subject in left[:MOST_SHOWN])
        evidence = f"{len(left)} figures of {earlier.path} are missing now: {shown}"
        checks.append(_check("measured again", "run", evidence))
    return checks or [_check("comparable", "run", f"{earlier.path} has no figure that this run has")]


def _check(name: str, part: Part, evidence: str) -> Check:
    return Check(
        name=f"baseline: {name}",
        part=part,
        subject="all ranks",
        status="unverified",
        evidence=evidence,
        remedy="give a report of the same number of the same GPUs",
        nothing_known=True,
    )


def _figures(document: Mapping[str, Any]) -> dict[tuple[Part, str, str, int | None], float]:
    """Figures that are better when larger, by part, name, subject and rank."""
    figures: dict[tuple[Part, str, str, int | None], float] = {}
    performance = document["performance"]
    for product in performance["products"]:
        name = f"TFLOPS of product {product['dtype']}"
        figures["gpu", name, f"rank {product['rank']}", product["rank"]] = product["tflops"]
    for row in performance.get("memory") or []:
        for name in STREAMS:
            if rate := row.get(f"{name}_bytes_per_second"):
                title = f"bandwidth of the GPU's memory, {name} (bytes/s)"
                figures["gpu", title, f"rank {row['rank']}", row["rank"]] = rate
    # Sizes rise: the last one stays.
    largest = {collective["operation"]: collective for collective in performance["collectives"]}
    for operation, collective in largest.items():
        name = f"bus bandwidth of {operation}, {collective['bytes']} bytes (bytes/s)"
        figures["communication", name, "all ranks", None] = collective["bus_bytes_per_second"]
    for rank, rate in ((performance["training"] or {}).get("images_per_second") or {}).items():
        figures["training", "images per second", f"rank {rank}", int(rank)] = rate
    return figures
