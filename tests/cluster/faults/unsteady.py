"""Faults that come and go: repetitions of which a share is slow, whose median is sound."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy

from tests.cluster.faults import noise
from tests.cluster.faults.machines import MIB, SAMPLES, Machine, figures, product
from tests.cluster.faults.noise import comes_and_goes
from tests.cluster.faults.plants import EVERYBODY, Plant, Planted

LITTLE, MUCH = (
    ((0.05, 5.0), (0.1, 3.0), (0.2, 2.0), (0.35, 1.6), (0.5, 1.4)),
    ((0.1, 5.0), (0.2, 3.0), (0.3, 2.0), (0.5, 2.0), (0.5, 5.0)),
)
"""Shares of the repetitions that are slow, and how many times as slow: of LITTLE each costs 17 % of a rate."""


def _cost(share: float, factor: float) -> float:
    return 1 - 1 / (1 + share * (factor - 1))


def products_now_and_then(machine: Machine, draw: random.Random) -> Planted | None:
    """Products of one GPU are slow now and then."""
    record, (share, factor) = draw.choice(machine.records), draw.choice(LITTLE + MUCH)
    jitter, own = machine.jitter, record.results

    def slow(seconds: Sequence[float]) -> numpy.ndarray:
        return comes_and_goes(numpy.array(seconds), share, factor, draw.randrange(2**31))

    work = 2 * 8192 * 8192 * 2048
    own["compute"]["products"] = {
        name: product(work, slow(one["seconds"])) for name, one in own["compute"]["products"].items()
    }
    own["training"]["alone_seconds"] = slow(own["training"]["alone_seconds"]).tolist()
    for epoch in own["training"]["epochs"]:
        epoch["own_seconds"] = slow(epoch["own_seconds"]).tolist()
    usual = own["steadiness"]["products"]["p50_seconds"]
    own["steadiness"]["products"] = figures(slow(usual * jitter.of(noise.PRODUCTS, SAMPLES["products"])))
    return Planted(size=_cost(share, factor), named=(record.subject,))


def messages_now_and_then(machine: Machine, draw: random.Random) -> Planted | None:
    """Small messages are slow in bursts."""
    if len(machine.records) < 2:
        return None
    share, factor = draw.choice(LITTLE + MUCH)
    small = noise.SMALL[machine.fabric]
    for position, one in enumerate(machine.records[0].results["collectives"]["measurements"]):
        if one["bytes"] <= MIB:
            times = comes_and_goes(numpy.ones(len(one["seconds"])), share, factor, draw.randrange(2**31))
            for record in machine.records:
                row = record.results["collectives"]["measurements"][position]
                row["seconds"] = (times * row["seconds"]).tolist()
    usual = machine.records[0].results["collectives"]["steady"]["p50_seconds"]
    times = machine.jitter.of(small, SAMPLES["messages"])
    steady = figures(usual * comes_and_goes(times, share, factor, draw.randrange(2**31)))
    for record in machine.records:
        record.results["collectives"]["steady"] |= steady
    return Planted(size=_cost(share, factor), named=(EVERYBODY,))


def large_now_and_then(machine: Machine, draw: random.Random) -> Planted | None:
    """Large messages are slow now and then, as behind a congested switch."""
    if len(machine.records) < 2:
        return None
    share, factor = draw.choice(MUCH)
    for position, one in enumerate(machine.records[0].results["collectives"]["measurements"]):
        if one["bytes"] > MIB:
            times = comes_and_goes(numpy.ones(len(one["seconds"])), share, factor, draw.randrange(2**31))
            for record in machine.records:
                row = record.results["collectives"]["measurements"][position]
                row["seconds"] = (times * row["seconds"]).tolist()
    return Planted(size=_cost(share, factor), named=(EVERYBODY,))


def copies_now_and_then(machine: Machine, draw: random.Random) -> Planted | None:
    """Copies from and to one GPU are slow now and then."""
    record, (share, factor) = draw.choice(machine.records), draw.choice(MUCH)
    copies = record.results["steadiness"]["copies"]
    for way, pace in copies.items():
        times = machine.jitter.of(noise.COPIES, SAMPLES["copies"])
        copies[way] = figures(pace["p50_seconds"] * comes_and_goes(times, share, factor, draw.randrange(2**31)))
    return Planted(size=_cost(share, factor), named=(record.subject,))


def steps_now_and_then(machine: Machine, draw: random.Random) -> Planted | None:
    """The host of one GPU stops its training now and then, as with a cgroup's quota of processor time."""
    record, (share, factor) = draw.choice(machine.records), draw.choice(((0.2, 5.0), (0.3, 4.0), (0.5, 3.0)))
    (epoch,) = record.results["training"]["epochs"]
    if len(epoch["own_seconds"]) < 100:
        return None
    slow = comes_and_goes(numpy.array(epoch["own_seconds"]), share, factor, draw.randrange(2**31))
    epoch["own_seconds"] = slow.tolist()
    return Planted(size=_cost(share, factor), named=(record.subject,))


PLANTS: tuple[Plant, ...] = (
    products_now_and_then, messages_now_and_then, large_now_and_then, copies_now_and_then, steps_now_and_then,
)  # fmt: skip
