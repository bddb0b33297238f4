"""Each network adapter on its own, by `ib_write_bw`: to itself, then to the same adapter of the next node.

NCCL chooses among adapters and shares a slow one's work out to all. So its rates name a GPU or a node, seldom an
adapter, and say nothing of an adapter that no GPU of this run uses. To itself, an adapter shows its own rate and its
slot's; to the next node also its port, the cable and the switch. One adapter of a node is busy at a time.
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch.distributed as dist

from cluster.acceptance import perftest, sysfs
from cluster.acceptance.checks import broken
from cluster.acceptance.context import Context
from cluster.acceptance.expectations import Expectations
from cluster.acceptance.hardware import pcie_bytes_per_second
from cluster.acceptance.records import Record
from cluster.acceptance.store import Store, connect, own_address, within
from cluster.acceptance.verdict import Check, Status, Threshold, believable, graded

LIMIT_SECONDS = 45.0
"""For all adapters; what is left then is not measured."""
MEET_SECONDS = 15.0
"""For the other end of one measurement."""
FAILS, PASSES = 0.7, 0.86
"""Shares of the line. Ours: sound adapters reach 380 of 400 and 180 of 200 Gbit/s (Azure/azurehpc-health-checks,
check_ib_bw_gdr)."""
MOST_OF_LINE = 1.15
"""Ours: what packets leave of a slot differs by some percent."""
SLOT_SHARE = 0.87
"""What packets leave of a PCIe link's rate."""
PEERS_FAIL, PEERS_PASS = 0.8, 0.88
"""Ours, of the median of adapters of the same line: sound ones differ by two percent."""
FEWEST = 3
BAD: tuple[Status, ...] = ("unverified", "fail")
SHEET = "of the port's and the slot's rate; sound adapters reach 90 to 98 % (Azure/azurehpc-health-checks)"
REMEDY = (
    "ib_write_bw -d ADAPTER --report_gbits on both ends; reseat adapter and cable, exchange the transceiver, "
    "try another port of the switch (mlxlink -d ADAPTER -m)"
)
REMEDY_NO_TOOL = "install perftest on every node; a container needs /dev/infiniband and IPC_LOCK"


def measure(context: Context) -> dict[str, Any]:
    """Gbit/s of each adapter of this node; one rank of a node measures, and all say where they are."""
    try:
        store = within(connect(MEET_SECONDS), "adapters")
        own = _own(context)
        store.set(f"node/{context.rank}", json.dumps(own))
        nodes = _nodes(store, context.world_size)
    except dist.DistError as error:
        return {"skipped": f"the nodes did not meet: {error}", "asked": True}
    if context.local_rank != 0:
        return {"skipped": "local rank 0 measures the adapters", "asked": True}
    if own["impossible"]:
        return {"skipped": own["impossible"], "asked": True}
    ends = os.times().elapsed + LIMIT_SECONDS
    return {"tool": perftest.PROGRAM, "measured": list(_measured(context, store, nodes, ends))}


def _own(context: Context) -> dict[str, Any]:
    """What the others have to know of this rank."""
    if context.local_rank != 0:
        return {"adapters": [], "impossible": "not its turn"}
    ports = [port["name"] for port in sysfs.ports(context.options.sysfs) if port["rdma"] and port["up"]]
    adapters = [name for name in ports if selected(name, os.environ.get("NCCL_IB_HCA", ""))]
    impossible = "" if ports else "this node has no port for RDMA that is up"
    if ports and not adapters:
        impossible = f"NCCL_IB_HCA={os.environ['NCCL_IB_HCA']} selects none of {', '.join(ports)}"
    if not impossible and not perftest.installed():
        impossible = f"{perftest.PROGRAM} is not installed on this node"
    return {"adapters": adapters, "impossible": impossible, "address": own_address(os.environ["MASTER_ADDR"])}


def selected(adapter: str, words: str) -> bool:
    """Whether NCCL would use an adapter ("mlx5_0/1") by a value of NCCL_IB_HCA: `^` leaves out, `=` means whole names,
    else they are beginnings; a port may follow (NVIDIA, NCCL Environment Variables)."""
    left_out, exact = words.startswith("^"), words.lstrip("^").startswith("=")
    names = [name for name in words.lstrip("^=").split(",") if name]
    device, _, port = adapter.partition("/")

    def matches(name: str) -> bool:
        start, _, number = name.partition(":")
        return (device == start if exact else device.startswith(start)) and number in ("", port)

    return not names or any(matches(name) for name in names) is not left_out


