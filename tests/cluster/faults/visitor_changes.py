"""What happens to records in the states of visitor.py, and the boards that they have."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from cluster.acceptance.records import STAGES, TOOK, Record
from tests.cluster.faults.changes import (
    adapter_rows,
    copied,
    fits,
    host,
    on,
    present,
    some_longer,
)
from tests.cluster.faults.issues import state
from tests.cluster.faults.machines import alone
from tests.cluster.faults.reported import (
    MIB,
    Change,
    Model,
    both,
    large,
    meetings,
    slower,
)

GIB = 2**30

A100_40 = Model(
    name="NVIDIA A100-SXM4-40GB",
    gib=39.4,
    mhz=1215,
    memory=1340,
    sms=108,
    pcie=4,
    links=12,
    ring=232,
    tflops=258,
    peak=312,
)
A800 = Model(
    name="NVIDIA A800-SXM4-80GB", gib=79.15, mhz=1593, memory=1700, sms=108, pcie=4, links=8, ring=156, tflops=258
)
A30_JOINED = Model(name="NVIDIA A30", gib=23.5, mhz=1215, memory=800, sms=56, pcie=4, links=4, ring=80, tflops=120)
A40 = Model(name="NVIDIA A40", gib=44.4, mhz=7251, memory=580, sms=84, pcie=4, links=4, ring=9, tflops=110)
A6000 = Model(name="NVIDIA RTX A6000", gib=47.5, mhz=8001, memory=655, sms=84, pcie=4, links=4, ring=46, tflops=115)
RTX3090 = Model(
    name="NVIDIA GeForce RTX 3090", gib=23.6, mhz=9751, memory=845, sms=82, pcie=4, links=4, ring=10, tflops=65
)
RTX5090 = Model(name="NVIDIA GeForce RTX 5090", gib=31.4, mhz=14001, memory=1575, sms=170, pcie=5, ring=38, tflops=205)
A10 = Model(name="NVIDIA A10", gib=22.5, mhz=6251, memory=500, sms=72, pcie=4, ring=9, tflops=95)
L40 = Model(name="NVIDIA L40", gib=44.4, mhz=9001, memory=735, sms=142, pcie=4, ring=9, tflops=150)
V100_PCIE = Model(name="Tesla V100-PCIE-16GB", gib=15.8, mhz=877, memory=745, sms=80, pcie=3, ring=8, tflops=88)
RTX8000 = Model(name="Quadro RTX 8000", gib=47.5, mhz=7001, memory=560, sms=72, pcie=3, links=2, ring=8, tflops=85)
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
GB300 = Model(name="NVIDIA GB300", gib=277, mhz=3996, memory=6900, sms=152, pcie=5, links=18, ring=745, tflops=1620)
GH200_144 = Model(name="NVIDIA GH200 144G HBM3e", gib=140, mhz=3201, memory=4250, sms=132, pcie=5, tflops=660)
GB10 = Model(name="NVIDIA GB10", gib=119.6, mhz=8533, memory=215, sms=48, pcie=5, tflops=88)
G = "GPU {0} (rank {0}, node0)".format


# --- What happens to records ---------------------------------------------------------------------------------------


def spoilt(operations: Iterable[str] | None, least: int, wrong: int, ranks: Sequence[int] | None = None) -> Change:
    """Messages of these operations, from this size on, arrive with wrong elements."""

    def act(record: Record) -> None:
        for row in record.results["collectives"]["measurements"]:
            if row["bytes"] >= least and (operations is None or row["operation"] in operations):
                row["wrong"] = wrong

    return on(ranks, act)


def misplaced(records: list[Record]) -> None:
    """Nearly all that one GPU reads of the other is not what was written."""
    for record in records:
        for row in record.results["collectives"]["measurements"]:
            row["wrong"] = int(0.98 * row["bytes"] / 4)
        for met in record.results["pairs"]["met"]:
            met["wrong"] = 66_000_000


def learnt(first: Sequence[float], second: Sequence[float], ranks: Sequence[int] | None = None) -> Change:
    """Losses of both epochs."""

    def act(record: Record) -> None:
        for epoch, own in zip(record.results["training"]["epochs"], (first, second), strict=True):
            epoch["losses"] = list(own)

    return on(ranks, act)


def away(factor: float, which: Callable[[Record, Record], bool] = lambda a, b: True) -> Change:
    """Pairs of two nodes take so many times as long."""
    return lambda records: meetings(records, factor, lambda a, b: a.node != b.node and which(a, b))


def slow_bus(factor: float, *operations: str) -> Change:
    return lambda records: large(records, factor, *operations)


def paired(factor: float, which: Callable[[Record, Record], bool] = lambda a, b: True) -> Change:
    return lambda records: meetings(records, factor, which)


def weak(ranks: Sequence[int], factor: float, *, training: bool = True, products: bool = True) -> Change:
    return lambda records: slower(records, ranks, factor, training=training, products=products)


def steps(count: int, slow_every: int, factor: float, ranks: Sequence[int]) -> Change:
    """A training of many steps, of which some take these ranks longer."""

    def change(records: list[Record]) -> None:
        for rank, record in enumerate(records):
            for number, epoch in enumerate(record.results["training"]["epochs"]):
                own = [0.005] * count
                if number == 0:
                    own[:2] = [0.5, 0.1]
                if rank in ranks:
                    own = [factor * one if place % slow_every == 5 else one for place, one in enumerate(own)]
                start, end = (2.3, 1.4) if number == 0 else (1.3, 1.0)
                epoch["own_seconds"] = own
                epoch["losses"] = [start + (end - start) * place / (count - 1) for place in range(count)]
                epoch["images_per_second"] = 9000.0 / (1 + (factor - 1) / slow_every)

    return change


def adapters(rate: float | None, which: Callable[[Record, dict[str, Any]], bool], reason: str | None = None) -> Change:
    """ib_write_bw of some rows; the rest reach their line."""

    def change(records: list[Record]) -> None:
        for record, row in adapter_rows(records):
            if which(record, row):
                row |= {"gigabits": rate, "reason": reason}

    return change


def measured_alone(*gigabits: float) -> Change:
    """ib_write_bw, with a spread from row to row."""

    def change(records: list[Record]) -> None:
        rates = iter(range(10**6))
        alone(records, 1.0, lambda: gigabits[next(rates) % len(gigabits)])

    return change


def ended(
    ends: dict[int, tuple[str, str]], stage: str, at: str, log: str = "", meanwhile: str = "collectives"
) -> Change:
    """Some ranks come to an end in this stage; the others are stopped where they next need them."""

    def change(records: list[Record]) -> None:
        for rank, record in enumerate(records):
            sick = rank in ends
            last = stage if sick else max(stage, meanwhile, key=STAGES.index)
            later = STAGES[STAGES.index(last) :]
            for name in later:
                record.results.pop(name, None)
            record.results[TOOK] = {name: own for name, own in record.results[TOOK].items() if name not in later}
            record.ending, record.detail = ends.get(rank, ("stopped", ""))
            record.at = at if sick or last == stage else "all_gather of 1.0 KiB"
            record.progress = 20 if sick else 21 if last == stage else 26
            if record.ending != "died":
                record.at_stop, record.progress_at_stop = record.at, record.progress
            if sick:
                record.log = log

    return change


def gone(ranks: Sequence[int]) -> Change:
    """No word of these ranks any more: their node has no power."""
    stop = ended(dict.fromkeys(ranks, ("lost", "")), "collectives", "all_gather of 1.0 KiB")

    def change(records: list[Record]) -> None:
        stop(records)
        for rank in ranks:
            own = records[rank]
            own.results, own.at, own.at_stop, own.progress, own.progress_at_stop = {}, "not started", "", 0, None

    return change


def together(first: int, second: int) -> Change:
    """Two ranks got one GPU: each has half of it, and NCCL refuses to begin."""
    refuse = ended(
        dict.fromkeys((first, second), ("died", "exit code 1")),
        "collectives",
        "all_gather of 1.0 KiB",
        log=f"NCCL WARN Duplicate GPU detected : rank {second} and rank {first} both on CUDA device 5d000",
    )

    def change(records: list[Record]) -> None:
        one, other = records[first].results, records[second].results
        other["before"]["reading"] |= {"uuid": one["before"]["reading"]["uuid"]}
        other["presence"] |= {"uuid": one["presence"]["uuid"]}
        for results in (one, other):
            results["before"]["reading"]["memory_used_bytes"] += 600 * MIB
            results["memory"]["tested_bytes"] = int(0.44 * results["memory"]["total_bytes"])
            results["bandwidth"]["rates"] = {name: 0.52 * rate for name, rate in results["bandwidth"]["rates"].items()}
            results["steadiness"]["products"] = some_longer(results["steadiness"]["products"], 0.4, 1.8)
        slower(records, [first, second], 1.95)
        copied(1.9, [first, second])(records)
        refuse(records)

    return change


def dust(records: list[Record]) -> None:
    """A telemetry that froze before the run, at a power that the board cannot draw."""
    slower(records, [1], 8.5)
    records[1].results["bandwidth"]["rates"] = {"copy": 0.31e12, "triad": 0.31e12}
    for stage in ("before", "after"):
        records[1].results[stage]["reading"] |= {
            "power_watts": 588.6,
            "sm_clock_hertz": 210e6,
            "throttle_reasons": ["power_cap"],
            "energy_joules": 353_160.0,
        }
    records[1].results["after"]["reading"]["energy_joules"] += 588.6 * 60


def set_back(records: list[Record]) -> None:
    """chrony steps a node's clock by 39 minutes in the middle of the run."""
    for record in records[8:]:
        record.results["after"]["time"] = record.results["before"]["time"] + 60 - 2340


