"""The ports between nodes: is each there, up, as fast as on other nodes, without errors and flaps during the test?

Where any node has ports for RDMA, only these count. How much they carry is judged by collectives and pairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from cluster.acceptance import sysfs
from cluster.acceptance.checks import thresholds
from cluster.acceptance.checks.links import board_of, reading
from cluster.acceptance.expectations import Expectations
from cluster.acceptance.hardware import pcie_bytes_per_second
from cluster.acceptance.records import Record
from cluster.acceptance.verdict import Check, Status, Threshold, compared

if TYPE_CHECKING:
    from cluster.acceptance.context import Context

LINK_LOST = ("link_downed", "link_error_recovery", "carrier_down_count")
"""The link was down, or trained again: a flap."""
DAMAGED = ("local_link_integrity_errors", "excessive_buffer_overrun_errors", "symbol_error", "port_rcv_errors",
           "req_transport_retries_exceeded")  # fmt: skip
WORN, WORN_ERRORS, WORN_TIMES = 500, 10_000, 100
"""Times that a link was lost before the run, other errors then, and times the median of the others."""
RETRIED = ("out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err", "port_xmit_discards")
"""Congestion does it as well, so that nobody can tell from here."""
LASTING = {"rate_gigabits": "Gbit/s", "pcie_width": "PCIe lanes", "pcie_generation": "PCIe generation"}
"""What a link that is up does not lower by itself."""
USUAL_ERRORS = 10
"""A bit error rate of 1e-15, as InfiniBand asks for, gives less than one in ten minutes of 400 Gbit/s."""
FEWEST_SIBLINGS = 3
USUAL_LANES = 16
REMEDY_PORT = "ibstat, ethtool; reseat or exchange cable and transceiver, try another port of the switch"


def measure(context: Context) -> dict[str, Any]:
    """The ports of this node; one rank of a node reads them."""
    if context.local_rank != 0:
        return {"skipped": "local rank 0 reads the ports", "asked": True}
    root = context.options.sysfs
    return {"ports": sysfs.ports(root), "peer_memory": sysfs.peer_memory(root)}


def judge(records: Sequence[Record], expected: Expectations | None) -> list[Check]:
    """Checks of every node's ports; none where one node needs none."""
    nodes = [record for record in records if record.measured("network")]
    several = len(thresholds.nodes(records)) > 1
    rdma = any(port["rdma"] for record in nodes for port in record.result("network")["ports"])
    if not rdma and not several:
        return _expected(nodes, expected)
    if expected is None or expected.number("network", "ports") is None:
        alone = [check for record in nodes for check in _among_its_own(record, records, rdma)]
    else:
        alone = []
    alone += [check for record in nodes for check in _slots(record, records, rdma)]
    rate = expected.threshold("network", "rate_gigabits", "Gbit/s", "at least") if expected is not None else None
    checks = [_invisible(record.node, rate) for record in nodes if several and not _ports(record, rdma)]
    usual = {
        name: Counter(
            port["rate_gigabits"] for record in nodes for port in _ports(record, rdma) if port["name"] == name
        )
        for name in _common(nodes, rdma)
    }
    meant = expected.number("network", "rate_gigabits") if expected is not None else None
    up = Counter(port["name"] for record in nodes for port in _ports(record, rdma) if port["up"])
    kinds = {name: Counter(port["kind"] for record in nodes for port in _ports(record, rdma) if port["name"] == name)
             for name in usual}  # fmt: skip
    for record in nodes:
        there = {port["name"]: port for port in _ports(record, rdma)}
        if there:
            checks += [
                _state(record.node, name, there.get(name), rates, _of_most(up[name], len(nodes)), meant)
                for name, rates in usual.items()
                if name in there or not _as_many(record, nodes, rdma)
            ]
            checks += _kind(record.node, there, kinds)
            checks += _errors(record, there, rdma)
    checks += [
        *_worn(nodes, rdma),
        *_worn_nodes(nodes, rdma),
        *_all_down(nodes, expected),
    ]
    # A node of which a port is named already has its reason.
    named = {check.subject for check in (*checks, *alone) if check.status in ("fail", "unverified")}
    checks += [check for check in _for_the_gpus(nodes, records, expected) if check.subject not in named]
    with_module = [record for record in nodes if record.result("network")["peer_memory"]]
    if 2 * len(with_module) >= len(nodes):
        checks += [
            _check(
                record.node, "GPUDirect", _of_most(len(with_module), len(nodes)),
                f"nvidia_peermem is not loaded; on {len(with_module)} of {len(nodes)} nodes it is",
                "modprobe nvidia_peermem, and have it loaded at boot",
            )
            for record in nodes
            if record not in with_module
        ]  # fmt: skip
    failed = {(check.subject, check.name) for check in checks if check.status in ("fail", "unverified")}
    checks += [check for check in alone if (check.subject, check.name) not in failed]
    return checks + _expected(nodes, expected)