def _nodes(store: Store, world_size: int) -> dict[int, dict[str, Any]]:
    """Ranks that measure, in order, with what they said."""
    keys = [f"node/{rank}" for rank in range(world_size)]
    store.wait(keys, timedelta(seconds=MEET_SECONDS))
    said = {rank: json.loads(store.get(key)) for rank, key in enumerate(keys)}
    return {rank: one for rank, one in said.items() if not one["impossible"]}


def _measured(
    context: Context, store: Store, nodes: Mapping[int, dict[str, Any]], ends: float
) -> Iterator[dict[str, Any]]:
    own, root = nodes[context.rank]["adapters"], context.options.sysfs
    for adapter in own:
        yield _row(adapter, None, ends, partial(perftest.alone, adapter, root))
    for number, pairs in enumerate(rounds(list(nodes))):
        late = _not_through(store, number, context.rank, nodes, ends)
        server, client = next((pair for pair in pairs if context.rank in pair), (None, None))
        if server is None or client is None:
            continue
        for adapter in own:
            if not all(adapter in nodes[end]["adapters"] for end in (server, client)):
                continue
            key = f"port/{number}/{server}/{adapter}"
            if context.rank == client:
                ask = partial(_ask, store, key, adapter, nodes[server]["address"], root)
                yield {**_row(adapter, server, 0.0, ask), "reason": late} if late else _row(adapter, server, ends, ask)
                store.set(f"{key}/done", "")
            elif not late:
                _serve(store, key, adapter, root, ends)


def _not_through(store: Store, number: int, rank: int, nodes: Iterable[int], ends: float) -> str:
    """Wait until all nodes are as far as this one; returns why the next round cannot begin."""
    store.set(f"round/{number}/{rank}", "")
    left = max(1.0, ends - os.times().elapsed)
    try:
        store.wait([f"round/{number}/{other}" for other in nodes], timedelta(seconds=left))
    except dist.DistError:
        return "another node was not through in time"
    return ""


def _ask(store: Store, key: str, adapter: str, address: str, root: Path) -> float:
    store.wait([key], timedelta(seconds=MEET_SECONDS))
    return perftest.client(adapter, address, int(store.get(key)), root)


