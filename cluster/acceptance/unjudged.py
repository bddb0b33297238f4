"""What this run read and nobody judges, and what it could not read: the report says so, and its banner."""

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from cluster.acceptance.checks import adapters, network
from cluster.acceptance.checks.compute import EIGHT_BITS
from cluster.acceptance.checks.links import board_of
from cluster.acceptance.expectations import Expectations
from cluster.acceptance.ledger import NOT, PREFIXES, cannot, entry, fields, readings
from cluster.acceptance.options import Options
from cluster.acceptance.records import STAGES, TOGETHER, TOOK, Record, readable

EIGHT_BITS_FROM = (8, 9)
"""Compute capability."""
MOST_NAMED = 16
"""Things that this run could not read, in the banner."""


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
    return {
        "not_judged": {
            name: known[name].absolute.removeprefix(NOT) for name in sorted(recorded) if not known[name].judged
        },
        "not_read": {**_unmeasured(records), **missing, **dict(_lacking(records)), **cannot()},
    }


CHOSEN = (
    "reading.untold.*", "reading.fabric*", "memory.wrong.*", "memory.first_byte.*", "presence.environment.*",
    "presence.given_by_slurm", "presence.host.processors_allowed", "presence.index", "presence.peak_tflops.*",
    "presence.held_ratio.*", "adapters.measured.reason", "adapters.measured.server", "network.ports.counters.*",
)  # fmt: skip
"""Fields that a sound machine may lack for a reason of its own, or that have a line of their own here."""
ON_REQUEST = {"load": "minutes of load: --thorough", "training": "a training: left out by --validation-only",
              "collectives": "messages between GPUs: one rank has nobody to talk to"}  # fmt: skip
COUNTED = {"lost links": network.LINK_LOST, "damaged packets": network.DAMAGED}
"""Counters of ports, of which one at least should be there."""


def _lacking(records: Sequence[Record]) -> Iterator[tuple[str, str]]:
    """Fields of the ledger that no rank of a stage has measured; and stages that nobody went through."""
    known = readings()
    recorded = {field for record in records for field in _told(record)}
    stages = {stage for record in records for stage in STAGES if record.measured(stage)}
    for field, entry_ in known.items():
        stage = field.partition(".")[0]
        joined = field.startswith("reading.fabric") and "reading.fabric.state" in recorded
        chosen = any(fnmatchcase(field, name) for name in CHOSEN) and not joined
        if (stage in stages or joined) and field not in recorded and not chosen and field != "reading.fabric":
            yield field, entry_.meaning
    if f"{TOOK}.*" not in recorded and stages:
        yield "times of stages", known[f"{TOOK}.*"].meaning
    for stage, words in ON_REQUEST.items():
        if stage not in stages and any(record.result(stage).get("asked") for record in records):
            yield words.partition(":")[0], words
    used = [port for port in _ports(records) if port["up"]]
    for what, names in COUNTED.items():
        if used and not any(set(names) & set(port["counters"]) for port in used):
            yield f"{what} of ports", "their drivers count none"


def _told(record: Record) -> Iterator[str]:
    for stage, result in record.results.items():
        if record.measured(stage):
            yield from _names(result, PREFIXES.get(stage, stage))


