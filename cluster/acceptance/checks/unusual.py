"""Every figure of a record against the same figure of its siblings, and against what sound machines show.

The other checks know what a figure means, and have bounds for it. These know its unit alone, and hold for all of the
ledger: a GPU, port or node that stands out from its siblings, and figures that no sound machine of the tests shows, are
in the banner, although they pass all bounds. Far from its siblings a figure is no pass.
"""

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import pairwise
from statistics import median
from typing import Any

from cluster.acceptance import ledger
from cluster.acceptance.checks import shapes, surroundings
from cluster.acceptance.checks.contradictions import gradients_seconds
from cluster.acceptance.checks.pairs import met
from cluster.acceptance.checks.surroundings import Oddity
from cluster.acceptance.checks.usual import COUNTED, FLOORS, HELD, NEVER, OF, RATES, UNITS, USUAL, Floor
from cluster.acceptance.hardware import pcie_bytes_per_second
from cluster.acceptance.records import TOOK, Record, percentile
from cluster.acceptance.verdict import UNUSUAL, Check, Part, Status

FEWEST, FEWEST_NODES, FEWEST_PAIRS = 4, 3, 10
"""Siblings, below which nobody knows which one is unusual."""
SIGMAS, TO_SIGMA = 8.0, 1.4826
"""Of the siblings' own spread; a median deviation is so much of a standard deviation."""
FAR = 4.0
"""Times the distance at which a figure stands out: then it is no pass."""
APART = 3.0
"""Times the spread within two groups, that is between them."""
OF_FEW = 1.5
"""Times the floor, that two or three may differ by."""
OF_A_NODE, OF_A_LARGE_NODE = 0.7, 0.4
"""Of that distance, for the median of a node's GPUs: these vary less than single ones, of four and more still less."""
ALONE = 3.0
"""Times the longest that is usual, that a stage took some ranks."""
PACKETS = 0.85
"""Of a slot, that packets leave for data."""
MOST_SHOWN = 3
SINGLE = (TOOK, "before", "after", "presence", "copies", "bandwidth", "compute", "steadiness", "memory", "load",
          "gradients", "training", "collectives")  # fmt: skip
"""Stages whose figures each GPU has by itself."""
PRODUCTS = "steadiness.products.p50_seconds"
PARTS: dict[str, Part] = {"before": "health", "after": "health", "change": "health", "training": "training",
                          "network": "network"}  # fmt: skip


def judge(records: Sequence[Record]) -> list[Check]:
    """A check for each GPU, node or port that stands out; nothing of virtual GPUs, whose clock is not real."""
    real = [record for record in records if record.gpu is not None and record.result("presence").get("nccl")]
    models: dict[Any, dict[str, dict[str, float]]] = {}
    nodes: dict[Any, dict[str, list[dict[str, float]]]] = {}
    for record in real:
        model, own = record.result("presence").get("device_name"), dict(figures(record))
        models.setdefault(model, {})[record.subject] = own
        nodes.setdefault(model, {}).setdefault(f"node {record.node}", []).append(own)
    found: list[Oddity] = []
    for of_model in models.values():
        found += _outlying(of_model, fewest=FEWEST)
        found += _beyond(of_model)
    found += surroundings.found(real)
    for of_nodes in nodes.values():
        scale = OF_A_LARGE_NODE if min(map(len, of_nodes.values())) >= FEWEST else OF_A_NODE
        found += _outlying({node: _middle(own) for node, own in of_nodes.items()}, fewest=FEWEST_NODES, scale=scale)
    for of_kind in _pairs(real).values():
        found += _outlying(of_kind, fewest=FEWEST_PAIRS)
    for of_kind in _ports(real).values():
        found += [*_outlying(of_kind, fewest=FEWEST), *_beyond(of_kind)]
    ranks = {record.subject: record.rank for record in records}
    return list(_checks(found, ranks))


def figures(record: Record) -> Iterator[tuple[str, float]]:
    """All figures that a GPU has by itself, by their place; and how each changed in the run."""
    both: dict[str, dict[str, float]] = {"before": {}, "after": {}}
    seen: dict[str, float] = {}
    for stage in SINGLE:
        if not record.measured(stage):
            continue
        if stage == "after" and _idle(record):
            yield "idle after the work", 1.0
            continue
        for path, value in _numbers(record.result(stage), ledger.PREFIXES.get(stage, stage)):
            if stage in both:
                both[stage][path] = value
                path = f"{stage} {path}"
            seen[path] = value
            if not _held(path):
                yield path, value
    if "power_cap" in _reasons(record):  # which is why its clock is lower
        seen.pop("after reading.sm_clock_hertz", None)
    yield from _shares(seen)
    yield from _of_gpus(record)
    yield from _step(record)
    if (pace := seen.get("load.series.products_per_second")) and (own := seen.get(PRODUCTS)):
        yield "load.series.products_per_second of single products", pace * own
    if (times := record.times) and {"time"} <= both["before"].keys() & both["after"].keys():
        elapsed = both["after"]["time"] - both["before"]["time"]
        yield "time that no stage took", elapsed - sum(value for stage, value in times.items() if stage != "before")
    for path, value in both["before"].items():
        if path in both["after"] and not _held(f"change {path}"):
            asked = record.times.get("load", 0.0) if path == "time" else 0.0
            yield f"change {path}", both["after"][path] - value - asked


