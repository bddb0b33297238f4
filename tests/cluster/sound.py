"""Records of a sound machine with real GPUs, as its workers would tell them: what the judges are tested with.

Figures are those of H100s behind a switch, and of InfiniBand NDR between nodes, rounded.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from cluster.acceptance.checks.collectives import BUS_FACTORS
from cluster.acceptance.hardware import board
from cluster.acceptance.options import Options, parse
from cluster.acceptance.pace import summary
from cluster.acceptance.records import STAGES, TOOK, Record
from cluster.acceptance.report import Standards, build

MIB = 2**20
WORK = 2 * 8192 * 8192 * 2048 / 1e12
"""Of a product, in units of 1e12."""
NVLINK = 365e9
"""Bytes per second that NCCL reaches, without NVLink SHARP (NVIDIA/nccl-tests issue 212)."""
PCIE = 42e9
"""Of 64 in each direction of 16 lanes of generation 5."""
PORT = 46e9
"""Of 50 on the line."""
BEGAN = 1.7e9
"""When NVML was read, by the node's clock."""
NOT_READ = {"skipped": "local rank 0 reads the ports", "asked": True}


HOST = {
    "kernel": "6.8.0-60-generic", "clock_source": "tsc", "governor": "performance", "processors": 112,
    "processors_allowed": 96.0, "busy_ratio": 0.02, "memory_bytes": 2**41, "memory_available_bytes": 2**41 - 2**36,
    "memory_errors": [0, 0], "shared_memory_bytes": 2**38, "locked_memory_bytes": 2**63 - 1, "open_files": 2**20,
    "up_seconds": 3.0e5, "swapped_bytes": 0,
}  # fmt: skip
"""A server for eight GPUs."""


def options(*words: str) -> Options:
    return parse(list(words))


def reading(**changed: Any) -> dict[str, Any]:
    """What NVML says of an idle H100."""
    return {
        "up": True,
        "untold": {},
        "uuid": "GPU-1",
        "name": "NVIDIA H100 80GB HBM3",
        "driver": "580.65.06",
        "temperature_celsius": 35,
        "maximum_celsius": 87,
        "utilization_ratio": 0.0,
        "memory_busy_ratio": 0.0,
        "pcie_sent_bytes_per_second": 0.0,
        "pcie_received_bytes_per_second": 0.0,
        "memory_used_bytes": 500 * MIB,
        "memory_total_bytes": 81_000 * MIB,
        "power_watts": 70.0,
        "power_limit_watts": 700.0,
        "energy_joules": 1000.0,
        "sm_clock_hertz": 345e6,
        "memory_clock_hertz": 2619e6,
        "throttle_reasons": ["idle"],
        "ecc_errors": 0,
        "ecc_corrected": 3,
        "xid_errors": 0,
        "pcie_generation": 5,
        "pcie_generation_max": 5,
        "pcie_width": 16,
        "pcie_width_max": 16,
        "pcie_replays": 0,
        "nvlinks_up": 18,
        "nvlinks": 18,
        "remapped_rows": [0, 0, 0, 0],
        "vbios": "96.00.89.00.01",
        "power_limit_default_watts": 700.0,
        "sm_clock_max_hertz": 1980e6,
        "nvlink_errors": 0,
        "ecc_mode": [1, 1],
        "ecc_mode_default": 1,
        "mig_mode": [0, 0],
        "retired_pages_pending": 0,
        "inforom_valid": True,
        "recovery_action": "none",
        "sram_errors": [0, 0],
        "ecc_lifetime": 0,
        "xids_before": [],
        "persistence_mode": 1,
        "compute_mode": "default",
        "performance_state": 0,
        **changed,
    }


def as_it_comes(name: str) -> dict[str, float]:
    """The limits of the data sheet, where those of the readings in `sound` are lower."""
    known = board(name)
    watts, clock = (known.watts or 0.0, known.sm_clock_mhz or 0.0) if known is not None else (0.0, 0.0)
    limit = max(700.0, watts)
    return {
        "power_limit_watts": limit,
        "power_limit_default_watts": limit,
        "sm_clock_max_hertz": max(1980e6, 1e6 * clock),
    }


