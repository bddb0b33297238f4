"""Probes of Lab 1's memory profile and what follows from one."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gradebox.sandbox.student import WrongReturn
from grader.shared.probes.endings import ending
from grader.shared.probes.handed_out import network
from grader.shared.probes.support import fields, plain, sequence
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
        device = f"{student.device}:0" if run.get("indexed") else student.device
        told = profile_step(create_model, create_batch, device=device, **options)
        profiles.append(fields(told, MemoryProfile, f"profile_training_memory(), call {number}"))
        gc.collect()
    del others
    return {"profiles": profiles}


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
        device = indexed if given["indexed"] else student.device
        what = f"compare_precisions(device={device!r})"
        profiles = sequence(module.compare_precisions(create_model, create_batch, device=device), what)
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
    if not isinstance(told, Mapping):
        raise WrongReturn(f"stage_increases() returned a {type(told).__name__}, expected a dict of stage: bytes")
    return [plain(pair, "stage_increases()") for pair in told.items()]
