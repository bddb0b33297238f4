"""Machines of incidents that come and go, or that somebody left behind, and sound ones whose pace varies.

Each names its source where there is one: "nccl 361" is an issue of NVIDIA/nccl, the others are as in issues.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy

from cluster.acceptance.records import Record
from tests.cluster.faults import noise
from tests.cluster.faults.changes import present
from tests.cluster.faults.issues import G2, MIB, copies, counted, network, state
from tests.cluster.faults.machines import figures
from tests.cluster.faults.noise import Jitter, Noise
from tests.cluster.faults.reported import (
    A100,
    G3,
    H100,
    H200,
    L40S,
    RTX4090,
    T4,
    V100,
    Change,
    Story,
    both,
    cluster,
    slower,
)
from tests.cluster.faults.threads import SECOND


def _times(share: float, factor: float, count: int) -> numpy.ndarray:
    """So many repetitions, of which every so-many-th takes longer, with a board's noise."""
    slow = numpy.arange(count) % max(1, round(1 / share)) == 0 if share else numpy.zeros(count, dtype=bool)
    return numpy.where(slow, factor, 1.0) * Jitter(3).of(noise.PRODUCT, count)


def _usual(record: Record) -> float:
    """Seconds of a product."""
    return float(record.results["compute"]["products"]["float16"]["seconds"][0])


def _last_for(epoch: dict[str, Any], seconds: list[float]) -> None:
    """An epoch of so many steps."""
    losses = epoch["losses"]
    epoch |= {"own_seconds": seconds, "losses": numpy.linspace(losses[0], losses[-1], len(seconds)).tolist()}


def pace(share: float, factor: float, ranks: Iterable[int]) -> Change:
    """Products of these ranks are slow now and then."""

    def change(records: list[Record]) -> None:
        for rank in ranks:
            records[rank].results["steadiness"]["products"] = figures(
                _usual(records[rank]) * _times(share, factor, 1000)
            )

    return change


def copying(share: float, factor: float, rank: int) -> Change:
    """Copies of a rank, both ways, are slow now and then."""

    def change(records: list[Record]) -> None:
        own = records[rank].results["steadiness"]
        own["copies"] = {way: figures(1e-3 * _times(share, factor, 400)) for way in own["copies"]}

    return change


def varying(of: Noise, what: str = "products") -> Change:
    """Products or small messages of all vary like this."""

    def change(records: list[Record]) -> None:
        jitter = Jitter(9)
        for record in records:
            if what == "products":
                record.results["steadiness"]["products"] = figures(_usual(record) * jitter.of(of, 1000))
            else:
                record.results["collectives"]["steady"] |= figures(1e-4 * jitter.of(of, 5000))

    return change


def messages(share: float, factor: float) -> Change:
    """Small messages are slow now and then."""

    def change(records: list[Record]) -> None:
        for record in records:
            record.results["collectives"]["steady"] |= figures(1e-4 * _times(share, factor, 5000))

    return change


def stalling(every: int, factor: float, *operations: str) -> Change:
    """Large messages stall now and then."""

    def change(records: list[Record]) -> None:
        for record in records:
            for one in record.results["collectives"]["measurements"]:
                if one["bytes"] > MIB:
                    own = factor if not operations or one["operation"] in operations else 1.0
                    one["seconds"] = [one["seconds"][0] * (1 if number % every else own) for number in range(20)]

    return change


def steps(every: int, factor: float, ranks: Iterable[int], *, count: int = 100) -> Change:
    """Steps of these ranks' training take longer now and then, before ranks meet."""

    def change(records: list[Record]) -> None:
        for rank in ranks:
            (first, *_) = epochs = records[rank].results["training"]["epochs"]
            usual = first["own_seconds"][-1]
            for epoch in epochs:
                _last_for(epoch, [usual * (1 if number % every else factor) for number in range(count)])

    return change


def lost_without_xid(records: list[Record]) -> None:
    records[3].results["after"]["reading"] = {"up": False, "untold": {}}
    records[3].results["training"] = {"error": "AcceleratorError: CUDA error: unspecified launch failure"}


def without_peer_memory(records: list[Record]) -> None:
    """The last of three nodes."""
    for record in records:
        for stage in ("network", "network_after"):
            if "ports" in record.results[stage] and record.node == "node2":
                record.results[stage] = {**record.results[stage], "peer_memory": False}


def interrupted(records: list[Record]) -> None:
    seconds = _usual(records[3]) * _times(0, 1, 1000)
    seconds[500] += 0.1
    records[3].results["steadiness"]["products"] = figures(seconds)
    records[3].results["collectives"]["steady"] |= figures(numpy.append(numpy.full(999, 2e-5), 0.2))


def shared_uplink(records: list[Record]) -> None:
    """Two GPUs copy through one path; the first begins and the last ends alone."""
    for rank in (2, 3):
        seconds = numpy.where(numpy.arange(560) < 50, 1e-3, 1.9e-3) * Jitter(5).of(noise.COPIES, 560)
        own = records[rank].results["steadiness"]
        own["copies"] = dict.fromkeys(own["copies"], figures(seconds))


def short_training(records: list[Record]) -> None:
    for record in records:
        for epoch in record.results["training"]["epochs"]:
            _last_for(epoch, [0.01] * 12)
    records[3].results["training"]["epochs"][0]["own_seconds"][4:7] = [0.03] * 3


