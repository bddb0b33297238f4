"""Machines after threads that were read for this file, each of a kind that the other files do not have.

All were written down, with what the verdict should be, before any was judged. "ofi" is aws/aws-ofi-nccl, "eks"
aws/eks-node-monitoring-agent, "aicr" NVIDIA/aicr, "perftest" linux-rdma/perftest, the others are as in issues.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cluster.acceptance.records import Record
from tests.cluster.faults.changes import each_epoch, memory, present, result
from tests.cluster.faults.incidents import stalling
from tests.cluster.faults.issues import A100_40, FORMED, G2, GB300, L4, copies, counted, network, state
from tests.cluster.faults.machines import alone
from tests.cluster.faults.reported import (
    A30,
    A100,
    B200,
    G3,
    GB200,
    H100,
    H100_NVL,
    H200,
    L40S,
    RTX4090,
    T4,
    TWO_SOCKETS,
    V100,
    Change,
    Story,
    both,
    cluster,
    copy_rate,
    meetings,
    ports,
    read,
    slower,
)
from tests.cluster.faults.threads import SECOND
from tests.cluster.faults.unseen import other_sizes, product_of


def from_a_size_on(records: list[Record]) -> None:
    """256 MiB at 60 % of the rate that 16 MiB reach."""
    other_sizes(1.0)(records)
    large_only(1.67)(records)


def large_only(factor: float) -> Change:
    def change(records: list[Record]) -> None:
        for record in records:
            for row in record.results["collectives"]["measurements"]:
                if row["bytes"] == 256 * 2**20:
                    row["seconds"] = [factor * seconds for seconds in row["seconds"]]

    return change


def busy_memory(records: list[Record]) -> None:
    """NVML says that GPU 3's memory is busy, and that nothing computes."""
    read(records, memory_busy_ratio=0.0)
    records[3].results["before"]["reading"]["memory_busy_ratio"] = 0.45


def own_rails(records: list[Record]) -> None:
    """Cables are mixed up, so that the same rail of two nodes meets over the spine."""
    meetings(records, 1.5, lambda a, b: a.node != b.node and a.local_rank == b.local_rank)


def one_receiver(records: list[Record]) -> None:
    for row in records[5].results["collectives"]["measurements"]:
        if row["operation"] == "point_to_point" and row["bytes"] > 2**20:
            row["seconds"] = [1.5 * seconds for seconds in row["seconds"]]


def no_registration(records: list[Record]) -> None:
    """No adapter of the second node can register memory (ulimit -l)."""
    alone(records, 392.0)
    for record in records:
        for row in record.results["adapters"].get("measured", ()):
            if record.node == "node1":
                row |= {"gigabits": None, "reason": "Couldn't allocate MR: Cannot allocate memory"}


def together(factor: float, ranks: Sequence[int]) -> Change:
    """Copies of all GPUs of a node at once take so many times as long, single ones do not."""

    def change(records: list[Record]) -> None:
        for rank in ranks:
            own = records[rank].results["steadiness"]
            own["copies"] = {
                way: {name: value * factor if name.endswith("_seconds") else value / factor if name == "samples" else value
                      for name, value in figure.items()}
                for way, figure in own["copies"].items()
            }  # fmt: skip
            for figure in own["copies"].values():
                figure["samples"] = int(figure["samples"])

    return change


def xids_of_the_run(records: list[Record]) -> None:
    records[3].results["after"]["reading"]["xids_before"] = [31]


def without_rate(records: list[Record]) -> None:
    ports(records, "node2", range(8), rate_gigabits=None)


def half_a_bond(records: list[Record]) -> None:
    ports(records, "node3", [0], rate_gigabits=25.0)


def narrow_slot(records: list[Record]) -> None:
    """One of four cards is in a slot of PCIe 3."""
    read(records, [2], pcie_generation=3, pcie_generation_max=3)
    copies(2, to_device=12.3e9, to_host=12.3e9)(records)
    own = records[2].results["steadiness"]
    own["copies"] = {
        way: {name: 2 * value if name.endswith("_seconds") else value for name, value in figure.items()}
        for way, figure in own["copies"].items()
    }
    for figure in own["copies"].values():
        figure["samples"] //= 2


def not_confined(records: list[Record]) -> None:
    """Slurm gave four of eight GPUs of a node, and the job sees all."""
    present(range(8, 16), restricted=True, given_by_slurm=4)(records)


