"""Machines of which all GPUs, or most, have lost the same; that get worse while the test runs; whose ranks do not fit.

Each was written down before it was judged. Each names its source where there is one, as in
issues.py and hidden.py.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from cluster.acceptance.records import Record
from tests.cluster.faults.changes import adapter_rows, each_epoch, memory, paced, present, result
from tests.cluster.faults.issues import A100_40, L4, RTX6000B, network, state
from tests.cluster.faults.machines import alone
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
    H100_NVL,
    H100_PCIE,
    H200,
    L40S,
    RTX4090,
    T4,
    V100,
    Change,
    Model,
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
from tests.cluster.faults.unseen import product_of

H20 = Model(
    name="NVIDIA H20", gib=95.6, mhz=2619, memory=3300, sms=78, pcie=5, links=18, ring=360, tflops=130, peak=148,
    held=0.9,
)  # fmt: skip
V100_PCIE = replace(V100, name="Tesla V100-PCIE-16GB", links=0, ring=8, tflops=85, peak=112)
RTX5090 = replace(
    RTX4090, name="NVIDIA GeForce RTX 5090", gib=31.4, memory=1560, sms=170, pcie=5, tflops=200, peak=None
)
SOCKETS = {"rdma": False, "port": 25.0}


def stopped_load(records: list[Record]) -> None:
    """One rank's samples end after half of the time: its process stood still."""
    paced(0.93)(records)
    own = records[3].results["load"]
    own["series"] = own["series"][:12]
    own["products"] //= 2


def a_stale_record(records: list[Record]) -> None:
    """The record of rank 5 is that of rank 4, from a file that was left over."""
    records[5] = copy.deepcopy(records[4])


def a_meeting_less(records: list[Record]) -> None:
    """Rank 3 has no word of its meeting with rank 6, and rank 6 none of that with rank 3."""
    for rank, other in ((3, 6), (6, 3)):
        pairs = records[rank].results["pairs"]
        pairs["met"] = [met for met in pairs["met"] if met["partner"] != other]


def over_gloo(records: list[Record]) -> None:
    """PyTorch was built without NCCL: all goes over gloo, through the hosts."""
    result("collectives", backend="gloo")(records)
    present(nccl=None)(records)


def slower_from_epoch_to_epoch(records: list[Record]) -> None:
    """The second epoch takes 1.6 times as long, on all."""
    for record in records:
        first, second = record.results["training"]["epochs"][:2]
        second["own_seconds"] = [1.6 * seconds for seconds in first["own_seconds"]]
        second["losses"] = [1.3, 1.2, 1.1, 1.0][: len(second["losses"])] + second["losses"][4:]
        second["images_per_second"] = first["images_per_second"] / 1.6


def long_epochs(count: int = 60) -> Change:
    def of(epoch: dict[str, Any]) -> dict[str, Any]:
        return {"own_seconds": [0.05, 0.01] + [0.005] * (count - 2), "losses": [2.3 - n / 100 for n in range(count)]}

    return each_epoch(None, of)


def flat_loss(records: list[Record]) -> None:
    """Gradients are zero on all: the loss stays."""
    each_epoch(None, lambda epoch: {"losses": [2.303] * len(epoch["losses"])})(records)


def an_adapter_gone(records: list[Record]) -> None:
    """One adapter of the second node fell off its bus while the test ran."""
    for record in records:
        if record.node == "node1" and record.local_rank == 0:
            after = record.results["network_after"]
            record.results["network_after"] = {**after, "ports": after["ports"][:-1]}


def adapters_at(gigabits: float, node: str = "") -> Change:
    """`ib_write_bw` of all adapters, or of a node's."""

    def change(records: list[Record]) -> None:
        for record, row in adapter_rows(records):
            if node in ("", record.node):
                row["gigabits"] = gigabits

    return change


def without_the_tool(records: list[Record]) -> None:
    """The image of the second node lacks perftest."""
    alone(records, 392.0)
    for record in records:
        if record.node == "node1" and record.local_rank == 0:
            record.results["adapters"] = {"skipped": "ib_write_bw is not installed on this node", "asked": True}


