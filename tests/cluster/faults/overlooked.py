"""Broken states that monitors and operators overlooked, by public reports; and sound machines that look odd.

All were written down, with what the verdict should be, before any was judged. Thirteen of the 35 broken ones passed
silently at first: Slurm's count, one operation alone, repetitions, half of the siblings, the host's size, clocks,
constants. Names of sources are as in issues.py and settings.py; "sentinel" is NVIDIA/NVSentinel, "pai"
microsoft/pai, "nnunet" MIC-DKFZ/nnUNet, "rtx6k" local-inference-lab/rtx6kpro.
"""

from __future__ import annotations

from collections.abc import Sequence

from cluster.acceptance.records import Record
from tests.cluster.faults.changes import (
    adapter_rows,
    before,
    copied,
    host,
    hosted,
    losses,
    memory,
    on,
    one_epoch,
    paced,
    present,
    printed,
    sometimes,
    took,
    variables,
)
from tests.cluster.faults.issues import FORMED, L4, counted, state
from tests.cluster.faults.machines import alone
from tests.cluster.faults.reported import (
    A30,
    A100,
    B200,
    G3,
    GB200,
    GH200,
    H100,
    H200,
    L40S,
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
from tests.cluster.faults.threads import SECOND

GIB = 2**30


def steps(ranks: Sequence[int] | None, own: Sequence[float]) -> Change:
    """The second epoch's steps."""
    return on(ranks, lambda record: record.results["training"]["epochs"][1].update(own_seconds=list(own)))


def across(gigabits: float) -> Change:
    """Adapters reach themselves at their line, and the next node with less."""

    def change(records: list[Record]) -> None:
        for _, row in adapter_rows(records):
            if row["server"] is not None:
                row["gigabits"] = gigabits

    return change


def product_of(name: str, factor: float) -> Change:
    """Products of one precision take longer, on all."""

    def change(records: list[Record]) -> None:
        for record in records:
            own = record.results["compute"]["products"][name]
            own["seconds"] = [factor * value for value in own["seconds"]]
            own["tflops"] /= factor

    return change


def warming(records: list[Record]) -> None:
    """Minutes of load in which no board comes to rest: each is warmer at the end than ever before."""
    paced(0.95)(records)
    for record in records:
        series = record.results["load"]["series"]
        for number, sample in enumerate(series):
            sample["celsius"] = 45 + round(43 * number / len(series))


def clocks(seconds: float, ranks: Sequence[int]) -> Change:
    """The clock of these ranks' node is ahead."""

    def change(records: list[Record]) -> None:
        for rank in ranks:
            for stage in ("before", "after"):
                records[rank].results[stage]["time"] += seconds

    return change


def epochs(count: int) -> Change:
    """The training had so many epochs; the last ones as the second."""

    def change(records: list[Record]) -> None:
        for record in records:
            own = record.results["training"]["epochs"]
            record.results["training"]["epochs"] = [*own[:1], *([own[1]] * (count - 1))]

    return change


BROKEN: tuple[Story, ...] = (
    Story(what="a link that fell to generation 2 in the run (rtx6k 88)", records=lambda: hosted(L40S, gpus=4, topology=TWO_SOCKETS), change=state([3], after=True, pcie_generation=2), named="GPU 3"),
    Story(what="one module of a rack in another clique (dra-driver 1276)", records=lambda: hosted(GB200, nodes=1, gpus=4, adapters=4), change=both(state(fabric={**FORMED, "faults": []}), state([3], fabric={**FORMED, "clique": 2, "faults": []})), named=G3),
    Story(what="40,000 corrected errors on a board that stalls its monitor (sentinel 1748)", records=lambda: hosted(GB200, nodes=1, gpus=4, adapters=4), change=both(state(fabric={**FORMED, "faults": []}), state([3], ecc_corrected=40_000)), named=G3),
    Story(what="a third rack whose messages take a quarter longer (nccl 1453)", records=lambda: hosted(H100, nodes=3), change=lambda r: meetings(r, 1.25, lambda a, b: "node2" in {a.node, b.node} and a.node != b.node), named="node2"),
    Story(what="a memory clock of 2,300 instead of 2,619 MHz on one board", records=lambda: hosted(H100), change=state([3], after=True, memory_clock_hertz=2300e6), named=G3),
    Story(what="a driver that asks to drain peer-to-peer after the run", records=lambda: hosted(H200), change=state([3], after=True, recovery_action="drain peer-to-peer"), named=G3),
    Story(what="Slurm gave four GPUs, and the job sees eight (cgroups are off)", records=lambda: hosted(A100), change=present(given_by_slurm=4), named="node0"),
    Story(what="buffers of all ports that overrun in the run: flow control is off", records=lambda: hosted(H100, nodes=2), change=both(*(counted(f"node{n}", p, excessive_buffer_overrun_errors=900) for n in (0, 1) for p in range(8))), named="node1"),
    Story(what="a newer kernel: all operations a fifth slower between nodes (nccl-tests 362)", records=lambda: hosted(H100, nodes=2), change=both(lambda r: large(r, 1.2), lambda r: meetings(r, 1.2, lambda a, b: a.node != b.node)), named="all ranks"),
    Story(what="one of four nodes that needs a minute to open its GPUs", records=lambda: hosted(H100, nodes=4, gpus=4, adapters=4), change=both(took("presence", 4.0), took("presence", 64.0, range(4, 8))), named="node1"),
    Story(what="150 errors of NVLink on one board since the driver was loaded", records=lambda: hosted(H100), change=state([3], nvlink_errors=150), named="GPU 3"),
    Story(what="copies of four of eight GPUs a fifth slower: one socket's IOMMU", records=lambda: hosted(H100), change=copied(1.2, range(4, 8)), named="GPU 4"),
    Story(what="a cooling loop that does not keep up: all boards get warmer to the end", records=lambda: hosted(H100), change=warming, named="GPU"),
)  # fmt: skip
"""What each should be: no PASS, the part named."""
IN_THE_BANNER: tuple[Story, ...] = (
    Story(what="each fourth step of one GPU takes four times as long (nnunet 1351)", records=lambda: hosted(H100), change=steps([3], [0.005, 0.02, 0.005, 0.005]), named="GPU 3"),
    Story(what="500 XIDs 45 on every board of a rack (sentinel 1748)", records=lambda: hosted(GB200, nodes=1, gpus=4, adapters=4), change=both(state(fabric={**FORMED, "faults": []}), state(xids_before=[45] * 500)), named="xids_before"),
    Story(what="persistence mode off on all (sentinel 772)", records=lambda: hosted(H100), change=state(persistence_mode=0), named="persistence_mode"),
    Story(what="one board in P8 while it works (pai 3387)", records=lambda: hosted(A100), change=state([3], after=True, performance_state=8), named="performance_state"),
    Story(what="packets of 1,500 bytes on the rails of one node", records=lambda: hosted(H100, nodes=2), change=both(lambda r: ports(r, None, range(8), kind="Ethernet", mtu=9000), lambda r: ports(r, "node1", range(8), mtu=1500)), named="node1"),
    Story(what="a node that was started four minutes ago", records=lambda: hosted(H100, nodes=2), change=host("node1", up_seconds=240.0), named="up_seconds"),
    Story(what="a port error that NCCL printed, and went on (nccl 905)", records=lambda: hosted(H100, nodes=2), change=printed("node1:881:901 [0] NCCL WARN NET/IB : mlx5_3:1 Got async event : port error\n", [8]), named="port error"),
    Story(what="all-to-all alone a quarter slower at eight nodes (nccl 1531)", records=lambda: hosted(H100, nodes=8, gpus=4, adapters=4), change=lambda r: large(r, 1.25, "all_to_all"), named="all_to_all"),
    Story(what="two of five large messages take 1.4 times as long", records=lambda: hosted(H100), change=sometimes(1.4), named="collectives"),
    Story(what="240 s to load the images, on all", records=lambda: hosted(H100), change=took("data", 240.0), named="took.data"),
    Story(what="an idle board at 58 degrees, its siblings at 33", records=lambda: hosted(A100), change=both(before(temperature_celsius=33), before([3], temperature_celsius=58)), named="GPU 3"),
    Story(what="a node of two whose boards draw 390 W and not 520, and work 4 % slower", records=lambda: hosted(H100, nodes=2), change=both(state(SECOND, after=True, power_watts=390.0), lambda r: slower(r, SECOND, 1.04)), named="node1"),
    Story(what="one row remapped for an uncorrected error, long ago", records=lambda: hosted(A100), change=state([3], remapped_rows=[0, 1, 0, 0]), named="GPU 3"),
    Story(what="a node whose clock is 45 s ahead", records=lambda: hosted(H100, nodes=2), change=clocks(45.0, SECOND), named="node1"),
    Story(what="labels that are all the same: the loss falls to a thousandth", records=lambda: hosted(H100), change=losses([0.02, 0.01, 0.004, 0.001]), named="losses"),
    Story(what="a net of 61 parameters, on all", records=lambda: hosted(H100), change=lambda r: [x.results["gradients"].update(parameters=61) for x in r] and None, named="parameters"),
    Story(what="adapters that reach the next node at 88 % of what they reach themselves", records=lambda: hosted(H100, nodes=2), change=across(345.0), named="adapter"),
    Story(what="eight processors for eight GPUs, on all", records=lambda: hosted(H100), change=host(processors=8, processors_allowed=8.0), named="processors"),
    Story(what="64 GiB of the host's memory for 640 of the GPUs", records=lambda: hosted(H100), change=host(memory_bytes=64 * GIB, memory_available_bytes=50 * GIB), named="memory_bytes"),
    Story(what="memory of two of four nodes 9 % slower", records=lambda: hosted(H100, nodes=4, gpus=4, adapters=4), change=memory(0.91, *range(8, 16)), named="node"),
    Story(what="bfloat16 at 87 % of float16, on all", records=lambda: hosted(H100), change=product_of("bfloat16", 1.15), named="bfloat16"),
    Story(what="float32 a quarter slower, on all", records=lambda: hosted(A100), change=product_of("float32", 1.25), named="float32"),
)  # fmt: skip
"""As that of shared.py."""

WARNING = "[W1130 12:00:01.123 ProcessGroupNCCL.cpp:4561] Warning: using GPU 0 as device used by this process"
HEALTHY: tuple[Story, ...] = (
    Story(what="logs of NCCL at INFO", records=lambda: hosted(H100, nodes=2), change=both(variables(NCCL_DEBUG="INFO"), printed("node0:1:2 [0] NCCL INFO Bootstrap : Using eth0\nNCCL version 2.27.5+cuda13.0\n"))),
    Story(what="a warning of PyTorch on all ranks", records=lambda: hosted(A100), change=printed(WARNING)),
    Story(what="idle boards in P8 before the run", records=lambda: hosted(T4, gpus=4, topology=TWO_SOCKETS), change=before(performance_state=8)),
    Story(what="boards of P2 that do not reach P0 in computation", records=lambda: hosted(L40S, gpus=4, topology=TWO_SOCKETS), change=state(after=True, performance_state=2)),
    Story(what="a gibibyte that was swapped out long ago", records=lambda: hosted(H100), change=host(swapped_bytes=GIB)),
    Story(what="a host that has run for a year, and another for a day", records=lambda: hosted(H100, nodes=2), change=both(host("node0", up_seconds=3.2e7), host("node1", up_seconds=86_400.0))),
    Story(what="a management port of 1,500 bytes", records=lambda: hosted(A30, gpus=2, rdma=False, port=25, adapters=1), change=lambda r: ports(r, None, [0], mtu=1500)),
    Story(what="RoCE with packets of 9,000 bytes and one firmware", records=lambda: hosted(H200, nodes=2), change=lambda r: ports(r, None, range(8), kind="Ethernet", mtu=9000, firmware="28.43.2026")),
    Story(what="InfiniBand with packets of 4,092 bytes", records=lambda: hosted(H100, nodes=2), change=lambda r: ports(r, None, range(8), mtu=4092)),
    Story(what="adapters whose firmware nobody tells", records=lambda: hosted(A100, nodes=2, port=200)),
    Story(what="a driver that does not tell modes or steps of clocks", records=lambda: hosted(A100), change=state(persistence_mode=None, compute_mode=None, performance_state=None)),
    Story(what="a guest that tells neither its start nor what is swapped", records=lambda: hosted(L4, gpus=4, topology=TWO_SOCKETS), change=host(up_seconds=None, swapped_bytes=None)),
    Story(what="a memory test of a minute and a half on 192 GB", records=lambda: hosted(B200), change=took("memory", 90.0)),
    Story(what="images that take one node eight seconds longer", records=lambda: hosted(H100, nodes=4, gpus=4, adapters=4), change=both(took("data", 11.0), took("data", 3.0, range(12)))),
    Story(what="two nodes of which one trains 4 % slower", records=lambda: hosted(H100, nodes=2), change=lambda r: slower(r, SECOND, 1.04)),
    Story(what="two GPUs whose copies differ by 7 %", records=lambda: hosted(A30, gpus=2, rdma=False, port=25, adapters=1), change=copied(1.07, [1])),
    Story(what="one epoch", records=lambda: hosted(H100), change=one_epoch),
    Story(what="five epochs", records=lambda: hosted(H100), change=epochs(5)),
    Story(what="losses that go up and down within an epoch", records=lambda: hosted(H100), change=losses([1.25, 1.05, 1.2, 1.0])),
    Story(what="four corrected errors on two boards since the driver was loaded", records=lambda: hosted(H200), change=state([2, 5], ecc_corrected=4)),
    Story(what="boards at 1,965 MHz of 1,980", records=lambda: hosted(H100), change=state(after=True, sm_clock_hertz=1965e6)),
    Story(what="adapters at 90 % of their line, to themselves and to others", records=lambda: hosted(H100, nodes=2), change=lambda r: alone(r, 360.0)),
    Story(what="eight L4 without RDMA", records=lambda: hosted(L4, gpus=8, rdma=False, port=25, adapters=1, topology=TWO_SOCKETS)),
    Story(what="one of four nodes that draws 6 % more power", records=lambda: hosted(H100, nodes=4), change=state(range(8, 16), after=True, power_watts=551.0)),
    Story(what="two GH200, each a node", records=lambda: hosted(GH200, nodes=2, gpus=1, adapters=1)),
    Story(what="copies of the far socket 5 % slower", records=lambda: hosted(H100, topology=TWO_SOCKETS), change=copied(1.05, range(4, 8))),
    Story(what="boards that come to rest at 72 degrees after a minute", records=lambda: hosted(H100), change=both(paced(0.95), lambda r: [s.update(celsius=min(72, 50 + n)) for x in r for n, s in enumerate(x.results["load"]["series"])] and None)),
    Story(what="clocks of two nodes that are 3 s apart", records=lambda: hosted(H100, nodes=2), change=clocks(3.0, SECOND)),
    Story(what="one large message of five at 1.2 times the others' time", records=lambda: hosted(H100), change=sometimes(1.2, slow=1)),
    Story(what="a host with 32 processors and 256 GiB for two GPUs", records=lambda: hosted(A30, gpus=2, rdma=False, port=25, adapters=1), change=host(processors=32, processors_allowed=None, memory_bytes=256 * GIB, memory_available_bytes=230 * GIB)),
)  # fmt: skip
"""What each should be: PASS."""
