"""No value can be wrong in silence: whatever is done to one, the verdict is no PASS, or the banner says another thing.

`test_variations.py` requires a judgement, and excuses fields that have no norm. Here nothing is excused for that: the
banner has to quote them. `SILENT` is what neither can show.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from itertools import chain

import pytest

from cluster.acceptance.records import Record
from tests.cluster import sound
from tests.cluster.faults import changes, machines
from tests.cluster.faults.reported import L40S, T4, TWO_SOCKETS
from tests.cluster.faults.variations import Variation, variations, wider
from tests.cluster.test_ledger import machine

SILENT = {
    "*.bytes, *": "chosen by this test, the same on all",
}
"""Variations that change no word: title, and why."""


def loaded(records: list[Record]) -> list[Record]:
    """With minutes of load."""
    changes.paced(0.95)(records)
    return records


MACHINES: dict[str, Callable[[], list[Record]]] = {
    "two nodes of H100": machine,
    "four L40S": lambda: loaded(changes.hosted(L40S, gpus=4, adapters=2, port=200, topology=TWO_SOCKETS)),
    "one T4": lambda: loaded(changes.hosted(T4, gpus=1, adapters=1, rdma=False, port=25)),
    "A100 with noise": lambda: machines.draw(8, card="NVIDIA A100-SXM4-80GB", nodes=1).records,
}


def verdict(records: list[Record]) -> tuple[str, list[str]]:
    """And what the banner says that it is not about."""
    acceptance = sound.report(records, "--thorough")["acceptance"]
    return acceptance["status"], [line for line in acceptance["summary"] if line.startswith("Not ")]


def unshared(records: list[Record]) -> list[Record]:
    """As records come from their workers: no two of them share a list."""
    return [Record.loads(record.dumps()) for record in records]


def silent(make: Callable[[], list[Record]], every: int, first: int = 0) -> Iterator[Variation]:
    """Each so many-th variation that changes neither the verdict nor the banner."""
    base = unshared(make())
    status, usual = verdict(base)
    assert status == "PASS", usual
    for number, variation in enumerate(chain(variations(make), wider(make))):
        if number % every == first and not any(fnmatchcase(variation.title, title) for title in SILENT):
            records = copy.deepcopy(base)
            if variation.apply(records) and verdict(records) == (status, usual):
                yield variation


@pytest.mark.parametrize("name", MACHINES)
def test_some_values_of_each_machine_cannot_be_wrong_in_silence(name: str) -> None:
    assert [variation.title for variation in silent(MACHINES[name], every=397)] == []


@pytest.mark.night
@pytest.mark.parametrize("name", MACHINES)
def test_no_value_can_be_wrong_in_silence(name: str) -> None:
    assert [
        variation.title for variation in silent(MACHINES[name], every=1 if name == next(iter(MACHINES)) else 7)
    ] == []