EIGHT, SIXTEEN = range(8), range(16)
BROKEN: tuple[Story, ...] = (
    Story(what="heat that slows one GPU down for a third of the time", records=lambda: cluster(H100), change=pace(1 / 3, 1.7, [3]), named=G3),
    Story(what="a power supply that brakes a node now and then", records=lambda: cluster(H100, nodes=2), change=pace(0.2, 2.2, SECOND), named="node1"),
    Story(what="a power cap that swings on all GPUs", records=lambda: cluster(H200), change=pace(0.5, 1.5, EIGHT), named=G3),
    Story(what="a noisy neighbour on a GPU that is shared", records=lambda: cluster(L40S, gpus=4), change=pace(0.5, 2.2, [2]), named=G2),
    Story(what="a GPU that falls off the bus without an XID (nvsentinel 155)", records=lambda: cluster(L40S, gpus=4), change=lost_without_xid, named=G3),
    Story(what="all-reduces of 0.7 ms that take 40 to 200 now and then (nccl 361)", records=lambda: cluster(V100, nodes=2, port=100, adapters=4), change=messages(0.06, 80), named="all ranks"),
    Story(what="receivers that are not ready: stalls of 655 ms (daqiri 126)", records=lambda: cluster(H100, nodes=2), change=messages(0.002, 6550), named="all ranks"),
    Story(what="storms in which each tenth message takes three times as long", records=lambda: cluster(H100, nodes=4), change=messages(0.1, 3), named="all ranks"),
    Story(what="large messages with hiccups on RoCE (nccl 306)", records=lambda: cluster(V100, nodes=2, port=100, adapters=4), change=stalling(5, 8), named="all ranks"),
    Story(what="a port that flaps, and messages that stall (nccl 905)", records=lambda: cluster(A100, nodes=2, port=200), change=both(counted("node1", 4, link_downed=3), stalling(6, 20)), named="node node1"),
    Story(what="a quota of processor time that stops a training (kubernetes 67577)", records=lambda: cluster(A100, nodes=2, port=200), change=both(steps(4, 1, EIGHT), steps(4, 6, SECOND)), named="node1"),
    Story(what="a pod whose steps take twice as long (k8s-device-plugin 56)", records=lambda: cluster(RTX4090, nodes=2, port=100, adapters=1), change=both(steps(4, 1, EIGHT), steps(1, 2, SECOND)), named="node1"),
    Story(what="half of the multiprocessors, left by MPS (k8s-device-plugin 1494)", records=lambda: cluster(H100), change=both(present([3], multiprocessors=66), lambda r: slower(r, [3], 1.9)), named=G3),
    Story(what="a process on the far socket: 3.8 and 2.5 of 12 GB/s (gearshifft 82)", records=lambda: cluster(V100, gpus=4, pair=lambda a, b: 46), change=copies(2, to_device=3.8e9, to_host=2.5e9), named=G2),
    Story(what="replays of PCIe that stall copies", records=lambda: cluster(A100), change=both(state([2], after=True, pcie_replays=60), copying(0.2, 4, 2)), named=G2),
    Story(what="CRC errors of NVLink that come in storms", records=lambda: cluster(H100), change=both(state([3], after=True, nvlink_errors=3000), stalling(7, 3)), named=G3),
    Story(what="one node of three without GPUDirect, its messages in fits", records=lambda: cluster(A100, nodes=3, port=200), change=both(without_peer_memory, network(1.3), messages(0.2, 2.5)), named="node node2"),
)  # fmt: skip
HEALTHY: tuple[Story, ...] = (
    Story(what="persistence mode is off (nvsentinel 1382)", records=lambda: cluster(A100), change=both(state(power_watts=55.0, sm_clock_hertz=210e6), state(after=True, power_watts=380.0, sm_clock_hertz=1980e6))),
    Story(what="one interruption of 100 ms, and a message of 200", records=lambda: cluster(H100), change=interrupted),
    Story(what="a clock that swings by 3 % at the power limit", records=lambda: cluster(H100), change=varying(Noise(sigma=(0.03, 0.03)))),
    Story(what="boards that slow down by 5 % as they become warm", records=lambda: cluster(V100, gpus=4, pair=lambda a, b: 46), change=varying(Noise(sigma=(0.01, 0.01), warming=0.05))),
    Story(what="a 99th percentile of three times the median over InfiniBand", records=lambda: cluster(H100, nodes=4), change=varying(Noise(sigma=(0.06, 0.06), tail=(0.015, 0.015), longest=3.0), "messages")),
    Story(what="small messages over Ethernet that vary by a tenth", records=lambda: cluster(T4, nodes=4, gpus=1, rdma=False, port=25, line=0.85), change=varying(Noise(sigma=(0.1, 0.1), tail=(0.02, 0.02), longest=3.0), "messages")),
    Story(what="two GPUs that share a path for copies", records=lambda: cluster(L40S, gpus=4), change=shared_uplink),
    Story(what="a network with storms that are known, as the file says", records=lambda: cluster(A100, nodes=2, port=200), change=messages(0.1, 3), expect="[steadiness]\nmessages = 0.25"),
    Story(what="a short training of which three steps were slow", records=lambda: cluster(A100), change=short_training),
    Story(what="every epoch begins with a slow step", records=lambda: cluster(H100), change=steps(100, 20, EIGHT)),
    Story(what="every twentieth large message at half the rate", records=lambda: cluster(H100, nodes=2), change=stalling(20, 2)),
    Story(what="a monitor that looks at a GPU once in a second", records=lambda: cluster(A100), change=pace(0.01, 1.6, [3])),
)  # fmt: skip
