"""What the lists of stories do to records: one rank or all, one node, one field, repetitions of which some are slow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cluster.acceptance.pace import summary
from cluster.acceptance.records import TOOK, Record
from tests.cluster import sound
from tests.cluster.faults.machines import alone
from tests.cluster.faults.reported import MIB, Change, Model, cluster
from tests.cluster.faults.spoils import load

Ranks = Sequence[int] | None
"""None stands for all."""
GIB = 2**30
LINE_GIGABITS = 392.0
"""What `ib_write_bw` reaches of 400."""


def on(ranks: Ranks, act: Callable[[Record], object]) -> Change:
    """Do it to the records of these ranks, or to all."""

    def change(records: list[Record]) -> None:
        for rank, record in enumerate(records):
            if ranks is None or rank in ranks:
                act(record)

    return change


def longer(figures: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """Figures of repetitions that all take so many times as long."""
    return {name: factor * value if name.endswith("_seconds") else value for name, value in figures.items()}


def some_longer(figures: Mapping[str, Any], share: float, factor: float, samples: int = 1000) -> dict[str, Any]:
    """Figures of repetitions of which a share takes so many times as long."""
    usual, slow = figures["p50_seconds"], int(samples * share)
    return dict(summary([usual] * (samples - slow) + [factor * usual] * slow))


def adapter_rows(records: list[Record], gigabits: float = LINE_GIGABITS) -> Iterator[tuple[Record, dict[str, Any]]]:
    """Measure each adapter on its own, and give its rows with the rank that measured them."""
    alone(records, gigabits)
    for record in records:
        for row in record.results["adapters"].get("measured", ()):
            yield record, row


def hosted(model: Model, **arguments: Any) -> list[Record]:
    """A sound cluster whose workers read their hosts."""
    records = cluster(model, **arguments)
    for record in records:
        record.results["presence"] |= {"host": dict(sound.HOST), "environment": {}}
    return records


def result(stage: str, ranks: Ranks = None, **figures: Any) -> Change:
    """A stage of these ranks, or of all, says so."""
    return on(ranks, lambda record: record.results[stage].update(figures))


def present(ranks: Ranks = None, **figures: Any) -> Change:
    """What CUDA and NVML show of the node."""
    return result("presence", ranks, **figures)


def host(node: str | None = None, **figures: Any) -> Change:
    """What Linux says of a node, or of all."""
    return on(None, lambda one: one.results["presence"]["host"].update(figures) if node in (None, one.node) else None)


def variables(ranks: Ranks = None, **values: str) -> Change:
    return on(ranks, lambda record: record.results["presence"]["environment"].update(values))


def before(ranks: Ranks = None, **figures: Any) -> Change:
    """What NVML says before the run only."""
    return on(ranks, lambda record: record.results["before"]["reading"].update(figures))


def memory(share: float, *ranks: int) -> Change:
    """Memory of these GPUs, or of all, carries such a share."""

    def act(record: Record) -> None:
        rates = record.results["bandwidth"]["rates"]
        record.results["bandwidth"]["rates"] = {name: share * rate for name, rate in rates.items()}

    return on(ranks or None, act)


def copies(factor: float, way: str, ranks: Ranks = None) -> Change:
    """Copies one way take so many times as long."""

    def act(record: Record) -> None:
        record.results["copies"]["seconds"][way] *= factor
        own = record.results["steadiness"]["copies"]
        own[way] = longer(own[way], factor)

    return on(ranks, act)


def copied(factor: float, ranks: Ranks) -> Change:
    """Copies both ways take so many times as long."""

    def act(record: Record) -> None:
        results = record.results
        results["copies"]["seconds"] = {way: factor * own for way, own in results["copies"]["seconds"].items()}
        steady = results["steadiness"]
        steady["copies"] = {way: longer(own, factor) for way, own in steady["copies"].items()}

    return on(ranks, act)


def fits(rank: int, share: float, factor: float) -> Change:
    """A share of one GPU's thousands of products takes so many times as long."""
    return every_fit(share, factor, [rank])


