"""What cannot be true together: two fields of one record, or of two, of which one follows from the other.

Each is a function that yields subject, question and what was seen; `consistency` makes checks of them.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from cluster.acceptance.checks import links
from cluster.acceptance.checks.adapters import rounds
from cluster.acceptance.checks.collectives import BUS_FACTORS, STEADY
from cluster.acceptance.checks.pairs import MOST_ROUNDS
from cluster.acceptance.form import SUMMARY
from cluster.acceptance.pace import SLOW
from cluster.acceptance.records import Record, against_peers, percentile

Finding = tuple[str, str, str]
SAME, ALIKE, WIDE = 1.02, 1.5, 4.0
"""Times: rounding; the same work at another moment; the same at another size."""
FEWEST_SIZES = 2
MOST_SECONDS = 24 * 3600.0
CLOCK_SECONDS = 60.0
"""Ours: all ranks read NVML after the run within seconds of each other."""
OF_NVML = (0.85, 1.01)
"""CUDA's memory over NVML's: the driver keeps some percent."""
OF_LIMIT = 1.3
"""Times its power limit, which a board may exceed for a moment."""
OF_CLOCK = 1.02
CHANGING = ("power_watts", "energy_joules", "sm_clock_hertz", "utilization_ratio", "memory_used_bytes",
            "temperature_celsius")  # fmt: skip
"""Readings of which some are others after the work."""
LEAST_OF_QUICK = 0.9
"""Ours, of the quick quarter: a mean that is lower has another unit."""
ONE_COPY = 8
"""A copy of `steadiness` is that part of one of `copies`."""
SAME_LOSS = 1.25
SLOWEST, OPTIMIZER_SECONDS = 1.5, 2e-3
"""Times what copy, forward pass, both passes and the gradients' all-reduce take by themselves; and the optimizer."""
GRADIENT_BYTES = 4 * 11_173_962
"""Of the ResNet-18 that is trained."""
BFLOAT16_FROM = 8
"""Major compute capability."""


def found(records: Sequence[Record]) -> Iterator[Finding]:
    """All contradictions."""
    for record in records:
        for of_one in (_board, _energy, _memory, _products, _figures, _trained, _load, _adapters, _gradient):
            for evidence in of_one(record):
                yield record.subject, "consistent", evidence
        for evidence in _ports(record):
            yield f"node {record.node}", "consistent", evidence
    for of_all in (_ranks, _counts, _paths, _clocks, _messages, _meetings, _epochs, _both_ends):
        yield from of_all(records)


def _reading(record: Record, stage: str) -> dict[str, Any]:
    reading = record.result(stage).get("reading") or {}
    return reading if reading.get("up") else {}


def _times(one: float, other: float) -> float:
    """How many times as much the larger one is."""
    low, high = sorted((abs(one), abs(other)))
    return high / low if low else float("inf")


