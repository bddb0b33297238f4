"""What joins two GPUs, or all GPUs of a run, and how much it carries at its best: from the parts that are there.

Capability, never the state of now: a link that is narrow or down must not lower the bar that it fails.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from cluster.acceptance.expectations import Expectations
from cluster.acceptance.hardware import Board, board, pcie_bytes_per_second
from cluster.acceptance.records import Record

BETWEEN = "between nodes"
NVLINK = "NVLink"
BRIDGE = "NVLink bridge"
ONE_LINK, TWO_LINKS = "one NVLink", "two NVLinks"
TOPOLOGIES = ("one PCIe switch", "PCIe switches", "one host bridge", "one NUMA node", "between NUMA nodes")
"""From near to far, as `health` names what nvmlGpuTopologyLevel_t says."""
_PCIE_SHARES = {
    "same board": (0.2, 0.3),
    "one PCIe switch": (0.2, 0.3),
    "PCIe switches": (0.2, 0.3),
    "one host bridge": (0.13, 0.18),
    "one NUMA node": (0.12, 0.17),
    "between NUMA nodes": (0.1, 0.15),
}
"""Shares of PCIe below which a path fails, and from which it passes. Ours, by NVIDIA/nccl-tests issue 178 (20 of
31.5 GB/s below a switch), NVIDIA/nccl issues 1639 (35 of 63) and 1530 (a host bridge); less between sockets."""
_UNKNOWN_TOPOLOGY = (0.1, 0.15)
_PCIE_BEST = 0.65
"""Of PCIe: 20 of 31.5 GB/s (the first of these issues)."""
_NVLINK_FAILS, _NVLINK_PASSES = 0.7, 0.88
"""Shares of what NCCL reaches on a board's links (hardware.toml): it varies by some percent from machine to machine."""
_RDMA_FAILS, _RDMA_PASSES = 0.55, 0.82
"""Shares of the line: 86 of 100 GB/s (NVIDIA/nccl-tests issue 175), 24 of 25 (issue 119)."""
_RDMA_BEST = 0.96
_FAST_SOCKETS_BEST, _SLOW_SOCKETS_BEST = 0.7, 0.92
"""Of the line."""
_OF_ONE_KIND = 0.9
"""Of the fastest port's rate."""
_FAST_SOCKETS = (0.25, 0.35)
_SLOW_SOCKETS = (0.5, 0.65)
"""NCCL's sockets fill 25 Gbit/s, and about half of 100."""
_SLOW_GIGABITS = 40
_GPUS_WITHOUT_SWITCH = 4
"""Boards of four SXM modules have no switch: each pair has a third of a module's links (NVIDIA, HGX A100 and H100)."""
_OF_FOUR_WAY_BRIDGES = 18
"""Links of boards whose bridges join two or four (H200 NVL): all to one other, or a third to each."""
_C2C_BYTES_PER_SECOND = 450e9
"""One direction between Grace and its GPU (NVIDIA, Grace Hopper architecture whitepaper)."""
GIGA = 1e9
_SWITCHED = 8
"""Boards with as many links that must be up reach all others of their node by NVLink; a V100 has six, not to all."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """A path, with the rates below which it fails and from which it passes, in bytes per second and direction."""

    fails: float
    passes: float
    source: str
    lesser: "Link | None" = None
    """What it may be instead: parts that cannot be told apart but by their rate."""
    most: float = math.inf
    """What its parts can carry at all; more is no rate of theirs."""
    published: float = 0.0
    """The best that is published of such parts; 0.0 if nothing is."""
    fails_surely: bool = True
    """Whether too little is a failure; if another explanation is as likely, it is not verified."""

    def judging(self, rate: float) -> "Link":
        """This link, or the lesser one if the rate is within that one's reach."""
        if self.lesser is not None and rate <= 1.5 * self.lesser.passes:
            return self.lesser
        return self


def board_of(record: Record) -> Board | None:
    """The board of a rank, by the name that CUDA gives it, or NVML."""
    return board(record.result("presence").get("device_name")) or board(reading(record).get("name"))