def worked(**changed: Any) -> dict[str, Any]:
    """The same GPU right after the work."""
    after = {
        "temperature_celsius": 61,
        "utilization_ratio": 0.97,
        "memory_busy_ratio": 0.6,
        "pcie_sent_bytes_per_second": 2e6,
        "pcie_received_bytes_per_second": 3e6,
        "memory_used_bytes": 9000 * MIB,
        "power_watts": 520.0,
    }
    return reading(**{**after, "sm_clock_hertz": 1980e6, "throttle_reasons": [], "energy_joules": 4600.0, **changed})


def record(rank: int = 0, ranks: int = 2) -> Record:
    """One rank that found everything in order."""
    uuid = f"GPU-1234-{rank}"
    measurements = [
        {"operation": operation, "bytes": bytes_, "seconds": [seconds] * 20, "wrong": 0}
        for operation in BUS_FACTORS
        for bytes_, seconds in ((1024, 20e-6), (256 * MIB, large_seconds(operation, ranks, NVLINK)))
    ]
    epochs = [
        {"losses": [2.3, 1.9, 1.6, 1.4], "own_seconds": [0.5, 0.1, 0.005, 0.005], "images_per_second": 9000.0},
        {"losses": [1.3, 1.2, 1.1, 1.0], "own_seconds": [0.005] * 4, "images_per_second": 9100.0},
    ]
    return Record(
        rank=rank,
        local_rank=rank,
        node="node17",
        at="waiting for the others after after",
        progress=40,
        results={
            "before": {"reading": reading(uuid=uuid), "time": BEGAN},
            "presence": {
                "kind": "cuda",
                "index": rank,
                "device_name": "NVIDIA H100 80GB HBM3",
                "memory_bytes": 85e9,
                "compute_capability": [9, 0],
                "multiprocessors": 132,
                "uuid": f"1234-{rank}",
                "torch": "2.13.0",
                "cuda": "13.0",
                "nccl": [2, 27, 5],
                "peak_tflops": {"float32": 67.0, "float16": 989.0, "bfloat16": 989.0},
                "held_ratio": {"float32": 0.8, "float16": 0.82, "bfloat16": 0.82},
                "seen_by_cuda": ranks,
                "seen_by_nvml": ranks,
                "restricted": False,
                "boot_id": "0",
            },
            "compute": {
                "rows": 8192,
                "depth": 2048,
                "products": {
                    "float32": product(seconds=WORK / 50.0, tflops=50.0),
                    "float16": product(seconds=WORK / 690.0, tflops=690.0),
                    "bfloat16": product(seconds=WORK / 690.0, tflops=690.0),
                },
            },
            "steadiness": {"products": pace(0.4e-3), "copies": {"to_device": pace(0.7e-3), "to_host": pace(0.7e-3)}},
            "collectives": {
                "backend": "nccl",
                "ranks": ranks,
                "measurements": measurements,
                "steady": {"operation": "all_reduce", "bytes": 1024, **pace(20e-6)},
            }
            if ranks > 1
            else {"skipped": "one rank has nobody to talk to", "asked": True},
            "network": {"ports": ports(), "peer_memory": True} if rank == 0 else NOT_READ,
            "bandwidth": {"bytes": 256 * MIB, "rates": {"copy": 2.95e12, "triad": 3.0e12}},
            "copies": {"bytes": 256 * MIB, "seconds": {"to_device": 5e-3, "to_host": 5e-3}},
            "memory": {
                "tested_bytes": int(0.88 * 85e9),
                "total_bytes": int(85e9),
                "wrong": {},
                "first_byte": {},
                "rounds": 1,
            },
            "adapters": {"skipped": "local rank 0 measures the adapters", "asked": True}
            if rank
            else {"skipped": "ib_write_bw is not installed on this node", "asked": True},
            "load": {"skipped": "only with --thorough", "asked": True},
            "gradients": {"deviation": 2e-5, "parameter": "conv1.weight", "parameters": 62},
            "pairs": {
                "bytes": 256 * MIB,
                "met": [
                    {"partner": other, "seconds": 256 * MIB / NVLINK, "wrong": 0}
                    for other in range(ranks)
                    if other != rank
                ],
            }
            if ranks > 1
            else {"skipped": "one rank has nobody to talk to", "asked": True},
            "data": {"data": "cifar10"},
            "training": {
                "data": "cifar10",
                "model": "ResNet-18",
                "batch_size": 128,
                "epochs": epochs,
                "alone_seconds": [0.012] * 5,
                "sha256": "ab" * 32,
                "memory_peak_bytes": 4000 * MIB,
                "finite": True,
            },
            "network_after": {"ports": ports(), "peer_memory": True} if rank == 0 else NOT_READ,
            TOOK: dict.fromkeys(STAGES, 0.5) | {"presence": 4.0, "memory": 10.0, "training": 12.0, "data": 3.0},
            "after": {"reading": worked(uuid=uuid), "time": BEGAN + 60},
        },
    )


