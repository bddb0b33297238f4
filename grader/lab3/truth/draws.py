"""What random numbers a model draws in Lab 3's trainings: its own for each seed, epoch and rank, and always those."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from gradebox.run.assertions import require
from gradebox.run.submission import Seen
from grader.lab3.truth.training import Case

_HINT = "seed the random numbers in each epoch by seed, epoch and rank together"
_SAID = "train(): the model drew the same random numbers (dropout)"
_BY_CHANCE = 1
"""Coincidences that a right solution may have: a hash of few bits has one now and then, a sum has one of each kind."""


def require_own_draws(given: Case, seen: Sequence[Seen]) -> None:
    """Fail unless random numbers follow from seed, epoch and rank, and from nothing else."""
    length = len(seen[0].samples) // given.arguments["epochs"]
    first, second = (each.draws[:length] for each in seen)
    require(
        first != second,
        f"{_SAID} on both ranks",
        "seed the random numbers by the rank, too; weights are made equal by DistributedDataParallel",
    )
    for rank, each in enumerate(seen):
        same, other = (training["draws"] for training in each.again)
        require(each.draws[:length] != each.draws[length : 2 * length], f"{_SAID} in two epochs, rank {rank}", _HINT)
        require(
            same == each.draws[:length],
            f"train(), rank {rank}: with the same seed the model drew other random numbers (dropout) once "
            "something else had been drawn before",
            _HINT,
        )
        require(other[:length] != same, f"{_SAID} with another seed, rank {rank}", _HINT)
    _require_no_coincidence(given, seen, length)


def _require_no_coincidence(given: Case, seen: Sequence[Seen], length: int) -> None:
    """Fail where seed, epoch and rank differ, but not what was drawn: a sum of the three does not tell them apart."""
    seeds = given.arguments["seed"], given.again[1]["seed"]
    drawn: dict[str, list[Any]] = {}
    for rank, each in enumerate(seen):
        for seed, draws in zip(seeds, (each.draws, each.again[1]["draws"]), strict=True):
            for epoch in range(len(draws) // length):
                drawn[f"seed {seed}, epoch {epoch}, rank {rank}"] = draws[epoch * length : (epoch + 1) * length]
    alike = [f"{one} and {other}" for one, other in itertools.combinations(drawn, 2) if drawn[one] == drawn[other]]
    require(
        len(alike) <= _BY_CHANCE,
        f"{_SAID} with {'; and with '.join(alike[:2])}: expected other ones each time",
        "in a plain sum of seed, epoch and rank one makes up for another: give each its own place, as digits have",
    )
