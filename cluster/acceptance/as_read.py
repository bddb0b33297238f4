"""Values for which nobody has a norm, quoted: lines of the banner, so that who reads the verdict sees what was read.

A check has bounds, siblings or an earlier value to go by. These values have none, or bounds so wide that half or twice
of it would pass. The lowest and the highest of all ranks are shown.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from cluster.acceptance.checks.surroundings import words_of_topology
from cluster.acceptance.records import STAGES, Record, readable

MEGA, GIB, PERCENT, MILLI, MICRO = 1e-6, 2.0**-30, 100.0, 1e3, 1e6
MOST_COUNTERS = 6
UNLIMITED = 1e9
"""In the units that are shown: a limit that is none."""
LEAST_SECONDS = 0.05
"""Of a stage that is quoted."""


@dataclass(frozen=True)
class Quote:
    """One value of a rank."""

    words: str
    """A unit, or what it is; "{}" is where the values go, else they are before the words."""
    keys: tuple[str, ...]
    """Where it is, beginning with the stage."""
    scale: float = 1.0
    of: Callable[[Sequence[float]], float] | None = median
    """Which one of a list; None takes all."""


def _reading(words: str, key: str, scale: float = 1.0) -> tuple[Quote, Quote]:
    return Quote(words, ("before", "reading", key), scale), Quote(words, ("after", "reading", key), scale)


_TWICE = (
    _reading("C", "temperature_celsius"),
    _reading("W", "power_watts"),
    _reading("MHz", "sm_clock_hertz", MEGA),
    _reading("MHz of the memory", "memory_clock_hertz", MEGA),
    _reading("GiB in use", "memory_used_bytes", GIB),
    _reading("% busy", "utilization_ratio", PERCENT),
    _reading("% of the time at the memory", "memory_busy_ratio", PERCENT),
    _reading("PCIe {}", "pcie_generation"),
    _reading("MB/s sent over PCIe", "pcie_sent_bytes_per_second", MEGA),
    _reading("MB/s received", "pcie_received_bytes_per_second", MEGA),
    _reading("state P{}", "performance_state"),
)
_LIMITS = (
    Quote("C allowed", ("before", "reading", "maximum_celsius")),
    Quote("W allowed", ("before", "reading", "power_limit_watts")),
    Quote("MHz at most", ("before", "reading", "sm_clock_max_hertz"), MEGA),
)
_COUNTED = (
    Quote("corrected errors", ("before", "reading", "ecc_corrected")),
    Quote("replays of PCIe", ("before", "reading", "pcie_replays")),
    Quote("errors of NVLink", ("before", "reading", "nvlink_errors")),
    Quote("corrected errors of PCIe", ("before", "reading", "pcie_errors"), of=lambda own: own[0]),
    Quote("s held down by heat or power", ("before", "reading", "slowed_seconds"), of=max),
    Quote("rows remapped", ("before", "reading", "remapped_rows"), of=lambda own: own[0]),
)
_TRAINED = (
    Quote("ms a step", ("training", "epochs", "own_seconds"), MILLI),
    Quote("the longest in {} ms", ("training", "epochs", "own_seconds"), MILLI, max),
    Quote("ms both passes alone", ("training", "alone_seconds"), MILLI),
    Quote("images/s", ("training", "epochs", "images_per_second"), of=None),
    Quote("losses of {}", ("training", "epochs", "losses"), of=None),
    Quote("{} at its end", ("training", "epochs", "losses"), of=lambda own: own[-1]),
    Quote("GiB at most", ("training", "memory_peak_bytes"), GIB),
    Quote("images a step", ("training", "batch_size")),
    Quote("deviation of a gradient {}", ("gradients", "deviation")),
)
_REPEATED = tuple(
    quote
    for what, keys in (
        ("a product", ("steadiness", "products")),
        ("a copy to the device", ("steadiness", "copies", "to_device")),
        ("a copy to the host", ("steadiness", "copies", "to_host")),
        ("a small message", ("collectives", "steady")),
    )
    for quote in (
        Quote(f"{what} in {{}} us", (*keys, "p50_seconds"), MICRO),
        Quote("99 % in {} us", (*keys, "p99_seconds"), MICRO),
        Quote("the longest in {} us", (*keys, "longest_seconds"), MICRO),
        Quote("% slow", (*keys, "slow_share"), PERCENT),
        Quote("times", (*keys, "samples")),
    )
)
_LOADED = (
    Quote("products", ("load", "products")),
    Quote("C", ("load", "series", "celsius"), of=None),
    Quote("W", ("load", "series", "watts"), of=None),
    Quote("MHz", ("load", "series", "sm_clock_hertz"), MEGA, None),
    Quote("products/s", ("load", "series", "products_per_second"), of=None),
)
_HOSTED = tuple(
    Quote(words, ("presence", "host", key), scale)
    for words, key, scale in (
        ("processors", "processors", 1.0),
        ("processors allowed", "processors_allowed", 1.0),
        ("% busy", "busy_ratio", PERCENT),
        ("GiB", "memory_bytes", GIB),
        ("GiB free", "memory_available_bytes", GIB),
        ("GiB swapped", "swapped_bytes", GIB),
        ("GiB of shared memory", "shared_memory_bytes", GIB),
        ("GiB may be locked", "locked_memory_bytes", GIB),
        ("open files", "open_files", 1.0),
        ("hours up", "up_seconds", 1 / 3600),
    )
)
_SHOWN = (
    Quote("GPUs by CUDA", ("presence", "seen_by_cuda")),
    Quote("by NVML", ("presence", "seen_by_nvml")),
    Quote("ECC {} by default", ("before", "reading", "ecc_mode_default")),
)
_PORTS = (
    ("pcie_width", "lanes"),
    ("pcie_width_max", "lanes at most"),
    ("pcie_generation", "PCIe {}"),
    ("pcie_generation_max", "PCIe {} at most"),
    ("numa_node", "at NUMA node {}"),
    ("mtu", "bytes a packet"),
)


def lines(records: Sequence[Record]) -> Iterator[str]:
    """One for each kind of things; nothing of a rank without a GPU."""
    real = [record for record in records if record.gpu is not None]
    if not real:
        return
    before, after = zip(*_TWICE, strict=True)
    groups = {
        "before the run": [*_quoted(real, before), *_reasons(real, "before"), *_paths(real)],
        "after it": [*_quoted(real, after), *_reasons(real, "after"), *_energy(real)],
        "limits of the GPUs": _quoted(real, _LIMITS),
        "counted before it": _quoted(real, _COUNTED),
        "minutes of load": [*_quoted(real, _LOADED), *_reasons_of_load(real)],
        "products": _products(real),
        "training": [*_chosen(real), *_quoted(real, _TRAINED)],
        "repetitions": _quoted(real, _REPEATED),
        "messages": _messages(real),
        "hosts": _quoted(real, (*_SHOWN, *_HOSTED)),
        "ports": _ports(real),
        "stages": _stages(real),
    }
    for name, quotes in groups.items():
        if shown := ", ".join(quotes):
            yield f"Not judged: {name}: {shown}"


def _quoted(records: Iterable[Record], quotes: Iterable[Quote]) -> Iterator[str]:
    """Of all ranks; nothing of what is zero on each."""
    measured = list(records)
    for quote in quotes:
        values = [quote.scale * value for record in measured for value in _values(record, quote)]
        if any(values):
            yield _with(quote.words, _range(values))


def _values(record: Record, quote: Quote) -> Sequence[float]:
    stage, *keys = quote.keys
    found: Any = record.result(stage) if record.measured(stage) else None
    for key in keys:
        if isinstance(found, list):
            # Of epochs the last one, unless all are asked for; of samples all.
            if "epochs" in keys and quote.of is None:
                found = [value for row in found for value in (row[key] if isinstance(row[key], list) else [row[key]])]
            else:
                found = (
                    found[-1].get(key) if "epochs" in keys else [row[key] for row in found if row.get(key) is not None]
                )
        else:
            found = found.get(key) if isinstance(found, Mapping) else None
    if isinstance(found, list):
        return () if not found else found if quote.of is None else (quote.of(found),)
    return () if found is None else (float(found),)


def _range(values: Sequence[float]) -> str:
    low, high = map(_number, (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _number(value: float) -> str:
    if value >= UNLIMITED:
        return "unlimited"
    return f"{value:.3g}" if abs(value) < 1e3 else f"{value:.0f}"


def _with(words: str, value: str) -> str:
    return words.format(value) if "{}" in words else f"{value} {words}"


def _reasons(records: Sequence[Record], stage: str) -> Iterator[str]:
    """Why clocks were not at their highest, with how many GPUs say so."""
    counts: Counter[str] = Counter()
    for record in records:
        reading = record.result(stage).get("reading") or {}
        if (reasons := reading.get("throttle_reasons")) is not None:
            counts.update(reasons or ("no reason",))
    if counts:
        yield "clocks lower for " + " and ".join(f"{reason} ({count})" for reason, count in sorted(counts.items()))


def _reasons_of_load(records: Sequence[Record]) -> Iterator[str]:
    """With how many samples say so."""
    counts = Counter(reason for record in records if record.measured("load")
                     for sample in record.result("load")["series"]
                     for reason in sample.get("throttle_reasons") or ())  # fmt: skip
    if counts:
        yield "clocks lower for " + " and ".join(f"{reason} ({count})" for reason, count in sorted(counts.items()))


def _energy(records: Sequence[Record]) -> Iterator[str]:
    used = []
    for record in records:
        before, after = (record.result(stage).get("reading") or {} for stage in ("before", "after"))
        if before.get("energy_joules") is not None and after.get("energy_joules") is not None:
            used.append(after["energy_joules"] - before["energy_joules"])
    if used:
        yield f"{_range(used)} J used"


def _paths(records: Sequence[Record]) -> Iterator[str]:
    """What joins GPUs over PCIe, by how often."""
    kinds = Counter(words_of_topology(record) for record in records)
    shown = " or ".join(sorted(words for words in kinds if words))
    if shown:
        yield f"joined by {shown}"


def _chosen(records: Sequence[Record]) -> Iterator[str]:
    for key in ("model", "data"):
        if names := {str(record.result("training")[key]) for record in records if record.measured("training")}:
            yield " or ".join(sorted(names))


def _messages(records: Sequence[Record]) -> Iterator[str]:
    """Medians of all operations, by size, and the longest repetition of all."""
    times: dict[int, list[float]] = {}
    longest: dict[int, float] = {}
    for record in records:
        for row in record.result("collectives")["measurements"] if record.measured("collectives") else ():
            times.setdefault(row["bytes"], []).append(MICRO * median(row["seconds"]))
            longest[row["bytes"]] = max(longest.get(row["bytes"], 0.0), MICRO * max(row["seconds"]))
    for size, own in sorted(times.items()):
        yield f"{readable(size)} in {_range(own)} us, the longest in {_number(longest[size])} us"


def _products(records: Sequence[Record]) -> Iterator[str]:
    """By precision, with the peak that the rate was compared with, and the share of it that is usual."""
    rates: dict[str, list[float]] = {}
    for record in records:
        for name, product in record.result("compute")["products"].items() if record.measured("compute") else ():
            rates.setdefault(name, []).append(product["tflops"])
    for name, own in rates.items():
        words = f"{name} {_range(own)} TFLOPS"
        for key, of in (("peak_tflops", " of {}"), ("held_ratio", ", {} of it is usual")):
            known = {value for record in records if (value := (record.result("presence").get(key) or {}).get(name))}
            words += of.format(_range(sorted(known))) if known else ""
        yield words


def _ports(records: Sequence[Record]) -> Iterator[str]:
    """How many of which kind, their slots, and what they have counted."""
    ports = [port for record in records for port in record.result("network").get("ports") or ()]
    kinds = Counter(
        f"{port['kind']}{' with RDMA' if port['rdma'] else ''} of {port['rate_gigabits'] or 0:g} Gbit/s"
        if port["up"] else "not up"
        for port in ports
    )  # fmt: skip
    yield from (f"{count} x {kind}" for kind, count in sorted(kinds.items()))
    for key, words in _PORTS:
        if values := [port[key] for port in ports if port.get(key) is not None]:
            yield _with(words, _range(values))
    if any(port["counters"] for port in ports):
        yield f"{_range([len(port['counters']) for port in ports])} counters of each"
    counts: Counter[str] = Counter()
    for port in ports:
        for name, count in port["counters"].items():
            counts[name] = max(counts[name], count)
    yield from (f"{name} {count} at most" for name, count in counts.most_common(MOST_COUNTERS) if count)
    shown = {bool(own) for record in records for stage in ("network", "network_after")
             if (own := record.result(stage).get("peer_memory")) is not None}  # fmt: skip
    if shown:
        yield "nvidia_peermem on " + ("all" if shown == {True} else "none" if shown == {False} else "some")


def _stages(records: Sequence[Record]) -> Iterator[str]:
    """How long each took, of those that took any time; and the time between both readings."""
    read = [(record.result("before").get("time"), record.result("after").get("time")) for record in records]
    if elapsed := [after - before for before, after in read if before is not None and after is not None]:
        yield f"{_range(elapsed)} s in all"
    for stage in STAGES:
        seconds = [record.times[stage] for record in records if stage in record.times]
        if seconds and max(seconds) >= LEAST_SECONDS:
            yield f"{stage} {_range(seconds)} s"
