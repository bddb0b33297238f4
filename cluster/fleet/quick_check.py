"""The light check of one node: what NVML, the ports and the kernel's log say, in a second and beside running jobs.

It never says that a node is fit: nothing was computed, so the best it can say is that nothing speaks against it.
"""

import os
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pynvml

from cluster.acceptance import nvml, sysfs
from cluster.acceptance.checks import board, expected, hardware_state, health_diff, network
from cluster.acceptance.expectations import Expectations
from cluster.acceptance.records import Record
from cluster.acceptance.verdict import Check, Outcome, Threshold
from cluster.fleet import kernel_log
from cluster.fleet.kernel_log import OF_PROGRAMS, Xid
from cluster.fleet.state import BOOT_ID, Seen, State, new_xids
from labkit.monitoring.nvml import XidCounter

SINCE_ACCEPTED = ("health: GPU is still there", "health: uncorrected memory errors", "health: NVLink")
"""Checks of a reading against the accepted one; the others of `deltas` are about work that a run does itself."""
NOW = ("health: temperature", "health: throttling")
"""Compared with the last check: heat may go away by itself."""
_LOADED_ONLY = "expected: pcie generation"
"""An idle board lowers it."""
REMEDY_COUNT = "nvidia-smi on that node; dmesg | grep -i -e xid -e 'fallen off'; power-cycle it"


@dataclass(frozen=True, kw_only=True)
class Found:
    """One look at the node, and what it adds up to."""

    node: str
    outcome: Outcome
    checks: tuple[Check, ...]
    seen: Seen

    @property
    def reasons(self) -> tuple[str, ...]:
        """The failures, in a line each."""
        return tuple(f"{one.name}, {one.subject}: {one.evidence}" for one in self.checks if one.status == "fail")

    @property
    def doubts(self) -> tuple[str, ...]:
        """What could not be told, in a line each."""
        return tuple(f"{one.name}, {one.subject}: {one.evidence}" for one in self.checks if one.status == "unverified")

    @property
    def reason(self) -> str:
        """In one line, as Slurm and Kubernetes want it."""
        failed = [one for one in self.checks if one.status == "fail"]
        if not failed:
            return ""
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        return f"{failed[0].name}, {failed[0].subject}: {failed[0].evidence}{more}"


def look(sys_root: Path, log: Path, node: str | None = None) -> tuple[Seen, list[Check], list[Xid]]:
    """Read everything once; the checks are about what could not be read."""
    node = node or node_name()
    boot = BOOT_ID.read_text(encoding="ascii").strip()
    gpus, checks = _gpus(node)
    try:
        xids = kernel_log.read(log)
    except OSError as error:
        xids = []
        checks.append(_check(node, "XID errors", "unverified", f"{log} cannot be read: {error.strerror}",
                             "run it as root, or mount the host's /dev/kmsg"))  # fmt: skip
    last = max((xid.sequence for xid in xids), default=-1)
    return Seen(boot=boot, gpus=gpus, ports=sysfs.ports(sys_root), last_record=last), checks, xids


def node_name() -> str:
    """As Slurm and Kubernetes call this node where they say so, else its short host name."""
    return os.environ.get("SLURMD_NODENAME") or os.environ.get("NODE_NAME") or socket.gethostname().partition(".")[0]


def _gpus(node: str) -> tuple[dict[str, dict[str, Any]], list[Check]]:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {}, [_check(node, "NVML", "unverified", f"NVML says {str(error)!r}", "is the driver loaded?")]
    found: dict[str, dict[str, Any]] = {}
    checks = []
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                counter = XidCounter(handle)
                reading = nvml.read(handle, counter)
                counter.close()
                reading["bus"] = _bus(handle)
                found[reading["uuid"] or f"index {index}"] = {"index": index, **reading}
            except pynvml.NVMLError_GpuIsLost:
                checks.append(_check(f"GPU {index}, {node}", "GPU is still there", "fail",
                                     "the driver has lost it: it fell off the bus", REMEDY_COUNT))  # fmt: skip
            except pynvml.NVMLError as error:
                checks.append(_check(f"GPU {index}, {node}", "reading", "unverified", f"NVML says {str(error)!r}",
                                     REMEDY_COUNT))  # fmt: skip
    finally:
        pynvml.nvmlShutdown()
    return found, checks


def _bus(handle: Any) -> str | None:
    """PCI domain, bus and device as the kernel's log writes them."""
    try:
        text = pynvml.nvmlDeviceGetPciInfo(handle).busId
    except pynvml.NVMLError:
        return None
    text = (text.decode() if isinstance(text, bytes) else str(text)).lower()
    return text[-12:].partition(".")[0]


def judge(
    seen: Seen,
    unread: list[Check],
    xids: list[Xid],
    *,
    state: State | None,
    expectations: Expectations | None = None,
    gpus: int | None = None,
    node: str | None = None,
) -> Found:
    """What a look at the node says, against the state that was accepted and the file of what it should be."""
    node = node or node_name()
    before = state or State(accepted=seen, last=seen)
    file = _of_a_node(expectations)
    wanted = gpus if gpus is not None else expectations.count("cluster", "gpus_per_node") if expectations else None
    checks = [*unread, *_count(seen, wanted, before.accepted, node)]
    records = [_record(number, node, reading, seen, before) for number, reading in enumerate(seen.gpus.values())]
    now = [replace(one, results={**one.results, "before": one.results["now"]}) for one in records]
    checks += hardware_state.judge(now, file)
    checks += board.judge(records_with(records, "last"))
    checks += [one for one in health_diff.judge(records_with(records, "accepted")) if one.name in SINCE_ACCEPTED]
    checks += [one for one in health_diff.judge(records_with(records, "last")) if one.name in NOW]
    checks += [
        one for one in expected.judge(now, file, nodes=None) if one.name != _LOADED_ONLY or one.status != "unverified"
    ]
    checks += _ports(seen, before, node, file)
    checks += _xids(new_xids(xids, before.accepted, seen.boot) if state else [], seen, node)
    if not seen.gpus and not any(one.status == "fail" for one in checks):
        outcome: Outcome = "INCOMPLETE"
    else:
        statuses = {one.status for one in checks}
        outcome = "FAIL" if "fail" in statuses else "INCOMPLETE" if "unverified" in statuses else "PASS"
    return Found(node=node, outcome=outcome, checks=tuple(checks), seen=seen)


