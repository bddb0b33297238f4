"""One fault of a machine that was drawn: what breaks, what it costs, and whom the judge has to name."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cluster.acceptance.records import Record
from tests.cluster import sound
from tests.cluster.faults.machines import Machine

RATES = (0.16, 0.25, 0.5)
"""Shares of a rate that are lost."""
EVERYBODY = "all ranks"


@dataclass(frozen=True, kw_only=True)
class Planted:
    """What was done to a machine."""

    size: float | None
    """Share of a rate that is lost; None if it costs none."""
    named: tuple[str, ...]
    """Subjects of which one has to be named; a GPU or node that is not among them must not be."""


Plant = Callable[[Machine, random.Random], Planted | None]
"""Breaks something; None if this machine has no such part."""


def _slower(seconds: Sequence[float], lost: float) -> list[float]:
    return [value / (1 - lost) for value in seconds]


def _compute(record: Record, lost: float) -> None:
    for product in record.results["compute"]["products"].values():
        product["seconds"], product["tflops"] = _slower(product["seconds"], lost), product["tflops"] * (1 - lost)
    training = record.results["training"]
    training["alone_seconds"] = _slower(training["alone_seconds"], lost)
    for epoch in training["epochs"]:
        epoch["own_seconds"] = _slower(epoch["own_seconds"], lost)


def _ring(machine: Machine, lost: float) -> None:
    """All collectives are as slow as the slowest part."""
    for record in machine.records:
        for one in record.results["collectives"].get("measurements", ()):
            if one["bytes"] > MIB:
                one["seconds"] = _slower(one["seconds"], lost)


MIB = 2**20


def _pairs(machine: Machine, slow: Callable[[Record, Record], bool], lost: float) -> int:
    """Sends between such pairs are slower; returns how many there are."""
    count = 0
    for record in machine.records:
        for met in record.results["pairs"].get("met", ()):
            if slow(record, machine.records[met["partner"]]):
                met["seconds"] /= 1 - lost
                count += 1
    return count


def _reading(record: Record, *, both: bool = True, **figures: object) -> None:
    for stage in ("before", "after") if both else ("after",):
        record.results[stage]["reading"] |= figures


def gpu_slow(machine: Machine, draw: random.Random) -> Planted | None:
    """One GPU computes slower."""
    if len(machine.records) < 2:
        return None
    record, lost = draw.choice(machine.records), draw.choice(RATES)
    _compute(record, lost)
    return Planted(size=lost, named=(record.subject,))


def eight_bits_slow(machine: Machine, draw: random.Random) -> Planted | None:
    """Products of 8-bit floats are at half of their rate on all GPUs."""
    products = [record.results["compute"]["products"].get("float8_e4m3fn") for record in machine.records]
    having = [product for product in products if product is not None]
    if len(having) < len(products):
        return None
    for product in having:
        product["seconds"], product["tflops"] = _slower(product["seconds"], 0.5), product["tflops"] / 2
    return Planted(size=0.5, named=tuple(record.subject for record in machine.records))


def node_slow(machine: Machine, draw: random.Random) -> Planted | None:
    """All GPUs of one node compute slower."""
    if machine.nodes < 2:
        return None
    node, lost = f"node{draw.randrange(machine.nodes)}", draw.choice(RATES)
    own = [record for record in machine.records if record.node == node]
    for record in own:
        _compute(record, lost)
    return Planted(size=lost, named=(f"node {node}", *(record.subject for record in own)))


def clocks_locked(machine: Machine, draw: random.Random) -> Planted | None:
    """Clocks of all GPUs are locked below their highest."""
    lost = draw.choice((0.25, 0.5))
    for record in machine.records:
        _compute(record, lost)
        _reading(record, both=False, sm_clock_hertz=1980e6 * (1 - lost), throttle_reasons=["application_clocks"])
    return Planted(size=lost, named=tuple(record.subject for record in machine.records))


def power_limit(machine: Machine, draw: random.Random) -> Planted | None:
    """The power limit of all GPUs is lower than the board's."""
    lost = draw.choice(RATES)
    for record in machine.records:
        _compute(record, lost)
        _reading(record, power_limit_watts=sound.as_it_comes(machine.card.name)["power_limit_watts"] * (1 - 1.2 * lost))
    return Planted(size=lost, named=tuple(record.subject for record in machine.records))


def memory_slow(machine: Machine, draw: random.Random) -> Planted | None:
    """The memory of one GPU is slower, and its clock does not show it."""
    if len(machine.records) < 2:
        return None
    record, lost = draw.choice(machine.records), draw.choice(RATES)
    rates = record.results["bandwidth"]["rates"]
    record.results["bandwidth"]["rates"] = {name: rate * (1 - lost) for name, rate in rates.items()}
    return Planted(size=lost, named=(record.subject,))


def memory_clock(machine: Machine, draw: random.Random) -> Planted | None:
    """The memory clock of all GPUs is half."""
    for record in machine.records:
        rates = record.results["bandwidth"]["rates"]
        record.results["bandwidth"]["rates"] = {name: rate / 2 for name, rate in rates.items()}
        _reading(record, both=False, memory_clock_hertz=machine.card.memory_mhz * 0.5e6)
    return Planted(size=0.5, named=tuple(record.subject for record in machine.records))


