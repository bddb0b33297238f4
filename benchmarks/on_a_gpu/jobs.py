"""The jobs, in the order of their value. A job's name is part of every result: a new meaning gets a new name."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.on_a_gpu import gradings, programs
from benchmarks.on_a_gpu.job import Job

BUGS = Path(__file__).with_name("bugs.toml")
REWRITTEN = (
    "lab1.measurements.seconds_equal_reference",
    "lab1.measurements.never_above_the_roofline",
    "lab4.checkpointing.measured_table_equals_reference",
    "lab4.attention.benchmark_equals_reference",
)
"""Checks that refused the reference on an H100 in November 2026 and were rewritten."""
_ENGINE = (
    "gradebox/sandbox", "gradebox/run/grading.py", "gradebox/run/submission.py", "gradebox/run/probe_cache.py",
    "gradebox/run/request.py", "gradebox/run/assertions.py", "gradebox/run/input_generator.py",
    "gradebox/run/encode_inputs.py", "gradebox/run/device_lock.py", "gradebox/run/device_use.py",
    "gradebox/run/device_steadiness.py", "grader/course.toml", "grader/shared", "labkit",
)  # fmt: skip
"""What every grading depends on. Not the virtual GPU, although some checks ask it: those have tests of their own, and
a new cost of a kernel changes nothing on a card."""
_LABS = ("lab1", "lab2", "lab3", "lab4", "lab5")
_EXERCISES = ("kernels", "sharding")
_PACKAGES = {
    "lab1": "lab1_gpu_basics", "lab2": "lab2_mixed_precision", "lab3": "lab3_distributed", "lab4": "lab4_memory",
    "lab5": "lab5_production", "kernels": "kernels_exercise", "sharding": "sharding_exercise",
}  # fmt: skip
_CONFORMANCE = {
    "triton": ("test_triton.py", "test_compile.py"),
    "first-met": ("test_met_by_programs.py", "test_indexing.py", "test_autocast_lists.py",
                  "test_attention_backends.py"),
    "values": ("test_values.py", "test_low_precision.py", "test_activations.py", "test_tf32.py", "test_rng.py",
               "test_factories.py"),
    "memory": ("test_allocator.py", "test_oom.py", "test_pinned.py", "test_copies.py", "test_transfers.py",
               "test_cuda_graphs.py"),
    "time": ("test_async_time.py", "test_streams_events.py", "test_generic_streams.py", "test_warmup.py",
             "test_profiler.py", "test_threads.py"),
    "training": ("test_training.py", "test_gradscaler.py", "test_optimizers.py", "test_checkpoint.py",
                 "test_func_transforms.py", "test_serialization.py"),
    "devices": ("test_devices.py", "test_nvml.py", "test_several_gpus.py", "test_ddp_one_rank.py"),
}  # fmt: skip
"""What failed or had no time on the first card comes first."""
_OF_THE_HOST = ("host-call", "training-step", "compiled", "cuda-graph", "optimizer")
_OF_THE_DEVICE = ("conv2d", "product", "cnn-layer", "row-function", "attention", "reduction", "layout", "triton")
"""Families of `benchmarks.measured.drawn`, by what bounds them."""


def _grading(*labs: str) -> tuple[str, ...]:
    """What a grading of the reference depends on."""
    return (*_ENGINE, *(f"grader/{lab}" for lab in labs), *(f"solutions/{_PACKAGES[lab]}" for lab in labs))


def _of_scenario(scenario: str) -> tuple[str, ...]:
    return (*_grading(scenario.partition("/")[0]), f"tests/scenarios/{scenario}")


def _reference() -> Iterator[Job]:
    yield Job("reference", "The reference, all labs", "a", 70, _grading(*_LABS), programs.pytest_grade)
    for name in _EXERCISES:
        run = partial(programs.pytest_grade, lab=name)
        yield Job(f"reference-{name}", f"The reference of the exercise {name}", "a", 20, _grading(name), run)


def _rewritten() -> Iterator[Job]:
    for seed in range(1, 6):
        run = partial(gradings.chosen_checks, checks=REWRITTEN, seed=seed)
        title = f"The four rewritten checks, seed {seed}"
        yield Job(f"rewritten-{seed}", title, "b", 12, _grading("lab1", "lab4"), run)


def _acceptance() -> Iterator[Job]:
    depends = ("cluster/acceptance", "labkit")
    yield Job("acceptance", "The acceptance test", "c", 45, depends, programs.acceptance)
    run = partial(programs.acceptance, options=("--thorough", "--load-seconds", "45"))
    yield Job("acceptance-thorough", "The acceptance test, --thorough, 45 s of load", "c", 100, depends, run)


def _styles() -> Iterator[Job]:
    for lab in ("lab1", "lab4", "lab2", "lab5", "lab3"):
        for scenario in gradings.styles(lab):
            name = scenario.rpartition("/")[2]
            run = partial(gradings.style, scenario=scenario, lab=lab)
            yield Job(f"style-{lab}-{name}", f"{lab}: the style {name}", "d", 15, _of_scenario(scenario), run)


def _bugs() -> Iterator[Job]:
    for checks in tomllib.loads(BUGS.read_text(encoding="utf-8")).values():
        for check, scenario in checks.items():
            bug = scenario.rpartition("/")[2]
            run = partial(gradings.caught, scenario=scenario, check=check)
            yield Job(f"bug-{check}", f"{check} catches {bug}", "e", 5, _of_scenario(scenario), run)


def _seeds() -> Iterator[Job]:
    for seed in range(101, 111):
        run = partial(gradings.full_marks, seed=seed)
        yield Job(f"seed-{seed}", f"The reference, seed {seed}", "f", 60, _grading(*_LABS), run)


def _conformance() -> Iterator[Job]:
    for name, files in _CONFORMANCE.items():
        depends = tuple(f"tests/conformance/{file}" for file in files)
        run = partial(programs.conformance, files=files)
        yield Job(f"conformance-{name}", f"Conformance: {name}", "g", 45, depends, run)


def _measurements() -> Iterator[Job]:
    record, drawn = ("benchmarks/measured", "benchmarks/published"), ("benchmarks/measured/drawn",)
    yield Job("record", "Published programs and kernels", "h", 120, record, programs.record, is_elastic=True)
    # In a process without a profiler, which may leave host calls slower behind.
    run = partial(programs.drawn, families=_OF_THE_HOST, options=("--no-kernel-names",))
    yield Job("drawn-host", "Host calls and small steps", "h", 90, drawn, run, is_elastic=True, share=90)
    run = partial(programs.drawn, families=_OF_THE_DEVICE)
    yield Job("drawn-device", "Kernels of drawn shapes", "h", 90, drawn, run, is_elastic=True, share=90)
    yield Job("calibration", "Calibration", "h", 30, ("vgpu/tools/calibrate",), programs.calibration)


def _class() -> Iterator[Job]:
    depends = (
        *_grading("lab1", "lab4"),
        "gradebook/grade_class.py",
        "gradebook/grading",
        "benchmarks/on_a_gpu/programs.py",
    )
    yield Job("class", "A class of five, one of them hostile", "i", 120, depends, programs.small_class)


JOBS: tuple[Job, ...] = (
    *_reference(), *_rewritten(), *_acceptance(), *_styles(), *_bugs(), *_seeds(), *_conformance(),
    *_measurements(), *_class(),
)  # fmt: skip
