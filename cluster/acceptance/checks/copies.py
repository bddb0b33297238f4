"""Copies between host and GPU from pinned memory, as nvbandwidth's host_to_device_memcpy_ce and its way back."""

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch

from cluster.acceptance.checks import broken
from cluster.acceptance.checks.thresholds import pcie_bytes_per_second
from cluster.acceptance.context import Context
from cluster.acceptance.records import Record, against_peers
from cluster.acceptance.verdict import Check, Status, Threshold, compared

REPEATS = 5
WAYS = {"to_device": "host to device", "to_host": "device to host"}
PCIE_SHARE = 0.5
"""Ours: pinned copies reach 75 to 87 % of PCIe (12 of 15.75, 25 of 31.5, 55 of 63 GB/s), less from a far NUMA node."""
PEERS = Threshold(
    value=1.5,
    unit="times the median of the other GPUs",
    relation="at most",
    source="ours: a far NUMA node costs some percent, a link of half the width a factor of two",
)


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


def judge(records: Sequence[Record]) -> list[Check]:
    """Checks of both ways of every GPU."""
    if all(record.gpu is None for record in records):
        return []
    checks = broken(records, "copies", "gpu")
    there = [record for record in records if record.measured("copies")]
    for way, title in WAYS.items():
        seconds = [record.result("copies")["seconds"][way] for record in there]
        for record, own, ratio in zip(there, seconds, against_peers(seconds), strict=True):
            checks.append(_one(record, title, record.result("copies")["bytes"] / own, ratio))
    return checks


def _one(record: Record, title: str, rate: float, ratio: float | None) -> Check:
    pcie = pcie_bytes_per_second(record)
    limit, measured, status = PEERS, ratio, "unverified"
    if ratio is not None and not PEERS.holds(ratio):
        status = "fail"
    elif pcie is not None:
        limit = Threshold(
            value=PCIE_SHARE * pcie / 1e9, unit="GB/s", relation="at least",
            source=f"{PCIE_SHARE:.0%} (ours) of what slot and board allow, by NVML",
        )  # fmt: skip
        measured, status = rate / 1e9, compared(rate / 1e9, limit)
    outcome: Status = "fail" if status == "fail" else "pass" if status == "pass" else "unverified"
    shown = "" if ratio is None else f", {ratio:.2f} times the time of its peers"
    return Check(
        name=f"copy: {title}",
        part="gpu",
        subject=record.subject,
        rank=record.rank,
        status=outcome,
        evidence=f"{rate / 1e9:.2f} GB/s{shown}" + ("" if outcome != "unverified" else "; NVML does not tell the link"),
        remedy="reseat the board; is the process on the GPU's NUMA node, and is the IOMMU off (nvidia-smi topo -m)?",
        measured=measured,
        threshold=limit,
    )
