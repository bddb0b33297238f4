"""Faults of the size of a fifth to a half on boards and networks that the other files seldom have.

All were written down, with what the verdict should be, before any was judged. Names of sources are as in issues.py.
"""

from __future__ import annotations

from dataclasses import replace

from cluster.acceptance.records import Record
from tests.cluster.faults.changes import each_epoch, memory, paced, result
from tests.cluster.faults.incidents import messages, stalling
from tests.cluster.faults.issues import A100_40, FORMED, G2, H20, L4, copies, counted, network, state, without_adapters
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
    H100_NVL,
    H200,
    L40S,
    RTX4090,
    T4,
    TWO_SOCKETS,
    V100,
    Story,
    _rename,
    both,
    bridged,
    cluster,
    copy_rate,
    large,
    meetings,
    read,
    slower,
)
from tests.cluster.faults.threads import SECOND
from tests.cluster.faults.unseen import other_sizes, product_of

MIB = 2**20


def rack() -> list[Record]:
    records = cluster(GB200, nodes=2, gpus=4, line=14.9, adapters=4)
    read(records, fabric=FORMED)
    return records


def eight_bits_of_one(records: list[Record]) -> None:
    product_of("float8_e4m3fn", 3150, 4500)(records)
    product_of("float8_e4m3fn", 2400, 4500, 3)(records)


def without_gpudirect(records: list[Record]) -> None:
    """Adapters are sound from the host's memory, and carry half from the GPUs'."""
    alone(records, 392.0)
    network(2)(records)


def no_bridge(records: list[Record]) -> None:
    read(records, [2, 3], nvlinks_up=0)
    meetings(records, 25, lambda a, b: {a.rank, b.rank} == {2, 3})


def late_straggler(records: list[Record]) -> None:
    epoch = records[3].results["training"]["epochs"][1]
    epoch["own_seconds"] = [1.4 * seconds for seconds in epoch["own_seconds"]]