def _names(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _names(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(inner, dict) for inner in value):
        for inner in value:
            yield from _names(inner, path)
    elif value is not None and (name := entry(path)) is not None:
        yield name


def _ports(records: Sequence[Record]) -> list[dict[str, Any]]:
    return [port for record in records for port in record.result("network").get("ports") or ()]


def _unmeasured(records: Sequence[Record]) -> dict[str, str]:
    """What these machines have, and this run could not measure on any."""
    things: dict[str, str] = {}
    able = [record for record in records if record.gpu is not None and record.measured("compute")
            and tuple(record.result("presence").get("compute_capability") or ()) >= EIGHT_BITS_FROM]  # fmt: skip
    if able and not any(EIGHT_BITS in record.result("compute")["products"] for record in able):
        things["products of 8 bits"] = "this PyTorch has none, and these GPUs have them"
    meshed = [known for record in records if (known := board_of(record)) is not None and known.joined == "mesh"]
    if len(meshed) > 1:
        things["NVLinks of each pair"] = "in a mesh a pair has none, one or two, and NVML does not say which pair"
    used = [port for port in _ports(records) if port["up"] and port["rdma"]]
    if used and not any(port.get("pcie_width") for port in used):
        things["slots of adapters"] = readings()["network.ports.pcie_width"].meaning
    trained = {record.result("training")["data"] for record in records
               if record.gpu is not None and record.measured("training")}  # fmt: skip
    if trained == {"digits"}:
        things["a training on photographs"] = "no data set is there but the digits of scikit-learn: --data-dir"
    if (reason := adapters.why_not(records)) is not None:
        things["each adapter on its own"] = f"its rate to itself and to the next node: {reason}"
    return things


def note(
    unjudged: Mapping[str, Mapping[str, str]], records: Sequence[Record], options: Options,
    expected: Expectations | None, *, has_baseline: bool,
) -> str:  # fmt: skip
    """The line of the banner on what the verdict is not about."""
    rates = ", ".join(_without_norm(records, options, expected, has_baseline=has_baseline))
    shown = f"{rates} (no norm is published: --expect); " if rates else ""
    alike = ", ".join(_compared_only(records, options, expected))
    shown += f"{alike} (compared with each other only: --expect); " if alike else ""
    lacking = [name for name in unjudged["not_read"] if name not in cannot()]
    names = ", ".join([*lacking[:MOST_NAMED], *(["more"] if len(lacking) > MOST_NAMED else [])])
    things = f"{len(unjudged['not_read'])} things{f', {names} among them' if names else ''} (see the report)"
    return f"Not judged: {shown}{len(unjudged['not_judged'])} readings; not read: {things}"


SOFTWARE = ("driver", "torch", "cuda", "nccl", "vbios", "kernel", "firmware")
MOST_VERSIONS = 3


def _versions(records: Sequence[Record], name: str) -> str:
    """As they are, so that who reads the verdict sees what nobody has judged."""
    values: set[str] = set()
    for record in records:
        presence, reading = record.result("presence"), record.result("before").get("reading") or {}
        own = [{**reading, **(presence.get("host") or {}), **presence}.get(name)]
        if name == "firmware":
            own = [port.get(name) for port in record.result("network").get("ports") or () if port["up"]]
        values |= {".".join(map(str, one)) if isinstance(one, list) else str(one) for one in own if one}
    shown = sorted(values)[:MOST_VERSIONS]
    return " or ".join(shown) + (" or others" if len(values) > MOST_VERSIONS else "") or "unknown"


def _compared_only(records: Sequence[Record], options: Options, expected: Expectations | None) -> Iterator[str]:
    """Facts of which nobody knows how they should be, so that nobody sees that all alike are wrong."""
    tables = expected.tables if expected is not None else {}
    on_gpu = [record for record in records if record.gpu is not None]
    if not on_gpu:
        return
    cluster, network = tables.get("cluster", {}), tables.get("network", {})
    if options.expect_nodes is None and "nodes" not in cluster:
        yield "number of nodes"
    if options.expect_gpus is None and "gpus_per_node" not in cluster:
        yield "number of GPUs"
    if lacking := [name for name in SOFTWARE if name not in tables.get("software", {})]:
        yield f"versions ({', '.join(f'{name} {_versions(on_gpu, name)}' for name in lacking)})"
    ports = _ports(records)
    if ports and "ports" not in network:
        yield "number of ports"
    if ports and "rate_gigabits" not in network:
        yield "rate of ports"
    nodes = [record for record in records if record.result("network").get("ports")]
    with_rdma = [
        record for record in nodes if any(port["rdma"] and port["up"] for port in record.result("network")["ports"])
    ]
    if len(nodes) > 1 and with_rdma and not any(record.result("network").get("peer_memory") for record in with_rdma):
        yield "GPUDirect (nvidia_peermem is loaded on no node)"


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
    sizes = {row["bytes"] for record in records if record.gpu is not None and record.measured("collectives")
             for row in record.result("collectives")["measurements"]}  # fmt: skip
    if between := sorted(sizes)[1:-1]:
        ends = " to ".join(dict.fromkeys(map(readable, (between[0], between[-1]))))
        yield f"messages of {ends} within a factor of three"


def _of_nvml(field: str) -> bool:
    """A reading as a whole, not a part of one."""
    return field.startswith("reading.") and field.count(".") == 1
