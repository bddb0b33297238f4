"""Machines and faults that are drawn: a sound one passes, a broken one does not, and the right part is named."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.cluster.faults import drawn, machines, plants

RECORDED = Path(__file__).parents[2] / "benchmarks" / "results" / "acceptance_drawn.json"
SMALL = (1, 2, 4)
"""Nodes of those that are drawn here; the command draws up to 64."""


@pytest.mark.parametrize("card", machines.CARDS, ids=lambda card: card.name)
def test_a_sound_machine_of_every_card_passes(card: machines.Card) -> None:
    for seed, nodes in enumerate(SMALL):
        outcome = drawn.judged(machines.draw(seed, card=card.name, nodes=nodes))
        assert outcome.verdict == "PASS", [(check.name, check.subject, check.evidence) for check in outcome.checks]


@pytest.mark.parametrize("plant", drawn.PLANTS, ids=drawn.title)
def test_a_fault_that_is_drawn_is_no_pass_and_named_rightly(plant: plants.Plant) -> None:
    planted = 0
    for seed in range(60):
        card = "NVIDIA GB200" if plant is plants.rack_not_formed else None
        machine = machines.draw(seed, card=card, nodes=SMALL[seed % 3])
        before = random.Random(seed)
        if (fault := plant(machine, before)) is None:
            continue
        outcome = drawn.judged(machine)
        assert outcome.verdict != "PASS", (machine.card.name, machine.nodes, fault)
        assert drawn.blames_rightly(fault, outcome), (fault, outcome.subjects)
        planted += 1
        if planted == 2:
            return
    assert planted


def test_what_is_recorded_meets_the_goals() -> None:
    recorded = json.loads(RECORDED.read_text())
    assert {row["what"] for row in recorded["faults"]} == {drawn.title(plant) for plant in drawn.PLANTS}, drawn.COMMAND
    assert recorded["healthy"] >= 1000
    assert sum(recorded["alarms"].values()) <= recorded["healthy"] / 1000
    assert not [row for row in recorded["faults"] if row["PASS"] and (row["size"] or 1) > 0.15]
    found = [row["FAIL"] + row["INCOMPLETE"] for row in recorded["faults"]]
    assert sum(row["blamed"] for row in recorded["faults"]) >= 0.99 * sum(found)
