"""Healthy machines, drawn: models, nodes, topologies, adapters, and rates as they were published for them.

The rates are those of public measurements, with their spread; nothing here is computed from the bars of the judge.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy

from cluster.acceptance.checks.adapters import rounds
from cluster.acceptance.checks.collectives import BUS_FACTORS
from cluster.acceptance.checks.pairs import schedule
from cluster.acceptance.pace import summary
from cluster.acceptance.records import Record
from tests.cluster import sound
from tests.cluster.faults import noise
from tests.cluster.faults.noise import Jitter
from vgpu import get_spec

KIB, MIB = 2**10, 2**20
LARGE, SMALL = 256 * MIB, KIB
SIZES = {KIB: 50, 64 * KIB: 50, MIB: 50, 16 * MIB: 50, LARGE: 15, 1024 * MIB: 15}
"""Messages of a real run, with their repetitions (`options.REAL_GPU`, `collectives`)."""
SAMPLES = {"product": 20, "products": 1000, "copy": 15, "copies": 400, "messages": 5000, "alone": 5}
"""Repetitions of a real run; of those that it times by seconds, about as many as there are."""
IMAGES, BATCH = 50_000, 128
NOISE = 0.015
"""Standard deviation between GPUs of one model: 8 % from end to end of a fleet (Sinha et al. 2022, arXiv:2208.11035)."""
MOST_SIGMAS = 3.0
EIGHT_BITS = (0.55, 0.72)
"""Share of the peak of 8 bits that products of this size reach: 1,100 to 1,400 TFLOPS on an H100."""
PCIE_LANE = {3: 0.985e9, 4: 1.969e9, 5: 3.938e9}


@dataclass(frozen=True, kw_only=True)
class Card:
    """What is published of a model, in GB/s and TFLOPS."""

    name: str
    spec: str | None = None
    tflops: dict[str, float] = field(default_factory=dict)
    """Reached by large products; of models that the virtual GPU does not know."""
    memory_gib: float = 79.0
    memory_gb: tuple[float, float] = (0.0, 0.0)
    """What copies reach."""
    memory_mhz: float = 0.0
    sms: int = 0
    pcie: int = 4
    links: int = 0
    ring: tuple[float, float] = (0.0, 0.0)
    """Bus bandwidth in a node, all GPUs of it."""
    reduce: tuple[float, float] = (0.0, 0.0)
    """The same of all_reduce, if a switch adds up."""
    sizes: tuple[int, ...] = (1, 2, 4, 8)
    capability: tuple[int, int] = (9, 0)
    bridged: bool = False
    domain: bool = False


CARDS: tuple[Card, ...] = (
    Card(name="Tesla T4", spec="T4", memory_gib=14.74, memory_gb=(235, 250), memory_mhz=5001, sms=40, pcie=3, ring=(5, 9), capability=(7, 5)),
    Card(name="Tesla V100-SXM2-16GB", spec="V100", memory_gib=15.8, memory_gb=(720, 800), memory_mhz=877, sms=80, pcie=3, links=6, ring=(120, 135), sizes=(4, 8), capability=(7, 0)),
    Card(name="NVIDIA A100-SXM4-40GB", spec="A100-40GB", memory_gib=39.4, memory_gb=(1220, 1400), memory_mhz=1215, sms=108, links=12, ring=(225, 240), sizes=(4, 8), capability=(8, 0)),
    Card(name="NVIDIA A100-SXM4-80GB", spec="A100-80GB", memory_gib=79.15, memory_gb=(1600, 1800), memory_mhz=1593, sms=108, links=12, ring=(225, 240), sizes=(8,), capability=(8, 0)),
    Card(name="NVIDIA H100 80GB HBM3", spec="H100", memory_gib=79.1, memory_gb=(2750, 3050), memory_mhz=2619, sms=132, pcie=5, links=18, ring=(355, 378), reduce=(430, 480), sizes=(8,)),
    Card(name="NVIDIA H200", spec="H200", memory_gib=139.8, memory_gb=(4000, 4350), memory_mhz=3201, sms=132, pcie=5, links=18, ring=(355, 378), reduce=(430, 480), sizes=(8,)),
    Card(name="NVIDIA B200", spec="B200", memory_gib=178.3, memory_gb=(6300, 7000), memory_mhz=3996, sms=148, pcie=5, links=18, ring=(715, 770), reduce=(780, 850), sizes=(8,), capability=(10, 0)),
    Card(name="NVIDIA L4", spec="L4", memory_gib=22.2, memory_gb=(235, 260), memory_mhz=6251, sms=58, ring=(8, 15), capability=(8, 9)),
    Card(name="NVIDIA A10G", spec="A10G", memory_gib=22.2, memory_gb=(470, 530), memory_mhz=6251, sms=80, ring=(7, 12), capability=(8, 6)),
    Card(name="NVIDIA GeForce RTX 4090", spec="RTX4090", memory_gib=23.6, memory_gb=(880, 940), memory_mhz=10501, sms=128, ring=(8, 16), sizes=(1, 2, 4), capability=(8, 9)),
    Card(name="NVIDIA L40S", tflops={"float32": 60, "float16": 210, "bfloat16": 210}, memory_gib=44.4, memory_gb=(690, 790), memory_mhz=9001, sms=142, ring=(8, 18), capability=(8, 9)),
    Card(name="NVIDIA A100 80GB PCIe", tflops={"float32": 17, "float16": 230, "bfloat16": 235}, memory_gib=79.15, memory_gb=(1500, 1720), memory_mhz=1512, sms=108, links=12, ring=(12, 22), sizes=(1, 2, 4), capability=(8, 0), bridged=True),
    Card(name="NVIDIA H100 NVL", tflops={"float32": 48, "float16": 530, "bfloat16": 540}, memory_gib=93.1, memory_gb=(3300, 3600), memory_mhz=2619, sms=132, pcie=5, links=12, ring=(25, 42), sizes=(2, 4, 8), bridged=True),
    Card(name="NVIDIA GH200 480GB", tflops={"float32": 55, "float16": 650, "bfloat16": 660}, memory_gib=94.5, memory_gb=(3400, 3700), memory_mhz=2619, sms=132, pcie=5, sizes=(1,)),
    Card(name="NVIDIA GB200", tflops={"float32": 65, "float16": 1600, "bfloat16": 1650}, memory_gib=184.0, memory_gb=(6500, 7200), memory_mhz=3996, sms=152, pcie=5, links=18, ring=(715, 770), reduce=(780, 850), sizes=(4,), capability=(10, 0), domain=True),
)  # fmt: skip
BRIDGE_GB = {"NVIDIA A100 80GB PCIe": (225, 240), "NVIDIA H100 NVL": (235, 260)}
NETWORKS = (
    # RDMA, Gbit/s of a port, share of the line that NCCL reaches
    (True, 400.0, (0.88, 0.96)), (True, 200.0, (0.86, 0.96)), (True, 100.0, (0.88, 0.96)),
    (False, 25.0, (0.8, 0.92)), (False, 100.0, (0.45, 0.7)),
)  # fmt: skip


def alone(records: list[Record], gigabits: float, spread: Callable[[], float] = lambda: 1.0) -> None:
    """Each adapter on its own, as `ib_write_bw` would tell: to itself, and to the next node."""
    leaders = {record.rank: record for record in records if record.local_rank == 0}
    for record in records:
        record.results["adapters"] = {"skipped": "local rank 0 measures the adapters", "asked": True}
    for leader in leaders.values():
        names = [port["name"] for port in leader.results["network"]["ports"] if port["rdma"]]
        servers = [server for pairs in rounds(list(leaders)) for server, client in pairs if client == leader.rank]
        leader.results["adapters"] = {
            "tool": "ib_write_bw",
            "measured": [
                {"adapter": name, "server": server, "gigabits": gigabits * spread(), "reason": None}
                for server in (None, *servers) for name in names
            ],
        }  # fmt: skip


@dataclass(kw_only=True)
class Machine:
    """What was drawn: its records, and what faults need to know of it."""

    card: Card
    nodes: int
    per_node: int
    rdma: bool
    port_gigabits: float
    adapters: int
    records: list[Record]
    random: random.Random
    jitter: Jitter

    @property
    def fabric(self) -> str:
        """What joins the ranks: a key of noise.SMALL."""
        return "node" if self.nodes == 1 or self.card.domain else "rdma" if self.rdma else "ethernet"

    @property
    def leaders(self) -> list[Record]:
        """The rank of each node that reads the ports."""
        return [record for record in self.records if record.local_rank == 0]


def _near(draw: random.Random, sigma: float = NOISE) -> float:
    return 1.0 + max(-MOST_SIGMAS * sigma, min(MOST_SIGMAS * sigma, draw.gauss(0.0, sigma)))


def draw(seed: int, *, card: str | None = None, nodes: int | None = None) -> Machine:
    """A healthy machine; the same for the same arguments."""
    generator = random.Random(seed)
    of = next(one for one in CARDS if one.name == card) if card else generator.choice(CARDS)
    count = nodes or generator.choices((1, 2, 4, 8, 16, 32, 64), (45, 20, 15, 10, 6, 3, 1))[0]
    per_node = generator.choice(of.sizes)
    fast = of.links >= 12 and not of.bridged
    rdma, gigabits, share = NETWORKS[0 if of.pcie == 5 and fast else generator.randrange(1, len(NETWORKS))]
    adapters = max(1, generator.choice((per_node, per_node, max(1, per_node // 2), 8)) if rdma else 1)
    machine = Machine(card=of, nodes=count, per_node=per_node, rdma=rdma, port_gigabits=gigabits, adapters=adapters,
                      records=[], random=generator, jitter=Jitter(seed))  # fmt: skip
    ranks = count * per_node
    products = _products(of, generator)
    bridge = generator.uniform(*BRIDGE_GB.get(of.name, (1, 1))) * 1e9
    inside = generator.uniform(*of.ring) * 1e9 if per_node > 1 else 0.0
    if of.bridged and per_node == 2:
        inside = bridge
    used = min(adapters, per_node) if rdma else 1
    line = gigabits / 8 * 1e9 * generator.uniform(*share)
    between = line * used
    if of.domain:
        between, line = inside * per_node, inside
    copy = generator.uniform(0.76, 0.87) * 16 * PCIE_LANE[of.pcie]
    if of.name.startswith("NVIDIA G") and "00" in of.name and "Force" not in of.name:
        copy = generator.uniform(180e9, 380e9)
    memory = generator.uniform(*of.memory_gb) * 1e9
    rates = {operation: _rate(machine, operation, inside, between, line) for operation in BUS_FACTORS}
    sockets = per_node > 2 and generator.random() < 0.5
    for rank in range(ranks):
        machine.records.append(_record(machine, rank, products, memory, copy, sockets))
    if ranks > 1:
        _talk(machine, rates)
        _meet(machine, inside, between / per_node, bridge)
    if rdma:
        slot = 0.87 * 16 * PCIE_LANE[of.pcie] * 8e-9
        alone(machine.records, min(gigabits * generator.uniform(0.92, 0.98), slot * generator.uniform(0.92, 0.98)),
              lambda: _near(generator, 0.007))  # fmt: skip
    return machine


def _products(card: Card, generator: random.Random) -> dict[str, tuple[float, float | None, float | None]]:
    """Reached, peak and best published, by precision."""
    reached = generator.uniform(0.86, 1.0)
    if card.spec is None:
        return {name: (value * reached, None, None) for name, value in card.tflops.items()}
    from labkit.device import _peaks

    peaks = _peaks(get_spec(card.spec))
    names = [name for name in ("float32", "float16", "bfloat16") if name in peaks.tflops]
    if card.capability[0] < 8:
        names = names[:2]
    held = peaks.held_ratio
    products: dict[str, tuple[float, float | None, float | None]] = {
        name: (peaks.tflops[name] * held.get(name, 0.8) * reached, peaks.tflops[name], held.get(name)) for name in names
    }
    if "float8" in peaks.tflops:
        share = min(held["bfloat16"], generator.uniform(*EIGHT_BITS)) * reached
        products["float8_e4m3fn"] = (peaks.tflops["float8"] * share, None, None)
    return products


def _rate(machine: Machine, operation: str, inside: float, between: float, line: float) -> float:
    """Bus bandwidth of a large message."""
    card, nodes, per_node, generator = machine.card, machine.nodes, machine.per_node, machine.random
    rate = inside
    if operation == "all_reduce" and card.reduce[0] and per_node * nodes >= 4 and (nodes == 1 or card.domain):
        rate = generator.uniform(*card.reduce) * 1e9
    if nodes > 1 and not card.domain:
        ranks = nodes * per_node
        limit = between
        if operation == "point_to_point":
            limit = line
        elif operation == "all_to_all":
            limit = between / per_node * (ranks - 1) / (ranks - per_node)
        rate = min(rate, limit) if rate else limit
    if operation == "all_to_all":
        rate *= generator.uniform(0.85, 1.0)
    return rate * _near(generator, 0.005)


def _record(
    machine: Machine, rank: int, products: dict[str, tuple[float, float | None, float | None]], memory: float, copy: float,
    sockets: bool,
) -> Record:  # fmt: skip
    card, generator, ranks = machine.card, machine.random, machine.nodes * machine.per_node
    number, local = divmod(rank, machine.per_node)
    half = machine.per_node / 2
    record = sound.record(rank, ranks)
    record.node, record.local_rank = f"node{number}", local
    bus = {
        "name": card.name, "pcie_generation": card.pcie, "pcie_generation_max": card.pcie, "nvlinks": card.links,
        "nvlinks_up": card.links if machine.per_node > 1 else 0, "memory_clock_hertz": card.memory_mhz * 1e6,
        "memory_total_bytes": card.memory_gib * 2**30, "uuid": f"GPU-{rank}",
        "topology": {
            str(other): "between NUMA nodes" if sockets and (other < half) != (local < half)
            else "PCIe switches" if card.ring[0] >= 12 else "one NUMA node"
            for other in range(machine.per_node)
        },
    }  # fmt: skip
    if card.domain:
        bus["fabric"] = {"state": "completed", "status": 0, "clique": 1, "cluster": "ab" * 16, "degraded": False}
    bus |= sound.as_it_comes(card.name)
    record.results["before"]["reading"] |= bus
    record.results["after"]["reading"] |= {**bus, "sm_clock_hertz": 1860e6 * _near(generator, 0.02)}
    presence = record.results["presence"]
    presence |= {
        "index": local, "device_name": card.name, "memory_bytes": card.memory_gib * 2**30, "multiprocessors": card.sms,
        "compute_capability": list(card.capability), "uuid": f"{rank}", "seen_by_cuda": machine.per_node,
        "seen_by_nvml": machine.per_node, "boot_id": str(number), "peak_tflops": None, "held_ratio": None,
    }  # fmt: skip
    if card.spec:
        presence["peak_tflops"] = {name: peak for name, (_, peak, _) in products.items() if peak}
        presence["held_ratio"] = {name: held for name, (_, _, held) in products.items() if held}
    speed = _near(generator)
    work, jitter = 2 * 8192 * 8192 * 2048, machine.jitter
    record.results["compute"]["products"] = {
        name: product(work, work / (rate * speed * 1e12) * jitter.of(noise.PRODUCT, SAMPLES["product"]))
        for name, (rate, _, _) in products.items()
    }
    train(record, ranks, speed, jitter)
    rate = memory * _near(generator, 0.005)
    record.results["bandwidth"] = {"bytes": LARGE, "rates": {"copy": rate, "triad": rate * 1.02}}
    total = int(card.memory_gib * 2**30)
    record.results["memory"] |= {"tested_bytes": int(0.88 * total), "total_bytes": total}
    far = 0.94 if sockets and local >= machine.per_node / 2 else 1.0
    usual = {way: LARGE / (copy * far * _near(generator)) for way in ("to_device", "to_host")}
    record.results["copies"] = {
        "bytes": LARGE,
        "seconds": {
            way: float(numpy.median(value * jitter.of(noise.COPY, SAMPLES["copy"]))) for way, value in usual.items()
        },
    }
    half = work / (products["float16"][0] * speed * 1e12)
    record.results["steadiness"] = {
        "products": figures(half * jitter.of(noise.PRODUCTS, SAMPLES["products"])),
        "copies": {
            way: figures(value / 8 * jitter.of(noise.COPIES, SAMPLES["copies"])) for way, value in usual.items()
        },
    }
    ports = [_port(machine, adapter) for adapter in range(machine.adapters)]
    for stage in ("network", "network_after"):
        record.results[stage] = {"ports": ports, "peer_memory": True} if local == 0 else sound.NOT_READ
    return record


def product(work: float, seconds: numpy.ndarray) -> dict[str, Any]:
    """As a worker records it."""
    return {
        **sound.product(seconds=1.0, tflops=work / float(numpy.median(seconds)) / 1e12),
        "seconds": seconds.tolist(),
    }


def figures(seconds: numpy.ndarray) -> dict[str, Any]:
    """As a worker records many repetitions."""
    return summary(seconds.tolist())


def train(record: Record, ranks: int, speed: float, jitter: Jitter) -> None:
    """An epoch of CIFAR-10, twelve steps at least: the first two choose kernels."""
    steps = max(12, IMAGES // ranks // BATCH)
    own = 0.005 / speed * jitter.of(noise.STEPS, steps)
    own[:2] *= (50, 10)
    losses = [2.3 - 1.3 * step / steps for step in range(steps)]
    record.results["training"] |= {
        "alone_seconds": (0.012 / speed * jitter.of(noise.PRODUCT, SAMPLES["alone"])).tolist(),
        "epochs": [{"losses": losses, "own_seconds": own.tolist(), "images_per_second": 9000.0}],
    }


def _talk(machine: Machine, rates: dict[str, float]) -> None:
    """Collectives: all ranks are through at about the same time, so that each repetition varies for all alike."""
    ranks, jitter, fabric = len(machine.records), machine.jitter, machine.fabric
    start = (40e-6 + 2e-6 * ranks) if fabric == "node" else (100e-6 + 6e-6 * ranks)
    small, large = noise.SMALL[fabric], noise.LARGE[fabric]
    rows = []
    for operation, factor in BUS_FACTORS.items():
        for size, count in SIZES.items():
            usual = start / 2 if size == SMALL else start + factor(ranks) * size / rates[operation]
            rows.append((operation, size, usual * jitter.of(small if size <= MIB else large, count)))
    steady = figures(start / 2 * jitter.of(small, SAMPLES["messages"]))
    for record in machine.records:
        own = 1 - 0.01 * machine.random.random()
        record.results["collectives"]["measurements"] = [
            {"operation": operation, "bytes": size, "wrong": 0, "seconds": (own * seconds).tolist()}
            for operation, size, seconds in rows
        ]
        record.results["collectives"]["steady"] = {"operation": "all_reduce", "bytes": KIB, **steady}


def _port(machine: Machine, number: int) -> dict[str, Any]:
    (port, *_) = sound.ports()
    kind = "InfiniBand" if machine.rdma else "Ethernet"
    own = {"pcie_width": 16, "pcie_width_max": 16, "pcie_generation": machine.card.pcie, "pcie_generation_max": 5}
    return {**port, "name": f"mlx5_{number}/1" if machine.rdma else "ens1", "kind": kind, "rdma": machine.rdma,
            "rate_gigabits": machine.port_gigabits, **own, "counters": dict(port["counters"])}  # fmt: skip


def _meet(machine: Machine, inside: float, line: float, bridge: float) -> None:
    """Seconds of every pair; in a bridged node each even GPU has a bridge to the next one."""
    card, generator = machine.card, machine.random
    met: dict[int, list[dict[str, Any]]] = {record.rank: [] for record in machine.records}
    switched = machine.per_node > 4 or card.links == 0 or card.bridged or card.domain
    for pairs in schedule(len(machine.records), seed=generator.randrange(1000)):
        for a, b in pairs:
            here, there = machine.records[a], machine.records[b]
            rate = line
            if here.node == there.node:
                rate = inside
                if card.bridged and here.local_rank // 2 == there.local_rank // 2:
                    rate = bridge
                elif card.links == 6:  # a DGX-1's mesh: one or two links, or through the host
                    rate = generator.choice((23e9, 46e9, 8e9))
                elif not switched:
                    rate = inside / 3
                elif not card.links or card.bridged:
                    rate = inside * generator.uniform(0.8, 1.15)
            seconds = (40e-6 if here.node == there.node else 80e-6) + LARGE / (rate * _near(generator, 0.01))
            met[a].append({"partner": b, "seconds": seconds, "wrong": 0})
            met[b].append({"partner": a, "seconds": seconds, "wrong": 0})
    for record in machine.records:
        record.results["pairs"] = {"bytes": LARGE, "met": met[record.rank]}
