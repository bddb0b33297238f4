"""Judges a run against `--expect FILE`, `--expect-nodes` and `--expect-gpus`: is this the cluster that it should be?

Rates, bandwidths and latencies of the file are compared with what was measured where that is judged: in `compute` and
`communication`; ports of the network in `network`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from cluster.acceptance.expectations import Expectations
from cluster.acceptance.records import Record
from cluster.acceptance.verdict import Check, Part, Status, Threshold, compared

ALIKE_SHARE = 0.01
"""Ours: drivers of one board differ by less in the memory that they keep for themselves, and in rounding watts."""
_PARTS: dict[str, Part] = {
    "compute_tflops": "gpu",
    "bus_gigabytes_per_second": "communication",
    "latency_milliseconds": "communication",
    "network": "network",
    "training": "training",
    "steadiness": "gpu",
}
REMEDY_NODES = "look for the missing nodes in the launcher's log (torchrun, Slurm, Kubernetes); are they up?"
REMEDY_SOFTWARE = "install the image that the file names on this node, or write the file again for the new one"
REMEDY_BOARD = "nvidia-smi -q on this node: another board, a setting, or a fault; or correct the file"
Read = Callable[[Record], Any]


def judge(records: Sequence[Record], expected: Expectations | None, *, nodes: int | None) -> list[Check]:
    """Checks of what was said to be expected; none where nothing was."""
    checks = _nodes(records, expected, nodes)
    if expected is None:
        return checks
    for table, key, read in _WORDS:
        if (word := expected.text(table, key)) is not None:
            checks += [_word(record, table, key, word, read(record), expected) for record in records]
    for table, key, relation, read in _NUMBERS:
        if (number := expected.number(table, key)) is not None:
            checks += [_number(record, table, key, number, relation, read(record), expected) for record in records]
    return checks


def unmeasured(checks: Sequence[Check], expected: Expectations | None, *, latency: bool) -> list[Check]:
    """A check for every bar of the file that nothing was compared with: what is not measured is no pass.

    Without `latency` those of latency are left out: an option says more.
    """
    if expected is None:
        return []
    tables = [table for table in _PARTS if latency or table != "latency_milliseconds"]
    held = {check.threshold.source for check in checks if check.threshold is not None}
    return [
        Check(
            name=f"expected: {key}",
            part=_PARTS[table],
            subject="all ranks",
            status="unverified",
            nothing_known=True,
            evidence=f"[{table}] {key} is expected, and this run did not measure it",
            remedy="run it on all the nodes and GPUs that the file is about",
        )
        for table in tables
        for key in expected.tables.get(table, {})
        if f"[{table}] {key} of {expected.path}" not in held
    ]


def _reading(record: Record, stage: str = "before") -> dict[str, Any]:
    return record.result(stage).get("reading") or {}


def _nccl(record: Record) -> str | None:
    version = record.result("presence").get("nccl")
    return ".".join(map(str, version)) if version else None


def _memory_gib(record: Record) -> float | None:
    total = _reading(record).get("memory_total_bytes")
    return total / 2**30 if total else None


def _loaded_generation(record: Record) -> float | None:
    """Under load only: an idle board lowers it by itself."""
    after = _reading(record, "after")
    return None if "idle" in (after.get("throttle_reasons") or ()) else after.get("pcie_generation")


_WORDS: tuple[tuple[str, str, Read], ...] = (
    ("gpu", "model", lambda record: record.result("presence").get("device_name") if record.gpu is not None else None),
    ("gpu", "vbios", lambda record: _reading(record).get("vbios")),
    ("software", "driver", lambda record: _reading(record).get("driver")),
    ("software", "torch", lambda record: record.result("presence").get("torch")),
    ("software", "cuda", lambda record: record.result("presence").get("cuda")),
    ("software", "nccl", _nccl),
)
_NUMBERS: tuple[tuple[str, str, str, Read], ...] = (
    ("gpu", "memory_gib", "about", _memory_gib),
    ("gpu", "power_limit_watts", "about", lambda record: _reading(record).get("power_limit_watts")),
    ("gpu", "pcie_generation", "at least", _loaded_generation),
    ("gpu", "pcie_width", "at least", lambda record: _reading(record).get("pcie_width")),
    ("gpu", "nvlinks", "at least", lambda record: _reading(record).get("nvlinks_up")),
)
"""Table, key, how it is compared, where it stands in a record."""


def _nodes(records: Sequence[Record], expected: Expectations | None, option: int | None) -> list[Check]:
    required = option if option is not None else expected.count("cluster", "nodes") if expected else None
    if required is None:
        return []
    there = [record for record in records if record.measured("presence")]
    names = sorted({record.node for record in there})
    # Two pods of one machine are one node, although each has its own ranks.
    machines = {record.result("presence").get("boot_id") or record.node for record in there}
    silent = sorted({record.node for record in records} - set(names) - {"?"})
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    source = "--expect-nodes" if option is not None or expected is None else f"[cluster] nodes of {expected.path}"
    return [
        Check(
            name="expected: nodes",
            part="run",
            subject="all nodes",
            status="pass" if len(machines) == required else "fail",
            evidence=f"{len(machines)} of {required} took part: {shown or 'none'}"
            + (f", {len(names)} pods on {len(machines)} machines" if len(machines) < len(names) else "")
            + (f"; no answer from {', '.join(silent)}" if silent else ""),
            remedy=REMEDY_NODES,
            measured=float(len(machines)),
            threshold=Threshold(value=float(required), unit="nodes", relation="at least", source=source),
        )
    ]


def _word(record: Record, table: str, key: str, required: str, actual: Any, expected: Expectations) -> Check:
    status: Status = "unverified" if actual is None else "pass" if str(actual) == required else "fail"
    evidence = f"{'not known of this rank' if actual is None else actual}; {required} by {expected.path}"
    return _check(record, table, key, status, evidence, nothing_known=actual is None)


def _number(
    record: Record, table: str, key: str, required: float, relation: str, actual: Any, expected: Expectations
) -> Check:
    limit = Threshold(value=required, unit=key, relation="at least", source=f"[{table}] {key} of {expected.path}")
    if actual is None:
        evidence = f"not known of this rank; {required:g} by {expected.path}"
        return _check(record, table, key, "unverified", evidence, threshold=limit, nothing_known=True)
    if relation == "about":
        status: Status = "pass" if abs(actual - required) <= ALIKE_SHARE * required else "fail"
    else:
        status = compared(actual, limit)
    evidence = f"{actual:.6g}; {relation} {required:g} by {expected.path}"
    return _check(record, table, key, status, evidence, measured=float(actual), threshold=limit)


def _check(record: Record, table: str, key: str, status: Status, evidence: str, **more: Any) -> Check:
    return Check(
        name=f"expected: {key.replace('_', ' ')}",
        part="gpu" if table == "gpu" else "run",
        subject=record.subject,
        rank=record.rank,
        status=status,
        evidence=evidence,
        remedy=REMEDY_SOFTWARE if table == "software" else REMEDY_BOARD,
        **more,
    )
