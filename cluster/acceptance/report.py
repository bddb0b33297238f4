"""The banner, the JSON report, the page: the same facts for a terminal, a program and a browser."""

import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cluster.acceptance import as_read, baseline, expectations, form, writing
from cluster.acceptance.checks import (
    adapters,
    bandwidth,
    board,
    communication,
    compute,
    consistency,
    copies,
    expected,
    gradients,
    hardware_state,
    health_diff,
    load,
    memory,
    network,
    pairs,
    presence,
    run,
    siblings,
    steadiness,
    training,
    unusual,
)
from cluster.acceptance.expectations import Expectations
from cluster.acceptance.guard import Guard
from cluster.acceptance.options import Options
from cluster.acceptance.performance import performance
from cluster.acceptance.records import Record, apart
from cluster.acceptance.unjudged import note as note_of
from cluster.acceptance.unjudged import unjudged as not_judged
from cluster.acceptance.verdict import (
    NOT_WRITTEN,
    PARTS,
    Check,
    Outcome,
    Verdict,
    as_simulated,
    banner,
    could_not_run,
    decide,
    not_excluded,
    part_status,
    standing_out,
)
from labkit.monitoring import plain

MOST_DOUBTFUL = 3
SCHEMA_VERSION = "1.0"
STATUS: dict[Outcome, str] = {
    "PASS": "success",
    "FAIL": "failure",
    "INCOMPLETE": "incomplete",
    "COULD NOT RUN": "error",
}


@dataclass(frozen=True, kw_only=True)
class Standards:
    """What a run is compared with besides thresholds of our own."""

    earlier: baseline.Baseline | None = None
    expected: Expectations | None = None


def conclude(
    options: Options, records: Sequence[Record], *, simulated: bool, standards: Standards,
    hand_on: Callable[[str], None] | None = None,
) -> int:  # fmt: skip
    """Judge, print the banner, write both reports; returns the exit code. The banner needs no disk.

    `hand_on` gets the banner as well, to be shown again by a launcher that has the last word.
    """
    document = build(options, records, simulated=simulated, standards=standards)
    verdict = Verdict(outcome=document["acceptance"]["status"], summary=tuple(document["acceptance"]["summary"]))
    print(banner(verdict), flush=True)
    if hand_on is not None:
        hand_on(banner(verdict))
    _print_troubles(document)
    where_asked = writing.write(options.report, document)
    if options.write_expectations is not None:
        where_asked = _write_expectations(options.write_expectations, document) and where_asked
    return verdict.exit_code if where_asked else NOT_WRITTEN


def _write_expectations(path: Path, document: dict[str, Any]) -> bool:
    """Whether the file is there, or rightly is not: what failed is nothing to expect."""
    status = document["acceptance"]["status"]
    doubtful = [
        f"{check['name']}, {check['subject']}: {check['evidence']}"
        for check in document["validation"]["checks"]
        if check["status"] == "unverified" and not check["nothing_known"]
    ]
    if status == "INCOMPLETE" and doubtful:
        shown = "; ".join(doubtful[:MOST_DOUBTFUL])
        print(f"no {path}: {shown}. If that is meant, say so in a file of --expect and run it again", file=sys.stderr)
        return True
    if status not in ("PASS", "INCOMPLETE") or document["injected_faults"] or document["device"] != "cuda":
        reason = "faults were injected" if document["injected_faults"] else f"the verdict is {status}"
        reason = "there was no GPU" if document["device"] != "cuda" else reason
        print(f"no {path}: {reason}, and a cluster should not be expected to be so", file=sys.stderr)
        return True
    try:
        expectations.write(path, document)
    except OSError as error:
        print(f"could not write {path}: {error}", file=sys.stderr)
        return False
    print(f"wrote {path}")
    return True


def judge(options: Options, records: Sequence[Record], standards: Standards) -> list[Check]:
    """All checks of a run."""
    guard = Guard()
    return [*_checks(options, *_repaired(records, guard), standards, guard), *guard.checks]