def _switched(machine: Machine) -> bool:
    return machine.card.links >= 12 and not machine.card.bridged and machine.per_node > 1


def nvlink_rate(machine: Machine, draw: random.Random) -> Planted | None:
    """NVLink carries less everywhere, but all links are up."""
    if not _switched(machine) or machine.nodes > 1:
        return None
    lost = draw.choice(RATES)
    _ring(machine, lost)
    _pairs(machine, lambda a, b: True, lost)
    return Planted(size=lost, named=(EVERYBODY,))


def nvlinks_down(machine: Machine, draw: random.Random) -> Planted | None:
    """Some NVLinks of one GPU are down."""
    if not _switched(machine):
        return None
    record, down = draw.choice(machine.records), draw.choice((1, 3, 6))
    _reading(record, nvlinks_up=machine.card.links - down)
    return Planted(size=down / machine.card.links, named=(record.subject,))


def nvlink_gpu(machine: Machine, draw: random.Random) -> Planted | None:
    """One GPU reaches all others of its node more slowly."""
    if not _switched(machine) or machine.card.domain:
        return None
    record, lost = draw.choice(machine.records), draw.choice(RATES)
    inside = _pairs(machine, lambda a, b: record in (a, b) and a.node == b.node, lost) // 2
    # With thousands of pairs to choose from, a GPU may have met one of its own node, or none.
    return Planted(size=lost, named=(record.subject,)) if inside > 2 else None


def lanes(machine: Machine, draw: random.Random) -> Planted | None:
    """One board is on half of its PCIe lanes."""
    if machine.card.domain or machine.card.name.startswith("NVIDIA GH"):
        return None
    record = draw.choice(machine.records)
    seconds = record.results["copies"]["seconds"]
    record.results["copies"]["seconds"] = {way: 2 * value for way, value in seconds.items()}
    _reading(record, pcie_width=8)
    return Planted(size=0.5, named=(record.subject,))


def copies_slow(machine: Machine, draw: random.Random) -> Planted | None:
    """Copies from and to one GPU are slower, but its link is intact."""
    if machine.card.name.startswith("NVIDIA G") and machine.card.name.endswith(("480GB", "GB200")):
        return None  # sound ones differ by more: 180 to 380 GB/s
    record, lost = draw.choice(machine.records), draw.choice((0.25, 0.35, 0.5))
    seconds = record.results["copies"]["seconds"]
    record.results["copies"]["seconds"] = {way: value / (1 - lost) for way, value in seconds.items()}
    return Planted(size=lost, named=(record.subject,))


def _change_port(record: Record, position: int, **changes: object) -> str:
    for stage in ("network", "network_after"):
        ports = copy.deepcopy(record.results[stage]["ports"])
        ports[position] |= changes
        record.results[stage] = {**record.results[stage], "ports": ports}
    return str(record.results["network"]["ports"][position]["name"])


def _full(machine: Machine) -> bool:
    """An adapter for each GPU, as many as make a row of siblings."""
    return machine.rdma and machine.adapters == machine.per_node and machine.adapters >= 3


def port_down(machine: Machine, draw: random.Random) -> Planted | None:
    """One port of one node is down."""
    if not machine.rdma or (machine.nodes == 1 and not _full(machine)):
        return None
    record = draw.choice(machine.leaders)
    _change_port(record, draw.randrange(machine.adapters), up=False)
    return Planted(size=1 / machine.adapters, named=(f"node {record.node}",))


def port_rate(machine: Machine, draw: random.Random) -> Planted | None:
    """One port of one node runs at a quarter of its rate."""
    if not machine.rdma or (machine.nodes == 1 and not _full(machine)):
        return None
    record = draw.choice(machine.leaders)
    _change_port(record, draw.randrange(machine.adapters), rate_gigabits=machine.port_gigabits / 4)
    return Planted(size=0.75 / machine.adapters, named=(f"node {record.node}",))


def rail_down(machine: Machine, draw: random.Random) -> Planted | None:
    """The same port is down on every node."""
    if not _full(machine):
        return None
    position = draw.randrange(machine.adapters)
    for record in machine.leaders:
        _change_port(record, position, up=False)
    return Planted(size=1 / machine.adapters, named=tuple(f"node {record.node}" for record in machine.leaders))


def half_of_the_rails(machine: Machine, draw: random.Random) -> Planted | None:
    """Every second adapter is not used, though its port is up."""
    if not _full(machine) or machine.nodes < 2 or machine.card.domain or not _switched(machine):
        return None
    _ring(machine, 0.5)
    _pairs(machine, lambda a, b: a.node != b.node, 0.5)
    return Planted(size=0.5, named=(EVERYBODY,))


def adapter_lanes(machine: Machine, draw: random.Random) -> Planted | None:
    """One adapter is on half of its PCIe lanes."""
    if not machine.rdma:
        return None
    record = draw.choice(machine.leaders)
    _change_port(record, draw.randrange(machine.adapters), pcie_width=8)
    return Planted(size=0.5, named=(f"node {record.node}",))