def every_fit(share: float, factor: float, ranks: Ranks = None) -> Change:
    """The same of these ranks, or of all."""

    def act(record: Record) -> None:
        own = record.results["steadiness"]
        own["products"] = some_longer(own["products"], share, factor)

    return on(ranks, act)


def messages(share: float, factor: float) -> Change:
    """A share of thousands of small messages takes so many times as long."""

    def act(record: Record) -> None:
        own = record.results["collectives"]["steady"]
        own |= some_longer(own, share, factor, 5000)

    return on(None, act)


def small(operation: str, factor: float) -> Change:
    """The smallest messages of one operation take so many times as long."""

    def act(record: Record) -> None:
        for row in record.results["collectives"]["measurements"]:
            if row["operation"] == operation and row["bytes"] == 1024:
                row["seconds"] = [factor * value for value in row["seconds"]]

    return on(None, act)


def sometimes(factor: float, of: int = 5, slow: int = 2) -> Change:
    """So many of five large messages take longer: the median does not show it."""

    def act(record: Record) -> None:
        for row in record.results["collectives"]["measurements"]:
            if row["bytes"] > MIB:
                usual = row["seconds"][0]
                row["seconds"] = [usual] * (of - slow) + [factor * usual] * slow

    return on(None, act)


def each_epoch(ranks: Ranks, of: Callable[[dict[str, Any]], dict[str, Any]]) -> Change:
    """Epochs of the training of these ranks, or of all."""

    def act(record: Record) -> None:
        for epoch in record.results["training"]["epochs"]:
            epoch |= of(epoch)

    return on(ranks, act)


def losses(own: Sequence[float], ranks: Ranks = None) -> Change:
    """Those of the second epoch."""
    return on(ranks, lambda record: record.results["training"]["epochs"][1].update(losses=list(own)))


def one_epoch(records: list[Record]) -> None:
    """Of twelve steps, which is the least of a run."""
    for record in records:
        record.results["training"]["epochs"] = [
            {"losses": [2.3, 2.2, 2.1, 1.9, 1.8, 1.7, 1.6, 1.6, 1.5, 1.5, 1.4, 1.4],
             "own_seconds": [0.5, 0.1, *[0.005] * 10], "images_per_second": 9000.0}
        ]  # fmt: skip


def paced(share: float, ranks: Ranks = None) -> Change:
    """The load's products of these ranks, or of all, have such a share of the usual pace."""

    def change(records: list[Record]) -> None:
        load()(records)
        for rank, record in enumerate(records):
            usual = 1 / record.results["compute"]["products"]["float16"]["seconds"][0]
            own = usual * (share if ranks is None or rank in ranks else 0.93)
            series = record.results["load"]["series"]
            for sample in series:
                sample["products_per_second"] = own
            record.results["load"]["products"] = int(own * 5.0 * len(series))

    return change


def reading_of_load(**figures: Any) -> Change:
    """Of all, in minutes of load."""

    def change(records: list[Record]) -> None:
        paced(0.95)(records)
        for record in records:
            for sample in record.results["load"]["series"]:
                sample |= figures

    return change


def in_load(rank: int, key: str, value: Any, samples: slice = slice(None)) -> Change:
    """A figure of one rank in some samples of minutes of load."""

    def change(records: list[Record]) -> None:
        paced(0.95)(records)
        for sample in records[rank].results["load"]["series"][samples]:
            sample[key] = value

    return change


def took(stage: str, seconds: float, ranks: Ranks = None) -> Change:
    """A stage took these ranks, or all, so long; the others waited."""

    def change(records: list[Record]) -> None:
        on(ranks, lambda record: record.results.update({TOOK: {**record.results[TOOK], stage: seconds}}))(records)
        for record in records:
            after = record.results["after"]
            after["reading"]["energy_joules"] += 100.0 * seconds
            after["time"] = max(after["time"], record.results["before"]["time"] + 60 + seconds)

    return change


def printed(text: str, ranks: Ranks = None) -> Change:
    """The end of what these processes printed."""
    return on(ranks, lambda record: setattr(record, "log", text))
