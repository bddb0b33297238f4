"""What this run read and nobody judges, and what it could not read: the report says so, and its banner."""

from collections.abc import Iterator, Mapping, Sequence

from cluster.acceptance.checks import adapters
from cluster.acceptance.expectations import Expectations
from cluster.acceptance.ledger import NOT, cannot, entry, fields, readings
from cluster.acceptance.options import Options
from cluster.acceptance.records import TOGETHER, Record


def unjudged(records: Sequence[Record]) -> dict[str, dict[str, str]]:
    """Both, each with the reason."""
    known = readings()
    recorded = {name for record in records for field in fields(record) if (name := entry(field)) is not None}
    read = [reading for record in records if (reading := record.result("before").get("reading")) and reading.get("up")]
    missing = {
        name: f"{known[f'reading.{name}'].meaning}: neither driver nor permissions let this run read it"
        for name in (field.removeprefix("reading.").removesuffix(".*") for field in known if _of_nvml(field))
        if f"reading.{name}" in known and read and all(reading.get(name) is None for reading in read)
    }
    if read and not any(reading.get("nvlink_peers") for reading in read):
        missing["nvlink_peers"] = known["reading.nvlink_peers.*"].meaning
    if read and not any(reading.get("topology") for reading in read):
        missing["topology"] = known["reading.topology.*"].meaning
    reason = adapters.why_not(records)
    alone = {} if reason is None else {"each adapter on its own": f"its rate to itself and to the next node: {reason}"}
    return {
        "not_judged": {
            name: known[name].absolute.removeprefix(NOT) for name in sorted(recorded) if not known[name].judged
        },
        "not_read": {**missing, **alone, **cannot()},
    }


def note(
    unjudged: Mapping[str, Mapping[str, str]], records: Sequence[Record], options: Options,
    expected: Expectations | None, *, has_baseline: bool,
) -> str:  # fmt: skip
    """The line of the banner on what the verdict is not about."""
    rates = ", ".join(_without_norm(records, options, expected, has_baseline=has_baseline))
    shown = f"{rates} (no norm is published: --expect); " if rates else ""
    counts = f"{len(unjudged['not_judged'])} readings; not read: {len(unjudged['not_read'])} things (see the report)"
    return f"Not judged: {shown}{counts}"


def _without_norm(
    records: Sequence[Record], options: Options, expected: Expectations | None, *, has_baseline: bool
) -> Iterator[str]:
    """Rates that are compared with the other GPUs at most, so that nobody sees what all alike have lost."""
    tables = expected.tables if expected is not None else {}
    stages = {stage for record in records if record.gpu is not None for stage in TOGETHER if record.measured(stage)}
    if "training" in stages and not has_baseline and "images_per_second" not in tables.get("training", {}):
        yield "images per second of the training"
    if "collectives" in stages and options.max_latency_ms is None and not tables.get("latency_milliseconds"):
        yield "latencies below ten times the usual"


def _of_nvml(field: str) -> bool:
    """A reading as a whole, not a part of one."""
    return field.startswith("reading.") and field.count(".") == 1
