"""The traps of a lab name each mistake that it was tried on: no planted bug without a trap, no trap without a bug.

What shows stands open, the mistake behind a click: it is met before it is read.
"""

from __future__ import annotations

import re

import pytest

import grader
from tests.docs.markdown import ROOT
from tests.scenarios.build import SCENARIOS, scenarios

_TRAP = re.compile(r"<details><summary>(.+)</summary>\n\n(.+)\n\n</details>\n")
LABS = [lab.id for lab in grader.course().all_labs if (SCENARIOS / lab.id / "bugs").is_dir()]


@pytest.mark.parametrize("lab", LABS)
def test_every_planted_bug_belongs_to_a_trap_of_its_lab(lab: str) -> None:
    homeless = {bug.name: bug.trap for bug in scenarios(f"{lab}/bugs") if bug.trap not in mistakes(lab)}
    assert homeless == {}, (
        f"docs/labs/{lab}-traps.md shows students what costs points: name the mistake of the new bug there, not its "
        "cure, and in its scenario.toml write trap = with the same words"
    )


@pytest.mark.parametrize("lab", LABS)
def test_every_trap_of_a_lab_has_a_planted_bug(lab: str) -> None:
    assert set(mistakes(lab)) - {bug.trap for bug in scenarios(f"{lab}/bugs")} == set()
    assert len(set(mistakes(lab))) == len(mistakes(lab))


@pytest.mark.parametrize("lab", LABS)
def test_mistakes_stand_behind_a_click_and_nowhere_else_among_the_traps(lab: str) -> None:
    open_text = _TRAP.sub("", section(lab))
    assert not re.search(r"<|^\|", open_text, re.MULTILINE), "a trap is <details><summary>what shows</summary>"
    headings = [line for line in open_text.splitlines() if line.startswith("#")]
    assert len(open_text.split()) < 40 + 5 * len(headings)  # a few words on how to read them
    for shows, mistake in _TRAP.findall(section(lab)):
        assert mistake not in shows


def mistakes(lab: str) -> list[str]:
    """The mistakes of a lab's traps, in the words of their page."""
    return [mistake for _, mistake in _TRAP.findall(section(lab))]


def section(lab: str) -> str:
    """The traps of a lab: their page without its title."""
    return (ROOT / "docs" / "labs" / f"{lab}-traps.md").read_text().partition("\n")[2]
