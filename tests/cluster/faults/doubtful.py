"""Machines whose record has the evidence in a place of its own, in small pieces, or on most of the GPUs.

Each was written down before it was judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cluster.acceptance.checks.collectives import BUS_FACTORS
from cluster.acceptance.records import Record
from tests.cluster.faults.changes import each_epoch, memory, result, some_longer
from tests.cluster.faults.issues import counted, state
from tests.cluster.faults.machines import alone
from tests.cluster.faults.reported import (
    A100,
    B200,
    G3,
    H100,
    H200,
    MIB,
    Change,
    Story,
    both,
    cluster,
    large,
    ports,
    read,
    slower,
)
from tests.cluster.faults.threads import SECOND
from tests.cluster.faults.unseen import product_of


def middle_size(factor: float) -> Change:
    """1 GiB at the links' rate, 256 MiB so many times slower than it."""

    def change(records: list[Record]) -> None:
        ranks = len(records)
        for record in records:
            rows = record.results["collectives"]["measurements"]
            for row in [row for row in rows if row["bytes"] == 256 * MIB]:
                whole = 60e-6 + 4 * (row["seconds"][0] - 60e-6)
                assert BUS_FACTORS[row["operation"]](ranks)
                rows.insert(rows.index(row) + 1, {**row, "bytes": 1024 * MIB, "seconds": [whole] * 5})
                row["seconds"] = [factor * seconds for seconds in row["seconds"]]

    return change


def losses(*values: float) -> Change:
    return each_epoch(None, lambda epoch: {"losses": list(values[: len(epoch["losses"])])})


def falls_and_comes_back(records: list[Record]) -> None:
    for record in records:
        first, second = record.results["training"]["epochs"]
        first["losses"], second["losses"] = [2.3, 1.9, 1.6, 1.4], [1.3, 1.8, 2.2, 2.4]


def unsteady(share: float, factor: float, *, messages: bool = False) -> Change:
    """A share of all GPUs' products, or of the small messages, takes so many times as long."""

    def change(records: list[Record]) -> None:
        for record in records:
            own = record.results["collectives"]["steady"] if messages else record.results["steadiness"]["products"]
            own |= some_longer(own, share, factor)

    return change


def one_direction(records: list[Record]) -> None:
    """What adapter 3 of the second node sends arrives at 250 Gbit/s; what it receives at 392."""
    alone(records, 392.0)
    for record in records:
        for row in record.results["adapters"].get("measured", ()):
            if row["server"] is not None and row["adapter"] == "mlx5_3/1":
                row["gigabits"] = 250.0


def out_of_time(records: list[Record]) -> None:
    """Half of the adapters were not measured: the time was over."""
    alone(records, 392.0)
    for record in records:
        for row in record.results["adapters"].get("measured", [])[4:8]:
            row |= {"gigabits": None, "reason": "the 45 seconds for all adapters were over"}


def slow_gathers(records: list[Record]) -> None:
    for record in records:
        for row in record.results["collectives"]["measurements"]:
            if row["operation"] == "all_gather" and row["bytes"] == 1024:
                row["seconds"] = [120e-6] * 5


def one_epoch_less(records: list[Record]) -> None:
    records[3].results["training"]["epochs"] = records[3].results["training"]["epochs"][:1]


def all_differ(records: list[Record]) -> None:
    for record in records:
        record.results["training"]["sha256"] = f"{record.rank:064x}"


def stopped(records: list[Record]) -> None:
    """The job's time was over while rank 3 read NVML for the last time."""
    records[3].ending, records[3].detail, records[3].at = "stopped", "SIGTERM", "after"
    records[3].results["after"] = {}


def symbols(records: list[Record]) -> None:
    for number in range(8):
        counted("node1", number, symbol_error=9)(records)


def triads(share: float) -> Change:
    def change(records: list[Record]) -> None:
        for record in records:
            record.results["bandwidth"]["rates"]["triad"] *= share

    return change


def everything(factor: float, ranks: Sequence[int]) -> Change:
    return both(lambda r: slower(r, ranks, factor), memory(1 / factor, *ranks))


def energy(joules: float, ranks: Sequence[int] | None = None) -> Change:
    return state(ranks, after=True, energy_joules=1000.0 + joules)


def capped_at_half(records: list[Record]) -> None:
    """A power cap that holds one GPU at 300 of its 700 W, and costs 9 %."""
    read(records, [3], both=False, throttle_reasons=["power_cap"], power_watts=300.0, sm_clock_hertz=1700e6)
    slower(records, [3], 1.09)


def flaps(records: list[Record]) -> None:
    """One port went down 10,000 times before the run, the others once."""
    for record in records:
        if record.node == "node1" and record.local_rank == 0:
            ports(records, "node1", [2], counters={"symbol_error": 0, "link_downed": 10_000})
            others: list[Any] = [0, 1, 3, 4, 5, 6, 7]
            ports(records, "node1", others, counters={"symbol_error": 0, "link_downed": 1})
    ports(records, "node0", range(8), counters={"symbol_error": 0, "link_downed": 1})


