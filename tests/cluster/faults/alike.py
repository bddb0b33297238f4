"""Faults that all GPUs share, or that show in one figure of many. Written after settings.py, before any was judged.

Two of the 35 passed silently at first: a rank that loses more at the end, and messages of a pair that are an eighth slower.
"""

from __future__ import annotations

from typing import Any

from cluster.acceptance.records import Record
from tests.cluster.faults.changes import (
    adapter_rows,
    copies,
    every_fit,
    host,
    hosted,
    in_load,
    memory,
    messages,
    paced,
    present,
    reading_of_load,
    result,
    small,
    some_longer,
    variables,
)
from tests.cluster.faults.issues import counted, state
from tests.cluster.faults.reported import (
    A100,
    B200,
    G3,
    GB200,
    H100,
    H200,
    L40S,
    TWO_SOCKETS,
    Change,
    Story,
    both,
    meetings,
    ports,
    slower,
)

GIB = 2**30


def losses(rank: int, last: float) -> Change:
    """What one rank loses at the end of the second epoch."""

    def change(records: list[Record]) -> None:
        epoch = records[rank].results["training"]["epochs"][1]
        epoch["losses"] = [*epoch["losses"][:-1], last]

    return change


def adapter(name: str, gigabits: float) -> Change:
    """One adapter to itself."""

    def change(records: list[Record]) -> None:
        for record, row in adapter_rows(records):
            if record.rank == 8 and row["adapter"] == name and row["server"] is None:
                row["gigabits"] = gigabits

    return change


def tails(way: str, rank: int) -> Change:
    """A tenth of one GPU's copies takes 1.9 times as long."""

    def change(records: list[Record]) -> None:
        own = records[rank].results["steadiness"]["copies"]
        own[way] = some_longer(own[way], 0.1, 1.9)

    return change


def unlike(**figures: Any) -> Change:
    """A field that this version does not know."""
    return lambda records: [record.results["before"]["reading"].update(figures) for record in records] and None


