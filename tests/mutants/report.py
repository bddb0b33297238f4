"""What became of all mutants: the verdicts that `python -m tests.mutants` keeps, and their summary for the site."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.mutants.excuses import Excuse
from tests.mutants.mutators import Mutant
from tests.mutants.survey import Verdict


@dataclass(frozen=True)
class Outcome:
    """A mutant and what became of it, as it is kept."""

    file: str
    function: str
    line: int
    kind: str
    change: str
    noticed: str
    excuse: str = ""

    @property
    def is_open(self) -> bool:
        return not self.noticed and not self.excuse


def outcome_of(verdict: Verdict, excuses: Sequence[Excuse]) -> Outcome:
    """What is kept of a verdict. An excuse counts only for who was not noticed."""
    mutant = verdict.mutant
    excuse = "" if verdict.noticed else reason_for(mutant, excuses)
    return Outcome(
        mutant.file, mutant.function, mutant.line, mutant.kind, mutant.key.partition(": ")[2], verdict.noticed, excuse
    )


def reason_for(mutant: Mutant, excuses: Iterable[Excuse]) -> str:
    """Why nobody need notice; empty where somebody should."""
    return next((excuse.reason for excuse in excuses if excuse.holds_for(mutant)), "")


def save(path: Path, outcomes: Sequence[Outcome]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=0) + "\n", encoding="utf-8")


def load(path: Path) -> list[Outcome]:
    return [Outcome(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))]


def summary(labs: Mapping[str, Sequence[Outcome]], made: Mapping[str, int]) -> dict[str, object]:
    """What the site shows, for `benchmarks/results/mutants.json`.

    Args:
        labs: the outcomes of each lab.
        made: how many mutants each lab has, graded or not.
    """
    outcomes = [outcome for lab in labs.values() for outcome in lab]
    return {
        "labs": {lab: {"mutants": made[lab], "kinds": _kinds(graded)} for lab, graded in labs.items()},
        "excused": dict(Counter(outcome.excuse for outcome in outcomes if outcome.excuse)),
        "open": [
            f"{outcome.file}:{outcome.line}, {outcome.function}: {outcome.kind}: {outcome.change}"
            for outcome in outcomes
            if outcome.is_open
        ],
    }


def _kinds(outcomes: Iterable[Outcome]) -> dict[str, dict[str, int]]:
    kinds: dict[str, dict[str, int]] = {}
    for outcome in outcomes:
        counts = kinds.setdefault(outcome.kind, {"graded": 0, "noticed": 0, "excused": 0})
        counts["graded"] += 1
        counts["noticed"] += bool(outcome.noticed)
        counts["excused"] += bool(outcome.excuse)
    return kinds
