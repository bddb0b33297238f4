"""Probes of Lab 1's memory profile."""

from __future__ import annotations

import functools
import gc
from typing import cast

import torch

from gradebox.sandbox.probe_loader import Student
from grader.lab1.memory.cases import (
    ComparePrecisions,
    DefaultProfileReply,
    MadeUpProfile,
    MemoryPictures,
    PrecisionsReply,
    Profile,
    ProfilesReply,
    ProfileSteps,
)
from grader.lab1.shared.cases.plots import PicturesReply
from grader.lab1.shared.probes.plots import draw
from grader.shared.probes.calls import on_device
from grader.shared.probes.endings import ending
from grader.shared.probes.handed_out import network
from grader.shared.probes.record import watch_products
from grader.shared.probes.support import fields, run_program, sequence
from labkit.results import MemoryProfile, StageMemory

MEMORY = "lab1_gpu_basics.memory_profiling"


def steps(student: Student, inputs: ProfileSteps) -> ProfilesReply:
    """`profile_training_memory` of fully connected networks, one after the other."""
    profile_step = student.module(MEMORY).profile_training_memory
    others = _others(student.device, inputs.kept, inputs.freed)
    profiles = []
    for number, run in enumerate(inputs.runs, 1):
        create_model, create_batch = network(run["widths"], run["batch"], run["room"])
        options = {"dtype": getattr(torch, run["dtype"])} if "dtype" in run else {}
        place = {"device": f"{student.device}:0"} if run.get("indexed") else on_device(student)
        returned = profile_step(create_model, create_batch, **place, **options)
        profiles.append(_profile(returned, f"profile_training_memory(), call {number}"))
        gc.collect()
    del others
    return ProfilesReply(profiles=profiles)


def _profile(returned: object, what: str) -> Profile:
    return cast("Profile", fields(returned, MemoryProfile, what))


def by_default(student: Student) -> DefaultProfileReply:
    """`profile_training_memory` as the document calls it: with no arguments, of the lab's own model."""
    with watch_products(student.gpu) as products:
        returned = student.module(MEMORY).profile_training_memory(**on_device(student))
        flops = products.flops()
    return DefaultProfileReply(profile=_profile(returned, "profile_training_memory()"), product_flops=flops)


def _others(device: str, kept: int, freed: int) -> torch.Tensor:
    """What lies on the device before a step; the cache keeps what was freed."""
    held = torch.empty(kept, dtype=torch.uint8, device=device)
    torch.empty(freed, dtype=torch.uint8, device=device)
    return held


def precisions(student: Student, inputs: ComparePrecisions) -> PrecisionsReply:
    """`compare_precisions` of each network.

    Then how both functions end on a CPU, and `profile_training_memory` on a GPU that is named with its index.
    """
    module = student.module(MEMORY)
    others = _others(student.device, inputs.kept, inputs.freed)
    compared = []
    indexed = f"{student.device}:0"
    for case in inputs.networks:
        create_model, create_batch = network(case["widths"], case["batch"], case["room"])
        place = {"device": indexed} if case.get("indexed") else on_device(student)
        what = f"compare_precisions({'device=' + repr(indexed) if case.get('indexed') else ''})"
        profiles = sequence(module.compare_precisions(create_model, create_batch, **place), what)
        compared.append([_profile(profile, f"{what}[{index}]") for index, profile in enumerate(profiles)])
        gc.collect()
    del others
    small = network([5, 4, 3], 2)
    return PrecisionsReply(
        profiles=compared,
        endings=[
            ending(functools.partial(module.profile_training_memory, *small, device="cpu")),
            ending(functools.partial(module.compare_precisions, *small, device="cpu")),
        ],
        indexed=ending(functools.partial(module.profile_training_memory, *small, device=indexed)),
    )


def pictures(student: Student, inputs: MemoryPictures) -> PicturesReply:
    """Run the memory program; then `plot_memory` of made-up profiles."""
    made = [[_made(profile) for profile in profiles] for profiles in inputs.plots]
    program = functools.partial(run_program, student, MEMORY, [])
    return draw(program, "plot_memory", lambda: student.module(MEMORY).plot_memory, made)


def _made(profile: MadeUpProfile) -> MemoryProfile:
    stages = tuple(StageMemory(**stage) for stage in profile["stages"])
    return MemoryProfile(device="cuda", dtype=profile["dtype"], stages=stages)
