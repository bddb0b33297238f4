"""More machines that threads and reports describe, broken and healthy; those of LATER break while the test runs.

Each names its source where there is one: "ogkm" is NVIDIA/open-gpu-kernel-modules, the others are as in issues.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cluster.acceptance.records import Record
from tests.cluster.faults.changes import present
from tests.cluster.faults.issues import (
    A100_40,
    FORMED,
    G2,
    GB300,
    L4,
    MIB,
    RTX3090,
    across,
    copies,
    counted,
    network,
    state,
)
from tests.cluster.faults.machines import alone
from tests.cluster.faults.reported import (
    A30,
    A100,
    A100_PCIE,
    B200,
    G3,
    GB200,
    GH200,
    H100,
    H200,
    L40S,
    RTX4090,
    T4,
    TWO_SOCKETS,
    V100,
    Change,
    Model,
    Story,
    both,
    bridged,
    cluster,
    copy_rate,
    large,
    meetings,
    ports,
    read,
    slower,
)

A800 = replace(A100, name="NVIDIA A800-SXM4-80GB", links=8, ring=155)
A6000 = Model(
    name="NVIDIA RTX A6000", gib=47.4, mhz=8001, memory=690, sms=84, pcie=4, links=4, ring=46, tflops=110
)  # fmt: skip
A40 = Model(name="NVIDIA A40", gib=44.4, mhz=7251, memory=620, sms=84, pcie=4, links=4, ring=10, tflops=115)
V100_DGX2 = Model(
    name="Tesla V100-SXM3-32GB", gib=31.7, mhz=958, memory=800, sms=80, pcie=3, links=6, ring=128, tflops=100
)
SINGLE = {"state": "completed", "status": 0, "clique": 0, "cluster": "", "degraded": False}
"""Of a node whose switches join no other node."""
SECOND = range(8, 16)
"""The second of two nodes."""


def no_resources(records: list[Record]) -> None:
    read(records, fabric=SINGLE)
    read(records, [3], fabric={**SINGLE, "status": 26})


def without_domain(records: list[Record]) -> None:
    """The last of three nodes of a rack belongs to no domain, and reaches the others by its adapters."""
    for record in records:
        read(records, [record.rank], fabric=SINGLE if record.node == "node2" else FORMED)
    meetings(records, 16, lambda a, b: a.node != b.node and "node2" in (a.node, b.node))
    large(records, 16)


def between(factor: float, *locals_: int) -> Change:
    """Meetings of two nodes that one of these GPUs of a node takes part in."""
    which = set(locals_)
    return lambda r: meetings(r, factor, lambda a, b: a.node != b.node and bool({a.local_rank, b.local_rank} & which))


def two_leaves(records: list[Record]) -> None:
    """Nodes 0 and 1 reach nodes 2 and 3 over too few cables."""
    near = ("node0", "node1")
    meetings(records, 4, lambda a, b: (a.node in near) != (b.node in near))
    large(records, 3.5)


def errors(stage: str, error: str, rank: int = 3) -> Change:
    return lambda r: r[rank].results.update({stage: {"error": error}})


def adapters(change: Any, gigabits: float = 390.0) -> Change:
    """Each adapter on its own; `change` gives a row's rate, or a reason for none."""

    def of(records: list[Record]) -> None:
        alone(records, gigabits)
        for record in records:
            for row in record.results["adapters"].get("measured", ()):
                value = change(record, records, row)
                if isinstance(value, str):
                    row |= {"gigabits": None, "reason": value}
                elif value is not None:
                    row["gigabits"] = value

    return of


def to_others(record: Record, records: list[Record], row: dict[str, Any]) -> float | None:
    """Adapter 4 of node1 reaches itself at the full rate, others at 70 %."""
    nodes = {record.node, records[row["server"]].node} if row["server"] is not None else set()
    return 275.0 if row["adapter"] == "mlx5_4/1" and "node1" in nodes else None


