"""How steady the pace is: what slow repetitions cost, which a median does not show.

A worker times repetitions for seconds and keeps a few figures of them (`summary`). The judge compares the mean with the
quick quarter: a GPU that is four times slower in every fifth second has a sound median, and loses a third of its rate.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import torch

from cluster.acceptance.checks import broken, links
from cluster.acceptance.checks.collectives import together
from cluster.acceptance.checks.compute import by_model, outlying, peers_grade
from cluster.acceptance.context import Context
from cluster.acceptance.expectations import Expectations
from cluster.acceptance.faults import SLOW_FACTOR
from cluster.acceptance.pace import SLOW, summary
from cluster.acceptance.records import Record, against_good, against_peers, percentile
from cluster.acceptance.verdict import Check, Part, Status, Threshold, graded

BLOCK_SECONDS = 5e-3
"""Of products between two looks at the clock: a shorter time measures the host as well."""
COPY_SHARE = 8
"""A copy here is this many times smaller than that of the stage `copies`, so that more of them fit into a second."""
FEWEST_COPIES = 20
JUDGED_SAMPLES = 20
JUDGED_STEPS = 40
"""Of a training: in fewer, three slow ones are a tenth, and a host has as many."""
LARGE_BYTES = 8 * 2**20
"""Of messages that are judged as large, those of one operation and size with each other."""
FEWEST_LARGE, FEWEST_OF_OPERATION = 100, 10
OF_SINGLE, NODES_ALIKE, SHARED, LEAST_SHARE = 0.55, 1.3, 2.2, 0.2
STALL_SECONDS = 1.0
"""Ours: a scheduler, a monitor or a lost packet takes less; a reset, a retraining link or a frozen host takes more."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Something that is repeated, and what slow repetitions of it may cost."""

    name: str
    key: str
    """In the table [steadiness] of `--expect`."""
    part: Part
    passes: float
    fails: float
    """Shares of the time."""
    alike: float
    """The most that a sound one takes, times its peers, of mean over quick quarter."""
    remedy: str


_CLOCK = (
    "nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE in a loop under load: heat, power brake, or another process "
    "(nvidia-smi pmon)"
)
PRODUCTS = Kind(name="products", key="products", part="gpu", passes=0.08, fails=0.15, alike=1.06, remedy=_CLOCK)
COPIES = Kind(
    name="copies", key="copies", part="gpu", passes=0.15, fails=0.3, alike=1.15,
    remedy="PCIe replays (nvidia-smi -q), other programs on this host's memory or switch, NUMA node of the process",
)  # fmt: skip
SMALL = Kind(
    name="small messages", key="messages", part="communication", passes=0.15, fails=0.3, alike=math.inf,
    remedy="retransmissions and pauses of the ports (ethtool -S, rdma statistic), other jobs on the network, hosts",
)  # fmt: skip
LARGE = Kind(
    name="large messages", key="messages", part="communication", passes=0.15, fails=0.3, alike=math.inf,
    remedy="congestion: ECN and PFC of the switches, adaptive routing, other jobs on the network; NVLink errors",
)  # fmt: skip
ONE_OPERATION = replace(LARGE, name="large messages of one operation", passes=0.25, fails=math.inf)
STEPS = Kind(
    name="training steps", key="training", part="training", passes=0.2, fails=0.35, alike=math.inf,
    remedy="the host: cpu.stat of the cgroup (nr_throttled), other programs, NUMA placement, the data's file system",
)  # fmt: skip
LOAD = Kind(name="load", key="products", part="gpu", passes=0.08, fails=0.15, alike=1.06, remedy=_CLOCK)


