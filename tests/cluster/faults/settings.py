"""Machines whose host, settings or software is at fault, and boards that differ little from their siblings.

All were written down, with what the verdict should be, before any was judged. Seven of the 35 broken ones passed silently
at first: images that arrive late, another chip, part of the memory, gradients, a raised limit, locked clocks, a riser. Names of sources are as in issues.py;
"sglang" is sgl-project/sglang, "awsome" awslabs/awsome-distributed-ai, "uabrc" uabrc/uabrc.github.io.
"""

from __future__ import annotations

from collections.abc import Sequence

from cluster.acceptance.records import Record
from tests.cluster.faults.changes import (
    before,
    fits,
    host,
    hosted,
    in_load,
    memory,
    messages,
    present,
    result,
    variables,
)
from tests.cluster.faults.issues import FORMED, L4, network, state
from tests.cluster.faults.reported import (
    A100,
    B200,
    G3,
    GB200,
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
    ports,
    slower,
)
from tests.cluster.faults.threads import SECOND

GIB = 2**30
COUNTS = {"symbol_error": 0, "link_downed": 1}


def tested(share: float) -> Change:
    """So much of the memory of all was tested: more could not be had."""

    def change(records: list[Record]) -> None:
        for record in records:
            own = record.results["memory"]
            own["tested_bytes"] = int(share * own["total_bytes"])

    return change


def starved(records: list[Record]) -> None:
    """Steps are as quick as before; between them all wait for images in the second epoch."""
    for record in records:
        record.results["training"]["epochs"][1]["images_per_second"] = 6900.0


def other_side(records: list[Record]) -> None:
    """GPU 3 is at the other processor: its riser was swapped. Paths of all others are inside a node."""
    for record in records:
        paths = record.results["before"]["reading"]["topology"]
        del record.results["after"]["reading"]["topology"]
        record.results["before"]["reading"]["topology"] = {
            other: "between NUMA nodes" if (other == "3") != (record.local_rank == 3) else kind
            for other, kind in paths.items()
        }


def late(seconds: float, *ranks: int) -> Change:
    """These began so much later: their images had to be loaded."""

    def change(records: list[Record]) -> None:
        for rank in ranks:
            records[rank].results["before"]["time"] += seconds

    return change


def steps(ranks: Sequence[int], factor: float) -> Change:
    return lambda records: slower(records, ranks, factor, products=False)