def refused(record: Record, records: list[Record], row: dict[str, Any]) -> str | None:
    nodes = {record.node, records[row["server"]].node} if row["server"] is not None else set()
    return "Failed to modify QP to RTR" if row["adapter"] == "mlx5_2/1" and "node1" in nodes else None


def wrong_messages(records: list[Record]) -> None:
    for record in records:
        for met in record.results["pairs"]["met"]:
            met["wrong"] = 4096


def a_slice(records: list[Record]) -> None:
    read(records, [2], mig_mode=[1, 1])
    records[2].results["presence"] |= {"memory_bytes": 39.5 * 2**30, "multiprocessors": 42}


def lost_stack(records: list[Record]) -> None:
    """One of six stacks of memory is off."""
    own = records[3].results
    own["presence"]["memory_bytes"] = 116.5 * 2**30
    own["memory"] |= {"total_bytes": int(116.5 * 2**30), "tested_bytes": int(0.88 * 116.5 * 2**30)}
    own["bandwidth"]["rates"] = {name: rate * 5 / 6 for name, rate in own["bandwidth"]["rates"].items()}


def memory_rate(factor: float, ranks: Sequence[int] | None = None) -> Change:
    def change(records: list[Record]) -> None:
        for record in records:
            if ranks is None or record.rank in ranks:
                rates = record.results["bandwidth"]["rates"]
                record.results["bandwidth"]["rates"] = {name: rate * factor for name, rate in rates.items()}

    return change


def half_of_the_copies(records: list[Record]) -> None:
    for rank in range(4, 8):
        copies(rank, to_device=12e9)(records)


def slow_host(records: list[Record]) -> None:
    copy_rate(records[8:], 0.45 * 16 * 3.938e9)


def busy_host(records: list[Record]) -> None:
    """The second node's processors are busy: each step takes longer before ranks meet, the GPUs being sound."""
    for record in records[8:]:
        for epoch in record.results["training"]["epochs"]:
            epoch["own_seconds"] = [2.5 * value for value in epoch["own_seconds"]]


def switched(*, within: float, elsewhere: float) -> Any:
    """GPUs 0 to 3 and 4 to 7 are each below one PCIe switch."""
    return lambda a, b: within if (a < 4) == (b < 4) else elsewhere


def below_switches(a: int, b: int) -> str:
    return "one PCIe switch" if (a < 4) == (b < 4) else "between NUMA nodes"


def hang(records: list[Record]) -> None:
    """Collectives of all ranks stand still after XID 145 on two GPUs."""
    read(records, [2, 3], both=True, xids_before=[145])
    for record in records:
        record.ending, record.detail, record.at = (
            "hung",
            "no end of 'collectives' within 600 s",
            "all_reduce of 1.0 MiB",
        )
        record.progress_at_stop, record.at_stop = 30, record.at
        for name in ("collectives", "pairs", "data", "training", "network_after", "after"):
            record.results.pop(name)