def _board(record: Record) -> Iterator[str]:
    """NVML's board is CUDA's, and its figures are within each other's bounds."""
    presence = record.result("presence")
    for stage in ("before", "after"):
        reading = _reading(record, stage)
        uuid, own = reading.get("uuid"), presence.get("uuid")
        if uuid and own and str(uuid).removeprefix("GPU-") != str(own).removeprefix("GPU-"):
            yield f"{stage}: NVML read the GPU {uuid}, CUDA worked on {own}"
        names = [str(name).casefold() for name in (reading.get("name"), presence.get("device_name")) if name]
        if len(names) == 2 and names[0] not in names[1] and names[1] not in names[0]:
            yield f"{stage}: {reading['name']} by NVML, {presence['device_name']} by CUDA"
        total, memory = reading.get("memory_total_bytes"), presence.get("memory_bytes")
        if total and memory and not OF_NVML[0] <= memory / total <= OF_NVML[1]:
            yield f"{stage}: {total / 2**30:.1f} GiB by NVML, {memory / 2**30:.1f} by CUDA"
        for small, large, factor in (
            ("memory_used_bytes", "memory_total_bytes", 1.0), ("sm_clock_hertz", "sm_clock_max_hertz", OF_CLOCK),
            ("memory_clock_hertz", "memory_clock_max_hertz", OF_CLOCK), ("pcie_width", "pcie_width_max", 1.0),
            ("pcie_generation", "pcie_generation_max", 1.0), ("nvlinks_up", "nvlinks", 1.0),
            ("power_watts", "power_limit_watts", OF_LIMIT),
        ):  # fmt: skip
            value, most = reading.get(small), reading.get(large)
            if value is not None and most is not None and value > factor * most:
                yield f"{stage}: {small} {value:g} is more than {large} {most:g}"
        peers, up = reading.get("nvlink_peers"), reading.get("nvlinks_up")
        joined = sum(count or 0 for count in (peers or {}).values())
        if peers and up is not None and joined != up:
            yield f"{stage}: {up} NVLinks are up, and {joined} have something at their other end"
    before, after = _reading(record, "before"), _reading(record, "after")
    if after.get("memory_used_bytes") == 0:
        yield "after: no memory is in use, though this process has some"
    changing = [name for name in CHANGING if before.get(name) is not None]
    if changing and all(before[name] == after.get(name) for name in changing):
        yield "NVML says the same before and after the work: what it says is old"


def _energy(record: Record) -> Iterator[str]:
    before, after = _reading(record, "before"), _reading(record, "after")
    began, ended = (record.result(stage).get("time") for stage in ("before", "after"))
    if began and ended and ended <= began:
        yield "the clock of its node went back while the test ran"
    if began and ended and ended - began > MOST_SECONDS:
        yield f"by its node's clock the test took {(ended - began) / 3600:.0f} hours"
    first, last = before.get("energy_joules"), after.get("energy_joules")
    if first is None or last is None:
        return
    used = last - first
    if used == 0:
        yield "the energy counter stood still while it worked: NVML shows what is old, or another GPU"
    limit = after.get("power_limit_watts")
    if began and ended and ended > began and limit and used > OF_LIMIT * limit * (ended - began):
        yield f"{used:.0f} J in {ended - began:.0f} s is more than its limit of {limit:.0f} W"


def _memory(record: Record) -> Iterator[str]:
    if not record.measured("memory"):
        return
    result, own = record.result("memory"), record.result("presence").get("memory_bytes")
    if result["tested_bytes"] > result["total_bytes"]:
        yield "more memory was tested than there is"
    if own and _times(own, result["total_bytes"]) > SAME:
        yield f"memory: {result['total_bytes'] / 2**30:.1f} GiB for the patterns, {own / 2**30:.1f} by its properties"
    if set(result["wrong"]) != set(result["first_byte"]):
        yield "memory: wrong words and their places are not of the same patterns"


def _products(record: Record) -> Iterator[str]:
    """TFLOPS follow from the times; the precisions from the chip."""
    if not record.measured("compute"):
        return
    result, presence = record.result("compute"), record.result("presence")
    work = 2 * result["rows"] ** 2 * result["depth"] / 1e12
    for name, product in result["products"].items():
        tflops = work / median(product["seconds"])
        if _times(tflops, product["tflops"]) > SAME:
            yield f"product {name}: {product['tflops']:.4g} TFLOPS, {tflops:.4g} by its times"
        if len(product["seconds"]) != len(next(iter(result["products"].values()))["seconds"]):
            yield f"product {name}: {len(product['seconds'])} repetitions, others have another number"
    if record.gpu is not None:
        major = (presence.get("compute_capability") or [0])[0]
        needed = ["float32", "float16", *(["bfloat16"] if major >= BFLOAT16_FROM else [])]
        if missing := [name for name in needed if name not in result["products"]]:
            yield f"no product in {', '.join(missing)}, which this chip has"
        if major < BFLOAT16_FROM and "bfloat16" in result["products"]:
            yield f"a product in bfloat16 on a chip of compute capability {presence.get('compute_capability')}"