BROKEN: tuple[Story, ...] = (
    Story(what="memory of six of eight H100 at 85 %", records=lambda: cluster(H100), change=memory(0.85, *range(2, 8)), named=G3),
    Story(what="seven of eight A100 a quarter slower", records=lambda: cluster(A100), change=lambda r: slower(r, range(1, 8), 1.25), named=G3),
    Story(what="three of four nodes a fifth slower", records=lambda: cluster(A100, nodes=4, port=200), change=lambda r: slower(r, range(8, 32), 1.2), named="node"),
    Story(what="80 degrees before the run on one GPU, 35 on the others: its cooler is loose", records=lambda: cluster(H100), change=lambda r: r[3].results["before"]["reading"].update(temperature_celsius=80), named=G3),
    Story(what="300 W before the run on one idle GPU", records=lambda: cluster(H100), change=lambda r: r[3].results["before"]["reading"].update(power_watts=300.0), named=G3),
    Story(what="a port that had gone down 10,000 times", records=lambda: cluster(H100, nodes=2), change=flaps, named="node node1"),
    Story(what="256 MiB at 40 % of the rate, 1 GiB sound", records=lambda: cluster(H100), change=middle_size(2.5), named="all ranks"),
    Story(what="a loss that falls and comes back", records=lambda: cluster(H100), change=falls_and_comes_back, named="all ranks"),
    Story(what="parameters of one rank that are infinite", records=lambda: cluster(H100), change=result("training", [3], finite=False), named="all ranks"),
    Story(what="gradients of all that are off by 0.5 %", records=lambda: cluster(H100), change=result("gradients", deviation=5e-3), named=G3),
    Story(what="products of all that lose an eighth by fits", records=lambda: cluster(H100), change=unsteady(0.05, 4.0), named=G3),
    Story(what="small messages that lose a quarter by fits", records=lambda: cluster(H100, nodes=2), change=unsteady(0.1, 5.0, messages=True), named="all ranks"),
    Story(what="a power cap at 300 of 700 W on one GPU", records=lambda: cluster(H100), change=capped_at_half, named=G3),
    Story(what="a limit of 600 of 700 W on all", records=lambda: cluster(H100), change=both(state(power_limit_watts=600.0), lambda r: slower(r, range(8), 1.08)), named=G3),
    Story(what="10 J in a minute of work on one GPU", records=lambda: cluster(H100), change=energy(10.0, [3]), named=G3),
    Story(what="75 W under load on all", records=lambda: cluster(H100), change=state(after=True, power_watts=75.0), named=G3),
    Story(what="an adapter that sends at 250 and receives at 392 Gbit/s", records=lambda: cluster(H100, nodes=2), change=one_direction, named="node"),
    Story(what="half of the adapters not measured", records=lambda: cluster(H100, nodes=2), change=out_of_time, named="node"),
    Story(what="products of 8 bits a third slower on all", records=lambda: cluster(B200), change=product_of("float8_e4m3fn", 2150.0, 4500.0), named=G3),
    Story(what="float16 a sixth slower than bfloat16 on all A100", records=lambda: cluster(A100), change=product_of("float16", 216.0, 312.0), named=G3),
    Story(what="triads of all H100 at 85 %, copies sound", records=lambda: cluster(H100), change=triads(0.85), named=G3),
    Story(what="18 NVLinks, of which 17 lead to a switch", records=lambda: cluster(H100), change=state([3], nvlink_peers={"switch": 17}), named=G3),
    Story(what="PCIe links of all that fall to generation 1 under load", records=lambda: cluster(H100), change=state(after=True, pcie_generation=1), named=G3),
    Story(what="nine symbol errors on every port of a node", records=lambda: cluster(H100, nodes=2), change=symbols, named="node node1"),
    Story(what="a rank that trained with half of the batch", records=lambda: cluster(H100), change=result("training", [3], batch_size=64), named=G3),
    Story(what="a rank that trained an epoch less", records=lambda: cluster(H100), change=one_epoch_less, named=G3),
    Story(what="replicas that all differ", records=lambda: cluster(H100), change=all_differ, named=G3),
    Story(what="three times the images per second that steps allow", records=lambda: cluster(H100), change=each_epoch(None, lambda e: {"images_per_second": 60_000.0}), named=G3),
    Story(what="steps a third slower on one of two nodes", records=lambda: cluster(A100, nodes=2, port=200), change=lambda r: slower(r, SECOND, 1.33, products=False), named="node1"),
    Story(what="an H100 alone that is a fifth slower in everything", records=lambda: cluster(H100, gpus=1), change=everything(1.25, [0]), named="GPU 0"),
    Story(what="a rank that was stopped at the last reading", records=lambda: cluster(H100), change=stopped, named=G3),
)  # fmt: skip
IN_THE_BANNER: tuple[Story, ...] = (
    Story(what="all-to-all between nodes a third slower", records=lambda: cluster(H100, nodes=2), change=lambda r: large(r, 1.5, "all_to_all"), named="all_to_all"),
    Story(what="forward and backward passes of all a fifth slower", records=lambda: cluster(H100), change=result("training", alone_seconds=[0.015] * 5), named="images per second"),
    Story(what="an H200 alone whose products are a sixth slower", records=lambda: cluster(H200, gpus=1), change=lambda r: slower(r, [0], 1.17), named="product"),
    Story(what="all-gathers of 1 KiB in four times the usual time", records=lambda: cluster(H100), change=slow_gathers, named="latencies"),
)  # fmt: skip
"""As that of shared.py."""