def reading(record: Record, stage: str = "before") -> dict[str, Any]:
    """What NVML said at a stage; empty if it said nothing."""
    return record.result(stage).get("reading") or {}


def pcie(record: Record) -> float | None:
    """Bytes per second that slot and board allow at their best; None if NVML does not report it."""
    now = reading(record, "after") or reading(record)
    if (known := board_of(record)) is not None and known.host != "pcie":
        return None
    return pcie_bytes_per_second(now.get("pcie_generation_max"), now.get("pcie_width_max") or now.get("pcie_width"))


def c2c(record: Record) -> float | None:
    """Bytes per second to the CPU on a board where that is not PCIe."""
    known = board_of(record)
    return _C2C_BYTES_PER_SECOND if known is not None and known.host == "c2c" else None


def wired_nvlinks(record: Record) -> int:
    """NVLinks that this GPU must have up; 0 if bridges are optional, or nobody tells."""
    known = board_of(record)
    if known is not None and _meshed(record, known):
        return int(reading(record).get("nvlinks") or 0)
    if known is not None:
        return known.nvlinks if known.wired else 0
    name = reading(record).get("name") or ""
    wired = any(word in name for word in ("SXM", "HBM3", "B200", "B300"))
    return int(reading(record).get("nvlinks") or 0) if wired else 0


def _meshed(record: Record, known: Board) -> bool:
    """Whether it is one of several Grace Hopper modules of a node: alone their NVLinks lead nowhere, so that the model
    does not tell."""
    several = (record.result("presence").get("seen_by_nvml") or 0) > 1
    return known.host == "c2c" and not known.wired and several


def behind_switch(record: Record) -> bool:
    """Whether a switch is at the other end of its NVLinks, by NVML: then each pair has all links, however many GPUs
    a container shows. False if nobody tells."""
    return "switch" in (reading(record).get("nvlink_peers") or {})


def _nvlink(links: float, known: Board | None, source: str, *, surely: bool = True) -> Link:
    link_rate = (known.nvlink_gb if known else 25.0) * GIGA
    attained = (known.attained if known else 0.78) * link_rate * links
    return Link(
        fails=_NVLINK_FAILS * attained, passes=_NVLINK_PASSES * attained, published=attained, fails_surely=surely,
        most=link_rate * links, source=f"{source} of {link_rate / GIGA:g} GB/s, "
        f"of which NCCL reaches {attained / links / link_rate:.0%} (hardware.toml)",
    )  # fmt: skip


def _pcie_link(records: Sequence[Record], kind: str) -> Link | None:
    rates = [pcie(record) for record in records]
    known = [rate for rate in rates if rate is not None]
    if not known or len(known) < len(rates):
        return None
    fails, passes = _PCIE_SHARES.get(kind, _UNKNOWN_TOPOLOGY)
    source = f"shares of PCIe's {min(known) / GIGA:.1f} GB/s (ours) for {kind}"
    return Link(fails=fails * min(known), passes=passes * min(known), published=_PCIE_BEST * min(known),
                most=min(known), source=source)  # fmt: skip


def kind(record: Record, other: Record, rate: float | None = None) -> str:
    """What joins two ranks; only links of one kind are compared. Bridges show by carrying more than PCIe could."""
    if record.node != other.node:
        return BETWEEN
    boards = [board_of(record), board_of(other)]
    if all(wired_nvlinks(end) >= 8 for end in (record, other)) or all(
        known and known.joined == "switch" for known in boards
    ):
        return NVLINK
    line = pcie(record)
    if rate is not None and line is not None and rate > line and reading(record).get("nvlinks_up"):
        known = board_of(record)
        if known is not None and known.joined == "mesh":
            return ONE_LINK if rate < 1.4 * known.nvlink_gb * GIGA else TWO_LINKS
        return BRIDGE
    return topology(record, other)


def topology(record: Record, other: Record) -> str:
    """How PCIe joins two GPUs of a node, by NVML."""
    return str((reading(record).get("topology") or {}).get(str(other.gpu), "inside a node"))


