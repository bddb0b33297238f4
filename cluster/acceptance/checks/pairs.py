"""Sends between pairs of ranks that change from round to round, so that a slow node is told from a slow link.

All pairs of a round are busy at once, as in a training. Up to sixteen ranks all meet all, which gives the matrix that
nvbandwidth prints of one node; of more ranks each meets fifteen others, drawn anew for every run.
"""

import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from cluster.acceptance.checks import REMEDY_NO_GPU, broken
from cluster.acceptance.checks.collectives import numbers
from cluster.acceptance.checks.hardware_state import wired_nvlinks
from cluster.acceptance.checks.thresholds import SWITCHED_NVLINKS
from cluster.acceptance.context import Context
from cluster.acceptance.faults import SLOW_FACTOR
from cluster.acceptance.records import Record, percentile
from cluster.acceptance.verdict import Check, Status, Threshold

MOST_ROUNDS = 15
REPEATS = 3
GOOD_PERCENT = 25
"""The time that a quarter of all pairs keeps: with one bad node of three, two thirds of all pairs are slow."""
FEWEST_PAIRS = 3
"""Of one kind: one of two that differ may be either the slow one or the fast one."""
INSIDE = Threshold(
    value=1.5,
    unit="times what the good pairs of its kind take",
    relation="at most",
    source="ours: links of one kind differ by some percent, one that fell back to another path by a factor",
)
BETWEEN = Threshold(
    value=2.0,
    unit="times what the good pairs take",
    relation="at most",
    source="ours: spines of switches are built for half of what their leaves carry, or more (2 to 1)",
)
REMEDY = "NCCL_DEBUG=INFO names the path between these two; look at both ports, cables and the switch between"


def schedule(ranks: int, seed: int) -> list[list[tuple[int, int]]]:
    """Rounds of disjoint pairs: the circle method of a tournament, its players in an order that is drawn."""
    players: list[int | None] = list(range(ranks))
    random.Random(seed).shuffle(players)
    if ranks % 2:
        players.append(None)  # whoever meets nobody rests
    half, rounds = len(players) // 2, []
    for _ in range(min(len(players) - 1, MOST_ROUNDS)):
        met = zip(players[:half], reversed(players[half:]), strict=True)
        rounds.append([(min(a, b), max(a, b)) for a, b in met if a is not None and b is not None])
        players = [players[0], players[-1], *players[1:-1]]
    return rounds


