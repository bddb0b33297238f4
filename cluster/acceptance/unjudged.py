"""What this run read and nobody judges, and what it could not read: the report says so."""

from collections.abc import Sequence

from cluster.acceptance.checks import adapters
from cluster.acceptance.ledger import NOT, cannot, entry, fields, readings
from cluster.acceptance.records import Record


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


def _of_nvml(field: str) -> bool:
    """A reading as a whole, not a part of one."""
    return field.startswith("reading.") and field.count(".") == 1