def _summaries(record: Record) -> Iterator[tuple[str, dict[str, Any]]]:
    if record.measured("steadiness"):
        result = record.result("steadiness")
        yield "steadiness.products", result["products"]
        for way, figure in result["copies"].items():
            yield f"steadiness.copies.{way}", figure
        if missing := {"to_device", "to_host"} - set(result["copies"]):
            yield f"steadiness.copies.{missing.pop()}", {}
    if record.measured("collectives"):
        yield "collectives.steady", record.result("collectives")["steady"]


def _figures(record: Record) -> Iterator[str]:
    """Figures of repetitions: in their order, and as other stages measured the same."""
    for name, figure in _summaries(record):
        missing = [key for key in SUMMARY if figure.get(key) is None]
        if missing:
            yield f"{name}: no {', '.join(missing)}"
            continue
        order = [figure[key] for key in SUMMARY[1:6]]
        if any(now > following for now, following in pairwise(order)):
            yield f"{name}: its percentiles are not in order"
        quick, mean = figure["p25_seconds"], figure["mean_seconds"]
        if not LEAST_OF_QUICK * quick <= mean <= figure["longest_seconds"]:
            yield f"{name}: the mean {mean:.3g} s is not between the quick quarter and the longest"
        slow = [share for share, key in ((0.5, "p50_seconds"), (0.05, "p95_seconds"), (0.01, "p99_seconds"))
                if figure[key] > SLOW * quick]  # fmt: skip
        if not 0 <= figure["slow_share"] <= 0.75 or (slow and figure["slow_share"] < slow[0] * 0.9):
            yield f"{name}: {figure['slow_share']:.1%} slow ones do not go with its percentiles"
    if record.result("presence").get("nccl") is None:  # a virtual GPU's clock is not real
        return
    yield from _again(record)


def _again(record: Record) -> Iterator[str]:
    """The same work in two stages."""
    compute, steady = record.result("compute"), record.result("steadiness")
    if record.measured("steadiness"):
        half = (compute.get("products") or {}).get("float16")
        quick = steady["products"]["p25_seconds"]
        if half and _times(median(half["seconds"]), quick) > ALIKE:
            yield f"a product in float16 took {median(half['seconds']):.3g} s, then {quick:.3g} s in the quick quarter"
        for way, own in (record.result("copies").get("seconds") or {}).items() if record.measured("copies") else ():
            figure = steady["copies"].get(way)
            if figure and _times(own / ONE_COPY, figure["p25_seconds"]) > 2 * ALIKE:
                yield f"a copy {way} took {own:.3g} s, one of an eighth {figure['p25_seconds']:.3g} s"
    if record.measured("collectives"):
        result = record.result("collectives")
        small = [one for one in result["measurements"] if one["operation"] == STEADY]
        if small and result["steady"]["operation"] != STEADY:
            yield f"small messages were {result['steady']['operation']}, not {STEADY}"
        if small and result["steady"]["bytes"] != small[0]["bytes"]:
            yield f"small messages of {result['steady']['bytes']} bytes, the smallest has {small[0]['bytes']}"
        elif small and _times(median(small[0]["seconds"]), result["steady"]["p50_seconds"]) > WIDE:
            yield (
                f"{STEADY} of {small[0]['bytes']} bytes: {median(small[0]['seconds']):.3g} s, then "
                f"{result['steady']['p50_seconds']:.3g} s"
            )