def _of_a_node(file: Expectations | None) -> Expectations | None:
    """What of the file can be asked of one node without computing: no counts of nodes, no rates, no PyTorch."""
    if file is None:
        return None
    tables = {name: dict(table) for name, table in file.tables.items() if name in ("gpu", "network")}
    if driver := file.text("software", "driver"):
        tables["software"] = {"driver": driver}
    return Expectations(file.path, tables)


def records_with(records: list[Record], which: str) -> list[Record]:
    """The records with the readings of then in the place of those before a run."""
    found = []
    for one in records:
        reading = one.results[which]["reading"]
        # Settings are judged as they are now; what is counted, by how much it grew.
        mixed = {**one.results["now"]["reading"], **{name: reading.get(name) for name in board.MENDED}}
        before = {"reading": mixed if which == "last" else reading}
        if which == "last":
            before["reading"] |= {key: reading.get(key) for key in ("temperature_celsius", "throttle_reasons")}
        found.append(replace(one, results={**one.results, "before": before}))
    return found


def _record(number: int, node: str, reading: dict[str, Any], seen: Seen, before: State) -> Record:
    uuid = str(reading["uuid"])
    of = {
        which: one.gpus.get(uuid, reading) if one.boot == seen.boot else at_boot(reading)
        for which, one in (("accepted", before.accepted), ("last", before.last))
    }
    presence = {"index": reading["index"], "device_name": reading["name"], "uuid": reading["uuid"]}
    return Record(
        rank=number,
        local_rank=number,
        node=node,
        results={
            "presence": presence,
            "now": {"reading": reading},
            "after": {"reading": reading},
            **{which: {"reading": one} for which, one in of.items()},
        },
    )


def at_boot(reading: dict[str, Any]) -> dict[str, Any]:
    """The same GPU with counters that the driver begins anew."""
    return {**reading, **{name: 0 for name in ("ecc_errors", *board.MENDED) if reading.get(name) is not None}}


def _count(seen: Seen, wanted: int | None, accepted: Seen, node: str) -> list[Check]:
    source = "--expect" if wanted is not None else "when the node was accepted"
    wanted = len(accepted.gpus) if wanted is None else wanted
    gone = [uuid for uuid in accepted.gpus if uuid not in seen.gpus]
    status = "fail" if len(seen.gpus) < wanted or (gone and len(seen.gpus) != wanted) else "pass"
    evidence = f"{len(seen.gpus)} of {wanted} answer" + (f"; gone: {', '.join(gone)}" if gone else "")
    limit = Threshold(value=float(wanted), unit="GPUs", relation="at least", source=source)
    return [_check(f"node {node}", "number of GPUs", status, evidence, REMEDY_COUNT, measured=float(len(seen.gpus)),
                   threshold=limit)]  # fmt: skip


def _ports(seen: Seen, before: State, node: str, file: Expectations | None) -> list[Check]:
    there = {port["name"]: port for port in seen.ports}
    checks = []
    for port in before.accepted.ports:
        now = there.get(port["name"])
        if not port["rdma"] or not port["up"]:
            continue
        up = now is not None and now["up"]
        slower = up and now is not None and (now["rate_gigabits"] or 0) < (port["rate_gigabits"] or 0)
        evidence = "it is down" if not up else f"{(now or port)['rate_gigabits']:g} of {port['rate_gigabits']:g} Gbit/s"
        checks.append(_check(f"node {node}", f"port {port['name']}", "fail" if not up or slower else "pass", evidence,
                             network.REMEDY_PORT, part="network"))  # fmt: skip
    earlier = before.last.ports if before.last.boot == seen.boot else seen.ports
    record = Record(rank=0, node=node, results={"network": {"ports": earlier, "peer_memory": False},
                                                "network_after": {"ports": seen.ports}})  # fmt: skip
    errors = [one for one in network.judge([record], None) if "errors" in one.name]
    here = replace(record, results={"network": {"ports": seen.ports, "peer_memory": False}})
    return checks + errors + [one for one in network.judge([here], file) if "expected" in one.name]


def _xids(xids: list[Xid], seen: Seen, node: str) -> list[Check]:
    names = {reading.get("bus"): f"GPU {reading['index']}" for reading in seen.gpus.values()}
    checks = []
    for bus in dict.fromkeys(xid.bus for xid in xids):
        numbers = [xid.number for xid in xids if xid.bus == bus]
        bad = sorted({number for number in numbers if number not in OF_PROGRAMS})
        evidence = f"XID {', '.join(map(str, bad or sorted(set(numbers))))} at {bus}"
        evidence += "" if bad else ": what a user's program causes"
        checks.append(_check(f"{names.get(bus, 'a GPU that is gone')}, {node}", "XID errors", "fail" if bad else "pass",
                             evidence, "look it up: docs.nvidia.com/deploy/xid-errors; reset or replace"))  # fmt: skip
    return checks


def _check(subject: str, name: str, status: Any, evidence: str, remedy: str, **more: Any) -> Check:
    return Check(name=f"node: {name}", subject=subject, status=status, evidence=evidence, remedy=remedy,
                 **{"part": "health", **more})  # fmt: skip
