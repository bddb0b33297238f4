"""What else of a board can be wrong while it still computes: settings, InfoROM, retired pages, corrected errors.

Found by going through what DCGM's diagnostics, Azure's node health checks and others look at.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from cluster.acceptance.checks.links import board_of
from cluster.acceptance.expectations import Expectations
from cluster.acceptance.records import Record, against_peers
from cluster.acceptance.verdict import Check, Status, Threshold, at_worst, compared, graded

MENDED = {
    "nvlink_errors": (
        "NVLink errors",
        10,
        10,
        "nvidia-smi nvlink -e -i GPU; reseat the board, look at the switch's errors",
    ),
    "pcie_replays": ("PCIe replays", 20, 100, "reseat the board or its riser; look for AER messages in dmesg"),
    "ecc_corrected": (
        "corrected memory errors",
        100,
        1000,
        "watch the count: uncorrected ones follow many of them",
    ),
}
"""Title, how many new ones pass and beyond how many a run fails (ours: each was corrected; a flood of them is a link or
cell that goes), what to do."""
LEAST_OF_MEANT = 0.95
"""Of the clock that --expect names: it is set in steps of 15 MHz, and a power cap takes some more."""
LOW_CLOCK = Threshold(
    value=0.6, unit="of the highest SM clock", relation="at least",
    source="ours: under its power limit a board holds more; below nvidia-smi -lgc or -ac have set it",
)  # fmt: skip


SET_BY_SOMEBODY = frozenset({"application_clocks", "sync_boost"})
"""Reasons that come of a setting: clocks that somebody chose, or a group whose slowest board sets them for all."""
MEMORY_CLOCK = Threshold(
    value=0.95, unit="of the memory's highest clock", relation="at least",
    source="ours: under load a board does not lower it by itself",
)  # fmt: skip
SM_CLOCK_PEERS = Threshold(
    value=0.8,
    unit="of the median of the other GPUs",
    relation="at least",
    source="ours: GPUs under one power limit differ by less (Sinha et al. 2022, arXiv:2208.11035)",
)
POWER_PEERS = Threshold(
    value=0.5, unit="of the median of the other GPUs", relation="at least",
    source="ours: the same work on the same board",
)  # fmt: skip
OF_SHEET = Threshold(
    value=0.97, unit="of the data sheet", relation="at least",
    source="hardware.toml: as a board comes; a VBIOS, a rack's manager or somebody's setting may have lowered it",
)  # fmt: skip
BEFORE_TIMES = 100
"""Errors that were corrected before the run may be so many times as many as in a run: nobody knows in how many days."""


def judge(records: Sequence[Record], expected: Expectations | None = None) -> list[Check]:
    """Checks of each board; nothing where there are no readings."""
    checks: list[Check] = []
    readable = [record for record in records if record.gpu is not None and _reading(record, "before").get("up")]
    modes = Counter(_ecc(record) for record in readable if _ecc(record) is not None)
    for record in readable:
        before, after = _reading(record, "before"), _reading(record, "after")
        checks += _settings(record, before, modes, expected) + _clock(record, after, expected)
        checks += at_worst(_state(record, before), _state(record, after))
        checks += _memory_clock(record, after, expected) + _as_it_comes(record, before, expected)
        checks += [_mended(record, name, before, after) for name in MENDED if name in before and name in after]
    checks += [check for record in readable if (check := _energy(record)) is not None]
    for name, title, limit in (
        ("sm_clock_hertz", "SM clock", SM_CLOCK_PEERS), ("power_watts", "power", POWER_PEERS),
    ):  # fmt: skip
        checks += _against_others(readable, name, title, limit)
    return checks


def _energy(record: Record) -> Check | None:
    """A counter since the driver was loaded: it goes back only if the GPU was reset, or the driver loaded again."""
    was, now = (_reading(record, stage).get("energy_joules") for stage in ("before", "after"))
    if was is None or now is None:
        return None
    remedy = "who reset the GPU while the test ran? dmesg | grep -i -e xid -e nvrm"
    evidence = f"{was:.0f} J before, {now:.0f} after" + ("" if now >= was else ": the GPU was reset in between")
    return _check(record, "energy counter", "pass" if now >= was else "fail", evidence, remedy)


def _loaded(reading: dict[str, Any]) -> bool:
    reasons = reading.get("throttle_reasons")
    return reasons is not None and "idle" not in reasons


def _against_others(records: Sequence[Record], name: str, title: str, limit: Threshold) -> list[Check]:
    """Under load, among boards of one model."""
    models: dict[Any, list[Record]] = {}
    for record in records:
        after = _reading(record, "after")
        if _loaded(after) and after.get(name):
            models.setdefault(record.result("presence").get("device_name"), []).append(record)
    checks = []
    for same in models.values():
        values = [float(_reading(record, "after")[name]) for record in same]
        for record, value, ratio in zip(same, values, against_peers(values), strict=True):
            if ratio is not None:
                evidence = f"{value:.4g} under load, {ratio:.2f} of the median of the others"
                status: Status = "pass" if limit.holds(ratio) else "unverified"
                remedy = "nvidia-smi -q -d CLOCK,POWER,PERFORMANCE on both: what holds this one down?"
                checks.append(_check(record, f"{title} against the others", status, evidence, remedy,
                                     measured=ratio, threshold=limit))  # fmt: skip
    return checks


def _memory_clock(record: Record, after: dict[str, Any], expected: Expectations | None) -> list[Check]:
    """Half the clock is half the bandwidth, and no product of matrices shows it."""
    clock, known = after.get("memory_clock_hertz"), board_of(record)
    published = known.memory_clock_mhz * 1e6 if known is not None and known.memory_clock_mhz else None
    # A VBIOS, or whoever locked the clock, may call too low a clock the highest: the data sheet knows better.
    highest = max(after.get("memory_clock_max_hertz") or 0.0, published or 0.0)
    meant = expected.number("gpu", "memory_clock_megahertz") if expected is not None else None
    if not clock or not _loaded(after):
        return []
    should = meant * 1e6 if meant is not None else highest
    if not should:
        return []
    ratio = clock / should
    evidence = f"{clock / 1e6:.0f} of {should / 1e6:.0f} MHz under load"
    remedy = "nvidia-smi -rmc and -rac; if it is meant: --expect, [gpu] memory_clock_megahertz"
    return [_check(record, "memory clock under load", compared(ratio, MEMORY_CLOCK), evidence, remedy,
                   measured=ratio, threshold=MEMORY_CLOCK)]  # fmt: skip


def _as_it_comes(record: Record, before: dict[str, Any], expected: Expectations | None) -> list[Check]:
    """What NVML calls the default limit and the highest clock may be lower than the data sheet's, on all alike."""
    known = board_of(record)
    if known is None:
        return []
    checks = []
    for name, title, key, unit, own, published in (
        ("power_limit_default_watts", "default power limit", "power_limit_watts", "W", 1.0, known.watts),
        ("sm_clock_max_hertz", "highest SM clock", "sm_clock_megahertz", "MHz", 1e6, known.sm_clock_mhz),
    ):
        value = before.get(name)
        if not value or not published:
            continue
        ratio = value / own / published
        meant = expected is not None and expected.number("gpu", key) is not None
        status: Status = "pass" if OF_SHEET.holds(ratio) or meant else "unverified"
        evidence = f"{value / own:.0f} {unit}, {published:g} by the data sheet" + (
            ", as --expect says" if meant else ""
        )
        remedy = f"another VBIOS, a rack's or a cloud's limit? If it is meant: --expect, [gpu] {key}"
        checks.append(_check(record, f"{title} of the data sheet", status, evidence, remedy,
                             measured=ratio, threshold=OF_SHEET))  # fmt: skip
    return checks


