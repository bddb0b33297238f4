"""Judges what `health` read: the difference between before and after, so that only what the run caused fails it."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from cluster.acceptance.checks import broken
from cluster.acceptance.checks.links import board_of
from cluster.acceptance.kernel_log import OF_PROGRAMS
from cluster.acceptance.records import Record
from cluster.acceptance.verdict import Check, Status, Threshold
from labkit.monitoring.nvml import THROTTLE_REASONS

USUAL_CELSIUS = 85
"""Where NVML names no limit: GPUs usually stay below it."""
NEAR_CELSIUS = 3
"""Ours, below the board's limit: a warmer day, and it slows down."""
HARMLESS = frozenset({"idle", "power_cap", "application_clocks", "sync_boost", "display_clocks"})
"""Reasons for lower clocks that a sound machine may have; clocks that somebody has set are judged by `board`."""
HARMFUL = tuple(reason for reason in THROTTLE_REASONS.values() if reason not in HARMLESS)
FULL = Threshold(
    value=0.95,
    unit="of the GPU's memory",
    relation="at most",
    source="ours: beyond it the next fragment is one too many",
)
UNUSED = Threshold(
    value=2.0, unit="GiB in use", relation="at most",
    source="ours: a driver, DCGM and MPS together keep less; another program makes one of two of every measurement",
)  # fmt: skip
IDLE = Threshold(value=0.1, unit="busy share", relation="at most", source=UNUSED.source)
QUIET = Threshold(
    value=1.0, unit="GB/s over PCIe", relation="at most", source="ours: nobody copies to or from a GPU that is free"
)
COUNTERS = {
    "ecc_errors": ("uncorrected memory errors", "drain the node; reset the GPU, have it replaced if they come back"),
    "xid_errors": ("XID errors", "look the number up: dmesg | grep Xid, docs.nvidia.com/deploy/xid-errors"),
}
DELTAS = ("temperature_celsius", "utilization_ratio", "memory_used_bytes", "power_watts", "energy_joules",
          "sm_clock_hertz", "memory_clock_hertz", "ecc_errors", "ecc_corrected", "xid_errors", "pcie_generation",
          "pcie_width", "pcie_replays", "nvlinks_up")  # fmt: skip


def deltas(record: Record) -> dict[str, float]:
    """After minus before, of every figure that both readings have."""
    before, after = _readings(record)
    return {
        name: after[name] - before[name]
        for name in DELTAS
        if before.get(name) is not None and after.get(name) is not None
    }


def _readings(record: Record) -> tuple[dict[str, Any], dict[str, Any]]:
    return record.result("before").get("reading") or {}, record.result("after").get("reading") or {}


def judge(records: Sequence[Record]) -> list[Check]:
    """Checks of all GPUs' health."""
    if records and all(record.gpu is None and record.measured("presence") for record in records):
        return [
            Check(
                name="health: before and after",
                part="health",
                subject="all ranks",
                status="unverified",
                evidence="there is no GPU whose health could be read",
                remedy="run it on a machine with NVIDIA GPUs",
            )
        ]
    checks = broken(records, "before", "health") + broken(records, "after", "health")
    for record in records:
        before, after = _readings(record)
        if not before or not after:
            continue
        checks.append(_there(record, before, after))
        if after["up"] and before["up"]:
            checks += [
                _temperature(record, before, after),
                _throttling(record, before, after),
                *(_counter(record, name, before, after) for name in COUNTERS),
                _free(record, before),
                _memory(record, before, after),
                _link(record, before, after),
                _nvlink(record, before, after),
                _work(record, before, after),
            ]
    return checks


def _check(record: Record, name: str, status: Status, evidence: str, remedy: str, **more: Any) -> Check:
    return Check(
        name=f"health: {name}",
        part="health",
        subject=record.subject,
        rank=record.rank,
        status=status,
        evidence=evidence,
        remedy=remedy,
        **more,
    )


def _untold(record: Record, name: str, after: dict[str, Any], field: str, remedy: str) -> Check:
    """There is no figure: the card has none (skipped), or this user, driver or container may not see it."""
    reason = after.get("untold", {}).get(field)
    evidence = f"NVML does not report it: {reason}" if reason else "this GPU does not report it"
    status: Status = "unverified" if reason else "skipped"
    return _check(record, name, status, evidence, remedy, nothing_known=True)


def _there(record: Record, before: dict[str, Any], after: dict[str, Any]) -> Check:
    there = before["up"] and after["up"]
    when = "while the test ran" if before["up"] else "before the test"
    evidence = "answers" if there else f"the driver has lost it: it fell off the bus {when}"
    remedy = "dmesg | grep -i 'fallen off the bus' (XID 79); power-cycle the node, check power and seating"
    return _check(record, "GPU is still there", "pass" if there else "fail", evidence, remedy)


