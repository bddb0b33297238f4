"""What gradings of the reference never asked: `python -m tests.scenarios.inputs 2 [--seeds 10]`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from tests.scenarios.build import ROOT
from tests.scenarios.grading import Bench
from tests.scenarios.store import Store
from tests.scenarios.test_inputs import covered, declared, probes_of


def main(
    lab: Annotated[int, typer.Argument(help="Its number.")],
    seeds: Annotated[int, typer.Option(min=1, help="So many gradings, from seed 0.")] = 10,
) -> None:
    """Print, for each declared space, values and pairs of values that no grading asked, and probes without a space."""
    spaces, without = declared(lab)
    named = {probe for space in spaces for probe in space.probes}
    for probe in sorted(probes_of(lab) - named - set(without)):
        print(f"{probe}: no space, and no reason for having none")
    with (
        tempfile.TemporaryDirectory() as folder,
        Bench(Path(folder) / "student", Store(ROOT / "build" / "replies"), 20260) as bench,
    ):
        coverages = covered(bench, lab, range(seeds))
    for coverage in coverages:
        count, missing = len(list(coverage.space.pairs())), coverage.missing_pairs()
        print(f"{', '.join(coverage.space.probes)}: {coverage.cases} cases, {count - len(missing)} of {count} pairs")
        for value in coverage.missing_values():
            print(f"  never {value}")
        for pair in missing:
            print(f"  never {' with '.join(pair)}")
        for pair in coverage.idle_excuses():
            print(f"  no excuse needed for {' with '.join(pair)}")


if __name__ == "__main__":
    typer.run(main)
