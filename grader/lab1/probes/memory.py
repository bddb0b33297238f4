"""Probes of Lab 1's memory profile and what follows from one."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import torch

from grader.shared.probes.calls import on_device
from grader.shared.probes.endings import ending
from grader.shared.probes.handed_out import network
from grader.shared.probes.support import fields, mapping, plain, sequence
from labkit.results import STAGES, MemoryProfile, StageMemory

MEMORY = "lab1_gpu_basics.memory_profiling"


def memory(student: Any, *, runs: Sequence[dict[str, Any]], kept: int, freed: int) -> dict[str, Any]:
    """`profile_training_memory` of fully connected networks, one after the other.

    Args:
        runs: of each network layer `widths`, `batch` and how much `room` it takes; perhaps a `dtype`, and `indexed`
            (true: the GPU is named with its index).
        kept: bytes that somebody else holds meanwhile.
        freed: bytes that somebody else held before.
    """
    profile_step = student.module(MEMORY).profile_training_memory
    others = _others(student.device, kept, freed)
    profiles = []
    for number, run in enumerate(runs, 1):
        create_model, create_batch = network(run["widths"], run["batch"], run["room"])
        options = {"dtype": getattr(torch, run["dtype"])} if "dtype" in run else {}
        place = {"device": f"{student.device}:0"} if run.get("indexed") else on_device(student)
        told = profile_step(create_model, create_batch, **place, **options)
        profiles.append(fields(told, MemoryProfile, f"profile_training_memory(), call {number}"))
        gc.collect()
    del others
    return {"profiles": profiles}


def by_default(student: Any) -> dict[str, Any]:
    """`profile_training_memory` as the document calls it: with no arguments, of the lab's own model."""
    told = student.module(MEMORY).profile_training_memory(**on_device(student))
    return {"profile": fields(told, MemoryProfile, "profile_training_memory()")}


def _others(device: str, kept: int, freed: int) -> torch.Tensor:
    """What lies on the device before a step; the cache keeps what was freed."""
    held = torch.empty(kept, dtype=torch.uint8, device=device)
    torch.empty(freed, dtype=torch.uint8, device=device)
    return held


def memory_precisions(student: Any, *, networks: Sequence[dict[str, Any]], kept: int, freed: int) -> dict[str, Any]:
    """`compare_precisions` of each network: `widths`, `batch`, `room`, and `indexed` (the GPU is named with its index).

    Then how both functions end on a CPU, and `profile_training_memory` on a GPU that is named with its index.
    """
    module = student.module(MEMORY)
    others = _others(student.device, kept, freed)
    compared = []
    indexed = f"{student.device}:0"
    for given in networks:
        create_model, create_batch = network(given["widths"], given["batch"], given["room"])
        place = {"device": indexed} if given["indexed"] else on_device(student)
        what = f"compare_precisions({'device=' + repr(indexed) if given['indexed'] else ''})"
        profiles = sequence(module.compare_precisions(create_model, create_batch, **place), what)
        compared.append([fields(profile, MemoryProfile, f"{what}[{i}]") for i, profile in enumerate(profiles)])
        gc.collect()
    del others
    small = network([5, 4, 3], 2)
    return {
        "profiles": compared,
        "endings": [
            ending(lambda: module.profile_training_memory(*small, device="cpu")),
            ending(lambda: module.compare_precisions(*small, device="cpu")),
        ],
        "indexed": ending(lambda: module.profile_training_memory(*small, device=indexed)),
    }


def bottleneck(
    student: Any,
    *,
    peaks: Sequence[Sequence[int]],
    allocated: Sequence[Sequence[int]],
    reserved: Sequence[Sequence[int]],
) -> dict[str, Any]:
    """`find_bottleneck` and `stage_increases` on made-up profiles, one per row of each figure."""
    module = student.module(MEMORY)
    profiles = [
        MemoryProfile(
            device="cuda",
            dtype="float32",
            stages=tuple(
                StageMemory(stage=stage, allocated_bytes=held, reserved_bytes=taken, peak_bytes=peak)
                for stage, peak, held, taken in zip(STAGES, *figures, strict=True)
            ),
        )
        for figures in zip(peaks, allocated, reserved, strict=True)
    ]
    return {
        "stages": [plain(module.find_bottleneck(profile), "find_bottleneck()") for profile in profiles],
        "increases": [_items(module.stage_increases(profile)) for profile in profiles],
    }


def _items(told: Any) -> list[Any]:
    """A dict as pairs in its order."""
    return [plain(pair, "stage_increases()") for pair in mapping(told, "stage_increases()").items()]
