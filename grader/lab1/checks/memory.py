"""Judges Lab 1's memory profile: every stage, each figure under its own name, equal to an independent count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradebox.course.criterion import builds_on, criterion, requires
from gradebox.run.assertions import number, require, require_equal
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab1.truth.memory import comparisons, require_parameters, steps, truths
from grader.lab1.truth.pictures import made_up_profiles, require_memory_drawn, require_written
from grader.lab1.truth.refusals import require_refused
from grader.shared.programs import picture_and_json
from labkit.results import STAGES

_ELEMENT_BYTES = (4, 2)
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_EITHER_FIRST = 0.24
"""Share of the peak in float16 that two libraries' workspaces may take, times 2 bytes; in float32 half of it."""


@criterion("lab1.memory")
class TestMemory:
    def test_every_stage_present(self, submission: Submission) -> None:
        """Profiles every stage of a training step."""
        profile = submission.probe("lab1.memory.by_default", values=False).profile
        _require_stages(profile)
        for stage in profile["stages"]:
            for field in ("allocated_bytes", "reserved_bytes", "peak_bytes"):
                number(stage[field], f"profile_training_memory(): {field} of {stage['stage']!r}")

    @requires("every_stage_present")
    def test_allocated_equals_truth(self, submission: Submission, generator: InputGenerator) -> None:
        """Tells the bytes allocated after each stage."""
        case = steps(generator)
        hint = (
            "torch.cuda.memory_allocated() at the end of each stage; until then keep what a training loop keeps "
            "(batch, output, loss) and nothing else, and no gradients after zero_grad"
        )
        profiles = _profiles(submission, generator)
        for real, profile in zip(truths(submission, **case), profiles, strict=True):
            real.compare(profile, "allocated_bytes", hint)
        for run, profile in zip(case["runs"], profiles, strict=True):
            stages = _allocated(profile, "profile_training_memory()")
            held, dtype = stages["model"] - stages["baseline"], run.get("dtype", "float32")
            what = f"bytes that the parameters added in stage 'model', in {dtype}"
            require_parameters(held, run["widths"], _BYTES[dtype], what)

    @requires("every_stage_present")
    def test_reserved_told_apart(self, submission: Submission, generator: InputGenerator) -> None:
        """Tells reserved bytes apart from allocated ones."""
        hint = (
            "reserved is what the caching allocator keeps, freed tensors included; the step begins with an empty cache"
        )
        case = steps(generator)
        profiles = _profiles(submission, generator)
        for run, real, profile in zip(case["runs"], truths(submission, **case), profiles, strict=True):
            if "dtype" not in run:  # a model may be cast before or after it is moved
                real.compare(profile, "reserved_bytes", hint)

    @requires("every_stage_present")
    @builds_on("allocated_equals_truth")
    def test_peak_equals_truth(self, submission: Submission, generator: InputGenerator) -> None:
        """Tells the peak of each stage."""
        hint = "torch.cuda.max_memory_allocated(), reset where each stage begins"
        case = steps(generator)
        profiles = _profiles(submission, generator)
        for run, real, profile in zip(case["runs"], truths(submission, **case), profiles, strict=True):
            if "dtype" not in run:  # a model may be cast before or after it is moved
                real.compare(profile, "peak_bytes", hint)

    @requires("every_stage_present")
    @builds_on("peak_equals_truth")
    def test_peak_reset_between_stages(self, submission: Submission, generator: InputGenerator) -> None:
        """Begins each stage with a new peak."""
        first = _profiles(submission, generator)[0]
        hint = "torch.cuda.reset_peak_memory_stats() where a stage begins, or every stage shows the largest so far"
        # Not every Adam takes more in the step than is there after it: the truth says how far the peak falls.
        truths(submission, **steps(generator))[0].compare_falls(first, hint)

    @requires("every_stage_present")
    @builds_on("allocated_equals_truth", "peak_equals_truth")
    def test_precisions_compared(self, submission: Submission, generator: InputGenerator) -> None:
        """Compares the memory of float32 and float16."""
        case = comparisons(generator)
        seen = submission.probe("lab1.memory.memory_precisions", values=False, **case)
        runs = [{**given, "dtype": dtype} for given in case["networks"] for dtype in ("float32", "float16")]
        hint = (
            "the whole model is cast, and each precision starts from nothing: model, batch and optimizer of the run "
            "before must be gone"
        )
        for given, profiles in zip(case["networks"], seen.profiles, strict=True):
            names = [profile["dtype"] for profile in profiles]
            require_equal(names, ["float32", "float16"], what="dtypes of compare_precisions()")
            for profile, bytes_per_element in zip(profiles, _ELEMENT_BYTES, strict=True):
                stages = _allocated(profile, "compare_precisions()")
                names = [stage["stage"] for stage in profile["stages"]]
                require_equal(names, list(STAGES), what="stages of compare_precisions()")
                require_parameters(
                    stages["model"] - stages["baseline"],
                    given["widths"],
                    bytes_per_element,
                    f"bytes of the model in {profile['dtype']}, layers of {given['widths']}",
                    f"{bytes_per_element} bytes per number: {hint}",
                )
        told = [profile for profiles in seen.profiles for profile in profiles]
        real = truths(submission, runs, case["kept"], case["freed"])
        for truth, profile, bytes_per_element in zip(real, told, _ELEMENT_BYTES * len(case["networks"]), strict=True):
            require_equal(profile["device"], "cuda", what="MemoryProfile.device")
            # Whichever runs first finds no workspaces of cuBLAS.
            truth.compare(profile, "allocated_bytes", hint, share=_EITHER_FIRST / bytes_per_element)
        require_refused(['profile_training_memory(device="cpu")', 'compare_precisions(device="cpu")'], seen.endings)
        require(
            not seen.indexed,
            f'profile_training_memory(device="cuda:0") raised {seen.indexed}',
            "a GPU may be named with its index; torch.device(device).type tells a CPU from a GPU",
        )
        for profile, run in zip(_profiles(submission, generator), steps(generator)["runs"], strict=True):
            require_equal(profile["dtype"], run.get("dtype", "float32"), what="MemoryProfile.dtype")

    @requires("every_stage_present")
    def test_memory_timeline_saved(self, submission: Submission, generator: InputGenerator) -> None:
        """Saves the results and the memory timeline."""
        plots = made_up_profiles(generator)
        seen = submission.probe("lab1.pictures.memory", values=False, plots=plots)
        rows = picture_and_json(seen, "python -m labs.lab1_gpu_basics.memory_profiling")
        names = [str(row.get("dtype")).removeprefix("torch.") for row in rows if isinstance(row, dict)]
        require_equal(names, ["float32", "float16"], what="profiles in the results of memory_profiling")
        for given, plot in zip([rows, *plots], [seen.shown, *seen.plots], strict=True):
            require_memory_drawn(plot, given, f"plot_memory() of {len(given)} profiles")
        require_written("plot_memory", seen)


def _profiles(submission: Submission, generator: InputGenerator) -> list[dict[str, Any]]:
    """What `profile_training_memory` says of this grading's steps."""
    profiles: list[dict[str, Any]] = submission.probe("lab1.memory.memory", values=False, **steps(generator)).profiles
    for profile in profiles:
        _require_stages(profile)
        require_equal(profile["device"], "cuda", what="MemoryProfile.device")
    return profiles


def _require_stages(profile: Mapping[str, Any]) -> None:
    names = [stage["stage"] for stage in profile["stages"]]
    require_equal(names, list(STAGES), what="stages of profile_training_memory()")


def _allocated(profile: Mapping[str, Any], what: str) -> dict[str, float]:
    """Allocated bytes by stage, of all stages."""
    stages = {stage["stage"]: stage for stage in profile["stages"] if isinstance(stage["stage"], str)}
    missing = [name for name in STAGES if name not in stages]
    require(not missing, f"{what}: there is no stage {', '.join(missing)}", "one StageMemory for each of STAGES")
    return {name: number(stages[name]["allocated_bytes"], f"{what}: allocated_bytes of {name!r}") for name in STAGES}
