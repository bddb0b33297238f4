"""What bandwidth and latency are held against: the file of `--expect`, else what links could carry at their best.

Capability, never the state of now: a link that is narrow or down must not lower the bar that it fails.
"""

from collections.abc import Sequence
from typing import Any

from cluster.acceptance.checks.hardware_state import wired_nvlinks
from cluster.acceptance.expectations import Expectations
from cluster.acceptance.records import Record
from cluster.acceptance.verdict import Threshold

PCIE_LANE_BYTES_PER_SECOND = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""Of one lane in one direction, by generation (PCI-SIG, after encoding)."""
PCIE_SHARE = 0.3
NVLINK_BYTES_PER_SECOND = 25e9
"""Of one link in one direction: NVLink 2 to 4 (NVIDIA, A100 and H100 whitepapers); NVLink 5 has twice that."""
NVLINK_SHARE = 0.25
"""Ours: four boards without a switch give each pair a third of its links; NCCL reaches 80 % of what it has."""
SWITCHED_NVLINKS = 12
"""Boards with as many (A100 and later) reach all others of their node by NVLink; a V100 has six, and not to all."""
NETWORK_SHARE = 0.3
"""Ours, as for PCIe: NCCL reaches 80 to 95 % of InfiniBand, and about half of fast Ethernet through sockets."""
LATENCY_MS = {"node": 1.0, "rdma": 2.0, "ethernet": 5.0}
"""Ours, ten times the usual: NCCL needs tens of microseconds in a node, some hundred over RDMA, sockets more."""
LATENCY_MS_PER_RANK = 0.02
"""A ring passes a message on once per rank; a hop over RDMA is a few microseconds (nccl-tests, PERFORMANCE.md)."""
FABRICS = {"node": "inside a node", "rdma": "between nodes by RDMA", "ethernet": "between nodes without RDMA"}


def nodes(records: Sequence[Record]) -> set[str]:
    """Names of the nodes."""
    return {record.node for record in records}


def ports(records: Sequence[Record]) -> dict[str, list[dict[str, Any]]]:
    """Network ports as they were before the run, by node; nodes that told none are absent."""
    return {
        record.node: record.result("network")["ports"]
        for record in records
        if record.measured("network") and record.result("network").get("ports")
    }


def fabric(records: Sequence[Record]) -> str:
    """How the ranks reach each other: one of FABRICS."""
    if len(nodes(records)) < 2:
        return "node"
    by_node = ports(records)
    with_rdma = [node for node, there in by_node.items() if any(port["rdma"] and port["up"] for port in there)]
    return "rdma" if len(with_rdma) == len(nodes(records)) else "ethernet"


def latency(
    records: Sequence[Record], operation: str, *, expected: Expectations | None, option_ms: float | None
) -> Threshold:
    """The bar of small messages."""
    unit = "ms (95th percentile)"
    if option_ms is not None:
        return Threshold(value=option_ms, unit=unit, relation="at most", source="--max-latency-ms")
    if expected is not None:
        threshold = expected.threshold("latency_milliseconds", operation, unit, "at most")
        if threshold is not None:
            return threshold
    kind = fabric(records)
    hops = LATENCY_MS_PER_RANK * len(records)
    return Threshold(
        value=round(LATENCY_MS[kind] + hops, 3),
        unit=unit,
        relation="at most",
        source=f"ours, {FABRICS[kind]}: {LATENCY_MS[kind]:g} ms and {LATENCY_MS_PER_RANK * 1e3:g} us a rank, "
        "about ten times the usual",
    )


def bandwidth(records: Sequence[Record], operation: str, *, expected: Expectations | None) -> Threshold | None:
    """The bar of large messages; None where neither file, NVML nor the network's ports tell."""
    if expected is not None:
        threshold = expected.threshold("bus_gigabytes_per_second", operation, "GB/s", "at least")
        if threshold is not None:
            return threshold
    inside = _inside(records, operation)
    if len(nodes(records)) < 2:
        return inside
    between = _between(records, operation)
    # All is as slow as the slowest of both.
    return between if between is None or inside is None or between.value < inside.value else inside


def pcie_bytes_per_second(record: Record) -> float | None:
    """What slot and board allow at their best; None where NVML does not tell."""
    reading = record.result("after").get("reading") or record.result("before").get("reading") or {}
    lane = PCIE_LANE_BYTES_PER_SECOND.get(reading.get("pcie_generation_max") or 0)
    width = reading.get("pcie_width_max") or reading.get("pcie_width")
    return None if lane is None or not width else lane * width


def _inside(records: Sequence[Record], operation: str) -> Threshold | None:
    rates = [pcie_bytes_per_second(record) for record in records]
    wired = [wired_nvlinks(record) for record in records]
    if operation != "point_to_point" and min(wired) >= SWITCHED_NVLINKS:
        return Threshold(
            value=NVLINK_SHARE * NVLINK_BYTES_PER_SECOND * min(wired) / 1e9,
            unit="GB/s",
            relation="at least",
            source=f"{NVLINK_SHARE:.0%} (ours) of {min(wired)} NVLinks of {NVLINK_BYTES_PER_SECOND / 1e9:g} GB/s",
        )
    known = [rate for rate in rates if rate is not None]
    if len(known) < len(rates):
        return None
    readings = [record.result("before").get("reading") or {} for record in records]
    joined = min(wired) > 0 or all(reading.get("nvlinks_up") for reading in readings)
    share = 1.0 if joined else PCIE_SHARE
    how = "what PCIe could carry, as there is NVLink" if joined else f"{PCIE_SHARE:.0%} of PCIe's rate (ours)"
    return Threshold(
        value=share * min(known) / 1e9,
        unit="GB/s",
        relation="at least",
        source=f"{how}; highest generation and width by NVML",
    )


def _between(records: Sequence[Record], operation: str) -> Threshold | None:
    by_node = ports(records)
    if len(by_node) < len(nodes(records)):
        return None
    rdma = fabric(records) == "rdma"
    best: dict[str, float] = {}
    for there in by_node.values():
        for port in there:
            # A port that is up on some node should be on every one.
            if port["up"] and port["rdma"] is rdma and port["rate_gigabits"]:
                best[port["name"]] = max(best.get(port["name"], 0.0), port["rate_gigabits"])
    if not best:
        return None
    # A ring of sends crosses to the next node once, and sockets take one interface.
    together = rdma and operation != "point_to_point"
    gigabits = sum(best.values()) if together else max(best.values())
    which = f"{len(best)} ports together" if together else "one port"
    return Threshold(
        value=NETWORK_SHARE * gigabits / 8,
        unit="GB/s",
        relation="at least",
        source=f"{NETWORK_SHARE:.0%} (ours) of {gigabits:g} Gbit/s, {which}, by sysfs",
    )