def _worn(nodes: Sequence[Record], rdma: bool) -> Iterator[Check]:
    """A port with far more errors than the others, in however many days: lost links, damaged or repeated packets."""
    for keys, worn, what in (
        (LINK_LOST, WORN, "lost links"), (DAMAGED, WORN_ERRORS, "damaged packets"), (RETRIED, WORN_ERRORS, "retries"),
    ):  # fmt: skip
        counts = {(record.node, port["name"]): sum(port["counters"].get(key, 0) for key in keys)
                  for record in nodes for port in _ports(record, rdma) if port["up"]}  # fmt: skip
        for (node, name), count in counts.items():
            others = [value for key, value in counts.items() if key != (node, name)]
            if count <= worn or len(others) < FEWEST_SIBLINGS or count <= WORN_TIMES * max(1.0, median(others)):
                continue
            evidence = f"{count} {what} before the run, the median of the others is {median(others):g}"
            yield _check(node, f"port {name}: history of {what}", "unverified", evidence,
                         "clean or exchange cable and transceiver; look at the port of the switch")  # fmt: skip


def _worn_nodes(nodes: Sequence[Record], rdma: bool) -> Iterator[Check]:
    """A node all of whose ports lost their links far more often than those of the other nodes."""
    lost = {record.node: sum(port["counters"].get(key, 0) for port in _ports(record, rdma) for key in LINK_LOST)
            for record in nodes}  # fmt: skip
    for node, count in lost.items():
        others = [value for other, value in lost.items() if other != node]
        if others and count > max(WORN, WORN_TIMES * max(1.0, median(others))):
            evidence = f"{count} lost links before the run, the median of the other nodes is {median(others):g}"
            yield _check(node, "history of lost links", "unverified", evidence,
                         "its switch, its firmware, or a node that was restarted again and again")  # fmt: skip


def _for_the_gpus(nodes: Sequence[Record], records: Sequence[Record], expected: Expectations | None) -> Iterator[Check]:
    """Modules share adapters evenly: as many as GPUs, or a half or a quarter; seven for eight are one too few."""
    if expected is not None and expected.number("network", "ports") is not None:
        return
    for record in nodes:
        own = [other for other in records if other.node == record.node]
        boards = [board_of(other) for other in own]
        if not all(known is not None and known.wired for known in boards):
            continue
        gpus = max([len(own), *(other.result("presence").get("seen_by_nvml") or 0 for other in own)])
        rates = [port["rate_gigabits"] for port in _ports(record, True) if port["up"] and port["rate_gigabits"]]
        fast = [rate for rate in rates if rate >= 0.9 * max(rates)]
        if FEWEST_SIBLINGS <= len(fast) < gpus and gpus % len(fast):
            yield _check(
                record.node, "adapters for its GPUs", "unverified", f"{len(fast)} adapters of one rate for {gpus} GPUs",
                "lspci | grep -i -e mellanox -e nvidia: is one missing? If it is meant: --expect, [network] ports",
            )  # fmt: skip


