"""Changes of many fields at once, as real faults leave them: what the list of outsider.py does to records."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from typing import Any

from cluster.acceptance.checks.collectives import BUS_FACTORS
from cluster.acceptance.pace import summary
from cluster.acceptance.records import Record
from tests.cluster import sound
from tests.cluster.faults.changes import (
    adapter_rows,
    on,
    paced,
    some_longer,
)
from tests.cluster.faults.reported import (
    MIB,
    Change,
    Model,
    both,
    read,
)  # fmt: skip

GIB = 2**30
Sample = dict[str, Any]


H800 = Model(
    name="NVIDIA H800", gib=79.1, mhz=2619, memory=2900, sms=132, pcie=5, links=8, ring=158, tflops=680, peak=989
)
H20 = Model(
    name="NVIDIA H20", gib=95.1, mhz=2619, memory=3300, sms=78, pcie=5, links=18, ring=366, tflops=137, peak=148
)
B300 = Model(
    name="NVIDIA B300 SXM6 AC",
    gib=268,
    mhz=3996,
    memory=6800,
    sms=148,
    pcie=5,
    links=18,
    ring=740,
    tflops=1650,
    peak=2250,
)
H200_NVL = Model(
    name="NVIDIA H200 NVL", gib=139.8, mhz=3201, memory=4150, sms=132, pcie=5, links=18, ring=34, tflops=560, peak=835
)
RTX_PRO = Model(
    name="NVIDIA RTX PRO 6000 Blackwell Server Edition",
    gib=94.9,
    mhz=12481,
    memory=1480,
    sms=188,
    pcie=5,
    ring=36,
    tflops=370,
)
L4 = Model(name="NVIDIA L4", gib=22.5, mhz=6251, memory=255, sms=58, pcie=4, ring=9, tflops=62, peak=121, held=0.6)
DGX2 = Model(
    name="Tesla V100-SXM3-32GB", gib=31.7, mhz=958, memory=790, sms=80, pcie=3, links=6, ring=122, tflops=100, peak=125
)


def ranks_of(node: int, per_node: int = 8) -> range:
    return range(node * per_node, (node + 1) * per_node)


def train_rate(factor: float) -> Change:
    """Every rank waits for the slowest one in the all-reduce of its gradients."""

    def change(records: list[Record]) -> None:
        for record in records:
            for epoch in record.results["training"]["epochs"]:
                epoch["images_per_second"] /= factor

    return change


def under_load(each: Callable[[Sample, float, int], None], ranks: Sequence[int] | None = None) -> Change:
    """Minutes of load on all; `each` changes a sample of these ranks, given how far the load is (0 to 1) and its rank."""

    def change(records: list[Record]) -> None:
        if "series" not in records[0].results["load"]:
            paced(0.95)(records)
        for rank, record in enumerate(records):
            if ranks is not None and rank not in ranks:
                continue
            load = record.results["load"]
            watts = sum(sample["watts"] for sample in load["series"])
            for number, sample in enumerate(load["series"]):
                each(sample, number / (len(load["series"]) - 1), rank)
            load["products"] = int(5 * sum(sample["products_per_second"] for sample in load["series"]))
            after = record.results["after"]["reading"]
            after["energy_joules"] += 5 * (sum(sample["watts"] for sample in load["series"]) - watts)

    return change


def sampled(share: float, watts: float, megahertz: float, celsius: float, begins: float = 0.0) -> Callable[..., None]:
    def each(sample: Sample, at: float, rank: int) -> None:
        if at >= begins:
            sample["products_per_second"] *= share
            sample |= {
                "watts": watts,
                "sm_clock_hertz": megahertz * 1e6,
                "celsius": celsius,
                "throttle_reasons": ["power_cap"],
            }

    return each


def clogged(sample: Sample, at: float, rank: int) -> None:
    sample["products_per_second"] *= 1 - 0.24 * at
    sample |= {"celsius": round(45 + 38 * at), "watts": 1000.0, "sm_clock_hertz": 1e6 * (1850 - 400 * at)}


def cool(sample: Sample, at: float, rank: int) -> None:
    sample |= {"celsius": 45, "watts": 1000.0, "sm_clock_hertz": 1.85e9}


def sheet(watts: float, megahertz: float, drawn: float) -> Change:
    """Power limit and clocks that the model has, instead of those of an H100."""
    limits = {"power_limit_watts": watts, "power_limit_default_watts": watts, "sm_clock_max_hertz": 1e6 * megahertz}
    return both(
        lambda r: read(r, **limits), lambda r: read(r, both=False, power_watts=drawn, sm_clock_hertz=1e6 * megahertz)
    )


def copy_time(factor: float, ranks: Sequence[int], *ways: str) -> Change:
    def change(records: list[Record]) -> None:
        for rank in ranks:
            results = records[rank].results
            for way in ways or ("to_device", "to_host"):
                results["copies"]["seconds"][way] *= factor
                results["steadiness"]["copies"][way] = sound.pace(
                    factor * results["steadiness"]["copies"][way]["p50_seconds"]
                )

    return change


def counters(node: str | None, numbers: Sequence[int], first: dict[str, int], then: dict[str, int]) -> Change:
    """Of these ports, before and after the run."""

    def change(records: list[Record]) -> None:
        for record in records:
            if record.local_rank == 0 and node in (None, record.node):
                for stage, values in (("network", first), ("network_after", then)):
                    own = copy.deepcopy(record.results[stage])
                    for number in numbers:
                        own["ports"][number]["counters"] |= values
                    record.results[stage] = own

    return change


def all_ports(make: Callable[[int], dict[str, Any]], count: int, **more: Any) -> Change:
    """Other ports on all nodes."""

    def change(records: list[Record]) -> None:
        for record in records:
            if record.local_rank == 0:
                for stage in ("network", "network_after"):
                    own = [make(number) for number in range(count)]
                    record.results[stage] = {"peer_memory": True, **more, "ports": own}

    return change


def port(name: str, gigabits: float, kind: str = "Ethernet", *, rdma: bool = True, up: bool = True) -> dict[str, Any]:
    return {
        "name": name, "kind": kind, "rdma": rdma, "up": up, "rate_gigabits": gigabits, "pcie_width": 16, "pcie_width_max": 16,
        "pcie_generation": 5, "pcie_generation_max": 5, "counters": {"symbol_error": 0, "link_downed": 0} if rdma else {},
    }  # fmt: skip


def uneven(times: Sequence[float]) -> Change:
    """Repetitions of a large message take so many times as long, in turn."""

    def change(records: list[Record]) -> None:
        for record in records:
            for row in record.results["collectives"]["measurements"]:
                if row["bytes"] > MIB:
                    row["seconds"] = [times[n % len(times)] * row["seconds"][0] for n in range(20)]

    return change


def once(operation: str, seconds: float) -> Change:
    """One repetition of a large message waits for a link to come back."""

    def change(records: list[Record]) -> None:
        for record in records:
            for row in record.results["collectives"]["measurements"]:
                if row["operation"] == operation and row["bytes"] > MIB:
                    row["seconds"] = [*row["seconds"], *row["seconds"], seconds]

    return change


def across(a: Record, b: Record) -> bool:
    return a.node != b.node


def apart_on_rails(a: Record, b: Record) -> bool:
    return a.node != b.node and a.local_rank != b.local_rank


def between(*ranks: int) -> Callable[[Record, Record], bool]:
    return lambda a, b: {a.rank, b.rank} == set(ranks)


def with_rank(rank: int) -> Callable[[Record, Record], bool]:
    return lambda a, b: rank in (a.rank, b.rank)


def later(seconds: float) -> Change:
    """The run takes so much longer; idle boards draw power then."""

    def change(records: list[Record]) -> None:
        for record in records:
            record.results["after"]["time"] += seconds
            record.results["after"]["reading"]["energy_joules"] += 80.0 * seconds

    return change


def each_of(stage: str, ranks: Sequence[int] | None, edit: Callable[[dict[str, Any]], Any]) -> Change:
    """Edit a stage's results in place."""
    return on(ranks, lambda record: edit(record.results[stage]))


