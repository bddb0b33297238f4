"""What cannot be true together: two fields of one record, of which one follows from the other.

Each is a function that yields subject, question and what was seen; `consistency` makes checks of them.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import isfinite
from statistics import median
from typing import Any

from cluster.acceptance.checks.collectives import STEADY
from cluster.acceptance.names import SUMMARY
from cluster.acceptance.pace import SLOW
from cluster.acceptance.records import Record, percentile

Finding = tuple[str, str, str]
SAME, ALIKE, WIDE = 1.02, 1.5, 4.0
"""Times: rounding; the same work at another moment; the same at another size."""
FEWEST_SIZES = 2
MOST_SECONDS = 24 * 3600.0
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
SLOWEST, OPTIMIZER_SECONDS = 1.5, 2e-3
"""Times what copy, forward pass, both passes and the gradients' all-reduce take by themselves; and the optimizer."""
FEWEST_LOSSES = 3
"""Of which two at least differ."""
CLOCK_SECONDS = 10.0  # by which a clock may be set while the test runs
LONGEST_GAP = 4.0
"""Times the usual between samples of a load, and seconds."""
BACKWARD = (0.8, 6.0)
"""Times a forward pass, of both passes: the backward one takes twice as long, and is never the shorter part."""
UNTRAINED = (1.5, 5.0)
"""Cross entropy of ten classes before the first step: chance is 2.3, and a net's first weights add some."""
GRADIENT_BYTES = 4 * 11_173_962
"""Of the ResNet-18 that is trained."""
WHOLE_IDENTITY = 16
"""Digits from which on a UUID of one digit alone is none."""
SAME_CORES = 1.18
"""Times: what a board at its power limit has more in bfloat16 is 7 % at most (vgpu/device/gpus.toml)."""
BFLOAT16_FROM = 8
"""Major compute capability."""


def found(records: Sequence[Record]) -> Iterator[Finding]:
    """All contradictions."""
    for record in records:
        for of_one in (_board, _energy, _memory, _products, _figures, _backend, _trained, _first_loss, _load,
                       _adapters, _gradient):  # fmt: skip
            for evidence in of_one(record):
                yield record.subject, "consistent", evidence
        for evidence in _ports(record):
            yield f"node {record.node}", "consistent", evidence


def reading_of(record: Record, stage: str) -> dict[str, Any]:
    """What NVML said at a stage; empty if it lost the GPU."""
    reading = record.result(stage).get("reading") or {}
    return reading if reading.get("up") else {}


def times_as_much(one: float, other: float) -> float:
    """How many times as much the larger one is."""
    low, high = sorted((abs(one), abs(other)))
    return high / low if low else float("inf")


def _board(record: Record) -> Iterator[str]:
    """NVML's board is CUDA's, and its figures are within each other's bounds."""
    presence = record.result("presence")
    name = presence.get("device_name")
    if record.gpu is not None and name and not any(character.isdigit() for character in str(name)):
        yield f"{name} is no name of a model: is the driver older than the board?"
    for stage in ("before", "after"):
        reading = reading_of(record, stage)
        uuid, own = reading.get("uuid"), presence.get("uuid")
        if uuid and own and str(uuid).removeprefix("GPU-") != str(own).removeprefix("GPU-"):
            yield f"{stage}: NVML read the GPU {uuid}, CUDA worked on {own}"
        for identity in (uuid, own):
            digits = str(identity or "").removeprefix("GPU-").replace("-", "")
            if str(identity).startswith("MIG-") or (len(digits) >= WHOLE_IDENTITY and len(set(digits)) == 1):
                yield f"{stage}: {identity} is no identity of a whole board"
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
    before, after = reading_of(record, "before"), reading_of(record, "after")
    if after.get("memory_used_bytes") == 0:
        yield "after: no memory is in use, though this process has some"
    changing = [name for name in CHANGING if before.get(name) is not None]
    if changing and all(before[name] == after.get(name) for name in changing):
        yield "NVML says the same before and after the work: what it says is old"