def _all_down(nodes: Sequence[Record], expected: Expectations | None) -> Iterator[Check]:
    """Adapters for RDMA of which no node has one up: then the bar is the slower network that is left."""
    if expected is not None and expected.number("network", "ports") is not None:
        return
    for record in nodes:
        ports = _ports(record, True)
        if ports and not any(port["up"] for port in ports) and (len(nodes) > 1 or len(ports) >= FEWEST_SIBLINGS):
            yield _check(
                record.node, "ports for RDMA", "unverified", f"{len(ports)} are there, and none is up",
                "ibstat; does the subnet manager run, are there cables? If it is meant: --expect, [network] ports",
            )  # fmt: skip


def _among_its_own(record: Record, records: Sequence[Record], rdma: bool) -> Iterator[Check]:
    """Adapters of one node are siblings: of those that its GPUs would use one that is down, or slower, stands out.

    Adapters beyond the number of GPUs (for storage, or ports without a cable) may be as they are.
    """
    ports = _ports(record, rdma) if rdma else []
    up = [port for port in ports if port["up"] and port["rate_gigabits"]]
    if len(ports) < FEWEST_SIBLINGS or not up:
        return
    fastest = max(port["rate_gigabits"] for port in up)
    fast = [port for port in up if port["rate_gigabits"] >= 0.9 * fastest]
    kind, _ = Counter(port["kind"] for port in fast).most_common(1)[0]
    good = [port for port in fast if port["kind"] == kind]
    gpus = max(
        [len([other for other in records if other.node == record.node])]
        + [other.result("presence").get("seen_by_nvml") or 0 for other in records if other.node == record.node]
    )
    others = [port for port in ports if port not in good]
    enough = len(good) >= gpus and (len(good) % gpus == 0 or len(good) & (len(good) - 1) == 0)
    # Two of ten may be for storage, and half of all ports without a cable; one of eight is neither.
    if not others or enough or (len(good) < gpus and len(ports) < gpus):
        return
    for port in others:
        state = f"{port['kind']}, {port['rate_gigabits']:g} Gbit/s" if port["up"] and port["rate_gigabits"] else "down"
        yield _check(
            record.node, f"port {port['name']}", "unverified",
            f"{state}; {len(good)} of {len(ports)} are up as {kind} at {fastest:g} Gbit/s, for {gpus} GPUs",
            f"{REMEDY_PORT}; if it is meant: --expect, [network] ports = {len(up)}",
            measured=float(len(good)),
            threshold=Threshold(
                value=float(len(good) + len(others)), unit="ports like the fastest", relation="at least",
                source="ours: adapters of one node are siblings",
            ),
        )  # fmt: skip


def _slots(record: Record, records: Sequence[Record], rdma: bool) -> Iterator[Check]:
    """The adapter's own PCIe link: it carries no more than that, whatever the port says."""
    hosts = [
        own for other in records if other.node == record.node and (own := reading(other).get("pcie_generation_max"))
    ]
    for port in _ports(record, rdma):
        width, most = port.get("pcie_width"), port.get("pcie_width_max")
        generation, best = port.get("pcie_generation"), port.get("pcie_generation_max")
        if not width or not port["up"]:
            continue
        # A computer of an older generation is no fault of the adapter.
        possible = min(best or 0, max(hosts, default=best or 0))
        carries = pcie_bytes_per_second(generation, width)
        narrow, old = bool(most and width < most), bool(generation and possible and generation < possible)
        short = carries is not None and bool(port["rate_gigabits"]) and carries * 8e-9 < 0.9 * port["rate_gigabits"]
        evidence = f"x{width} of x{most or width}, generation {generation} of {best}"
        if carries is not None and port["rate_gigabits"]:
            evidence += f": {carries * 8e-9:.0f} Gbit/s for a port of {port['rate_gigabits']:g}"
        # A card of fewer lanes than ports of such a rate have may be meant, and carries less all the same.
        few = short and width < USUAL_LANES
        status: Status = "fail" if (narrow or old) and short else "unverified" if narrow or old or few else "pass"
        yield _check(record.node, f"PCIe link of {port['name']}", status, evidence,
                     "reseat the adapter; look at the slot's setting in the BIOS, and at dmesg for AER messages",
                     measured=float(width))  # fmt: skip