def took(stage: str, seconds: float, ranks: Sequence[int]) -> Change:
    return each_of("took", ranks, lambda own: own.update({stage: seconds}))


def of_losses(first: Sequence[float], second: Sequence[float], ranks: Sequence[int]) -> Change:
    def edit(own: dict[str, Any]) -> None:
        own["epochs"][0]["losses"], own["epochs"][1]["losses"] = list(first), list(second)

    return each_of("training", ranks, edit)


def tails(share: float, factor: float, ranks: Sequence[int]) -> Change:
    """A share of products and copies takes so many times as long."""

    def edit(own: dict[str, Any]) -> None:
        own["products"] = some_longer(own["products"], share, factor)
        own["copies"] = {way: some_longer(one, share, factor) for way, one in own["copies"].items()}

    return each_of("steadiness", ranks, edit)


def adapters_of(node: str, gigabits: float) -> Change:
    """All adapters of one node send at this rate; those of the others at the rate of the line."""

    def change(records: list[Record]) -> None:
        for record, row in adapter_rows(records):
            if record.node == node:
                row["gigabits"] = gigabits

    return change


def one_gone(records: list[Record]) -> None:
    """The last GPU of the last node fell off the bus at boot: neither CUDA nor NVML shows it."""
    gone = records.pop()
    for record in records:
        results = record.results
        results["collectives"]["ranks"] = len(records)
        results["pairs"]["met"] = [met for met in results["pairs"]["met"] if met["partner"] != gone.rank]
        if record.node == gone.node:
            results["presence"] |= {"seen_by_cuda": 7, "seen_by_nvml": 7}
            for stage in ("before", "after"):
                results[stage]["reading"]["topology"].pop(str(gone.local_rank), None)