def half_of_the_load(records: list[Record]) -> None:
    paced(1.0)(records)
    series = records[3].results["load"]["series"]
    for sample in series[len(series) // 2 :]:
        sample["products_per_second"] *= 0.78


def one_rail_of_a_node(records: list[Record]) -> None:
    meetings(records, 1.43, lambda a, b: (a.node == "node2") != (b.node == "node2"))
    large(records, 1.43)


ALL_OF_THREE = ("all_gather", "all_reduce", "reduce_scatter")
BROKEN: tuple[Story, ...] = (
    Story(what="64 MiB at a quarter between nodes (nccl 1469)", records=lambda: cluster(H100, nodes=4, gpus=4, adapters=4), change=other_sizes(4.0, 64 * MIB), named="all ranks"),
    Story(what="all-to-all that halves every second time (nccl 1531)", records=lambda: cluster(H100, nodes=4, gpus=2, adapters=2), change=stalling(2, 2.2, "all_to_all"), named="all ranks"),
    Story(what="rings that cross: gathers and reductions at 55 % (nccl 1494)", records=lambda: cluster(H200, nodes=2), change=lambda r: large(r, 1.8, *ALL_OF_THREE), named="all ranks"),
    Story(what="half of the rate from the GPUs' memory, adapters sound (perftest 241)", records=lambda: cluster(A30, nodes=2, gpus=2, port=200, adapters=2), change=without_gpudirect, named="all ranks"),
    Story(what="a GPU of a rack at 70 % with all others", records=rack, change=lambda r: meetings(r, 1.43, lambda a, b: 5 in (a.rank, b.rank)), named="(rank 5, node1)"),
    Story(what="a rack whose collectives are at 60 %", records=rack, change=lambda r: large(r, 1.67), named="all ranks"),
    Story(what="memory of one GB200 at 78 %", records=rack, change=memory(0.78, 2), named=G2),
    Story(what="two nodes of B200 at 70 % between them", records=lambda: cluster(B200, nodes=2), change=network(1.43), named="all ranks"),
    Story(what="copies from one B200 at three quarters", records=lambda: cluster(B200), change=copies(3, to_host=37e9), named=G3),
    Story(what="products of 8 bits of one B200 at three quarters", records=lambda: cluster(B200), change=eight_bits_of_one, named=G3),
    Story(what="bfloat16 of one L40S a fifth slower", records=lambda: cluster(L40S, gpus=4, topology=TWO_SOCKETS), change=product_of("bfloat16", 160, 181, 2), named=G2),
    Story(what="L40S over Ethernet of 100 Gbit/s at a fifth", records=lambda: cluster(L40S, nodes=2, gpus=4, rdma=False, port=100, line=0.5, topology=TWO_SOCKETS), change=network(2.4), named="all ranks"),
    Story(what="T4 over 25 Gbit/s at 40 %", records=lambda: cluster(T4, nodes=4, gpus=1, rdma=False, port=25, line=0.85), change=network(2.1), named="all ranks"),
    Story(what="copies of all T4 at 45 % of their slots", records=lambda: cluster(T4, gpus=4, topology=TWO_SOCKETS), change=lambda r: copy_rate(r, 0.45 * 16 * 0.985e9), named="GPU"),
    Story(what="memory of one V100 at 80 %", records=lambda: cluster(V100, gpus=4, pair=lambda a, b: 46), change=memory(0.8, 2), named=G2),
    Story(what="one of two bridges of A30 at half", records=lambda: cluster(A30, gpus=4, rdma=False, port=25, pair=bridged(88, 13)), change=both(state(nvlinks=4, nvlinks_up=4), lambda r: meetings(r, 2, lambda a, b: {a.rank, b.rank} == {0, 1})), named="GPU 0"),
    Story(what="one of two 4090 that copies at half, its link whole", records=lambda: cluster(RTX4090, gpus=2), change=copies(1, to_device=12e9, to_host=12e9), named="GPU 1"),
    Story(what="four GH200 at two thirds between nodes", records=lambda: cluster(GH200, nodes=4, gpus=1, adapters=1), change=network(1.5), named="all ranks"),
    Story(what="one of four GH200 whose copies are at half", records=lambda: cluster(GH200, nodes=4, gpus=1, adapters=1), change=copies(2, to_device=120e9, to_host=120e9), named="node2"),
    Story(what="one of four nodes of H200 at 70 % with all others", records=lambda: cluster(H200, nodes=4, gpus=4, adapters=4), change=one_rail_of_a_node, named="node node2"),
    Story(what="one of eight nodes an eighth slower", records=lambda: cluster(H200, nodes=8, gpus=2, adapters=2), change=lambda r: slower(r, [10, 11], 1.125), named="node5"),
    Story(what="a bridge that fell off between two of eight A100 PCIe", records=lambda: cluster(A100_PCIE, topology=TWO_SOCKETS, pair=bridged(233, 9)), change=no_bridge, named="GPU 2 (rank 2, node0)"),
    Story(what="three of four EFA adapters on one node", records=lambda: cluster(A100_40, nodes=2, port=100, adapters=4, line=0.86), change=lambda r: without_adapters(r, "node1", 3), named="node node1"),
    Story(what="a rank that counts 70 % of the others' images", records=lambda: cluster(A100), change=each_epoch([3], lambda e: {"images_per_second": 6300.0}), named=G3),
    Story(what="both passes of one of 32 GPUs a third slower", records=lambda: cluster(A100, nodes=4, port=200), change=result("training", [9], alone_seconds=[0.016] * 5), named="(rank 9, node1)"),
    Story(what="a straggler in the second epoch only", records=lambda: cluster(H100), change=late_straggler, named=G3),
    Story(what="a GPU that loses a fifth in the second half of the load", records=lambda: cluster(H100), change=half_of_the_load, named=G3),
    Story(what="a twelfth of small messages in thrice the time", records=lambda: cluster(H100, nodes=2), change=messages(0.085, 3.2), named="all ranks"),
    Story(what="five damaged packets on one port", records=lambda: cluster(H100, nodes=2), change=counted("node0", 3, port_rcv_errors=5), named="node node0"),
    Story(what="a slowdown by hardware that never ends", records=lambda: cluster(H100), change=state([3], throttle_reasons=["hardware_slowdown"]), named=G3),
    Story(what="5,000 NVLink errors before the run on all", records=lambda: cluster(H100), change=state(nvlink_errors=5000), named=G3),
    Story(what="two H100 NVL whose bridge carries 60 %", records=lambda: cluster(replace(H100_NVL, ring=245), gpus=2), change=both(lambda r: large(r, 1.67), lambda r: meetings(r, 1.67)), named="all ranks"),
    Story(what="one A100 a fifth slower among two models", records=lambda: cluster(L40S, nodes=2, gpus=4, port=100, adapters=1, topology=TWO_SOCKETS), change=both(_rename(range(4, 8), A100_PCIE), lambda r: slower(r, [6], 1.22)), named="(rank 6, node1)"),
    Story(what="420 W on one idle B200, 190 on the others", records=lambda: cluster(B200), change=both(lambda r: [x.results["before"]["reading"].update(power_watts=190.0) or x.results["after"]["reading"].update(energy_joules=30_000.0) for x in r] and None, lambda r: r[3].results["before"]["reading"].update(power_watts=420.0)), named=G3),
    Story(what="L4 that lose 55 % in minutes of load", records=lambda: cluster(L4, gpus=4, topology=TWO_SOCKETS), change=paced(0.45), named="GPU"),
    Story(what="H20 whose all-to-all between nodes is at 45 %", records=lambda: cluster(H20, nodes=2, adapters=8), change=lambda r: large(r, 2.2, "all_to_all"), named="all ranks"),
    Story(what="one node of two whose copies to the host are a third slower", records=lambda: cluster(B200, nodes=2), change=both(*(copies(rank, to_host=33e9) for rank in SECOND)), named="node1"),
)  # fmt: skip
IN_THE_BANNER: tuple[Story, ...] = (
    Story(what="one link of two between two V100", records=lambda: cluster(V100, gpus=4, pair=lambda a, b: 46), change=lambda r: meetings(r, 2, lambda a, b: {a.rank, b.rank} == {0, 3}), named="NVLinks of each pair"),
)  # fmt: skip
"""As that of shared.py."""
