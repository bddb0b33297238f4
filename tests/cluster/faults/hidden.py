"""Machines whose fault hides between two fields, or in one that nobody looks at; and sound ones that look odd.

Each names its source where there is one: "dcgm" is NVIDIA/DCGM, "monitoring" NVIDIA/gpu-monitoring-tools, "ucx"
openucx/ucx, the others are as in issues.py.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

from cluster.acceptance.records import Record
from tests.cluster.faults.changes import adapter_rows, before, each_epoch, longer, memory, present, result
from tests.cluster.faults.issues import A100_40, FORMED, G2, L4, across, copies, counted, network, state
from tests.cluster.faults.reported import (
    A10G,
    A30,
    A100,
    A100_PCIE,
    B200,
    G3,
    GB200,
    GH200,
    H100,
    H100_PCIE,
    H200,
    L40S,
    RTX4090,
    T4,
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
from tests.cluster.faults.threads import SECOND
from tests.cluster.faults.unseen import product_of

L40 = replace(L40S, name="NVIDIA L40", tflops=150)
NO_ECC = {"ecc_errors": None, "ecc_corrected": None, "ecc_lifetime": None, "ecc_mode": None, "ecc_mode_default": None,
          "sram_errors": None, "remapped_rows": None, "retired_pages_pending": None}  # fmt: skip


def stuck(records: list[Record]) -> None:
    """NVML goes on saying what it said first."""
    records[3].results["after"]["reading"] = copy.deepcopy(records[3].results["before"]["reading"])


def anothers_reading(records: list[Record]) -> None:
    """A container whose NVML counts in another order than CUDA: the readings are a neighbour's."""
    for stage in ("before", "after"):
        records[3].results[stage] = copy.deepcopy(records[2].results[stage])


def later(ranks: Sequence[int], factor: float, what: str) -> Change:
    """All repetitions of the long measurement take so many times as long, those of the short one do not."""

    def change(records: list[Record]) -> None:
        for rank in ranks:
            own = records[rank].results["steadiness"]
            if what == "products":
                own["products"] = longer(own["products"], factor)
            elif what == "copies":
                own["copies"] = {way: longer(figure, factor) for way, figure in own["copies"].items()}
            else:
                steady = records[rank].results["collectives"]["steady"]
                steady |= longer(steady, factor)

    return change


def seconds_of(stage_time: float, node: str) -> Change:
    """A node whose clock is off."""

    def change(records: list[Record]) -> None:
        for record in records:
            for stage in ("before", "after"):
                record.results[stage]["time"] += stage_time if record.node == node else 0.0

    return change


def one_gpu_twice(records: list[Record]) -> None:
    """Ranks 2 and 3 were bound to one GPU."""
    records[3].results["presence"] |= {"uuid": records[2].results["presence"]["uuid"], "index": 2}
    for stage in ("before", "after"):
        records[3].results[stage]["reading"]["uuid"] = records[2].results[stage]["reading"]["uuid"]


def seven_ranks() -> list[Record]:
    """Slurm gave eight GPUs, and seven tasks were started."""
    records = cluster(H100, gpus=7)
    present(seen_by_cuda=8, seen_by_nvml=8, restricted=True, given_by_slurm=8)(records)
    return records


def one_adapter_less(records: list[Record]) -> None:
    for record in records:
        if record.node == "node1" and record.local_rank == 0:
            for stage in ("network", "network_after"):
                record.results[stage] = {**record.results[stage], "ports": record.results[stage]["ports"][:-1]}


def older_image(records: list[Record]) -> None:
    """The second node's test is a version that did not know this stage."""
    for rank in SECOND:
        del records[rank].results["steadiness"]


def to_itself(gigabits: float) -> Change:
    """`ib_write_bw` of an adapter to itself, and 395 Gbit/s to the next node."""

    def change(records: list[Record]) -> None:
        for _, row in adapter_rows(records, 395.0):
            row["gigabits"] = gigabits if row["server"] is None else row["gigabits"]

    return change


def third_epoch(records: list[Record]) -> None:
    for record in records:
        epochs = record.results["training"]["epochs"]
        epochs.append({**epochs[-1], "losses": [0.9, 0.8, 0.8, 0.7]})


def domain(records: list[Record]) -> None:
    read(records, fabric={**FORMED, "clique": 32766})