def adapter_slow(machine: Machine, draw: random.Random) -> Planted | None:
    """One GPU's adapter is slower with all others."""
    if not machine.rdma or machine.nodes < 2 or machine.card.domain or machine.adapters < machine.per_node:
        return None
    record, lost = draw.choice(machine.records), draw.choice(RATES)
    met = _pairs(machine, lambda a, b: record in (a, b) and a.node != b.node, lost) // 2
    named = (record.subject, f"node {record.node}") if machine.per_node == 1 else (record.subject,)
    return Planted(size=lost, named=named) if met > 2 else None


def _alone(machine: Machine, slow: Callable[[int, int | None, str], bool], lost: float) -> None:
    """What `ib_write_bw` measures between a rank and a server is less."""
    for record in machine.records:
        for row in record.results["adapters"].get("measured", ()):
            if slow(record.rank, row["server"], row["adapter"]):
                row["gigabits"] *= 1 - lost


def adapter_itself(machine: Machine, draw: random.Random) -> Planted | None:
    """One adapter carries less, and NCCL uses others."""
    if not machine.rdma:
        return None
    record, lost = draw.choice(machine.leaders), draw.choice(RATES)
    name = draw.choice(record.results["network"]["ports"])["name"]
    _alone(machine, lambda rank, server, adapter: adapter == name and record.rank in (rank, server), lost)
    return Planted(size=lost, named=(f"node {record.node}",))


def cable(machine: Machine, draw: random.Random) -> Planted | None:
    """The cable or switch between one adapter of two nodes carries less, and NCCL uses others."""
    if not machine.rdma or machine.nodes < 2:
        return None
    client, lost = draw.choice(machine.leaders), draw.choice(RATES)
    rows = [row for row in client.results["adapters"]["measured"] if row["server"] is not None]
    if not rows:
        return None
    row = draw.choice(rows)
    row["gigabits"] *= 1 - lost
    return Planted(size=lost, named=(f"node {client.node}", f"node {machine.records[row['server']].node}"))


def node_network(machine: Machine, draw: random.Random) -> Planted | None:
    """One node of several is slow with all others."""
    if machine.nodes < 3 or machine.card.domain:
        return None
    node, lost = f"node{draw.randrange(machine.nodes)}", draw.choice(RATES)
    _pairs(machine, lambda a, b: (a.node == node) != (b.node == node), lost)
    return Planted(size=lost, named=(f"node {node}",))


def network_rate(machine: Machine, draw: random.Random) -> Planted | None:
    """The network between all nodes carries less."""
    if machine.nodes < 2 or not machine.rdma or machine.card.domain or not machine.card.links:
        return None
    lost = draw.choice(RATES)
    _ring(machine, lost)
    _pairs(machine, lambda a, b: a.node != b.node, lost)
    return Planted(size=lost, named=(EVERYBODY,))


def rack_not_formed(machine: Machine, draw: random.Random) -> Planted | None:
    """The nodes of an NVL72 reach each other only through their adapters."""
    if not machine.card.domain or machine.nodes < 2:
        return None
    lost = 1 - 46 / 740
    _ring(machine, 1 - 4 * 46 / 740)
    _pairs(machine, lambda a, b: a.node != b.node, lost)
    for record in machine.records:
        _reading(record, fabric=None)
    return Planted(size=lost, named=(EVERYBODY,))


def nvlink_lost(machine: Machine, draw: random.Random) -> Planted | None:
    """One GPU loses an NVLink while the test runs."""
    if not machine.card.links or machine.per_node < 2:
        return None
    record = draw.choice(machine.records)
    _reading(record, both=False, nvlinks_up=machine.card.links - 1)
    return Planted(size=1 / machine.card.links, named=(record.subject,))


def _state(name: str, *, both: bool = True, **figures: object) -> Plant:
    def plant(machine: Machine, draw: random.Random) -> Planted | None:
        record = draw.choice(machine.records)
        _reading(record, both=both, **figures)
        return Planted(size=None, named=(record.subject,))

    plant.__doc__ = name
    return plant


PLANTS: tuple[Plant, ...] = (
    gpu_slow, eight_bits_slow, node_slow, clocks_locked, power_limit, memory_slow, memory_clock, nvlink_rate, nvlinks_down, nvlink_gpu,
    lanes, copies_slow, port_down, port_rate, rail_down, half_of_the_rails, adapter_lanes, adapter_slow, adapter_itself,
    cable, node_network, network_rate, rack_not_formed,
    _state("Uncorrected memory errors of one GPU.", ecc_errors=3),
    _state("More than 512 rows of one GPU are remapped.", remapped_rows=[300, 260, 0, 0]),
    _state("The NVLink fabric of a GPU has not come up.", fabric={"state": "in progress", "status": 0}),
    _state("The driver asks for a reset of one GPU.", recovery_action="drain and reset"),
    _state("One GPU's chip has too many errors.", sram_errors=[12, 1]),
    _state("One GPU had XID 79 before the run.", xids_before=[79]),
    _state("One GPU is reset while the test runs.", both=False, ecc_corrected=0),
    nvlink_lost,
)  # fmt: skip
