"""The light check of one node: what NVML, the ports and the kernel's log say, in a second and beside running jobs.

It never says that a node is fit: nothing was computed, so the best it can say is that nothing speaks against it.
"""

import os
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pynvml

from cluster.acceptance import kernel_log, nvml, sysfs
from cluster.acceptance.checks import board, expected, hardware_state, health_diff, network
from cluster.acceptance.expectations import Expectations
from cluster.acceptance.kernel_log import OF_PROGRAMS, Xid
from cluster.acceptance.records import Record
from cluster.acceptance.verdict import Check, Outcome, Threshold
from cluster.fleet.state import BOOT_ID, Seen, State, new_xids
from labkit.monitoring.nvml import XidCounter

SINCE_ACCEPTED = ("health: GPU is still there", "health: uncorrected memory errors", "health: NVLink")
"""Checks of a reading against the accepted one; the others of `deltas` are about work that a run does itself."""
NOW = ("health: temperature", "health: throttling")
"""Compared with the last check: heat may go away by itself."""
_LOADED_ONLY = "expected: pcie generation"
"""An idle board lowers it."""
REMEDY_COUNT = "nvidia-smi on that node; dmesg | grep -i -e xid -e 'fallen off'; power-cycle it"


NOT_BESIDE_JOBS = (
    "board: SM clock against the others",
    "board: power against the others",
    "sound: XIDs before the run",
)
"""GPUs do different work here, and XIDs are judged since the node was accepted."""
COUNTED = ("ecc_errors", *board.MENDED)


@dataclass(frozen=True, kw_only=True)
class Found:
    """One look at the node, and what it adds up to."""

    node: str
    outcome: Outcome
    checks: tuple[Check, ...]
    current: Seen

    @property
    def reasons(self) -> tuple[str, ...]:
        """The failures, in a line each."""
        return tuple(
            f"{check.name}, {check.subject}: {check.evidence}" for check in self.checks if check.status == "fail"
        )

    @property
    def doubts(self) -> tuple[str, ...]:
        """What could not be told, in a line each."""
        return tuple(
            f"{check.name}, {check.subject}: {check.evidence}" for check in self.checks if check.status == "unverified"
        )

    @property
    def reason(self) -> str:
        """In one line, as Slurm and Kubernetes want it."""
        failed = [check for check in self.checks if check.status == "fail"]
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
    readings: dict[str, dict[str, Any]] = {}
    checks = []
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                counter = XidCounter(handle)
                reading = nvml.read(handle, counter)
                counter.close()
                reading["bus"] = _bus(handle)
                readings[reading["uuid"] or f"index {index}"] = {"index": index, **reading}
            except pynvml.NVMLError_GpuIsLost:
                checks.append(_check(f"GPU {index}, {node}", "GPU is still there", "fail",
                                     "the driver has lost it: it fell off the bus", REMEDY_COUNT))  # fmt: skip
            except pynvml.NVMLError as error:
                checks.append(_check(f"GPU {index}, {node}", "reading", "unverified", f"NVML says {str(error)!r}",
                                     REMEDY_COUNT))  # fmt: skip
    finally:
        pynvml.nvmlShutdown()
    return readings, checks


def _bus(handle: Any) -> str | None:
    """PCI domain, bus and device as the kernel's log writes them."""
    try:
        text = pynvml.nvmlDeviceGetPciInfo(handle).busId
    except pynvml.NVMLError:
        return None
    text = (text.decode() if isinstance(text, bytes) else str(text)).lower()
    return text[-12:].partition(".")[0]


