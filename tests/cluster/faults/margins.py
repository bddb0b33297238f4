"""Broken states whose figures are within most bounds, shaped after public reports; and sound machines near them.

Written after overlooked.py, each with the verdict that it should get, before any was judged. Eight of the 35 broken ones
passed silently at first: one operation, epochs and loads that get slower on all, clocks, tails of products, slow
stages, time that no stage took, one pair over PCIe. Names of sources are as there; "gpustack" is gpustack/runtime, "azure" Azure/azurehpc-health-checks, "dcgm" NVIDIA/DCGM.
"""

from __future__ import annotations

from cluster.acceptance.records import Record
from tests.cluster.faults.changes import (
    before,
    copied,
    fits,
    host,
    hosted,
    losses,
    memory,
    messages,
    on,
    one_epoch,
    paced,
    printed,
    reading_of_load,
    small,
    some_longer,
    took,
    variables,
)
from tests.cluster.faults.issues import L4, state
from tests.cluster.faults.machines import alone
from tests.cluster.faults.reported import (
    A30,
    A100,
    B200,
    G3,
    GH200,
    H100,
    H200,
    L40S,
    MIB,
    T4,
    TWO_SOCKETS,
    Change,
    Story,
    both,
    large,
    meetings,
    ports,
    slower,
)

GIB = 2**30
COUNTS = {"symbol_error": 0, "link_downed": 1}


def second_epoch(factor: float, *ranks: int) -> Change:
    """Its steps take so many times as long, on these ranks or on all."""

    def act(record: Record) -> None:
        epoch = record.results["training"]["epochs"][1]
        epoch["own_seconds"] = [factor * value for value in epoch["own_seconds"]]

    return on(ranks or None, act)


def tiring(share: float) -> Change:
    """The pace of minutes of load falls by so much from start to end, on all."""

    def change(records: list[Record]) -> None:
        paced(0.95)(records)
        for record in records:
            series = record.results["load"]["series"]
            for number, sample in enumerate(series):
                sample["products_per_second"] *= 1 - share * number / len(series)
            own = [sample["products_per_second"] for sample in series]
            record.results["load"]["products"] = int(
                record.results["load"]["products"] * sum(own) / len(own) / max(own)
            )

    return change


def tails(records: list[Record]) -> None:
    """One copy of fifty takes twenty times as long, on all."""
    for record in records:
        steady = record.results["steadiness"]
        steady["copies"] = {way: some_longer(own, 0.02, 20.0) for way, own in steady["copies"].items()}


def untold(records: list[Record]) -> None:
    """A firmware that no longer answers: of one board the driver tells neither power nor clock."""
    reading = records[3].results["after"]["reading"]
    reading |= {"power_watts": None, "sm_clock_hertz": None}
    reading["untold"] = {"power_watts": "Unknown Error", "sm_clock_hertz": "Unknown Error"}


def waited(seconds: float) -> Change:
    """So much time went by between the stages."""

    def change(records: list[Record]) -> None:
        for record in records:
            record.results["after"]["time"] += seconds
            record.results["after"]["reading"]["energy_joules"] += 80.0 * seconds

    return change


def seventh(records: list[Record]) -> None:
    """A module of each node is gone, for CUDA and for NVML."""
    records[:] = hosted(H100, nodes=2, gpus=7)


def on_digits(records: list[Record]) -> None:
    for record in records:
        record.results["data"]["data"] = record.results["training"]["data"] = "digits"


