"""Sends between pairs of ranks that change from round to round, so that a slow node is told from a slow link.

All pairs of a round are busy at once, as in a training. Up to sixteen ranks all meet all, which gives the matrix that
nvbandwidth prints of one node; of more ranks each meets fifteen others, drawn again for every run.
"""

import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from cluster.acceptance.checks import REMEDY_NO_GPU, broken, links, thresholds
from cluster.acceptance.checks.collectives import numbers
from cluster.acceptance.context import Context
from cluster.acceptance.expectations import Expectations
from cluster.acceptance.faults import SLOW_FACTOR
from cluster.acceptance.records import Record, percentile
from cluster.acceptance.verdict import Check, Status, Threshold, believable, graded

MOST_ROUNDS = 15
REPEATS = 3
GOOD_PERCENT = 25
"""The time that a quarter of all pairs keeps: with one bad node of three, two thirds of all pairs are slow."""
FEWEST_PAIRS = 3
"""Of one kind: one of two that differ may be either the slow one or the fast one."""
START_SECONDS = {False: 60e-6, True: 150e-6}
"""Before a message flows at its full rate, inside a node and between nodes."""
JUDGED_BYTES = 8 * 2**20
_UNIT = "times what the good links of its kind take"
_TIMES = {
    links.NVLINK: (1.5, 1.15, "ours: NVLinks differ by some percent, one that fell back to another path by a factor"),
    links.BRIDGE: (1.5, 1.15, "ours: as NVLink"),
    links.BETWEEN: (1.8, 1.15, "ours: full bisection; [network] oversubscription of --expect says what is meant"),
}
_PCIE_TIMES = (2.5, 1.8, "ours: paths through PCIe share switches and bridges, differently from round to round")
"""Beyond the first it fails, up to the second it passes."""
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
        Pair((by_rank[a], by_rank[b]), time_, links.kind(by_rank[a], by_rank[b], _bytes(by_rank[a]) / time_))
        for (a, b), time_ in sorted(seconds.items())
        if a in by_rank and b in by_rank
    ]


def _bytes(record: Record) -> float:
    return float(record.result("pairs")["bytes"])


def limits(kind: str, expected: Expectations | None) -> tuple[Threshold, Threshold]:
    """How many times as long as others of its kind a link may take: beyond the first it fails, up to the second it
    passes."""
    fails, passes, source = _TIMES.get(kind, _PCIE_TIMES)
    meant = expected.number("network", "oversubscription") if expected is not None and kind == links.BETWEEN else None
    if meant is not None and expected is not None:
        fails, passes, source = fails * meant, passes * meant, f"[network] oversubscription of {expected.path}"
    return (
        Threshold(value=fails, unit=_UNIT, relation="at most", source=source),
        Threshold(value=passes, unit=_UNIT, relation="at most", source=source),
    )


def judge(records: Sequence[Record], expected: Expectations | None = None) -> list[Check]:
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
        same = [pair for pair in pairs if pair.kind == kind]
        if on_gpu:
            checks += _judge_kind(kind, same, limits(kind, expected)) + _rates(records, kind, same, expected)
        else:
            evidence = f"{_range(same)}; not judged: not between GPUs"
            checks.append(_check(kind, "all ranks", "unverified", evidence, remedy=REMEDY_NO_GPU))
    return checks


def _range(pairs: Sequence[Pair]) -> str:
    times = [1e3 * pair.seconds for pair in pairs]
    return f"{len(pairs)} pairs, {min(times):.3f} to {max(times):.3f} ms"


