"""Judges what a GPU is by itself, beside any difference: a cluster that was broken before the run fails, too.

What must be equal among the ranks is compared with what most of them have. What became worse while the test ran is
judged by the same bars; counts are in `health_diff`.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from cluster.acceptance.checks.links import board_of, wired_nvlinks
from cluster.acceptance.expectations import Expectations
from cluster.acceptance.kernel_log import OF_PROGRAMS
from cluster.acceptance.records import Record
from cluster.acceptance.verdict import Check, Status, Threshold, at_worst, compared

_BOARD = "nvidia-smi -q on both: another board, or a part of it that the driver does not see"
_DRIVER = "install the same image on every node; drain this one until it has it"
MOST_PAGES = 59
"""Of the 64 that a board before Ampere can retire."""
MOST_ROWS = 512
MOST_MEMORY = 1.1
"""Times what a board has at least: with more it is another board."""
MANY_ROWS, MANY_DOUBLE = 64, 15
"""Ours, of rows that errors took, and of pages for double-bit errors: few boards have any, and these go on."""
ALIKE: dict[str, tuple[str, Callable[[Record], Any], str]] = {
    "driver": ("driver", lambda record: _before(record).get("driver"), _DRIVER),
    "torch": ("PyTorch", lambda record: record.result("presence").get("torch"), _DRIVER),
    "cuda": ("CUDA of PyTorch", lambda record: record.result("presence").get("cuda"), _DRIVER),
    "nccl": ("NCCL", lambda record: record.result("presence").get("nccl"), _DRIVER),
    "memory": (
        "memory of the GPU", lambda record: record.result("presence").get("memory_bytes"),
        "nvidia-smi -q: another board, MIG, or memory that the driver has retired",
    ),
    "vbios": ("VBIOS", lambda record: _before(record).get("vbios"), "flash the VBIOS that most of them have"),
    "multiprocessors": (
        "number of multiprocessors", lambda record: record.result("presence").get("multiprocessors"), _BOARD,
    ),
    "highest clock": (
        "highest SM clock", lambda record: _before(record).get("sm_clock_max_hertz"),
        "another board or VBIOS, or clocks that are locked: nvidia-smi -q -d CLOCK on both",
    ),
    "NVLinks": ("number of NVLinks", lambda record: _before(record).get("nvlinks"), _BOARD),
    "temperature limit": ("temperature limit", lambda record: _before(record).get("maximum_celsius"), _BOARD),
    "power limit": (
        "power limit", lambda record: _before(record).get("power_limit_watts"),
        "nvidia-smi -pl: set all to the same limit; a lower one is a slower GPU",
    ),
}  # fmt: skip
"""Title, what is compared, what to do."""


_OF_THE_BOARD = (
    "memory", "vbios", "power limit", "multiprocessors", "highest clock", "NVLinks", "temperature limit",
)  # fmt: skip
"""Compared among boards of one model only."""


def judge(records: Sequence[Record], expected: Expectations | None = None) -> list[Check]:
    """Checks of each GPU by itself, then of what all should have in common. Nothing where there are no readings.

    A power limit that the file of `--expect` names is meant, and so no reason to doubt.
    """
    meant = expected.number("gpu", "power_limit_watts") if expected is not None else None
    meant_lanes, meant_generation = (
        expected.number("gpu", key) if expected is not None else None for key in ("pcie_width", "pcie_generation")
    )
    readable = [record for record in records if record.gpu is not None and _before(record).get("up")]
    most_links = Counter(_before(record).get("nvlinks_up") for record in readable).most_common(1)
    usual = most_links[0][0] if most_links else None
    checks: list[Check] = []
    for record in readable:
        before, after = _before(record), record.result("after").get("reading") or {}
        checks += [_ecc(record, before), _lanes(record, before, after, meant_lanes, meant_generation), *_parts(record)]
        first = _told(record, before, usual, meant)
        if after.get("up"):
            # Links that went down have a check of their own (health: NVLink), new XIDs as well.
            then = {**after, "nvlinks_up": before.get("nvlinks_up"), "xids_before": None}
            first = at_worst(first, _told(record, then, usual, meant))
        checks += first
    checks += _alike(readable)
    if expected is None or expected.number("gpu", "pcie_generation") is None:
        checks += _slots(readable)
    return [*checks, *_one_each(readable)]


def _told(record: Record, reading: dict[str, Any], usual: int | None, meant: float | None) -> list[Check]:
    """Checks of one reading by itself."""
    return [
        _rows(record, reading),
        *_pages(record, reading),
        _links(record, reading, usual),
        _power(record, reading, meant),
        *_history(record, reading),
    ]


def _before(record: Record) -> dict[str, Any]:
    return record.result("before").get("reading") or {}


def _check(record: Record, name: str, status: Status, evidence: str, remedy: str, **more: Any) -> Check:
    return Check(
        name=f"sound: {name}", part="health", subject=record.subject, rank=record.rank, status=status,
        evidence=evidence, remedy=remedy, **more,
    )  # fmt: skip


def _untold(record: Record, name: str, reading: dict[str, Any], field: str, remedy: str) -> Check:
    """There is no figure: the card has none (skipped), or this user, driver or container may not see it."""
    reason = reading.get("untold", {}).get(field)
    evidence = f"NVML does not report it: {reason}" if reason else "this GPU does not report it"
    status: Status = "unverified" if reason else "skipped"
    return _check(record, name, status, evidence, remedy, nothing_known=True)


def _ecc(record: Record, before: dict[str, Any]) -> Check:
    errors, remedy = before.get("ecc_errors"), "reset the GPU (nvidia-smi -r); have it replaced if they come back"
    if errors is None:
        return _untold(record, "memory errors before the run", before, "ecc_errors", remedy)
    limit = Threshold(
        value=0, unit="uncorrected errors", relation="at most",
        source="NVIDIA, GPU Memory Error Management: an uncorrected error asks for a reset",
    )  # fmt: skip
    return _check(
        record, "memory errors before the run", "fail" if errors else "pass",
        f"{errors} uncorrected since the driver was loaded", remedy, measured=float(errors), threshold=limit,
    )  # fmt: skip


def _rows(record: Record, before: dict[str, Any]) -> Check:
    rows = before.get("remapped_rows")
    remedy = "pending: reset the GPU; failed: have it replaced (nvidia-smi -q -d ROW_REMAPPER)"
    if rows is None:
        return _untold(record, "row remapping", before, "remapped_rows", remedy)
    corrected, uncorrected, pending, failed = rows
    spare = Threshold(
        value=MOST_ROWS, unit="rows", relation="at most",
        source="NVIDIA, GPU Memory Error Management: a board has as many spare ones",
    )  # fmt: skip
    used = corrected + uncorrected
    status: Status = "fail" if failed or pending or not spare.holds(used) else "pass"
    status = "unverified" if status == "pass" and used > MANY_ROWS else status
    words = [word for word, so in (("failed", failed), ("pending until a reset", pending)) if so] or ["nothing pending"]
    evidence = f"{corrected} rows for corrected, {uncorrected} for uncorrected errors; {', '.join(words)}"
    return _check(record, "row remapping", status, evidence, remedy, measured=float(used), threshold=spare)


def _pages(record: Record, reading: dict[str, Any]) -> list[Check]:
    """What boards before Ampere have instead of rows."""
    if (pages := reading.get("retired_pages")) is None:
        return []
    limit = Threshold(
        value=MOST_PAGES, unit="pages", relation="at most",
        source="ours: NVIDIA, Dynamic Page Retirement: a board can retire 64 pages",
    )  # fmt: skip
    evidence = f"{pages[0]} for single-bit errors, {pages[1]} for double-bit errors"
    status = compared(sum(pages), limit)
    status = "unverified" if status == "pass" and pages[1] >= MANY_DOUBLE else status
    return [_check(record, "retired pages", status, evidence, "have the board replaced",
                   measured=float(sum(pages)), threshold=limit)]  # fmt: skip


def _parts(record: Record) -> list[Check]:
    """What the data sheet says of the board, against what is there."""
    known, presence = board_of(record), record.result("presence")
    if known is None:
        return []
    memory = presence.get("memory_bytes") or _before(record).get("memory_total_bytes")
    checks = []
    for title, actual, least in (
        ("memory of the data sheet, GiB", memory / 2**30 if memory else None, known.memory_gib),
        ("multiprocessors of the data sheet", presence.get("multiprocessors"), known.multiprocessors),
    ):
        if actual is not None and least is not None:
            limit = Threshold(value=float(least), unit="", relation="at least", source="hardware.toml, for this model")
            # An entry that is for several boards has the least of all.
            of_one = not set(known.name) & set("[(*?")
            more = actual > least * (MOST_MEMORY if title.startswith("memory") else 1) and of_one
            remedy = "nvidia-smi -q: MIG, a virtual GPU with a part of the board, or a board that was cut down"
            checks.append(
                _check(record, title, "unverified" if more else compared(actual, limit),
                       f"{actual:.5g}; the model has {least:g}", remedy,
                       measured=float(actual), threshold=limit)
            )  # fmt: skip
    return checks


def _history(record: Record, before: dict[str, Any]) -> list[Check]:
    """What NVML remembers of before the run, on drivers that tell."""
    checks = []
    if (action := before.get("recovery_action")) is not None:
        status: Status = "pass" if action == "none" else "fail"
        checks.append(_check(record, "recovery action", status, f"the driver asks for: {action}", f"do that: {action}"))
    if (fabric := before.get("fabric")) is not None:
        good = fabric.get("state") == "completed" and not fabric.get("status")
        bad = not good or fabric.get("degraded") or fabric.get("faults")
        evidence = f"{fabric.get('state')}, status {fabric.get('status', 0)}, clique {fabric.get('clique')}"
        faults = list(fabric.get("faults") or (["at a part of its bandwidth"] if fabric.get("degraded") else []))
        evidence += f"; {', '.join(faults)}" if faults else ""
        remedy = "systemctl status nvidia-fabricmanager (on a rack: nvidia-imex, and the switches' NMX controller)"
        checks.append(_check(record, "NVLink fabric", "fail" if bad else "pass", evidence, remedy))
    if (sram := before.get("sram_errors")) is not None:
        status = "fail" if sram[1] else "unverified" if sram[0] else "pass"
        evidence = f"{sram[0]} uncorrected since it was made" + (", more than NVIDIA allows" if sram[1] else "")
        checks.append(_check(record, "errors of the chip's memories", status, evidence, "have the board replaced"))
    if (lifetime := before.get("ecc_lifetime")) is not None:
        limit = Threshold(
            value=MANY_ROWS,
            unit="uncorrected errors",
            relation="at most",
            source=f"ours: an eighth of the {MOST_ROWS} spare rows",
        )
        evidence = f"{lifetime} uncorrected since it was made"
        status = "pass" if limit.holds(lifetime) else "unverified"
        remedy = "nvidia-smi -q -d ECC,ROW_REMAPPER; ask for a replacement"
        checks.append(_check(record, "memory errors of its life", status, evidence, remedy,
                             measured=float(lifetime), threshold=limit))  # fmt: skip
    if (xids := before.get("xids_before")) is not None:
        grave = sorted(set(xids) - OF_PROGRAMS)
        evidence = f"{len(xids)} in the kernel's log: {', '.join(map(str, sorted(set(xids)))) or 'none'}"
        remedy = "docs.nvidia.com/deploy/xid-errors; reset the GPU, or reboot, and run it again"
        checks.append(_check(record, "XIDs before the run", "unverified" if grave else "pass", evidence, remedy))
    return checks


def _lanes(
    record: Record, before: dict[str, Any], after: dict[str, Any], lanes: float | None, meant: float | None
) -> Check:
    """Width at any time, generation under load only: an idle board lowers it by itself."""
    remedy = "reseat the board or its riser; look at the slot's setting in the BIOS, and at dmesg for AER messages"
    width, most = before.get("pcie_width"), before.get("pcie_width_max")
    known = board_of(record)
    if known is not None and known.host != "pcie":
        return _check(record, "PCIe width and generation", "skipped", "this board is not joined by PCIe", remedy)
    if not width or not most:
        return _untold(record, "PCIe width and generation", before, "pcie_width", remedy)
    reasons = after.get("throttle_reasons")
    loaded = after if reasons is not None and "idle" not in reasons else {}
    generation, best = loaded.get("pcie_generation"), loaded.get("pcie_generation_max")
    narrow, old = width < most, bool(generation and best and generation < best)
    evidence = f"x{width} of x{most}" + (f", generation {generation} of {best} under load" if generation else "")
    limit = Threshold(
        value=float(most), unit="lanes", relation="at least", source="what slot and board allow together, by NVML"
    )
    status: Status = "fail" if narrow or old else "pass"
    possible = before.get("pcie_generation_max")
    if status == "pass" and known is not None:
        # A narrow slot, or an old computer, may be meant; a setting of the BIOS seldom is. The switches on a board of
        # modules are as new as these.
        missing = (known.pcie_generation or 0) - (possible or known.pcie_generation or 0)
        if most < known.pcie_lanes and lanes is None:
            status, remedy = "unverified", f"{remedy}; if it is meant: --expect, [gpu] pcie_width = {most}"
            evidence += f"; the board could do x{known.pcie_lanes}"
        elif missing > (0 if known.wired else 1) and meant is None:
            status, remedy = "unverified", f"{remedy}; if it is meant: --expect, [gpu] pcie_generation = {possible}"
            evidence += f"; generation {possible} at most, the board could do {known.pcie_generation}"
    return _check(record, "PCIe width and generation", status, evidence, remedy, measured=float(width),
                  threshold=limit)  # fmt: skip


def _links(record: Record, before: dict[str, Any], usual: int | None) -> Check:
    up, there = before.get("nvlinks_up"), before.get("nvlinks")
    wired = bool(wired_nvlinks(record))
    known = board_of(record)
    # NVML also counts links of the chip that the board does not wire.
    there = known.nvlinks if known is not None and known.nvlinks else max(there or 0, wired_nvlinks(record))
    remedy = "nvidia-smi nvlink -s -i GPU; is the fabric manager running (systemctl status nvidia-fabricmanager)?"
    if up is None:
        return _untold(record, "NVLinks", before, "nvlinks_up", remedy)
    expected = there if there and wired else usual or 0
    if not expected and not up:
        return _check(record, "NVLinks", "skipped", "no NVLink is up on any of these GPUs", remedy)
    if not up and record.result("presence").get("seen_by_nvml") == 1:  # a guest that got one board of several
        return _check(record, "NVLinks", "skipped", "no NVLink is up, and this node has no other GPU to reach", remedy)
    of = "that the board has" if there and wired else "that most of the GPUs have"
    limit = Threshold(value=float(expected), unit="links up", relation="at least", source=of)
    status: Status = "fail" if up < expected else "pass"
    speed, nominal = before.get("nvlink_megabytes_per_second"), known and 1e3 * known.nvlink_gb
    if up and speed and nominal and speed < 0.9 * nominal:
        status = "fail"
        of = f"{of}, of {speed / 1e3:g} instead of {nominal / 1e3:g} GB/s each"
    if status == "pass" and speed and nominal and speed > 1.3 * nominal:
        status, of = "unverified", f"{of}, of {speed / 1e3:g} GB/s each, and this board's have {nominal / 1e3:g}"
    if status == "pass" and there and up < there and (known is None or known.nvlinks):
        status = "unverified"  # bridges that nobody has mounted, or links that are down everywhere
    evidence = f"{up} links up; {expected} {of}" + (f", {there} in all" if there else "")
    return _check(record, "NVLinks", status, evidence, remedy, measured=float(up), threshold=limit)


def _power(record: Record, before: dict[str, Any], meant: float | None) -> Check:
    limit, usual = before.get("power_limit_watts"), before.get("power_limit_default_watts")
    remedy = "nvidia-smi -pl DEFAULT, or say in --expect that it is meant: [gpu] power_limit_watts"
    if limit is None or usual is None:
        return _untold(record, "power limit", before, "power_limit_watts", remedy)
    as_meant = meant is not None and abs(limit - meant) <= 0.01 * meant
    status: Status = "unverified" if limit < 0.99 * usual and not as_meant else "pass"
    evidence = f"{limit:.0f} W of {usual:.0f} W by default" + (", as --expect says" if as_meant else "")
    return _check(record, "power limit", status, evidence, remedy, measured=limit)


def _alike(records: Sequence[Record]) -> list[Check]:
    """A rank that differs from most fails; where no value has a majority, all ranks of the lesser ones do."""
    checks: list[Check] = []
    models: dict[Any, list[Record]] = {}
    for record in records:
        models.setdefault(record.result("presence").get("device_name"), []).append(record)
    for key in ALIKE:
        for group in models.values() if key in _OF_THE_BOARD else [list(records)]:
            checks += _differing(key, group)
    return checks


def _differing(key: str, records: Sequence[Record]) -> list[Check]:
    title, read, remedy = ALIKE[key]
    values = {record.rank: _comparable(read(record)) for record in records}
    counts = Counter(value for value in values.values() if value is not None)
    if len(counts) < 2:
        return []
    (usual, most), (_, second) = counts.most_common(2)
    most_have = f"{most} of {len(records)} ranks have {usual}"
    if most == second:
        usual, most_have = (
            "",
            f"no value has a majority: {', '.join(f'{count} x {value}' for value, count in counts.items())}",
        )
    return [
        _check(record, f"same {title}", "fail", f"{value}; {most_have}", remedy)
        for record in records
        if (value := values[record.rank]) is not None and value != usual
    ]


def _slots(records: Sequence[Record]) -> list[Check]:
    """The same slot of another node, with the same board, allows more: a setting of the BIOS, or another computer."""
    slots: dict[Any, list[Record]] = {}
    for record in records:
        key = (record.result("presence").get("device_name"), record.result("presence").get("index"))
        slots.setdefault(key, []).append(record)
    checks = []
    for same in slots.values():
        best = max((_before(record).get("pcie_generation_max") or 0 for record in same), default=0)
        checks += [
            _check(
                record, "PCIe generation of the slot", "unverified",
                f"{own} at most; this slot allows {best} on another node",
                "set the BIOS alike on all nodes; if it is meant: --expect, [gpu] pcie_generation",
            )
            for record in same
            if (own := _before(record).get("pcie_generation_max")) and own < best
        ]  # fmt: skip
    return checks + _slots_of_a_node(records)


def _slots_of_a_node(records: Sequence[Record]) -> list[Check]:
    """Another slot of the node allows more to the same board: copies are compared with those of like slots only."""
    best: dict[Any, int] = {}
    for record in records:
        key = (record.node, record.result("presence").get("device_name"))
        best[key] = max(best.get(key, 0), _before(record).get("pcie_generation_max") or 0)
    return [
        _check(
            record, "PCIe generation among slots", "unverified",
            f"{own} at most; another slot of this node allows {most}",
            "another slot, riser or BIOS setting; if it is meant: --expect, [gpu] pcie_generation",
        )
        for record in records
        if (own := _before(record).get("pcie_generation_max"))
        and own < (most := best[record.node, record.result("presence").get("device_name")])
    ]  # fmt: skip


def _comparable(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, list):
        return ".".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _one_each(records: Sequence[Record]) -> list[Check]:
    """Two ranks on one GPU test that one twice, and another one not at all; also if they are in two pods."""
    holders: dict[str, list[Record]] = {}
    for record in records:
        presence = record.result("presence")
        if uuid := presence.get("uuid"):
            # No two boards have one, but simulated ones of two nodes do: those have no NCCL.
            holders.setdefault(uuid if presence.get("nccl") else f"{record.node} {uuid}", []).append(record)
    return [
        _check(
            record, "a GPU of its own", "fail", f"rank {holding[0].rank} has the same GPU, {place}",
            "one rank per GPU: look at CUDA_VISIBLE_DEVICES, how ranks are bound, and whether pods share GPUs in time",
        )
        for place, holding in holders.items()
        for record in holding[1:]
    ]  # fmt: skip