def _repaired(records: Sequence[Record], guard: Guard) -> tuple[list[Record], dict[int, list[form.Misfit]]]:
    """Without what cannot be right; without any result if even that cannot be told."""
    bare = [replace(record, results={}) for record in records]
    return guard("form of the records", lambda: form.repaired(records), (bare, {}))


def _checks(
    options: Options, records: Sequence[Record], wrong: dict[int, list[form.Misfit]], standards: Standards, guard: Guard
) -> list[Check]:
    """Of records without the values that are `wrong`, by a record's position."""
    file, has_baseline = standards.expected, standards.earlier is not None
    gpus, gpus_by = options.expect_gpus, "--expect-gpus"
    if gpus is None and file is not None:
        gpus, gpus_by = file.count("cluster", "gpus_per_node"), f"[cluster] gpus_per_node of {file.path}"
    latency = options.max_latency_ms
    judges: dict[str, Callable[[], list[Check]]] = {
        "run": lambda: run.judge(records),
        "expected": lambda: expected.judge(records, file, nodes=options.expect_nodes),
        "presence": lambda: presence.judge(records, expected=gpus, source=gpus_by, file=file),
        "copies": lambda: copies.judge(records, file),
        "bandwidth": lambda: bandwidth.judge(records, file, has_baseline=has_baseline),
        "compute": lambda: compute.judge(records, expected=file, has_baseline=has_baseline),
        "memory": lambda: memory.judge(records),
        "load": lambda: load.judge(records, file),
        "gradients": lambda: gradients.judge(records),
        "network": lambda: network.judge(records, file),
        "adapters": lambda: adapters.judge(records, file),
        "communication": lambda: communication.judge(
            records, max_latency_ms=latency, expected=file, has_baseline=has_baseline
        ),
        "pairs": lambda: pairs.judge(records, file),
        "training": lambda: training.judge(records, file),
        "steadiness": lambda: steadiness.judge(records, file),
        "hardware state": lambda: hardware_state.judge(records, file),
        "board": lambda: board.judge(records, file),
        "siblings": lambda: siblings.judge(records),
        "health": lambda: health_diff.judge(records),
        "unusual": lambda: unusual.judge(records),
        "consistency": lambda: consistency.judge(records, wrong),
    }
    checks = [check for part, of_part in judges.items() for check in guard(part, of_part, [])]
    return checks + guard("unmeasured", lambda: expected.unmeasured(checks, file, latency=latency is None), [])


def build(
    options: Options, records: Sequence[Record], *, simulated: bool, standards: Standards | None = None
) -> dict[str, Any]:
    """The report as `report.schema.json` describes it."""
    standards, recorded, guard = standards or Standards(), records, Guard()
    records, wrong = _repaired(guard("names of the nodes", lambda: apart(recorded), list(recorded)), guard)
    result = next((record.result("presence") for record in records if record.measured("presence")), {})
    device = "cuda" if any(record.gpu is not None for record in records) else "cpu"
    document = _head(options, device=device, simulated=simulated)
    document |= {
        "world_size": len(records),
        "device_name": result.get("device_name"),
        "software": {
            "python": platform.python_version(),
            **{name: result.get(name) for name in ("torch", "cuda", "nccl")},
            "driver": next((record.result("before").get("reading", {}).get("driver") for record in records), None),
        },
        "performance": guard("performance", lambda: performance(records), document["performance"]),
        "ranks": [_rank(record) for record in records],
        "gpu_health": guard(
            "differences", lambda: [_health(record) for record in records if "reading" in record.result("before")], []
        ),
    }
    checks = _checks(options, records, wrong, standards, guard)
    if standards.expected is not None:
        document["expectations"] = {"file": str(standards.expected.path), "tables": standards.expected.tables}
    if (earlier := standards.earlier) is not None:
        checks += guard("baseline", lambda: baseline.judge(document, earlier), [])
        document["baseline"] = {"file": str(earlier.path), "test_timestamp": earlier.document["test_timestamp"]}
    checks = as_simulated(checks) if simulated else checks
    faults = [str(fault) for fault in options.inject]
    if not result and not guard.errors and not any(record.result("presence").get("index") for record in records):
        # No rank got as far as a device. The ranks' own words say why.
        reasons = [record.result("presence").get("error") or record.log[-300:] or record.detail for record in records]
        verdict = could_not_run(f"no rank could open its device: {reasons[0] if reasons else 'there are none'}")
    else:
        unjudged = guard("list of what is not judged", lambda: not_judged(records), {"not_judged": {}, "not_read": {}})
        document["unjudged"] = unjudged
        notes = guard("banner", lambda: _notes(unjudged, checks, records, options, standards, simulated=simulated), [])
        verdict = decide([*checks, *guard.checks], device=device, simulated=simulated, faults=faults, notes=notes)
        checks += guard.checks
    document["validation"] = {
        "parts": {part: part_status(checks, part) for part in PARTS},
        "checks": list(checks),
    }
    document |= _verdict(verdict) | guard.kept(recorded)
    return dict(plain(document))


