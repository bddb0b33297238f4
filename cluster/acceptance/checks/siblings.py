"""A board against the others of its node or model, in what a sound one may have as well, but not alone, or not so many.

Heat and power before any work, memory in use after it, errors that were corrected.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from cluster.acceptance.checks.board import MENDED, POWER_PEERS, SM_CLOCK_PEERS
from cluster.acceptance.checks.health_diff import IDLE
from cluster.acceptance.checks.links import board_of, reading
from cluster.acceptance.records import Record
from cluster.acceptance.verdict import Check, Status, Threshold

LEFT_OVER = Threshold(
    value=0.25, unit="of the memory more than the median of the others", relation="at most",
    source="ours: all work on the same; contexts of other ranks may be on the first GPU",
)  # fmt: skip
FEWEST_OF_NODE, TIMES_OF_NODE = 4, 3
"""GPUs of a node, and times what one may have new."""
WARMER = Threshold(
    value=35.0, unit="degrees more than the median of the others", relation="at most",
    source="ours: idle boards of one node differ less than under load, where it is 30 (Sinha et al. 2022)",
)  # fmt: skip
HUNGRIER, OF_LIMIT = 2.5, 0.25
"""Times the median of the others, from a share of its limit on: an idle board that draws so much is not idle."""
CAPPED = Threshold(
    value=0.7, unit="of the power limit", relation="at least",
    source="ours: a board that its power cap holds down draws what it may",
)  # fmt: skip
WARM_NODE = Threshold(
    value=20.0, unit="degrees more than the median of the other nodes", relation="at most",
    source="ours: racks of one room differ by less",
)  # fmt: skip
HOT_IDLE = Threshold(
    value=0.85, unit="of the temperature that the board allows", relation="at most",
    source="ours: idle boards are far below it, so that work has room",
)  # fmt: skip
HUNGRY_IDLE = Threshold(
    value=0.6, unit="of the power limit", relation="at most", source="ours: idle boards draw less than half of it",
)  # fmt: skip
LARGE_BOARD_WATTS = 250.0
HUNGRY_IDLE_LARGE = replace(HUNGRY_IDLE, value=0.35, source="ours: idle boards of 250 W and more draw a third at most")
ENERGY = Threshold(
    value=2.0, unit="times the median of the others, or its inverse", relation="at most",
    source="ours: the same work for the same time on the same board",
)  # fmt: skip
FEWEST_OF_MODEL = 3
"""GPUs of a model: of two that differ, nobody knows which one is right."""
WORN_TIMES, WORN_RUNS = 100.0, 10.0
"""Times the median of the others, and what fails in a run, of errors before it: nobody knows in how many days."""
MANY_XIDS, ALONE_SHARE = 50.0, 5
LEAST_UNDER_LOAD = Threshold(
    value=0.2, unit="of the power limit", relation="at least", source="ours: products take half of it and more",
)  # fmt: skip
LEAST_ENERGY = Threshold(
    value=0.5, unit="of what it drew when it was idle", relation="at least", source="it worked in the meantime",
)  # fmt: skip


def judge(records: Sequence[Record]) -> list[Check]:
    """Checks of the boards whose NVML answers."""
    readable = [record for record in records if record.gpu is not None and reading(record).get("up")]
    checks = [check for name in MENDED for check in _on_many(readable, name)] + _left_over(readable)
    checks += _warm_nodes(readable)
    for same in _by_model(readable).values():
        checks += [*_idle(same), *_energies(same), *_worn(same), *_xids(same), *_alone(same), *_under_load(same)]
    return checks + [
        check for record in readable for check in (*_power(record), *_load_power(record), *_at_rest(record))
    ]


def _check(
    record: Record, name: str, status: Status, evidence: str, remedy: str, measured: float, limit: Threshold
) -> Check:
    return Check(name=f"board: {name}", part="health", subject=record.subject, rank=record.rank, status=status,
                 evidence=evidence, remedy=remedy, measured=measured, threshold=limit)  # fmt: skip


def _by_model(records: Sequence[Record]) -> dict[Any, list[Record]]:
    models: dict[Any, list[Record]] = {}
    for record in records:
        models.setdefault(record.result("presence").get("device_name"), []).append(record)
    return models


def _idle(records: Sequence[Record]) -> Iterator[Check]:
    """Before any work: a cooler that is loose, or something that computes and that NVML does not count."""
    for name in ("temperature_celsius", "power_watts"):
        values = {record.rank: float(value) for record in records if (value := reading(record).get(name)) is not None}
        for record in records if len(values) > 1 else ():
            if record.rank not in values:
                continue
            own = values[record.rank]
            usual = median(value for rank, value in values.items() if rank != record.rank)
            if name == "temperature_celsius":
                status: Status = "pass" if WARMER.holds(own - usual) else "unverified"
                evidence = f"{own:.0f} degrees before the work, the others {usual:.0f}"
                remedy = "is its cooler seated, its air or coolant flowing? Compare with its neighbours"
                yield _check(record, "warmth before the run", status, evidence, remedy, own - usual, WARMER)
                continue
            most = max(HUNGRIER * usual, OF_LIMIT * (reading(record).get("power_limit_watts") or 0.0))
            limit = Threshold(value=most, unit="W", relation="at most",
                              source=f"ours: {HUNGRIER:g} times the median of the others")  # fmt: skip
            busy = not IDLE.holds(reading(record).get("utilization_ratio") or 0.0)
            status = "pass" if limit.holds(own) or busy else "unverified"
            evidence = f"{own:.0f} W before the work, the others {usual:.0f}"
            remedy = "what computes on it? nvidia-smi pmon; else its sensor or its power stage: have it looked at"
            yield _check(record, "power before the run", status, evidence, remedy, own, limit)


def _load_power(record: Record) -> Iterator[Check]:
    """As `_power` over the minutes of a load: what it drew, by why it was held down."""
    series, limit = record.result("load").get("series") or [], reading(record).get("power_limit_watts")
    drawn = [sample["watts"] for sample in series if sample.get("watts")]
    capped = [sample for sample in series if "power_cap" in (sample.get("throttle_reasons") or ())]
    if not drawn or not limit:
        return
    ratio, needed = median(drawn) / limit, CAPPED if 2 * len(capped) > len(series) else LEAST_UNDER_LOAD
    status: Status = "pass" if needed.holds(ratio) else "unverified"
    evidence = (
        f"median {median(drawn):.0f} of {limit:.0f} W, held down by the power cap in {len(capped)} of {len(series)}"
    )
    remedy = "nvidia-smi -q -d POWER,PERFORMANCE: its sensor, its cables, or a cap that somebody else has set"
    yield _check(record, "power of the load", status, evidence, remedy, ratio, needed)


def _at_rest(record: Record) -> Iterator[Check]:
    """Before any work, by the board's own limits: what heats or loads all alike has no sibling that shows it."""
    before = reading(record)
    for name, most, limit, title, remedy in (
        ("temperature_celsius", "maximum_celsius", HOT_IDLE, "heat before the run",
         "what else runs on it? Else its air or coolant does not flow, or the room is too hot"),
        ("power_watts", "power_limit_watts", HUNGRY_IDLE, "idle power before the run",
         "what computes on it (nvidia-smi pmon)? Else its sensor or its power stage: have it looked at"),
    ):  # fmt: skip
        value, own = before.get(name), before.get(most)
        if value and own and IDLE.holds(before.get("utilization_ratio") or 0.0):
            if limit is HUNGRY_IDLE and own >= LARGE_BOARD_WATTS:
                limit = HUNGRY_IDLE_LARGE
            status: Status = "pass" if limit.holds(value / own) else "unverified"
            evidence = f"{value:.0f} before any work, its limit is {own:.0f}"
            yield _check(record, title, status, evidence, remedy, value / own, limit)