def _energy(record: Record) -> Iterator[str]:
    before, after = reading_of(record, "before"), reading_of(record, "after")
    began, ended = (record.result(stage).get("time") for stage in ("before", "after"))
    if began and ended and ended <= began:
        yield "the clock of its node went back while the test ran"
    if began and ended and ended - began > MOST_SECONDS:
        yield f"by its node's clock the test took {(ended - began) / 3600:.0f} hours"
    took = sum(value for stage, value in record.times.items() if stage != "before")
    if began and ended and took > SAME * (ended - began) + CLOCK_SECONDS:
        yield f"its stages took {took:.0f} s, by its node's clock {ended - began:.0f} s went by"
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
    if own and times_as_much(own, result["total_bytes"]) > SAME:
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
        if times_as_much(tflops, product["tflops"]) > SAME:
            yield f"product {name}: {product['tflops']:.4g} TFLOPS, {tflops:.4g} by its times"
        quick, slow = (percentile(product["seconds"], share) for share in (25, 75))
        if record.result("presence").get("nccl") is not None and slow > ALIKE * quick:
            yield f"product {name}: a quarter of them took {slow / quick:.1f} times as long as the quick ones"
        if len(product["seconds"]) != len(next(iter(result["products"].values()))["seconds"]):
            yield f"product {name}: {len(product['seconds'])} repetitions, others have another number"
    if record.gpu is not None:
        half, brain = (result["products"].get(name) for name in ("float16", "bfloat16"))
        if half and brain and record.result("presence").get("nccl") is not None:
            ratio = times_as_much(half["tflops"], brain["tflops"])
            if ratio > SAME_CORES:
                yield f"products in float16 and bfloat16 run on the same cores, and differ by {ratio:.2f} times"
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
        if half and times_as_much(median(half["seconds"]), quick) > ALIKE:
            yield f"a product in float16 took {median(half['seconds']):.3g} s, then {quick:.3g} s in the quick quarter"
        for way, own in (record.result("copies").get("seconds") or {}).items() if record.measured("copies") else ():
            figure = steady["copies"].get(way)
            if figure and times_as_much(own / ONE_COPY, figure["p25_seconds"]) > 2 * ALIKE:
                yield f"a copy {way} took {own:.3g} s, one of an eighth {figure['p25_seconds']:.3g} s"
    if record.measured("collectives"):
        result = record.result("collectives")
        small = [one for one in result["measurements"] if one["operation"] == STEADY]
        if small and result["steady"]["operation"] != STEADY:
            yield f"small messages were {result['steady']['operation']}, not {STEADY}"
        if small and result["steady"]["bytes"] != small[0]["bytes"]:
            yield f"small messages of {result['steady']['bytes']} bytes, the smallest has {small[0]['bytes']}"
        elif small and times_as_much(median(small[0]["seconds"]), result["steady"]["p50_seconds"]) > WIDE:
            yield (
                f"{STEADY} of {small[0]['bytes']} bytes: {median(small[0]['seconds']):.3g} s, then "
                f"{result['steady']['p50_seconds']:.3g} s"
            )


def _backend(record: Record) -> Iterator[str]:
    if record.gpu is not None and record.measured("collectives") and record.result("collectives")["backend"] != "nccl":
        yield f"its GPU talked over {record.result('collectives')['backend']}, through the host: PyTorch without NCCL"


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
        ratio = parts["forward and backward"] / parts["forward"] if parts["forward"] else BACKWARD[0]
        if record.gpu is not None and record.result("presence").get("nccl") and not BACKWARD[0] <= ratio <= BACKWARD[1]:
            yield (
                f"training: forward and backward pass took {parts['forward and backward']:.3g} s, "
                f"the forward pass alone {parts['forward']:.3g} s"
            )
        longest = SLOWEST * (sum(parts.values()) + gradients_seconds(record)) + OPTIMIZER_SECONDS
        step = result["batch_size"] / epoch["images_per_second"]
        if record.gpu is not None and record.result("presence").get("nccl") and step > longest:
            yield f"training: a step took {step:.3g} s, its parts {longest:.3g} s at most"
        if len(epoch["losses"]) >= FEWEST_LOSSES and len(set(epoch["losses"])) == 1:
            yield f"training: each step has the loss {epoch['losses'][0]:.3g}: nothing is learned, or it is not read"
        if any(loss < 0 for loss in epoch["losses"]) or (epoch["losses"] and max(epoch["losses"]) == 0):
            yield "training: a cross entropy is above 0"