def measure(context: Context) -> dict[str, Any]:
    """Figures of products and of copies each way, all GPUs at once."""
    if not context.on_gpu:
        return {"skipped": "there is no GPU whose pace could vary"}
    generator = torch.Generator().manual_seed(6)
    shape = (context.sizes.rows, context.sizes.depth)
    left = torch.randint(-1, 2, shape, generator=generator).to(context.torch_device, torch.float16)
    right = torch.randint(-1, 2, shape[::-1], generator=generator).to(context.torch_device, torch.float16)
    context.at("pace of products")
    products = _products(context, lambda: left @ right)
    count = max(1, context.sizes.copy_bytes // 4 // COPY_SHARE)
    host = torch.empty(count, dtype=torch.float32, pin_memory=True)
    device = torch.empty(count, dtype=torch.float32, device=context.torch_device)
    copies = {}
    for way, (target, source) in {"to_device": (device, host), "to_host": (host, device)}.items():
        context.at(f"pace of copies, {way}")
        copies[way] = _copies(context, partial(target.copy_, source, non_blocking=True))
    return {"products": products, "copies": copies}


def _products(context: Context, multiply: Callable[[], object]) -> dict[str, Any]:
    # As many at once as fill a block; meanwhile the clock settles where power and heat allow it.
    sizes, at_once = context.sizes, 1
    warm = list(_timed(context, multiply, 1, seconds=sizes.steady_seconds / 5, most=sizes.steady_samples))
    if not context.device.simulated:
        at_once = max(1, round(BLOCK_SECONDS / percentile(warm, 25)))
    unsteady = context.has_fault("unsteady")
    return summary(list(_timed(context, multiply, at_once, seconds=sizes.steady_seconds, most=sizes.steady_samples,
                               unsteady=unsteady)))  # fmt: skip


def _copies(context: Context, copy: Callable[[], object]) -> dict[str, Any]:
    # For so many seconds on all GPUs, not for so many copies: GPUs that share a path share it until the end.
    sizes = context.sizes
    seconds = _timed(context, copy, 1, seconds=sizes.steady_seconds / 5, most=sizes.steady_samples,
                     fewest=min(FEWEST_COPIES, sizes.steady_samples))  # fmt: skip
    return summary(list(seconds)[1:])


def _timed(
    context: Context, work: Callable[[], object], at_once: int, *, seconds: float, most: int, fewest: int = 1,
    unsteady: bool = False,
) -> Iterator[float]:  # fmt: skip
    """Seconds of one of `at_once` repetitions, again and again."""
    began, done = time.perf_counter(), 0
    while done < most and (done < fewest or time.perf_counter() - began < seconds):
        factor = SLOW_FACTOR if unsteady and done % 3 == 2 else 1
        context.synchronize()
        started = time.perf_counter()
        for _ in range(factor * at_once):
            work()
        context.synchronize()
        yield (time.perf_counter() - started) / at_once
        done += 1


def judge(records: Sequence[Record], expected: Expectations | None = None) -> list[Check]:
    """Checks of every pace of every GPU; none of records that were written before there was this stage."""
    checks: list[Check] = []
    recorded = [record for record in records if record.result("steadiness") and record.gpu is not None]
    checks += broken(recorded, "steadiness", "gpu")
    for same in by_model([record for record in recorded if record.measured("steadiness")]).values():
        products = [(record, record.result("steadiness")["products"]) for record in same]
        checks += _each(PRODUCTS, products, expected)
        checks += [check for record in same for check in _of_single(record)] + _sustained(same)
        for way in ("to_device", "to_host"):
            copies = [(record, record.result("steadiness")["copies"][way]) for record in same]
            checks += _each(COPIES, copies, expected, title=f" {way.replace('_', ' ')}")
            checks += _nodes(copies, way.replace("_", " "))
            checks += _at_once(copies, way.replace("_", " "))
            checks += [check for record in same for check in _shared(record, way)]
    on_gpu = [record for record in records if record.gpu is not None]
    for same in by_model([record for record in on_gpu if record.measured("training")]).values():
        steps = [(record, summary(_steps(record))) for record in same]
        checks += _each(STEPS, steps, expected, fewest=JUDGED_STEPS)
    for same in by_model([record for record in on_gpu if record.measured("load")]).values():
        paces = [(record, summary([1 / pace for pace in _paces(record)])) for record in same if _paces(record)]
        checks += _each(LOAD, paces, expected)
    if on_gpu and len(on_gpu) == len(records):
        checks += _messages(records, expected)
    return checks


def _at_once(copies: Sequence[tuple[Record, dict[str, Any]]], way: str) -> list[Check]:
    """Two GPUs may share a path, and each has half of it then; less is no share."""
    limit = Threshold(value=SHARED, unit="times the median of the other GPUs", relation="at most",
                      source="ours: two GPUs that share a path take twice as long")  # fmt: skip
    ratios = against_peers([float(figure["p50_seconds"]) for _, figure in copies])
    return [
        Check(
            name=f"steadiness: copies {way} against peers", part="gpu", subject=record.subject, rank=record.rank,
            status="pass" if limit.holds(ratio) else "unverified",
            evidence=f"{ratio:.2f} times the median of its peers, all at once", remedy=COPIES.remedy, measured=ratio,
            threshold=limit,
        )
        for (record, _), ratio in zip(copies, ratios, strict=True)
        if ratio is not None
    ]  # fmt: skip


def _shared(record: Record, way: str) -> Iterator[Check]:
    """Copies of all GPUs at once against single ones: paths are shared, and nobody has published by how much."""
    single = (record.result("copies").get("seconds") or {}).get(way) if record.measured("copies") else None
    if single is None or record.result("presence").get("nccl") is None:
        return
    ratio = single / COPY_SHARE / record.result("steadiness")["copies"][way]["p50_seconds"]
    limit = Threshold(value=LEAST_SHARE, unit="of the rate of single copies", relation="at least",
                      source="ours: four GPUs of a socket may share one path")  # fmt: skip
    yield Check(
        name=f"steadiness: copies {way.replace('_', ' ')} at once against single ones", part="gpu",
        subject=record.subject, rank=record.rank, status="pass" if limit.holds(ratio) else "unverified",
        evidence=f"{ratio:.2f} of the rate of a single GPU", remedy=COPIES.remedy, measured=ratio, threshold=limit,
        published=1.0,
    )  # fmt: skip


def _nodes(copies: Sequence[tuple[Record, dict[str, Any]]], way: str) -> list[Check]:
    """Copies of all GPUs of a node at once: the host shares out its memory and its links, alike on nodes that are."""
    groups: dict[str, list[tuple[Record, float]]] = {}
    for record, figure in copies:
        groups.setdefault(record.node, []).append((record, float(figure["p50_seconds"])))
    slots = {(len(own), *sorted({str(links.pcie(record)) for record, _ in own})) for own in groups.values()}
    if len(groups) < 2 or len(slots) > 1:
        return []
    middles = [median(seconds for _, seconds in own) for own in groups.values()]
    limit = Threshold(value=NODES_ALIKE, unit="times the median of the other nodes", relation="at most",
                      source="ours: nodes of one kind differ by some percent")  # fmt: skip
    return [
        Check(
            name=f"steadiness: copies {way}, node against nodes", part="gpu", subject=f"node {node}",
            status="pass" if ratio is None or limit.holds(ratio) else "unverified",
            evidence=f"copies of all its GPUs at once take {ratio or 1:.2f} times as long as on the other nodes",
            remedy="its host: memory modules, IOMMU, BIOS settings, NUMA balancing; lspci -vv for its switches",
            measured=ratio, threshold=limit,
        )
        for node, ratio in zip(groups, against_peers(middles), strict=True)
    ]  # fmt: skip


def _of_single(record: Record) -> Iterator[Check]:
    """The same products for seconds: what a board loses as it settles where power and heat allow it."""
    product = (record.result("compute").get("products") or {}).get("float16") if record.measured("compute") else None
    if product is None or record.result("presence").get("nccl") is None:  # a virtual GPU's clock is not real
        return
    own = record.result("steadiness")["products"]
    ratio = median(product["seconds"]) / own["p50_seconds"]
    limit = Threshold(value=OF_SINGLE, unit="of the pace of twenty products", relation="at least",
                      source="ours: a board of 70 W loses half of it as it gets warm")  # fmt: skip
    yield Check(
        name="steadiness: pace against single products", part="gpu", subject=record.subject, rank=record.rank,
        status="pass" if limit.holds(ratio) else "unverified", evidence=f"{ratio:.2f} of theirs", remedy=_CLOCK,
        measured=ratio, threshold=limit, published=1.0,
    )  # fmt: skip


def _sustained(records: Sequence[Record]) -> list[Check]:
    """Against the others of its model: a board may keep up in twenty products, and not in thousands."""
    seconds = [record.result("steadiness")["products"]["p50_seconds"] for record in records]
    checks = []
    for record, own, ratio, far in zip(records, seconds, against_good(seconds), outlying(seconds), strict=True):
        status, limit = peers_grade(ratio, far)
        shown = "no other GPU to compare with" if ratio is None else f"{ratio:.2f} times the median of its peers"
        checks.append(
            Check(
                name="steadiness: products against peers", part="gpu", subject=record.subject, rank=record.rank,
                status=status, evidence=f"{own * 1e3:.3f} ms, {shown}", remedy=_CLOCK, measured=ratio, threshold=limit,
            )
        )  # fmt: skip
    return checks


def _steps(record: Record) -> list[float]:
    epochs = record.result("training")["epochs"]
    # The first two of a run choose kernels, the first of each epoch waits for its images.
    return [step for number, epoch in enumerate(epochs) for step in epoch["own_seconds"][1 if number else 2 :]] or [1.0]


def _paces(record: Record) -> list[float]:
    return [pace for sample in record.result("load")["series"] if (pace := sample.get("products_per_second"))]


def _each(
    kind: Kind, figures: Sequence[tuple[Record, dict[str, Any]]], expected: Expectations | None, *, title: str = "",
    fewest: int = JUDGED_SAMPLES,
) -> list[Check]:  # fmt: skip
    """A check of every GPU: against itself, and against the others of its model."""
    spreads = [_spread(figure) for _, figure in figures]
    return [
        _check(kind, record.subject, figure, expected, ratio=ratio, rank=record.rank, title=title, fewest=fewest)
        for (record, figure), ratio in zip(figures, against_peers(spreads), strict=True)
    ]


def _messages(records: Sequence[Record], expected: Expectations | None) -> list[Check]:
    """Nobody is to blame by time: in a collective all ranks wait for one."""
    there = [record.result("collectives") for record in records if record.measured("collectives")]
    if not there or len(there) < len(records):
        return []
    checks = []
    if small := [result["steady"] for result in there if result.get("steady")]:
        worst = max(small, key=_spread)
        checks.append(_check(SMALL, "all ranks", worst, expected, title=f", {worst['bytes']} bytes"))
    ratios: list[float] = []
    by_operation: dict[str, list[float]] = {}
    for position, first in enumerate(there[0]["measurements"]):
        if first["bytes"] >= LARGE_BYTES:
            seconds = together([result["measurements"][position] for result in there])
            quick = percentile(seconds, 25)
            ratios += [value / quick for value in seconds]
            by_operation.setdefault(first["operation"], []).extend(value / quick for value in seconds)
    if len(ratios) >= FEWEST_LARGE:
        checks.append(_check(LARGE, "all ranks", summary(ratios), expected, relative=True))
        # What stalls in one operation of six is a small part of all; one of few repetitions may be slow by chance.
        for operation, own in by_operation.items():
            check = _check(ONE_OPERATION, "all ranks", summary(own), expected, title=f": {operation}", relative=True,
                           fewest=FEWEST_OF_OPERATION)  # fmt: skip
            checks += [check] if check.status in ("fail", "unverified") else []
    return checks


def _spread(figure: dict[str, Any]) -> float:
    """Mean over quick quarter: 1.0 where all take equally long."""
    return float(figure["mean_seconds"] / figure["p25_seconds"])


def _check(
    kind: Kind, subject: str, figure: dict[str, Any], expected: Expectations | None, *, ratio: float | None = None,
    rank: int | None = None, title: str = "", fewest: int = JUDGED_SAMPLES, relative: bool = False,
) -> Check:  # fmt: skip
    lost = max(0.0, 1 - 1 / _spread(figure))
    unit, source = "of the time, by slow repetitions", "ours: what sound machines lose is below, half of a rate above"
    own = None if expected is None else expected.threshold("steadiness", kind.key, unit, "at most")
    fails, passes = (
        own or Threshold(value=value, unit=unit, relation="at most", source=source)
        for value in (kind.fails, kind.passes)
    )
    status, limit = graded(lost, fails, passes)
    measured = lost
    times = "times the quick quarter" if relative else "times the median"
    base = figure["p25_seconds" if relative else "p50_seconds"]
    evidence = (
        f"slow repetitions cost {lost:.1%} of the time: {figure['slow_share']:.1%} of {figure['samples']} took more "
        f"than {SLOW:g} times the quick quarter; 95th percentile {figure['p95_seconds'] / base:.2f}, longest "
        f"{figure['longest_seconds'] / base:.3g} {times}"
    )
    if ratio is not None and own is None and kind.alike < math.inf:
        evidence += f"; its mean over the quick quarter {ratio:.2f} times that of its peers"
        if status == "pass" and ratio > kind.alike:
            status, measured = "unverified", ratio
            limit = Threshold(value=kind.alike, unit="times the median of the other GPUs, of mean over quick quarter",
                              relation="at most", source="ours: GPUs of one model vary alike")  # fmt: skip
    stall = figure["longest_seconds"] - figure["p50_seconds"]
    if not relative and own is None and stall > STALL_SECONDS and status == "pass":
        status, measured = "unverified", stall
        evidence += f"; one stood still for {stall:.1f} s"
        limit = Threshold(value=STALL_SECONDS, unit="s of one repetition, beyond the median", relation="at most",
                          source="ours: hosts and networks interrupt for less")  # fmt: skip
    elif figure["samples"] < fewest:
        # A training has as many steps as there are images; everything else this test repeats often enough.
        few: Status = "skipped" if kind is STEPS else status if status == "fail" else "unverified"
        status, evidence = few, f"{evidence}; few to judge by"
    return Check(
        name=f"steadiness: {kind.name}{title}",
        part=kind.part,
        subject=subject,
        rank=rank,
        status=status,
        evidence=evidence,
        remedy=f"{kind.remedy}. If this pace is intended: --expect, [steadiness] {kind.key}",
        measured=measured,
        threshold=limit,
        nothing_known=figure["samples"] < fewest,
    )