def _temperature(record: Record, before: dict[str, Any], after: dict[str, Any]) -> Check:
    cold, hot, own = before.get("temperature_celsius"), after.get("temperature_celsius"), after.get("maximum_celsius")
    limit = Threshold(
        value=float(own or USUAL_CELSIUS),
        unit="degrees Celsius",
        relation="at most",
        source="the board's own limit, by NVML" if own else "usual for data-centre GPUs; NVML names no limit",
    )
    remedy = "look at fans, airflow and room; compare with its neighbours (nvidia-smi -q -d TEMPERATURE)"
    if cold is None or hot is None:
        return _untold(record, "temperature", after, "temperature_celsius", remedy)
    evidence = f"{cold:.0f} to {hot:.0f} degrees ({hot - cold:+.0f})"
    if not limit.holds(cold):
        evidence += "; too hot already before the test, so not its doing"
        return _check(record, "temperature", "unverified", evidence, remedy, measured=hot, threshold=limit)
    status: Status = "pass" if limit.holds(hot) else "fail"
    if own and status == "pass" and hot > own - NEAR_CELSIUS:
        status, evidence = "unverified", f"{evidence}; {own - hot:.0f} below where the board slows down"
    return _check(record, "temperature", status, evidence, remedy, measured=hot, threshold=limit)


def _throttling(record: Record, before: dict[str, Any], after: dict[str, Any]) -> Check:
    was, now = before.get("throttle_reasons"), after.get("throttle_reasons")
    remedy = "thermal: cooling; power brake, hardware slowdown: power supply and its cables"
    if was is None or now is None:
        return _untold(record, "throttling", after, "throttle_reasons", remedy)
    new = [reason for reason in now if reason in HARMFUL and reason not in was]
    old = [reason for reason in was if reason in HARMFUL]
    clocks = [reading.get("sm_clock_hertz") for reading in (before, after)]
    shown = " to ".join("?" if clock is None else f"{clock / 1e6:.0f}" for clock in clocks)
    evidence = f"reasons {', '.join(was) or 'none'} before, {', '.join(now) or 'none'} after; SM clock {shown} MHz"
    limit = Threshold(value=0, unit="new harmful reasons", relation="at most", source="NVML's clock event reasons")
    status: Status = "fail" if new else "unverified" if old else "pass"
    return _check(record, "throttling", status, evidence, remedy, measured=float(len(new)), threshold=limit)


def _counter(record: Record, name: str, before: dict[str, Any], after: dict[str, Any]) -> Check:
    title, remedy = COUNTERS[name]
    if before.get(name) is None or after.get(name) is None:
        return _untold(record, title, after, name, remedy)
    grown = after[name] - before[name]
    limit = Threshold(value=0, unit="new errors", relation="at most", source="a sound GPU has none in minutes")
    evidence = f"{before[name]} before, {after[name]} after"
    if name == "xid_errors" and not grown and (logged := _new_xids(before, after)):
        grown, evidence = len(logged), f"new in the kernel's log: {', '.join(map(str, logged))}"
    elif name == "xid_errors" and not grown and (logged := _new_xids(before, after, of_programs=True)):
        # This program causes none, and no other one should run.
        evidence = f"new in the kernel's log, as programs cause them: {', '.join(map(str, logged))}"
        return _check(record, title, "unverified", evidence, remedy, measured=float(len(logged)), threshold=limit)
    if grown < 0:
        evidence += ": the count went back, so the GPU was reset while the test ran"
    return _check(record, title, "fail" if grown else "pass", evidence, remedy, measured=grown, threshold=limit)


def _new_xids(before: dict[str, Any], after: dict[str, Any], *, of_programs: bool = False) -> list[int]:
    """Those that the kernel's log got while the test ran, and no program causes: NVML tells not every one."""
    was, now = (reading.get("xids_before") for reading in (before, after))
    if was is None or now is None:
        return []
    return sorted(xid for xid in (Counter(now) - Counter(was)).elements() if (xid in OF_PROGRAMS) is of_programs)


