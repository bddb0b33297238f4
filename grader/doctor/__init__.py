"""What is here, what is wrong, and the command that fixes it. Changes nothing.

`python3 -m grader.doctor` needs nothing but Python, an old one too, so that it can be asked before anything is
installed; `gpulabs doctor` is the same. PyTorch is only loaded in a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from grader.doctor import gpus, machine, pytorch, software
from grader.doctor.fact import NOTE, OK, TO_DO, WRONG, Fact


def examine() -> Iterator[Fact]:
    """Look at one thing after the other; the slow ones (PyTorch, the sandbox) take some seconds."""
    system = software.system()
    yield system
    if system.state == WRONG:  # what is installed here is of no use
        return
    yield from software.examine()
    driver = gpus.examine()
    yield driver.fact
    facts = pytorch.examine(driver)
    yield from facts
    there = not any(fact.name == "PyTorch" and fact.state in (TO_DO, WRONG) for fact in facts)
    yield from machine.examine(torch_is_there=there)


def line(fact: Fact, *, colours: bool = False) -> str:
    """A fact as it is shown, with its commands below."""
    colour = {OK: "32", NOTE: "33", TO_DO: "36", WRONG: "31"}[fact.state] if colours else ""
    state = f"\033[{colour}m{fact.state:<5}\033[0m" if colour else f"{fact.state:<5}"
    rows = [f"{state}  {fact.name:<15}  {fact.text}"]
    rows += [f"{'':<24}{'fix: ' if number == 0 else '     '}{text}" for number, text in enumerate(fact.fix)]
    return "\n".join(rows)


def summary(facts: list[Fact]) -> str:
    """The last lines: can one work, and what comes first."""
    bad = [fact for fact in facts if fact.state == WRONG]
    notes = sum(fact.state == NOTE for fact in facts)
    if not bad and (to_do := [fact for fact in facts if fact.state == TO_DO]):
        return f"Nothing is wrong. The course is not installed yet.\nInstall it: {to_do[0].fix[0]}"
    if not bad:
        noted = f" ({notes} note{'' if notes == 1 else 's'} above)" if notes else ""
        return f"The labs can be worked on{noted}. Begin with: make grade LAB=1, then make next"
    names = ", ".join(fact.name for fact in bad)
    text = f"{len(bad)} thing{'' if len(bad) == 1 else 's'} wrong: {names}. Fix them from the top, and look again."
    return text + (f"\nFirst: {bad[0].fix[0]}" if bad[0].fix else "")


def main(colours: bool = False) -> int:
    """Show everything; 1 when something is wrong, else 0."""
    facts = []
    for fact in examine():
        print(line(fact, colours=colours), flush=True)
        facts.append(fact)
    print()
    print(summary(facts))
    return 1 if any(fact.state == WRONG for fact in facts) else 0