def tensor_cores_for_float32(records: list[Record]) -> None:
    """NVIDIA_TF32_OVERRIDE=1 in the image: float32 is rounded to ten bits, on all."""
    product_of("float32", 300.0, 67.0)(records)
    result("gradients", deviation=8e-4)(records)


def taken_after(records: list[Record]) -> None:
    """Another job was put on one GPU while the test ran: 60 GiB in use at the end."""
    read(records, [3], both=False, memory_used_bytes=60 * 2**30)


def died_at_the_end(records: list[Record]) -> None:
    """The host's memory ran out when all was measured, before the last reading."""
    records[3].ending, records[3].detail, records[3].at = "died", "killed by SIGKILL", "after"
    del records[3].results["after"]


def one_way(records: list[Record]) -> None:
    """What rank 6 sends arrives wrong at rank 3; the other way it is right."""
    for met in records[3].results["pairs"]["met"]:
        if met["partner"] == 6:
            met["wrong"] = 12


def a_number_that_is_none_once(records: list[Record]) -> None:
    epoch = records[3].results["training"]["epochs"][1]
    epoch["losses"] = [epoch["losses"][0], float("nan"), *epoch["losses"][2:]]


def fewer_ranks() -> list[Record]:
    """The second node started seven of its eight ranks."""
    records = cluster(H100, nodes=2)[:15]
    for record in records:
        pairs = record.results["pairs"]
        pairs["met"] = [met for met in pairs["met"] if met["partner"] < 15]
        record.results["collectives"]["ranks"] = 15
    return records


def swapped_numbers(records: list[Record]) -> None:
    """Two ranks say that they are rank 2."""
    records[5].rank = 2


