"""Judges what `collectives` measured: results, latency of small messages, bus bandwidth of large ones, slow links."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from cluster.acceptance.checks import REMEDY_NO_GPU, broken, skippers, thresholds
from cluster.acceptance.checks.collectives import BUS_FACTORS, bus_bandwidth, together
from cluster.acceptance.expectations import Expectations
from cluster.acceptance.records import Record, against_peers, percentile, readable
from cluster.acceptance.verdict import Check, Status, Threshold, compared

LINKS = Threshold(
    value=1.5,
    unit="times the median of the other links",
    relation="at most",
    source="ours: links of one kind differ by some percent, one that fell back to another path by a factor",
)
JUDGED_BYTES = 8 * 2**20
"""Smaller messages do not fill a fast link: latency counts more."""
NOT_JUDGED = "; not judged: not between GPUs"
REMEDY_SPEED = "nvidia-smi topo -m; NCCL_DEBUG=INFO names the path taken; is ACS on, or GPUDirect off?"


def table(records: Sequence[Record]) -> list[dict[str, Any]]:
    """One row per operation and size: percentiles of the latency in seconds, bus bandwidth in bytes per second."""
    there = [record.result("collectives") for record in records if record.measured("collectives")]
    if not there or len(there) < len(records):
        return []
    rows = []
    for position, first in enumerate(there[0]["measurements"]):
        same = [result["measurements"][position] for result in there]
        seconds = together(same)
        rows.append(
            {
                "operation": first["operation"],
                "bytes": first["bytes"],
                **{f"p{percent}_seconds": percentile(seconds, percent) for percent in (50, 95, 99)},
                "bus_bytes_per_second": bus_bandwidth(first["operation"], first["bytes"], seconds, there[0]["ranks"]),
                "wrong_elements": sum(measurement["wrong"] for measurement in same),
            }
        )
    return rows


def judge(
    records: Sequence[Record],
    *,
    max_latency_ms: float | None = None,
    expected: Expectations | None = None,
    has_baseline: bool = False,
) -> list[Check]:
    """Checks of all operations; with a baseline, figures that have no bar of their own are that one's to judge."""
    checks, skipping = broken(records, "collectives", "communication"), skippers(records)
    there = [record for record in records if record.measured("collectives")]
    for record in there:
        checks += [_result(record, operation, skipping) for operation in BUS_FACTORS]
    rows = table(records)
    on_gpu = all(record.gpu is not None for record in records)
    for operation in BUS_FACTORS if rows else ():
        same = [row for row in rows if row["operation"] == operation]
        limit = thresholds.latency(records, operation, expected=expected, option_ms=max_latency_ms)
        checks.append(_latency(same[0], limit, on_gpu))
        bar = thresholds.bandwidth(records, operation, expected=expected) if on_gpu else None
        checks.append(_bandwidth(same[-1], bar, on_gpu=on_gpu, has_baseline=has_baseline))
    if rows:
        checks += _links(there, on_gpu)
    return checks


def _result(record: Record, operation: str, skipping: Sequence[int]) -> Check:
    same = [
        measurement
        for measurement in record.result("collectives")["measurements"]
        if measurement["operation"] == operation
    ]
    wrong = sum(measurement["wrong"] for measurement in same)
    sizes = ", ".join(readable(measurement["bytes"]) for measurement in same)
    return Check(
        name=f"{operation}: result",
        part="communication",
        subject=record.subject,
        rank=record.rank,
        status="unverified" if wrong and skipping else "fail" if wrong else "pass",
        evidence=f"{wrong} wrong elements in {2 * len(same)} runs of {sizes}"
        if wrong
        else f"every element right, {sizes}, over {record.result('collectives')['backend']}",
        remedy="run it with this GPU left out; NCCL_P2P_DISABLE=1 tells a bad link from a bad GPU",
        measured=float(wrong),
        threshold=Threshold(value=0, unit="wrong elements", relation="at most", source="sums of integers are exact"),
    )


def _latency(row: dict[str, Any], threshold: Threshold, on_gpu: bool) -> Check:
    measured = row["p95_seconds"] * 1e3
    shown = ", ".join(f"p{percent} {row[f'p{percent}_seconds'] * 1e6:.0f} us" for percent in (50, 95, 99))
    return Check(
        name=f"{row['operation']}: latency",
        part="communication",
        subject="all ranks",
        status=compared(measured, threshold) if on_gpu else "unverified",
        evidence=f"{readable(row['bytes'])}: {shown}" + ("" if on_gpu else NOT_JUDGED),
        remedy=REMEDY_SPEED if on_gpu else REMEDY_NO_GPU,
        measured=measured,
        threshold=threshold,
    )


def _bandwidth(row: dict[str, Any], threshold: Threshold | None, *, on_gpu: bool, has_baseline: bool) -> Check:
    rate = row["bus_bytes_per_second"] / 1e9
    status: Status = "skipped" if has_baseline else "unverified"
    note = "; no threshold: neither NVML, the network's ports nor --expect tell what it should be"
    if not on_gpu:
        status, note = "unverified", NOT_JUDGED
    elif row["bytes"] < JUDGED_BYTES:
        status, note = "unverified", "; not judged: too small a message"
    elif threshold is not None:
        status, note = compared(rate, threshold), ""
    return Check(
        name=f"{row['operation']}: bus bandwidth",
        part="communication",
        subject="all ranks",
        status=status,
        evidence=f"{readable(row['bytes'])}: {rate:.2f} GB/s{note}",
        remedy=REMEDY_SPEED if on_gpu else REMEDY_NO_GPU,
        measured=rate,
        threshold=threshold,
    )


def _links(records: Sequence[Record], on_gpu: bool) -> list[Check]:
    """Which link of the ring is slower than the others, by the largest message; links within a node and links between
    nodes are two kinds."""
    pairs = [(records[position - 1], record) for position, record in enumerate(records)]
    checks = []
    for inside in (True, False):
        same = [(sender, receiver) for sender, receiver in pairs if (sender.node == receiver.node) is inside]
        seconds = [median(_point_to_point(receiver)) for _, receiver in same]
        for (sender, receiver), own, ratio in zip(same, seconds, against_peers(seconds), strict=True):
            note = (
                "; no other link to compare with" if ratio is None else f", {ratio:.2f} times the median of the others"
            )
            checks.append(
                Check(
                    name="point_to_point: link against the others",
                    part="communication",
                    subject=f"{sender.subject} to {receiver.subject}",
                    rank=receiver.rank,
                    status="unverified" if not on_gpu else "skipped" if ratio is None else compared(ratio, LINKS),
                    evidence=f"{own * 1e3:.3f} ms{note}{'' if on_gpu else NOT_JUDGED}",
                    remedy=REMEDY_SPEED if on_gpu else REMEDY_NO_GPU,
                    measured=ratio,
                    threshold=LINKS,
                )
            )
    return checks


def _point_to_point(record: Record) -> list[float]:
    """Seconds of the largest message."""
    same = [
        measurement
        for measurement in record.result("collectives")["measurements"]
        if measurement["operation"] == "point_to_point"
    ]
    seconds: list[float] = same[-1]["seconds"]
    return seconds