FROM_THE_BEGINNING: tuple[Story, ...] = (
    Story(what="a fabric of insufficient resources on one GPU (azhpc-images 506)", records=lambda: cluster(H100), change=no_resources, named=G3),
    Story(what="a node of the rack without a domain (azhpc-images 506)", records=lambda: cluster(GB200, nodes=3, gpus=4, line=14.9, adapters=4), change=without_domain, named="node2"),
    Story(what="all links of one B200 inactive (gpud 1085)", records=lambda: cluster(B200), change=both(state([2], nvlinks_up=0), lambda r: meetings(r, 15, lambda a, b: 2 in (a.rank, b.rank)), lambda r: large(r, 15)), named=G2),
    Story(what="XID 149 on one GPU, 45 on the others (ogkm 1150)", records=lambda: cluster(H200), change=both(state(xids_before=[45]), state([3], xids_before=[149, 45])), named=G3),
    Story(what="XID 145 on two of eight, and all hang (ogkm 1355)", records=lambda: cluster(B200), change=hang, named=G3),
    Story(what="XID 119: the GSP does not answer (ogkm 446)", records=lambda: cluster(A100), change=state([3], xids_before=[119, 119]), named=G3),
    Story(what="XID 154: a reset is required (gpustack runtime 26)", records=lambda: cluster(H100), change=state([3], recovery_action="reset the GPU"), named=G3),
    Story(what="XID 48 and 63 of a V100 (azurehpc 617)", records=lambda: cluster(V100, gpus=4, pair=lambda a, b: 46), change=state([2], xids_before=[48, 63], retired_pages_pending=1), named=G2),
    Story(what="XID 92: too many corrected errors", records=lambda: cluster(A100), change=state([3], xids_before=[92]), named=G3),
    Story(what="XID 74 of a bridge", records=lambda: cluster(replace(A100_PCIE, ring=230), gpus=2), change=state([1], xids_before=[74]), named="GPU 1 (rank 1, node0)"),
    Story(what="XID 62: the microcontroller stands still", records=lambda: cluster(T4, gpus=4, rdma=False, port=25), change=state([2], xids_before=[62]), named=G2),
    Story(what="uncorrectable errors end the products (jade 194)", records=lambda: cluster(V100, gpus=4, pair=lambda a, b: 46), change=errors("compute", "AcceleratorError: CUDA error: uncorrectable ECC error encountered", 2), named=G2),
    Story(what="memory that cannot be allocated (k8s-device-plugin 243)", records=lambda: cluster(V100, gpus=4, pair=lambda a, b: 46), change=errors("memory", "AcceleratorError: CUDA error: out of memory", 2), named=G2),
    Story(what="copies between GPUs arrive wrong: the IOMMU (pytorch 84803)", records=lambda: cluster(replace(A6000, ring=20), gpus=2, pair=lambda a, b: 20), change=both(state(nvlinks_up=0), wrong_messages), named="GPU 0 (rank 0, node0)"),
    Story(what="15 of 24 GB/s beside other jobs and storage (nccl 412)", records=lambda: cluster(A800, nodes=4, port=200, adapters=1), change=network(1.6), named="all ranks"),
    Story(what="NCCL takes the port of 1 Gbit/s", records=lambda: cluster(L40S, nodes=2, port=100, adapters=2), change=network(190), named="all ranks"),
    Story(what="two GPUs of a node have each other's adapter (nccl 820)", records=lambda: cluster(H100, nodes=4), change=both(lambda r: large(r, 1.7), lambda r: across(r, 1.9, 8, 9)), named="(rank 8, node1)"),
    Story(what="a rail's leaf switch at half", records=lambda: cluster(H100, nodes=4), change=both(lambda r: large(r, 1.9), between(2, 5)), named="GPU 5 (rank 5, node0)"),
    Story(what="two leaves joined by too few cables", records=lambda: cluster(H100, nodes=4), change=two_leaves, named="node"),
    Story(what="A800 below PCIe switches, slower than across them (nccl 1086)", records=lambda: cluster(replace(A100_PCIE, links=0, ring=6), topology=below_switches, pair=switched(within=6, elsewhere=12)), named="rank"),
    Story(what="an adapter at 275 Gbit/s to other nodes, at 390 to itself (nccl 2409)", records=lambda: cluster(H100, nodes=3), change=adapters(to_others), named="node node1"),
    Story(what="an adapter of RoCE without the right GID", records=lambda: cluster(H100, nodes=3), change=adapters(refused), named="node node1"),
    Story(what="retries that ran out on one port", records=lambda: cluster(H100, nodes=2), change=counted("node1", 4, req_transport_retries_exceeded=3, local_ack_timeout_err=40), named="node node1"),
    Story(what="a port of HDR that trained on one lane of four", records=lambda: cluster(A100, nodes=4, port=200, adapters=2), change=lambda r: ports(r, "node3", [1], rate_gigabits=50.0), named="node node3"),
    Story(what="the GPUs of one socket, whose copies to them are at half", records=lambda: cluster(A100, topology=TWO_SOCKETS), change=half_of_the_copies, named="GPU 4 (rank 4, node0)"),
    Story(what="a riser of one lane", records=lambda: cluster(RTX3090, gpus=4, rdma=False, port=25), change=both(state([2], pcie_width=1), copies(2, to_device=1.6e9, to_host=1.6e9)), named=G2),
    Story(what="a power supply is gone: the brake on all of a node (gpud 330)", records=lambda: cluster(H100, nodes=2), change=both(lambda r: slower(r, SECOND, 2), state(SECOND, after=True, power_watts=300.0, sm_clock_hertz=990e6, throttle_reasons=["power_brake", "hardware_slowdown"])), named="node1"),
    Story(what="coolant that does not flow: all too hot", records=lambda: cluster(B200), change=both(lambda r: slower(r, range(8), 1.2), state(after=True, temperature_celsius=90, sm_clock_hertz=1500e6, throttle_reasons=["thermal_slowdown"])), named=G3),
    Story(what="a GPU that stays at 345 MHz under load", records=lambda: cluster(A100), change=both(lambda r: slower(r, [2], 4), state([2], after=True, sm_clock_hertz=345e6, power_watts=120.0)), named=G2),
    Story(what="one GPU of a group of four is a slice", records=lambda: cluster(A100, gpus=4, pair=lambda a, b: 78), change=a_slice, named=G2),
    Story(what="another job computes on a GPU (time slicing)", records=lambda: cluster(L40S, gpus=4, topology=TWO_SOCKETS), change=both(state([2], utilization_ratio=1.0, memory_used_bytes=11_000 * MIB), lambda r: slower(r, [2], 1.9)), named=G2),
    Story(what="an H200 with five of six stacks of memory", records=lambda: cluster(H200), change=lost_stack, named=G3),
    Story(what="memory a fifth slower on one A100", records=lambda: cluster(A100), change=memory_rate(0.8, [3]), named=G3),
    Story(what="memory at 60 % on all H100", records=lambda: cluster(H100), change=memory_rate(0.62), named=G3),
    Story(what="a node whose host saves power: copies at half", records=lambda: cluster(H100, nodes=2), change=slow_host, named="node1"),
    Story(what="a node whose processors others use", records=lambda: cluster(H100, nodes=2), change=busy_host, named="node1"),
    Story(what="a virtual machine without NCCL's topology file", records=lambda: cluster(A100, nodes=2, port=200), change=network(4), named="all ranks"),
    Story(what="all-to-all at a third, the others sound (PXN is off)", records=lambda: cluster(H100, nodes=4), change=lambda r: large(r, 3, "all_to_all"), named="all ranks"),
    Story(what="all-reduce at 200 GB/s, the others at 368", records=lambda: cluster(H100), change=lambda r: large(r, 368 / 200, "all_reduce"), named="all ranks"),
    Story(what="a GB200 whose copies are at a fifth: C2C", records=lambda: cluster(GB200, nodes=2, gpus=4, line=14.9, adapters=4), change=copies(2, to_device=50e9, to_host=50e9), named=G2),
    Story(what="a GH200 alone whose copies are at 25 GB/s", records=lambda: cluster(GH200, gpus=1), change=lambda r: copy_rate(r, 25e9), named="GPU 0 (rank 0, node0)"),
    Story(what="a GPU that draws a third of its power and is slow", records=lambda: cluster(H100), change=both(lambda r: slower(r, [3], 1.5), state([3], after=True, power_watts=180.0)), named=G3),
    Story(what="a node whose highest clock is locked", records=lambda: cluster(H100, nodes=2), change=both(state(SECOND, sm_clock_max_hertz=1410e6), state(SECOND, after=True, sm_clock_hertz=1410e6), lambda r: slower(r, SECOND, 1.3)), named="node1"),
    Story(what="clocks held together by the slowest GPU (sync boost)", records=lambda: cluster(A100), change=both(lambda r: slower(r, range(8), 1.35), state(sm_clock_max_hertz=1410e6), state(after=True, sm_clock_hertz=1050e6, throttle_reasons=["sync_boost"])), named=G3),
    Story(what="replays of PCIe, and copies at 60 %", records=lambda: cluster(A100_PCIE, gpus=4, pair=bridged(233, 18)), change=both(state([2], after=True, pcie_replays=3000), copies(2, to_device=15e9, to_host=15e9)), named=G2),
)  # fmt: skip