def _free(record: Record, before: dict[str, Any]) -> Check:
    """Whether another program was on the GPU before this test."""
    used, busy = before.get("memory_used_bytes"), before.get("utilization_ratio")
    remedy = "end what else runs on this GPU (nvidia-smi, fuser -v /dev/nvidia*), then run it again"
    known = board_of(record)
    # Where the host's kernel may use the GPU's memory, as Grace's does, what is in use is nobody's.
    shared = known is not None and known.host == "c2c"
    limit, measured = (IDLE, busy) if shared or used is None else (UNUSED, used / 2**30)
    if busy is not None and not IDLE.holds(busy):
        limit, measured = IDLE, busy
    moving = before.get("memory_busy_ratio")
    if moving is not None and not IDLE.holds(moving):
        limit, measured = IDLE, moving
    traffic = sum(before.get(f"pcie_{way}_bytes_per_second") or 0.0 for way in ("sent", "received"))
    if not QUIET.holds(traffic / 1e9):
        limit, measured = QUIET, traffic / 1e9
    evidence = f"{(used or 0) / 2**20:.0f} MiB in use, {busy or 0:.0%} busy"
    evidence += f", {traffic / 1e9:.1f} GB/s over PCIe" if traffic else ""
    evidence += f", its memory {moving:.0%}" if moving else ""
    if measured is None:
        return _untold(record, "free before the run", before, "utilization_ratio", remedy)
    status: Status = "pass" if limit.holds(measured) else "unverified"
    return _check(record, "free before the run", status, evidence, remedy, measured=measured, threshold=limit)


def _memory(record: Record, before: dict[str, Any], after: dict[str, Any]) -> Check:
    total, was, now = (after.get("memory_total_bytes"), before.get("memory_used_bytes"), after.get("memory_used_bytes"))
    remedy = "end what else runs on this GPU (nvidia-smi), or use a smaller --batch-size"
    if not total or was is None or now is None:
        return _untold(record, "memory", after, "memory_used_bytes", remedy)
    evidence = f"{was / 2**20:.0f} to {now / 2**20:.0f} of {total / 2**20:.0f} MiB"
    status: Status = "pass" if FULL.holds(now / total) else "unverified" if not FULL.holds(was / total) else "fail"
    return _check(record, "memory", status, evidence, remedy, measured=now / total, threshold=FULL)


def _link(record: Record, before: dict[str, Any], after: dict[str, Any]) -> Check:
    remedy = "reseat the board or its riser; look for replays and AER messages in dmesg"
    width, generation = (
        [reading.get(name) or 0 for reading in (before, after)] for name in ("pcie_width", "pcie_generation")
    )
    if not all(width + generation):
        return _untold(record, "PCIe link", after, "pcie_width", remedy)
    evidence = f"x{width[0]} generation {generation[0]} before, x{width[1]} generation {generation[1]} after"
    if after.get("pcie_width_max") and after["pcie_width_max"] > width[1]:
        evidence += f"; the slot or the board allows x{after['pcie_width_max']}"
    # An idle board lowers its generation to save power, and raises it again by itself.
    idle = "idle" in (after.get("throttle_reasons") or ())
    worse = width[1] < width[0] or (generation[1] < generation[0] and not idle)
    lost = float(width[0] - width[1])
    limit = Threshold(value=0, unit="lanes lost", relation="at most", source="a link does not get narrower by itself")
    return _check(record, "PCIe link", "fail" if worse else "pass", evidence, remedy, measured=lost, threshold=limit)


def _nvlink(record: Record, before: dict[str, Any], after: dict[str, Any]) -> Check:
    was, now = before.get("nvlinks_up"), after.get("nvlinks_up")
    remedy = "nvidia-smi nvlink -s -i GPU; is the fabric manager running (systemctl status nvidia-fabricmanager)?"
    if was is None or now is None:
        return _untold(record, "NVLink", after, "nvlinks_up", remedy)
    if not was and not now:
        return _check(record, "NVLink", "skipped", "no NVLink is up on this GPU", remedy)
    limit = Threshold(value=0, unit="links lost", relation="at most", source="links do not go down by themselves")
    status: Status = "fail" if now < was else "pass"
    evidence = f"{was} links up before, {now} after"
    return _check(record, "NVLink", status, evidence, remedy, measured=float(was - now), threshold=limit)


def _work(record: Record, before: dict[str, Any], after: dict[str, Any]) -> Check:
    """Whether NVML saw the work at all: the right GPU was read, and it really computed."""
    busy = after.get("utilization_ratio")
    remedy = "is it the same GPU (UUID)? Under MIG and in some containers NVML does not see the work"
    if busy is None:
        return _untold(record, "utilisation and power", after, "utilization_ratio", remedy)
    watts = [reading.get("power_watts") for reading in (before, after)]
    shown = " to ".join("?" if power is None else f"{power:.0f}" for power in watts)
    limit = Threshold(
        value=0.25,
        unit="busy share after the work",
        relation="at least",
        source="ours: it had worked without a pause for longer than NVML's sampling period",
    )
    status: Status = "pass" if limit.holds(busy) else "unverified"
    evidence = f"{busy:.0%} busy, {shown} W (limit {after.get('power_limit_watts') or 0:.0f} W)"
    return _check(record, "utilisation and power", status, evidence, remedy, measured=busy, threshold=limit)