def _first_loss(record: Record) -> Iterator[str]:
    """A net that has learned nothing guesses; one that does not was not new, or its labels are not those of images."""
    if not record.measured("training") or not record.result("training")["epochs"]:
        return
    losses = record.result("training")["epochs"][0]["losses"]
    if losses and isfinite(losses[0]) and not UNTRAINED[0] <= losses[0] <= UNTRAINED[1]:
        yield f"training: the loss before the first step is {losses[0]:.3g}, and chance is 2.3"


def gradients_seconds(record: Record) -> float:
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
        gaps = [following - now for now, following in pairwise(times)]
        if max(gaps) > max(LONGEST_GAP * median(gaps), LONGEST_GAP):
            yield f"load: {max(gaps):.0f} s without a sample, where others follow after {median(gaps):.0f}"
        every = (times[-1] - times[0]) / (len(times) - 1)
        by_pace = sum(sample["products_per_second"] for sample in series) * every
        if times_as_much(by_pace, result["products"]) > ALIKE:
            yield f"load: {result['products']} products, {by_pace:.0f} by its pace"
    if any(sample["products_per_second"] == 0 for sample in series):
        yield "load: a sample without a product"
    limit, most = (reading_of(record, "before").get(name) for name in ("power_limit_watts", "sm_clock_max_hertz"))
    if limit and any((sample.get("watts") or 0) > OF_LIMIT * limit for sample in series):
        yield f"load: more power than its limit of {limit:.0f} W"
    if most and any((sample.get("sm_clock_hertz") or 0) > OF_CLOCK * most for sample in series):
        yield f"load: a clock above its highest of {most / 1e6:.0f} MHz"
    half = (record.result("compute").get("products") or {}).get("float16")
    if half and record.result("presence").get("nccl") is not None:
        pace = 1 / median(half["seconds"])
        if times_as_much(pace, median(sample["products_per_second"] for sample in series) or 1e-9) > 1.2 * ALIKE:
            yield f"load: products in float16 had a pace of {pace:.0f} 1/s before it"


def _gradient(record: Record) -> Iterator[str]:
    if record.measured("gradients") and record.gpu is not None and record.result("gradients")["deviation"] <= 0:
        yield "gradient: it deviates by nothing from float64: it was not computed in float32"


def _adapters(record: Record) -> Iterator[str]:
    if not record.measured("adapters"):
        return
    rows = record.result("adapters")["measured"]
    known = {port["name"] for port in record.result("network").get("ports", ())}
    if unsaid := [row["adapter"] for row in rows if row["gigabits"] is None and not row["reason"]]:
        yield f"adapters without a rate, or a reason for none: {', '.join(unsaid)}"
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
    if odd := [port["name"] for port in ports if port["kind"] == "InfiniBand" and not port["rdma"]]:
        yield f"InfiniBand without RDMA: {', '.join(odd)}"
    slots = ("pcie_width", "pcie_width_max", "pcie_generation", "pcie_generation_max")
    for port in used:
        told = [key for key in slots if port.get(key) is not None]
        if 0 < len(told) < len(slots):
            yield f"{port['name']}: of its slot only {', '.join(told)} is known"
    for key in ("rate_gigabits", "pcie_width", "pcie_width_max", "pcie_generation", "pcie_generation_max", "numa_node",
                "firmware", "mtu"):  # fmt: skip
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
