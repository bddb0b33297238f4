"""The banner, the JSON report, the page: the same facts for a terminal, a program and a browser."""

import json
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2

from cluster.acceptance import baseline
from cluster.acceptance.checks import communication, compute, deltas, presence, run, soundness, training
from cluster.acceptance.options import Options
from cluster.acceptance.performance import performance
from cluster.acceptance.records import Record, readable
from cluster.acceptance.verdict import (
    PARTS,
    Check,
    Outcome,
    Verdict,
    as_simulated,
    banner,
    could_not_run,
    decide,
    part_status,
)
from labkit.files import atomic_write
from labkit.monitoring import plain

SCHEMA_VERSION = "1.0"
JSON_NAME, PAGE_NAME = "cluster_test_report.json", "cluster_test_report.html"
STATUS: dict[Outcome, str] = {
    "PASS": "success",
    "FAIL": "failure",
    "INCOMPLETE": "incomplete",
    "COULD NOT RUN": "error",
}


def conclude(options: Options, records: Sequence[Record], *, simulated: bool, earlier: baseline.Baseline | None) -> int:
    """Judge, write both reports, print the banner; returns the exit code."""
    document = build(options, records, simulated=simulated, earlier=earlier)
    _write(options.report, document)
    verdict = Verdict(outcome=document["acceptance"]["status"], summary=tuple(document["acceptance"]["summary"]))
    print(banner(verdict))
    _print_troubles(document)
    for name in (JSON_NAME, PAGE_NAME):
        print(f"wrote {options.report / name}")
    return verdict.exit_code


def judge(options: Options, records: Sequence[Record]) -> list[Check]:
    """All checks of a run."""
    return [
        *run.judge(records),
        *presence.judge(records, expected=options.expect_gpus),
        *compute.judge(records),
        *communication.judge(records, max_latency_ms=options.max_latency_ms),
        *training.judge(records),
        *soundness.judge(records),
        *deltas.judge(records),
    ]


def build(
    options: Options, records: Sequence[Record], *, simulated: bool, earlier: baseline.Baseline | None
) -> dict[str, Any]:
    """The report as `report.schema.json` describes it."""
    found = next((record.result("presence") for record in records if record.measured("presence")), {})
    device = "cuda" if any(record.gpu is not None for record in records) else "cpu"
    document = _head(options, device=device, simulated=simulated)
    document |= {
        "world_size": len(records),
        "device_name": found.get("device_name"),
        "software": {
            "python": platform.python_version(),
            **{name: found.get(name) for name in ("torch", "cuda", "nccl")},
            "driver": next((record.result("before").get("reading", {}).get("driver") for record in records), None),
        },
        "performance": performance(records),
        "ranks": [_rank(record) for record in records],
        "gpu_health": [_health(record) for record in records if "reading" in record.result("before")],
    }
    checks = judge(options, records)
    if earlier is not None:
        checks += baseline.judge(document, earlier)
        document["baseline"] = {"file": str(earlier.path), "test_timestamp": earlier.document["test_timestamp"]}
    checks = as_simulated(checks) if simulated else checks
    faults = [str(fault) for fault in options.inject]
    if not found and not any(record.result("presence").get("index") for record in records):
        # No rank got as far as a device. The ranks' own words say why.
        reasons = [record.result("presence").get("error") or record.log[-300:] or record.detail for record in records]
        verdict = could_not_run(f"no rank could open its device: {reasons[0] if reasons else 'there are none'}")
    else:
        verdict = decide(checks, device=device, simulated=simulated, faults=faults)
    document["validation"] = {
        "parts": {part: part_status(checks, part) for part in PARTS},
        "checks": list(checks),
    }
    document |= _verdict(verdict)
    return dict(plain(document))


def write_refusal(options: Options, reason: str) -> None:
    """A report that says why nothing could be tested, where one can be written."""
    document = _head(options, device=None, simulated=False) | _verdict(could_not_run(reason))
    try:
        _write(options.report, document)
    except OSError as error:
        print(f"no report: {error}", file=sys.stderr)


def remove(folder: Path) -> None:
    """Remove the reports of an earlier run."""
    for name in (JSON_NAME, PAGE_NAME):
        (folder / name).unlink(missing_ok=True)


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
    found = record.result("presence")
    return {
        "rank": record.rank,
        "node": record.node,
        "gpu": record.gpu,
        "device_name": found.get("device_name"),
        "uuid": found.get("uuid"),
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
        "deltas": deltas.deltas(record),
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


def _write(folder: Path, document: dict[str, Any]) -> None:
    with atomic_write(folder / JSON_NAME) as temporary:
        temporary.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    with atomic_write(folder / PAGE_NAME) as temporary:
        temporary.write_text(page(document), encoding="utf-8")


def page(document: dict[str, Any]) -> str:
    """The page's text: self-contained, no script; everything that was measured or said is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["bytes"] = readable
    environment.filters["curve"] = curve
    environment.filters["figure"] = figure
    return environment.get_template("report.html.jinja").render(report=document, parts=PARTS)


def figure(value: float | str, form: str) -> str:
    """A number in a `%` format; what is no number ("NaN") as it is."""
    return value if isinstance(value, str) else form % value


def curve(values: Sequence[float | str], width: int = 640, height: int = 120) -> str:
    """Points of an SVG polyline through `values`, from 0 at the bottom to the largest at the top."""
    numbers = [value for value in values if not isinstance(value, str)]
    top = max(numbers, default=0.0) or 1.0
    step = width / max(1, len(numbers) - 1)
    return " ".join(f"{index * step:.1f},{height - height * value / top:.1f}" for index, value in enumerate(numbers))
