"""`docs/mutants.md`: what became of all mutants, made from the verdicts that `python -m tests.mutants` keeps."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
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


def page(labs: Mapping[str, Sequence[Outcome]], made: Mapping[str, int]) -> str:
    """The page, in Markdown.

    Args:
        labs: the outcomes of each lab.
        made: how many mutants each has; those that were not graded are said to be so.
    """
    together = [outcome for outcomes in labs.values() for outcome in outcomes]
    sample = f"**A sample:** {len(together)} of these {sum(made.values())} were graded, always the same ones. "
    lines = [
        "# Mutants: the reference, changed once", "",
        "Made by `make mutants`. Each line of a solution that students write is changed in every way that "
        "`tests/mutants/mutators.py` knows, one at a time, and graded. *Noticed*: a check did not pass. *Excused*: "
        "nothing changes, or nothing was promised; `tests/mutants/excused.toml` says why. *Open*: a question that "
        "nobody asks yet.",
        "", (sample if len(together) < sum(made.values()) else "") + "A lab without a row was not graded.",
        "", "| lab | mutants | graded | noticed | excused | open | noticed of what is not excused |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]  # fmt: skip
    for lab, outcomes in labs.items():
        lines.append(f"| {lab} | {made[lab]} | {_row(outcomes)} |")
    lines += [f"| all | {sum(made.values())} | {_row(together)} |", "", "## By kind", ""]
    lines += ["| kind | graded | noticed | excused | open | |", "|---|---:|---:|---:|---:|---:|"]
    kinds = defaultdict(list)
    for outcome in together:
        kinds[outcome.kind].append(outcome)
    lines += [f"| {kind} | {_row(kinds[kind])} |" for kind in sorted(kinds)]
    lines += ["", "## Excused", "", "| reason | mutants |", "|---|---:|"]
    reasons = Counter(outcome.excuse for outcome in together if outcome.excuse)
    lines += [f"| {reason} | {count} |" for reason, count in reasons.most_common()]
    lines += ["", "## Open", ""]
    for outcome in together:
        if outcome.is_open:
            change = outcome.change.replace("`", "'")
            lines.append(f"- {outcome.file}:{outcome.line}, {outcome.function}: {outcome.kind}: `{change}`")
    return "\n".join(lines) + "\n"


def _row(outcomes: Sequence[Outcome]) -> str:
    noticed = sum(bool(outcome.noticed) for outcome in outcomes)
    excused = sum(bool(outcome.excuse) for outcome in outcomes)
    share = f"{100 * noticed / (len(outcomes) - excused):.0f} %" if len(outcomes) > excused else "-"
    return f"{len(outcomes)} | {noticed} | {excused} | {len(outcomes) - noticed - excused} | {share}"