def _reading(record: Record, stage: str) -> dict[str, Any]:
    return record.result(stage).get("reading") or {}


def _ecc(record: Record) -> int | None:
    mode = _reading(record, "before").get("ecc_mode")
    return None if mode is None else int(mode[0])


def _check(record: Record, name: str, status: Status, evidence: str, remedy: str, **more: Any) -> Check:
    return Check(name=f"board: {name}", part="health", subject=record.subject, rank=record.rank, status=status,
                 evidence=evidence, remedy=remedy, **more)  # fmt: skip


def _settings(
    record: Record, before: dict[str, Any], modes: Counter[int | None], expected: Expectations | None
) -> list[Check]:
    checks = []
    meant = expected.text("gpu", "ecc") if expected is not None else None
    mode, usual = _ecc(record), before.get("ecc_mode_default")
    if mode is not None:
        alone = modes.most_common(1)[0][0] != mode and modes[mode] * 2 < sum(modes.values())
        known = board_of(record)
        # Boards for many GPUs come with ECC on, whatever NVML calls the default.
        off = not mode and (usual != 0 or (known is not None and known.wired))
        status: Status = "fail" if off and alone else "unverified" if off else "pass"
        default = "the driver reports no default" if usual is None else f"{'on' if usual else 'off'} by default"
        evidence = f"ECC is {'on' if mode else 'off'}, {default}"
        evidence += "; of errors nobody would hear" if off else ""
        if meant is not None:
            status, evidence = compared_words("on" if mode else "off", meant), f"{evidence}; {meant} by --expect"
        status, evidence = _pending(before["ecc_mode"], status, evidence)
        remedy = 'nvidia-smi -e 1, then reset the GPU; if it is meant: --expect, [gpu] ecc = "off"'
        checks.append(_check(record, "ECC mode", status, evidence, remedy))
    if (mig := before.get("mig_mode")) is not None:
        status = "unverified" if mig[0] else "pass"
        evidence = "MIG is on: a slice was tested, not the board" if mig[0] else "MIG is off"
        status, evidence = _pending(mig, status, evidence)
        checks.append(_check(record, "MIG", status, evidence, "nvidia-smi -mig 0, then reset the GPU"))
    return checks