def _notes(
    unjudged: dict[str, dict[str, str]], checks: Sequence[Check], records: Sequence[Record], options: Options,
    standards: Standards, *, simulated: bool,
) -> list[str]:  # fmt: skip
    """Lines of the banner on what the verdict is not about."""
    has_baseline = standards.earlier is not None
    first = note_of(unjudged, records, options, standards.expected, has_baseline=has_baseline)
    # What an earlier report was compared with, that one has judged.
    open_ones = [check for check in checks if not (has_baseline and check.name.endswith(baseline.COMPARED))]
    doubts = [line for line in (not_excluded(open_ones), standing_out(checks)) if line]
    failed = any(check.status == "fail" for check in checks)
    return [first, *doubts, *(() if failed or simulated else as_read.lines(records))]


def refuse(options: Options, reason: str) -> int:
    """A report that says why nothing could be tested, where one can be written; returns the exit code."""
    verdict = could_not_run(reason)
    print(f"could not run: {reason}", file=sys.stderr)
    writing.write(options.report, _head(options, device=None, simulated=False) | _verdict(verdict))
    return verdict.exit_code


def _head(options: Options, *, device: str | None, simulated: bool) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "test_timestamp": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S"),
        "world_size": 0,
        "device": device,
        "device_name": None,
        "simulated": simulated,
        "injected_faults": [str(fault) for fault in options.inject],
        "options": {
            "device": options.device,
            "validation_only": options.validation_only,
            "epochs": options.epochs,
            "max_latency_ms": options.max_latency_ms,
            "stage_seconds": options.stage_seconds,
        },
        "software": {"python": platform.python_version(), "torch": None, "cuda": None, "nccl": None, "driver": None},
        "validation": {"parts": dict.fromkeys(PARTS, "skipped"), "checks": []},
        "performance": {"products": [], "collectives": [], "training": None},
        "ranks": [],
        "gpu_health": [],
        "baseline": None,
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "status": STATUS[verdict.outcome],
        "acceptance": {
            "status": verdict.outcome,
            "exit_code": verdict.exit_code,
            "summary": list(verdict.summary),
        },
    }


def _rank(record: Record) -> dict[str, Any]:
    result = record.result("presence")
    return {
        "rank": record.rank,
        "node": record.node,
        "gpu": record.gpu,
        "device_name": result.get("device_name"),
        "uuid": result.get("uuid"),
        "boot_id": result.get("boot_id"),
        "ending": record.ending,
        "detail": record.detail,
        "at": record.at,
        "log": record.log if record.ending != "finished" else "",
    }


def _health(record: Record) -> dict[str, Any]:
    return {
        "rank": record.rank,
        "before": record.result("before")["reading"],
        "after": record.result("after").get("reading"),
        "deltas": health_diff.deltas(record),
    }


def _print_troubles(document: dict[str, Any]) -> None:
    checks = document["validation"]["checks"]
    counts = ", ".join(
        f"{sum(check['status'] == status for check in checks)} {status}"
        for status in ("pass", "fail", "unverified", "skipped")
    )
    print(f"checks: {counts}")
    for check in checks:
        if check["status"] == "fail":
            print(f"FAIL {check['name']}, {check['subject']}: {check['evidence']}\n     {check['remedy']}")