BROKEN: tuple[Story, ...] = (
    Story(what="a node with half of the others' shared memory", records=lambda: hosted(H100, nodes=4, gpus=4, adapters=4), change=host("node1", shared_memory_bytes=2**37), named="node1"),
    Story(what="copies to the host at 72 % of those to the device, on all", records=lambda: hosted(B200), change=copies(1.38, "to_host"), named=G3),
    Story(what="a tenth of one GPU's copies in nearly twice the time", records=lambda: hosted(H100), change=tails("to_host", 3), named=G3),
    Story(what="a copy of memory at 88 % of a triad, on all", records=lambda: hosted(A100), change=lambda r: [x.results["bandwidth"]["rates"].update(copy=0.88 * x.results["bandwidth"]["rates"]["triad"]) for x in r] and None, named=G3),
    Story(what="a worker of another version, with a field of its own", records=lambda: hosted(H100), change=unlike(c2c_errors=4), named=G3),
    Story(what="a version that is a word with a digit", records=lambda: hosted(H100), change=present(torch="unknown2"), named="rank 3"),
    Story(what="a bus of NVLink that is no bus", records=lambda: hosted(H100), change=state([3], nvlink_peers={"switch": 17, "??": 1}), named=G3),
    Story(what="one GPU whose steps take a third longer", records=lambda: hosted(H200), change=lambda r: slower(r, [3], 1.35, products=False), named=G3),
    Story(what="routes that recover on one GPU of a rack", records=lambda: hosted(GB200, gpus=4, adapters=4), change=state([3], fabric={"state": "completed", "status": 0, "clique": 1, "cluster": "ab" * 16, "degraded": False, "faults": ["routes are being recovered"]}), named=G3),
    Story(what="three timeouts of acknowledgements on one port", records=lambda: hosted(H100, nodes=2), change=counted("node1", 4, local_ack_timeout_err=3), named="node1"),
    Story(what="8 bits of one GPU wrong only under load", records=lambda: hosted(H100), change=both(paced(0.95), result("load", [3], differing=1)), named=G3),
    Story(what="one of two nodes that counts its GPUs in another order", records=lambda: hosted(L40S, nodes=2, gpus=4, port=100, adapters=2, topology=TWO_SOCKETS), change=lambda r: [x.results["before"]["reading"].update(topology={str(o): "one NUMA node" if (int(o) % 2) == (x.local_rank % 2) else "between NUMA nodes" for o in range(4)}) or x.results["after"]["reading"].pop("topology", None) for x in r[4:]] and None, named="node1"),
    Story(what="a driver that resets its energy counter to 12 J", records=lambda: hosted(A100), change=state([3], after=True, energy_joules=12.0), named=G3),
    Story(what="a fatal error of PCIe on one GPU before the run, and one more in it", records=lambda: hosted(H100), change=both(state(pcie_errors=[0, 0, 0]), state([3], pcie_errors=[0, 0, 1]), state([3], after=True, pcie_errors=[0, 0, 2])), named=G3),
)  # fmt: skip
IN_THE_BANNER: tuple[Story, ...] = (
    Story(what="a broadcast of 1 KiB in thrice the time of the others", records=lambda: hosted(H100), change=small("broadcast", 3.0), named="other operations"),
    Story(what="a sixth of all products in 1.4 times the time, on all", records=lambda: hosted(H100), change=every_fit(0.16, 1.4), named="steadiness.products"),
    Story(what="one small message of forty in eight times the time", records=lambda: hosted(H100, nodes=2), change=messages(0.015, 8.0), named="collectives.steady"),
    Story(what="a rank that loses more than the others at the end", records=lambda: hosted(H100), change=losses(3, 1.45), named="GPU 3"),
    Story(what="an adapter that reaches itself at 90 % of the others' rate", records=lambda: hosted(H100, nodes=2), change=adapter("mlx5_3/1", 352.0), named="mlx5_3/1"),
    Story(what="clocks at 65 % under load without a reason, on all", records=lambda: hosted(H100), change=both(state(after=True, sm_clock_hertz=1300e6), lambda r: slower(r, range(8), 1.12)), named="sm_clock"),
    Story(what="NVML that saw 55 % of the work, on all", records=lambda: hosted(H100), change=state(after=True, utilization_ratio=0.55), named="utilization"),
    Story(what="boards at 93 degrees of 100 under load, on all", records=lambda: hosted(L40S, topology=TWO_SOCKETS), change=both(state(maximum_celsius=100), reading_of_load(celsius=93)), named="celsius"),
    Story(what="one GPU that draws 60 % of the others' power under load", records=lambda: hosted(H100), change=state([3], after=True, power_watts=310.0), named="power_watts"),
    Story(what="one GPU whose clock is 14 % lower in the load", records=lambda: hosted(H100), change=in_load(3, "sm_clock_hertz", 1650e6), named="sm_clock_hertz"),
    Story(what="one of four nodes 8 % slower in memory", records=lambda: hosted(H100, nodes=4), change=memory(0.92, *range(16, 24)), named="node2"),
    Story(what="a host that is busy with something else, on all", records=lambda: hosted(H100), change=host(busy_ratio=0.9), named="busy_ratio"),
    Story(what="memory that may not be locked for RDMA (64 KiB)", records=lambda: hosted(H100, nodes=2), change=host(locked_memory_bytes=65536), named="locked_memory_bytes"),
    Story(what="two gibibytes of the host's memory free", records=lambda: hosted(H100), change=host(memory_available_bytes=2 * GIB), named="memory_available_bytes"),
    Story(what="1 KiB chunks by a variable that a guide names", records=lambda: hosted(H100, nodes=2), change=variables(NCCL_BUFFSIZE="1024"), named="NCCL_BUFFSIZE"),
    Story(what="an NCCL of 2021 on chips of 2024", records=lambda: hosted(B200), change=present(nccl=[2, 10, 3]), named="2.10.3"),
    Story(what="30 corrected errors on every board in a minute", records=lambda: hosted(A100), change=state(after=True, ecc_corrected=33), named="ecc_corrected"),
    Story(what="forward and backward passes at the pace of the forward one, on all", records=lambda: hosted(H100), change=result("training", alone_seconds=[0.0062] * 5), named="alone_seconds"),
    Story(what="a training that takes 60 GiB, on all", records=lambda: hosted(H100), change=result("training", memory_peak_bytes=60 * GIB), named="memory_peak_bytes"),
    Story(what="messages between two of eight GPUs an eighth slower", records=lambda: hosted(H200), change=lambda r: meetings(r, 1.12, lambda a, b: {a.rank, b.rank} == {3, 6}), named="GPU 3"),
    Story(what="adapters whose NUMA node nobody knows", records=lambda: hosted(H100, nodes=2), change=lambda r: ports(r, None, range(8), numa_node=-1), named="numa_node"),
)  # fmt: skip
"""As that of shared.py."""
