"""Machines whose fault makes little noise: it costs no rate at once, or one of which nobody has a norm.

They were written together with the checks that find them, after a review of `FREE` of test_variations. Names of sources
are as in issues.py; "llama 3" is the table of interruptions of that training, "sdc" arXiv:2605.04213, "perftest"
linux-rdma/perftest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cluster.acceptance.records import Record
from tests.cluster.faults.changes import each_epoch, longer, paced, present, result
from tests.cluster.faults.issues import G2, state
from tests.cluster.faults.machines import alone
from tests.cluster.faults.reported import (
    A100,
    G3,
    H100,
    H200,
    L40S,
    MIB,
    RTX4090,
    TWO_SOCKETS,
    V100,
    Change,
    Story,
    both,
    cluster,
    large,
    meetings,
    ports,
    read,
    slower,
)
from tests.cluster.faults.threads import SECOND, errors
from tests.cluster.faults.unseen import product_of

CRC = {"symbol_error": 0, "port_rcv_errors": 0, "out_of_sequence": 0}


def wrong_between(records: list[Record]) -> None:
    """Large gathers arrive wrong on the second node: writes overtook each other."""
    for rank in SECOND:
        for row in records[rank].results["collectives"]["measurements"]:
            if row["operation"] == "all_gather" and row["bytes"] > MIB:
                row["wrong"] = 32768


def periodic_rows(records: list[Record]) -> None:
    """Every 64th row of products of 8 bits is wrong on one GPU."""
    product_of("float8_e4m3fn", 1300, 1979)(records)
    records[3].results["compute"]["products"]["float8_e4m3fn"]["wrong_rows"] = [64 * number for number in range(10)]


def tf32_on_one(records: list[Record]) -> None:
    records[3].results["gradients"]["deviation"] = 9e-4


def stalled(what: str, seconds: float, ranks: Sequence[int] | None = None) -> Change:
    """One repetition takes so long."""

    def change(records: list[Record]) -> None:
        for record in records:
            if ranks is None or record.rank in ranks:
                own = record.results["steadiness"]
                figures = {"products": own["products"], "copies": own["copies"]["to_host"],
                           "messages": record.results["collectives"]["steady"]}  # fmt: skip
                figures[what]["longest_seconds"] = seconds

    return change


def hung_storage(records: list[Record]) -> None:
    """One step of 96 waits for 40 seconds on every rank."""
    for record in records:
        for number, epoch in enumerate(record.results["training"]["epochs"]):
            usual = epoch["own_seconds"][-1]
            steps = [usual] * 96
            if number:
                steps[50] = 40.0
            first = 2.3 - number
            epoch |= {"own_seconds": steps, "losses": [first - step / 100 for step in range(96)]}


def built(node: str, kind: str) -> Change:
    """PCIe joins the GPUs of a node in another way."""

    def change(records: list[Record]) -> None:
        for record in records:
            if record.node == node:
                topology = record.results["before"]["reading"]["topology"]
                for stage in ("before", "after"):
                    record.results[stage]["reading"]["topology"] = {
                        other: kind if int(other) % 2 != record.local_rank % 2 else known
                        for other, known in topology.items()
                    }  # fmt: skip

    return change


def load_of(pace: float = 1.0, ranks: Sequence[int] | None = None, **figures: Any) -> Change:
    """Minutes of load, in which these ranks have other figures."""

    def change(records: list[Record]) -> None:
        paced(0.97)(records)
        for record in records:
            if ranks is None or record.rank in ranks:
                series = record.results["load"]["series"]
                for sample in series:
                    sample |= figures
                    sample["products_per_second"] *= pace
                record.results["load"]["products"] = int(record.results["load"]["products"] * pace)

    return change


def few_samples(records: list[Record]) -> None:
    own = records[3].results["steadiness"]["copies"]["to_host"]
    own["samples"] //= 4


def dark_fabric(records: list[Record]) -> None:
    """Eight adapters a node whose switch is off; what is left is a port of 25 Gbit/s."""
    for record in records:
        if record.local_rank == 0:
            for stage in ("network", "network_after"):
                down = [
                    {"name": f"mlx5_{number}/1", "kind": "InfiniBand", "rdma": True, "up": False, "rate_gigabits": 10.0,
                     "counters": {"symbol_error": 0}}
                    for number in range(8)
                ]  # fmt: skip
                own = record.results[stage]
                record.results[stage] = {**own, "ports": [*own["ports"], *down]}


def older_risers(records: list[Record]) -> None:
    ports(records, "node1", range(8), pcie_generation=4, pcie_generation_max=4)


def far_adapters(records: list[Record]) -> None:
    ports(records, None, range(4), numa_node=0)
    ports(records, None, range(4, 8), numa_node=1)
    ports(records, "node1", range(4, 8), numa_node=0)


def collision(records: list[Record]) -> None:
    """Two of three nodes meet at 64 %, and each meets the third at the full rate."""
    meetings(records, 1.56, lambda a, b: {a.node, b.node} == {"node0", "node1"})


def weak_cable(records: list[Record]) -> None:
    """One adapter reaches the next node at 84 % both ways."""
    alone(records, 392.0)
    for record in records:
        for row in record.results["adapters"].get("measured", ()):
            if row["adapter"] == "mlx5_5/1" and row["server"] is not None:
                row["gigabits"] = 330.0


def hot_paste(records: list[Record]) -> None:
    """One GPU is at the limit of its temperature, and clocks an eighth lower."""
    read(records, [3], both=False, temperature_celsius=86, sm_clock_hertz=1740e6)
    slower(records, [3], 1.09)


def settles_lower(ranks: Sequence[int], factor: float) -> Change:
    """Twenty products are quick, thousands are not."""

    def change(records: list[Record]) -> None:
        for rank in ranks:
            own = records[rank].results["steadiness"]
            own["products"] = longer(own["products"], factor)

    return change


def slow_backward(records: list[Record]) -> None:
    result("training", alone_seconds=[0.05] * 5)(records)
    each_epoch(None, lambda epoch: {"images_per_second": 2300.0})(records)


def training_links(records: list[Record]) -> None:
    """Two links of one GPU come up while the test runs."""
    records[3].results["before"]["reading"]["nvlinks_up"] = 16


def more_power(records: list[Record]) -> None:
    """CUDA sees a GPU that NVML does not."""
    present(seen_by_nvml=7, restricted=True, given_by_slurm=8)(records)


BROKEN: tuple[Story, ...] = (
    Story(what="two nodes whose routes collide, at 64 % (nccl 325)", records=lambda: cluster(A100, nodes=3, port=200), change=collision, named="node"),
    Story(what="two racks at three quarters, each pair sound (nccl 319)", records=lambda: cluster(A100, nodes=4, port=200), change=lambda r: large(r, 1.35), named="all ranks"),
    Story(what="reductions at a fifth after an update of NCCL (nccl 588)", records=lambda: cluster(A100, nodes=2, port=200), change=lambda r: large(r, 5.4, "all_reduce"), named="all ranks"),
    Story(what="power that one GPU no longer reports (ogkm 1193)", records=lambda: cluster(RTX4090, gpus=2), change=state([1], power_watts=None, untold={"power_watts": "Unknown Error"}), named="GPU 1 (rank 1, node0)"),
    Story(what="gathers that arrive wrong by relaxed ordering (nccl 531)", records=lambda: cluster(A100, nodes=2, port=200), change=wrong_between, named="(rank 8, node1)"),
    Story(what="an invalid access over NVLink ends the training (ultralytics 24536)", records=lambda: cluster(H100), change=errors("training", "RuntimeError: CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error"), named=G3),
    Story(what="every 64th row of products of 8 bits is wrong (sdc)", records=lambda: cluster(H100), change=periodic_rows, named=G3),
    Story(what="gradients of one GPU with ten bits", records=lambda: cluster(H100), change=tf32_on_one, named=G3),
    Story(what="a thermal interface that has dried (llama 3)", records=lambda: cluster(H100), change=hot_paste, named=G3),
    Story(what="NVLinks that still trained when the test began (nvsentinel 1701)", records=lambda: cluster(H200), change=training_links, named=G3),
    Story(what="90,000 replays of PCIe before the run on one GPU (dcgm 184)", records=lambda: cluster(L40S, gpus=4, topology=TWO_SOCKETS), change=state([2], pcie_replays=90_000), named=G2),
    Story(what="60,000 corrected errors before the run on one GPU", records=lambda: cluster(A100), change=state([3], ecc_corrected=60_000), named=G3),
    Story(what="100 rows that were remapped on one GPU", records=lambda: cluster(A100), change=state([3], remapped_rows=[70, 30, 0, 0]), named=G3),
    Story(what="300 uncorrected errors in a board's life", records=lambda: cluster(H100), change=state([3], ecc_lifetime=300), named=G3),
    Story(what="20 pages that were retired for double-bit errors", records=lambda: cluster(V100, gpus=4, pair=lambda a, b: 46), change=both(state(remapped_rows=None, retired_pages=[0, 0]), state([2], retired_pages=[3, 20])), named=G2),
    Story(what="four million symbol errors before the run on one port", records=lambda: cluster(H100, nodes=2), change=both(lambda r: ports(r, None, range(8), counters=CRC), lambda r: ports(r, "node1", [6], counters={**CRC, "symbol_error": 4_000_000})), named="node node1"),
    Story(what="five million packets out of sequence before the run on one port", records=lambda: cluster(H100, nodes=2), change=both(lambda r: ports(r, None, range(8), counters=CRC), lambda r: ports(r, "node0", [1], counters={**CRC, "out_of_sequence": 5_000_000})), named="node node0"),
    Story(what="a dark fabric: all adapters down, Ethernet of 25 Gbit/s is left", records=lambda: cluster(H100, nodes=2, rdma=False, port=25, line=0.85), change=dark_fabric, named="node node"),
    Story(what="one GPU that stood still for four seconds", records=lambda: cluster(H100), change=stalled("products", 4.0, [3]), named=G3),
    Story(what="a message that took six seconds: a live migration", records=lambda: cluster(H100, nodes=2), change=stalled("messages", 6.0), named="all ranks"),
    Story(what="a step of 40 seconds: the data's file system hung", records=lambda: cluster(A100), change=hung_storage, named="GPU 0"),
    Story(what="a BIOS with other NUMA nodes on one of four nodes", records=lambda: cluster(H100, nodes=4, gpus=4, adapters=4), change=built("node2", "between NUMA nodes"), named="node node2"),
    Story(what="a default limit of 600 W on all H100", records=lambda: cluster(H100), change=both(state(power_limit_watts=600.0, power_limit_default_watts=600.0), lambda r: slower(r, range(8), 1.06)), named=G3),
    Story(what="a VBIOS that allows 1,755 MHz, on all", records=lambda: cluster(H100), change=both(state(sm_clock_max_hertz=1755e6), state(after=True, sm_clock_hertz=1755e6), lambda r: slower(r, range(8), 1.1)), named=G3),
    Story(what="a GPU that NVML saw busy for an eighth of the time", records=lambda: cluster(H100), change=state([3], after=True, utilization_ratio=0.12), named=G3),
    Story(what="a sensor of power at half of the others through minutes of load", records=lambda: cluster(H100), change=load_of(ranks=[3], watts=240.0), named=G3),
    Story(what="clocks that a timer sets during the load only", records=lambda: cluster(A100), change=load_of(pace=0.9, throttle_reasons=["application_clocks"], sm_clock_hertz=1275e6), named=G3),
    Story(what="a room at 78 degrees: all idle boards", records=lambda: cluster(H100), change=lambda r: [x.results["before"]["reading"].update(temperature_celsius=78) for x in r] and None, named=G3),
    Story(what="a third of the others' energy for the same work", records=lambda: cluster(H100), change=state([3], after=True, energy_joules=2200.0), named=G3),
    Story(what="a net that has learned before its first step", records=lambda: cluster(H100), change=each_epoch(None, lambda e: {"losses": [0.4 * loss for loss in e["losses"]]}), named="GPU 0"),
    Story(what="backward passes that take nine times the forward one, on all", records=lambda: cluster(H100), change=slow_backward, named="GPU 0"),
    Story(what="copies that stop between each other on one GPU: a stolen processor", records=lambda: cluster(H100), change=few_samples, named=G3),
    Story(what="risers of PCIe 4 in one of two nodes", records=lambda: cluster(H100, nodes=2), change=older_risers, named="node node1"),
    Story(what="adapters of the second socket at the first one, on one node", records=lambda: cluster(H100, nodes=2), change=far_adapters, named="node node1"),
    Story(what="an adapter that reaches the next node at 84 %", records=lambda: cluster(H100, nodes=2), change=weak_cable, named="node"),
    Story(what="144 multiprocessors on an H100: the name is wrong", records=lambda: cluster(H100), change=present(multiprocessors=144), named=G3),
    Story(what="ECC that is off, and off by default, on all A100", records=lambda: cluster(A100), change=state(ecc_mode=[0, 0], ecc_mode_default=0), named=G3),
    Story(what="a GPU whose thousands of products are a third slower than its twenty", records=lambda: cluster(H100), change=settles_lower([3], 1.33), named=G3),
    Story(what="NVML that does not know a GPU which CUDA has", records=lambda: cluster(H100), change=more_power, named="node node0"),
    Story(what="900 illegal accesses on one GPU, none on the others", records=lambda: cluster(A100), change=state([3], xids_before=[31] * 900), named=G3),
    Story(what="a training whose memory is twice that of other ranks", records=lambda: cluster(H100), change=result("training", [3], memory_peak_bytes=9000 * MIB), named=G3),
)  # fmt: skip
"""What each should be: no PASS, the part named."""
