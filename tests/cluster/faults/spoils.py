"""What is changed in the records of a sound machine, so that something is broken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cluster.acceptance.pace import summary
from cluster.acceptance.records import TOOK, Record
from tests.cluster import sound

Spoil = Callable[[list[Record]], None]
SICK = 3
"""The rank that is changed, where one is."""


def reading(*, both: bool = True, rank: int = SICK, **figures: Any) -> Spoil:
    """NVML says so of one rank, before and after, or after the run only."""

    def spoil(records: list[Record]) -> None:
        for stage in ("before", "after") if both else ("after",):
            records[rank].results[stage]["reading"] |= figures

    return spoil


def every(spoil_one: Callable[[Record], None]) -> Spoil:
    def spoil(records: list[Record]) -> None:
        for record in records:
            spoil_one(record)

    return spoil


def stage(name: str, rank: int = SICK, **figures: Any) -> Spoil:
    return lambda records: records[rank].results[name].update(figures)


def instead(name: str, result: dict[str, Any], rank: int = SICK) -> Spoil:
    return lambda records: records[rank].results.update({name: result})


def product(factor: float) -> Callable[[Record], None]:
    def spoil(record: Record) -> None:
        figures = record.results["compute"]["products"]["bfloat16"]
        figures["seconds"] = [factor * seconds for seconds in figures["seconds"]]
        figures["tflops"] /= factor

    return spoil


def slow_memory(share: float) -> Callable[[Record], None]:
    def spoil(record: Record) -> None:
        rates = record.results["bandwidth"]["rates"]
        record.results["bandwidth"]["rates"] = {name: share * rate for name, rate in rates.items()}

    return spoil


def epochs(**figures: Any) -> Callable[[Record], None]:
    def spoil(record: Record) -> None:
        for epoch in record.results["training"]["epochs"]:
            epoch.update(figures)

    return spoil


def of_one(spoil_one: Callable[[Record], None]) -> Spoil:
    return lambda records: spoil_one(records[SICK])


def message(operation: str, *, rate: float | None = None, small_seconds: float | None = None) -> Spoil:
    def spoil(records: list[Record]) -> None:
        for record in records:
            for measurement in record.results["collectives"]["measurements"]:
                if measurement["operation"] == operation and measurement["bytes"] > sound.MIB and rate:
                    measurement["seconds"] = [measurement["bytes"] / rate] * 20
                if measurement["operation"] == operation and measurement["bytes"] == 1024 and small_seconds:
                    measurement["seconds"] = [small_seconds] * 20

    return spoil


def pairs(slow: Callable[[Record, Record], bool]) -> Spoil:
    def spoil(records: list[Record]) -> None:
        for record in records:
            for met in record.results["pairs"]["met"]:
                if slow(record, records[met["partner"]]):
                    met["seconds"] *= 6

    return spoil


def node1(ports: list[dict[str, Any]] | None, *, after: list[dict[str, Any]] | None = None, **more: Any) -> Spoil:
    def spoil(records: list[Record]) -> None:
        for name, state in (("network", ports), ("network_after", after if after is not None else ports)):
            records[2].results[name] = {"ports": sound.ports() if state is None else state, "peer_memory": True, **more}

    return spoil


def grown(**counters: int) -> list[dict[str, Any]]:
    return sound.ports(counters={**sound.ports()[0]["counters"], **counters})


def ended(ending: str, detail: str, *, rank: int = SICK) -> Spoil:
    """A rank ends during the collectives, and the others are stopped there."""

    def spoil(records: list[Record]) -> None:
        for record in records:
            record.ending, record.detail, record.at = (
                "stopped",
                "because another rank had ended",
                "all_reduce of 1.0 MiB",
            )
            record.progress_at_stop, record.at_stop = 30, record.at
            for name in ("collectives", "pairs", "data", "training", "network_after", "after"):
                record.results.pop(name)
        records[rank].ending, records[rank].detail = ending, detail
        if ending == "hung":
            records[rank].progress_at_stop, records[rank].at_stop = 29, "all_gather of 1.0 MiB"
        if ending == "lost":
            records[rank].results, records[rank].progress_at_stop = {}, None

    return spoil


def all_hang(records: list[Record]) -> None:
    ended("hung", "no end of 'collectives' within 600 s")(records)
    for record in records:
        record.ending, record.progress_at_stop = "hung", 30


def node_lost(records: list[Record]) -> None:
    ended("lost", "its processes are gone, or its node is", rank=3)(records)
    ended_too = records[2]
    ended_too.ending, ended_too.results, ended_too.progress_at_stop = "lost", {}, None


def skips(records: list[Record]) -> None:
    ended("stopped", "because another rank had ended")(records)
    records[SICK].skipped_collectives, records[SICK].progress_at_stop = 1, 31
    for record in records:
        if record.rank != SICK:
            record.ending = "hung"


def load(**changes: Any) -> Spoil:
    """Minutes of load on all; on one rank the second half is like that."""

    def spoil(records: list[Record]) -> None:
        for record in records:
            series = []
            for number in range(24):
                sample = {"seconds": 5.0 * number, "products_per_second": 2500.0, "celsius": 60, "watts": 690.0}
                sample |= {"sm_clock_hertz": 1.9e9, "throttle_reasons": ["power_cap"]}
                series.append(sample | (changes if number >= 12 and record.rank == SICK else {}))
            record.results["load"] = {"series": series, "products": 300_000, "differing": 0}
            if TOOK in record.results:
                record.results[TOOK]["load"] = 120.0
                record.results["after"]["time"] = record.results["before"]["time"] + 180
                record.results["after"]["reading"]["energy_joules"] += 82_000.0

    return spoil


def unsteady(share: float, factor: float, usual: float = 4e-4) -> dict[str, Any]:
    """Figures of a thousand repetitions, of which a share takes so many times as long."""
    slow = int(1000 * share)
    return summary([usual] * (1000 - slow) + [factor * usual] * slow)


def pace(what: str, share: float, factor: float) -> Spoil:
    """Repetitions of one rank that are slow now and then: products, or copies of a way."""

    def spoil(records: list[Record]) -> None:
        results = records[SICK].results["steadiness"]
        (results if what == "products" else results["copies"])[what] = unsteady(share, factor)

    return spoil


def storms(share: float, factor: float) -> Spoil:
    """Small messages that are slow now and then, as all ranks see them."""
    return every(lambda record: record.results["collectives"]["steady"].update(unsteady(share, factor, 2e-5)))


def stalls(record: Record) -> None:
    """Every fifth large message takes three times as long."""
    for measurement in record.results["collectives"]["measurements"]:
        if measurement["bytes"] > sound.MIB:
            measurement["seconds"] = [
                seconds * (1 if number % 5 else 3) for number, seconds in enumerate(measurement["seconds"])
            ]


def stopped_steps(records: list[Record]) -> None:
    """A long training; of one rank every fourth step takes four times as long before ranks meet."""
    for record in records:
        slow = 4 if record.rank == SICK else 1
        for epoch in record.results["training"]["epochs"]:
            epoch["losses"] = [loss for loss in epoch["losses"] for _ in range(25)]
            epoch["own_seconds"] = [0.005 * (1 if number % 4 else slow) for number in range(100)]


def fitful(records: list[Record]) -> None:
    """Minutes of load on all; one rank is at half of its pace in every fourth sample."""
    load()(records)
    for number, sample in enumerate(records[SICK].results["load"]["series"]):
        sample["products_per_second"] *= 1 if number % 4 else 0.5


def wrong_once(records: list[Record]) -> None:
    load()(records)
    records[SICK].results["load"]["differing"] = 1


def without_cuda(records: list[Record]) -> None:
    records[SICK].results["presence"] = {"kind": "cpu", "device_name": "x86_64", "torch": "2.13.0", "cuda": "13.0"}


def too_few(**figures: Any) -> Spoil:
    return every(lambda record: record.results["presence"].update(figures))


def without_rank(records: list[Record]) -> None:
    del records[7]
    for record in records:
        record.results["pairs"]["met"] = [met for met in record.results["pairs"]["met"] if met["partner"] != 7]


def two_models(records: list[Record]) -> None:
    for record in records[4:]:
        record.results["presence"] |= {"device_name": "NVIDIA H200", "memory_bytes": 150e9}
        record.results["bandwidth"]["rates"] = {"copy": 4.2e12, "triad": 4.2e12}
        for when in ("before", "after"):
            record.results[when]["reading"] |= {"memory_clock_hertz": 3201e6}


def element(operation: str) -> Spoil:
    def spoil(records: list[Record]) -> None:
        for measurement in records[SICK].results["collectives"]["measurements"]:
            if measurement["operation"] == operation:
                measurement["wrong"] = 1

    return spoil


def slow_ring(records: list[Record]) -> None:
    records[SICK].results["collectives"]["measurements"][-1]["seconds"] = [1.5e-3] * 20


def pair_data(records: list[Record]) -> None:
    records[SICK].results["pairs"]["met"][0]["wrong"] = 9


def nan(records: list[Record]) -> None:
    records[SICK].results["training"]["epochs"][0]["losses"][2] = float("nan")


def no_fall(record: Record) -> None:
    record.results["training"]["epochs"][-1]["losses"] = [2.4] * 4


def replicas(records: list[Record]) -> None:
    records[SICK].results["training"]["sha256"] = "cd" * 32


def half_of_replicas(records: list[Record]) -> None:
    for record in records[4:]:
        record.results["training"]["sha256"] = "cd" * 32


def unknown_model(record: Record) -> None:
    record.results["presence"] |= {"peak_tflops": None, "held_ratio": None}


def no_figure(records: list[Record]) -> None:
    for record in records:
        del record.results["compute"]["products"]["bfloat16"]
