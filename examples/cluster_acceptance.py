"""Acceptance test of a GPU machine: every GPU answers, computes, talks to the others and learns; PASS or FAIL.

The checks are those of a distributed-training acceptance test for GPU clusters: availability and properties,
a matrix product per GPU, all-gather with its latency, a short data-parallel training whose loss must fall, and NVML
readings before and after. Writes a JSON report. One process per GPU, started by `mp.spawn`.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pynvml
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

HOTTEST_CELSIUS = 85


def read_nvml() -> list[dict[str, Any]]:
    pynvml.nvmlInit()
    readings = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        readings.append(
            {
                "name": pynvml.nvmlDeviceGetName(handle),
                "temperature_celsius": pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
                "power_watts": pynvml.nvmlDeviceGetPowerUsage(handle) / 1000,
                "memory_used_bytes": int(pynvml.nvmlDeviceGetMemoryInfo(handle).used),
                "utilization_percent": int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu),
            }
        )
    return readings


def check_computation(size: int) -> dict[str, Any]:
    """A product of known result, and its speed."""
    matrix = torch.full((size, size), 0.5, device="cuda")
    right = bool((matrix @ matrix == size / 4).all())
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    matrix @ matrix
    end.record()
    torch.cuda.synchronize()
    return {"right": right, "tflops": 2 * size**3 / (start.elapsed_time(end) * 1e-3) / 1e12}


def check_communication(rank: int, world_size: int, repeats: int = 5) -> dict[str, Any]:
    mine = torch.full((1024,), float(rank), device="cuda")
    gathered = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(gathered, mine)
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(repeats):
        dist.all_gather(gathered, mine)
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - started) / repeats
    right = all(bool((part == index).all()) for index, part in enumerate(gathered))
    return {"right": right, "milliseconds": seconds * 1e3}


def check_training(rank: int, options: argparse.Namespace) -> dict[str, Any]:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    model = DDP(net.cuda(), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(rank)
    labels = torch.randint(10, (options.batch_size,), generator=generator)
    # Images of ten brightnesses with noise: small enough to learn in a few steps.
    images = labels.view(-1, 1, 1, 1) / 10 + 0.1 * torch.randn(options.batch_size, 3, 16, 16, generator=generator)
    images, labels = images.cuda(), labels.cuda()
    losses, started = [], time.perf_counter()
    for _ in range(options.steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    seconds = time.perf_counter() - started
    return {"losses": losses, "images_per_second": options.steps * options.batch_size / seconds}


def worker(rank: int, world_size: int, port: int, options: argparse.Namespace) -> None:
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=world_size, timeout=timedelta(seconds=60))
    properties = torch.cuda.get_device_properties(rank)
    mine: dict[str, Any] = {
        "gpu": {"name": properties.name, "memory_bytes": properties.total_memory},
        "computation": check_computation(options.size),
        "communication": check_communication(rank, world_size),
        "training": check_training(rank, options),
        "memory_peak_bytes": torch.cuda.max_memory_allocated(),
    }
    everyone: list[dict[str, Any] | None] = [None] * world_size
    dist.all_gather_object(everyone, mine)
    if rank == 0:
        options.report.write_text(json.dumps(everyone))
    dist.barrier()
    dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32, help="per GPU")
    parser.add_argument("--size", type=int, default=512, help="of the matrix product")
    parser.add_argument("--max-latency-ms", type=float, default=5.0)
    parser.add_argument("--report", type=Path, default=Path("cluster_test_report.json"))
    options = parser.parse_args()

    world_size = torch.cuda.device_count()
    before = read_nvml()
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    mp.spawn(worker, args=(world_size, port, options), nprocs=world_size, join=True)  # type: ignore[attr-defined,no-untyped-call]
    ranks, after = json.loads(options.report.read_text()), read_nvml()

    checks = {
        "GPU Available": len(ranks) == world_size > 0,
        "Computation": all(rank["computation"]["right"] for rank in ranks),
        "NCCL Communication": all(
            rank["communication"]["right"] and rank["communication"]["milliseconds"] < options.max_latency_ms
            for rank in ranks
        ),
        "Training Status": all(rank["training"]["losses"][-1] < rank["training"]["losses"][0] for rank in ranks),
        "Temperature": all(reading["temperature_celsius"] < HOTTEST_CELSIUS for reading in before + after),
    }
    status = "PASS" if all(checks.values()) else "FAIL"
    report = {"world_size": world_size, "status": status, "checks": checks, "ranks": ranks}
    options.report.write_text(json.dumps({**report, "nvml": {"before": before, "after": after}}, indent=2))
    print("=" * 50, f"FINAL ACCEPTANCE: {status}", sep="\n")
    for name, passed in checks.items():
        print(f"- {name}: {'PASS' if passed else 'FAIL'}")
    print("=" * 50)
    first = ranks[0]
    print(f"{world_size} x {first['gpu']['name']}, {first['computation']['tflops']:.2f} TFLOPS each")
    print(f"all-gather {first['communication']['milliseconds']:.3f} ms, ", end="")
    print(f"loss {first['training']['losses'][0]:.3f} -> {first['training']['losses'][-1]:.3f}")
    return 0 if status == "PASS" else 1


if __name__ == "__main__":
    raise SystemExit(main())