BROKEN: tuple[Story, ...] = (
    Story(what="memory a fifth slower on all: it is refreshed twice as often", records=lambda: cluster(H100), change=memory(0.8), named=G3),
    Story(what="memory a sixth slower on all nodes", records=lambda: cluster(A100, nodes=2, port=200), change=memory(0.83), named=G3),
    Story(what="memory of all L4 a fifth slower", records=lambda: cluster(L4, gpus=4, **SOCKETS), change=memory(0.8), named=G3),
    Story(what="products a fifth slower on all: the rack's power is capped", records=lambda: cluster(H200, nodes=2), change=lambda r: slower(r, range(16), 1.25), named=G3),
    Story(what="five of eight A100 a fifth slower", records=lambda: cluster(A100), change=lambda r: slower(r, range(3, 8), 1.25), named=G3),
    Story(what="reduce-scatter alone a fifth slower in a node", records=lambda: cluster(H100), change=lambda r: large(r, 1.25, "reduce_scatter"), named="all ranks"),
    Story(what="RDMA a sixth slower between all nodes (PFC storms)", records=lambda: cluster(H100, nodes=2), change=network(1.2), named="all ranks"),
    Story(what="all T4 lose 70 % of their pace in minutes of load: dust", records=lambda: cluster(T4, gpus=4, **SOCKETS), change=paced(0.3), named=G3),
    Story(what="a rank that stood still for half of the load", records=lambda: cluster(H100), change=stopped_load, named=G3),
    Story(what="the record of another rank, left over", records=lambda: cluster(H100), change=a_stale_record, named="rank"),
    Story(what="two ranks of one number", records=lambda: cluster(H100), change=swapped_numbers, named="rank"),
    Story(what="a pair that nobody has measured", records=lambda: cluster(H100), change=a_meeting_less, named=G3),
    Story(what="gloo on GPUs: a PyTorch without NCCL", records=lambda: cluster(H100), change=over_gloo, named="rank"),
    Story(what="a training that slows down from epoch to epoch", records=lambda: cluster(H100), change=slower_from_epoch_to_epoch, named="rank"),
    Story(what="one of two GPUs a fifth slower in training only", records=lambda: cluster(A30, gpus=2, **SOCKETS), change=lambda r: slower(r, [1], 1.2, products=False), named="GPU 1"),
    Story(what="a loss that stays where it was", records=lambda: cluster(H100), change=flat_loss, named="all ranks"),
    Story(what="an adapter that fell off its bus while the test ran", records=lambda: cluster(H100, nodes=2), change=an_adapter_gone, named="node node1"),
    Story(what="all adapters of all nodes at 300 of 400 Gbit/s (MaxReadReq)", records=lambda: cluster(H100, nodes=2), change=adapters_at(300.0), named="node node"),
    Story(what="a node whose image lacks perftest", records=lambda: cluster(H100, nodes=2), change=without_the_tool, named="node1"),
    Story(what="float32 at four times its peak: TF32 by an override", records=lambda: cluster(H100), change=tensor_cores_for_float32, named=G3),
    Story(what="another job on a GPU at the end of the test", records=lambda: cluster(H100), change=taken_after, named=G3),
    Story(what="a rank that was killed when all was measured", records=lambda: cluster(H100), change=died_at_the_end, named=G3),
    Story(what="a link that is wrong one way only", records=lambda: cluster(H100), change=one_way, named="rank 3"),
    Story(what="one loss of many that is no number", records=lambda: cluster(H100), change=a_number_that_is_none_once, named=G3),
    Story(what="a node that started seven of eight ranks", records=fewer_ranks, named="node1"),
    Story(what="nine NVLink errors on every GPU in a minute: a switch", records=lambda: cluster(H100), change=state(after=True, nvlink_errors=9), named="node node0"),
    Story(what="nineteen replays of PCIe on every GPU in a minute (DCGM warns at eight)", records=lambda: cluster(A100), change=state(after=True, pcie_replays=19), named="node node0"),
    Story(what="a sensor of power that says 40 W under load", records=lambda: cluster(H100), change=state([3], after=True, power_watts=40.0), named=G3),
)  # fmt: skip
IN_THE_BANNER: tuple[Story, ...] = (
    Story(what="products of all A100 a fifth slower", records=lambda: cluster(A100), change=lambda r: slower(r, range(8), 1.25), named="product"),
    Story(what="copies of all a fifth slower: the hosts' memory is half populated", records=lambda: cluster(replace(A100, copy=0.86), nodes=2, port=200), change=lambda r: copy_rate(r, 0.8 * 0.86 * 16 * 1.969e9), named="copy"),
    Story(what="a GH200 whose copies are at 190 of 250 GB/s", records=lambda: cluster(GH200, gpus=1), change=lambda r: copy_rate(r, 190e9), named="copy"),
    Story(what="paths of all L40S through PCIe at 70 %", records=lambda: cluster(L40S), change=both(lambda r: large(r, 1.43), lambda r: meetings(r, 1.43)), named="pairs"),
    Story(what="sockets of 100 Gbit/s a fifth slower on all", records=lambda: cluster(A10G, nodes=4, gpus=1, rdma=False, port=100, line=0.6), change=network(1.25), named="bus bandwidth"),
    Story(what="all H100 lose a quarter of their pace in minutes of load", records=lambda: cluster(H100), change=paced(0.75), named="load"),
    Story(what="latency of small messages five times the usual on all", records=lambda: cluster(H100), change=lambda r: small(r, 150e-6), named="latencies"),
)  # fmt: skip
"""What no published bound forbids: the verdict may be PASS, and its banner has to name the rate."""
HEALTHY: tuple[Story, ...] = (
    Story(what="eight H20, whose products are slow by their data sheet", records=lambda: cluster(H20)),
    Story(what="two nodes of eight H20 with four adapters of 400 Gbit/s each", records=lambda: cluster(H20, nodes=2, adapters=4)),
    Story(what="four V100 PCIe", records=lambda: cluster(V100_PCIE, gpus=4, **SOCKETS)),
    Story(what="T4 whose memory reaches 235 GB/s", records=lambda: cluster(replace(T4, memory=235), gpus=4, **SOCKETS)),
    Story(what="A100 whose memory reaches 1,600 GB/s", records=lambda: cluster(replace(A100, memory=1600))),
    Story(what="B200 whose memory reaches 6,350 GB/s", records=lambda: cluster(replace(B200, memory=6350))),
    Story(what="a 5090, as the file says", records=lambda: cluster(RTX5090, gpus=1), expect="[compute_tflops]\nfloat16 = 180\nbfloat16 = 180\nfloat32 = 10\n[gpu]\nmemory_gigabytes_per_second = 1450"),
    Story(what="ten L40S in one computer", records=lambda: cluster(L40S, gpus=10, **SOCKETS)),
    Story(what="six of eight H100 in a pod", records=lambda: cluster(H100, gpus=6)),
    Story(what="seven nodes of one L4", records=lambda: cluster(L4, nodes=7, gpus=1, rdma=False, port=25, line=0.85)),
    Story(what="three T4 in one computer", records=lambda: cluster(T4, gpus=3, **SOCKETS)),
    Story(what="an H100 PCIe over 100 Gbit/s Ethernet, four nodes", records=lambda: cluster(H100_PCIE, nodes=4, gpus=1, rdma=False, port=100, line=0.6)),
    Story(what="T4 that lose 35 % of their pace in minutes of load", records=lambda: cluster(T4, gpus=4, **SOCKETS), change=paced(0.65)),
    Story(what="H100 that lose 10 % of their pace in minutes of load", records=lambda: cluster(H100), change=paced(0.9)),
    Story(what="L4 at 72 W that lose 30 % in minutes of load", records=lambda: cluster(L4, gpus=4, **SOCKETS), change=paced(0.7)),
    Story(what="1 KiB in 60 us between GPUs of a node", records=lambda: cluster(A100), change=lambda r: small(r, 60e-6)),
    Story(what="one of four A30 that is 8 % slower", records=lambda: cluster(A30, gpus=4), change=lambda r: slower(r, [2], 1.08)),
    Story(what="one of eight A100 whose memory is 6 % slower", records=lambda: cluster(A100), change=memory(0.94, 3)),
    Story(what="a training of 60 steps an epoch", records=lambda: cluster(H100), change=long_epochs()),
    Story(what="GPUs that were given by Slurm, all eight", records=lambda: cluster(H100), change=present(restricted=True, given_by_slurm=8)),
    Story(what="adapters at 388 Gbit/s to themselves and to each other", records=lambda: cluster(H200, nodes=3), change=adapters_at(388.0)),
    Story(what="one symbol error long before the run on every port", records=lambda: cluster(H100, nodes=2), change=lambda r: ports(r, None, range(8), counters={"symbol_error": 1, "link_downed": 2})),
    Story(what="two replays of PCIe on one GPU", records=lambda: cluster(H100), change=state([3], after=True, pcie_replays=2)),
    Story(what="GPUs at their power limit at the end", records=lambda: cluster(B200), change=state(after=True, power_watts=998.0, throttle_reasons=["power_cap"], sm_clock_hertz=1500e6)),
    Story(what="a rack of GB200 with sixteen GPUs", records=lambda: cluster(GB200, gpus=4, nodes=1, adapters=4)),
    Story(what="eight H100 NVL, of which two each have a bridge", records=lambda: cluster(H100_NVL, pair=lambda a, b: 245 if a // 2 == b // 2 else 32)),
    Story(what="two A100 PCIe with a bridge", records=lambda: cluster(replace(A100_PCIE, ring=232), gpus=2)),
    Story(what="a workstation card whose figures the file has", records=lambda: cluster(RTX6000B, gpus=1), expect="[compute_tflops]\nbfloat16 = 350\nfloat16 = 350\n[gpu]\nmemory_gigabytes_per_second = 1300"),
    Story(what="A100 of 40 GB over four adapters of 100 Gbit/s", records=lambda: cluster(A100_40, nodes=4, gpus=8, port=100, adapters=4)),
    Story(what="one discarded packet on one port", records=lambda: cluster(A100, nodes=2, port=200), change=lambda r: ports(r, None, range(8), counters={"symbol_error": 0, "port_xmit_discards": 1})),
)  # fmt: skip
