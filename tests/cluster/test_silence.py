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
    "*.skipped, *": "why a stage was left out",
    "*.asked, *": "as before",
    "gradients.parameter, *": "a place",
    "reading.untold.*, *": "why a figure is not there; that it is not there is judged",
    "reading.name, other case, *": "the same name",
    "presence.device_name, other case, *": "the same name",
    "network.ports.name, *": "a name, the same before and after",
    "network.ports.counters.*, *": "fewer errors, or one more; the most of all ports are quoted",
    "pairs.met.seconds, 0.8 of it *": "quicker, and still within what the links carry",
    "pairs.met.seconds, half *": "as before",
    "adapters.measured.server, missing *": "taken as the adapter's rate to itself",
    "presence.environment.*, *": "none of the variables that were there, which change nothing",
    "presence.restricted, inverted, *": "how GPUs are shown to a job is its owner's choice",
    "presence.host.locked_memory_bytes, *": "there is no limit, and then there is none as well",
    "reading.topology.*, *, after, *": "what was read before the run is quoted",
    "adapters.measured.reason, *": "why there is no rate; that there is none is judged",
    "training.epochs.losses, 0.8 of it in one, *": "each rank has images of its own; within what the ranks show",
    "*, twice*": "one repetition more",
    "*, cut*": "fewer repetitions",
    "*, a sibling's*": "what a sound GPU showed as well",
    "steadiness.*longest_seconds), *": "one interruption, shorter than the longest that is quoted",
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
