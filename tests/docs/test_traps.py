"""A lesson names each mistake that its lab was tried on: no planted bug without a trap, no trap without a bug.

What shows stands open, the mistake behind a click: it is met before it is read.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT

_TRAP = re.compile(r"<details><summary>(.+)</summary>\n\n(.+)\n\n</details>\n")
TRAPS = tomllib.loads(Path(__file__).with_name("traps.toml").read_text())


@pytest.mark.parametrize("lab", TRAPS)
def test_the_traps_of_a_lesson_are_those_that_bugs_were_planted_for(lab: str) -> None:
    mistakes = [mistake for _, mistake in _TRAP.findall(section(lab))]
    assert mistakes == list(TRAPS[lab]), "tests/docs/traps.toml and the lesson say different things"


@pytest.mark.parametrize("lab", TRAPS)
def test_mistakes_stand_behind_a_click_and_nowhere_else_among_the_traps(lab: str) -> None:
    open_text = _TRAP.sub("", section(lab))
    assert not re.search(r"<|^\|", open_text, re.MULTILINE), "a trap is <details><summary>what shows</summary>"
    headings = [line for line in open_text.splitlines() if line.startswith("#")]
    assert len(open_text.split()) < 40 + 5 * len(headings)  # a few words on how to read them
    for shows, mistake in _TRAP.findall(section(lab)):
        assert mistake not in shows


@pytest.mark.parametrize("lab", TRAPS)
def test_every_planted_bug_belongs_to_one_trap(lab: str) -> None:
    planted = {file.parent.name for file in (ROOT / "tests" / "scenarios" / lab / "bugs").glob("*/scenario.toml")}
    told = [bug for bugs in TRAPS[lab].values() for bug in bugs]
    assert sorted(told) == sorted(planted), (
        "tell students of a new planted bug: name the mistake, not its cure, among the traps of its lesson, and its "
        "folder in tests/docs/traps.toml"
    )


def section(lab: str) -> str:
    """The traps of a lesson."""
    return (ROOT / "docs" / "labs" / f"{lab}.md").read_text().partition("\n## Traps\n")[2].partition("\n## ")[0]
