"""Two planted bugs of one lab in one submission: neither may hide behind the other.

    python -m tests.scenarios.pairs [--lab 2] [--count 200] [--seed 1]

Each bug is graded alone, then both together. They are *joined* if a check that the one bug fails by itself is said to
show the same mistake as a check that only the other one fails. Then a student fixes one mistake and the other comes
back. A check of one bug may fail to show next to the other for a reason that the report gives: it waits for a check
without an answer, or both bugs together happen to give what it expects.

Writes `benchmarks/results/pairs.json`. Exits with 1 if any pair is joined.
"""

from __future__ import annotations

import argparse
import itertools
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import track

from benchmarks.measure import save
from gradebox.run.grade import Outcome
from tests.scenarios.build import ROOT, Scenario, scenarios
from tests.scenarios.grading import Bench, Graded, TooLong
from tests.scenarios.store import Store

LABS = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class Pair:
    """What became of two bugs in one submission."""

    lab: str
    first: str
    second: str
    alone: tuple[float, float]
    """Points that each of them loses by itself."""
    together: float
    joined: tuple[str, ...] = ()
    """Checks that one bug fails by itself and that are said to follow from a check that only the other one fails."""
    unseen: tuple[str, ...] = ()
    """Checks that are charged for one bug by itself and that pass or wait next to the other."""


def can_be_together(first: Scenario, second: Scenario) -> bool:
    """Whether both consist of edits alone, which do not touch each other, and neither hangs."""
    tables = first.table, second.table
    if any(set(table) & {"include", "copy", "prepend", "link", "hangs", "dear", "cold"} for table in tables):
        return False
    if any(
        [path for path in scenario.folder.iterdir() if path.name != "scenario.toml"] for scenario in (first, second)
    ):
        return False
    return not any(_touch(left, right) for left, right in itertools.product(*(table["edit"] for table in tables)))


def _touch(left: dict[str, str], right: dict[str, str]) -> bool:
    """Whether one edit changes a line that the other one looks for."""
    if left["file"] != right["file"]:
        return False
    text = (ROOT / "solutions" / left["file"]).read_text(encoding="utf-8")
    spans = []
    for edit in (left, right):
        start = text.index(edit["old"])
        spans.append((text.count("\n", 0, start), text.count("\n", 0, start + len(edit["old"]))))
    (first, last), (second, end) = spans
    return first <= end and second <= last


def both(first: Scenario, second: Scenario) -> Scenario:
    """The submission with the edits of both."""
    edits = [*first.table["edit"], *second.table["edit"]]
    return Scenario(f"{first.name} and {second.name}", first.folder, {"edit": edits})


def draw(lab: int, count: int, seed: int) -> list[tuple[Scenario, Scenario]]:
    """So many pairs of a lab's bugs, or as many as there are."""
    bugs = scenarios(f"lab{lab}/bugs")
    pairs = [pair for pair in itertools.combinations(bugs, 2) if can_be_together(*pair)]
    return random.Random(f"{seed} {lab}").sample(pairs, min(count, len(pairs)))


def compared(lab: int, first: Scenario, second: Scenario, graded: Sequence[Graded]) -> Pair:
    """Hold the grade of both against those of each alone; `graded` are first, second and both."""
    alone, together = graded[:2], graded[2]
    failed = [set(single.checks) - single.passed for single in alone]
    joined, unseen = [], []
    for own, single, others in ((failed[0], alone[0], failed[1]), (failed[1], alone[1], failed[0])):
        for name in sorted(single.charged - others):
            check = together.checks.get(name)
            if check is None or check.outcome in (Outcome.PASSED, Outcome.BLOCKED):
                unseen.append(name)
            elif check.follows_from and check.follows_from not in own:
                joined.append(f"{name} with {check.follows_from}")
    worth = [sum(float(check.max_points) for check in grade.checks.values()) for grade in graded]
    lost = [round(total - grade.score, 3) for total, grade in zip(worth, graded, strict=True)]
    return Pair(
        f"lab{lab}", first.name, second.name, (lost[0], lost[1]), lost[2], tuple(joined), tuple(dict.fromkeys(unseen))
    )


def grade(bench: Bench, lab: int, pairs: Sequence[tuple[Scenario, Scenario]]) -> Iterator[Pair | str]:
    """What became of each pair, or why it could not be graded."""
    alone: dict[str, Graded] = {}
    for first, second in pairs:
        try:
            for bug in (first, second):
                if bug.name not in alone:
                    alone[bug.name] = bench.grade(bug, str(lab))
            together = bench.grade(both(first, second), str(lab))
        except (TooLong, ValueError) as error:
            yield f"{first.name} and {second.name}: {error}"
            continue
        yield compared(lab, first, second, (alone[first.name], alone[second.name], together))


def main() -> int:
    """Grade pairs of every lab, or of one, and record them."""
    parser = argparse.ArgumentParser(prog="python -m tests.scenarios.pairs", description="Two planted bugs at once.")
    parser.add_argument("--lab", type=int, choices=LABS, help="one lab; otherwise all")
    parser.add_argument("--count", type=int, default=200, help="pairs in all")
    parser.add_argument("--seed", type=int, default=1, help="which pairs are drawn")
    options = parser.parse_args()
    console = Console(stderr=True)
    labs = [options.lab] if options.lab else list(LABS)
    results: list[Pair] = []
    folder = Path(tempfile.mkdtemp(prefix="pairs-", dir="/var/tmp" if Path("/var/tmp").is_dir() else None))
    folder.chmod(0o755)
    try:
        with Bench(folder / "student", Store(ROOT / "build" / "replies")) as bench:
            for lab in labs:
                pairs = draw(lab, options.count // len(labs), options.seed)
                for pair in track(grade(bench, lab, pairs), f"lab{lab}", total=len(pairs), console=console):
                    if isinstance(pair, str):
                        console.print(pair, markup=False)
                        continue
                    results.append(pair)
                    if pair.joined:
                        console.print(
                            f"{pair.lab}: {pair.first} and {pair.second}: {'; '.join(pair.joined)}", markup=False
                        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    joined = [pair for pair in results if pair.joined]
    print(f"{len(results)} pairs, {len(joined)} joined")
    if not options.lab:
        print(save("pairs", {"seed": options.seed, "joined": len(joined), "pairs": [asdict(pair) for pair in results]}))
    return 1 if joined else 0


if __name__ == "__main__":
    sys.exit(main())
