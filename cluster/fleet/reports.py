"""Reports of `cluster.acceptance` as entries of a history: per node a verdict, per GPU its figures."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from cluster.acceptance.verdict import EXIT_CODES, Outcome
from labkit import LabError

Failure = tuple[str, str]
"""Name of a check, and what it is about."""


class ReportError(LabError):
    """A file is no report, or of no use for a fleet."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One thing that was measured of one GPU, or of all GPUs of a run together; larger is better."""

    node: str
    gpu: str
    """UUID, where there is one; else its number on the node; empty for a figure of the whole run."""
    model: str
    name: str
    value: float


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What is kept of one report."""

    time: str
    """End of the test, UTC, as in the report."""
    verdicts: Mapping[str, Outcome]
    """By node."""
    failures: Mapping[str, tuple[Failure, ...]]
    """By node."""
    figures: tuple[Figure, ...]

    @property
    def time_seconds(self) -> float:
        """Since 1970."""
        return datetime.strptime(self.time, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()

    @property
    def key(self) -> tuple[str, tuple[str, ...]]:
        """Two reports with the same one are the same report."""
        return self.time, tuple(sorted(self.verdicts))

    def dumps(self) -> str:
        """As a line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, line: str) -> "Entry":
        """Back from `dumps`.

        Raises:
            ValueError, KeyError, TypeError: it is none.
        """
        fields = json.loads(line)
        failures = {node: tuple((name, about) for name, about in all_) for node, all_ in fields["failures"].items()}
        figures = tuple(Figure(**figure) for figure in fields["figures"])
        if not set(fields["verdicts"].values()) <= set(EXIT_CODES):
            raise ValueError(f"there is no verdict {fields['verdicts']}")
        entry = cls(time=fields["time"], verdicts=fields["verdicts"], failures=failures, figures=figures)
        _ = entry.time_seconds
        return entry


def read(path: Path) -> Entry:
    """One report.

    Raises:
        ReportError: it is no report, was simulated, had faults injected, or tested no GPU.
        OSError: it cannot be read.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["simulated"] or document["injected_faults"]:
            raise ReportError(f"{path}: simulated, or with faults on request: it says nothing about real GPUs")
        if document["device"] != "cuda":
            raise ReportError(f"{path}: no GPU was tested ({document['acceptance']['summary'][-1]})")
        return _entry(document)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise ReportError(f"{path}: not a report of cluster.acceptance ({error!r})") from error


def _entry(document: Mapping[str, Any]) -> Entry:
    outcome: Outcome = document["acceptance"]["status"]
    nodes = sorted({rank["node"] for rank in document["ranks"]})
    failures: dict[str, list[Failure]] = {node: [] for node in nodes}
    for check in document["validation"]["checks"]:
        if check["status"] == "fail":
            for node in _about(check, document["ranks"], nodes):
                failures[node].append((check["name"], check["subject"]))
    verdicts: dict[str, Outcome] = {}
    for node in nodes:
        # What was tested beside a node that failed is neither: its collectives were that node's, too.
        verdicts[node] = "FAIL" if failures[node] else "INCOMPLETE" if outcome == "FAIL" else outcome
    entry = Entry(
        time=document["test_timestamp"],
        verdicts=verdicts,
        failures={node: tuple(of_node) for node, of_node in failures.items()},
        figures=tuple(_figures(document, nodes)),
    )
    _ = entry.time_seconds
    return entry


def _about(check: Mapping[str, Any], ranks: list[dict[str, Any]], nodes: list[str]) -> list[str]:
    """The nodes that a failed check is about; all, where it names none."""
    words = set(re.findall(r"[\w.-]+", check["subject"]))
    named = [node for node in nodes if node in words]
    if not named and check.get("rank") is not None:
        named = [rank["node"] for rank in ranks if rank["rank"] == check["rank"]]
    return named or nodes


def _figures(document: Mapping[str, Any], nodes: list[str]) -> list[Figure]:
    ranks = {rank["rank"]: rank for rank in document["ranks"]}
    performance = document["performance"]

    def of(rank: int, name: str, value: float) -> Figure:
        entry = ranks[rank]
        gpu = entry.get("uuid") or str(entry["gpu"])
        return Figure(node=entry["node"], gpu=gpu, model=entry["device_name"] or "?", name=name, value=float(value))

    figures = [
        of(product["rank"], f"product {product['dtype']} (TFLOP/s)", product["tflops"])
        for product in performance["products"]
    ]
    for copy in performance.get("copies", []):
        for way in ("to_device", "to_host"):
            figures.append(of(copy["rank"], f"copy {way} (GB/s)", copy[f"{way}_bytes_per_second"] / 1e9))
    met: dict[tuple[int, str], list[float]] = {}
    for pair in performance.get("pairs", []):
        for rank in pair["ranks"]:
            met.setdefault((rank, pair["kind"]), []).append(pair["bytes_per_second"] / 1e9)
    figures += [of(rank, f"pairs over {kind} (GB/s)", median(rates)) for (rank, kind), rates in met.items()]
    trained = (performance["training"] or {}).get("images_per_second") or {}
    figures += [of(int(rank), "training (images/s)", rate) for rank, rate in trained.items()]
    largest = {collective["operation"]: collective for collective in performance["collectives"]}
    for operation, collective in largest.items():
        model = f"{len(ranks)} x {document['device_name']} on {len(nodes)}"
        figures.append(
            Figure(
                node=",".join(nodes),
                gpu="",
                model=model,
                name=f"{operation} (GB/s)",
                value=collective["bus_bytes_per_second"] / 1e9,
            )
        )
    return [figure for figure in figures if figure.value > 0]
