"""Machines that issue threads describe: broken ones, and healthy ones that a health check called broken.

Each names its thread: "nccl 2409" is NVIDIA/nccl, "gpud" leptonai/gpud, "nvsentinel" NVIDIA/NVSentinel, "nhc"
Azure/azurehpc-health-checks. A healthy one with `expect` needs it: no record shows that it is meant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cluster.acceptance.records import Record
from tests.cluster.faults.changes import present
from tests.cluster.faults.reported import (
    A100,
    A100_PCIE,
    B200,
    G3,
    GB200,
    H100,
    H100_NVL,
    H100_PCIE,
    H200,
    L40S,
    RTX4090,
    T4,
    TWO_SOCKETS,
    V100,
    Change,
    Model,
    Story,
    bridged,
    cluster,
    large,
    meetings,
    ports,
    read,
    slower,
)
from tests.cluster.faults.reported import both as all_of

MIB = 2**20
H20 = Model(
    name="NVIDIA H20", gib=95.6, mhz=2619, memory=3500, sms=78, pcie=5, links=18, ring=365, tflops=130, peak=148
)
H800 = Model(
    name="NVIDIA H800", gib=79.1, mhz=2619, memory=2950, sms=132, pcie=5, links=8, ring=162, tflops=690, peak=989
)
A100_64 = Model(
    name="NVIDIA A100-SXM-64GB", gib=63.4, mhz=1593, memory=1450, sms=124, pcie=4, links=12, ring=232, tflops=260
)
A100_40 = Model(
    name="NVIDIA A100-SXM4-40GB", gib=39.4, mhz=1215, memory=1350, sms=108, pcie=4, links=12, ring=232, tflops=260,
    peak=312,
)  # fmt: skip
V100_32 = replace(V100, name="Tesla V100-SXM2-32GB", gib=31.7, memory=780)
GB300 = Model(
    name="NVIDIA GB300", gib=278, mhz=3996, memory=7000, sms=152, pcie=5, links=18, ring=745, tflops=1700
)  # fmt: skip
GH200_144 = Model(
    name="NVIDIA GH200 144G HBM3e", gib=141, mhz=3201, memory=4300, sms=132, pcie=5, links=18, ring=0, tflops=660
)
GH200_120 = Model(
    name="NVIDIA GH200 120GB", gib=94.5, mhz=2619, memory=3500, sms=132, pcie=5, links=18, ring=340, tflops=640
)
RTX3090 = Model(
    name="NVIDIA GeForce RTX 3090", gib=23.6, mhz=9751, memory=850, sms=82, pcie=4, links=0, ring=10, tflops=62, peak=71
)
RTX6000B = Model(
    name="NVIDIA RTX PRO 6000 Blackwell Server Edition", gib=94.9, mhz=12481, memory=1500, sms=188, pcie=5, ring=34,
    tflops=380,
)  # fmt: skip
H200_NVL = replace(H200, name="NVIDIA H200 NVL", ring=340, tflops=560, peak=None)
L4 = Model(name="NVIDIA L4", gib=22.2, mhz=6251, memory=245, sms=58, pcie=4, ring=11, tflops=56, peak=121,
           held=0.476)  # fmt: skip


def across(records: list[Record], factor: float, *ranks: int) -> None:
    """Meetings of GPUs of two nodes, those of `ranks` if given, take so many times as long."""
    meetings(records, factor, lambda a, b: a.node != b.node and (not ranks or bool({a.rank, b.rank} & set(ranks))))


def network(factor: float, *operations: str) -> Change:
    """The network carries less, for collectives and pairs alike."""
    return all_of(lambda r: large(r, factor, *operations), lambda r: across(r, factor))


def state(ranks: Sequence[int] | None = None, *, after: bool = False, **figures: Any) -> Change:
    """What NVML says of these GPUs, or of all."""
    return lambda records: read(records, ranks, both=not after, **figures)


def copies(rank: int, **rates: float) -> Change:
    """Copies of one GPU, bytes per second."""
    return lambda r: r[rank].results["copies"]["seconds"].update({way: 256 * MIB / rate for way, rate in rates.items()})


def counted(node: str, number: int, **errors: int) -> Change:
    """A port counts so many more errors while the test runs."""

    def change(records: list[Record]) -> None:
        for record in records:
            if record.node == node and record.local_rank == 0:
                own = [dict(port) for port in record.results["network_after"]["ports"]]
                own[number]["counters"] = {**own[number]["counters"], **errors}
                record.results["network_after"] = {**record.results["network_after"], "ports": own}
                before = [dict(port) for port in record.results["network"]["ports"]]
                before[number]["counters"] = {**dict.fromkeys(errors, 0), **before[number]["counters"]}
                record.results["network"] = {**record.results["network"], "ports": before}

    return change


def without_adapters(records: list[Record], node: str, kept: int) -> None:
    for record in records:
        if record.node == node and record.local_rank == 0:
            for stage in ("network", "network_after"):
                record.results[stage] = {**record.results[stage], "ports": record.results[stage]["ports"][:kept]}


def no_peer_memory(records: list[Record]) -> None:
    for record in records:
        for stage in ("network", "network_after"):
            if "ports" in record.results[stage]:
                record.results[stage] = {**record.results[stage], "peer_memory": False}


def seven_of_eight() -> list[Record]:
    records = cluster(H100, gpus=7)
    present(seen_by_cuda=7, seen_by_nvml=8)(records)
    return records


def periodic(records: list[Record]) -> None:
    """A load of which every third sample is a third slower on GPU 3."""
    for record in records:
        series = [
            {"seconds": 10.0 * number, "products_per_second": 2500.0 / (1.5 if record.rank == 3 and number % 3 else 1.0),
             "celsius": 61, "watts": 520.0, "sm_clock_hertz": 1980e6, "throttle_reasons": []}
            for number in range(30)
        ]  # fmt: skip
        record.results["load"] = {"series": series, "products": 300_000, "differing": 0}


def sums_are_wrong(records: list[Record]) -> None:
    for one in records[3].results["collectives"]["measurements"]:
        if one["operation"] == "all_reduce":
            one["wrong"] = 3


def not_a_number(records: list[Record]) -> None:
    records[3].results["training"]["finite"] = False
    read(records, [3], both=False, xid_errors=1)


def racks(records: list[Record]) -> None:
    """Every node is in a rack of its own; all racks call their part 32766."""
    for record in records:
        of = {"state": "completed", "status": 0, "clique": 32766, "cluster": record.node[-1] * 32, "degraded": False}
        read(records, [record.rank], fabric=of)


def one_gpu_less_on_a_node() -> list[Record]:
    """Two nodes, of which the second one has four of eight GPUs, and nothing there says that there should be more."""
    records = cluster(H100, nodes=2)[:12]
    for record in records:
        record.results["pairs"]["met"] = [met for met in record.results["pairs"]["met"] if met["partner"] < 12]
    present(range(8, 12), seen_by_cuda=4, seen_by_nvml=4)(records)
    return records


def an_older_slot(records: list[Record]) -> None:
    """The second of two nodes allows PCIe 4 only."""
    read(records, range(8, 16), pcie_generation=4, pcie_generation_max=4)
    for record in records[8:]:
        record.results["copies"]["seconds"] = dict.fromkeys(("to_device", "to_host"), 256 * MIB / 25e9)


def another_clique(records: list[Record]) -> None:
    """The last of four nodes of a rack is in another part of the NVLink domain."""
    for record in records:
        read(records, [record.rank], fabric={**FORMED, "clique": 9 if record.node == "node3" else 1})
    meetings(records, 16, lambda a, b: a.node != b.node and "node3" in (a.node, b.node))
    large(records, 16)


def other_names(records: list[Record]) -> None:
    """The second node counts its adapters from four on."""
    for record in records:
        if record.node == "node1" and record.local_rank == 0:
            for stage in ("network", "network_after"):
                own = [{**port, "name": f"mlx5_{number + 4}/1"}
                       for number, port in enumerate(record.results[stage]["ports"])]  # fmt: skip
                record.results[stage] = {**record.results[stage], "ports": own}


def half_a_triad(records: list[Record]) -> None:
    records[3].results["bandwidth"]["rates"]["triad"] *= 0.5


FORMED = {"state": "completed", "status": 0, "clique": 32766, "cluster": "ab" * 16, "degraded": False}
G2 = "GPU 2 (rank 2, node0)"
BROKEN: tuple[Story, ...] = (
    Story(what="13 of 50 GB/s a connection over RoCE (nccl 2409)", records=lambda: cluster(H100, nodes=2), change=all_of(lambda r: large(r, 2), lambda r: across(r, 3.5)), named="all ranks"),
    Story(what="three nodes at a quarter, each two of them sound (nccl 1453)", records=lambda: cluster(H100, nodes=3), change=lambda r: large(r, 4), named="all ranks"),
    Story(what="a third of four adapters: ACS is on (nccl-tests 112)", records=lambda: cluster(A100, nodes=2, port=200, adapters=4), change=network(2.4), named="all ranks"),
    Story(what="33 of 93 GB/s without GPUDirect on all (nccl 1412)", records=lambda: cluster(A100, nodes=2, port=200, adapters=4), change=all_of(network(2.8), no_peer_memory), named="all ranks"),
    Story(what="6 of 12 GB/s without GPUDirect (nccl 465)", records=lambda: cluster(V100, nodes=4, gpus=4, port=100, adapters=1), change=network(2), named="all ranks"),
    Story(what="6 of 44 GB/s with four adapters of 100 Gbit/s (nccl-tests 29)", records=lambda: cluster(V100, nodes=4, port=100, adapters=4), change=network(7), named="all ranks"),
    Story(what="RoCE that drops packets (nccl 378)", records=lambda: cluster(V100, nodes=4, gpus=4, port=100, adapters=4), change=all_of(lambda r: large(r, 50), counted("node1", 0, out_of_sequence=90_000)), named="all ranks"),
    Story(what="two of six NVLinks inactive (azhpc-diagnostics 73)", records=lambda: cluster(V100, pair=lambda a, b: 46), change=state([3], nvlinks_up=4), named=G3),
    Story(what="a bridge that makes contact in part (nccl 557)", records=lambda: cluster(replace(A100_PCIE, ring=230), gpus=2), change=all_of(state(nvlinks_up=8), lambda r: large(r, 1.5), lambda r: meetings(r, 1.5)), named="GPU 0 (rank 0, node0)"),
    Story(what="CUDA shows seven of eight GPUs (gpu-operator 1065)", records=seven_of_eight, named="node0"),
    Story(what="a flood of corrected errors (nvsentinel 1748)", records=lambda: cluster(H100), change=state([3], after=True, ecc_corrected=40_000), named=G3),
    Story(what="a row that could not be remapped (eks-node-monitoring-agent 245)", records=lambda: cluster(A100), change=state([3], remapped_rows=[0, 12, 0, 1]), named=G3),
    Story(what="a row that waits to be remapped (gpud 987)", records=lambda: cluster(A100), change=state([3], remapped_rows=[0, 1, 1, 0]), named=G3),
    Story(what="XID 64: a remapping failed (awsome-distributed-ai 1190)", records=lambda: cluster(H200), change=state([3], xids_before=[64]), named=G3),
    Story(what="one card of four at PCIe generation 2 (rtx6kpro 88)", records=lambda: cluster(RTX6000B, gpus=4), change=all_of(state([2], after=True, pcie_generation=2), copies(2, to_device=7e9, to_host=7e9)), named=G2),
    Story(what="the memory test got less than half of the memory (DCGM 284)", records=lambda: cluster(H100), change=lambda r: r[3].results["memory"].update(tested_bytes=int(0.4 * 79.1 * 2**30)), named=G3),
    Story(what="one of four A100 PCIe copies at 9 GB/s (autopilot 68)", records=lambda: cluster(A100_PCIE, gpus=4, pair=bridged(233, 18)), change=copies(2, to_device=9e9, to_host=9e9), named=G2),
    Story(what="only copies to the host are at half (azhpc-diagnostics 50)", records=lambda: cluster(A100), change=copies(2, to_host=12e9), named=G2),
    Story(what="GPUs 6 and 7 have half of the network (nccl 1435)", records=lambda: cluster(A100, nodes=2, port=200, adapters=4), change=all_of(lambda r: large(r, 2), lambda r: across(r, 2, 6, 7)), named="GPU 6 (rank 6, node0)"),
    Story(what="two of eight adapters carry everything (nccl 1600)", records=lambda: cluster(H100, nodes=4), change=lambda r: large(r, 4), named="all ranks"),
    Story(what="H20 at 65 of 186 GB/s with four adapters (nccl 1588)", records=lambda: cluster(H20, nodes=2, adapters=4), change=network(2.8), named="all ranks"),
    Story(what="a fabric in progress on one of eight B200 (extensions 717)", records=lambda: cluster(B200), change=state([3], fabric={**FORMED, "state": "in progress"}), named=G3),
    Story(what="a fabric with a part of its bandwidth (nccl 2186)", records=lambda: cluster(GB200, nodes=4, gpus=4, line=14.9, adapters=4), change=all_of(state(fabric=FORMED), state([5], fabric={**FORMED, "degraded": True})), named="GPU 1 (rank 5, node1)"),
    Story(what="nodes of one rack in three NVLink domains (torchcomms 3612)", records=lambda: cluster(GB200, nodes=3, gpus=4, adapters=4), change=racks, named="all ranks", expect="[cluster]\nnvlink_domain_nodes = 3"),
    Story(what="one of four V100 at half of its power (dell-idrac 3)", records=lambda: cluster(V100, gpus=4, pair=lambda a, b: 46), change=all_of(lambda r: slower(r, [2], 1.5), state([2], after=True, power_watts=150.0, sm_clock_hertz=900e6, throttle_reasons=["power_cap"])), named=G2),
    Story(what="an A100 capped far below its limit (dell-idrac 3)", records=lambda: cluster(A100, gpus=1), change=all_of(lambda r: slower(r, [0], 1.7), state(after=True, power_watts=240.0, sm_clock_hertz=900e6, throttle_reasons=["power_cap"])), named="GPU 0"),
    Story(what="a slowdown by hardware at little power (open_clip 703)", records=lambda: cluster(H100), change=state([3], after=True, power_watts=110.0, sm_clock_hertz=345e6, throttle_reasons=["hardware_slowdown", "power_brake"]), named=G3),
    Story(what="pace that comes and goes (nnUNet 1351)", records=lambda: cluster(H100), change=periodic, named=G3),
    Story(what="sums that are wrong on one rank (dion 76)", records=lambda: cluster(B200), change=sums_are_wrong, named=G3),
    Story(what="numbers that are none, and an XID (torchtitan 951)", records=lambda: cluster(H100), change=not_a_number, named=G3),
    Story(what="a GPU that answers no more (PeerRead 40)", records=lambda: cluster(A100), change=lambda r: r[3].results["after"].update(reading={"up": False, "untold": {}}), named=G3),
    Story(what="a port that polls, at 10 Gbit/s (gpud 482)", records=lambda: cluster(H100, nodes=2), change=lambda r: ports(r, "node1", [6], up=False, rate_gigabits=10.0), named="node node1"),
    Story(what="a node that shows one of eight adapters (gpud 200)", records=lambda: cluster(H100, nodes=4), change=lambda r: without_adapters(r, "node2", 1), named="node node2"),
    Story(what="symbol errors while the test runs (gcm 119)", records=lambda: cluster(H200, nodes=2), change=counted("node1", 2, symbol_error=5000), named="node node1"),
    Story(what="a link that flaps (gcm 119)", records=lambda: cluster(H200, nodes=2), change=counted("node0", 5, link_downed=1), named="node node0"),
    Story(what="a network that discards, a third slower (gcm 119)", records=lambda: cluster(H100, nodes=2), change=all_of(network(1.4), counted("node0", 1, port_xmit_discards=100_000)), named="all ranks"),
    Story(what="cables of 100 Gbit/s at ports that say 200 (nccl 307)", records=lambda: cluster(A100, nodes=2, port=200, adapters=2), change=network(2), named="all ranks"),
    Story(what="A100 through the host's memory: P2P is off (nccl-tests 228)", records=lambda: cluster(A100), change=all_of(lambda r: large(r, 10), lambda r: meetings(r, 10)), named="all ranks"),
    Story(what="another driver on one node", records=lambda: cluster(H100, nodes=4, gpus=4), change=state([8, 9, 10, 11], driver="550.54.15"), named="node2"),
    Story(what="another process holds half of the memory (soperator 1392)", records=lambda: cluster(H100), change=state([3], memory_used_bytes=41_000 * MIB, utilization_ratio=0.9), named=G3),
    Story(what="an NVLink that flaps (marin 8934)", records=lambda: cluster(GB200, nodes=2, gpus=4, line=14.9, adapters=4), change=all_of(state(fabric=FORMED), state([3], after=True, nvlink_errors=900)), named=G3),
    Story(what="ECC that the next reset turns off", records=lambda: cluster(A100), change=state([3], ecc_mode=[1, 0]), named=G3),
    Story(what="MIG that the next reset turns on", records=lambda: cluster(A100), change=state([3], mig_mode=[0, 1]), named=G3),
    Story(what="a port in Ethernet's mode on one of four nodes (infra-controller 3624)", records=lambda: cluster(H100, nodes=4, gpus=2), change=lambda r: ports(r, "node2", [3], kind="Ethernet"), named="node node2"),
    Story(what="a port in Ethernet's mode next to seven of InfiniBand", records=lambda: cluster(H100), change=lambda r: ports(r, None, [3], kind="Ethernet"), named="node node0"),
    Story(what="fewer GPUs than on the other node", records=one_gpu_less_on_a_node, named="node node1"),
    Story(what="a BIOS that allows PCIe 4 on one of two nodes", records=lambda: cluster(H100, nodes=2), change=an_older_slot, named="node1"),
    Story(what="a node in another clique of the rack", records=lambda: cluster(GB200, nodes=4, gpus=4, line=14.9, adapters=4), change=another_clique, named="node3"),
    Story(what="a triad at half, and a sound copy", records=lambda: cluster(H100), change=half_a_triad, named=G3),
    Story(what="an adapter of eight lanes for a port of 400 Gbit/s", records=lambda: cluster(H100, nodes=2), change=lambda r: ports(r, "node1", [1], pcie_width=8, pcie_width_max=8), named="node node1"),
    Story(what="another program's 4 GiB on every GPU", records=lambda: cluster(A100), change=state(memory_used_bytes=4096 * MIB), named=G3),
    Story(what="EFA without its plug-in: sockets (InferenceX 2979)", records=lambda: cluster(H100, nodes=2, port=100, adapters=32, line=3.4), change=network(30), named="all ranks"),
)  # fmt: skip
HEALTHY: tuple[Story, ...] = (
    Story(what="H100 NVL of which 12 of 18 links are wired (nhc 162)", records=lambda: cluster(replace(H100_NVL, ring=245), gpus=2), change=state(nvlinks=18, nvlinks_up=12)),
    Story(what="an A100 PCIe without a bridge, alone (nvsentinel 1481)", records=lambda: cluster(A100_PCIE, gpus=1), change=state(nvlinks_up=0)),
    Story(what="H100 PCIe, which have no fabric (gpud 1147)", records=lambda: cluster(H100_PCIE, gpus=2), change=state(fabric=None, nvlinks=12, nvlinks_up=0)),
    Story(what="a GH200 of 144 GB without a switch (gpud 1206)", records=lambda: cluster(GH200_144, gpus=1), change=state(fabric=None, nvlinks_up=0)),
    Story(what="a ninth port without a cable (infra-controller 3624)", records=lambda: cluster(H100, adapters=9), change=lambda r: ports(r, None, [8], up=False, rate_gigabits=10.0)),
    Story(what="sixteen ports, one of the front end, and its twin off (nvsentinel 1361)", records=lambda: cluster(H100, nodes=2, port=200, adapters=18, line=1.86), change=all_of(lambda r: ports(r, None, [16], rate_gigabits=100.0), lambda r: ports(r, None, [17], rate_gigabits=40.0, up=False))),
    Story(what="GB300 in one NVLink domain (nvsentinel 1663)", records=lambda: cluster(GB300, nodes=2, gpus=4, port=800, line=7.45, adapters=4), change=state(fabric=FORMED)),
    Story(what="H100 at their power limit (azurehpc 595)", records=lambda: cluster(replace(H100, tflops=610)), change=state(after=True, power_watts=698.0, sm_clock_hertz=1410e6, throttle_reasons=["power_cap"])),
    Story(what="a 3090 with a limit of 315 W that is meant (ninfer-3090 72)", records=lambda: cluster(RTX3090, gpus=1), change=all_of(state(power_limit_watts=315.0, power_limit_default_watts=350.0, sm_clock_max_hertz=2100e6), state(after=True, power_watts=314.0, sm_clock_hertz=1650e6, throttle_reasons=["power_cap"])), expect="[gpu]\npower_limit_watts = 315"),
    Story(what="one GPU 30 degrees warmer than the others (Sinha et al.)", records=lambda: cluster(V100, gpus=4, pair=lambda a, b: 46), change=all_of(state(after=True, temperature_celsius=48), state([2], after=True, temperature_celsius=78))),
    Story(what="generation 1 while idle (nvtop 6)", records=lambda: cluster(RTX4090, gpus=2), change=all_of(state(pcie_generation=1), state(after=True, pcie_generation=4))),
    Story(what="XID 45 of jobs that were cancelled (nvsentinel 1748)", records=lambda: cluster(GB200, nodes=2, gpus=4, line=14.9, adapters=4), change=state(xids_before=[45] * 500)),
    Story(what="XID 13, 31 and 43 of programs that were wrong", records=lambda: cluster(A100), change=state([1], xids_before=[13, 31, 43])),
    Story(what="rows that were remapped long ago (eks-node-monitoring-agent 246)", records=lambda: cluster(A100), change=state([3], remapped_rows=[3, 1, 0, 0])),
    Story(what="T4 that report no rows (eks-node-monitoring-agent 246)", records=lambda: cluster(T4, gpus=4, rdma=False, port=25), change=state(remapped_rows=None, nvlink_errors=None, mig_mode=None)),
    Story(what="H20 with four adapters", records=lambda: cluster(H20, nodes=2, adapters=4)),
    Story(what="eight H800, with half of the links (nccl 1374)", records=lambda: cluster(H800), change=lambda r: large(r, 162 / 215, "all_reduce")),
    Story(what="four H100 of six links a pair (nccl 1617)", records=lambda: cluster(H100, gpus=4, adapters=4, pair=lambda a, b: 128)),
    Story(what="four A100 of 64 GB (nccl-tests 331)", records=lambda: cluster(A100_64, gpus=4, port=200, adapters=4, pair=lambda a, b: 73), expect="[compute_tflops]\nbfloat16 = 240\nfloat16 = 240\n[gpu]\nmemory_gigabytes_per_second = 1300"),
    Story(what="sums by the switches at 475 GB/s (nccl-tests 272)", records=lambda: cluster(H200), change=lambda r: large(r, 368 / 475, "all_reduce")),
    Story(what="all-reduce by trees, above the line of two nodes (nccl 1031)", records=lambda: cluster(H100, nodes=2), change=lambda r: large(r, 0.62, "all_reduce")),
    Story(what="all-gather by the switches at 300 GB/s (nccl 1506)", records=lambda: cluster(H100), change=lambda r: large(r, 368 / 300, "all_gather"), expect="[bus_gigabytes_per_second]\nall_gather = 260"),
    Story(what="NVLinks that have sent a few flits again", records=lambda: cluster(H100), change=all_of(state(nvlink_errors=12), state(after=True, nvlink_errors=13))),
    Story(what="a pod with four of eight GPUs", records=lambda: cluster(H100, gpus=4), change=present(restricted=True)),
    Story(what="Slurm shows each task one GPU", records=lambda: cluster(H100), change=present(seen_by_cuda=1, restricted=True, given_by_slurm=8)),
    Story(what="32 EFA adapters of 100 Gbit/s (aws-ofi-nccl 476)", records=lambda: cluster(H100, nodes=2, port=100, adapters=32, line=3.4)),
    Story(what="four EFA adapters for eight A100 (aws-ofi-nccl 64)", records=lambda: cluster(A100_40, nodes=2, port=100, adapters=4, line=0.86)),
    Story(what="one adapter for eight V100 (nhc 54)", records=lambda: cluster(V100_32, nodes=2, port=100, adapters=1, pair=lambda a, b: 46)),
    Story(what="four GH200 in a node", records=lambda: cluster(GH200_120, gpus=4, port=200, adapters=4, pair=lambda a, b: 125)),
    Story(what="bridges to the switches next to eight adapters (extensions 893)", records=lambda: cluster(B200, nodes=2, adapters=12), change=all_of(state(fabric=FORMED), lambda r: ports(r, None, range(8, 12), up=False))),
    Story(what="eight RTX PRO 6000 on two sockets (rtx6kpro 88)", records=lambda: cluster(RTX6000B, rdma=False, port=25, topology=TWO_SOCKETS, pair=lambda a, b: 40 if (a < 4) == (b < 4) else 28), expect="[compute_tflops]\nbfloat16 = 350\nfloat16 = 350\n[gpu]\nmemory_gigabytes_per_second = 1300"),
    Story(what="another program's 1.5 GiB on every GPU (DCGM, MPS)", records=lambda: cluster(L40S, gpus=4, topology=TWO_SOCKETS), change=state(memory_used_bytes=1500 * MIB)),
    Story(what="two L4 in two machines over 100 Gbit/s Ethernet", records=lambda: cluster(L4, nodes=2, gpus=1, rdma=False, port=100, line=0.45)),
    Story(what="H200 NVL with a bridge of four", records=lambda: cluster(H200_NVL, gpus=4, pair=lambda a, b: 123)),
    Story(what="H200 NVL with two bridges of four", records=lambda: cluster(replace(H200_NVL, ring=30), topology=TWO_SOCKETS, pair=lambda a, b: 123 if (a < 4) == (b < 4) else 25)),
    Story(what="H200 NVL with a bridge of two", records=lambda: cluster(replace(H200_NVL, ring=360), gpus=2)),
    Story(what="adapters that another node counts from four on", records=lambda: cluster(H100, nodes=2), change=other_names),
    Story(what="RoCE, whose ports are Ethernet, on all nodes", records=lambda: cluster(H100, nodes=2), change=lambda r: ports(r, None, range(8), kind="Ethernet")),
    Story(what="two Ethernet ports for storage next to eight of InfiniBand", records=lambda: cluster(H100, nodes=2, adapters=10), change=lambda r: ports(r, None, [8, 9], kind="Ethernet", rate_gigabits=100.0)),
    Story(what="errors of ports from long before", records=lambda: cluster(H100, nodes=2), change=lambda r: ports(r, None, range(8), counters={"symbol_error": 10**6, "link_downed": 4})),
    Story(what="a GH200 whose memory the host's cache uses", records=lambda: cluster(GH200_144, gpus=1), change=state(memory_used_bytes=30_000 * MIB, nvlinks_up=0)),
    Story(what="three racks of GB200, each a domain of its own (torchcomms 3612)", records=lambda: cluster(GB200, nodes=3, gpus=4, adapters=4), change=racks),
)  # fmt: skip