def pair(record: Record, other: Record, of_kind: str, *, node_ranks: int) -> Link | None:
    """What two GPUs of a node reach with each other; None if nobody tells."""
    known = board_of(record)
    if of_kind == NVLINK:
        links = wired_nvlinks(record)
        if not links:
            return None
        whole = _nvlink(links, known, f"{links} NVLinks")
        visible = max(node_ranks, record.result("presence").get("seen_by_nvml") or 0)
        if visible > _GPUS_WITHOUT_SWITCH or (known is not None and known.domain) or behind_switch(record):
            return whole
        third = links // (_GPUS_WITHOUT_SWITCH - 1)
        return replace(whole, lesser=_nvlink(third, known, f"{third} NVLinks, without a switch"))
    if of_kind in (ONE_LINK, TWO_LINKS):
        return _nvlink(1 if of_kind == ONE_LINK else 2, known, f"{of_kind} of a mesh")
    if of_kind == BRIDGE:
        links = min(reading(end).get("nvlinks_up") or 0 for end in (record, other))
        if not links:
            return None
        whole = _nvlink(links, known, f"{links} NVLinks of bridges")
        visible = max(node_ranks, record.result("presence").get("seen_by_nvml") or 0)
        if links < _OF_FOUR_WAY_BRIDGES or visible < _GPUS_WITHOUT_SWITCH:
            return whole
        third = links // (_GPUS_WITHOUT_SWITCH - 1)
        return replace(whole, lesser=_nvlink(third, known, f"{third} NVLinks of a bridge of four"))
    return _pcie_link([record, other], of_kind)


def inside(records: Sequence[Record]) -> Link | None:
    """What collectives of the ranks of one node reach; None if nobody tells, or there is one rank."""
    if len(records) < 2:
        return None
    boards = [board_of(record) for record in records]
    known, wired = boards[0], [wired_nvlinks(record) for record in records]
    if all(entry is known for entry in boards) and min(wired) > 0 and (known is None or known.joined in ("switch", "")):
        links = min(wired)
        visible = max(len(records), records[0].result("presence").get("seen_by_nvml") or 0)
        whole = _nvlink(links, known, f"{links} NVLinks")
        switched = (known and known.domain) or all(behind_switch(record) for record in records)
        if visible > _GPUS_WITHOUT_SWITCH or len(records) == _GPUS_WITHOUT_SWITCH or switched:
            return whole
        some = links * (len(records) - 1) // (_GPUS_WITHOUT_SWITCH - 1)
        return replace(whole, lesser=_nvlink(some, known, f"{some} NVLinks, without a switch"))
    if known is not None and known.joined == "mesh" and all(entry is known for entry in boards):
        links = known.nvlinks if len(records) in (4, 8) else 1
        return _nvlink(links, known, f"{links} NVLinks of a mesh")
    bridged = [reading(record).get("nvlinks_up") or 0 for record in records]
    if len(records) == 2 and min(bridged) > 0:
        # Each may be bridged to a GPU that this run does not have.
        link, through_pcie = _nvlink(min(bridged), known, f"{min(bridged)} NVLinks of bridges"), _pcie_link(records, "")
        unsure = through_pcie is not None and (records[0].result("presence").get("seen_by_nvml") or 2) > 2
        return replace(link, fails_surely=not unsure)
    far = [topology(a, b) for a in records for b in records if a is not b]
    worst = max(far, key=lambda name: TOPOLOGIES.index(name) if name in TOPOLOGIES else len(TOPOLOGIES))
    whole_path = _pcie_link(records, worst)
    # Bridges of four join all of them; NVML does not say whom they join.
    return replace(whole_path, most=math.inf) if whole_path is not None and min(bridged) > 0 else whole_path


def ports_of(records: Sequence[Record]) -> dict[str, list[dict[str, Any]]]:
    """Network ports as they were before the run, by node; nodes that told none are absent."""
    return {
        record.node: record.result("network")["ports"]
        for record in records
        if record.measured("network") and record.result("network").get("ports")
    }