def ports(**changed: Any) -> list[dict[str, Any]]:
    """Eight ports of InfiniBand NDR; what is changed is so on the first one."""
    counters = {"symbol_error": 0, "link_downed": 1, "link_error_recovery": 0, "port_rcv_errors": 0}
    port = {"kind": "InfiniBand", "rdma": True, "up": True, "rate_gigabits": 400.0}
    result = [{"name": f"mlx5_{number}/1", **port, "counters": dict(counters)} for number in range(8)]
    result[0] |= changed
    return result


def nodes(count: int, per_node: int = 8) -> list[Record]:
    """Ranks of so many sound nodes: a port of 400 Gbit/s for each GPU."""
    result = records(count * per_node)
    for entry in result:
        for measurement in entry.results["collectives"]["measurements"] if count > 1 else ():
            if measurement["bytes"] > MIB:
                rate = PORT * (1 if measurement["operation"] == "point_to_point" else per_node)
                measurement["seconds"] = [large_seconds(measurement["operation"], len(result), rate)] * 20
        for met in entry.results["pairs"].get("met", ()):
            if met["partner"] // per_node != entry.rank // per_node:
                met["seconds"] = 256 * MIB / PORT
        number, local = divmod(entry.rank, per_node)
        entry.node, entry.local_rank = f"node{number}", local
        entry.results["presence"] |= {"index": local, "seen_by_cuda": per_node, "seen_by_nvml": per_node,
                                      "boot_id": str(number)}  # fmt: skip
        for stage in ("network", "network_after"):
            entry.results[stage] = {"ports": ports(), "peer_memory": True} if local == 0 else NOT_READ
    return result


def links_carry(rate: float, ranks: list[Record]) -> None:
    """Give the GPUs of one node the rates of links that carry so many bytes per second."""
    for entry in ranks:
        for measurement in entry.results["collectives"]["measurements"]:
            if measurement["bytes"] > MIB:
                measurement["seconds"] = [large_seconds(measurement["operation"], len(ranks), rate)] * 20
        for met in entry.results["pairs"]["met"]:
            met["seconds"] = 256 * MIB / rate


def large_seconds(operation: str, ranks: int, rate: float) -> float:
    """Of 256 MiB at a bus bandwidth in bytes per second."""
    return 50e-6 + BUS_FACTORS[operation](ranks) * 256 * MIB / rate


def product(*, seconds: float, tflops: float) -> dict[str, Any]:
    return {"seconds": [seconds] * 20, "tflops": tflops, "wrong_rows": [], "differing_repeats": 0}


def pace(seconds: float, samples: int = 1000) -> dict[str, Any]:
    """Repetitions that all take as long, as a worker records them."""
    return dict(_pace(seconds, samples))


_pace = cache(lambda seconds, samples: summary([seconds] * samples))


def records(ranks: int = 2) -> list[Record]:
    return [record(rank, ranks) for rank in range(ranks)]


def report(
    of: list[Record], *words: str, simulated: bool = False, standards: Standards | None = None
) -> dict[str, Any]:
    """The whole report of these records."""
    return build(options(*words), of, simulated=simulated, standards=standards)


def failures(document: dict[str, Any]) -> list[tuple[str, str]]:
    """Name and subject of every failed check."""
    return outcomes(document, "fail")


def outcomes(document: dict[str, Any], status: str) -> list[tuple[str, str]]:
    return [
        (check["name"], check["subject"]) for check in document["validation"]["checks"] if check["status"] == status
    ]
