"""Machines that nobody had thought of when the judge was written: broken ones, and sound ones that are unusual.

Each names its source where there is one, as in issues.py.
"""

from __future__ import annotations

from dataclasses import replace

from cluster.acceptance.records import Record
from tests.cluster import sound
from tests.cluster.faults.changes import memory, present
from tests.cluster.faults.issues import A100_40, RTX3090, RTX6000B, network, state
from tests.cluster.faults.reported import (
    A10G,
    A100,
    B200,
    G3,
    H100,
    H200,
    L40S,
    RTX4090,
    V100,
    Change,
    Story,
    both,
    cluster,
    copy_rate,
    large,
    meetings,
    ports,
    slower,
    small,
)

B300 = replace(B200, name="NVIDIA B300 SXM6 AC", gib=268, memory=7000, tflops=1700, peak=None)
WORKSTATION = "[compute_tflops]\nbfloat16 = 350\nfloat16 = 350\n[gpu]\nmemory_gigabytes_per_second = 1300"
SWITCHED = {"switch": 18}


def one_gpu_for_two_pods(records: list[Record]) -> None:
    """Both pods call the machine node17, and the plug-in gave both the same GPU."""
    for record in records:
        record.node = "node17"
        record.results["presence"]["uuid"] = "6a1c"
        for stage in ("before", "after"):
            record.results[stage]["reading"]["uuid"] = "GPU-6a1c"


def product_of(name: str, tflops: float, peak: float, *ranks: int) -> Change:
    """These GPUs, or all, have such a rate in a precision; the others the usual one."""

    def change(records: list[Record]) -> None:
        for rank, record in enumerate(records):
            own = tflops if not ranks or rank in ranks else 0.8 * peak
            record.results["presence"]["peak_tflops"][name] = peak
            record.results["presence"]["held_ratio"][name] = 0.8
            seconds = 2 * 8192 * 8192 * 2048 / 1e12 / own
            record.results["compute"]["products"][name] = sound.product(seconds=seconds, tflops=own)

    return change


def gradients(rank: int, deviation: float) -> Change:
    return lambda records: records[rank].results["gradients"].update(deviation=deviation)


def halves(records: list[Record]) -> None:
    """GPUs 0 to 3 reach 4 to 7 through the host."""
    meetings(records, 8, lambda a, b: (a.local_rank < 4) != (b.local_rank < 4))
    large(records, 7)


def without_ports(records: list[Record]) -> None:
    """A pod on its own network: /sys shows no adapter."""
    for record in records:
        for stage in ("network", "network_after"):
            if "ports" in record.results[stage]:
                record.results[stage] = {"ports": [], "peer_memory": False}


def ethernet_for_each_gpu(records: list[Record]) -> None:
    """Eight Ethernet ports without RDMA, as Google's a3-megagpu-8g."""
    for record in records:
        for stage in ("network", "network_after"):
            if "ports" in record.results[stage]:
                own = [
                    {**port, "name": f"ens{number}", "kind": "Ethernet", "rdma": False, "counters": {}}
                    for number, port in enumerate(record.results[stage]["ports"])
                ]
                record.results[stage] = {"ports": own, "peer_memory": False}


def half_of_the_adapters(records: list[Record]) -> None:
    """Eight GPUs share four adapters: a message of two GPUs still has a whole one."""
    large(records, 2, "all_gather", "all_reduce", "broadcast", "reduce_scatter", "all_to_all")
    meetings(records, 2, lambda a, b: a.node != b.node)


def bluefields(records: list[Record]) -> None:
    """Four adapters for eight GPUs, and two of two ports for storage, each with one cable."""
    ports(records, None, [4, 6], kind="Ethernet", rate_gigabits=200.0)
    ports(records, None, [5, 7], kind="Ethernet", rate_gigabits=40.0, up=False)


def slow_hosts(records: list[Record]) -> None:
    """Images come three times as slowly on all."""
    for record in records:
        for epoch in record.results["training"]["epochs"]:
            epoch["own_seconds"] = [3 * seconds for seconds in epoch["own_seconds"]]
            epoch["images_per_second"] /= 3


def without_four_rails(records: list[Record]) -> None:
    """Half of the second node's cables are out."""
    ports(records, "node1", range(4), up=False, rate_gigabits=10.0)
    network(2)(records)


def other_sizes(factor: float, size: int = 16 * 2**20, *operations: str) -> Change:
    """A size between the smallest and the largest, so many times as slow as the largest one's rate allows."""

    def change(records: list[Record]) -> None:
        for record in records:
            rows = record.results["collectives"]["measurements"]
            for row in [row for row in rows if row["bytes"] == 256 * 2**20]:
                own = factor if not operations or row["operation"] in operations else 1.0
                flow = (row["seconds"][0] - 60e-6) * size / row["bytes"]
                rows.insert(rows.index(row), {**row, "bytes": size, "seconds": [60e-6 + own * flow] * 5})

    return change


