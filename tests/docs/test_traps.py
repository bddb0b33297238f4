"""A lesson names each mistake that its lab was tried on: no planted bug without a trap, no trap without a bug."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT

TRAPS = tomllib.loads(Path(__file__).with_name("traps.toml").read_text())


@pytest.mark.parametrize("lab", TRAPS)
def test_the_traps_of_a_lesson_are_those_that_bugs_were_planted_for(lab: str) -> None:
    _, _, section = (ROOT / "docs" / "labs" / f"{lab}.md").read_text().partition("\n## Traps\n")
    rows = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    mistakes = [row.split(" | ")[0].removeprefix("| ") for row in rows if row != "| mistake | how it shows |"]
    assert mistakes == list(TRAPS[lab]), "tests/docs/traps.toml and the lesson say different things"


@pytest.mark.parametrize("lab", TRAPS)
def test_every_planted_bug_belongs_to_one_trap(lab: str) -> None:
    planted = {file.parent.name for file in (ROOT / "tests" / "scenarios" / lab / "bugs").glob("*/scenario.toml")}
    told = [bug for bugs in TRAPS[lab].values() for bug in bugs]
    assert sorted(told) == sorted(planted), (
        "tell students of a new planted bug: name the mistake, not its cure, among the traps of its lesson, and its "
        "folder in tests/docs/traps.toml"
    )