def _rates(records: Sequence[Record], kind: str, pairs: Sequence[Pair], expected: Expectations | None) -> list[Check]:
    """Rates against what joins the two: what all of a kind have in common, no comparison among them shows."""
    ranks_of = {node: len(own) for node, own in links.by_node(records).items()}
    between = links.between(records, expected, alone=True) if kind == links.BETWEEN else None
    outcomes: dict[Status, list[tuple[Pair, float, Threshold]]] = {}
    best: list[tuple[float, float]] = []
    for pair in _comparable(pairs, limits(kind, expected)[1]):
        rate = _bytes(pair.ends[0]) / pair.seconds
        first, second = pair.ends
        link = between if kind == links.BETWEEN else links.pair(first, second, kind, node_ranks=ranks_of[first.node])
        if link is None or _bytes(first) < JUDGED_BYTES:
            outcomes.setdefault("skipped", []).append((pair, rate, limits(kind, expected)[0]))
            continue
        link = link.judging(rate)
        start = START_SECONDS[kind == links.BETWEEN]
        fails, passes = (
            Threshold(
                value=_bytes(first) / (seconds + _bytes(first) / limit) / 1e9 if limit else 0.0,
                unit="GB/s each way", relation="at least", source=link.source,
            )
            for limit, seconds in ((link.fails if link.fails_surely else 0.0, 3 * start), (link.passes, start))
        )  # fmt: skip
        most = thresholds.MOST_OF_LINE * link.most / 1e9
        status, limit = believable(graded(rate / 1e9, fails, passes), rate / 1e9, most, unit="GB/s each way")
        outcomes.setdefault(status, []).append((pair, rate, limit))
        if link.published:
            best.append((rate / 1e9, _bytes(first) / (start + _bytes(first) / link.published) / 1e9))
    checks: list[Check] = []
    for status in ("fail", "unverified"):
        below = outcomes.get(status, [])
        if not below:
            continue
        worst, (_, rate, limit) = min(rate for _, rate, _ in below), below[0]
        for name in _named([pair for pair, _, _ in below], pairs):
            evidence = f"{len(below)} of {len(pairs)} pairs below, the slowest at {worst / 1e9:.1f} GB/s"
            checks.append(_check(f"{kind}: rate", name, status, evidence, measured=worst / 1e9, limit=limit))
    if not checks:
        passed = outcomes.get("pass") or outcomes["skipped"]
        _, rate, limit = min(passed, key=lambda entry: entry[1])
        status = "pass" if outcomes.get("pass") else "skipped"
        note = "" if status == "pass" else "; too small a message, or nothing says what joins them"
        evidence = f"{len(pairs)} pairs, the slowest at {rate / 1e9:.1f} GB/s{note}"
        check = _check(f"{kind}: rate", "all ranks", status, evidence)
        if status == "pass":
            least = min((own / most for own, most in best), default=0.0)
            published = rate / 1e9 / least if least else None
            check = replace(check, measured=rate / 1e9, threshold=limit, published=published)
        checks.append(check)
    return checks


def _comparable(pairs: Sequence[Pair], passes: Threshold) -> list[Pair]:
    """Without those that the comparison with others has already named."""
    if len(pairs) < FEWEST_PAIRS:
        return list(pairs)
    good = percentile([pair.seconds for pair in pairs], GOOD_PERCENT)
    return [pair for pair in pairs if passes.holds(pair.seconds / good)]


def _named(below: Sequence[Pair], pairs: Sequence[Pair]) -> list[str]:
    """Whom pairs below their rate have in common: a node, a rank, or else each link; all where none is above."""
    if len(below) == len(pairs) and len(pairs) > 1:
        return ["all ranks"]
    names: list[str] = []
    left = list(below)
    for of in (_nodes_of, _ranks_of):
        if of is _nodes_of and pairs[0].kind != links.BETWEEN:
            continue
        for name, own in _guilty(pairs, left, of).items():
            names.append(name)
            left = [pair for pair in left if pair not in own]
    return names + [f"{pair.ends[0].subject} and {pair.ends[1].subject}" for pair in left]


def _judge_kind(kind: str, pairs: Sequence[Pair], both: tuple[Threshold, Threshold]) -> list[Check]:
    if len(pairs) < FEWEST_PAIRS:
        return [_check(kind, "all ranks", "skipped", f"{_range(pairs)}; too few to compare")]
    good = percentile([pair.seconds for pair in pairs], GOOD_PERCENT)
    fails, passes = both
    if all(fails.holds(pair.seconds / good) for pair in pairs):
        beyond = [pair for pair in pairs if not passes.holds(pair.seconds / good)]
        if not beyond:
            most = max(pair.seconds for pair in pairs) / good
            return [_check(kind, "all ranks", "pass", _range(pairs), measured=most, limit=passes)]
        return _explained(kind, pairs, good, passes, "unverified")
    return _explained(kind, pairs, good, fails, "fail")


def _explained(kind: str, pairs: Sequence[Pair], good: float, limit: Threshold, status: Status) -> list[Check]:
    """The nodes, ranks and links that explain which pairs are slow."""
    slow = [pair for pair in pairs if not limit.holds(pair.seconds / good)]
    checks: list[Check] = []
    for names in (_nodes_of, _ranks_of):
        if names is _nodes_of and kind != links.BETWEEN:
            continue
        for name, own in _guilty(pairs, slow, names).items():
            others = len({end for pair in own for end in names(pair)} - {name})
            worst = max(pair.seconds for pair in own) / good
            evidence = f"slow with all {others} that it met, up to {worst:.1f} times, and those are not with each other"
            checks.append(_check(kind, name, status, evidence, measured=worst, limit=limit))
            slow = [pair for pair in slow if pair not in own]
    for pair in slow:
        ratio = pair.seconds / good
        subject = f"{pair.ends[0].subject} and {pair.ends[1].subject}"
        evidence = f"{pair.seconds * 1e3:.3f} ms, {ratio:.1f} times what good pairs take; both are fast with others"
        checks.append(_check(kind, subject, status, evidence, measured=ratio, limit=limit))
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