def _pending(modes: Sequence[int], status: Status, evidence: str) -> tuple[Status, str]:
    """What is now, and after the next reset: if they differ, this run does not test what will be."""
    if len(modes) < 2 or modes[0] == modes[1]:
        return status, evidence
    then = "on" if modes[1] else "off"
    return "unverified" if status == "pass" else status, f"{evidence}, {then} after the next reset"


def _state(record: Record, before: dict[str, Any]) -> list[Check]:
    checks = []
    if (pending := before.get("retired_pages_pending")) is not None:
        evidence = "pages wait for a reset to be retired" if pending else "none waits"
        remedy = "reset the GPU (nvidia-smi -r)"
        checks.append(_check(record, "retired pages", "fail" if pending else "pass", evidence, remedy))
    if (valid := before.get("inforom_valid")) is not None:
        evidence = (
            "its checksum is right" if valid else "its checksum is wrong: what the board says of itself may be, too"
        )
        remedy = "have the board serviced (nvidia-smi: InfoROM is corrupted)"
        checks.append(_check(record, "InfoROM", "pass" if valid else "fail", evidence, remedy))
    return checks


def compared_words(actual: str, meant: str) -> Status:
    """Pass or fail."""
    return "pass" if actual == meant else "fail"


def _clock(record: Record, after: dict[str, Any], expected: Expectations | None) -> list[Check]:
    """Clocks under load; what heat or power did is judged by their reasons."""
    clock, most, reasons = (after.get(key) for key in ("sm_clock_hertz", "sm_clock_max_hertz", "throttle_reasons"))
    if not clock or not most or reasons is None or "idle" in reasons:
        return []
    capped = not SET_BY_SOMEBODY.isdisjoint(reasons)
    low = not LOW_CLOCK.holds(clock / most) and "power_cap" not in reasons
    status: Status = "unverified" if capped or low else "pass"
    evidence = f"{clock / 1e6:.0f} of {most / 1e6:.0f} MHz under load, reasons {', '.join(reasons) or 'none'}"
    remedy = "somebody has set clocks: nvidia-smi -rgc and -rac; if it is meant: --expect, [gpu] sm_clock_megahertz"
    if "sync_boost" in reasons:
        remedy = "a sync boost group holds clocks down to its slowest board's: leave it (dcgmi config --syncboost 0)"
    meant = expected.number("gpu", "sm_clock_megahertz") if expected is not None else None
    if meant is not None:
        status = "pass" if LEAST_OF_MEANT * meant <= clock / 1e6 else "fail"
        evidence += f"; {meant:g} MHz by --expect"
    return [_check(record, "clocks under load", status, evidence, remedy, measured=clock / most, threshold=LOW_CLOCK)]


def _mended(record: Record, name: str, before: dict[str, Any], after: dict[str, Any]) -> Check:
    title, few, most, remedy = MENDED[name]
    if before[name] is None or after[name] is None:
        reason = before.get("untold", {}).get(name)
        status: Status = "unverified" if reason else "skipped"
        return _check(
            record,
            title,
            status,
            f"NVML does not report it: {reason}" if reason else "this GPU does not report it",
            remedy,
            nothing_known=True,
        )
    grown = after[name] - before[name]
    passes, fails = (
        Threshold(
            value=float(count), unit="new ones, each corrected", relation="at most", source="ours: a flood is a fault"
        )
        for count in (few, most)
    )
    evidence = f"{before[name]} before, {after[name]} after"
    outcome, limit = graded(grown, fails, passes)
    if grown < 0:
        outcome, evidence = "fail", f"{evidence}: the count went back, so the GPU was reset while the test ran"
    elif outcome == "pass" and before[name] > BEFORE_TIMES * most:
        outcome, evidence = "unverified", f"{evidence}: a flood before the run"
    return _check(record, title, outcome, evidence, remedy, measured=float(grown), threshold=limit)