def _warm_nodes(records: Sequence[Record]) -> list[Check]:
    """A node that is warmer than all others, its GPUs being alike: its fans, its place in the rack."""
    by_node: dict[tuple[Any, str], list[float]] = {}
    for record in records:
        if (value := reading(record, "after").get("temperature_celsius")) is not None:
            by_node.setdefault((record.result("presence").get("device_name"), record.node), []).append(float(value))
    checks = []
    for (model, node), values in by_node.items():
        others = [median(own) for (of, other), own in by_node.items() if of == model and other != node]
        if others:
            more = median(values) - median(others)
            checks.append(
                Check(
                    name="board: warmth of a node", part="health", subject=f"node {node}",
                    status="pass" if WARM_NODE.holds(more) else "unverified",
                    evidence=f"its GPUs are {more:+.0f} degrees warmer after the work than those of other nodes",
                    remedy="its fans, filters, coolant and place in the rack; ipmitool sdr type fan",
                    measured=more, threshold=WARM_NODE,
                )
            )  # fmt: skip
    return checks


def _energies(records: Sequence[Record]) -> Iterator[Check]:
    """All did the same work: one that took far less energy did not, or its counter is wrong."""
    used = {}
    for record in records:
        first, last = (reading(record, stage).get("energy_joules") for stage in ("before", "after"))
        if first is not None and last is not None and last > first:
            used[record.rank] = float(last - first)
    for record in records if len(used) >= FEWEST_OF_MODEL else ():
        if record.rank in used:
            own = used[record.rank]
            ratio = own / median(value for rank, value in used.items() if rank != record.rank)
            status: Status = "pass" if ENERGY.holds(max(ratio, 1 / ratio)) else "unverified"
            evidence = f"{own:.0f} J while the test ran, {ratio:.2f} of the median of the others"
            remedy = "did it work all the time (its log)? Else its counter is wrong, as what reads it (DCGM, bills)"
            yield _check(record, "energy against the others", status, evidence, remedy, max(ratio, 1 / ratio), ENERGY)