def renumbered(records: list[Record]) -> None:
    """GPU 3 falls off the bus after the training: NVML counts the others anew and has no eighth."""
    uuids = [record.results["after"]["reading"]["uuid"] for record in records]
    for record in records[3:7]:
        record.results["after"]["reading"] = {**record.results["after"]["reading"], "uuid": uuids[record.rank + 1]}
    records[7].results["after"] = {"error": "NVMLError_InvalidArgument: Invalid Argument"}


def cached(records: list[Record]) -> None:
    """The firmware of GPU 5 hangs: NVML tells again what it told before the run."""
    own = records[5].results
    own["after"]["reading"] = copy.deepcopy(own["before"]["reading"])


def with_sizes(slow: Callable[[str, int], float]) -> Change:
    """Messages between the smallest and the largest, of which some take so many times as long as they should."""

    def change(records: list[Record]) -> None:
        for record in records:
            rows = record.results["collectives"]["measurements"]
            whole = {row["operation"]: row["seconds"][0] for row in rows if row["bytes"] > MIB}
            more = [
                {"operation": name, "bytes": size, "wrong": 0,
                 "seconds": [slow(name, size) * (30e-6 + whole[name] * size / (256 * MIB))] * 20}
                for name in BUS_FACTORS for size in (64 * 1024, MIB, 8 * MIB, 64 * MIB)
            ]  # fmt: skip
            record.results["collectives"]["measurements"] = sorted(
                rows + more, key=lambda row: (row["operation"], row["bytes"])
            )

    return change