def _invisible(node: str, rate: Threshold | None) -> Check:
    """A container on a network of its own shows no adapter; the file's rate is then what bandwidth is compared with."""
    if rate is not None:
        evidence = (
            f"no port is visible here; {rate.value:g} Gbit/s by --expect is the bar of what nodes send each other"
        )
        return _check(node, "ports", "skipped", evidence, threshold=rate)
    return _check(
        node, "ports", "unverified",
        "no port is visible here: in a container use the host's network, or mount its /sys and say --sysfs",
        "run it with the host's network; if that cannot be: --expect, [network] rate_gigabits",
        nothing_known=True,
    )  # fmt: skip


def _ports(record: Record, rdma: bool) -> list[dict[str, Any]]:
    return [port for port in record.result("network")["ports"] if port["rdma"] is rdma]


def _common(nodes: Sequence[Record], rdma: bool) -> list[str]:
    """Names of ports that are up on half of the nodes or more; what is not plugged in anywhere is no fault."""
    up = Counter(port["name"] for record in nodes for port in _ports(record, rdma) if port["up"])
    return [name for name, count in sorted(up.items()) if 2 * count >= len(nodes)]


def _of_most(count: int, nodes: int) -> Status:
    """What it is to be unlike so many nodes: of two that differ, nobody knows which one is right."""
    return "fail" if 2 * count > nodes else "unverified"


def _check(node: str, name: str, status: Status, evidence: str, remedy: str = REMEDY_PORT, **more: Any) -> Check:
    return Check(name=f"network: {name}", part="network", subject=f"node {node}", status=status,
                 evidence=evidence, remedy=remedy, **more)  # fmt: skip


def _state(
    node: str, name: str, port: dict[str, Any] | None, rates: Counter[float | None], unlike: Status, meant: float | None
) -> Check:
    title, others = f"port {name}", "most nodes" if unlike == "fail" else "half of the nodes"
    if port is None:
        return _check(node, title, unlike, f"it is not there; on {others} it is")
    if not port["up"]:
        return _check(node, title, unlike, f"it is down; on {others} it is up")
    # Of rates that are equally common the highest: a port does not run faster than it can.
    most = max(rates.values())
    usual = max((rate for rate, count in rates.items() if count == most and rate is not None), default=None)
    own = port["rate_gigabits"]
    if meant is not None and (own is None or usual is None):
        return _check(node, title, "pass", f"up; the driver reports no rate, {meant:g} Gbit/s by --expect")
    if own is None or usual is None:
        return _check(
            node, title, "unverified", "up, and the driver reports no rate",
            "ethtool; a cloud's adapter may not report it: give it by --expect, [network] rate_gigabits",
            nothing_known=True,
        )  # fmt: skip
    limit = Threshold(value=usual, unit="Gbit/s", relation="at least", source="what most nodes have at this port")
    return _check(node, title, compared(own, limit), f"up, {port['kind']}, {own:g} Gbit/s", measured=own,
                  threshold=limit)  # fmt: skip


def _as_many(record: Record, nodes: Sequence[Record], rdma: bool) -> bool:
    """Whether a node has as many ports of each rate up as any other: then one that is not there has another name."""

    def rates(of: Record) -> Counter[float | None]:
        return Counter(port["rate_gigabits"] for port in _ports(of, rdma) if port["up"])

    own = rates(record)
    return all(not rates(other) - own for other in nodes)


