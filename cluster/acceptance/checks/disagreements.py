"""What ranks cannot say together: of what they did with each other, of one node, and of the same program.

Each is a function that yields subject, question and what was seen, as those of `contradictions`.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean, median
from typing import Any

from cluster.acceptance.checks import links
from cluster.acceptance.checks.adapters import rounds
from cluster.acceptance.checks.collectives import BUS_FACTORS
from cluster.acceptance.checks.contradictions import ALIKE, FEWEST_SIZES, Finding, reading_of, times_as_much
from cluster.acceptance.checks.pairs import MOST_ROUNDS
from cluster.acceptance.records import Record, against_peers

CLOCK_SECONDS = 60.0
"""Ours: all ranks read NVML after the run within seconds of each other."""
SAME_LOSS = 1.25
SAME_PEAK = 1.5
"""Times, of memory in use: an allocator keeps some more or less."""
LEAST_OF_LOAD = 0.8
"""Of the time that others were under load."""


def found(records: Sequence[Record]) -> Iterator[Finding]:
    """All of them."""
    for of_all in (_ranks, _counts, _parts, _loads, _paths, _places, _slots, _switches, _fabrics, _durations, _peaks,
                   _clocks, _messages, _meetings, _both_ends, _epochs):  # fmt: skip
        yield from of_all(records)


def _ranks(records: Sequence[Record]) -> Iterator[Finding]:
    numbers = [record.rank for record in records]
    if sorted(numbers) != list(range(len(records))):
        yield "all ranks", "consistent", f"the ranks are {', '.join(map(str, numbers[:8]))}"
    names: dict[str, set[str]] = {}
    for record in records:
        names.setdefault(record.node.casefold(), set()).add(record.node)
    for spelled in names.values():
        if len(spelled) > 1:
            yield "all nodes", "consistent", f"one name in several spellings: {', '.join(sorted(spelled))}"
    for record in records:
        took_part = record.result("collectives").get("ranks")
        if record.measured("collectives") and took_part != len(records):
            yield (
                record.subject,
                "consistent",
                f"{took_part} ranks took part in its collectives, there are {len(records)}",
            )


def _counts(records: Sequence[Record]) -> Iterator[Finding]:
    """What ranks of a node see of it."""
    for node, own in links.by_node(records).items():
        there = [record.result("presence") for record in own if record.gpu is not None]
        for key in ("seen_by_nvml", "given_by_slurm", "restricted", "seen_by_cuda", "boot_id"):
            if len({result.get(key) for result in there}) > 1:
                shown = ", ".join(str(result.get(key)) for result in there[:8])
                yield f"node {node}", "consistent", f"{key} differs among its ranks: {shown}"
        for result in there[:1]:
            cuda, nvml = result["seen_by_cuda"], result.get("seen_by_nvml")
            if nvml is not None and cuda > nvml:
                yield f"node {node}", "consistent", f"CUDA sees {cuda} GPUs, NVML {nvml}"
            given = result.get("given_by_slurm")
            if given is not None and not result["restricted"] and given != max(cuda, len(there)):
                evidence = f"Slurm gave {given} GPUs, CUDA sees {cuda}: are devices constrained (cgroup.conf)?"
                yield f"node {node}", "consistent", evidence
            if not result["restricted"] and cuda < len(there):
                yield f"node {node}", "consistent", f"CUDA sees {cuda} GPUs, {len(there)} ranks have one"
        if beyond := [result["index"] for result in there if result["index"] >= result["seen_by_cuda"] > 1]:
            yield (
                f"node {node}",
                "consistent",
                f"a rank has the GPU {beyond[0]}, and CUDA sees {there[0]['seen_by_cuda']}",
            )
        places = Counter(result["index"] for result in there)
        # Where each rank is shown its own GPU alone, all are number 0.
        if there and len(places) < len(there) and set(places) != {0}:
            yield f"node {node}", "consistent", "two ranks have a GPU of one number"


def _parts(records: Sequence[Record]) -> Iterator[Finding]:
    """What samples of a load, and ports of a node, have on one rank, they have on all."""
    told: dict[str, dict[str, set[str]]] = {"load": {}, "network": {}, "network_after": {}}
    for record in records:
        if record.measured("load"):
            samples = record.result("load")["series"]
            told["load"][record.subject] = {key for one in samples for key, value in one.items() if value is not None}
        for stage in ("network", "network_after"):
            used = [port for port in record.result(stage).get("ports", ()) if port["rdma"] and port["up"]]
            keys = {key for port in used for key, value in port.items() if value is not None}
            keys |= {f"{port['kind']} counter {key}" for port in used for key in port["counters"]}
            if used:
                told[stage][f"node {record.node}"] = keys
    for stage, by_place in told.items():
        known = set().union(*by_place.values())
        for place, own in by_place.items():
            if lacking := sorted(known - own):
                yield place, "complete", f"{stage}: without {', '.join(lacking)}, which others have"
    for place in set(told["network"]) & set(told["network_after"]):
        if lost := sorted(told["network"][place] ^ told["network_after"][place]):
            yield place, "complete", f"ports: before or after the run only {', '.join(lost)}"


def _loads(records: Sequence[Record]) -> Iterator[Finding]:
    """All ranks are under load for the same time: a process that stood still has fewer samples, or a gap."""
    ends = {record.subject: record.result("load")["series"][-1]["seconds"] for record in records
            if record.measured("load") and record.result("load")["series"]}  # fmt: skip
    usual = median(ends.values()) if ends else 0.0
    for subject, end in ends.items():
        if end < LEAST_OF_LOAD * usual:
            yield subject, "complete", f"its load ended after {end:.0f} s, that of others after {usual:.0f}"


def _paths(records: Sequence[Record]) -> Iterator[Finding]:
    """How PCIe joins two GPUs is the same from both ends, and all of a node are there."""
    for own in links.by_node(records).values():
        kinds = {(record.gpu, other): kind for record in own
                 for other, kind in (reading_of(record, "before").get("topology") or {}).items()}  # fmt: skip
        known = {record.rank: len(reading_of(record, "before").get("topology") or {}) for record in own}
        for record in own:
            if known[record.rank] < max(known.values()):
                yield record.subject, "complete", f"paths to {known[record.rank]} GPUs, others of its node know more"
        for (gpu, other), kind in kinds.items():
            back = kinds.get((int(other), str(gpu))) if str(other).isdigit() else None
            if back is not None and back != kind:
                yield own[0].subject, "consistent", f"GPU {gpu} to GPU {other}: {kind}, and back: {back}"


def _places(records: Sequence[Record]) -> Iterator[Finding]:
    """Nodes with as many GPUs of one model are built alike: else a BIOS setting, a slot or a passed-through device."""
    built: dict[Any, dict[str, str]] = {}
    for node, own in links.by_node(records).items():
        kinds = [(record.gpu, sorted((reading_of(record, "before").get("topology") or {}).items())) for record in own]
        if all(kind for _, kind in kinds):
            model = own[0].result("presence").get("device_name")
            built.setdefault((model, len(own), len(kinds[0][1])), {})[node] = str(sorted(kinds, key=str))
    for nodes in built.values():
        usual, count = Counter(nodes.values()).most_common(1)[0]
        for node, own_kinds in nodes.items():
            if own_kinds != usual or (2 * count <= len(nodes) and count < len(nodes)):
                evidence = f"PCIe joins its GPUs in another way than on other nodes; {count} of {len(nodes)} are alike"
                yield f"node {node}", "alike", evidence


def _slots(records: Sequence[Record]) -> Iterator[Finding]:
    """The same adapter of another node is in the same kind of slot, at the same socket."""
    values: dict[tuple[str, str], dict[str, Any]] = {}
    for node, ports in links.ports_of(records).items():
        for port in ports:
            if port["rdma"] and port["up"]:
                for key in ("pcie_width", "pcie_generation", "numa_node"):
                    values.setdefault((port["name"], key), {})[node] = port.get(key)
    for (name, key), by_node in values.items():
        counts = Counter(value for value in by_node.values() if value is not None)
        if len(counts) < 2:
            continue
        usual, count = counts.most_common(1)[0]
        for node, own in by_node.items():
            if own is not None and (own != usual or 2 * count <= counts.total()):
                yield f"node {node}", "alike", f"{name}: {key} is {own}; on {count} of {counts.total()} nodes {usual}"


def _switches(records: Sequence[Record]) -> Iterator[Finding]:
    """As many NVLinks of every GPU of a model lead to switches; others lead to a GPU, or to something unknown."""
    counts: dict[Any, dict[str, int]] = {}
    for record in records:
        if peers := reading_of(record, "before").get("nvlink_peers"):
            counts.setdefault(record.result("presence").get("device_name"), {})[record.subject] = peers.get("switch", 0)
    for of_model in counts.values():
        usual, most = Counter(of_model.values()).most_common(1)[0]
        for subject, count in of_model.items():
            if count != usual:
                yield subject, "alike", f"{count} of its NVLinks lead to a switch; of {most} others {usual}"


def _fabrics(records: Sequence[Record]) -> Iterator[Finding]:
    """All modules of a node are in one part of one NVLink domain."""
    for own in links.by_node(records).values():
        places = {}
        for record in own:
            fabric, known = reading_of(record, "before").get("fabric"), links.board_of(record)
            if fabric and known is not None and known.wired:
                places[record.subject] = (fabric.get("cluster"), fabric.get("clique"))
        counts = Counter(places.values())
        for subject, place in places.items() if len(counts) > 1 else ():
            usual, count = counts.most_common(1)[0]
            if place != usual or 2 * count <= len(places):
                yield subject, "alike", f"part {place[1]} of its NVLink domain; {count} of its node are in {usual[1]}"


def _durations(records: Sequence[Record]) -> Iterator[Finding]:
    """Repetitions are timed for the same time on all: who has far fewer at its pace stood still between them."""
    for title, figure in _TIMED.items():
        spent: dict[Any, dict[str, float]] = {}
        for record in records:
            if record.measured("steadiness") and record.gpu is not None:
                own = figure(record.result("steadiness"))
                if own and own.get("samples") and own.get("mean_seconds"):
                    model = record.result("presence").get("device_name")
                    spent.setdefault(model, {})[record.subject] = own["samples"] * own["mean_seconds"]
        for of_model in spent.values():
            middle = median(of_model.values())
            for subject, seconds in of_model.items():
                if len(of_model) > 2 and seconds < LEAST_OF_LOAD * middle:
                    evidence = f"steadiness: its {title} add up to {seconds:.3g} s, those of others to {middle:.3g}"
                    yield subject, "complete", evidence


_TIMED: dict[str, Callable[[dict[str, Any]], dict[str, Any] | None]] = {
    "products": lambda result: result.get("products"),
    "copies to the device": lambda result: (result.get("copies") or {}).get("to_device"),
    "copies to the host": lambda result: (result.get("copies") or {}).get("to_host"),
}


def _peaks(records: Sequence[Record]) -> Iterator[Finding]:
    """One model and batch needs as much memory on all GPUs of one model."""
    peaks: dict[Any, dict[str, float | None]] = {}
    totals = {record.subject: record.result("presence").get("memory_bytes") or 0.0 for record in records}
    for record in records:
        if record.measured("training") and record.gpu is not None:
            model = record.result("presence").get("device_name")
            peaks.setdefault(model, {})[record.subject] = record.result("training").get("memory_peak_bytes")
    for of_model in peaks.values():
        known = [value for value in of_model.values() if value]
        for subject, value in of_model.items():
            if value and totals.get(subject) and value > totals[subject]:
                yield subject, "consistent", f"its training took {value / 2**30:.0f} GiB, and it has less memory"
            if known and not value:
                yield subject, "complete", "the training's peak of memory is not recorded, others have it"
            elif value and len(known) > 1 and times_as_much(value, median(known)) > SAME_PEAK:
                evidence = (
                    f"its training took {value / 2**20:.0f} MiB at most, that of others {median(known) / 2**20:.0f}"
                )
                yield subject, "consistent", evidence


def _clocks(records: Sequence[Record]) -> Iterator[Finding]:
    """All come to the end together: who says another time has another clock."""
    times = {
        record.node: float(record.result("after")["time"]) for record in records if record.result("after").get("time")
    }
    if len(times) < 2:
        return
    middle = median(times.values()) if len(times) > 2 else max(times.values())
    for node, own in times.items():
        if abs(own - middle) > CLOCK_SECONDS:
            evidence = (
                f"its clock is {abs(own - middle):.0f} s {'behind' if own < middle else 'ahead'} (chronyc tracking)"
            )
            yield f"node {node}", "consistent", evidence


def _messages(records: Sequence[Record]) -> Iterator[Finding]:
    """The same program ran on all ranks: operations, sizes and repetitions."""
    there = [record for record in records if record.measured("collectives")]
    plans = {record.rank: [(one["operation"], one["bytes"], len(one["seconds"]))
                           for one in record.result("collectives")["measurements"]] for record in there}  # fmt: skip
    usual = Counter(map(str, plans.values())).most_common(1)
    for record in there:
        plan = plans[record.rank]
        sizes: dict[str, list[int]] = {}
        for operation, size, _ in plan:
            sizes.setdefault(operation, []).append(size)
        if str(plan) != usual[0][0]:
            yield record.subject, "consistent", "its operations, sizes or repetitions are not those of other ranks"
        if missing := [operation for operation in BUS_FACTORS if len(sizes.get(operation, ())) < FEWEST_SIZES]:
            yield record.subject, "complete", f"too few sizes of {', '.join(missing)}"
        if unknown := sorted(set(sizes) - set(BUS_FACTORS)):
            yield record.subject, "consistent", f"operations that this test does not have: {', '.join(unknown)}"
        orders = {tuple(own) for own in sizes.values()}
        if len(orders) > 1 or any(list(own) != sorted(set(own)) for own in orders):
            yield record.subject, "consistent", "its operations have other sizes than each other, or some twice"


def _meetings(records: Sequence[Record]) -> Iterator[Finding]:
    """Who met whom, both say so; and nobody met fewer than there were rounds."""
    met = {record.rank: [one["partner"] for one in record.result("pairs")["met"]]
           for record in records if record.measured("pairs")}  # fmt: skip
    for record in records:
        if record.rank not in met:
            continue
        partners = met[record.rank]
        least = min(len(records) - 1, MOST_ROUNDS - len(records) % 2)
        if len(partners) < least or len(set(partners)) < len(partners) or record.rank in partners:
            evidence = f"it met {len(set(partners))} others in {len(partners)} meetings, of at least {least}"
            yield record.subject, "complete", evidence
        if odd := [other for other in partners if other in met and record.rank not in met[other]]:
            yield record.subject, "consistent", f"it met rank {odd[0]}, which did not meet it"
        if odd := [other for other in partners if other >= len(records)]:
            yield record.subject, "consistent", f"it met rank {odd[0]}, which there is not"


def _both_ends(records: Sequence[Record]) -> Iterator[Finding]:
    """A message each way takes both ends as long."""
    seconds = {(record.rank, one["partner"]): one["seconds"] for record in records if record.measured("pairs")
               for one in record.result("pairs")["met"]}  # fmt: skip
    subjects = {record.rank: record.subject for record in records}
    for (rank, partner), own in seconds.items():
        other = seconds.get((partner, rank))
        if rank < partner and other is not None and times_as_much(own, other) > ALIKE:
            evidence = f"its messages with {subjects[partner]} took {own:.3g} s, by the other end {other:.3g} s"
            yield subjects[rank], "consistent", evidence
    nodes = [record for record in records if record.local_rank == 0 and record.measured("adapters")]
    rows = [(record, row) for record in nodes for row in record.result("adapters")["measured"]]
    alone = Counter(record.node for record, row in rows if row["server"] is None)
    across = Counter(record.node for record, row in rows if row["server"] is not None)
    planned = Counter(client for pairs in rounds([record.rank for record in nodes]) for _, client in pairs)
    for record in nodes:
        if alone[record.node] < max(alone.values(), default=0):
            yield (
                f"node {record.node}",
                "complete",
                f"{alone[record.node]} of its adapters were measured, fewer than elsewhere",
            )
        least = planned[record.rank] * min(alone.values(), default=0)
        if across[record.node] < least:
            yield (
                f"node {record.node}",
                "complete",
                f"{across[record.node]} of {least} rates to another node were measured",
            )


def _epochs(records: Sequence[Record]) -> Iterator[Finding]:
    """Under DDP all ranks go through the same steps at one pace, and learn alike."""
    there = [record for record in records if record.measured("training") and record.result("training")["epochs"]]
    if len(there) < 2:
        return
    steps: dict[int, list[int]] = {
        record.rank: [len(epoch["losses"]) for epoch in record.result("training")["epochs"]] for record in there
    }
    usual = Counter(map(str, steps.values())).most_common(1)[0][0]
    alone = {record.rank: len(record.result("training")["alone_seconds"]) for record in there}
    read: dict[str, Callable[[dict[str, Any]], float]] = {
        "images/s": lambda epoch: epoch["images_per_second"],
        "loss": lambda epoch: fmean(abs(loss) for loss in epoch["losses"]),
    }
    for record in there:
        if str(steps[record.rank]) != usual:
            yield record.subject, "consistent", f"it trained {steps[record.rank]} steps, others {usual}"
        if alone[record.rank] < max(alone.values()):
            yield record.subject, "complete", "fewer steps without the others than on other ranks"
    for name, value in read.items():
        for epoch in range(min(map(len, steps.values()))):
            values = [value(record.result("training")["epochs"][epoch]) for record in there]
            if not all(0 < one < float("inf") for one in values):
                continue
            for record, ratio in zip(there, against_peers(values), strict=True):
                if ratio is not None and times_as_much(ratio, 1.0) > SAME_LOSS:
                    yield record.subject, "consistent", f"epoch {epoch}: its {name} is {ratio:.2f} times that of others"