def _worn(records: Sequence[Record]) -> Iterator[Check]:
    """Errors that were corrected before the run, where the other boards have next to none."""
    for name, (title, _, most, remedy) in MENDED.items():
        counts = {record.rank: value for record in records if (value := reading(record).get(name)) is not None}
        for record in records if len(counts) >= FEWEST_OF_MODEL else ():
            if record.rank not in counts:
                continue
            own, usual = counts[record.rank], median(value for rank, value in counts.items() if rank != record.rank)
            most_before = max(WORN_RUNS * most, WORN_TIMES * usual)
            source = f"ours: ten times what fails in a run, or {WORN_TIMES:g} times what others have"
            limit = Threshold(value=most_before, unit="before the run", relation="at most", source=source)
            status: Status = "pass" if limit.holds(own) else "unverified"
            evidence = f"{own} before the run, the median of the others is {usual:g}"
            yield _check(record, f"{title} before the run", status, evidence, remedy, float(own), limit)


def _alone(records: Sequence[Record]) -> Iterator[Check]:
    """New errors that were corrected, few enough by themselves, on a board whose neighbours have none."""
    for name, (title, few, _, remedy) in MENDED.items():
        both = {record.rank: [reading(record, stage).get(name) for stage in ("before", "after")] for record in records}
        grown = {rank: after - before for rank, (before, after) in both.items()
                 if before is not None and after is not None}  # fmt: skip
        for record in records if len(grown) >= FEWEST_OF_MODEL else ():
            if record.rank not in grown:
                continue
            own, usual = grown[record.rank], median(value for rank, value in grown.items() if rank != record.rank)
            limit = Threshold(value=max(few / ALONE_SHARE, ALONE_SHARE * usual), unit="new ones", relation="at most",
                              source=f"ours: a fifth of {few}, or five times what the others have")  # fmt: skip
            status: Status = "pass" if limit.holds(own) else "unverified"
            evidence = f"{own} new ones, the median of the others is {usual:g}"
            yield _check(record, f"{title} against the others", status, evidence, remedy, float(own), limit)


def _xids(records: Sequence[Record]) -> Iterator[Check]:
    """XIDs that programs cause, where one board alone has many: then it is hardly the programs."""
    logged = {record.rank: reading(record).get("xids_before") for record in records}
    counts = {rank: len(xids) for rank, xids in logged.items() if xids is not None}
    for record in records if len(counts) >= FEWEST_OF_MODEL else ():
        if record.rank in counts:
            own, usual = counts[record.rank], median(value for rank, value in counts.items() if rank != record.rank)
            limit = Threshold(value=max(MANY_XIDS, WORN_TIMES * usual), unit="before the run", relation="at most",
                              source="ours: programs that are wrong are so on all boards of a job")  # fmt: skip
            status: Status = "pass" if limit.holds(own) else "unverified"
            evidence = f"{own} in the kernel's log, the median of the others is {usual:g}"
            remedy = "dmesg | grep Xid: whose programs were they? Run dcgmi diag -r 3 on this board"
            yield _check(record, "XIDs against the others", status, evidence, remedy, float(own), limit)


def _under_load(records: Sequence[Record]) -> Iterator[Check]:
    """Clock and power over the minutes of a load, of which the last reading is a moment."""
    for name, title, limit in (("sm_clock_hertz", "SM clock", SM_CLOCK_PEERS), ("watts", "power", POWER_PEERS)):
        middle = {}
        for record in records:
            series = record.result("load").get("series") or []
            if values := [sample[name] for sample in series if sample.get(name)]:
                middle[record.rank] = float(median(values))
        for record in records if len(middle) > 1 else ():
            if record.rank in middle:
                own = middle[record.rank]
                ratio = own / median(value for rank, value in middle.items() if rank != record.rank)
                status: Status = "pass" if limit.holds(ratio) else "unverified"
                evidence = f"median {own:.4g} under load, {ratio:.2f} of the median of the others"
                remedy = "nvidia-smi -q -d CLOCK,POWER,PERFORMANCE on both under load: what holds this one down?"
                yield _check(record, f"{title} of the load against the others", status, evidence, remedy, ratio, limit)