def asleep(records: list[Record]) -> None:
    """One of each five small messages finds the processor asleep; the large ones hardly."""
    large(records, 1.06)
    for record in records:
        for row in record.results["collectives"]["measurements"]:
            if row["bytes"] == 1024:
                row["seconds"] = [*row["seconds"][:-1], 9 * row["seconds"][-1]]


def unlike_bits(ranks: Sequence[int]) -> Change:
    return on(ranks, lambda record: record.results["training"].update(sha256=f"{record.rank:02x}" * 32))


def stale_gradients(records: list[Record]) -> None:
    learnt([2.31, 2.30, 2.32, 2.30], [2.31, 2.29, 2.30, 2.30])(records)
    unlike_bits(range(8, 16))(records)


def sagging(records: list[Record]) -> None:
    """A regulator with a phase less: products wait for it again and again."""
    fits(5, 0.25, 1.9)(records)
    slower(records, [5], 1.22, products=False)
    for own in records[5].results["compute"]["products"].values():
        usual = own["seconds"][0]
        own["seconds"] = [usual * (1.9 if number % 4 == 3 else 1.0) for number in range(len(own["seconds"]))]
    records[5].results["after"]["reading"] |= {"power_watts": 395.0}


def named_ports(prefix: str, kind: str, rate: float | None = None) -> Change:
    def change(records: list[Record]) -> None:
        for record in records:
            for stage in ("network", "network_after"):
                own = record.results[stage].get("ports")
                if own is not None:
                    record.results[stage] = {
                        **record.results[stage],
                        "ports": [
                            {**port, "name": f"{prefix}{number}/1", "kind": kind}
                            | ({} if rate is None else {"rate_gigabits": rate})
                            for number, port in enumerate(own)
                        ],
                    }

    return change


def unsupported(*names: str) -> Change:
    """What the driver does not tell of such boards."""

    def act(record: Record) -> None:
        for stage in ("before", "after"):
            own = record.results[stage]["reading"]
            own |= dict.fromkeys(names)
            own["untold"] = {**own["untold"], **dict.fromkeys(names, "Not Supported")}

    return on(None, act)


def versions(torch: str, cuda: str, nccl: Sequence[int], driver: str, kernel: str) -> Change:
    return both(present(torch=torch, cuda=cuda, nccl=list(nccl)), state(driver=driver), host(kernel=kernel))


def lottery(*factors: float) -> Change:
    """Boards that are not equally quick."""

    def change(records: list[Record]) -> None:
        for rank in range(len(records)):
            slower(records, [rank], factors[rank % len(factors)])

    return change