def quick_clock(records: list[Record]) -> None:
    """The host's clock loses half of the time, so that every rate is twice as high."""
    slower(records, range(len(records)), 0.5)
    memory(2.0)(records)
    copy_rate(records, 2 * 0.8 * 16 * 3.938e9)


BROKEN: tuple[Story, ...] = (
    Story(what="a workstation card whose memory is at a third", records=lambda: cluster(RTX6000B, gpus=1), change=memory(0.33), expect=WORKSTATION, named="GPU 0 (rank 0, node0)"),
    Story(what="eight workstation cards whose memory is at half", records=lambda: cluster(RTX6000B, rdma=False, port=25), change=memory(0.5), expect=WORKSTATION, named=G3),
    Story(what="two of eight H100 behind a switch, at a third", records=lambda: cluster(H100, gpus=2), change=both(lambda r: large(r, 2.9), lambda r: meetings(r, 2.9), state(nvlink_peers=SWITCHED)), named="all ranks"),
    Story(what="two pods that were given the same GPU (time slicing)", records=lambda: cluster(A100, nodes=2, gpus=1, port=200), change=one_gpu_for_two_pods, named="GPU 0"),
    Story(what="a V100 with 63 retired pages", records=lambda: cluster(V100, gpus=4, pair=lambda a, b: 46), change=both(state(remapped_rows=None, retired_pages=[0, 0]), state([2], retired_pages=[60, 3])), named="GPU 2 (rank 2, node0)"),
    Story(what="eight Ethernet ports of 200 Gbit/s that the plug-in does not use", records=lambda: cluster(H100, nodes=2, port=200), change=both(ethernet_for_each_gpu, network(10)), named="all ranks"),
    Story(what="products of 8 bits at half on one GPU", records=lambda: cluster(H100), change=product_of("float8_e4m3fn", 600, 1979, 3), named=G3),
    Story(what="float32 at a quarter on all, bfloat16 sound", records=lambda: cluster(H100), change=product_of("float32", 13, 67), named=G3),
    Story(what="a gradient that is off by a hundredth", records=lambda: cluster(H200), change=gradients(3, 0.01), named=G3),
    Story(what="a node with last month's image", records=lambda: cluster(H100, nodes=4, gpus=2), change=present([4, 5], nccl=[2, 23, 4], torch="2.7.1"), named="node2"),
    Story(what="half of a board reaches the other half through the host", records=lambda: cluster(H100), change=halves, named="GPU"),
    Story(what="1 KiB in 0.9 ms between GPUs of a node", records=lambda: cluster(H100), change=lambda r: small(r, 0.9e-3), named="all ranks"),
    Story(what="H200 whose memory runs at an H100's clock, which their VBIOS calls the highest", records=lambda: cluster(H200), change=both(state(memory_clock_max_hertz=2619e6, memory_clock_hertz=2619e6), memory(0.82)), named=G3),
    Story(what="ECC off on all, and nobody tells the default", records=lambda: cluster(H100), change=state(ecc_mode=[0, 0], ecc_mode_default=None), named=G3),
    Story(what="modules at PCIe 4 by a BIOS setting, on all", records=lambda: cluster(H100), change=both(state(pcie_generation=4, pcie_generation_max=4), lambda r: copy_rate(r, 25e9)), named=G3),
    Story(what="1 KiB in 1.8 ms over InfiniBand", records=lambda: cluster(H100, nodes=2), change=lambda r: small(r, 1.8e-3), named="all ranks"),
    Story(what="800 corrected memory errors in minutes, on all", records=lambda: cluster(A100), change=state(after=True, ecc_corrected=803), named=G3),
    Story(what="adapters without a rate at a third of what the file says", records=lambda: cluster(A100_40, nodes=2, port=100, adapters=4), change=both(lambda r: ports(r, None, range(4), rate_gigabits=None), network(3)), expect="[network]\nrate_gigabits = 100", named="all ranks"),
    Story(what="16 MiB at a fifteenth of the rate: a protocol that somebody forced", records=lambda: cluster(H100), change=other_sizes(15), named="all ranks"),
    Story(what="reductions of 16 MiB at a tenth between nodes: a tuner's wrong table", records=lambda: cluster(H100, nodes=2), change=other_sizes(10, 16 * 2**20, "all_reduce"), named="all ranks"),
    Story(what="a virtual machine whose clock loses half of the time", records=lambda: cluster(H100, gpus=1), change=quick_clock, named="GPU 0"),
    Story(what="copies at 90 GB/s of a link that has 63", records=lambda: cluster(H100), change=lambda r: copy_rate(r, 90e9), named=G3),
    Story(what="hosts that are a third as quick, on all nodes", records=lambda: cluster(A100, nodes=2, port=200), change=slow_hosts, expect="[training]\nimages_per_second = 8000", named="GPU 3 (rank 3, node0)"),
    Story(what="all ports at 200 Gbit/s of the 400 that were paid for", records=lambda: cluster(H100, nodes=2, port=200), expect="[network]\nrate_gigabits = 400", named="node node1"),
    Story(what="four of eight cables of one of two nodes are out", records=lambda: cluster(H100, nodes=2), change=without_four_rails, named="node node1"),
    Story(what="float16 at half on all, bfloat16 sound", records=lambda: cluster(A100), change=product_of("float16", 130, 312), named=G3),
    Story(what="three quarters of the power on all, and the clocks with it", records=lambda: cluster(H100), change=both(lambda r: slower(r, range(8), 1.33), state(after=True, power_watts=690.0, sm_clock_hertz=1300e6, throttle_reasons=["power_cap"])), named=G3),
)  # fmt: skip
HEALTHY: tuple[Story, ...] = (
    Story(what="pods that see no adapter, as the file says", records=lambda: cluster(A10G, nodes=2, gpus=1, rdma=False, port=25), change=without_ports, expect="[network]\nrate_gigabits = 25"),
    Story(what="confidential computing: copies at 8 GB/s, as the file says", records=lambda: cluster(H100, gpus=1), change=lambda r: copy_rate(r, 8e9), expect="[gpu]\ncopy_gigabytes_per_second = 7"),
    Story(what="four adapters and two DPUs for eight GPUs, as the file says", records=lambda: cluster(H100, nodes=2), change=both(half_of_the_adapters, bluefields), expect="[network]\nports = 6"),
    Story(what="eight B300 with ports of 800 Gbit/s", records=lambda: cluster(B300, nodes=2, port=800, line=0.55)),
    Story(what="a 3090 in P2, as CUDA has it", records=lambda: cluster(RTX3090, gpus=2, rdma=False, port=25), change=state(memory_clock_hertz=9501e6, memory_clock_max_hertz=9751e6)),
    Story(what="a driver that tells nothing recent", records=lambda: cluster(A100), change=state(fabric=None, recovery_action=None, sram_errors=None, ecc_lifetime=None, memory_clock_max_hertz=None, nvlink_megabytes_per_second=None, nvlink_peers=None, xids_before=None)),
    Story(what="four of eight H100 in a pod, behind a switch", records=lambda: cluster(H100, gpus=4), change=state(nvlink_peers=SWITCHED)),
    Story(what="two of a board of four A100, whose links lead to the others", records=lambda: cluster(A100, gpus=2, pair=lambda a, b: 78), change=both(lambda r: large(r, 232 / 78), state(nvlink_peers={"00000000:41:00.0": 4, "00000000:81:00.0": 4, "00000000:C1:00.0": 4}))),
    Story(what="V100 with three retired pages", records=lambda: cluster(V100, gpus=4, pair=lambda a, b: 46), change=both(state(remapped_rows=None, retired_pages=[0, 0]), state([2], retired_pages=[2, 1]))),
    Story(what="eight Ethernet ports of 200 Gbit/s, with the plug-in", records=lambda: cluster(H100, nodes=2, port=200, line=0.85), change=ethernet_for_each_gpu),
    Story(what="two ports of 25 Gbit/s in a bond, of which one flow fills one", records=lambda: cluster(A100_40, nodes=2, port=25, adapters=2, line=0.85), change=both(ethernet_for_each_gpu, half_of_the_adapters)),
    Story(what="small messages in 100 us in a node whose host is busy", records=lambda: cluster(H100), change=lambda r: small(r, 100e-6)),
    Story(what="adapters for RDMA whose driver reports no rate, as the file says", records=lambda: cluster(A100_40, nodes=2, port=100, adapters=4), change=lambda r: ports(r, None, range(4), rate_gigabits=None), expect="[network]\nrate_gigabits = 100"),
    Story(what="16 MiB at half of the rate, where NCCL changes its protocol", records=lambda: cluster(H100, nodes=2), change=other_sizes(2)),
    Story(what="a 4090 that boosts beyond its data sheet", records=lambda: cluster(replace(RTX4090, tflops=178), gpus=2)),
    Story(what="a 4090 without ECC, as it came", records=lambda: cluster(RTX4090, gpus=2), change=state(ecc_mode=[0, 0], ecc_mode_default=0)),
    Story(what="64 GPUs over InfiniBand: 1 KiB in 0.9 ms", records=lambda: cluster(H100, nodes=8), change=lambda r: small(r, 0.9e-3)),
    Story(what="L40S in a computer of PCIe 3", records=lambda: cluster(L40S, gpus=4), change=both(state(pcie_generation=3, pcie_generation_max=3), lambda r: copy_rate(r, 12.5e9))),
    Story(what="modules in a computer of PCIe 4, as the file says", records=lambda: cluster(H100), change=both(state(pcie_generation=4, pcie_generation_max=4), lambda r: copy_rate(r, 25e9)), expect="[gpu]\npcie_generation = 4"),
    Story(what="ECC off on purpose, and nobody tells the default", records=lambda: cluster(A100), change=state(ecc_mode=[0, 0], ecc_mode_default=None), expect='[gpu]\necc = "off"'),
)  # fmt: skip