def judge(
    current: Seen,
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
    before = state or State(accepted=current, last=current)
    file = _of_a_node(expectations)
    required = gpus if gpus is not None else expectations.count("cluster", "gpus_per_node") if expectations else None
    nvml_answers = not any(check.name == "node: NVML" for check in unread)
    checks = [*unread, *_count(current, required, before.accepted, node, nvml_answers=nvml_answers)]
    records = [_record(number, node, reading, current, before) for number, reading in enumerate(current.gpus.values())]
    now = [replace(record, results={**record.results, "before": record.results["now"]}) for record in records]
    checks += hardware_state.judge(now, file)
    checks += board.judge(records_with(records, "last"), file)
    checks = [check for check in checks if check.name not in NOT_BESIDE_JOBS]
    checks += [check for check in health_diff.judge(records_with(records, "accepted")) if check.name in SINCE_ACCEPTED]
    checks += [check for check in health_diff.judge(records_with(records, "last")) if check.name in NOW]
    checks += [
        check
        for check in expected.judge(now, file, nodes=None)
        if check.name != _LOADED_ONLY or check.status != "unverified"
    ]
    checks += _ports(current, before, node, file)
    checks += _xids(new_xids(xids, before.accepted, current.boot) if state else [], current, node)
    if not current.gpus and not any(check.status == "fail" for check in checks):
        outcome: Outcome = "INCOMPLETE"
    else:
        statuses = {check.status for check in checks}
        outcome = "FAIL" if "fail" in statuses else "INCOMPLETE" if "unverified" in statuses else "PASS"
    return Found(node=node, outcome=outcome, checks=tuple(checks), current=current)


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
    changed = []
    for record in records:
        reading = record.results[which]["reading"]
        # Settings are judged as they are now; what is counted, by how much it grew.
        current = record.results["now"]["reading"]
        # A driver that was loaded again counts from zero: between two looks that is no fault.
        reading = {**reading, **{name: _lesser(reading.get(name), current.get(name)) for name in COUNTED}}
        mixed = {**current, **{name: reading.get(name) for name in board.MENDED}}
        before = {"reading": mixed if which == "last" else reading}
        if which == "last":
            before["reading"] |= {key: reading.get(key) for key in ("temperature_celsius", "throttle_reasons")}
        changed.append(replace(record, results={**record.results, "before": before}))
    return changed


def _lesser(was: float | None, now: float | None) -> float | None:
    return was if was is None or now is None else min(was, now)


def _record(number: int, node: str, reading: dict[str, Any], current: Seen, before: State) -> Record:
    uuid = str(reading["uuid"])
    of = {
        which: earlier.gpus.get(uuid, reading) if earlier.boot == current.boot else at_boot(reading)
        for which, earlier in (("accepted", before.accepted), ("last", before.last))
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
            **{which: {"reading": values} for which, values in of.items()},
        },
    )


def at_boot(reading: dict[str, Any]) -> dict[str, Any]:
    """The same GPU with counters that the driver begins again."""
    return {**reading, **{name: 0 for name in ("ecc_errors", *board.MENDED) if reading.get(name) is not None}}


def _count(current: Seen, required: int | None, accepted: Seen, node: str, *, nvml_answers: bool) -> list[Check]:
    source = "--expect" if required is not None else "when the node was accepted"
    required = len(accepted.gpus) if required is None else required
    gone = [uuid for uuid in accepted.gpus if uuid not in current.gpus]
    status = "fail" if len(current.gpus) < required or (gone and len(current.gpus) != required) else "pass"
    if not nvml_answers:  # no NVML is no GPU that is gone: a library that is missing drains no node
        status = "unverified" if required else "pass"
    evidence = f"{len(current.gpus)} of {required} answer" + (f"; gone: {', '.join(gone)}" if gone else "")
    limit = Threshold(value=float(required), unit="GPUs", relation="at least", source=source)
    return [_check(f"node {node}", "number of GPUs", status, evidence, REMEDY_COUNT, measured=float(len(current.gpus)),
                   threshold=limit)]  # fmt: skip


def _ports(current: Seen, before: State, node: str, file: Expectations | None) -> list[Check]:
    there = {port["name"]: port for port in current.ports}
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
    earlier = before.last.ports if before.last.boot == current.boot else current.ports
    record = Record(rank=0, node=node, results={"network": {"ports": earlier, "peer_memory": False},
                                                "network_after": {"ports": current.ports}})  # fmt: skip
    errors = [check for check in network.judge([record], None) if "errors" in check.name]
    here = replace(record, results={"network": {"ports": current.ports, "peer_memory": False}})
    # A port that is down has lost its link as well: that is one fault.
    named = {check.name.partition("port ")[2] for check in checks if check.status == "fail"}
    errors = [check for check in errors if check.name.partition("errors of ")[2] not in named]
    return checks + errors + [check for check in network.judge([here], file) if "expected" in check.name]


def _xids(xids: list[Xid], current: Seen, node: str) -> list[Check]:
    names = {reading.get("bus"): f"GPU {reading['index']}" for reading in current.gpus.values()}
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