def measure(context: Context) -> dict[str, Any]:
    """Seconds of a message each way at once, by partner; needs the process group."""
    if context.world_size < 2:
        return {"skipped": "one rank has nobody to talk to", "asked": True}
    count = max(1, context.sizes.pair_bytes // 4)
    mine = numbers(context.rank, count).to(context.torch_device)
    received = torch.zeros_like(mine)
    met = []
    # The port where all meet is the same for all ranks, and another one in each run.
    rounds = schedule(context.world_size, int(os.environ["MASTER_PORT"]))
    for number, pairs in enumerate(rounds):
        context.at(f"pairs, round {number}")
        pair = next((pair for pair in pairs if context.rank in pair), None)
        if pair is None:
            continue
        partner = sum(pair) - context.rank
        seconds = []
        for repeat in range(1 + REPEATS):  # in the first one this rank waits until the other is here
            context.synchronize()
            started = time.perf_counter()
            for _ in range(SLOW_FACTOR if _slow(context, pair) else 1):
                _exchange(mine, received, partner)
            context.synchronize()
            if repeat:
                seconds.append(time.perf_counter() - started)
        wrong = int((received.cpu() != numbers(partner, count)).sum())
        met.append({"partner": partner, "seconds": median(seconds), "wrong": wrong})
    return {"bytes": 4 * count, "met": met}


def _slow(context: Context, pair: tuple[int, int]) -> bool:
    """Whether a fault of either end is about this link: that of a rank and the next one."""
    faults = [fault.rank for fault in context.options.inject if fault.kind == "slow-pair"]
    return any(set(pair) == {rank, (rank + 1) % context.world_size} for rank in faults)


def _exchange(mine: torch.Tensor, received: torch.Tensor, partner: int) -> None:
    both = [dist.P2POp(dist.isend, mine, partner), dist.P2POp(dist.irecv, received, partner)]
    for work in dist.batch_isend_irecv(both):
        work.wait()


@dataclass(frozen=True)
class Pair:
    """Two ranks that met."""

    ends: tuple[Record, Record]
    seconds: float
    kind: str

    @property
    def nodes(self) -> tuple[str, str]:
        """Of its ends."""
        return self.ends[0].node, self.ends[1].node


def met(records: Sequence[Record]) -> list[Pair]:
    """All pairs that were measured, by the slower end's clock."""
    seconds: dict[tuple[int, int], float] = {}
    by_rank = {record.rank: record for record in records if record.measured("pairs")}
    for record in by_rank.values():
        for meeting in record.result("pairs")["met"]:
            pair = (min(record.rank, meeting["partner"]), max(record.rank, meeting["partner"]))
            seconds[pair] = max(seconds.get(pair, 0.0), meeting["seconds"])
    return [
        Pair((by_rank[a], by_rank[b]), time_, _kind(by_rank[a], by_rank[b]))
        for (a, b), time_ in sorted(seconds.items())
        if a in by_rank and b in by_rank
    ]


def _kind(record: Record, other: Record) -> str:
    """Only pairs of one kind are compared."""
    if record.node != other.node:
        return "between nodes"
    if min(wired_nvlinks(record), wired_nvlinks(other)) >= SWITCHED_NVLINKS:
        return "NVLink"
    topology = (record.result("before").get("reading") or {}).get("topology") or {}
    return str(topology.get(str(other.gpu), "inside a node"))


def judge(records: Sequence[Record]) -> list[Check]:
    """Wrong data by pair; of slow pairs the node, the rank or the link that explains them."""
    checks = broken(records, "pairs", "communication")
    for record in records:
        for meeting in record.result("pairs")["met"] if record.measured("pairs") else ():
            if meeting["wrong"]:
                subject = f"rank {meeting['partner']} to {record.subject}"
                evidence = f"{meeting['wrong']} wrong elements"
                checks.append(_check("data", subject, "fail", evidence, rank=record.rank))
    pairs = met(records)
    on_gpu = all(record.gpu is not None for record in records)
    for kind in dict.fromkeys(pair.kind for pair in pairs):
        checks += _judge_kind(kind, [pair for pair in pairs if pair.kind == kind], on_gpu)
    return checks


def _judge_kind(kind: str, pairs: Sequence[Pair], on_gpu: bool) -> list[Check]:
    shown = f"{len(pairs)} pairs, {min(pair.seconds for pair in pairs) * 1e3:.3f} to "
    shown += f"{max(pair.seconds for pair in pairs) * 1e3:.3f} ms"
    if not on_gpu:
        evidence = f"{shown}; not judged: not between GPUs"
        return [_check(kind, "all ranks", "unverified", evidence, remedy=REMEDY_NO_GPU)]
    if len(pairs) < FEWEST_PAIRS:
        return [_check(kind, "all ranks", "skipped", f"{shown}; too few to compare")]
    limit = BETWEEN if kind == "between nodes" else INSIDE
    good = percentile([pair.seconds for pair in pairs], GOOD_PERCENT)
    slow = [pair for pair in pairs if not limit.holds(pair.seconds / good)]
    if not slow:
        return [
            _check(kind, "all ranks", "pass", shown, measured=max(pair.seconds for pair in pairs) / good, limit=limit)
        ]
    checks: list[Check] = []
    for names in (_nodes_of, _ranks_of):
        if names is _nodes_of and kind != "between nodes":
            continue
        for name, own in _guilty(pairs, slow, names).items():
            others = len({end for pair in own for end in names(pair)} - {name})
            worst = max(pair.seconds for pair in own) / good
            evidence = f"slow with all {others} that it met, up to {worst:.1f} times, and those are not with each other"
            checks.append(_check(kind, name, "fail", evidence, measured=worst, limit=limit))
            slow = [pair for pair in slow if pair not in own]
    for pair in slow:
        ratio = pair.seconds / good
        subject = f"{pair.ends[0].subject} and {pair.ends[1].subject}"
        evidence = f"{pair.seconds * 1e3:.3f} ms, {ratio:.1f} times what good pairs take; both are fast with others"
        checks.append(_check(kind, subject, "fail", evidence, measured=ratio, limit=limit))
    return checks


def _nodes_of(pair: Pair) -> tuple[str, ...]:
    return tuple(f"node {node}" for node in pair.nodes)


def _ranks_of(pair: Pair) -> tuple[str, ...]:
    return tuple(end.subject for end in pair.ends)


def _guilty(pairs: Sequence[Pair], slow: Sequence[Pair], names: Any) -> Mapping[str, list[Pair]]:
    """Ends that were slow with everybody, at least two, of whom somebody was fast with somebody else."""
    slow_ends: dict[str, list[Pair]] = {}
    fast_ends = {name for pair in pairs if pair not in slow for name in names(pair)}
    for name in dict.fromkeys(name for pair in slow for name in names(pair)):
        own = [pair for pair in pairs if name in names(pair)]
        others = {end for pair in own for end in names(pair)} - {name}
        if all(pair in slow for pair in own) and len(others) > 1 and others & fast_ends:
            slow_ends[name] = own
    return slow_ends


def _check(
    name: str, subject: str, status: Status, evidence: str, *, remedy: str = REMEDY, measured: float | None = None,
    limit: Threshold | None = None, rank: int | None = None,
) -> Check:  # fmt: skip
    return Check(name=f"pairs: {name}", part="communication", subject=subject, rank=rank, status=status,
                 evidence=evidence, remedy=remedy, measured=measured, threshold=limit)  # fmt: skip
