"""Copies between host and GPU from pinned memory, as nvbandwidth's host_to_device_memcpy_ce and its way back."""

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch

from cluster.acceptance.checks import broken, links
from cluster.acceptance.context import Context
from cluster.acceptance.expectations import Expectations
from cluster.acceptance.records import Record, against_peers
from cluster.acceptance.verdict import Check, Status, Threshold, believable, compared, graded

REPEATS = 15
"""The median of five is slow if a host was busy for three."""
WAYS = {"to_device": "host to device", "to_host": "device to host"}
PCIE_FAILS, PCIE_PASSES = 0.5, 0.67
"""Ours: pinned copies reach 75 to 87 % of PCIe (12 of 15.75, 25 of 31.5, 55 of 63 GB/s), from a far NUMA node some
percent less, and a median of fifteen varies by some percent more. Half of the lanes reach 44 % at most."""
C2C_FAILS, C2C_PASSES = 0.2, 0.3
"""Ours, of the link between Grace and its GPU."""
PCIE_BEST, C2C_BEST = 0.88, 0.85
"""55.4 of 63 GB/s (stas00/ml-engineering, nvbandwidth on an H200); 380 of 450."""
MOST_OF_LINE = 1.1
_SOURCE = "ours: a far NUMA node costs some percent, a link of half the width a factor of two"
_UNIT = "times the median of the other GPUs"
PEERS = Threshold(value=1.5, unit=_UNIT, relation="at most", source=_SOURCE)
ALIKE = Threshold(value=1.2, unit=_UNIT, relation="at most", source=_SOURCE)
"""PEERS fails, ALIKE passes; between the two it is not verified."""

REMEDY = "reseat the board; is the process on the GPU's NUMA node, and is the IOMMU off (nvidia-smi topo -m)?"
KEY = "copy_gigabytes_per_second"


def measure(context: Context) -> dict[str, Any]:
    """Seconds of a pinned copy each way."""
    if not context.on_gpu:
        return {"skipped": "there is no GPU to copy to"}
    count = context.sizes.copy_bytes // 4
    host = torch.empty(count, dtype=torch.float32, pin_memory=True)
    device = torch.empty(count, dtype=torch.float32, device=context.torch_device)
    seconds: dict[str, float] = {}
    for way, (target, source) in {"to_device": (device, host), "to_host": (host, device)}.items():
        context.at(f"copy from {WAYS[way]}")
        times = []
        for _ in range(1 + REPEATS):
            context.synchronize()
            started = time.perf_counter()
            target.copy_(source, non_blocking=True)
            context.synchronize()
            times.append(time.perf_counter() - started)
        seconds[way] = median(times[1:])
    return {"bytes": 4 * count, "seconds": seconds}


def judge(records: Sequence[Record], expected: Expectations | None = None) -> list[Check]:
    """Checks of both ways of every GPU."""
    if all(record.gpu is None for record in records):
        return []
    checks = broken(records, "copies", "gpu")
    there = [record for record in records if record.measured("copies")]
    for same in by_slot(there).values():
        for way, title in WAYS.items():
            seconds = [record.result("copies")["seconds"][way] for record in same]
            for record, own, ratio in zip(same, seconds, against_peers(seconds), strict=True):
                checks.append(_one(record, title, record.result("copies")["bytes"] / own, ratio, expected))
    return checks


def by_slot(records: Sequence[Record]) -> dict[Any, list[Record]]:
    """Only GPUs of one model in slots of one kind are compared with each other."""
    groups: dict[Any, list[Record]] = {}
    for record in records:
        groups.setdefault((record.result("presence").get("device_name"), links.pcie(record)), []).append(record)
    return groups


def _one(record: Record, title: str, rate: float, ratio: float | None, expected: Expectations | None) -> Check:
    line, shares, best = links.pcie(record), (PCIE_FAILS, PCIE_PASSES), PCIE_BEST
    if (own := links.c2c(record)) is not None:
        line, shares, best = own, (C2C_FAILS, C2C_PASSES), C2C_BEST
    shown = "" if ratio is None else f", {ratio:.2f} times the time of its peers"
    outcome: Status
    nothing_known, published = False, None
    outcome, threshold = ("pass", PEERS) if ratio is None else graded(ratio, PEERS, ALIKE)
    measured, remedy = ratio, REMEDY
    file = expected.threshold("gpu", KEY, "GB/s", "at least") if expected is not None else None
    if file is not None:
        outcome, threshold, measured = compared(rate / 1e9, file), file, rate / 1e9
    elif line is None and outcome == "pass":
        outcome, shown, nothing_known = "unverified", f"{shown}; NVML does not report the link", True
        remedy = f"a virtual machine may hide it. What these copies should reach: --expect, [gpu] {KEY}"
    elif line is not None and outcome != "fail":
        fails, passes = (
            Threshold(
                value=share * line / 1e9, unit="GB/s", relation="at least",
                source=f"{share:.0%} (ours) of what slot and board allow, by NVML",
            )
            for share in shares
        )  # fmt: skip
        by_line, limit = believable(
            graded(rate / 1e9, fails, passes), rate / 1e9, MOST_OF_LINE * line / 1e9, unit="GB/s"
        )
        if by_line == "fail" or outcome == "pass":
            outcome, threshold, measured, published = by_line, limit, rate / 1e9, best * line / 1e9
    return Check(
        name=f"copy: {title}",
        part="gpu",
        subject=record.subject,
        rank=record.rank,
        status=outcome,
        evidence=f"{rate / 1e9:.2f} GB/s{shown}",
        remedy=remedy,
        measured=measured,
        threshold=threshold,
        published=published,
        nothing_known=nothing_known,
    )