def later_port(node: str, number: int, **changes: Any) -> Change:
    """A port is like that at the end, and was not at the beginning."""

    def change(records: list[Record]) -> None:
        for record in records:
            if record.node == node and record.local_rank == 0:
                own = [dict(port) for port in record.results["network_after"]["ports"]]
                own[number] |= changes
                record.results["network_after"] = {**record.results["network_after"], "ports": own}

    return change


def slow_to_host(records: list[Record]) -> None:
    for rank in range(8):
        copies(rank, to_host=25e9)(records)


def without_driver(records: list[Record]) -> None:
    """The adapters of the second node have no RDMA: its driver is not the vendor's."""
    ports(records, "node1", range(8), kind="Ethernet", rdma=False)
    network(30)(records)


LATER: tuple[Story, ...] = (
    Story(what="a quarter slower everywhere at 1,470 of 1,980 MHz, no reason told", records=lambda: cluster(H100), change=both(lambda r: slower(r, range(8), 1.33), state(after=True, sm_clock_hertz=1470e6)), named=G3),
    Story(what="copies to the host at 40 % on all", records=lambda: cluster(H100), change=slow_to_host, named=G3),
    Story(what="a node without the adapters' driver", records=lambda: cluster(H100, nodes=2), change=without_driver, named="node node1"),
    Story(what="an adapter that was reset while the test ran", records=lambda: cluster(H100, nodes=2), change=both(lambda r: ports(r, "node1", [2], counters={"symbol_error": 5000, "link_downed": 3}), later_port("node1", 2, counters={"symbol_error": 0, "link_downed": 0})), named="node node1"),
    Story(what="a port that fell to 100 of 400 Gbit/s while the test ran", records=lambda: cluster(H100, nodes=2), change=later_port("node1", 2, rate_gigabits=100.0), named="node node1"),
    Story(what="an adapter that lost half of its lanes while the test ran", records=lambda: cluster(H100, nodes=2), change=later_port("node1", 2, pcie_width=8), named="node node1"),
    Story(what="a row that came to wait for its remapping, after corrected errors", records=lambda: cluster(A100), change=state([3], after=True, remapped_rows=[1, 0, 1, 0], ecc_corrected=6), named=G3),
    Story(what="a page that came to wait for its retirement", records=lambda: cluster(V100, gpus=4, pair=lambda a, b: 46), change=state([2], after=True, retired_pages_pending=1), named=G2),
    Story(what="a reset that the driver came to ask for", records=lambda: cluster(H100), change=both(state(recovery_action="none"), state([3], after=True, recovery_action="drain and reset")), named=G3),
    Story(what="errors of the chip's memories that are new", records=lambda: cluster(H100), change=both(state(sram_errors=[0, 0]), state([3], after=True, sram_errors=[3, 1])), named=G3),
    Story(what="a fabric that came to have a part of its bandwidth", records=lambda: cluster(GB200, nodes=2, gpus=4, line=14.9, adapters=4), change=both(state(fabric=FORMED), state([3], after=True, fabric={**FORMED, "degraded": True})), named=G3),
    Story(what="NVLinks that trained down while the test ran (fluidstack)", records=lambda: cluster(H100), change=both(state(nvlink_megabytes_per_second=26562), state([3], after=True, nvlink_megabytes_per_second=13281)), named=G3),
    Story(what="a power limit that the BMC lowered while the test ran", records=lambda: cluster(H100), change=state([3], after=True, power_limit_watts=350.0), named=G3),
    Story(what="an XID that only the kernel's log has", records=lambda: cluster(H100), change=both(state(xids_before=[]), state([3], after=True, xids_before=[94])), named=G3),
    Story(what="an InfoROM that became corrupted", records=lambda: cluster(A100), change=state([3], after=True, inforom_valid=False), named=G3),
)  # fmt: skip


