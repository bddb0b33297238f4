"""What else of a board can be wrong while it still computes: settings, InfoROM, retired pages, errors that were mended.

Found by going through what DCGM's diagnostics, Azure's node health checks and others look at.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from cluster.acceptance.records import Record
from cluster.acceptance.verdict import Check, Status, Threshold, compared

MENDED = {
    "nvlink_errors": (
        "NVLink errors",
        10,
        "nvidia-smi nvlink -e -i GPU; reseat the board, look at the switch's errors",
    ),
    "pcie_replays": ("PCIe replays", 100, "reseat the board or its riser; look for AER messages in dmesg"),
    "ecc_corrected": ("corrected memory errors", 1000, "watch the count: many of them come before uncorrected ones"),
}
"""Title, how many new ones a run may have (ours: each was mended at once, a flood of them is a link or cell that goes),
what to do."""
LOW_CLOCK = Threshold(
    value=0.5, unit="of the highest SM clock", relation="at least",
    source="ours: under its power limit a board holds more; below nvidia-smi -lgc or -ac have set it",
)  # fmt: skip


def judge(records: Sequence[Record]) -> list[Check]:
    """Checks of each board; nothing where there are no readings."""
    checks: list[Check] = []
    readable = [record for record in records if record.gpu is not None and _reading(record, "before").get("up")]
    modes = Counter(_ecc(record) for record in readable if _ecc(record) is not None)
    for record in readable:
        before, after = _reading(record, "before"), _reading(record, "after")
        checks += _settings(record, before, modes) + _state(record, before) + _clock(record, after)
        checks += [_mended(record, name, before, after) for name in MENDED if name in before and name in after]
    return checks


def _reading(record: Record, stage: str) -> dict[str, Any]:
    return record.result(stage).get("reading") or {}


def _ecc(record: Record) -> int | None:
    mode = _reading(record, "before").get("ecc_mode")
    return None if mode is None else int(mode[0])


def _check(record: Record, name: str, status: Status, evidence: str, remedy: str, **more: Any) -> Check:
    return Check(name=f"board: {name}", part="health", subject=record.subject, rank=record.rank, status=status,
                 evidence=evidence, remedy=remedy, **more)  # fmt: skip


def _settings(record: Record, before: dict[str, Any], modes: Counter[int | None]) -> list[Check]:
    checks = []
    mode, usual = _ecc(record), before.get("ecc_mode_default")
    if mode is not None:
        alone = modes.most_common(1)[0][0] != mode and modes[mode] * 2 < sum(modes.values())
        off = not mode and bool(usual)
        status: Status = "fail" if off and alone else "unverified" if off else "pass"
        evidence = f"ECC is {'on' if mode else 'off'}, {'on' if usual else 'off'} by default"
        evidence += "; of errors nobody would hear" if off else ""
        checks.append(_check(record, "ECC mode", status, evidence, "nvidia-smi -e 1, then reset the GPU"))
    if (mig := before.get("mig_mode")) is not None:
        status = "unverified" if mig[0] else "pass"
        evidence = "MIG is on: a slice was tested, not the board" if mig[0] else "MIG is off"
        checks.append(_check(record, "MIG", status, evidence, "nvidia-smi -mig 0, then reset the GPU"))
    return checks


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


def _clock(record: Record, after: dict[str, Any]) -> list[Check]:
    """Clocks under load; what heat or power did is judged by their reasons."""
    clock, most, reasons = (after.get(key) for key in ("sm_clock_hertz", "sm_clock_max_hertz", "throttle_reasons"))
    if not clock or not most or reasons is None or "idle" in reasons:
        return []
    capped = "application_clocks" in reasons
    low = not LOW_CLOCK.holds(clock / most) and "power_cap" not in reasons
    status: Status = "unverified" if capped or low else "pass"
    evidence = f"{clock / 1e6:.0f} of {most / 1e6:.0f} MHz under load, reasons {', '.join(reasons) or 'none'}"
    remedy = "somebody has set clocks: nvidia-smi -rgc and -rac, or say in --expect what is meant"
    return [_check(record, "clocks under load", status, evidence, remedy, measured=clock / most, threshold=LOW_CLOCK)]


def _mended(record: Record, name: str, before: dict[str, Any], after: dict[str, Any]) -> Check:
    title, most, remedy = MENDED[name]
    if before[name] is None or after[name] is None:
        reason = before.get("untold", {}).get(name)
        status: Status = "unverified" if reason else "skipped"
        return _check(
            record, title, status, f"NVML does not tell: {reason}" if reason else "this GPU does not tell", remedy
        )
    grown = after[name] - before[name]
    limit = Threshold(
        value=float(most), unit="new ones, each mended", relation="at most", source="ours: a flood is a fault"
    )
    evidence = f"{before[name]} before, {after[name]} after"
    return _check(record, title, compared(grown, limit), evidence, remedy, measured=float(grown), threshold=limit)