def _kind(node: str, there: dict[str, dict[str, Any]], kinds: dict[str, Counter[str]]) -> Iterator[Check]:
    """A port that is Ethernet where it is InfiniBand on other nodes, or the other way round."""
    for name, counts in kinds.items():
        own = there[name]["kind"] if name in there else None
        if own is None or 2 * counts[own] > counts.total():
            continue
        others = ", ".join(f"{count} x {kind}" for kind, count in counts.most_common())
        yield _check(
            node, f"kind of port {name}", _of_most(counts.total() - counts[own], counts.total()),
            f"{own}; on the nodes: {others}", "mlxconfig -d ADAPTER set LINK_TYPE_P1=1 (InfiniBand) or 2 (Ethernet)",
        )  # fmt: skip


def _lost(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What a port that was up no longer has."""
    if not after["up"]:
        return ["it went down"]
    less = [key for key in LASTING if before.get(key) and after.get(key) and after[key] < before[key]]
    return [f"{LASTING[key]} {before[key]:g} to {after[key]:g}" for key in less]


def _errors(record: Record, before: dict[str, dict[str, Any]], rdma: bool) -> Iterator[Check]:
    if not record.measured("network_after"):
        yield _check(record.node, "errors", "unverified", "the ports were not read after the run")
        return
    after = {port["name"]: port for port in record.result("network_after")["ports"] if port["rdma"] is rdma}
    for name, port in before.items():
        if name not in after:
            yield _check(record.node, f"errors of {name}", "fail", "the port has gone while the test ran")
            continue
        if not port["up"]:
            continue
        now, lost = after[name]["counters"], _lost(port, after[name])
        if lost:
            yield _check(record.node, f"errors of {name}", "fail", f"while the test ran: {', '.join(lost)}")
            continue
        grown = {key: now[key] - value for key, value in port["counters"].items() if now.get(key, value) > value}
        flaps = sum(grown.get(key, 0) for key in LINK_LOST)
        damaged = sum(grown.get(key, 0) for key in DAMAGED)
        retried = not set(grown) <= {*LINK_LOST, *DAMAGED}  # of a counter that nobody knows, nobody knows what it means
        status: Status = "fail" if flaps or damaged > USUAL_ERRORS else "unverified" if damaged or retried else "pass"
        shown = ", ".join(f"{key} +{value}" for key, value in grown.items()) or "none are new"
        if back := [key for key, value in port["counters"].items() if now.get(key, value) < value]:
            status = "unverified" if status == "pass" else status
            shown += f"; {', '.join(back)} went back: the adapter was reset, or somebody cleared its counters"
        if not port["counters"]:
            status, shown = "skipped", "the driver counts none"
        yield _check(
            record.node, f"errors of {name}", status, shown, measured=float(flaps + damaged),
            threshold=Threshold(
                value=float(USUAL_ERRORS), unit="new errors, and no flap", relation="at most",
                source="ours: a bit error rate of 1e-15 gives less than one in ten minutes of 400 Gbit/s",
            ),
        )  # fmt: skip


def _expected(nodes: Sequence[Record], expected: Expectations | None) -> list[Check]:
    checks: list[Check] = []
    if expected is None:
        return checks
    ports = expected.threshold("network", "ports", "ports that are up", "at least")
    rate = expected.threshold("network", "rate_gigabits", "Gbit/s", "at least")
    rdma = any(_ports(record, True) for record in nodes)
    for record in nodes:
        up = [port for port in _ports(record, rdma) if port["up"]]
        if ports is not None:
            status = compared(len(up), ports)
            evidence = f"{len(up)}: {', '.join(port['name'] for port in up) or 'none'}"
            checks.append(
                _check(record.node, "expected ports", status, evidence, measured=float(len(up)), threshold=ports)
            )
        for port in up if rate is not None else ():
            own, title = port["rate_gigabits"], f"expected rate of {port['name']}"
            if own is None:
                evidence = "the driver does not report it, so the file's is taken"
                checks.append(_check(record.node, title, "pass", evidence, threshold=rate))
            else:
                assert rate is not None
                checks.append(
                    _check(record.node, title, compared(own, rate), f"{own:g} Gbit/s", measured=own, threshold=rate)
                )
    return checks