def rounds(ranks: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Pairs (server, client) of neighbours in a ring, so that in each round a rank is in one pair at most."""
    count = len(ranks)
    if count < 2:
        return []
    edges = [(ranks[number], ranks[(number + 1) % count]) for number in range(count if count > 2 else 1)]
    last = [edges.pop()] if count > 2 and count % 2 else []
    return [group for group in (edges[::2], edges[1::2], last) if group]


def _serve(store: Store, key: str, adapter: str, root: Path, ends: float) -> None:
    """Serve one client, which sets a key when it is through."""
    if os.times().elapsed > ends:
        return
    port = perftest.free_port()
    server = perftest.serve(adapter, port, root)
    store.set(key, str(port))
    # Where the client never comes, its row says what went wrong.
    with suppress(dist.DistError):
        store.wait([f"{key}/done"], timedelta(seconds=MEET_SECONDS))
    perftest.end(server)


def _row(adapter: str, server: int | None, ends: float, run: Callable[[], float]) -> dict[str, Any]:
    """The adapter, the rank at the other end (None: itself), Gbit/s, or the reason why there are none."""
    row: dict[str, Any] = {"adapter": adapter, "server": server, "gigabits": None, "reason": None}
    if os.times().elapsed > ends:
        return {**row, "reason": f"the {LIMIT_SECONDS:.0f} seconds for all adapters were over"}
    try:
        return {**row, "gigabits": run()}
    except (perftest.PerftestError, dist.DistError, OSError) as error:
        return {**row, "reason": str(error)}


@dataclass(frozen=True, kw_only=True)
class Rate:
    """One measurement: from an adapter of a node to one of another node, or to itself."""

    adapter: str
    nodes: tuple[str, ...]
    gigabits: float
    line: float | None
    """What port and slots of both ends allow, Gbit/s."""


def judge(records: Sequence[Record], expected: Expectations | None = None) -> list[Check]:
    """A check for every adapter of every node, and for every cable between two that are sound by themselves."""
    checks = broken([record for record in records if "error" in record.result("adapters")], "adapters", "network")
    there = [record for record in records if record.measured("adapters")]
    if not there:
        return checks + _impossible(records)
    lines = {record.node: _lines(record, expected) for record in there}
    by_rank = {record.rank: record.node for record in records}
    rates: list[Rate] = []
    silent: list[tuple[Record, dict[str, Any]]] = []
    for record in there:
        for row in record.result("adapters")["measured"]:
            server = by_rank.get(row["server"]) if row["server"] is not None else None
            nodes = (record.node,) if server is None else (record.node, server)
            if row["gigabits"] is None:
                silent.append((record, row))
                continue
            both = [lines.get(node, {}).get(row["adapter"]) for node in nodes]
            line = min((value for value in both if value), default=None) if all(both) else None
            rates.append(Rate(adapter=row["adapter"], nodes=nodes, gigabits=row["gigabits"], line=line))
    graded_rates = [*_graded([rate for rate in rates if len(rate.nodes) == 1]),
                    *_graded([rate for rate in rates if len(rate.nodes) == 2])]  # fmt: skip
    return checks + _of_adapters(graded_rates) + _silent(silent, len(rates))


def _lines(record: Record, expected: Expectations | None) -> dict[str, float | None]:
    """Gbit/s that each adapter's port and slot allow."""
    meant = expected.number("network", "rate_gigabits") if expected is not None else None
    lines: dict[str, float | None] = {}
    for port in record.result("network").get("ports", ()):
        slot = pcie_bytes_per_second(port.get("pcie_generation"), port.get("pcie_width"))
        limits = [port["rate_gigabits"] or meant, SLOT_SHARE * slot * 8e-9 if slot else None]
        lines[port["name"]] = min((value for value in limits if value), default=None) if limits[0] else None
    return lines


@dataclass(frozen=True, kw_only=True)
class Graded:
    """A rate with its outcome."""

    rate: Rate
    status: Status
    threshold: Threshold | None


def _graded(rates: Sequence[Rate]) -> list[Graded]:
    """By the line, and by the others of the same line: the worse of both."""
    outcomes = []
    for rate in rates:
        same = [other.gigabits for other in rates if other is not rate and other.line == rate.line]
        usual = median(same) if len(same) + 1 >= FEWEST else None
        worst = Graded(rate=rate, status="skipped", threshold=None)
        for base, fails, passes, source in (
            (rate.line, FAILS, PASSES, SHEET),
            (usual, PEERS_FAIL, PEERS_PASS, "of the median of the other adapters; ours: sound ones differ by 2 %"),
        ):
            if not base:
                continue
            limits = [Threshold(value=share * base, unit="Gbit/s", relation="at least", source=f"{share:.0%} {source}")
                      for share in (fails, passes)]  # fmt: skip
            most = MOST_OF_LINE * base if base == rate.line else math.inf
            status, limit = believable(graded(rate.gigabits, *limits), rate.gigabits, most, unit="Gbit/s")
            if _badness(status) > _badness(worst.status):
                worst = Graded(rate=rate, status=status, threshold=limit)
        outcomes.append(worst)
    return outcomes


def _badness(status: Status) -> int:
    return ("skipped", "pass", "unverified", "fail").index(status)


def _of_adapters(rates: Sequence[Graded]) -> list[Check]:
    """Whom slow rates have in common: an adapter that is slow by itself or with all, else the cable between two."""
    own = {(entry.rate.nodes[0], entry.rate.adapter): entry for entry in rates if len(entry.rate.nodes) == 1}
    links = [entry for entry in rates if len(entry.rate.nodes) == 2]
    fine = {(node, link.rate.adapter) for link in links if link.status == "pass" for node in link.rate.nodes}
    met: dict[tuple[str, str], list[Graded]] = {}
    for link in links:
        for node in link.rate.nodes:
            met.setdefault((node, link.rate.adapter), []).append(link)
    guilty: dict[tuple[str, str], Graded] = {key: entry for key, entry in own.items() if entry.status in BAD}
    for key, having in met.items():
        others = {(node, key[1]) for link in having for node in link.rate.nodes} - {key}
        if key not in guilty and len(having) > 1 and key not in fine and others & fine:
            guilty[key] = max(having, key=lambda entry: _badness(entry.status))
    for key, entry in own.items():
        # To itself it also depends on the host's memory; what it carries to another node, it can.
        too_little = entry.threshold is not None and entry.threshold.relation == "at least"
        if entry.status == "unverified" and too_little and key in fine:
            guilty.pop(key)
            own[key] = replace(entry, status="pass")
    checks = [
        _check(node, adapter, guilty.get((node, adapter), entry), own=entry, having=met.get((node, adapter), []))
        for (node, adapter), entry in own.items()
    ]
    checks += [
        _check(node, adapter, entry, own=None, having=met[node, adapter])
        for (node, adapter), entry in guilty.items()
        if (node, adapter) not in own
    ]
    for link in links:
        if link.status in BAD and not any((node, link.rate.adapter) in guilty for node in link.rate.nodes):
            subject = " and ".join(f"node {node}" for node in link.rate.nodes)
            evidence = f"{link.rate.gigabits:.0f} Gbit/s; both ends are sound by themselves: cable, transceiver, switch"
            checks.append(_made(f"{link.rate.adapter}, to the next node", subject, link, evidence))
    return checks


def _check(node: str, adapter: str, entry: Graded, *, own: Graded | None, having: Sequence[Graded]) -> Check:
    shown = [f"{own.rate.gigabits:.0f} Gbit/s to itself"] if own is not None else []
    for link in having:
        other = next((name for name in link.rate.nodes if name != node), node)
        shown.append(f"{link.rate.gigabits:.0f} with node {other}")
    if entry.rate.line:
        shown.append(f"{entry.rate.line:.0f} by port and slot")
    return _made(adapter, f"node {node}", entry, ", ".join(shown))


def _made(adapter: str, subject: str, entry: Graded, evidence: str) -> Check:
    return Check(
        name=f"adapter: {adapter}", part="network", subject=subject, status=entry.status, evidence=evidence,
        remedy=REMEDY, measured=entry.rate.gigabits, threshold=entry.threshold,
    )  # fmt: skip


def _silent(silent: Sequence[tuple[Record, dict[str, Any]]], measured: int) -> list[Check]:
    """Where any adapter was measured, one that was not is doubtful; where none was, this run cannot do it."""
    status: Status = "unverified" if measured else "skipped"
    return [
        Check(
            name=f"adapter: {row['adapter']}", part="network", subject=f"node {record.node}", status=status,
            evidence=f"not measured: {row['reason']}", remedy=REMEDY_NO_TOOL if status == "skipped" else REMEDY,
        )
        for record, row in silent
    ]  # fmt: skip


def _impossible(records: Sequence[Record]) -> list[Check]:
    """Why no adapter was measured, where there are any."""
    reasons = {
        record.node: record.result("adapters")["skipped"]
        for record in records
        if record.local_rank == 0 and "skipped" in record.result("adapters")
        and any(port["rdma"] and port["up"] for port in record.result("network").get("ports", ()))
    }  # fmt: skip
    return [
        Check(
            name="adapter: each on its own", part="network", subject=f"node {node}", status="skipped",
            evidence=f"not measured: {reason}", remedy=REMEDY_NO_TOOL,
        )
        for node, reason in reasons.items()
    ]  # fmt: skip


def why_not(records: Sequence[Record]) -> str | None:
    """Why adapters were not measured each on its own, for the report's list of what is not read; None if they were."""
    measured = [
        row for record in records if record.measured("adapters") for row in record.result("adapters")["measured"]
    ]
    if any(row["gigabits"] is not None for row in measured):
        return None
    reasons = [str(row["reason"]) for row in measured] + [
        str(record.result("adapters")["skipped"])
        for record in records
        if record.local_rank == 0 and "skipped" in record.result("adapters")
    ]
    return reasons[0] if reasons else "this run ended before it"