BROKEN: tuple[Story, ...] = (
    Story(what="one GPU a twentieth of whose products takes twice as long", records=lambda: hosted(H100), change=fits(3, 0.06, 2.0), named=G3),
    Story(what="memory of one of eight an eighth slower", records=lambda: hosted(H100), change=memory(0.88, 3), named=G3),
    Story(what="heat that held one GPU down for 12 s between samples", records=lambda: hosted(H100), change=both(state(slowed_seconds=[0.0, 0.0, 0.0]), state([3], after=True, slowed_seconds=[12.0, 0.0, 0.0])), named=G3),
    Story(what="a node that began 200 s later", records=lambda: hosted(H100, nodes=4, gpus=4, adapters=4), change=both(late(-200.0, *range(12)), state(range(12), after=True, energy_joules=21_000.0)), named="node3"),
    Story(what="two of 112 processors for each task on one node (pyxis 40)", records=lambda: hosted(H100, nodes=4, gpus=4, adapters=4), change=host("node1", processors=2), named="node1"),
    Story(what="NVLS and P2P off by a variable on one rank alone", records=lambda: hosted(H100), change=variables([3], NCCL_P2P_DISABLE="1", NCCL_NVLS_ENABLE="0"), named=G3),
    Story(what="NCCL_ALGO that differs between two nodes", records=lambda: hosted(H100, nodes=2), change=both(variables(None, NCCL_ALGO="Ring"), variables(SECOND, NCCL_ALGO="Tree")), named="node1"),
    Story(what="routes of one GPU's fabric are unhealthy (nccl 2186)", records=lambda: hosted(GB200, nodes=1, gpus=4, adapters=4), change=both(state(fabric={**FORMED, "faults": []}), state([3], fabric={**FORMED, "faults": ["routes are unhealthy"]})), named=G3),
    Story(what="a fabric whose partition nobody has assigned, on all", records=lambda: hosted(H200), change=state(fabric={**FORMED, "faults": ["in no partition"]}), named=G3),
    Story(what="a reason for lower clocks that this driver has new", records=lambda: hosted(B200), change=state([3], after=True, throttle_reasons=["unknown 0x400"]), named=G3),
    Story(what="an action of recovery that is newer than the test", records=lambda: hosted(B200), change=state([3], recovery_action="unknown 11"), named=G3),
    Story(what="a board that its driver calls Graphics Device", records=lambda: hosted(H100), change=both(state(name="NVIDIA Graphics Device"), present(device_name="NVIDIA Graphics Device")), named=G3),
    Story(what="UUIDs of zeros in a guest", records=lambda: hosted(L40S, gpus=4, topology=TWO_SOCKETS), change=lambda r: [x.results["presence"].update(uuid="0" * 8 + "-0000-0000-0000-" + "0" * 12) for x in r] and None, named="GPU 2"),
    Story(what="four of eight GPUs a sixth slower in training", records=lambda: hosted(A100), change=steps(range(4, 8), 1.18), named="GPU"),
    Story(what="forward and backward passes of one of eight at twice the time", records=lambda: hosted(H200), change=result("training", [3], alone_seconds=[0.024] * 5), named=G3),
    Story(what="a port in a state that is not ACTIVE alone, on one node", records=lambda: hosted(H100, nodes=2), change=lambda r: ports(r, "node1", [2], up=False), named="node1"),
    Story(what="a counter of the adapter that nobody knows", records=lambda: hosted(H100, nodes=2), change=lambda r: ports(r, "node1", [2], counters={"symbol_error": 0, "roce_slow_restart": 40_000}), named="node1"),
)  # fmt: skip
"""What each should be: no PASS, the part named."""
IN_THE_BANNER: tuple[Story, ...] = (
    Story(what="a pump that fails: one GPU at 84 degrees in the load, the others at 60", records=lambda: hosted(H100), change=in_load(3, "celsius", 84), named=G3),
    Story(what="images that arrive late in the second epoch: a quarter of the rate, on all", records=lambda: hosted(A100), change=starved, named="images_per_second of the best one"),
    Story(what="chips of capability 8.9 that are called H100", records=lambda: hosted(H100), change=present(compute_capability=[8, 9]), named="compute_capability"),
    Story(what="64 MiB of shared memory in all pods (nccl 290)", records=lambda: hosted(H100), change=host(shared_memory_bytes=64 * MIB), named="shared_memory_bytes"),
    Story(what="GPUDirect off by a variable in the image (awsome 1106)", records=lambda: hosted(H100, nodes=2), change=both(variables(NCCL_NET_GDR_LEVEL="LOC"), network(1.05)), named="NCCL_NET_GDR_LEVEL"),
    Story(what="a driver of 2021 with a PyTorch of today (nccl 716)", records=lambda: hosted(A100), change=state(driver="470.129.06"), named="470.129.06"),
    Story(what="one of two nodes with another kernel", records=lambda: hosted(H100, nodes=2), change=host("node1", kernel="5.15.0-1040-aws"), named="kernel"),
    Story(what="processors that save power, on all", records=lambda: hosted(H100), change=host(governor="powersave"), named="powersave"),
    Story(what="an uncorrected error of the host's memory on one node", records=lambda: hosted(H100, nodes=2), change=host("node1", memory_errors=[90, 1]), named="memory_errors"),
    Story(what="81 % of the memory tested on all, for more could not be had (dcgm 284)", records=lambda: hosted(H100), change=tested(0.81), named="memory"),
    Story(what="gradients of one GPU that are eight times as far off, within the bound", records=lambda: hosted(H100), change=result("gradients", [3], deviation=1.6e-4), named="gradients.deviation"),
    Story(what="900 correctable errors of PCIe on one GPU while the test ran", records=lambda: hosted(H100), change=both(state(pcie_errors=[0, 0, 0]), state([3], after=True, pcie_errors=[900, 0, 0])), named="pcie_errors"),
    Story(what="twelve remapped rows on every board: a batch of memory", records=lambda: hosted(A100), change=state(remapped_rows=[12, 0, 0, 0]), named="remapped_rows"),
    Story(what="a power limit of 800 W where 700 is the default, on all", records=lambda: hosted(H100), change=state(power_limit_watts=800.0), named="power_limit"),
    Story(what="clocks that are locked at 1,980 MHz: all idle boards draw 200 W", records=lambda: hosted(H100), change=both(before(sm_clock_hertz=1980e6, power_watts=200.0, throttle_reasons=[]), state(after=True, energy_joules=25_000.0)), named="before"),
    Story(what="1.8 GiB in use on all before the run: a program that did not end", records=lambda: hosted(H100), change=before(memory_used_bytes=1.8 * GIB), named="memory_used_bytes"),
    Story(what="one GPU on the other side of a node: its riser was swapped", records=lambda: hosted(H100), change=other_side, named="topology"),
    Story(what="150 lost links on every port: a switch that restarts", records=lambda: hosted(H100, nodes=2), change=lambda r: ports(r, None, range(8), counters={**COUNTS, "link_downed": 150}), named="link_downed"),
)  # fmt: skip
"""As that of shared.py."""