def uncounted(records: list[Record]) -> None:
    ports(records, "node1", range(8), counters={})


def discards(records: list[Record]) -> None:
    for node in ("node0", "node1"):
        for number in range(8):
            counted(node, number, port_xmit_discards=100_000)(records)


BROKEN: tuple[Story, ...] = (
    Story(what="pairs of all at 82 %, collectives sound", records=lambda: cluster(H100), change=lambda r: meetings(r, 1.22), named="all ranks"),
    Story(what="every third large message at 57 % (nccl-tests 283)", records=lambda: cluster(H200, nodes=4), change=stalling(3, 1.75), named="all ranks"),
    Story(what="a container whose processors are on the wrong socket (nccl 1017)", records=lambda: cluster(H100, nodes=2), change=network(1.4), named="all ranks"),
    Story(what="60 % from 46 MB on (ofi 65)", records=lambda: cluster(A100_40, nodes=2, port=100, adapters=4, line=0.86), change=from_a_size_on, named="all ranks"),
    Story(what="memory that is busy while nothing computes (dcgm 272)", records=lambda: cluster(H100), change=busy_memory, named=G3),
    Story(what="seven adapters for eight GPUs on every node", records=lambda: cluster(H100, nodes=2, adapters=7), named="node node"),
    Story(what="rails that meet over the spine: cables mixed up", records=lambda: cluster(H100, nodes=4), change=own_rails, named="GPU"),
    Story(what="one receiver of the ring at 67 %, its pairs sound", records=lambda: cluster(H100), change=one_receiver, named="GPU 5 (rank 5, node0)"),
    Story(what="a node whose adapters cannot register memory (perftest)", records=lambda: cluster(H100, nodes=2), change=no_registration, named="node node1"),
    Story(what="a node whose host carries half of the copies of eight GPUs", records=lambda: cluster(H100, nodes=2), change=together(2.2, SECOND), named="node1"),
    Story(what="95 corrected errors in a minute on one GPU", records=lambda: cluster(A100), change=state([3], after=True, ecc_corrected=98), named=G3),
    Story(what="eight recoveries of NVLink in a minute on one GPU", records=lambda: cluster(H100), change=state([3], after=True, nvlink_errors=8), named=G3),
    Story(what="a power brake before the run, none at its end", records=lambda: cluster(H100), change=lambda r: r[3].results["before"]["reading"].update(throttle_reasons=["power_brake"]), named=G3),
    Story(what="XID 31 while the test ran", records=lambda: cluster(H100), change=xids_of_the_run, named=G3),
    Story(what="a node whose adapters do not tell their rate", records=lambda: cluster(H100, nodes=4), change=without_rate, named="node node2"),
    Story(what="a bond of Ethernet with one of two cables, on one of four nodes", records=lambda: cluster(L4, nodes=4, gpus=1, rdma=False, port=50, line=0.4), change=half_a_bond, named="node node3"),
    Story(what="copies to one GPU a fifth slower: a retimer", records=lambda: cluster(H100), change=copies(3, to_device=40e9), named=G3),
    Story(what="one of eight GPUs an eighth slower", records=lambda: cluster(H100), change=lambda r: slower(r, [3], 1.135), named=G3),
    Story(what="a node a tenth slower than the other", records=lambda: cluster(H100, nodes=2), change=lambda r: slower(r, SECOND, 1.1), named="node1"),
    Story(what="a node whose memory is a sixth slower than the other's", records=lambda: cluster(H100, nodes=2), change=memory(0.84, *SECOND), named="node1"),
    Story(what="a node whose copies are a quarter slower than the other's", records=lambda: cluster(H100, nodes=2), change=lambda r: copy_rate(r[8:], 0.6 * 16 * 3.938e9), named="node1"),
    Story(what="steps a fifth slower on one of four nodes, products sound", records=lambda: cluster(A100, nodes=4, port=200), change=lambda r: slower(r, range(16, 24), 1.2, products=False), named="node2"),
    Story(what="250 W on all idle GPUs: contexts that hang", records=lambda: cluster(H100), change=lambda r: [x.results["before"]["reading"].update(power_watts=250.0) or x.results["after"]["reading"].update(energy_joules=31_000.0) for x in r] and None, named=G3),
    Story(what="eight GPUs of which Slurm gave four", records=lambda: cluster(H100, nodes=2), change=not_confined, named="node node1"),
    Story(what="a node whose adapters count no errors", records=lambda: cluster(H100, nodes=2), change=uncounted, named="node node1"),
    Story(what="one of four cards in a slot of PCIe 3", records=lambda: cluster(L40S, gpus=4, topology=TWO_SOCKETS), change=narrow_slot, named=G2),
    Story(what="100,000 discards on every port in a minute", records=lambda: cluster(H100, nodes=2), change=discards, named="node node1"),
)  # fmt: skip
"""No PASS, and the part is named."""
IN_THE_BANNER: tuple[Story, ...] = (
    Story(what="1 MiB at 40 % between nodes on some processors (nccl 2441)", records=lambda: cluster(replace(H100_NVL, ring=245), nodes=2, gpus=2, adapters=2), change=other_sizes(5.0, 2**20, "all_reduce"), named="messages of"),
    Story(what="no products of 8 bits on H100: PyTorch without them", records=lambda: cluster(H100), named="8 bits"),
    Story(what="560 of 700 W by a rack's limit, products a sixth slower", records=lambda: cluster(H100), change=both(lambda r: slower(r, range(8), 1.17), state(after=True, power_watts=560.0, throttle_reasons=["power_cap"], sm_clock_hertz=1650e6)), named="product"),
    Story(what="images at 60 % of what steps allow", records=lambda: cluster(H100), change=each_epoch(None, lambda epoch: {"images_per_second": 5400.0}), named="images per second"),
    Story(what="NCCL of two years ago on all nodes", records=lambda: cluster(H100, nodes=2), change=present(nccl=[2, 19, 3]), named="nccl"),
    Story(what="ports of 100 Gbit/s on all, where 400 were meant", records=lambda: cluster(H100, nodes=2, port=100), named="rate of ports"),
    Story(what="six of ten nodes", records=lambda: cluster(A100, nodes=6, gpus=1, port=200), named="number of nodes"),
    Story(what="nvidia_peermem on no node", records=lambda: cluster(H100, nodes=2), change=lambda r: [x.results[s].update(peer_memory=False) for x in r for s in ("network", "network_after") if "ports" in x.results[s]] and None, named="GPUDirect"),
)  # fmt: skip
"""As that of shared.py: what no bound forbids; a PASS has to name it."""