def _power(record: Record) -> Iterator[Check]:
    """What its power says of its work: enough for it, at its cap if the cap holds it down, and in its energy."""
    before, after = reading(record), reading(record, "after")
    watts, limit, reasons = (after.get(key) for key in ("power_watts", "power_limit_watts", "throttle_reasons"))
    if watts and limit and reasons is not None and "idle" not in reasons:
        needed = CAPPED if "power_cap" in reasons else LEAST_UNDER_LOAD
        status: Status = "pass" if needed.holds(watts / limit) else "unverified"
        evidence = f"{watts:.0f} of {limit:.0f} W under load, reasons {', '.join(reasons) or 'none'}"
        remedy = "nvidia-smi -q -d POWER,PERFORMANCE: its sensor, its cables, or a cap that somebody else has set"
        yield _check(record, "power under load", status, evidence, remedy, watts / limit, needed)
    began, ended = (record.result(stage).get("time") for stage in ("before", "after"))
    first, last = before.get("energy_joules"), after.get("energy_joules")
    idle = min((value for value in (before.get("power_watts"), watts) if value), default=None)
    if began is None or ended is None or first is None or last is None or idle is None:
        return
    if ended <= began or last < first:  # each has a check of its own
        return
    ratio = (last - first) / (ended - began) / idle
    status = "pass" if LEAST_ENERGY.holds(ratio) else "unverified"
    evidence = f"{last - first:.0f} J in {ended - began:.0f} s, and it drew {idle:.0f} W when it was idle"
    remedy = "its energy counter or its sensor of power is wrong; what reads them (DCGM, bills) is, too"
    yield _check(record, "energy against power", status, evidence, remedy, ratio, LEAST_ENERGY)


def _on_many(records: Sequence[Record], name: str) -> list[Check]:
    """Few new errors on each GPU of a node, and on most of them: then what they share has many."""
    title, few, _, remedy = MENDED[name]
    checks = []
    for node in dict.fromkeys(record.node for record in records):
        both = [(reading(record, "before").get(name), reading(record, "after").get(name))
                for record in records if record.node == node]  # fmt: skip
        grown = [now - was for was, now in both if was is not None and now is not None]
        having = sum(one > 0 for one in grown)
        if len(grown) < FEWEST_OF_NODE or 2 * having <= len(grown):
            continue
        limit = Threshold(
            value=float(TIMES_OF_NODE * few), unit="new ones on a node, each corrected", relation="at most",
            source="ours: so many on most GPUs of a node come of what they share",
        )  # fmt: skip
        total = float(sum(grown))
        status: Status = "pass" if limit.holds(total) else "unverified"
        checks.append(
            Check(
                name=f"board: {title} of a node", part="health", subject=f"node {node}", status=status,
                evidence=f"{total:.0f} new ones, on {having} of {len(grown)} GPUs", remedy=remedy,
                measured=total, threshold=limit,
            )
        )  # fmt: skip
    return checks


def _left_over(records: Sequence[Record]) -> list[Check]:
    """Memory that is in use after the work, against the other GPUs: another program may have come meanwhile."""
    models: dict[Any, list[tuple[Record, float]]] = {}
    for record in records:
        used, total = (reading(record, "after").get(f"memory_{what}_bytes") for what in ("used", "total"))
        known = board_of(record)
        # Where the host's kernel may use the GPU's memory, as Grace's does, what is in use is nobody's.
        if used is not None and total and not (known is not None and known.host == "c2c"):
            models.setdefault(record.result("presence").get("device_name"), []).append((record, used / total))
    checks = []
    for same in models.values():
        for record, share in same if len(same) > 1 else ():
            more = share - median(other for one, other in same if one is not record)
            evidence = f"{share:.0%} of its memory is in use after the work, {more:+.0%} to the median of the others"
            status: Status = "pass" if LEFT_OVER.holds(more) else "unverified"
            remedy = "nvidia-smi: has another program come to this GPU while the test ran?"
            checks.append(_check(record, "memory in use against the others", status, evidence, remedy, more, LEFT_OVER))
    return checks
