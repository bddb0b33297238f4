"""What random numbers a model draws in Lab 3's trainings: its own for each seed, epoch and rank, and always those."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from gradebox.run.assertions import require
from grader.lab3.setup.cases.training import Train, TrainReply
from grader.lab3.shared.checks.draws import DRAWS

_HINT = "Before each epoch, seed the random numbers by seed, epoch and rank together."
_SAID = "train(): the model drew the same random numbers (dropout)"
_BY_CHANCE = 1
"""Coincidences that a right solution may have: a hash of few bits has one now and then, a sum has one of each kind."""


def require_own_draws(case: Train, replies: Sequence[TrainReply]) -> None:
    """Fail unless random numbers follow from seed, epoch and rank, and from nothing else."""
    length = len(replies[0].samples) // case.options["epochs"]
    first, second = (reply.draws[:length] for reply in replies)
    require(
        first != second,
        f"{_SAID} on both ranks",
        "Seed the random numbers by the rank, too. DistributedDataParallel makes the weights equal.",
    )
    for rank, reply in enumerate(replies):
        same, other = (training.draws for training in reply.again)
        require(reply.draws[:length] != reply.draws[length : 2 * length], f"{_SAID} in two epochs, rank {rank}", _HINT)
        require(
            same == reply.draws[:length],
            f"train(), rank {rank}: with the same seed the model drew other random numbers (dropout) once "
            "something else had been drawn before",
            DRAWS,
        )
        require(other[:length] != same, f"{_SAID} with another seed, rank {rank}", DRAWS)
    _require_no_coincidence(case, replies, length)


def _require_no_coincidence(case: Train, replies: Sequence[TrainReply], length: int) -> None:
    """Fail where seed, epoch and rank differ, but not what was drawn: a sum of the three does not tell them apart."""
    seeds = case.options["seed"], case.again[1]["seed"]
    drawn: dict[str, list[list[float]]] = {}
    for rank, reply in enumerate(replies):
        for seed, draws in zip(seeds, (reply.draws, reply.again[1].draws), strict=True):
            for epoch in range(len(draws) // length):
                drawn[f"seed {seed}, epoch {epoch}, rank {rank}"] = draws[epoch * length : (epoch + 1) * length]
    pairs = itertools.combinations(drawn, 2)
    alike = [f"{left} and {right}" for left, right in pairs if drawn[left] == drawn[right]]
    require(
        len(alike) <= _BY_CHANCE,
        f"{_SAID} with {'; and with '.join(alike[:2])}: expected other ones each time",
        "Give seed, epoch and rank each its own place, as digits have: in a plain sum one makes up for another.",
    )