def eight_in_each(records: list[Record]) -> None:
    read(records, both=False, pcie_replays=6)


def two_dark_ports(records: list[Record]) -> None:
    """A workstation with an adapter that nobody plugged in."""
    for stage in ("network", "network_after"):
        own = records[0].results[stage]
        dark = [{"name": f"mlx5_{number}/1", "kind": "InfiniBand", "rdma": True, "up": False, "rate_gigabits": 10.0,
                 "counters": {}} for number in range(2)]  # fmt: skip
        records[0].results[stage] = {**own, "ports": [*own["ports"], *dark]}


def short_stall(records: list[Record]) -> None:
    records[3].results["steadiness"]["products"]["longest_seconds"] = 0.4


def more_samples(records: list[Record]) -> None:
    own = records[3].results["steadiness"]["products"]
    own["samples"] = int(own["samples"] * 1.1)


def rack(nodes: int) -> list[Record]:
    records = cluster(GB200, nodes=nodes, gpus=4, line=14.9, adapters=4)
    read(records, fabric=FORMED)
    return records


def ib_write(records: list[Record]) -> None:
    alone(records, 376.0)
    for record in records:
        for row in record.results["adapters"].get("measured", ()):
            if row["server"] is None:
                row["gigabits"] = 360.0


def at_first(**figures: Any) -> Change:
    return lambda records: [record.results["before"]["reading"].update(figures) for record in records] and None