BROKEN = FROM_THE_BEGINNING + LATER


def few_replays(records: list[Record]) -> None:
    read(records, pcie_replays=40)
    read(records, both=False, pcie_replays=44)


def a_hiccup(records: list[Record]) -> None:
    """One step and one product of one GPU took long, once."""
    own = records[3].results
    own["training"]["epochs"][1]["own_seconds"] = [0.005, 0.06, 0.005, 0.005]
    seconds = list(own["compute"]["products"]["bfloat16"]["seconds"])
    seconds[7] *= 5
    own["compute"]["products"]["bfloat16"]["seconds"] = seconds


def adaptive(records: list[Record]) -> None:
    """Meetings differ by up to 8 %, as routing has it."""
    for record in records:
        for met in record.results["pairs"]["met"]:
            low, high = sorted((record.rank, met["partner"]))
            met["seconds"] *= 1 + 0.01 * ((7 * low + 3 * high) % 9)


def eight_and_four() -> list[Record]:
    """Slurm gave eight GPUs on one node and four on the other."""
    records = cluster(H100, nodes=2)[:12]
    for record in records:
        record.results["collectives"]["ranks"] = 12
        record.results["pairs"]["met"] = [met for met in record.results["pairs"]["met"] if met["partner"] < 12]
    present(range(8), seen_by_cuda=8, restricted=True, given_by_slurm=8)(records)
    present(range(8, 12), seen_by_cuda=4, seen_by_nvml=4, restricted=True, given_by_slurm=4)(records)
    large(records, 2, "all_gather", "all_reduce", "broadcast", "reduce_scatter", "all_to_all")
    return records