def _trained(record: Record) -> Iterator[str]:
    """A step is longer than its parts."""
    if not record.measured("training"):
        return
    result = record.result("training")
    if not result["epochs"]:
        yield "training: no epoch"
    if result["data"] != record.result("data").get("data", result["data"]):
        yield f"trained on {result['data']}, and loaded {record.result('data')['data']}"
    for epoch in result["epochs"]:
        if len(epoch["losses"]) != len(epoch["own_seconds"]):
            yield f"training: {len(epoch['losses'])} losses of {len(epoch['own_seconds'])} steps"
        parts = {
            "forward": percentile(epoch["own_seconds"], 25),
            "forward and backward": median(result["alone_seconds"]),
        }
        for name, seconds in parts.items():
            if record.gpu is not None and epoch["images_per_second"] > ALIKE * result["batch_size"] / seconds:
                yield (
                    f"training: {epoch['images_per_second']:.0f} images/s, {name} alone allows "
                    f"{result['batch_size'] / seconds:.0f}"
                )
        longest = SLOWEST * (sum(parts.values()) + _gradients_seconds(record)) + OPTIMIZER_SECONDS
        step = result["batch_size"] / epoch["images_per_second"]
        if record.gpu is not None and record.result("presence").get("nccl") and step > longest:
            yield f"training: a step took {step:.3g} s, its parts {longest:.3g} s at most"
        if any(loss < 0 for loss in epoch["losses"]) or (epoch["losses"] and max(epoch["losses"]) == 0):
            yield "training: a cross entropy is above 0"


def _gradients_seconds(record: Record) -> float:
    """An all-reduce of them, by a line between the smallest and the largest that was measured."""
    if not record.measured("collectives"):
        return 0.0
    rows = [row for row in record.result("collectives")["measurements"] if row["operation"] == STEADY]
    if len(rows) < FEWEST_SIZES:
        return 0.0
    first, last = rows[0], rows[-1]
    small, large = median(first["seconds"]), median(last["seconds"])
    share = (GRADIENT_BYTES - first["bytes"]) / max(1, last["bytes"] - first["bytes"])
    return float(small + max(0.0, large - small) * max(0.0, share))


def _load(record: Record) -> Iterator[str]:
    if not record.measured("load"):
        return
    result = record.result("load")
    series = result["series"]
    if not series:
        yield "load: no sample"
        return
    keys = Counter(key for sample in series for key, value in sample.items() if value is not None)
    if odd := [key for key, count in keys.items() if count < len(series)]:
        yield f"load: {', '.join(odd)} is not in every sample"
    times = [sample["seconds"] for sample in series]
    if any(now >= following for now, following in pairwise(times)):
        yield "load: its samples are not in the order of time"
    elif len(times) > 2:
        every = (times[-1] - times[0]) / (len(times) - 1)
        by_pace = sum(sample["products_per_second"] for sample in series) * every
        if _times(by_pace, result["products"]) > ALIKE:
            yield f"load: {result['products']} products, {by_pace:.0f} by its pace"
    if any(sample["products_per_second"] == 0 for sample in series):
        yield "load: a sample without a product"
    limit, most = (_reading(record, "before").get(name) for name in ("power_limit_watts", "sm_clock_max_hertz"))
    if limit and any((sample.get("watts") or 0) > OF_LIMIT * limit for sample in series):
        yield f"load: more power than its limit of {limit:.0f} W"
    if most and any((sample.get("sm_clock_hertz") or 0) > OF_CLOCK * most for sample in series):
        yield f"load: a clock above its highest of {most / 1e6:.0f} MHz"
    half = (record.result("compute").get("products") or {}).get("float16")
    if half and record.result("presence").get("nccl") is not None:
        pace = 1 / median(half["seconds"])
        if _times(pace, median(sample["products_per_second"] for sample in series) or 1e-9) > 1.2 * ALIKE:
            yield f"load: products in float16 had a pace of {pace:.0f} 1/s before it"


def _gradient(record: Record) -> Iterator[str]:
    if record.measured("gradients") and record.gpu is not None and record.result("gradients")["deviation"] <= 0:
        yield "gradient: it deviates by nothing from float64: it was not computed in float32"


def _adapters(record: Record) -> Iterator[str]:
    if not record.measured("adapters"):
        return
    rows = record.result("adapters")["measured"]
    known = {port["name"] for port in record.result("network").get("ports", ())}
    if strangers := sorted({row["adapter"] for row in rows} - known):
        yield f"adapters that are no ports: {', '.join(strangers)}"
    counts = Counter((row["adapter"], row["server"]) for row in rows)
    if again := [adapter for (adapter, _), count in counts.items() if count > 1]:
        yield f"adapters that were measured twice: {', '.join(again)}"
    if any(port["rdma"] and port["up"] for port in record.result("network").get("ports", ())) and not rows:
        yield "no adapter was measured, and there are ports"