HEALTHY: tuple[Story, ...] = (
    Story(what="60 CRC errors of NVLink in one board's life (eks 261)", records=lambda: cluster(H100), change=state([3], nvlink_errors=60)),
    Story(what="an idle GB300 without IMEX (aicr 2641)", records=lambda: cluster(GB300, gpus=4, adapters=4), change=state(fabric=FORMED)),
    Story(what="712 of 700 W for a moment (dcgm 285)", records=lambda: cluster(H100), change=state(after=True, power_watts=712.0, throttle_reasons=["power_cap"], sm_clock_hertz=1755e6)),
    Story(what="six replays of PCIe on each GPU in a minute (dcgm 184)", records=lambda: cluster(H100), change=eight_in_each),
    Story(what="adapters at 360 to themselves and 376 to others (perftest 318)", records=lambda: cluster(H100, nodes=2), change=ib_write),
    Story(what="a virtual machine that shows no topology", records=lambda: cluster(H100), change=at_first(topology={})),
    Story(what="four nodes of a rack", records=lambda: rack(4)),
    Story(what="three illegal accesses of a program on one GPU", records=lambda: cluster(A100), change=state([3], xids_before=[31, 31, 43])),
    Story(what="eight rows that were remapped for corrected errors", records=lambda: cluster(A100), change=state([3], remapped_rows=[8, 0, 0, 0])),
    Story(what="83 of 87 degrees under load", records=lambda: cluster(H100), change=state(after=True, temperature_celsius=83)),
    Story(what="boards that are warm of the job before", records=lambda: cluster(H100), change=at_first(temperature_celsius=60, power_watts=115.0)),
    Story(what="L4 that idle at 30 of 72 W", records=lambda: cluster(L4, gpus=4, topology=TWO_SOCKETS), change=both(state(power_limit_watts=72.0, power_limit_default_watts=72.0, power_watts=30.0), state(after=True, power_watts=71.0, throttle_reasons=["power_cap"], sm_clock_hertz=1300e6))),
    Story(what="a board that takes half as much energy again", records=lambda: cluster(H100), change=state([3], after=True, energy_joules=6400.0)),
    Story(what="a first loss of 2.9", records=lambda: cluster(H100), change=each_epoch(None, lambda epoch: {"losses": [1.26 * loss for loss in epoch["losses"]]})),
    Story(what="bfloat16 8 % quicker than float16", records=lambda: cluster(H100), change=product_of("bfloat16", 745, 989)),
    Story(what="backward passes that take thrice the forward one", records=lambda: cluster(H100), change=result("training", alone_seconds=[0.02] * 5)),
    Story(what="adapters that count nothing, on all nodes", records=lambda: cluster(H100, nodes=2, port=100, adapters=32, line=3.4), change=lambda r: ports(r, None, range(32), counters={})),
    Story(what="A30 with one adapter for two", records=lambda: cluster(A30, nodes=2, gpus=2, port=100, adapters=1)),
    Story(what="NVML that saw 70 % of the last second", records=lambda: cluster(H100), change=state(after=True, utilization_ratio=0.7)),
    Story(what="40 % of the memory in use at the end, on all", records=lambda: cluster(A100), change=state(after=True, memory_used_bytes=32_000 * 2**20)),
    Story(what="a tenth more products in the same time on one GPU", records=lambda: cluster(H100), change=more_samples),
    Story(what="one interruption of 0.4 s", records=lambda: cluster(H100), change=short_stall),
    Story(what="a limit of 600 W that is meant and a default as low", records=lambda: cluster(H100), change=state(power_limit_watts=600.0, power_limit_default_watts=600.0), expect="[gpu]\npower_limit_watts = 600"),
    Story(what="V100 with ten pages for double-bit errors", records=lambda: cluster(V100, gpus=4, pair=lambda a, b: 46), change=both(state(remapped_rows=None, retired_pages=[0, 0]), state([2], retired_pages=[2, 10]))),
    Story(what="sixteen adapters for eight GPUs", records=lambda: cluster(H200, nodes=2, port=200, adapters=16)),
    Story(what="a workstation with an adapter that nobody plugged in", records=lambda: cluster(RTX4090, gpus=1, rdma=False, port=10), change=two_dark_ports),
    Story(what="a T4 alone in a virtual machine", records=lambda: cluster(T4, gpus=1, rdma=False, port=25), change=state(ecc_lifetime=None, sram_errors=None, recovery_action=None)),
    Story(what="B200 that idle at 190 of 1,000 W", records=lambda: cluster(B200), change=both(at_first(power_watts=190.0), state(after=True, energy_joules=25_000.0))),
    Story(what="copies of eight GPUs at once, a third slower than alone, on both nodes", records=lambda: cluster(H100, nodes=2), change=together(1.5, range(16))),
    Story(what="nodes of one GPU and one adapter each, eight of them", records=lambda: cluster(A100, nodes=8, gpus=1, port=200, adapters=1)),
)  # fmt: skip