def by_node(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Ranks of each node."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.node, []).append(record)
    return groups


def has_rdma(records: Sequence[Record]) -> bool:
    """Whether every node has a port that carries RDMA and is up."""
    ports = ports_of(records)
    with_rdma = [node for node, own in ports.items() if any(port["rdma"] and port["up"] for port in own)]
    return len(with_rdma) == len(by_node(records))


def domain(records: Sequence[Record], expected: Expectations | None) -> bool | None:
    """Whether NVLink joins these nodes: True, False, or None if nobody tells (boards of a rack, of which rack?)."""
    if not all((known := board_of(record)) is not None and known.domain for record in records):
        return False
    meant = expected.count("cluster", "nvlink_domain_nodes") if expected is not None else None
    if meant is not None:
        return meant >= len(by_node(records))
    fabrics = [reading(record).get("fabric") for record in records]
    cliques = {(fabric.get("cluster"), fabric.get("clique")) for fabric in fabrics if fabric}
    if all(fabrics) and all(cluster for cluster, _ in cliques):
        return len(cliques) == 1
    return None


def rails(records: Sequence[Record], *, rdma: bool, meant: float | None = None) -> list[float]:
    """Gbit/s of the ports that are up on any node, the fastest first; slower ones are for storage or the front end, or
    fail a check of their own. A port whose driver reports no rate has `meant`, the file's."""
    best: dict[str, float] = {}
    for own in ports_of(records).values():
        for port in own:
            # A port that is up on some node should be on every one.
            rate = port["rate_gigabits"] or meant
            if port["up"] and port["rdma"] is rdma and rate:
                best[port["name"]] = max(best.get(port["name"], 0.0), rate)
    fastest = max(best.values(), default=0.0)
    return sorted((rate for rate in best.values() if rate >= _OF_ONE_KIND * fastest), reverse=True)


def between(
    records: Sequence[Record], expected: Expectations | None, *, together: bool = True, alone: bool = False
) -> Link | None:
    """What nodes reach with each other: `together` by all adapters that their GPUs use, else by one; `alone`: what one
    GPU has of it while all others of its node are busy, too. None if nobody tells."""
    joined = domain(records, expected)
    if joined is not False:
        known, links = board_of(records[0]), min(wired_nvlinks(record) for record in records)
        if links:
            return _nvlink(links, known, f"{links} NVLinks, also between the nodes of a rack", surely=joined is True)
    meant = expected.number("network", "rate_gigabits") if expected is not None else None
    visible = len(ports_of(records)) == len(by_node(records))
    if not visible and meant is None:
        return None
    rdma = visible and has_rdma(records)
    rates = rails(records, rdma=rdma, meant=meant) if visible else [meant or 0.0]
    if not rates:
        return None
    busy = min(len(own) for own in by_node(records).values())
    used = rates[: busy if together or alone else 1] if rdma else rates[:1]
    gigabits = sum(used)
    if alone:
        busiest = max(len(own) for own in by_node(records).values())
        gigabits = min(used[-1], gigabits / busiest) if rdma else gigabits / busiest
    fails, passes = (
        (_RDMA_FAILS, _RDMA_PASSES) if rdma else _SLOW_SOCKETS if rates[0] <= _SLOW_GIGABITS else _FAST_SOCKETS
    )
    best = _RDMA_BEST if rdma else _SLOW_SOCKETS_BEST if rates[0] <= _SLOW_GIGABITS else _FAST_SOCKETS_BEST
    line = gigabits / 8 * GIGA
    if expected is not None and (times := expected.number("network", "oversubscription")):
        line /= times
    slots = [rate for record in records if (rate := pcie(record)) is not None]
    if slots and rdma:  # each GPU reaches its adapter through its own slot
        line = min(line, 0.87 * min(slots) * (1 if alone else len(used)))
    which = f"{len(used)} ports that these GPUs use" if together and rdma else "one port"
    which = "one GPU's part of the ports" if alone else which
    told = "sysfs" if visible and rails(records, rdma=rdma) else "--expect"
    return Link(fails=fails * line, passes=passes * line, published=best * line,
                source=f"{line * 8 / GIGA:.0f} Gbit/s, {which}, by {told}; shares: ours")  # fmt: skip