HEALTHY: tuple[Story, ...] = (
    Story(what="guests of a cloud: no governor, the hypervisor's clock, a quota", records=lambda: hosted(A100), change=host(governor=None, clock_source="kvm-clock", processors=96, processors_allowed=90.0)),
    Story(what="an Arm host with the system counter as its clock", records=lambda: hosted(GH200, gpus=1), change=host(clock_source="arch_sys_counter", governor=None, processors=72, processors_allowed=None)),
    Story(what="governors that save power and are meant", records=lambda: hosted(L4, gpus=4, topology=TWO_SOCKETS), change=host(governor="schedutil")),
    Story(what="variables that name interfaces and adapters", records=lambda: hosted(H100, nodes=2), change=variables(NCCL_SOCKET_IFNAME="eth0", NCCL_IB_HCA="mlx5", NCCL_DEBUG="WARN")),
    Story(what="variables of a cloud's image, alike on all", records=lambda: hosted(A100, nodes=2, port=200), change=variables(NCCL_PROTO="simple", FI_PROVIDER="efa", NCCL_TOPO_FILE="/opt/topo.xml")),
    Story(what="nodes that have different amounts of memory free", records=lambda: hosted(H100, nodes=2), change=host("node1", memory_available_bytes=2**40)),
    Story(what="a host that corrected three errors of its memory", records=lambda: hosted(H100), change=host(memory_errors=[3, 0])),
    Story(what="pods of 8 GiB of shared memory", records=lambda: hosted(H100), change=host(shared_memory_bytes=8 * GIB)),
    Story(what="a host that is a fifth busy: its monitors", records=lambda: hosted(H100, nodes=2), change=host(busy_ratio=0.2)),
    Story(what="rolling updates: another kernel on one of four nodes", records=lambda: hosted(H100, nodes=4, gpus=4, adapters=4), change=host("node3", kernel="6.8.0-64-generic")),
    Story(what="a driver that tells slowed time, none of it new", records=lambda: hosted(H100), change=state(slowed_seconds=[310.0, 0.0, 0.0])),
    Story(what="four correctable errors of PCIe since the boot", records=lambda: hosted(L40S, gpus=4, topology=TWO_SOCKETS), change=both(state(pcie_errors=[0, 0, 0]), state([2], pcie_errors=[4, 0, 0]))),
    Story(what="a fabric without faults on eight H200", records=lambda: hosted(H200), change=state(fabric={**FORMED, "faults": []})),
    Story(what="idle boards at 28 degrees: cold water", records=lambda: hosted(B200), change=both(before(temperature_celsius=28), state(after=True, temperature_celsius=45))),
    Story(what="one GPU at the edge of the air: 12 degrees warmer in the load", records=lambda: hosted(H100), change=in_load(3, "celsius", 72)),
    Story(what="a GPU of eight that is 4 % slower in everything", records=lambda: hosted(A100), change=both(lambda r: slower(r, [3], 1.04), memory(0.97, 3))),
    Story(what="one of four nodes that is 3 % slower", records=lambda: hosted(H100, nodes=4), change=lambda r: slower(r, range(8, 16), 1.03)),
    Story(what="94 % of the memory tested", records=lambda: hosted(H100), change=tested(0.94)),
    Story(what="three remapped rows on each of two boards", records=lambda: hosted(A100), change=state([2, 5], remapped_rows=[3, 0, 0, 0])),
    Story(what="a node that began 30 s later", records=lambda: hosted(H100, nodes=2), change=late(-30.0, *range(8))),
    Story(what="images per second that vary by a tenth between epochs", records=lambda: hosted(H100), change=lambda r: [x.results["training"]["epochs"][1].update(images_per_second=8200.0) for x in r] and None),
    Story(what="T4 at 60 degrees before the run in a warm room", records=lambda: hosted(T4, gpus=4, topology=TWO_SOCKETS), change=both(before(temperature_celsius=60), state(after=True, temperature_celsius=74))),
    Story(what="one retransmission long ago on every port", records=lambda: hosted(H100, nodes=2), change=lambda r: ports(r, None, range(8), counters={**COUNTS, "local_ack_timeout_err": 1})),
    Story(what="a torch of a nightly build, with its own CUDA", records=lambda: hosted(B200), change=present(torch="2.14.0.dev20261101+cu130", cuda="13.0")),
    Story(what="an image of NGC: its own build of PyTorch", records=lambda: hosted(H100), change=present(torch="2.9.0a0+145a3a7bda.nv25.10")),
    Story(what="a quarter of a percent of small messages at ten times", records=lambda: hosted(H100, nodes=2), change=messages(0.0025, 10.0)),
    Story(what="one GPU whose last reading shows 30 % less power", records=lambda: hosted(H100), change=state([3], after=True, power_watts=400.0)),
    Story(what="one GPU of which the training took a quarter more memory", records=lambda: hosted(H100), change=result("training", [0], memory_peak_bytes=5000 * MIB)),
    Story(what="gradients that differ by twice between boards", records=lambda: hosted(H100), change=result("gradients", [3], deviation=4e-5)),
    Story(what="adapters of four nodes on NUMA nodes of their own", records=lambda: hosted(H100, nodes=4), change=both(*(lambda r, n=n: ports(r, None, [n], numa_node=n // 4) for n in range(8)))),
)  # fmt: skip