def sixteen_bits(records: list[Record]) -> None:
    """Volta has no bfloat16."""
    for record in records:
        record.results["presence"]["compute_capability"] = [7, 0]
        record.results["compute"]["products"].pop("bfloat16", None)


def virtual_functions(records: list[Record]) -> None:
    ports(records, None, range(8), pcie_width=None, pcie_width_max=None, pcie_generation=None, pcie_generation_max=None)


def far_socket(records: list[Record]) -> None:
    for rank in range(4, 8):
        copies(rank, to_device=0.74 * 16 * 1.969e9, to_host=0.7 * 16 * 1.969e9)(records)


HEALTHY: tuple[Story, ...] = (
    Story(what="H100 whose switches join no other node (nvsentinel 1471)", records=lambda: cluster(H100, nodes=2), change=state(fabric=SINGLE)),
    Story(what="GB300 at 843 GB/s of all-reduce (aicr 2641)", records=lambda: cluster(GB300, nodes=2, gpus=4, port=800, line=7.45, adapters=4), change=both(state(fabric=FORMED, recovery_action="none"), lambda r: large(r, 745 / 843, "all_reduce"))),
    Story(what="GH200 of which each has four ports of 200 Gbit/s (nccl 1579)", records=lambda: cluster(GH200, nodes=4, gpus=1, port=200, adapters=4, line=3.28)),
    Story(what="an adapter below the CPU at 16 of 25 GB/s, as the file says (nccl 412)", records=lambda: cluster(A800, nodes=2, port=200, adapters=1, line=0.66), expect="[network]\noversubscription = 1.5"),
    Story(what="virtual functions that show no PCIe link", records=lambda: cluster(A100, nodes=2, port=200), change=virtual_functions),
    Story(what="two RTX A6000 with a bridge", records=lambda: cluster(A6000, gpus=2, rdma=False, port=10), expect="[compute_tflops]\nbfloat16 = 100\nfloat16 = 100"),
    Story(what="eight L4 at their limit of 72 W", records=lambda: cluster(L4, rdma=False, port=100), change=both(state(power_limit_watts=72.0, power_limit_default_watts=72.0, sm_clock_max_hertz=2040e6), state(power_watts=18.0), state(after=True, power_watts=71.9, sm_clock_hertz=1100e6, throttle_reasons=["power_cap"]))),
    Story(what="four T4 at their limit of 70 W", records=lambda: cluster(T4, gpus=4, rdma=False, port=25), change=both(state(power_limit_watts=70.0, power_limit_default_watts=70.0, sm_clock_max_hertz=1590e6), state(power_watts=12.0), state(after=True, power_watts=69.7, sm_clock_hertz=1005e6, temperature_celsius=74, throttle_reasons=["power_cap"]))),
    Story(what="A40 in two nodes, without bridges", records=lambda: cluster(A40, nodes=2, gpus=4, port=100, adapters=1), change=state(nvlinks_up=0)),
    Story(what="four A30 with bridges in pairs", records=lambda: cluster(A30, gpus=4, rdma=False, port=25, pair=bridged(88, 13)), change=state(nvlinks=4, nvlinks_up=4)),
    Story(what="a row remapped after an uncorrected error, long ago", records=lambda: cluster(A100), change=both(state([3], remapped_rows=[0, 1, 0, 0], ecc_lifetime=1), state([5], ecc_corrected=41))),
    Story(what="81 of 87 degrees under load", records=lambda: cluster(H100, nodes=2), change=state([9], after=True, temperature_celsius=81)),
    Story(what="sixteen V100 of a DGX-2", records=lambda: cluster(V100_DGX2, gpus=16, port=100, adapters=8), change=sixteen_bits),
    Story(what="three of eight H100", records=lambda: cluster(H100, gpus=3), change=present(restricted=True)),
    Story(what="five nodes of A100", records=lambda: cluster(A100, nodes=5, port=200)),
    Story(what="eight GPUs on one node, four on the other, by Slurm", records=eight_and_four),
    Story(what="adapters of two ports, of which one has a cable", records=lambda: cluster(H100, nodes=2, adapters=16), change=lambda r: ports(r, None, range(8, 16), up=False)),
    Story(what="a few replays of PCIe on all", records=lambda: cluster(L40S, gpus=4, topology=TWO_SOCKETS), change=few_replays),
    Story(what="one step and one product that took long once", records=lambda: cluster(H100), change=a_hiccup),
    Story(what="meetings that routing makes differ by 8 %", records=lambda: cluster(H100, nodes=4), change=adaptive),
    Story(what="A100 over Ethernet of 100 Gbit/s, as a cloud has it", records=lambda: cluster(A100_40, nodes=2, rdma=False, port=100, line=0.55)),
    Story(what="a workstation whose card draws the screen", records=lambda: cluster(RTX3090, gpus=1, rdma=False, port=1), change=both(state(memory_used_bytes=900 * MIB, utilization_ratio=0.04), state(after=True, utilization_ratio=0.99))),
    Story(what="a node of a rack of GB200, alone", records=lambda: cluster(GB200, gpus=4, adapters=4), change=state(fabric=FORMED)),
    Story(what="copies of the far socket a tenth slower", records=lambda: cluster(A100, topology=TWO_SOCKETS), change=far_socket),
    Story(what="a card in a laptop's dock of four lanes, as the file says", records=lambda: cluster(RTX4090, gpus=1, rdma=False, port=1), change=both(state(pcie_width=4, pcie_width_max=4), lambda r: copy_rate(r, 6.2e9)), expect="[gpu]\npcie_width = 4"),
)  # fmt: skip