def not_started(records: list[Record]) -> None:
    domain(records)
    read(records, [3], fabric={"state": "not started", "status": 0, "clique": 0, "cluster": "", "degraded": False})


def without_imex(records: list[Record]) -> None:
    """All have joined, and the second node's memory cannot be reached all the same."""
    domain(records)
    meetings(records, 15, lambda a, b: a.node != b.node)
    large(records, 15)


def uneven(records: list[Record]) -> None:
    """Rank 3 reads images that are damaged: its loss is twice that of others."""
    each_epoch([3], lambda epoch: {"losses": [2 * loss for loss in epoch["losses"]]})(records)


def without_eight_bits(records: list[Record]) -> None:
    del records[3].results["compute"]["products"]["float8_e4m3fn"]


def whole_names(records: list[Record]) -> None:
    for record in records:
        record.node = f"{record.node}.example.org"


BROKEN: tuple[Story, ...] = (
    Story(what="a node whose clock is two hours behind", records=lambda: cluster(H100, nodes=2), change=seconds_of(-7200, "node1"), named="node node1"),
    Story(what="NVML that stands still (a hung GSP)", records=lambda: cluster(H100), change=stuck, named=G3),
    Story(what="an energy counter that stands still (dcgm 171)", records=lambda: cluster(A100), change=state([3], after=True, energy_joules=1000.0), named=G3),
    Story(what="a temperature of 0 degrees (dcgm 311)", records=lambda: cluster(L40S, gpus=4), change=state([2], temperature_celsius=0), named=G2),
    Story(what="a blank value of DCGM as power (monitoring 97)", records=lambda: cluster(T4, gpus=4, rdma=False, port=25), change=state([2], after=True, power_watts=9.223372036854776e15), named=G2),
    Story(what="NVML reads another GPU than CUDA works on", records=lambda: cluster(H100), change=anothers_reading, named=G3),
    Story(what="an adapter of a DPU in DPU mode, at 70 % for its GPU", records=lambda: cluster(H100, nodes=2), change=lambda r: across(r, 1.43, 3), named=G3),
    Story(what="65 of 85 Gbit/s where adapter and GPU are on two sockets (ucx 11121)", records=lambda: cluster(A100, nodes=3, port=100), change=lambda r: meetings(r, 1.31, lambda a, b: a.node != b.node and "node2" in (a.node, b.node)), named="node node2"),
    Story(what="a node whose file system stops each eighth step", records=lambda: cluster(A100, nodes=2, port=200), change=both(each_epoch(None, lambda e: {"own_seconds": [0.005] * 96, "losses": [2.0 - n / 100 for n in range(96)]}), each_epoch(SECOND, lambda e: {"own_seconds": [0.005 if n % 8 else 0.02 for n in range(96)]})), named="node1"),
    Story(what="gradients that go over sockets in the training only: 300 images/s", records=lambda: cluster(H100, nodes=2), change=each_epoch(None, lambda e: {"images_per_second": 300.0}), named="GPU 0"),
    Story(what="memory that throttles by its own heat, on all", records=lambda: cluster(H200), change=memory(0.72), named=G3),
    Story(what="copies from the host at 62 % on the far socket", records=lambda: cluster(A100), change=both(*(copies(rank, to_device=16e9) for rank in range(4, 8))), named="GPU 5"),
    Story(what="half of the time slices of a virtual GPU", records=lambda: cluster(H100, gpus=1), change=lambda r: slower(r, [0], 2), named="GPU 0"),
    Story(what="a slice of MIG among whole GPUs", records=lambda: cluster(H100), change=both(present([3], device_name="NVIDIA H100 80GB HBM3 MIG 3g.40gb", memory_bytes=39.5 * 2**30, multiprocessors=60), lambda r: slower(r, [3], 2.2)), named=G3),
    Story(what="another CUDA on one of two nodes", records=lambda: cluster(A100, nodes=2, port=200), change=present(SECOND, cuda="12.4"), named="node1"),
    Story(what="a container that hides power and clocks on one node", records=lambda: cluster(H100, nodes=2), change=state(SECOND, power_watts=None, sm_clock_hertz=None, throttle_reasons=None), named="node1"),
    Story(what="a GPU that falls to its idle clock after the first products", records=lambda: cluster(H100), change=later([3], 6, "products"), named=G3),
    Story(what="all GPUs slow down after the first products", records=lambda: cluster(A100), change=later(range(8), 1.8, "products"), named=G3),
    Story(what="a link that trains down after the first copies", records=lambda: cluster(L40S, gpus=4), change=later([2], 4, "copies"), named=G2),
    Story(what="small messages that are 15 times slower in the long run", records=lambda: cluster(H100, nodes=2), change=later(range(16), 15, "messages"), named="GPU"),
    Story(what="reductions at 60 %, others sound: SHARP was taken away", records=lambda: cluster(H100), change=lambda r: large(r, 1.65, "all_reduce"), named="all ranks"),
    Story(what="reduce-scatter at 55 % between nodes", records=lambda: cluster(H100, nodes=2), change=lambda r: large(r, 1.8, "reduce_scatter"), named="all ranks"),
    Story(what="one half of an HGX board at half of its rate", records=lambda: cluster(H100), change=lambda r: meetings(r, 2, lambda a, b: a.local_rank < 4 and b.local_rank < 4), named="GPU"),
    Story(what="17 of 18 links on every GPU of an HGX board: a switch's port", records=lambda: cluster(B200), change=state(nvlinks_up=17), named=G3),
    Story(what="one of four GPUs of a tray that has not joined the rack", records=lambda: cluster(GB200, nodes=2, gpus=4, adapters=4, line=14.9), change=not_started, named=G3),
    Story(what="a rack whose nodes do not reach each other's memory (dra-driver 892)", records=lambda: cluster(GB200, nodes=2, gpus=4, adapters=4, line=14.9), change=without_imex, named="all ranks"),
    Story(what="two ranks that Slurm bound to one GPU", records=lambda: cluster(H100), change=one_gpu_twice, named="GPU 2 (rank 3, node0)"),
    Story(what="seven tasks for eight GPUs that Slurm gave", records=seven_ranks, named="node node0"),
    Story(what="31 of 32 EFA adapters on one node", records=lambda: cluster(H100, nodes=2, port=100, adapters=32), change=one_adapter_less, named="node node1"),
    Story(what="packets out of sequence, and an eighth less (RoCE)", records=lambda: cluster(H100, nodes=2), change=both(counted("node1", 2, out_of_sequence=5000), network(1.13)), named="node node1"),
    Story(what="450 of 700 W by the rack's manager, which NVML calls the default", records=lambda: cluster(H100), change=both(lambda r: slower(r, range(8), 1.25), state(power_limit_watts=450.0, power_limit_default_watts=450.0)), named=G3),
    Story(what="a thermal slowdown at 75 degrees before the test (dcgm 270)", records=lambda: cluster(A100), change=lambda r: r[3].results["before"]["reading"].update(throttle_reasons=["hardware_thermal_slowdown"], temperature_celsius=75), named=G3),
    Story(what="an uncorrected error that only the count of its life has", records=lambda: cluster(H100), change=state([3], after=True, ecc_lifetime=1), named=G3),
    Story(what="three rows that were remapped while the test ran", records=lambda: cluster(H100), change=state([3], after=True, remapped_rows=[3, 0, 0, 0]), named=G3),
    Story(what="a node whose image is an older version of this test", records=lambda: cluster(H100, nodes=2), change=older_image, named="node1"),
    Story(what="a node without the data set, which trained on another one", records=lambda: cluster(H100, nodes=2), change=both(result("data", SECOND, data="digits"), result("training", SECOND, data="digits")), named="node1"),
    Story(what="images that are damaged on one rank", records=lambda: cluster(H100), change=uneven, named=G3),
    Story(what="backward passes at half on all GPUs of one of two nodes", records=lambda: cluster(A100, nodes=2, port=200), change=result("training", SECOND, alone_seconds=[0.024] * 5), named="node1"),
    Story(what="products of 8 bits that one of eight does not have", records=lambda: cluster(H100), change=both(product_of("float8_e4m3fn", 1300, 1979), without_eight_bits), named=G3),
)  # fmt: skip
HEALTHY: tuple[Story, ...] = (
    Story(what="adapters at 290 to themselves, and at 395 to the next node (nccl 1464)", records=lambda: cluster(H100, nodes=2), change=to_itself(290.0)),
    Story(what="a node whose clock is four seconds ahead", records=lambda: cluster(H100, nodes=2), change=seconds_of(4, "node1")),
    Story(what="4090 that know no ECC", records=lambda: cluster(RTX4090, gpus=2), change=state(**NO_ECC)),
    Story(what="V100 that know neither rows nor MIG", records=lambda: cluster(V100, gpus=4, pair=lambda a, b: 46), change=state(remapped_rows=None, mig_mode=None, retired_pages=[0, 0], sram_errors=None)),
    Story(what="nobody may read the kernel's log", records=lambda: cluster(A100, nodes=2, port=200), change=state(xids_before=None)),
    Story(what="no energy counter on any GPU", records=lambda: cluster(T4, gpus=4, rdma=False, port=25), change=state(energy_joules=None)),
    Story(what="adapters of a virtual machine, without a NUMA node", records=lambda: cluster(H100, nodes=2), change=lambda r: ports(r, None, range(8), numa_node=-1)),
    Story(what="16 ports of 200 Gbit/s, two an adapter", records=lambda: cluster(H200, nodes=2, port=200, adapters=16)),
    Story(what="eight L40 of one node", records=lambda: cluster(L40, rdma=False, port=25), expect="[compute_tflops]\nfloat16 = 140\nbfloat16 = 140"),
    Story(what="one A100 PCIe, alone", records=lambda: cluster(A100_PCIE, gpus=1), change=state(nvlinks_up=0)),
    Story(what="one H100 PCIe, alone", records=lambda: cluster(H100_PCIE, gpus=1)),
    Story(what="two machines with a 4090 each, over 25 Gbit/s", records=lambda: cluster(RTX4090, nodes=2, gpus=1, rdma=False, port=25, line=0.85)),
    Story(what="two machines over 10 Gbit/s", records=lambda: cluster(T4, nodes=2, gpus=1, rdma=False, port=10, line=0.9)),
    Story(what="three nodes of eight H100", records=lambda: cluster(H100, nodes=3)),
    Story(what="eight nodes of one A10G", records=lambda: cluster(A10G, nodes=8, gpus=1, rdma=False, port=25, line=0.88)),
    Story(what="meetings across rails a tenth slower", records=lambda: cluster(H100, nodes=2), change=lambda r: meetings(r, 1.1, lambda a, b: a.node != b.node and a.local_rank != b.local_rank)),
    Story(what="reductions by the switches at 480 GB/s", records=lambda: cluster(H100), change=lambda r: large(r, 0.767, "all_reduce")),
    Story(what="a training of three epochs", records=lambda: cluster(A100), change=third_epoch),
    Story(what="a rack whose clique has the usual number (torchcomms 3612)", records=lambda: cluster(GB200, nodes=2, gpus=4, adapters=4, line=14.9), change=domain),
    Story(what="NVLink errors of long ago", records=lambda: cluster(H200), change=state([3], nvlink_errors=3)),
    Story(what="two corrected errors more", records=lambda: cluster(A100), change=both(state([3], ecc_corrected=90), state([3], after=True, ecc_corrected=92))),
    Story(what="a row that was remapped last year", records=lambda: cluster(A100), change=state([3], remapped_rows=[1, 0, 0, 0])),
    Story(what="a monitor that asks all the time: 4 % busy before", records=lambda: cluster(A30, gpus=4), change=before(utilization_ratio=0.04)),
    Story(what="1.2 GiB of a daemon on every GPU", records=lambda: cluster(A100), change=before(memory_used_bytes=int(1.2 * 2**30))),
    Story(what="a warm room: 58 degrees before, 79 after", records=lambda: cluster(L4, gpus=4, rdma=False, port=25), change=both(before(temperature_celsius=58), state(after=True, temperature_celsius=79))),
    Story(what="first products a tenth slower than those of seconds", records=lambda: cluster(H100), change=later(range(8), 0.91, "products")),
    Story(what="copies of seconds a fifth slower: all GPUs at once", records=lambda: cluster(A100), change=later(range(8), 1.2, "copies")),
    Story(what="small messages half as quick in the long run", records=lambda: cluster(A100_40, nodes=2, port=100), change=later(range(16), 2, "messages")),
    Story(what="names of nodes with their domain", records=lambda: cluster(H100, nodes=2), change=whole_names),
    Story(what="four GH200, each a node with four ports of 200 Gbit/s", records=lambda: cluster(GH200, nodes=4, gpus=1, port=200, adapters=4)),
    Story(what="a batch of another size", records=lambda: cluster(A100), change=both(result("training", batch_size=32), each_epoch(None, lambda e: {"images_per_second": 2300.0}))),
)  # fmt: skip