def _shares(seen: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    for part, whole in OF:
        if part in seen and seen.get(whole):
            yield f"{part} of {whole}", seen[part] / seen[whole]
    rates = [value for path, value in seen.items() if path.startswith("training.epochs.images_per_second of epoch")]
    if len(rates) > 1:
        # The first steps choose kernels, so that the first epoch may be slow.
        yield "training.epochs.images_per_second of the best one", min(rates[1:]) / max(rates)


def _step(record: Record) -> Iterator[tuple[str, float]]:
    """A step of the training without its all-reduce, against both passes without the others."""
    if record.measured("training") and (alone := median(record.result("training")["alone_seconds"] or [0.0])):
        result = record.result("training")
        if len(result["epochs"]) > 1:
            first, last = (percentile(result["epochs"][place]["own_seconds"], 25) for place in (0, -1))
            yield "training.epochs.own_seconds of the last epoch of the first", last / first
        best = max(epoch["images_per_second"] for epoch in result["epochs"])
        yield "training step of both passes", (result["batch_size"] / best - gradients_seconds(record)) / alone


def _of_gpus(record: Record) -> Iterator[tuple[str, float]]:
    """What the host has for each of its GPUs."""
    presence = record.result("presence")
    own, count, memory = (presence.get(key) for key in ("host", "seen_by_cuda", "memory_bytes"))
    if own and own.get("up_seconds") and own.get("memory_errors"):
        hours = max(own["up_seconds"] / 3600, 1.0)
        yield "presence.host.memory_errors in an hour", own["memory_errors"][0] / hours
    if not own or not count:
        return
    if processors := [own[key] for key in ("processors", "processors_allowed") if own.get(key)]:
        yield "presence.host.processors of each GPU", min(processors) / count
    if memory:
        for key in ("memory_bytes", "memory_available_bytes"):
            if own.get(key):
                yield f"presence.host.{key} of that of its GPUs", own[key] / count / memory


def _idle(record: Record) -> bool:
    """Whether the last reading came too late: then it says nothing of work."""
    return "idle" in _reasons(record)


def _reasons(record: Record) -> Sequence[str]:
    return (record.result("after").get("reading") or {}).get("throttle_reasons") or ()


def _numbers(value: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _numbers(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        yield from _series(value, path)
    elif path.endswith("xids_before"):
        yield path, float(len(value or ()))
    elif isinstance(value, list) and value and all(isinstance(one, float) for one in value) and "slowed" not in path:
        yield path, float(median(value))
        yield from shapes.of_list(value, path)
    elif isinstance(value, list):
        yield from ((f"{path} {place}", float(one)) for place, one in enumerate(value) if isinstance(one, int | float))
    elif isinstance(value, bool | int | float):
        yield path, float(value)


def _series(rows: Sequence[dict[str, Any]], path: str) -> Iterator[tuple[str, float]]:
    """Epochs by their number, all samples of a load together."""
    if path == "collectives.measurements":
        yield from shapes.of_messages(rows)
        return
    if path.endswith("epochs"):
        for number, row in enumerate(rows):
            yield from ((f"{name} of epoch {number}", value) for name, value in _numbers(row, path))
        return
    for key in rows[0]:
        values = [float(row[key]) for row in rows if isinstance(row.get(key), int | float)]
        if values and key != "seconds":
            yield f"{path}.{key}", float(median(values))
            yield f"{path}.{key} at most", max(values)
            yield f"{path}.{key} at least", min(values)
            quarter = len(values) // 4
            if key in ("products_per_second", "sm_clock_hertz") and quarter and (first := median(values[:quarter])):
                yield f"{path}.{key} end of start", median(values[-quarter:]) / first


@lru_cache(maxsize=4096)
def _held(path: str) -> bool:
    name = path.removeprefix("change ").removeprefix("before ").removeprefix("after ")
    return any(fnmatchcase(path, pattern) or fnmatchcase(name, pattern) for pattern in HELD)


@lru_cache(maxsize=4096)
def _unit(path: str) -> str | None:
    field = path.removeprefix("change ").removeprefix("before ").removeprefix("after ").partition(" ")[0]
    entry = ledger.entry(field)
    return ledger.readings()[entry].unit if entry is not None else None


@lru_cache(maxsize=4096)
def _words(path: str) -> str:
    """For people: "reading.power_watts, power drawn, W before the run:"."""
    if any(path == f"{part} of {whole}" for part, whole in OF) or path.endswith(" of the best one"):
        return f"{path}:"
    when, _, rest = path.partition(" ") if path.startswith(("before ", "after ", "change ")) else ("", "", path)
    field, _, more = rest.partition(" ")
    entry = ledger.entry(field)
    if entry is None:
        return path
    known = ledger.readings()[entry]
    unit = f", {known.unit}" if known.unit not in ("", "1") else ""
    words = {"before": "before the run", "after": "after it", "change": "its change", "": ""}[when]
    return " ".join(word for word in (f"{field}, {known.meaning}{unit}", words, more) if word) + ":"


@lru_cache(maxsize=4096)
def _floor(path: str) -> Floor:
    for pattern, floor in FLOORS.items():
        if fnmatchcase(path, pattern):
            return floor
    unit = _unit(path)
    return RATES if unit is None else UNITS.get(unit, RATES)


@lru_cache(maxsize=4096)
def _usual(path: str) -> tuple[float, float] | None:
    return next((bounds for pattern, bounds in USUAL.items() if fnmatchcase(path, pattern)), None)


def _middle(own: Sequence[Mapping[str, float]]) -> dict[str, float]:
    paths = set(own[0]).intersection(*own[1:]) if own else set()
    return {path: median(figures[path] for figures in own) for path in paths}


def _outlying(figures: Mapping[str, Mapping[str, float]], *, fewest: int, scale: float = 1.0) -> Iterator[Oddity]:
    """Who is further from the middle than the others' spread, and a floor, explain."""
    paths = dict.fromkeys(path for own in figures.values() for path in own)
    for path in paths:
        values = {subject: own[path] for subject, own in figures.items() if path in own}
        if len(values) < fewest:
            # Sound pairs over PCIe differ by 40 %.
            yield from _differing(path, values, scale) if fewest < FEWEST_PAIRS else ()
            continue
        if (halves := _halves(path, values, scale)) is not None:
            yield halves
            continue
        middle = median(values.values())
        spread = TO_SIGMA * median(abs(value - middle) for value in values.values())
        floor = _floor(path)
        allowed = max(SIGMAS * spread, scale * (floor.share * abs(middle) + floor.amount))
        for subject, value in values.items():
            distance = abs(value - middle)
            if distance > allowed:
                evidence = f"{_words(path)} {value:.4g}, the median of its siblings is {middle:.4g}"
                far = distance > FAR * allowed and _unit(path) not in COUNTED
                yield Oddity(subject=subject, name=path, evidence=evidence, far=far)


def _halves(path: str, values: Mapping[str, float], scale: float) -> Oddity | None:
    """Two groups with nothing between them, each of many: no median tells which is usual."""
    ordered = sorted(values, key=lambda subject: values[subject])
    gaps = [values[after] - values[now] for now, after in pairwise(ordered)]
    place = max(range(len(gaps)), key=lambda number: gaps[number]) + 1
    groups = ordered[:place], ordered[place:]
    fewer = min(groups, key=len)
    if len(fewer) < 2 or 3 * len(fewer) < len(ordered):
        return None
    floor, spread = _floor(path), max(values[group[-1]] - values[group[0]] for group in groups)
    middle = abs(values[groups[1][0]])
    if gaps[place - 1] <= max(APART * spread, scale * (floor.share * middle + floor.amount)):
        return None
    low, high = values[groups[0][-1]], values[groups[1][0]]
    evidence = f"{_words(path)} {low:.4g} at most on {len(groups[0])}, {high:.4g} at least on {len(groups[1])}"
    return Oddity(subject=" and ".join(fewer[:MOST_SHOWN]), name=path, evidence=evidence)


def _differing(path: str, values: Mapping[str, float], scale: float) -> Iterator[Oddity]:
    """Of two or three that are far from each other, all: nobody knows which one is unusual."""
    if len(values) < 2:
        return
    floor, low, high = _floor(path), min(values.values()), max(values.values())
    if high - low > OF_FEW * scale * (floor.share * max(abs(low), abs(high)) + floor.amount):
        shown = ", ".join(f"{value:.4g}" for value in values.values())
        yield Oddity(subject=" and ".join(values), name=path, evidence=f"{_words(path)} {shown}, unlike each other")


def _beyond(figures: Mapping[str, Mapping[str, float]]) -> Iterator[Oddity]:
    """Figures that no sound machine shows, on whomever."""
    places: dict[str, dict[str, float]] = {}
    for subject, own in figures.items():
        for path, value in own.items():
            if (bounds := _usual(path)) is not None and not bounds[0] <= value <= bounds[1]:
                places.setdefault(path, {})[subject] = value
    for path, values in places.items():
        low, high = _usual(path) or (0.0, 0.0)
        subject, worst = max(values.items(), key=lambda item: max(low - item[1], item[1] - high))
        usual = f"{low:g} to {high:g}" if high else f"{high:g}"
        evidence = f"{_words(path)} {worst:.4g}, usual is {usual} (so on {len(values)} of {len(figures)})"
        # A stage that is much too long on some ranks alone: what these read from is not what the others read from.
        alone = path.startswith(TOOK) and len(values) < len(figures) and worst > ALONE * high
        yield Oddity(subject=subject, name=path, evidence=evidence, far=path in NEVER or alone)


def _pairs(records: Sequence[Record]) -> dict[str, dict[str, dict[str, float]]]:
    """Seconds of each pair, by what joins it."""
    groups: dict[str, dict[str, dict[str, float]]] = {}
    for pair in met(records):
        subject = " and ".join(end.subject for end in pair.ends)
        groups.setdefault(pair.kind, {})[subject] = {"pairs.met.seconds": pair.seconds}
    return groups


def _ports(records: Sequence[Record]) -> dict[tuple[Any, ...], dict[str, dict[str, float]]]:
    """Figures of all ports that are up, by kind and rate: before the run, and what is new after it."""
    groups: dict[tuple[Any, ...], dict[str, dict[str, float]]] = {}
    for record in records:
        measured = {(row["adapter"], row["server"]): row["gigabits"]
                    for row in record.result("adapters").get("measured") or () if row["gigabits"]}  # fmt: skip
        after = {port["name"]: port for port in record.result("network_after").get("ports") or ()}
        for port in record.result("network").get("ports") or ():
            if port["up"]:
                counts = {f"network.ports.counters.{name}": float(count) for name, count in port["counters"].items()}
                now = after.get(port["name"], port)["counters"]
                counts |= {f"change network.ports.counters.{name}": float(now[name] - count)
                           for name, count in port["counters"].items() if name in now}  # fmt: skip
                counts |= {
                    f"adapters.measured.gigabits {'to itself' if server is None else 'to another node'}": rate
                    for (name, server), rate in measured.items()
                    if name == port["name"]
                }
                if gigabits := _line(port):
                    for where in ("to itself", "to another node"):
                        if f"adapters.measured.gigabits {where}" in counts:
                            share = counts[f"adapters.measured.gigabits {where}"] / gigabits
                            own = counts.get("adapters.measured.gigabits of its line", share)
                            counts["adapters.measured.gigabits of its line"] = min(own, share)
                itself = counts.get("adapters.measured.gigabits to itself")
                if itself and "adapters.measured.gigabits to another node" in counts:
                    share = counts["adapters.measured.gigabits to another node"] / itself
                    counts["adapters.measured.gigabits to another node of that to itself"] = share
                if port.get("numa_node") is not None:
                    counts["network.ports.numa_node"] = float(port["numa_node"])
                if port.get("mtu") is not None:
                    counts[f"network.ports.mtu{' of RDMA' if port['rdma'] else ''}"] = float(port["mtu"])
                key = (port["kind"], port["rdma"], port["rate_gigabits"])
                groups.setdefault(key, {})[f"node {record.node} port {port['name']}"] = counts
    return groups


def _line(port: Mapping[str, Any]) -> float:
    """Gbit/s that its line and its slot allow."""
    slot = pcie_bytes_per_second(port.get("pcie_generation"), port.get("pcie_width"))
    return min(port["rate_gigabits"] or 0.0, PACKETS * slot * 8e-9 if slot else 1e9)


def _checks(found: Sequence[Oddity], ranks: Mapping[str, int]) -> Iterator[Check]:
    """One for each subject."""
    by_subject: dict[str, list[Oddity]] = {}
    for oddity in found:
        by_subject.setdefault(oddity.subject, []).append(oddity)
    for subject, oddities in by_subject.items():
        oddities.sort(key=lambda oddity: not oddity.far)
        evidence = "; ".join(oddity.evidence for oddity in oddities[:MOST_SHOWN])
        evidence += f"; and {len(oddities) - MOST_SHOWN} more" if len(oddities) > MOST_SHOWN else ""
        status: Status = "unverified" if any(oddity.far for oddity in oddities) else "pass"
        stage = oddities[0].name.replace(" ", ".").partition(".")[0]
        yield Check(
            name=UNUSUAL, part=PARTS.get(stage, "gpu"), subject=subject, rank=ranks.get(subject), status=status,
            evidence=evidence, remedy="what is different there? Compare it with the others (nvidia-smi -q, ibstat)",
        )  # fmt: skip
