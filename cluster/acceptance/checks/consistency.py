"""Judges the record itself, by the ledger: is it well formed and whole, and does nothing change that cannot?

Other checks judge one figure each. Here is what holds of every field by its kind, so that a field that is missing on
one rank, goes back, or is another one after the run is no pass, whatever its own check makes of it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cluster.acceptance import ledger
from cluster.acceptance.checks import contradictions, disagreements
from cluster.acceptance.checks.links import board_of
from cluster.acceptance.form import LEFT_OUT, NONSENSE, Misfit
from cluster.acceptance.records import STAGES, Record
from cluster.acceptance.verdict import Check

MOST_SHOWN = 3
ALIKE_SHARE = 0.01
"""Of numbers that are the same but for rounding."""
USUAL = ("uuid", "name", "driver", "temperature_celsius", "maximum_celsius", "utilization_ratio", "memory_used_bytes",
         "memory_total_bytes", "power_watts", "power_limit_watts", "sm_clock_hertz", "sm_clock_max_hertz",
         "memory_clock_hertz", "throttle_reasons")  # fmt: skip
"""What NVML tells of every board in hardware.toml, unless something is in its way."""
TOGETHER = (("pcie_width", "pcie_width_max", "pcie_generation", "pcie_generation_max"), ("nvlinks", "nvlinks_up"),
            ("power_limit_watts", "power_limit_default_watts"))  # fmt: skip
"""Readings of which a driver tells all or none."""
FABRIC = ("state", "status", "clique", "cluster", "degraded")
REMEDIES = {
    "well formed": "is the same version of this test on all nodes? Run it again; read this rank's log in the report",
    "complete": "what does this rank lack that others have: driver, permissions, an older image? Run it again",
    "readable": "why can this user, driver or container not read it? nvidia-smi -q on that node, as that user",
    "unchanged": "who changed it while the test ran? dmesg on that node, its driver's log; run it again",
    "alike": "the same image, options and settings on every node, then run it again",
    "consistent": "which of the two is right? Look at the node's clock, at what else runs there, and run it again",
}
VARIABLE = "presence environment"
Finding = tuple[str, str, str]
"""Subject, question, what was seen."""


def judge(records: Sequence[Record], wrong: Mapping[int, Sequence[Misfit]]) -> list[Check]:
    """A check for every rank and question that is no pass; or one that says that nothing was found.

    `wrong` are values that were taken out of the records, by position (`form.repaired`).
    """
    findings = [*_misfits(records, wrong), *_stages(records), *_untold(records), *_lasting(records), *_alike(records)]
    findings += [*contradictions.found(records), *disagreements.found(records)]
    by_place: dict[tuple[str, str], list[str]] = {}
    for subject, question, evidence in findings:
        by_place.setdefault((subject, question), []).append(evidence)
    ranks = {record.subject: record.rank for record in records}
    checks = [
        Check(
            name=f"record: {question}", part="run", subject=subject, rank=ranks.get(subject), status="unverified",
            evidence="; ".join(evidence[:MOST_SHOWN])
            + (f"; and {len(evidence) - MOST_SHOWN} more" if len(evidence) > MOST_SHOWN else ""),
            remedy=REMEDIES[question], nothing_known=question == "readable",
        )
        for (subject, question), evidence in by_place.items()
    ]  # fmt: skip
    return checks or [
        Check(
            name="record: consistent", part="run", subject="all ranks", status="pass",
            evidence=f"{len(records)} records: nothing is missing, or contradicts another field",
            remedy=REMEDIES["consistent"],
        )
    ]  # fmt: skip


def _misfits(records: Sequence[Record], wrong: Mapping[int, Sequence[Misfit]]) -> Iterator[Finding]:
    for position, found in wrong.items():
        for misfit in found:
            yield records[position].subject, "well formed", f"{misfit.stage}: {misfit.field} {misfit.reason}"


def _stages(records: Sequence[Record]) -> Iterator[Finding]:
    """Stages that a rank went through by its own word, and has nothing of."""
    for record in records:
        for stage in STAGES:
            if record.ending == "finished" and not record.result(stage):
                yield record.subject, "complete", f"nothing is recorded of the stage {stage!r}"
    # Of what is left out on request all ranks were asked.
    for stage in STAGES:
        without = [record for record in records if "skipped" in record.result(stage)]
        reasons = Counter(str(record.result(stage)["skipped"]) for record in without if record.local_rank == 0)
        leaders = sum(record.local_rank == 0 for record in records)
        for record in without:
            reason = str(record.result(stage)["skipped"])
            if record.local_rank == 0 and record.result(stage).get("asked") and reasons.total() < leaders:
                yield record.subject, "complete", f"{stage}: {reason}; not so on other nodes"
            elif reason.startswith(LEFT_OUT):
                yield record.subject, "complete", f"{stage} is not judged, since a value {reason}"


def _readings(record: Record) -> dict[str, dict[str, Any]]:
    """Both readings of NVML, where there are any."""
    stages = {stage: record.result(stage).get("reading") for stage in ("before", "after")}
    return {stage: reading for stage, reading in stages.items() if reading and reading.get("up")}


def _told(record: Record) -> dict[str, Any]:
    """Every field that need not be there, with its value: readings by their stage."""
    told: dict[str, Any] = {}
    for stage in ("before", "after", "presence"):
        result = record.result(stage)
        values = dict(result) if stage == "presence" else {**(result.get("reading") or {})}
        if stage != "presence" and result.get("time"):
            told[f"{stage} time"] = result["time"]
        for key, value in values.items():
            if key != "untold" and value is not None and value != {}:
                told[f"{stage} {key}"] = value
                if isinstance(value, dict) and key not in ("topology", "nvlink_peers"):
                    told |= {f"{stage} {key}.{inner}": one for inner, one in value.items() if one is not None}
    return told


def _models(records: Sequence[Record]) -> dict[Any, list[Record]]:
    models: dict[Any, list[Record]] = {}
    for record in records:
        models.setdefault(record.result("presence").get("device_name"), []).append(record)
    return models


def _untold(records: Sequence[Record]) -> Iterator[Finding]:
    """What a rank does not tell, and others of its model do, or it did before; or what every such board tells."""
    with_gpu = [record for record in records if record.gpu is not None]
    for same in _models(with_gpu).values():
        told = {record.rank: _told(record) for record in same}
        known = set().union(*told.values()) if told else set()
        for record in same:
            lacking = sorted(known - set(told[record.rank])) if record.ending == "finished" else []
            # A variable that few have is theirs, not what the others lack.
            rare = {name for name in known if name.startswith(VARIABLE)
                    and 2 * sum(name in own for own in told.values()) < len(same)}  # fmt: skip
            lacking = [name for name in lacking if name not in rare]
            if own := sorted(rare & set(told[record.rank])):
                yield record.subject, "alike", f"{', '.join(own)} is set here alone"
            explained = [name for name in lacking if _explained(record, name)]
            if lacking:
                why = f"; NVML gave a reason for {', '.join(explained)}" if explained else ""
                evidence = f"not reported, though others of its model report it: {', '.join(lacking)}{why}"
                yield record.subject, "complete", evidence
    for record in with_gpu:
        readings = _readings(record)
        for stage, reading in readings.items():
            lacking = [name for name in USUAL if reading.get(name) is None] if board_of(record) is not None else []
            for group in TOGETHER:
                missing = [name for name in group if reading.get(name) is None]
                lacking += missing if len(missing) < len(group) else []
            if (reading.get("ecc_mode") or [0])[0] and reading.get("ecc_errors") is None:
                lacking.append("ecc_errors")
            known_board = board_of(record)
            if known_board is not None and known_board.wired and reading.get("nvlinks_up") is None:
                lacking.append("nvlinks_up")
            fabric = reading.get("fabric") or dict.fromkeys(FABRIC, 0)
            lacking += [f"fabric.{name}" for name in FABRIC if fabric.get(name) is None]
            for name in dict.fromkeys(lacking):
                question = "readable" if _explained(record, f"{stage} {name}") else "complete"
                yield record.subject, question, f"{stage}: NVML does not report {name}"
        presence = record.result("presence")
        wanted = [
            name
            for name in ("cuda", "nccl", "uuid", *(["seen_by_nvml"] if readings else []))
            if presence.get(name) is None
        ]
        if wanted:
            yield record.subject, "readable", f"not known of it: {', '.join(wanted)}"
        if len(readings) == 2:
            before, after = (
                {**readings[stage], "time": record.result(stage).get("time")} for stage in ("before", "after")
            )
            for one in (before, after):
                one |= {f"fabric.{name}": value for name, value in (one.get("fabric") or {}).items()}
            for name in sorted({*before, *after} - {"topology", "untold"}):
                if (before.get(name) in (None, {})) != (after.get(name) in (None, {})):
                    stage = "before" if before.get(name) in (None, {}) else "after"
                    question = "readable" if _explained(record, f"{stage} {name}") else "complete"
                    yield record.subject, question, f"{stage} the run, {name} is not reported"


def _explained(record: Record, place: str) -> bool:
    """Whether NVML gave a reason for not telling it."""
    stage, _, name = place.partition(" ")
    untold = (record.result(stage).get("reading") or {}).get("untold") or {}
    return name in untold and not str(untold[name]).endswith(NONSENSE)


def _lasting(records: Sequence[Record]) -> Iterator[Finding]:
    """What cannot change, or be less, within minutes."""
    for record in records:
        readings = _readings(record)
        if len(readings) == 2:
            pairs = [(f"reading.{key}", readings["before"].get(key), readings["after"].get(key))
                     for key in readings["before"]]  # fmt: skip
            for before, after in [(readings["before"].get("fabric") or {}, readings["after"].get("fabric") or {})]:
                pairs += [(f"reading.fabric.{key}", before.get(key), after.get(key)) for key in before]
            yield from _changed(record.subject, pairs)
            for name in ("nvlink_peers", "topology"):
                before, after = (readings[stage].get(name) for stage in ("before", "after"))
                if before and after and before != after:
                    yield record.subject, "unchanged", f"{name} {before} before, {after} after"
        ports = {port["name"]: port for port in _ports(record, "network")}
        for port in _ports(record, "network_after"):
            earlier = ports.get(port["name"], {})
            pairs = [(f"network.ports.{key}", earlier.get(key), port.get(key)) for key in earlier]
            where = f"node {record.node}"
            for _, question, evidence in _changed(where, pairs):
                yield where, question, f"{port['name']}: {evidence}"
            once = [key for key in {*earlier, *port} if (earlier.get(key) is None) != (port.get(key) is None)]
            if earlier and once:
                yield where, "complete", f"{port['name']}: before or after the run only {', '.join(sorted(once))}"
            if earlier and (earlier["rdma"], earlier["kind"]) != (port["rdma"], port["kind"]):
                yield where, "unchanged", f"{port['name']}: another kind of port after the run"


def _ports(record: Record, stage: str) -> list[dict[str, Any]]:
    return record.result(stage).get("ports") or []


def _changed(subject: str, pairs: Sequence[tuple[str, Any, Any]]) -> Iterator[Finding]:
    for field, before, after in pairs:
        name = ledger.entry(field)
        if name is None or before is None or after is None or isinstance(before, dict):
            continue
        reading = ledger.readings()[name]
        if reading.lasting and not _same(before, after):
            yield subject, "unchanged", f"{field} {before} before, {after} after"
        if reading.still and before != after:
            yield subject, "unchanged", f"{field} {before} before, {after} after: it is being damaged, or was reset"
        if reading.grows and _less(after, before):
            yield subject, "unchanged", f"{field} went back: {before} before, {after} after"


def _less(after: Any, before: Any) -> bool:
    if isinstance(after, list):
        return any(now < was for now, was in zip(after, before, strict=True))
    return bool(after < before)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) or isinstance(other, float):
        return bool(abs(one - other) <= ALIKE_SHARE * max(abs(one), abs(other)))
    return bool(one == other)


def _alike(records: Sequence[Record]) -> Iterator[Finding]:
    """What the program chose, or a model has, is the same everywhere."""
    names = {name for name, reading in ledger.readings().items() if reading.alike}
    values: dict[tuple[Any, str], list[tuple[Record, str]]] = {}
    for record in records:
        model = record.result("presence").get("device_name")
        for stage in STAGES:
            if not record.measured(stage) or stage == "after":
                continue
            for field, value in _leaves(record.result(stage), ledger.PREFIXES.get(stage, stage)):
                name = ledger.entry(field)
                if name in names and value is not None:
                    group = model if ledger.readings()[name].alike == "model" else None
                    shown = f"{value:.6g}" if isinstance(value, float) else str(value)
                    values.setdefault((group, field), []).append((record, shown))
    for (_, field), seen in values.items():
        counts = Counter(value for _, value in seen)
        if len(counts) < 2:
            continue
        (usual, most), (_, second) = counts.most_common(2)
        for record, value in seen:
            if value != usual or most == second:
                shown = ", ".join(f"{count} x {other}" for other, count in counts.most_common(MOST_SHOWN))
                yield record.subject, "alike", f"{field} is {value}; of the ranks {shown}"


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Fields of tables; lists of tables are compared elsewhere."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    elif not (isinstance(value, list) and value and isinstance(value[0], dict)):
        yield path, value