def noisy(seed: int, spread: float = 0.012) -> Change:
    """What a sound machine varies by."""

    def change(records: list[Record]) -> None:
        draw = random.Random(seed)
        for record in records:
            results = record.results
            chip = draw.gauss(1, spread)
            for product in results["compute"]["products"].values():
                usual = product["seconds"][0] * chip
                product["seconds"] = [usual * (1 + abs(draw.gauss(0, 0.004))) for _ in range(20)]
                product["tflops"] /= chip
            for row in results.get("collectives", {}).get("measurements", ()):
                usual, share = row["seconds"][0], 0.08 if row["bytes"] == 1024 else 0.02
                row["seconds"] = [usual * (1 + abs(draw.gauss(0, share))) for _ in range(20)]
            for met in results["pairs"].get("met", ()):
                met["seconds"] *= 1 + abs(draw.gauss(0, 0.02))
            own = results["steadiness"]
            own["products"] = dict(
                summary([chip * own["products"]["p50_seconds"] * (1 + abs(draw.gauss(0, 0.006))) for _ in range(1000)])
            )
            for way, one in own["copies"].items():
                own["copies"][way] = dict(
                    summary([one["p50_seconds"] * (1 + abs(draw.gauss(0, 0.02))) for _ in range(1000)])
                )
                results["copies"]["seconds"][way] *= 1 + abs(draw.gauss(0, 0.015))
            results["bandwidth"]["rates"] = {
                name: rate * draw.gauss(1, 0.004) for name, rate in results["bandwidth"]["rates"].items()
            }
            training = results["training"]
            training["alone_seconds"] = [
                one * chip * (1 + abs(draw.gauss(0, 0.02))) for one in training["alone_seconds"]
            ]
            for epoch in training["epochs"]:
                epoch["own_seconds"] = [one * chip * (1 + abs(draw.gauss(0, 0.03))) for one in epoch["own_seconds"]]
            for stage, usual in (("before", 33), ("after", 60)):
                results[stage]["reading"]["temperature_celsius"] = usual + draw.randrange(-4, 6)
            results["after"]["reading"]["power_watts"] += draw.uniform(-25, 25)
            results["after"]["reading"]["energy_joules"] += draw.uniform(-300, 300)

    return change


def fabric(**changed: Any) -> dict[str, Any]:
    whole = {"state": "completed", "status": 0, "clique": 1, "cluster": "ab" * 16, "degraded": False, "faults": []}
    return {"fabric": whole | changed}


def geforce(records: list[Record]) -> None:
    """A GeForce has neither ECC nor NVLink nor MIG: NVML says that it does not support them."""
    none = dict.fromkeys(("ecc_errors", "ecc_corrected", "ecc_mode", "ecc_mode_default", "ecc_lifetime", "sram_errors", "remapped_rows",
                          "retired_pages_pending", "mig_mode", "nvlink_errors"))  # fmt: skip
    read(records, **none, nvlinks=0, nvlinks_up=0)


def hot_rear(sample: Sample, at: float, rank: int) -> None:
    rear = rank >= 4
    sample["products_per_second"] *= (0.975 if rear else 1.0) * (1 - 0.02 * at)
    sample |= {
        "celsius": round((58 if rear else 46) + 18 * at**0.5),
        "sm_clock_hertz": 1e6 * ((1700 if rear else 1740) - 30 * at),
    }


def warmed_up(own: dict[str, Any]) -> None:
    own["epochs"][0]["own_seconds"][:2] = [8.2, 0.7]


def rare(records: list[Record]) -> None:
    """One product of a thousand and one message of five thousand wait for a timer tick of the host."""
    for record in records:
        own = record.results["steadiness"]
        own["products"] = dict(summary([own["products"]["p50_seconds"]] * 999 + [60 * own["products"]["p50_seconds"]]))
        record.results["collectives"]["steady"] |= summary([20e-6] * 4999 + [9e-3])


def visible(records: list[Record]) -> None:
    """Two of eight by CUDA_VISIBLE_DEVICES, in a container that shows all to NVML."""
    for record in records:
        record.results["presence"] |= {"seen_by_cuda": 2, "seen_by_nvml": 8, "restricted": True}


def dual(number: int) -> dict[str, Any]:
    return port(f"mlx5_{number}/1", 200.0, "InfiniBand") if number < 8 else port("ens9f0", 100.0, rdma=False)
