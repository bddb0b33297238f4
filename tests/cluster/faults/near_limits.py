"""Faults in places where the other files have none, and sound machines near the limits.

All were written down, with what the verdict should be, before any was judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cluster.acceptance.records import Record
from tests.cluster.faults.changes import each_epoch, memory, paced, result
from tests.cluster.faults.incidents import pace, stalling
from tests.cluster.faults.issues import A100_40, FORMED, G2, L4, across, counted, state
from tests.cluster.faults.machines import alone
from tests.cluster.faults.other_boards import rack
from tests.cluster.faults.reported import (
    A10G,
    A100,
    B200,
    G3,
    GH200,
    H100,
    H200,
    L40S,
    T4,
    TWO_SOCKETS,
    V100,
    Change,
    Story,
    both,
    cluster,
    copy_rate,
    large,
    meetings,
    ports,
    read,
    slower,
    small,
)
from tests.cluster.faults.threads import A40, SECOND
from tests.cluster.faults.trackers import together
from tests.cluster.faults.unseen import product_of

COUNTS = {"symbol_error": 0, "link_downed": 1}


def another_part(records: list[Record]) -> None:
    read(records, fabric=FORMED)
    read(records, [3], fabric={**FORMED, "clique": 7})


def hardly_learns(records: list[Record]) -> None:
    for record in records:
        first, second = record.results["training"]["epochs"]
        first["losses"], second["losses"] = [2.3, 2.28, 2.25, 2.24], [2.2, 2.17, 2.15, 2.12]


def part_of_the_memory(records: list[Record]) -> None:
    records[3].results["memory"]["tested_bytes"] = int(0.815 * 79.1 * 2**30)


def nine_of_twenty(records: list[Record]) -> None:
    for product in records[3].results["compute"]["products"].values():
        usual = product["seconds"][0]
        product["seconds"] = [usual] * 11 + [2 * usual] * 9
    for record in records[:3] + records[4:]:
        for product in record.results["compute"]["products"].values():
            product["seconds"] = [product["seconds"][0]] * 20


def capped_load(records: list[Record]) -> None:
    paced(0.97)(records)
    for sample in records[3].results["load"]["series"]:
        sample |= {"watts": 350.0, "throttle_reasons": ["power_cap"]}


def traffic(records: list[Record]) -> None:
    read(records, pcie_sent_bytes_per_second=0.0, pcie_received_bytes_per_second=0.0)
    records[3].results["before"]["reading"]["pcie_received_bytes_per_second"] = 2e10


def slow_nodes(*names: str, factor: float) -> Change:
    """Nodes that are slow with all others, and collectives with them."""

    def change(records: list[Record]) -> None:
        meetings(records, factor, lambda a, b: a.node != b.node and bool({a.node, b.node} & set(names)))
        large(records, factor)

    return change


def one_stream(records: list[Record]) -> None:
    records[3].results["bandwidth"]["rates"]["triad"] *= 0.8


def of_load(rank: int, share: float) -> Change:
    def change(records: list[Record]) -> None:
        paced(0.8)(records)
        load = records[rank].results["load"]
        for sample in load["series"]:
            sample["products_per_second"] *= share
        load["products"] = int(load["products"] * share)

    return change


def wrong_address(records: list[Record]) -> None:
    records[3].results["memory"] |= {"wrong": {"addresses": 1}, "first_byte": {"addresses": 4096}}


def alone_at(gigabits: float) -> Change:
    def change(records: list[Record]) -> None:
        alone(records, 392.0)
        for record in records:
            for row in record.results["adapters"].get("measured", ()):
                if row["server"] is not None:
                    row["gigabits"] = gigabits

    return change


def single(rank: int, precision: str, factor: float) -> Change:
    def change(records: list[Record]) -> None:
        product = records[rank].results["compute"]["products"][precision]
        product["seconds"] = [factor * seconds for seconds in product["seconds"]]
        product["tflops"] /= factor

    return change


BROKEN: tuple[Story, ...] = (
    Story(what="products of 8 bits of all B200 a fifth slower", records=lambda: cluster(B200), change=product_of("float8_e4m3fn", 2550.0, 4500.0), named=G3),
    Story(what="NVLinks of one GPU at 80 % with all others", records=lambda: cluster(H100), change=lambda r: meetings(r, 1.25, lambda a, b: 3 in (a.rank, b.rank)), named=G3),
    Story(what="copies of eight GPUs at once a third slower on one of four nodes", records=lambda: cluster(H100, nodes=4), change=together(1.6, range(16, 24)), named="node2"),
    Story(what="a GPU in another part of the node's fabric", records=lambda: cluster(H100), change=another_part, named=G3),
    Story(what="a training that hardly learns", records=lambda: cluster(H100), change=hardly_learns, named="all ranks"),
    Story(what="a program that takes 5 GiB while the memory is tested", records=lambda: cluster(H100), change=part_of_the_memory, named=G3),
    Story(what="nine of twenty products in twice the time", records=lambda: cluster(H100), change=nine_of_twenty, named=G3),
    Story(what="broadcasts of which two in five take thrice as long", records=lambda: cluster(H100, nodes=2), change=stalling(2, 3, "broadcast"), named="all ranks"),
    Story(what="adapters that reach each other at 84 %, all of them", records=lambda: cluster(H100, nodes=2), change=alone_at(330.0), named="node"),
    Story(what="all meetings between nodes at three quarters, collectives sound", records=lambda: cluster(H100, nodes=2), change=lambda r: across(r, 1.33), named="all ranks"),
    Story(what="a power cap at half during the load, on one GPU", records=lambda: cluster(H100), change=capped_load, named=G3),
    Story(what="20 GB/s over PCIe to an idle GPU", records=lambda: cluster(H100), change=traffic, named=G3),
    Story(what="400 lost links on each port of one node", records=lambda: cluster(H100, nodes=4, gpus=4, adapters=4), change=both(lambda r: ports(r, None, range(4), counters=COUNTS), lambda r: ports(r, "node1", range(4), counters={**COUNTS, "link_downed": 400})), named="node node1"),
    Story(what="one adapter of 32 at 77 %", records=lambda: cluster(H100, nodes=4), change=lambda r: across(r, 1.3, 13), named="(rank 13, node1)"),
    Story(what="one of sixteen nodes at 60 %", records=lambda: cluster(A100, nodes=16, gpus=1, port=200, adapters=1), change=slow_nodes("node7", factor=1.67), named="node7"),
    Story(what="two of sixteen nodes at 70 %", records=lambda: cluster(A100, nodes=16, gpus=1, port=200, adapters=1), change=slow_nodes("node3", "node9", factor=1.43), named="node9"),
    Story(what="memory of one of eight L4 at 82 %", records=lambda: cluster(L4, nodes=8, gpus=1, rdma=False, port=25, line=0.85), change=memory(0.82, 5), named="node5"),
    Story(what="one of four GH200 a sixth slower", records=lambda: cluster(GH200, nodes=4, gpus=1, adapters=1), change=lambda r: slower(r, [2], 1.19), named="node2"),
    Story(what="16 bits of one GPU a sixth slower, float32 sound", records=lambda: cluster(H100), change=both(single(3, "float16", 1.2), single(3, "bfloat16", 1.2)), named=G3),
    Story(what="float32 of one GPU at three quarters", records=lambda: cluster(H100), change=single(3, "float32", 1.33), named=G3),
    Story(what="triads of one A100 at 80 %", records=lambda: cluster(A100), change=one_stream, named=G3),
    Story(what="gathers of one node at three quarters", records=lambda: cluster(H100), change=lambda r: large(r, 1.35, "all_gather"), named="all ranks"),
    Story(what="one T4 that loses a fifth more in the load", records=lambda: cluster(T4, gpus=4, topology=TWO_SOCKETS), change=of_load(2, 0.8), named=G2),
    Story(what="one T4 whose products lose a sixth by fits", records=lambda: cluster(T4, gpus=4, topology=TWO_SOCKETS), change=pace(0.1, 3, [2]), named=G2),
    Story(what="40 NVLink errors in a minute on two of eight", records=lambda: cluster(B200), change=state([2, 3], after=True, nvlink_errors=40), named=G3),
    Story(what="a fabric at a part of its bandwidth, on all GPUs", records=lambda: cluster(B200), change=state(fabric={**FORMED, "degraded": True}), named=G3),
    Story(what="one address line that sticks", records=lambda: cluster(H200), change=wrong_address, named=G3),
    Story(what="adapters of PCIe 3 for ports of 200 Gbit/s, everywhere", records=lambda: cluster(A100, nodes=2, port=200), change=lambda r: ports(r, None, range(8), pcie_generation=3), named="node node1"),
    Story(what="gradients of one V100 that are off by 0.3 %", records=lambda: cluster(V100, gpus=4, pair=lambda a, b: 46), change=lambda r: r[2].results["gradients"].update(deviation=3e-3), named=G2),
)  # fmt: skip
IN_THE_BANNER: tuple[Story, ...] = (
    Story(what="copies of eight GPUs at once at a third, on all nodes", records=lambda: cluster(H100, nodes=2), change=together(2.8, range(16)), named="at once"),
    Story(what="a rack whose copies from the host are at two thirds", records=rack, change=lambda r: copy_rate(r, 150e9), named="copy: host"),
    Story(what="A100 at 1,005 MHz under their power limit", records=lambda: cluster(A100), change=both(lambda r: slower(r, range(8), 1.3), state(power_limit_watts=400.0, power_limit_default_watts=400.0), state(after=True, power_watts=398.0, throttle_reasons=["power_cap"], sm_clock_hertz=1005e6)), named="product"),
    Story(what="1 KiB from GPU to GPU in 200 us", records=lambda: cluster(H200), change=lambda r: small(r, 200e-6), named="latencies"),
    Story(what="memory of one A100 alone at 85 %", records=lambda: cluster(A100, gpus=1), change=memory(0.93), named="memory bandwidth"),
    Story(what="fewer GPUs than the board has: four of eight in a pod", records=lambda: cluster(H100, gpus=4), named="number of GPUs"),
)  # fmt: skip
"""As that of shared.py."""


def peak_of_first(records: list[Record]) -> None:
    records[0].results["training"]["memory_peak_bytes"] = 5200 * 2**20


def uneven_energy(records: list[Record]) -> None:
    records[2].results["after"]["reading"]["energy_joules"] = 7000.0


def warmer_node(records: list[Record]) -> None:
    read(records, SECOND, both=False, temperature_celsius=74)


def storage(records: list[Record]) -> None:
    ports(records, None, range(8, 12), rate_gigabits=200.0)


def stall(records: list[Record]) -> None:
    records[3].results["steadiness"]["products"]["longest_seconds"] = 0.9


def samples(share: float) -> Change:
    def change(records: list[Record]) -> None:
        own = records[3].results["steadiness"]["products"]
        own["samples"] = int(own["samples"] * share)

    return change


def before(**figures: Any) -> Change:
    return lambda records: [record.results["before"]["reading"].update(figures) for record in records] and None


def lower(ranks: Sequence[int], **figures: Any) -> Change:
    """Figures of these ranks in the load."""

    def change(records: list[Record]) -> None:
        paced(0.95)(records)
        for rank in ranks:
            for sample in records[rank].results["load"]["series"]:
                sample |= figures

    return change


HEALTHY: tuple[Story, ...] = (
    Story(what="a node that is 13 degrees warmer", records=lambda: cluster(H100, nodes=2), change=warmer_node),
    Story(what="copies at once a fifth slower on one of two nodes", records=lambda: cluster(H100, nodes=2), change=together(1.2, SECOND)),
    Story(what="30 XIDs of programs on one GPU", records=lambda: cluster(A100), change=state([3], xids_before=[43] * 30)),
    Story(what="two NVLink errors on one GPU in a minute", records=lambda: cluster(H100), change=state([3], after=True, nvlink_errors=2)),
    Story(what="15 corrected errors on one GPU in a minute", records=lambda: cluster(A100), change=state([3], after=True, ecc_corrected=18)),
    Story(what="four replays of PCIe on one GPU", records=lambda: cluster(L40S, gpus=4, topology=TWO_SOCKETS), change=state([2], after=True, pcie_replays=4)),
    Story(what="A100 that idle at 120 of 400 W", records=lambda: cluster(A100), change=both(state(power_limit_watts=400.0, power_limit_default_watts=400.0), before(power_watts=120.0), state(after=True, power_watts=390.0, energy_joules=19_000.0))),
    Story(what="idle boards at 72 degrees of 87", records=lambda: cluster(A10G, gpus=4, rdma=False, port=25), change=before(temperature_celsius=72)),
    Story(what="a first loss of 2.0", records=lambda: cluster(H100), change=each_epoch(None, lambda e: {"losses": [0.87 * loss for loss in e["losses"]]})),
    Story(what="both passes in 4.5 times the forward one", records=lambda: cluster(H100), change=both(result("training", alone_seconds=[0.0225] * 5), each_epoch(None, lambda e: {"images_per_second": 5000.0}))),
    Story(what="both passes in 1.6 times the forward one: launches", records=lambda: cluster(H100), change=result("training", alone_seconds=[0.008] * 5)),
    Story(what="a first rank that needs a third more memory", records=lambda: cluster(H100), change=peak_of_first),
    Story(what="a default limit of 690 of 700 W", records=lambda: cluster(H100), change=state(power_limit_watts=690.0, power_limit_default_watts=690.0)),
    Story(what="twelve adapters for eight GPUs, four of them for storage", records=lambda: cluster(H200, nodes=2, adapters=12), change=storage),
    Story(what="four adapters for eight A100", records=lambda: cluster(A100, nodes=2, port=200, adapters=4)),
    Story(what="two adapters for eight A100 of 40 GB", records=lambda: cluster(A100_40, nodes=2, port=200, adapters=2)),
    Story(what="one adapter for eight V100, four nodes", records=lambda: cluster(V100, nodes=4, port=100, adapters=1, pair=lambda a, b: 46)),
    Story(what="adapters without a NUMA node on all nodes", records=lambda: cluster(H100, nodes=4), change=lambda r: ports(r, None, range(8), numa_node=-1)),
    Story(what="a board that takes 1.7 times the energy", records=lambda: cluster(H100), change=uneven_energy),
    Story(what="one interruption of 0.9 s", records=lambda: cluster(H100), change=stall),
    Story(what="a sixth fewer samples on one GPU", records=lambda: cluster(H100), change=samples(0.85)),
    Story(what="300 lost links on one port in its life", records=lambda: cluster(H100, nodes=2), change=both(lambda r: ports(r, None, range(8), counters=COUNTS), lambda r: ports(r, "node1", [2], counters={**COUNTS, "link_downed": 300}))),
    Story(what="9,000 symbol errors on one port in its life", records=lambda: cluster(H100, nodes=2), change=both(lambda r: ports(r, None, range(8), counters=COUNTS), lambda r: ports(r, "node1", [2], counters={**COUNTS, "symbol_error": 9000}))),
    Story(what="a board that clocks a tenth lower in the load", records=lambda: cluster(H100), change=lower([3], sm_clock_hertz=1710e6)),
    Story(what="a board that draws 70 % of the others' power in the load", records=lambda: cluster(H100), change=lower([3], watts=480.0, throttle_reasons=[])),
    Story(what="eight A40 on two sockets", records=lambda: cluster(A40, rdma=False, port=25, topology=TWO_SOCKETS), change=state(nvlinks_up=0)),
    Story(what="a load in which the power cap holds all at their limit", records=lambda: cluster(replace(H100, tflops=640)), change=both(lower(range(8), watts=698.0), state(after=True, power_watts=699.0, throttle_reasons=["power_cap"], sm_clock_hertz=1500e6))),
    Story(what="V100 of a DGX-1 on two sockets", records=lambda: cluster(V100, port=100, adapters=4, topology=TWO_SOCKETS, pair=lambda a, b: (46, 23, 8)[(a + b) % 3])),
    Story(what="eight symbol errors of all ports together in a test", records=lambda: cluster(H100, nodes=2), change=lambda r: [counted("node0", n, symbol_error=0)(r) for n in range(8)] and None),
    Story(what="a loss that ends at 1.9", records=lambda: cluster(H100), change=each_epoch(None, lambda e: {"losses": [2.3 - 0.1 * k - (0.25 if e["losses"][0] < 2 else 0) for k in range(4)]})),
)  # fmt: skip
