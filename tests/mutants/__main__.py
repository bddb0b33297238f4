"""`python -m tests.mutants [--lab lab2] [--one-in N | --open] [--jobs N]`: grade mutants of the reference.

Verdicts are kept in `build/mutants/`, so that labs can be graded one at a time; replies of the sandbox in
`build/replies-mutants`. Interrupted, it keeps what it has. It writes `benchmarks/results/mutants.json`,
from which the site makes its page; a lab that was not graded has no row there.
"""

from __future__ import annotations

import argparse
import hashlib
import sys

from rich.console import Console
from rich.progress import track

import grader
from benchmarks.measure import save
from tests.mutants import excuses, report
from tests.mutants.mutators import Mutant
from tests.mutants.survey import Verdict, of_lab, survey
from tests.scenarios.build import ROOT

KEPT = ROOT / "build" / "mutants"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Grade mutants of the reference.")
    labs = [lab.id for lab in grader.course().rubric.labs]
    parser.add_argument("--lab", choices=labs, help="one lab; otherwise all")
    parser.add_argument("--one-in", type=int, default=1, metavar="N", help="grade one in N of them, always the same")
    parser.add_argument("--only", default="", metavar="TEXT", help="those whose file and function contain this")
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--excuse", action="store_true", help="grade nothing: read the excuses again")
    parser.add_argument("--open", action="store_true", help="grade those again that were open the last time")
    options = parser.parse_args()
    console = Console(stderr=True)
    for lab in [options.lab] if options.lab else labs:
        if options.excuse or options.open:
            _excuse_again(lab)
        if options.excuse:
            continue
        chosen = [
            mutant for mutant in of_lab(lab) if _number(mutant) % options.one_in == 0 and options.only in _name(mutant)
        ]
        known = excuses.load()
        outcomes = []
        if options.open:
            # Several may have one place: all are asked.
            left = {_place(outcome) for outcome in _kept(lab) if outcome.is_open}
            outcomes = [outcome for outcome in _kept(lab) if _place(outcome) not in left]
            chosen = [
                mutant
                for mutant in of_lab(lab)
                if (mutant.file, mutant.function, mutant.key.partition(": ")[2]) in left
            ]
        verdicts = survey(lab, chosen, options.jobs)
        try:
            for verdict in track(verdicts, f"mutants of {lab}", total=len(chosen), console=console):
                outcome = report.outcome_of(verdict, known)
                outcomes.append(outcome)
                if outcome.is_open:
                    console.print(
                        f"{_name(verdict.mutant)}:{outcome.line}: {outcome.kind}: {outcome.change}", markup=False
                    )
        finally:
            if not options.only:
                report.save(
                    KEPT / f"{lab}.json",
                    sorted(outcomes, key=lambda outcome: (outcome.file, outcome.line, outcome.change)),
                )
    kept = {lab: report.load(KEPT / f"{lab}.json") for lab in labs if (KEPT / f"{lab}.json").exists()}
    if not options.only:
        path = save("mutants", report.summary(kept, {lab: len(of_lab(lab)) for lab in kept}))
        console.print(f"{path.relative_to(ROOT)} is written")
    return 0


def _kept(lab: str) -> list[report.Outcome]:
    """What became of the mutants that were graded the last time."""
    file = KEPT / f"{lab}.json"
    return report.load(file) if file.exists() else []


def _place(outcome: report.Outcome) -> tuple[str, str, str]:
    return outcome.file, outcome.function, outcome.change


def _excuse_again(lab: str) -> None:
    file = KEPT / f"{lab}.json"
    if not file.exists():
        return
    known = excuses.load()
    mutants = {(mutant.file, mutant.function, mutant.key.partition(": ")[2]): mutant for mutant in of_lab(lab)}
    outcomes = []
    for outcome in _kept(lab):
        mutant = mutants.get(_place(outcome))
        if mutant is not None:
            outcomes.append(report.outcome_of(Verdict(mutant, outcome.noticed), known))
    report.save(file, outcomes)


def _name(mutant: Mutant) -> str:
    return f"{mutant.file}:{mutant.function}"


def _number(mutant: Mutant) -> int:
    """The same in every run, as long as the mutant is."""
    return int.from_bytes(hashlib.sha256(f"{_name(mutant)} {mutant.key}".encode()).digest()[:4])


if __name__ == "__main__":
    sys.exit(main())
