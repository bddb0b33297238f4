"""What bandwidth and latency are compared with: the file of `--expect`, else what links could carry at their best.

Capability, never the state of now: a link that is narrow or down must not lower the bar that it fails.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cluster.acceptance.checks import links
from cluster.acceptance.checks.collectives import BUS_FACTORS
from cluster.acceptance.expectations import Expectations
from cluster.acceptance.records import Record
from cluster.acceptance.verdict import Status, Threshold, believable, graded

LATENCY_MS = {"node": 1.0, "rdma": 2.0, "ethernet": 5.0}
"""Ours, ten times the usual: NCCL needs tens of microseconds in a node, some hundred over RDMA, sockets more."""
LATENCY_PASSES = {"node": 0.3, "rdma": 0.5, "ethernet": 1.0}
"""Share of it within which it passes. A node is quick and alone; between nodes routes and other jobs differ, and
sockets differ most."""
LATENCY_MS_PER_RANK = 0.02
"""A ring passes a message on once per rank; a hop over RDMA is a few microseconds (nccl-tests, PERFORMANCE.md)."""
_START_SECONDS = {"node": 0.1e-3, "rdma": 0.2e-3, "ethernet": 1e-3}
"""Before a large message flows at its full rate: the pipeline fills, and the host starts kernels."""
_HOP_SECONDS = {"node": 3e-6, "rdma": 12e-6, "ethernet": 100e-6}
"""More of it for every rank of a ring."""
_ALL_TO_ALL_SHARE = 0.7
"""Ours, of what a ring reaches: every rank sends to all others at once."""
MOST_OF_LINE = 1.15
"""Ours: a clock, or the name of a part, is wrong where more than its links carry is measured."""
_SLACK = 3.0
"""How many times these a failure has to exceed."""
_FLOWING_BYTES, _FLOWING_SLACK = 2**27, 1.6
"""From this size on a message flows, so that its rate is that of the largest one."""
FABRICS = {"node": "inside a node", "rdma": "between nodes by RDMA", "ethernet": "between nodes without RDMA"}


def nodes(records: Sequence[Record]) -> set[str]:
    """Names of the nodes."""
    return {record.node for record in records}


def fabric(records: Sequence[Record]) -> str:
    """How the ranks reach each other: one of FABRICS."""
    if len(nodes(records)) < 2:
        return "node"
    return "rdma" if links.has_rdma(records) else "ethernet"


@dataclass(frozen=True)
class Bar:
    """Beyond the one something fails, within the other it passes."""

    fails: Threshold
    passes: Threshold
    most: float = math.inf
    """What there can be, in the thresholds' unit."""
    published: float | None = None
    """The best that such parts reach, in this unit; None if a file says what is meant, or nothing is published."""

    def grade(self, rate: float) -> tuple[Status, Threshold]:
        """The outcome of a rate, and the threshold that decided it."""
        outcome = graded(rate, self.fails, self.passes)
        return outcome if math.isinf(self.most) else believable(outcome, rate, self.most, unit=self.passes.unit)


def latency(
    records: Sequence[Record], operation: str, *, expected: Expectations | None, option_ms: float | None
) -> Bar:
    """The bar of small messages, ms."""
    unit = "ms (95th percentile)"
    if option_ms is not None:
        option = Threshold(value=option_ms, unit=unit, relation="at most", source="--max-latency-ms")
        return Bar(option, option)
    if expected is not None:
        threshold = expected.threshold("latency_milliseconds", operation, unit, "at most")
        if threshold is not None:
            return Bar(threshold, threshold)
    kind = fabric(records)
    most = LATENCY_MS[kind] + LATENCY_MS_PER_RANK * len(records)
    source = f"ours, {FABRICS[kind]}: {LATENCY_MS[kind]:g} ms and {LATENCY_MS_PER_RANK * 1e3:g} us a rank"
    usual = LATENCY_PASSES[kind]
    return Bar(
        Threshold(value=round(most, 3), unit=unit, relation="at most", source=source),
        Threshold(
            value=round(usual * most, 3), unit=unit, relation="at most",
            source=source if usual == 1 else f"{source}; {usual:.0%} of it, about ten times the usual",
        ),
    )  # fmt: skip


def bandwidth(
    records: Sequence[Record], operation: str, *, byte_count: int, rate: float, expected: Expectations | None
) -> Bar | None:
    """The bar of the bus bandwidth of a message of so many bytes; None where neither file, NVML nor ports tell.

    Args:
        records: of all ranks.
        operation: one of BUS_FACTORS.
        byte_count: as nccl-tests counts them.
        rate: what was measured, GB/s: of two things that the parts may be it tells which one they are.
        expected: a file of --expect, whose figure decides alone.
    """
    if expected is not None:
        threshold = expected.threshold("bus_gigabytes_per_second", operation, "GB/s", "at least")
        if threshold is not None:
            return Bar(threshold, threshold)
    groups = links.by_node(records)
    parts = [links.inside(own) for own in groups.values() if len(own) > 1]
    if len(groups) > 1:
        parts.append(links.between(records, expected, together=operation != "point_to_point"))
    if not parts or any(link is None for link in parts):
        return None
    judging = [link.judging(rate * 1e9) for link in parts if link is not None]
    slowest = min(judging, key=lambda link: link.passes)  # all is as slow as the slowest part
    moved = BUS_FACTORS[operation](len(records)) * byte_count
    kind = fabric(records)
    start = _START_SECONDS[kind] + _HOP_SECONDS[kind] * len(records)

    def threshold_of(limit: float, start_seconds: float) -> Threshold:
        value = moved / (start_seconds + moved / limit) / 1e9
        return Threshold(value=value, unit="GB/s", relation="at least", source=slowest.source)

    # All to all has no ring: parts for the own node do not cross the network, and many small ones cost more.
    share = best = 1.0
    if operation == "all_to_all":
        own = min(len(group) for group in groups.values())
        best = (len(records) - 1) / (len(records) - own) / own if len(groups) > 1 else 1.0
        share = _ALL_TO_ALL_SHARE * best
    passes = threshold_of(share * slowest.passes, start)
    fails = threshold_of(share * slowest.fails, _SLACK * start) if slowest.fails_surely else _never()
    # Switches that add up, or send to many, carry more of the other operations than their links do.
    most = MOST_OF_LINE * min(link.most for link in parts if link is not None)
    one_way = operation == "broadcast" or (operation == "point_to_point" and len(groups) == 1)
    published = threshold_of(best * slowest.published, start).value if slowest.published else None
    return Bar(fails, passes, most / 1e9 if one_way else math.inf, published)


def between(records: Sequence[Record], byte_count: int, small: tuple[int, float], large: tuple[int, float]) -> float:
    """Seconds within which a message passes whose size is between two others of its operation.

    Their sizes and seconds are joined by a straight line. NCCL changes its protocol in between, and over many ranks a
    message needs more steps than the smallest one, which takes up to three times as long, and some start beyond it.
    """
    kind = fabric(records)
    line = small[1] + max(0.0, large[1] - small[1]) * (byte_count - small[0]) / (large[0] - small[0])
    slack = _SLACK if byte_count < _FLOWING_BYTES else _FLOWING_SLACK
    return slack * line + _START_SECONDS[kind] + _HOP_SECONDS[kind] * len(records)


def _never() -> Threshold:
    return Threshold(value=0.0, unit="GB/s", relation="at least", source="another explanation is as likely as a fault")