def _ports(record: Record) -> Iterator[str]:
    if not record.measured("network"):
        return
    ports = record.result("network")["ports"]
    for stage in ("network", "network_after"):
        names = Counter(port["name"] for port in record.result(stage).get("ports", ()))
        if again := [name for name, count in names.items() if count > 1]:
            yield f"ports that are there twice: {', '.join(again)}"
    used = [port for port in ports if port["rdma"] and port["up"]]
    for key in ("rate_gigabits", "pcie_width", "pcie_width_max", "pcie_generation", "pcie_generation_max", "numa_node"):
        without = [port["name"] for port in used if port.get(key) is None]
        if 0 < len(without) < len(used):
            yield f"{key} is not reported of {', '.join(without)}"
    counted = {frozenset(port["counters"]) for port in used if port["kind"] == used[0]["kind"]}
    if len(counted) > 1:
        yield "its ports of one kind do not have the same counters"
    for port in used:
        for key in ("pcie_width", "pcie_generation"):
            value, most = port.get(key), port.get(f"{key}_max")
            if value and most and value > most:
                yield f"{port['name']}: {key} {value} is more than its most, {most}"
    after = {port["name"]: port for port in record.result("network_after").get("ports", ())}
    for port in ports:
        lost = set(port["counters"]) ^ set(after.get(port["name"], port)["counters"])
        if lost:
            yield f"{port['name']}: counted before or after the run only: {', '.join(sorted(lost))}"
    if new := sorted(set(after) - {port["name"] for port in ports}) if record.measured("network_after") else []:
        yield f"ports that came while the test ran: {', '.join(new)}"


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
        for key in ("seen_by_nvml", "given_by_slurm", "restricted", "seen_by_cuda"):
            if len({result.get(key) for result in there}) > 1:
                shown = ", ".join(str(result.get(key)) for result in there[:8])
                yield f"node {node}", "consistent", f"{key} differs among its ranks: {shown}"
        for result in there[:1]:
            cuda, nvml = result["seen_by_cuda"], result.get("seen_by_nvml")
            if nvml is not None and cuda > nvml:
                yield f"node {node}", "consistent", f"CUDA sees {cuda} GPUs, NVML {nvml}"
            if not result["restricted"] and cuda < len(there):
                yield f"node {node}", "consistent", f"CUDA sees {cuda} GPUs, {len(there)} ranks have one"
        places = Counter(result["index"] for result in there)
        # Where each rank is shown its own GPU alone, all are number 0.
        if there and len(places) < len(there) and set(places) != {0}:
            yield f"node {node}", "consistent", "two ranks have a GPU of one number"


def _paths(records: Sequence[Record]) -> Iterator[Finding]:
    """How PCIe joins two GPUs is the same from both ends, and all of a node are there."""
    for own in links.by_node(records).values():
        kinds = {(record.gpu, other): kind for record in own
                 for other, kind in (_reading(record, "before").get("topology") or {}).items()}  # fmt: skip
        known = {record.rank: len(_reading(record, "before").get("topology") or {}) for record in own}
        for record in own:
            if known[record.rank] < max(known.values()):
                yield record.subject, "complete", f"paths to {known[record.rank]} GPUs, others of its node know more"
        for (gpu, other), kind in kinds.items():
            back = kinds.get((int(other), str(gpu))) if str(other).isdigit() else None
            if back is not None and back != kind:
                yield own[0].subject, "consistent", f"GPU {gpu} to GPU {other}: {kind}, and back: {back}"


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
        if rank < partner and other is not None and _times(own, other) > ALIKE:
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
                if ratio is not None and _times(ratio, 1.0) > SAME_LOSS:
                    yield record.subject, "consistent", f"epoch {epoch}: its {name} is {ratio:.2f} times that of others"
