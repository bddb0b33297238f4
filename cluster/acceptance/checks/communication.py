"""Judges what `collectives` measured: results, latency of small messages, bus bandwidth of large ones, slow links."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from cluster.acceptance.checks import REMEDY_NO_GPU, broken, links, skippers, thresholds
from cluster.acceptance.checks.collectives import bus_bandwidth, together
from cluster.acceptance.checks.pairs import limits
from cluster.acceptance.expectations import Expectations
from cluster.acceptance.records import Record, against_peers, percentile, readable
from cluster.acceptance.verdict import Check, Status, Threshold, graded

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
        checks += [_result(record, operation, skipping) for operation in _measured(record)]
    rows = table(records)
    on_gpu = all(record.gpu is not None for record in records)
    for operation in dict.fromkeys(row["operation"] for row in rows):
        same = [row for row in rows if row["operation"] == operation]
        limit = thresholds.latency(records, operation, expected=expected, option_ms=max_latency_ms)
        checks.append(_latency(same[0], limit, on_gpu))
        row, bar = same[-1], None
        if on_gpu:
            rate = row["bus_bytes_per_second"] / 1e9
            bar = thresholds.bandwidth(records, operation, byte_count=row["bytes"], rate=rate, expected=expected)
        checks.append(_bandwidth(row, bar, on_gpu=on_gpu, has_baseline=has_baseline))
        if on_gpu:
            checks += _between(records, same)
    if rows:
        checks += _links(there, on_gpu, expected)
    return checks


def _measured(record: Record) -> list[str]:
    """Operations that a rank measured, each once."""
    return list(dict.fromkeys(one["operation"] for one in record.result("collectives")["measurements"]))


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
        remedy="run it with this GPU left out; NCCL_P2P_DISABLE=1 separates a bad link from a bad GPU",
        measured=float(wrong),
        threshold=Threshold(value=0, unit="wrong elements", relation="at most", source="sums of integers are exact"),
    )


def _latency(row: dict[str, Any], bar: thresholds.Bar, on_gpu: bool) -> Check:
    measured = row["p95_seconds"] * 1e3
    status, threshold = bar.grade(measured)
    shown = ", ".join(f"p{percent} {row[f'p{percent}_seconds'] * 1e6:.0f} us" for percent in (50, 95, 99))
    return Check(
        name=f"{row['operation']}: latency",
        part="communication",
        subject="all ranks",
        status=status if on_gpu else "unverified",
        evidence=f"{readable(row['bytes'])}: {shown}" + ("" if on_gpu else NOT_JUDGED),
        remedy=f"{REMEDY_SPEED}; what is meant: --expect, [latency_milliseconds] {row['operation']}"
        if on_gpu
        else REMEDY_NO_GPU,
        measured=measured,
        threshold=threshold,
    )


def _bandwidth(row: dict[str, Any], bar: thresholds.Bar | None, *, on_gpu: bool, has_baseline: bool) -> Check:
    rate, threshold = row["bus_bytes_per_second"] / 1e9, None if bar is None else bar.passes
    status: Status = "skipped" if has_baseline else "unverified"
    note = "; no threshold: neither NVML, the network's ports nor --expect says what it should be"
    if not on_gpu:
        status, note = "unverified", NOT_JUDGED
    elif row["bytes"] < JUDGED_BYTES:
        status, note = "unverified", "; not judged: too small a message"
    elif bar is not None:
        (status, threshold), note = bar.grade(rate), ""
        if status == "unverified" and threshold.relation == "at most":
            note = f"; more than the {threshold.value:.4g} GB/s that these parts can carry"
        elif status == "unverified":
            note = f"; less than these parts usually reach, more than the {bar.fails.value:.4g} GB/s of a fault"
    return Check(
        name=f"{row['operation']}: bus bandwidth",
        part="communication",
        subject="all ranks",
        status=status,
        evidence=f"{readable(row['bytes'])}: {rate:.2f} GB/s{note}",
        remedy=f"{REMEDY_SPEED}; what is meant: --expect, [bus_gigabytes_per_second] {row['operation']}"
        if on_gpu
        else REMEDY_NO_GPU,
        measured=rate,
        threshold=threshold,
        published=bar.published if bar is not None else None,
        nothing_known=bar is None or row["bytes"] < JUDGED_BYTES,
    )


def _between(records: Sequence[Record], rows: Sequence[dict[str, Any]]) -> list[Check]:
    """Sizes between the smallest and the largest: each may have a protocol of its own, and none has a bar."""
    ends = [(rows[position]["bytes"], rows[position]["p50_seconds"]) for position in (0, -1)]
    times = [
        (row["p50_seconds"] / thresholds.between(records, row["bytes"], *ends), row)
        for row in rows
        if ends[0][0] < row["bytes"] < ends[1][0]
    ]
    if not times:
        return []
    ratio, row = max(times, key=lambda entry: entry[0])
    limit = Threshold(
        value=1.0, unit="of three times the line between the smallest and the largest, and a start",
        relation="at most", source="ours: where NCCL changes its protocol, a message takes twice as long at most",
    )  # fmt: skip
    return [
        Check(
            name=f"{row['operation']}: messages of other sizes",
            part="communication",
            subject="all ranks",
            status="pass" if limit.holds(ratio) else "unverified",
            evidence=f"{readable(row['bytes'])}: {row['p50_seconds'] * 1e3:.3f} ms, {ratio:.2f} of the limit",
            remedy=f"{REMEDY_SPEED}; NCCL_PROTO, NCCL_ALGO and tuner plug-ins choose by size: leave them out once",
            measured=ratio,
            threshold=limit,
        )
    ]


def _links(records: Sequence[Record], on_gpu: bool, expected: Expectations | None) -> list[Check]:
    """Which link of the ring is slower than the others of its kind, by the largest message."""
    by_kind: dict[str, list[tuple[Record, Record, float]]] = {}
    for position, receiver in enumerate(records):
        sender, seconds = records[position - 1], median(_point_to_point(receiver))
        kind = links.kind(sender, receiver, _sent_bytes(receiver) / seconds)
        by_kind.setdefault(kind, []).append((sender, receiver, seconds))
    checks = []
    for kind, same in by_kind.items():
        fails, passes = limits(kind, expected)
        for (sender, receiver, own), ratio in zip(same, against_peers([one[2] for one in same]), strict=True):
            status, limit = graded(ratio, fails, passes)
            note = (
                "; no other link to compare with" if ratio is None else f", {ratio:.2f} times the median of the others"
            )
            checks.append(
                Check(
                    name="point_to_point: link against the others",
                    part="communication",
                    subject=f"{sender.subject} to {receiver.subject}",
                    rank=receiver.rank,
                    status=status if on_gpu else "unverified",
                    evidence=f"{kind}: {own * 1e3:.3f} ms{note}{'' if on_gpu else NOT_JUDGED}",
                    remedy=REMEDY_SPEED if on_gpu else REMEDY_NO_GPU,
                    measured=ratio,
                    threshold=limit,
                )
            )
    return checks


def _sent_bytes(record: Record) -> int:
    """Of the largest message."""
    return int(record.result("collectives")["measurements"][_last(record)]["bytes"])


def _last(record: Record) -> int:
    """Position of the largest message from point to point."""
    measurements = record.result("collectives")["measurements"]
    return max(number for number, one in enumerate(measurements) if one["operation"] == "point_to_point")


def _point_to_point(record: Record) -> list[float]:
    """Seconds of the largest message."""
    seconds: list[float] = record.result("collectives")["measurements"][_last(record)]["seconds"]
    return seconds
