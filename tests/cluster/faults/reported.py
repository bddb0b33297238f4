"""Machines that were built by hand, not drawn: broken ones after public reports, and healthy ones that are unusual.

Each is a story: what stands in the report, in the records that a worker would have written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.acceptance.checks.collectives import BUS_FACTORS
from cluster.acceptance.hardware import board
from cluster.acceptance.records import Record
from tests.cluster import sound
from tests.cluster.faults.chips import capability, precisions

MIB = 2**20
Change = Callable[[list[Record]], None]


@dataclass(frozen=True, kw_only=True)
class Model:
    """A board, in GB/s and TFLOPS."""

    name: str
    gib: float
    mhz: float
    memory: float
    sms: int
    pcie: int
    links: int = 0
    ring: float = 10.0
    """Bus bandwidth of all GPUs of a node."""
    copy: float = 0.8
    """Share of PCIe."""
    tflops: float = 200.0
    peak: float | None = None
    held: float = 0.82
    """Share of the peak that published products reach."""


H100 = Model(
    name="NVIDIA H100 80GB HBM3", gib=79.1, mhz=2619, memory=2950, sms=132, pcie=5, links=18, ring=368, tflops=690, peak=989
)  # fmt: skip
H200 = Model(
    name="NVIDIA H200", gib=139.8, mhz=3201, memory=4200, sms=132, pcie=5, links=18, ring=368, tflops=690, peak=989
)
B200 = Model(
    name="NVIDIA B200", gib=178.3, mhz=3996, memory=6700, sms=148, pcie=5, links=18, ring=745, tflops=1550, peak=2250
)
GB200 = Model(name="NVIDIA GB200", gib=184, mhz=3996, memory=6900, sms=152, pcie=5, links=18, ring=745, tflops=1600)
A100 = Model(
    name="NVIDIA A100-SXM4-80GB",
    gib=79.15,
    mhz=1593,
    memory=1700,
    sms=108,
    pcie=4,
    links=12,
    ring=232,
    tflops=260,
    peak=312,
)
A100_PCIE = Model(
    name="NVIDIA A100 80GB PCIe", gib=79.15, mhz=1512, memory=1600, sms=108, pcie=4, links=12, ring=18, tflops=235
)
H100_NVL = Model(
    name="NVIDIA H100 NVL", gib=93.1, mhz=2619, memory=3450, sms=132, pcie=5, links=12, ring=32, tflops=540
)
H100_PCIE = Model(
    name="NVIDIA H100 PCIe", gib=79.1, mhz=1593, memory=1750, sms=114, pcie=5, links=0, ring=25, tflops=480
)
L40S = Model(name="NVIDIA L40S", gib=44.4, mhz=9001, memory=740, sms=142, pcie=4, ring=9, tflops=205)
A30 = Model(name="NVIDIA A30", gib=23.5, mhz=1215, memory=800, sms=56, pcie=4, ring=12, tflops=120)
T4 = Model(name="Tesla T4", gib=14.74, mhz=5001, memory=240, sms=40, pcie=3, ring=6, tflops=40, peak=65)
V100 = Model(
    name="Tesla V100-SXM2-16GB", gib=15.8, mhz=877, memory=760, sms=80, pcie=3, links=6, ring=130, tflops=100, peak=125
)
A10G = Model(name="NVIDIA A10G", gib=22.2, mhz=6251, memory=500, sms=80, pcie=4, ring=7, tflops=55, peak=70)
RTX4090 = Model(
    name="NVIDIA GeForce RTX 4090", gib=23.6, mhz=10501, memory=920, sms=128, pcie=4, ring=11, tflops=150, peak=165
)
GH200 = Model(name="NVIDIA GH200 480GB", gib=94.5, mhz=2619, memory=3550, sms=132, pcie=5, tflops=650)
SINGLE = 20.0
"""TFLOPS in float32 of a board whose data sheet is elsewhere."""
LANE = {3: 0.985, 4: 1.969, 5: 3.938}


def products(model: Model) -> dict[str, Any]:
    """Of every precision, float32 by the data sheet."""
    known = board(model.name)
    single = (known.tflops or {}).get("float32") if known is not None else None
    rates = dict.fromkeys(precisions(model.name), model.tflops) | {"float32": 0.75 * (single or SINGLE)}
    return {name: sound.product(seconds=sound.WORK / rate, tflops=rate) for name, rate in rates.items()}


def cluster(
    model: Model, *, nodes: int = 1, gpus: int = 8, port: float = 400.0, adapters: int = 8, rdma: bool = True,
    line: float = 0.93, topology: Callable[[int, int], str] = lambda a, b: "one NUMA node",
    pair: Callable[[int, int], float] | None = None, oversubscribed: float = 1.0,
) -> list[Record]:  # fmt: skip
    """Records of a healthy cluster of one model; `pair` gives GB/s of two GPUs of a node, else `ring`."""
    ranks = nodes * gpus
    one = port / 8 * line / oversubscribed
    used = min(adapters, gpus) if rdma else 1
    records = []
    of_sheet = sound.as_it_comes(model.name)
    for rank in range(ranks):
        number, local = divmod(rank, gpus)
        record = sound.record(rank, ranks)
        record.node, record.local_rank = f"node{number}", local
        of_board = {
            "name": model.name, "pcie_generation": model.pcie, "pcie_generation_max": model.pcie, "nvlinks": model.links,
            "nvlinks_up": model.links, "memory_clock_hertz": model.mhz * 1e6, "uuid": f"GPU-{rank}",
            "topology": {str(other): topology(local, other) for other in range(gpus)},
            "memory_total_bytes": model.gib * 2**30,
        }  # fmt: skip
        for stage in ("before", "after"):
            record.results[stage]["reading"] |= of_board | of_sheet
        single = products(model)["float32"]["tflops"]
        peak = {"float32": single / 0.75} | (dict.fromkeys(precisions(model.name), model.peak) if model.peak else {})
        record.results["presence"] |= {
            "index": local, "device_name": model.name, "memory_bytes": model.gib * 2**30, "multiprocessors": model.sms,
            "seen_by_cuda": gpus, "seen_by_nvml": gpus, "uuid": str(rank), "peak_tflops": peak,
            "boot_id": str(number), "held_ratio": {"float32": 0.8} | dict.fromkeys(
                precisions(model.name) if model.peak else (), model.held), "compute_capability": capability(model.name),
        }  # fmt: skip
        record.results["compute"]["products"] = products(model)
        record.results["bandwidth"] = {
            "bytes": 256 * MIB,
            "rates": {"copy": model.memory * 1e9, "triad": model.memory * 1.01e9},
        }
        rate = 250e9 if model.name.startswith(("NVIDIA GH", "NVIDIA GB")) else model.copy * 16 * LANE[model.pcie] * 1e9
        record.results["copies"] = {
            "bytes": 256 * MIB,
            "seconds": dict.fromkeys(("to_device", "to_host"), 256 * MIB / rate),
        }
        record.results["steadiness"] = {
            "products": sound.pace(sound.WORK / model.tflops),
            "copies": dict.fromkeys(("to_device", "to_host"), sound.pace(32 * MIB / rate)),
        }
        record.results["memory"] |= {
            "tested_bytes": int(0.88 * model.gib * 2**30),
            "total_bytes": int(model.gib * 2**30),
        }
        if ranks > 1:
            bus = {
                name: model.ring if nodes == 1 else min(model.ring if gpus > 1 else 1e9, one * used)
                for name in BUS_FACTORS
            }
            if nodes > 1:
                bus["point_to_point"] = min(bus["point_to_point"], one)
                bus["all_to_all"] = min(bus["all_to_all"], one * used / gpus * (ranks - 1) / (ranks - gpus))
            record.results["collectives"]["measurements"] = [
                {"operation": name, "bytes": size, "wrong": 0, "seconds":
                    [30e-6 if size == 1024 else 60e-6 + BUS_FACTORS[name](ranks) * size / bus[name] / 1e9] * 5}
                for name in BUS_FACTORS for size in (1024, 256 * MIB)
            ]  # fmt: skip
            record.results["pairs"] = {"bytes": 256 * MIB, "met": [
                {"partner": other, "wrong": 0, "seconds": 256 * MIB / 1e9 / (
                    one * used / gpus if other // gpus != number
                    else (pair(local, other % gpus) if pair else model.ring))}
                for other in range(ranks) if other != rank
            ]}  # fmt: skip
        ports = [_port(adapter, port, rdma, model.pcie) for adapter in range(adapters if rdma else 1)]
        for stage in ("network", "network_after"):
            record.results[stage] = {"ports": ports, "peer_memory": True} if local == 0 else sound.NOT_READ
        records.append(record)
    return records


def _port(number: int, rate: float | None, rdma: bool, pcie: int) -> dict[str, Any]:
    return {"name": f"mlx5_{number}/1" if rdma else f"ens{number}", "kind": "InfiniBand" if rdma else "Ethernet",
            "rdma": rdma, "up": True, "rate_gigabits": rate, "pcie_width": 16, "pcie_width_max": 16,
            "pcie_generation": pcie, "pcie_generation_max": 5, "counters": {"symbol_error": 0}}  # fmt: skip


def bridged(gib_rate: float, other: float) -> Callable[[int, int], float]:
    """GPUs 0 and 1, 2 and 3, ... have a bridge."""
    return lambda a, b: gib_rate if a // 2 == b // 2 else other


def read(records: list[Record], ranks: Sequence[int] | None = None, *, both: bool = True, **figures: Any) -> None:
    for record in records if ranks is None else [records[rank] for rank in ranks]:
        for stage in ("before", "after") if both else ("after",):
            record.results[stage]["reading"] |= figures


def large(records: list[Record], factor: float, *operations: str) -> None:
    """Large messages take so many times as long."""
    for record in records:
        for one in record.results["collectives"]["measurements"]:
            if one["bytes"] > MIB and (not operations or one["operation"] in operations):
                one["seconds"] = [factor * value for value in one["seconds"]]


def small(records: list[Record], seconds: float) -> None:
    """Small messages take so long."""
    for record in records:
        for one in record.results["collectives"]["measurements"]:
            if one["bytes"] == 1024:
                one["seconds"] = [seconds] * 5
        record.results["collectives"]["steady"] |= sound.pace(seconds)


def copy_rate(records: list[Record], rate: float) -> None:
    """Copies from and to the host, bytes per second."""
    for record in records:
        record.results["copies"]["seconds"] = dict.fromkeys(("to_device", "to_host"), 256 * MIB / rate)
        own = record.results["steadiness"]
        own["copies"] = dict.fromkeys(("to_device", "to_host"), sound.pace(32 * MIB / rate))


def meetings(records: list[Record], factor: float, which: Callable[[Record, Record], bool] = lambda a, b: True) -> None:
    for record in records:
        for met in record.results["pairs"]["met"]:
            if which(record, records[met["partner"]]):
                met["seconds"] *= factor


def ports(records: list[Record], node: str | None, numbers: Sequence[int], **changes: Any) -> None:
    for record in records:
        if record.local_rank == 0 and node in (None, record.node):
            for stage in ("network", "network_after"):
                own = [dict(one) for one in record.results[stage]["ports"]]
                for number in numbers:
                    own[number] |= changes
                record.results[stage] = {**record.results[stage], "ports": own}


def slower(
    records: list[Record], ranks: Sequence[int], factor: float, *, training: bool = True, products: bool = True
) -> None:
    for rank in ranks:
        results = records[rank].results
        for product in results["compute"]["products"].values() if products else ():
            product["seconds"] = [factor * value for value in product["seconds"]]
            product["tflops"] /= factor
        if products:
            own = results["steadiness"]
            own["products"] = {
                name: factor * value if name.endswith("_seconds") else value for name, value in own["products"].items()
            }
        if training:
            results["training"]["alone_seconds"] = [factor * value for value in results["training"]["alone_seconds"]]
            for epoch in results["training"]["epochs"]:
                epoch["own_seconds"] = [factor * value for value in epoch["own_seconds"]]


@dataclass(frozen=True, kw_only=True)
class Story:
    """One machine."""

    what: str
    records: Callable[[], list[Record]]
    change: Change = lambda records: None
    named: str = ""
    """Of a broken one: what has to stand in the subject of a check that is no pass."""
    expect: str = ""
    """A file of --expect."""


def both(*changes: Change) -> Change:
    def change(records: list[Record]) -> None:
        for one in changes:
            one(records)

    return change


G3 = "GPU 3 (rank 3, node0)"
BROKEN: tuple[Story, ...] = (
    Story(what="eight H100 at a third: P2P disabled", records=lambda: cluster(H100), change=both(lambda r: large(r, 3.2), lambda r: meetings(r, 3.2)), named="all ranks"),
    Story(what="eight H100 at half", records=lambda: cluster(H100), change=both(lambda r: large(r, 2), lambda r: meetings(r, 2)), named="all ranks"),
    Story(what="eight B200 at half", records=lambda: cluster(B200), change=both(lambda r: large(r, 2), lambda r: meetings(r, 2)), named="all ranks"),
    Story(what="only broadcast at a third", records=lambda: cluster(H200), change=lambda r: large(r, 3, "broadcast"), named="all ranks"),
    Story(what="A100 pair of a board of four at 40 GB/s", records=lambda: cluster(A100, gpus=4, pair=lambda a, b: 78), change=lambda r: meetings(r, 2, lambda a, b: {a.rank, b.rank} == {0, 3}), named="GPU 0 (rank 0, node0) and GPU 3"),
    Story(what="all pairs of a board of four at 40 GB/s", records=lambda: cluster(A100, gpus=4, pair=lambda a, b: 78), change=lambda r: meetings(r, 2), named="all ranks"),
    Story(what="half of the rails: 40 instead of 80 GB/s (nccl-tests 106)", records=lambda: cluster(A100, nodes=2, port=100, adapters=8), change=both(lambda r: large(r, 2), lambda r: meetings(r, 2, lambda a, b: a.node != b.node)), named="all ranks"),
    Story(what="a bond that carries 240 of 400 Gbit/s (nccl-tests 265)", records=lambda: cluster(H100, nodes=2), change=both(lambda r: large(r, 1.6), lambda r: meetings(r, 1.6, lambda a, b: a.node != b.node)), named="all ranks"),
    Story(what="less than one adapter with two (nccl 1084)", records=lambda: cluster(A30, nodes=2, port=100, adapters=2), change=lambda r: large(r, 5), named="all ranks"),
    Story(what="NCCL falls back to sockets beside InfiniBand", records=lambda: cluster(H100, nodes=2), change=both(lambda r: large(r, 60), lambda r: meetings(r, 12, lambda a, b: a.node != b.node)), named="all ranks"),
    Story(what="an NVL72 that never formed", records=lambda: cluster(GB200, nodes=4, gpus=4, adapters=4), named="all ranks"),
    Story(what="a fabric in progress on one node", records=lambda: cluster(GB200, nodes=2, gpus=4, line=14.9, adapters=4), change=lambda r: read(r, [4], fabric={"state": "in progress", "status": 0}), named="node1"),
    Story(what="an adapter on x8", records=lambda: cluster(H100, nodes=2), change=lambda r: ports(r, "node1", [3], pcie_width=8), named="node node1"),
    Story(what="an adapter at PCIe generation 3", records=lambda: cluster(H100, nodes=2), change=lambda r: ports(r, "node0", [0], pcie_generation=3), named="node node0"),
    Story(what="one port of eight down, on a single node", records=lambda: cluster(H100), change=lambda r: ports(r, None, [5], up=False), named="node node0"),
    Story(what="one port of eight at 100 of 400 Gbit/s, on a single node", records=lambda: cluster(H100), change=lambda r: ports(r, None, [5], rate_gigabits=100.0), named="node node0"),
    Story(what="the same rail down on all nodes", records=lambda: cluster(H100, nodes=4), change=lambda r: ports(r, None, [2], up=False), named="node node"),
    Story(what="all adapters of one node at 200 of 400 Gbit/s", records=lambda: cluster(H100, nodes=4), change=lambda r: ports(r, "node2", range(8), rate_gigabits=200.0), named="node node2"),
    Story(what="one of two nodes a quarter slower", records=lambda: cluster(H100, nodes=2), change=lambda r: slower(r, range(8, 16), 1.25), named="node node1"),
    Story(what="one GPU a fifth slower, in training only", records=lambda: cluster(H100), change=lambda r: slower(r, [3], 1.2, products=False), named=G3),
    Story(what="one of two GPUs a fifth slower", records=lambda: cluster(H100, gpus=2), change=lambda r: slower(r, [1], 1.2), named="GPU 1 (rank 1, node0)"),
    Story(what="the memory clock at half on one GPU", records=lambda: cluster(H100), change=lambda r: read(r, [3], both=False, memory_clock_hertz=1310e6), named=G3),
    Story(what="the memory clock at half on all", records=lambda: cluster(A100), change=lambda r: read(r, both=False, memory_clock_hertz=797e6), named=G3),
    Story(what="one GPU's memory at 45 % of its bandwidth", records=lambda: cluster(H200), change=lambda r: r[3].results["bandwidth"]["rates"].update(copy=1.9e12, triad=1.9e12), named=G3),
    Story(what="an H200 whose memory is as slow as an H100's", records=lambda: cluster(H200, gpus=1), change=lambda r: r[0].results["bandwidth"]["rates"].update(copy=2.9e12, triad=2.9e12), named="GPU 0"),
    Story(what="600 remapped rows", records=lambda: cluster(H100), change=lambda r: read(r, [3], remapped_rows=[520, 80, 0, 0]), named=G3),
    Story(what="all boards in slots of eight lanes", records=lambda: cluster(L40S), change=lambda r: read(r, pcie_width=8, pcie_width_max=8), named=G3),
    Story(what="PCIe generation 1 under load (a BIOS setting)", records=lambda: cluster(A100), change=lambda r: read(r, pcie_generation=1, pcie_generation_max=1), named=G3),
    Story(what="P2P through the CPU below one switch: ACS is on", records=lambda: cluster(L40S, gpus=4, topology=lambda a, b: "one PCIe switch", pair=lambda a, b: 3.0), change=lambda r: large(r, 3), named="all ranks"),
    Story(what="copies at 6 GB/s on all: the IOMMU", records=lambda: cluster(A100), change=lambda r: copy_rate(r, 6e9), named=G3),
    Story(what="XID 94 before the run", records=lambda: cluster(H100), change=lambda r: read(r, [3], xids_before=[94, 13]), named=G3),
    Story(what="a vGPU with half of the memory", records=lambda: cluster(H100, gpus=1), change=lambda r: r[0].results["presence"].update(memory_bytes=40e9), named="GPU 0"),
    Story(what="117 of 132 multiprocessors", records=lambda: cluster(H100), change=lambda r: r[3].results["presence"].update(multiprocessors=117), named=G3),
    Story(what="the fabric manager does not run", records=lambda: cluster(H100), change=both(lambda r: read(r, nvlinks_up=0), lambda r: large(r, 12), lambda r: meetings(r, 12)), named=G3),
    Story(what="NVLinks that trained at half their rate", records=lambda: cluster(H100), change=lambda r: read(r, [3], nvlink_megabytes_per_second=13281), named=G3),
    Story(what="a flood of NVLink errors before the run", records=lambda: cluster(H100), change=lambda r: read(r, [3], nvlink_errors=2_000_000), named=G3),
    Story(what="a GPU that was reset while the test ran", records=lambda: cluster(H100), change=lambda r: read(r, [3], both=False, energy_joules=12.0), named=G3),
    Story(what="power limit of 300 of 700 W on all", records=lambda: cluster(H100), change=both(lambda r: read(r, power_limit_watts=300.0), lambda r: slower(r, range(8), 1.35)), named=G3),
    Story(what="clocks at 1,200 of 1,980 MHz, no reason told", records=lambda: cluster(H100), change=both(lambda r: read(r, both=False, sm_clock_hertz=1200e6), lambda r: slower(r, range(8), 1.65)), named=G3),
    Story(what="one cable between nodes at 60 %", records=lambda: cluster(H100, nodes=4, gpus=2, adapters=2), change=lambda r: meetings(r, 1.67, lambda a, b: a.node != b.node and 3 in (a.rank, b.rank)), named="GPU 1 (rank 3, node1)"),
    Story(what="ECC off on half of the GPUs", records=lambda: cluster(H100), change=lambda r: read(r, range(4), ecc_mode=[0, 0]), named=G3),
    Story(what="1 KiB in 10 ms", records=lambda: cluster(H100, nodes=2), change=lambda r: small(r, 10e-3), named="all ranks"),
)  # fmt: skip


def _pods(records: list[Record]) -> None:
    """Two pods of four GPUs on one machine, which both call node17."""
    for record in records:
        record.node = "node17"
        record.results["presence"] |= {"seen_by_cuda": 4, "seen_by_nvml": 4, "restricted": False}


def _names(records: list[Record]) -> None:
    for record in records:
        record.node = "localhost"


def _rename(ranks: Sequence[int], model: Model) -> Change:
    def change(records: list[Record]) -> None:
        for rank, other in zip(ranks, cluster(model, gpus=len(ranks)), strict=True):
            own = records[rank]
            for stage in ("before", "after"):
                own.results[stage]["reading"] |= {
                    key: other.results[stage]["reading"][key] for key in
                    ("name", "nvlinks", "nvlinks_up", "memory_total_bytes", "memory_clock_hertz", "pcie_generation", "pcie_generation_max")
                }  # fmt: skip
            presence = other.results["presence"]
            own.results["presence"] |= {
                key: presence[key]
                for key in (
                    "device_name",
                    "memory_bytes",
                    "multiprocessors",
                    "peak_tflops",
                    "held_ratio",
                    "compute_capability",
                )
            }
            for stage in ("compute", "bandwidth", "copies", "memory", "steadiness"):
                own.results[stage] = other.results[stage]

    return change


TWO_SOCKETS: Callable[[int, int], str] = lambda a, b: "one NUMA node" if (a < 4) == (b < 4) else "between NUMA nodes"  # noqa: E731
HEALTHY: tuple[Story, ...] = (
    Story(what="one H100 beside eight adapters", records=lambda: cluster(H100, gpus=1)),
    Story(what="two H100 of eight beside eight adapters, two nodes", records=lambda: cluster(H100, nodes=2, gpus=2)),
    Story(what="one GPU per node beside eight adapters", records=lambda: cluster(A100, nodes=2, gpus=1, port=200)),
    Story(what="L40S on two sockets", records=lambda: cluster(L40S, topology=TWO_SOCKETS, pair=lambda a, b: 12 if (a < 4) == (b < 4) else 6)),
    Story(what="two nodes of L40S on two sockets with two adapters", records=lambda: cluster(L40S, nodes=2, port=100, adapters=2, topology=TWO_SOCKETS, pair=lambda a, b: 12 if (a < 4) == (b < 4) else 6)),
    Story(what="H100 NVL with bridges in pairs", records=lambda: cluster(H100_NVL, gpus=4, pair=bridged(248, 30))),
    Story(what="A100 PCIe with bridges in pairs, eight of them", records=lambda: cluster(A100_PCIE, topology=TWO_SOCKETS, pair=bridged(233, 9))),
    Story(what="two A100 PCIe without a bridge", records=lambda: cluster(A100_PCIE, gpus=2), change=lambda r: read(r, nvlinks_up=0)),
    Story(what="two pods on one node", records=lambda: cluster(H100, nodes=2, gpus=4), change=_pods),
    Story(what="two machines of one host name", records=lambda: cluster(H100, nodes=2), change=_names),
    Story(what="two adapters for storage beside eight", records=lambda: cluster(H100, adapters=10), change=lambda r: ports(r, None, [8, 9], rate_gigabits=200.0)),
    Story(what="a port of a storage adapter without a cable", records=lambda: cluster(H100, nodes=2, adapters=9), change=lambda r: ports(r, None, [8], up=False)),
    Story(what="a GH200", records=lambda: cluster(GH200, gpus=1), change=lambda r: read(r, nvlinks=18, nvlinks_up=0)),
    Story(what="four GH200, one a node", records=lambda: cluster(GH200, nodes=4, gpus=1, adapters=1)),
    Story(what="ECC off on purpose", records=lambda: cluster(A10G, gpus=4, rdma=False, port=25), change=lambda r: read(r, ecc_mode=[0, 0]), expect='[gpu]\necc = "off"'),
    Story(what="clocks set on purpose", records=lambda: cluster(H100), change=lambda r: read(r, both=False, sm_clock_hertz=1410e6, throttle_reasons=["application_clocks"]), expect="[gpu]\nsm_clock_megahertz = 1410"),
    Story(what="a cloud's adapters without a speed", records=lambda: cluster(T4, nodes=2, gpus=1, rdma=False, port=25), change=lambda r: ports(r, None, [0], rate_gigabits=None), expect="[network]\nrate_gigabits = 25"),
    Story(what="four A100 PCIe and four L40S in two nodes", records=lambda: cluster(L40S, nodes=2, gpus=4, port=100, adapters=1), change=_rename(range(4, 8), A100_PCIE)),
    Story(what="a workstation with two cards", records=lambda: cluster(RTX4090, gpus=2), change=_rename([1], L40S)),
    Story(what="a DGX-1", records=lambda: cluster(V100, port=100, adapters=4, pair=lambda a, b: (46, 23, 8)[(a + b) % 3])),
    Story(what="four T4", records=lambda: cluster(T4, gpus=4, rdma=False, port=25)),
    Story(what="eight B200", records=lambda: cluster(B200)),
    Story(what="two nodes of an NVL72", records=lambda: cluster(GB200, nodes=2, gpus=4, line=14.9, adapters=4)),
    Story(what="GB200 of two racks, as the file says", records=lambda: cluster(GB200, nodes=2, gpus=4, adapters=4), expect="[cluster]\nnvlink_domain_nodes = 1"),
    Story(what="H100 PCIe in a computer of PCIe 4", records=lambda: cluster(H100_PCIE, gpus=2), change=both(lambda r: read(r, pcie_generation=4, pcie_generation_max=4), lambda r: copy_rate(r, 25e9))),
    Story(what="a virtual machine with one H100 of eight", records=lambda: cluster(H100, gpus=1), change=lambda r: read(r, nvlinks_up=0)),
    Story(what="a power limit that is meant", records=lambda: cluster(H100), change=lambda r: read(r, power_limit_watts=600.0), expect="[gpu]\npower_limit_watts = 600"),
    Story(what="a network of 2 to 1 that is meant", records=lambda: cluster(H100, nodes=4, oversubscribed=2.0), expect="[network]\noversubscription = 2.0"),
    Story(what="T4 over 25 Gbit/s Ethernet", records=lambda: cluster(T4, nodes=4, gpus=1, rdma=False, port=25, line=0.85)),
    Story(what="A10G on eight lanes, as the cloud has them", records=lambda: cluster(A10G, gpus=4, rdma=False, port=25, pair=lambda a, b: 5), change=both(lambda r: read(r, pcie_width=8, pcie_width_max=8), lambda r: copy_rate(r, 12.5e9), lambda r: large(r, 1.5)), expect="[gpu]\npcie_width = 8"),
    Story(what="a board of four A100", records=lambda: cluster(A100, gpus=4, pair=lambda a, b: 78)),
    Story(what="two of a board of four A100", records=lambda: cluster(A100, gpus=2, pair=lambda a, b: 78), change=lambda r: large(r, 232 / 78)),
    Story(what="two of eight A100 behind a switch", records=lambda: cluster(A100, gpus=2)),
    Story(what="a GPU that has gone idle at the end", records=lambda: cluster(A100), change=lambda r: read(r, [3], both=False, throttle_reasons=["idle"], pcie_generation=1, sm_clock_hertz=210e6, memory_clock_hertz=405e6, power_watts=60.0)),
)  # fmt: skip