BROKEN: tuple[Story, ...] = (
    Story(what="a firmware that does not answer: neither power nor clock (gpustack 26)", records=lambda: hosted(H100), change=untold, named=G3),
    Story(what="XIDs 119 and 154 on one board before the run (gpustack 26)", records=lambda: hosted(H100), change=state([3], xids_before=[119, 154]), named=G3),
    Story(what="application clocks that somebody set on one board (azure 3)", records=lambda: hosted(A100), change=state([3], after=True, throttle_reasons=["application_clocks"]), named=G3),
    Story(what="NVLinks at 20,000 of 26,562 MB/s, on all", records=lambda: hosted(H100), change=state(nvlink_megabytes_per_second=20_000), named="GPU"),
    Story(what="adapters of 400 Gbit/s on eight lanes, on all nodes", records=lambda: hosted(H100, nodes=2), change=lambda r: ports(r, None, range(8), pcie_width=8), named="node1"),
    Story(what="one of four nodes without nvidia_peermem (nccl 1676)", records=lambda: hosted(H100, nodes=4, gpus=4, adapters=4), change=lambda r: [r[4].results[s].update(peer_memory=False) for s in ("network", "network_after")] and None, named="node1"),
    Story(what="40 corrected errors in the run on one board (azure 617)", records=lambda: hosted(A100), change=state([3], after=True, ecc_corrected=43), named="GPU 3"),
    Story(what="clocks that are held to those of other boards: sync boost", records=lambda: hosted(A100), change=state([3], after=True, throttle_reasons=["sync_boost"]), named="GPU 3"),
    Story(what="small messages of which each tenth takes six times as long", records=lambda: hosted(H100), change=messages(0.1, 6.0), named="all ranks"),
    Story(what="an all-reduce a sixth slower than all other operations", records=lambda: hosted(A100), change=lambda r: large(r, 1.19, "all_reduce"), named="all ranks"),
    Story(what="adapters at 80 % of their line, to themselves and to others", records=lambda: hosted(H100, nodes=2), change=lambda r: alone(r, 320.0), named="node1"),
    Story(what="seven ports for eight GPUs, on all nodes", records=lambda: hosted(H100, nodes=2, adapters=7), named="node1"),
    Story(what="one GPU that is a sixth slower in the second epoch", records=lambda: hosted(H100), change=second_epoch(1.16, 3), named="GPU 3"),
    Story(what="390 of 700 W under load, on all", records=lambda: hosted(H100), change=reading_of_load(watts=390.0), named="GPU"),
    Story(what="a triad at 87 % of a copy, on all", records=lambda: hosted(B200), change=lambda r: [x.results["bandwidth"]["rates"].update(triad=0.87 * x.results["bandwidth"]["rates"]["copy"]) for x in r] and None, named="GPU"),
    Story(what="one copy of fifty in twenty times the time, on all", records=lambda: hosted(H100), change=tails, named="GPU"),
    Story(what="3 % of one GPU's products in three times the time", records=lambda: hosted(H100), change=fits(3, 0.03, 3.0), named=G3),
)  # fmt: skip
"""What each should be: no PASS, the part named."""
IN_THE_BANNER: tuple[Story, ...] = (
    Story(what="40 GiB swapped out on one node (azure 54)", records=lambda: hosted(H100, nodes=2), change=host("node1", swapped_bytes=40 * GIB), named="swapped_bytes"),
    Story(what="two of four nodes with an older kernel", records=lambda: hosted(H100, nodes=4, gpus=4, adapters=4), change=both(host("node2", kernel="5.15.0-100"), host("node3", kernel="5.15.0-100")), named="kernel"),
    Story(what="a governor that differs between the processors of one node", records=lambda: hosted(H100, nodes=2), change=host("node1", governor="performance, powersave"), named="powersave"),
    Story(what="one of four nodes whose processors are 45 % busy", records=lambda: hosted(H100, nodes=4, gpus=4, adapters=4), change=host("node1", busy_ratio=0.45), named="busy_ratio"),
    Story(what="one of four nodes whose memory is nearly full of something else", records=lambda: hosted(H100, nodes=4, gpus=4, adapters=4), change=host("node1", memory_available_bytes=300 * GIB), named="memory_available_bytes"),
    Story(what="one of six pairs a quarter slower over PCIe", records=lambda: hosted(L40S, gpus=4, topology=TWO_SOCKETS), change=lambda r: meetings(r, 1.25, lambda a, b: {a.rank, b.rank} == {2, 3}), named="pairs: one NUMA node"),
    Story(what="a reduce-scatter of 1 KiB in 2.2 times the time of the others", records=lambda: hosted(H100), change=small("reduce_scatter", 2.2), named="collectives"),
    Story(what="seven of eight modules, on all nodes (gpu-operator 2511)", records=lambda: hosted(H100, nodes=2), change=seventh, named="7 GPUs"),
    Story(what="all GPUs a sixth slower in the second epoch", records=lambda: hosted(H100), change=second_epoch(1.16), named="epoch"),
    Story(what="a pace of load that falls by 12 % on all", records=lambda: hosted(H100), change=tiring(0.13), named="load"),
    Story(what="1,450 of 1,980 MHz under load, on all", records=lambda: hosted(H100), change=reading_of_load(sm_clock_hertz=1450e6), named="sm_clock"),
    Story(what="900 symbol errors on one port since the node was started", records=lambda: hosted(H100, nodes=2), change=both(lambda r: ports(r, None, range(8), counters=dict(COUNTS)), lambda r: ports(r, "node1", [4], counters={**COUNTS, "symbol_error": 900})), named="mlx5_4/1"),
    Story(what="one port that lost its link 40 times", records=lambda: hosted(H100, nodes=2), change=both(lambda r: ports(r, None, range(8), counters=dict(COUNTS)), lambda r: ports(r, "node1", [4], counters={**COUNTS, "link_downed": 40})), named="mlx5_4/1"),
    Story(what="a data set that is not mounted: the training took digits", records=lambda: hosted(H100), change=on_digits, named="photographs"),
    Story(what="200 s for the collectives: names that are resolved slowly", records=lambda: hosted(H100, nodes=2), change=took("collectives", 200.0), named="took.collectives"),
    Story(what="25 minutes that no stage took", records=lambda: hosted(H100), change=waited(1500.0), named="time"),
    Story(what="a driver of another branch, on all", records=lambda: hosted(H100), change=state(driver="535.54.03"), named="535.54.03"),
    Story(what="a library that is loaded before all others", records=lambda: hosted(H100), change=variables(LD_PRELOAD="/opt/trace.so"), named="LD_PRELOAD"),
)  # fmt: skip
"""As that of shared.py."""
HEALTHY: tuple[Story, ...] = (
    Story(what="eight H200 with all that is read", records=lambda: hosted(H200)),
    Story(what="eight B200 of two nodes", records=lambda: hosted(B200, nodes=2)),
    Story(what="four A30 over PCIe", records=lambda: hosted(A30, gpus=4, adapters=1, port=100, topology=TWO_SOCKETS)),
    Story(what="one T4 of a small guest with four processors", records=lambda: hosted(T4, gpus=1, rdma=False, port=25), change=host(processors=4, processors_allowed=None, memory_bytes=16 * GIB, memory_available_bytes=13 * GIB)),
    Story(what="one GH200 whose copies are quick", records=lambda: hosted(GH200, gpus=1, adapters=1)),
    Story(what="a second epoch that is 5 % slower, on all", records=lambda: hosted(H100), change=second_epoch(1.05)),
    Story(what="a pace of load that falls by 5 % on all", records=lambda: hosted(H100), change=tiring(0.05)),
    Story(what="650 W under load", records=lambda: hosted(H100), change=reading_of_load(watts=650.0)),
    Story(what="1,755 MHz under load at the power limit", records=lambda: hosted(H100), change=reading_of_load(sm_clock_hertz=1755e6)),
    Story(what="a triad 3 % quicker than a copy", records=lambda: hosted(A100), change=lambda r: [x.results["bandwidth"]["rates"].update(triad=1.03 * x.results["bandwidth"]["rates"]["copy"]) for x in r] and None),
    Story(what="half a percent of products in twice the time", records=lambda: hosted(H100), change=fits(3, 0.005, 2.0)),
    Story(what="small messages of which one of a hundred takes twice as long", records=lambda: hosted(H100, nodes=2), change=messages(0.01, 2.0)),
    Story(what="a broadcast of 1 KiB in 1.5 times the time of the others", records=lambda: hosted(H100), change=small("broadcast", 1.5)),
    Story(what="an all-to-all 6 % slower than the other operations", records=lambda: hosted(H200), change=lambda r: large(r, 1.06, "all_to_all")),
    Story(what="adapters at 95 % of their line", records=lambda: hosted(H100, nodes=2), change=lambda r: alone(r, 380.0)),
    Story(what="four ports for eight GPUs", records=lambda: hosted(A100, nodes=2, adapters=4, port=200)),
    Story(what="four of eight modules in a guest", records=lambda: hosted(H100, gpus=4, adapters=4)),
    Story(what="one lost link on a port long ago", records=lambda: hosted(H100, nodes=2), change=both(lambda r: ports(r, None, range(8), counters=dict(COUNTS)), lambda r: ports(r, "node1", [4], counters={**COUNTS, "link_downed": 3}))),
    Story(what="20 s for the collectives", records=lambda: hosted(H100, nodes=2), change=took("collectives", 20.0)),
    Story(what="two minutes that no stage took: nodes that wait for each other", records=lambda: hosted(H100, nodes=2), change=waited(120.0)),
    Story(what="a driver of the branch before, alike on all", records=lambda: hosted(A100), change=state(driver="570.172.08")),
    Story(what="512 MiB in use before the run: DCGM and a driver", records=lambda: hosted(H100), change=before(memory_used_bytes=512 * MIB)),
    Story(what="a node of four that is a tenth busier", records=lambda: hosted(H100, nodes=4, gpus=4, adapters=4), change=host("node1", busy_ratio=0.12)),
    Story(what="memory of one board 2 % slower", records=lambda: hosted(H100), change=memory(0.98, 5)),
    Story(what="products of one board 5 % slower", records=lambda: hosted(A100), change=lambda r: slower(r, [5], 1.05)),
    Story(what="copies of one board 6 % slower", records=lambda: hosted(L4, gpus=8, rdma=False, port=25, adapters=1, topology=TWO_SOCKETS), change=copied(1.06, [6])),
    Story(what="an idle board six degrees warmer than the others", records=lambda: hosted(A100), change=before([3], temperature_celsius=41)),
    Story(what="losses of a long training", records=lambda: hosted(H100), change=losses([0.4, 0.35, 0.3, 0.25])),
    Story(what="one epoch on L40S of two nodes", records=lambda: hosted(L40S, nodes=2, gpus=4, port=200, adapters=2, topology=TWO_SOCKETS), change=one_epoch),
    Story(what="a line that NCCL prints about its plug-in", records=lambda: hosted(A100), change=printed("node0:1:1 [0] NCCL INFO NET/Plugin: No plugin found (libnccl-net.so)")),
)  # fmt: skip
"""What each should be: PASS."""
