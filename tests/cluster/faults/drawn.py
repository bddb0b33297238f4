"""`python -m tests.cluster.faults.drawn`: healthy machines and machines with one fault, drawn and judged by the thousand.

No process runs: a machine is what its workers would have told (machines.py). A fault has a size, the share of a rate that
it costs, or none if it costs no rate. Records `benchmarks/results/acceptance_drawn.json`, of which the site makes a table.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

from benchmarks.measure import save
from cluster.acceptance import report
from cluster.acceptance.records import apart
from cluster.acceptance.verdict import Check, decide
from tests.cluster import sound
from tests.cluster.faults import unsteady
from tests.cluster.faults.machines import Machine, draw
from tests.cluster.faults.plants import EVERYBODY, Plant, Planted, rack_not_formed
from tests.cluster.faults.plants import PLANTS as LASTING

COMMAND = "python -m tests.cluster.faults.drawn"
PLANTS = LASTING + unsteady.PLANTS
PART = 100
"""Healthy machines that one process draws at a time."""
COLUMNS = ("FAIL", "INCOMPLETE", "PASS", "blamed")
_PART = re.compile(r"GPU \d+ \(rank \d+, [^)]*\)|node node\d+")
_NODE = re.compile(r", (node\d+)\)")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a machine was judged."""

    verdict: str
    checks: tuple[Check, ...]
    """Those that are no pass: failures, or else what is not verified."""

    @property
    def subjects(self) -> set[str]:
        """Whom they name."""
        return {check.subject for check in self.checks}


def judged(machine: Machine) -> Outcome:
    """The verdict on a machine."""
    checks = report.judge(sound.options(), apart(machine.records), report.Standards())
    verdict = decide(checks, device="cuda", simulated=False).outcome
    status = "fail" if verdict == "FAIL" else "unverified"
    return Outcome(verdict=verdict, checks=tuple(check for check in checks if check.status == status))


def blames_rightly(planted: Planted, outcome: Outcome) -> bool:
    """Whether a part that is to blame is named, and no GPU, link or node that is not."""
    parts = {part for subject in outcome.subjects for part in _PART.findall(subject)}
    nodes = {f"node {name}" for subject in planted.named for name in _NODE.findall(subject)}
    allowed = set(planted.named) | nodes
    if planted.named == (EVERYBODY,):
        return bool(outcome.subjects)
    # Who is at the other end of a link that is to blame may be named with it.
    beside = {part for subject in outcome.subjects for part in _PART.findall(subject) if _PART.search(subject)
              and any(name in subject for name in planted.named)}  # fmt: skip
    return bool(parts & allowed) and not parts - allowed - beside


def healthy(seeds: Sequence[int]) -> Iterator[tuple[Machine, Outcome]]:
    """Machines without a fault."""
    for seed in seeds:
        machine = draw(seed)
        yield machine, judged(machine)


def broken(plant: Plant, seeds: Sequence[int]) -> Iterator[tuple[Machine, Planted, Outcome]]:
    """Machines with this fault, of those that have such a part."""
    for seed in seeds:
        card = "NVIDIA GB200" if plant is rack_not_formed else None
        machine = draw(seed, card=card, nodes=2 + seed % 3 if card else None)
        if (planted := plant(machine, random.Random(seed))) is not None:
            yield machine, planted, judged(machine)


def title(plant: Plant) -> str:
    """One line for people."""
    return (plant.__doc__ or "").strip().rstrip(".")


def _alarms(seeds: Sequence[int]) -> tuple[Counter[str], set[str]]:
    """Healthy machines that are no pass, by the first check that says so; and the cards that there were."""
    alarms: Counter[str] = Counter()
    cards = set()
    for machine, outcome in healthy(seeds):
        cards.add(machine.card.name)
        if outcome.verdict != "PASS":
            alarms[f"{outcome.verdict}: {outcome.checks[0].name}, {machine.card.name}"] += 1
    return alarms, cards


def _rows(number: int, each: int) -> list[dict[str, Any]]:
    """One fault, by its size."""
    plant, sizes = PLANTS[number], dict[float | None, Counter[str]]()
    for _, planted, outcome in broken(plant, range(10**6 * (number + 1), 10**6 * (number + 1) + each)):
        counts = sizes.setdefault(None if planted.size is None else round(planted.size, 2), Counter())
        counts[outcome.verdict] += 1
        counts["blamed"] += outcome.verdict != "PASS" and blames_rightly(planted, outcome)
    print(title(plant), {size: dict(counts) for size, counts in sizes.items()}, file=sys.stderr, flush=True)
    return [
        {"what": title(plant), "size": size, **{key: counts[key] for key in COLUMNS}}
        for size, counts in sorted(sizes.items(), key=lambda item: item[0] or 0)
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Draw, judge and record; returns 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machines", type=int, default=2000, help="healthy ones (default: 2000)")
    parser.add_argument("--each", type=int, default=150, help="machines drawn for each fault (default: 150)")
    parser.add_argument("--processes", type=int, default=2, help="at once (default: 2)")
    arguments = parser.parse_args(argv)
    parts = [range(first, min(first + PART, arguments.machines)) for first in range(0, arguments.machines, PART)]
    with ProcessPoolExecutor(arguments.processes) as pool:
        faults = [pool.submit(_rows, number, arguments.each) for number in range(len(PLANTS))]
        found = list(pool.map(_alarms, parts))
        rows = [row for fault in faults for row in fault.result()]
    alarms = sum((part for part, _ in found), Counter[str]())
    cards = len(set[str]().union(*(names for _, names in found)))
    result = {"healthy": arguments.machines, "cards": cards, "alarms": dict(alarms), "faults": rows}
    path = save("acceptance_drawn", result)
    print(f"wrote {path}: {alarms.total()} alarms of {arguments.machines} healthy machines: {dict(alarms)}")
    missed = [row for row in rows if row["PASS"] and (row["size"] or 1) > 0.15]
    return 1 if missed or alarms.total() > arguments.machines / 1000 else 0


if __name__ == "__main__":
    raise SystemExit(main())
