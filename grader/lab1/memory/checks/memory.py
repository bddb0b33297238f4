"""Judges Lab 1's memory profile: every stage, each figure under its own name, equal to an independent count."""

from __future__ import annotations

from gradebox.course.criterion import builds_on, criterion, requires
from gradebox.run.assertions import number, require, require_equal
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab1.memory.cases import (
    FIGURES,
    DefaultProfile,
    MemoryPictures,
    Network,
    Profile,
    comparisons,
    made_up_profiles,
    steps,
)
from grader.lab1.memory.checks.memory_plots import require_memory_drawn
from grader.lab1.memory.checks.stages import allocated, measured, require_falls, require_parameters, require_stages
from grader.lab1.memory.reference import Reference
from grader.lab1.shared.checks.pictures import require_written
from grader.lab1.shared.checks.refusals import require_refused
from grader.shared.programs import picture_and_json
from labkit.results import STAGES

_ELEMENT_BYTES = (4, 2)
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_EITHER_FIRST = 0.24
"""Share of the peak in float16 that two libraries' workspaces may take, times 2 bytes; in float32 half of it."""


@criterion("lab1.memory")
class TestMemory:
    def test_every_stage_present(self, submission: Submission) -> None:
        profile = submission.probe(DefaultProfile(), values=False).profile
        _require_stages(profile)
        for stage in profile["stages"]:
            figures = dict[str, object](stage)
            for field in FIGURES:
                number(figures[field], f"profile_training_memory(): {field} of {stage['stage']!r}")

    @requires("every_stage_present")
    def test_allocated_equals_reference(self, submission: Submission, generator: InputGenerator) -> None:
        hint = (
            "torch.cuda.memory_allocated() at the end of each stage; until then keep what a training loop keeps "
            "(batch, output, loss) and nothing else, and no gradients after zero_grad"
        )
        runs = _profiled(submission, generator)
        for _, reference, profile in runs:
            require_stages(reference, profile, "allocated_bytes", hint)
        for network, _, profile in runs:
            stages = allocated(profile, "profile_training_memory()")
            held, dtype = stages["model"] - stages["baseline"], network.get("dtype", "float32")
            what = f"bytes that the parameters added in stage 'model', in {dtype}"
            require_parameters(held, network["widths"], _BYTES[dtype], what)

    @requires("every_stage_present")
    def test_reserved_told_apart(self, submission: Submission, generator: InputGenerator) -> None:
        hint = (
            "reserved is what the caching allocator keeps, freed tensors included; the step begins with an empty cache"
        )
        for network, reference, profile in _profiled(submission, generator):
            if "dtype" not in network:  # a model may be cast before or after it is moved
                require_stages(reference, profile, "reserved_bytes", hint)

    @requires("every_stage_present")
    @builds_on("allocated_equals_reference")
    def test_peak_equals_reference(self, submission: Submission, generator: InputGenerator) -> None:
        hint = "torch.cuda.max_memory_allocated(), reset where each stage begins"
        for network, reference, profile in _profiled(submission, generator):
            if "dtype" not in network:  # a model may be cast before or after it is moved
                require_stages(reference, profile, "peak_bytes", hint)

    @requires("every_stage_present")
    @builds_on("peak_equals_reference")
    def test_peak_reset_between_stages(self, submission: Submission, generator: InputGenerator) -> None:
        _, reference, profile = _profiled(submission, generator)[0]
        hint = "torch.cuda.reset_peak_memory_stats() where a stage begins, or every stage shows the largest so far"
        # Not every Adam takes more in the step than is there after it: the reference says how far the peak falls.
        require_falls(reference, profile, hint)

    @requires("every_stage_present")
    @builds_on("allocated_equals_reference", "peak_equals_reference")
    def test_precisions_compared(self, submission: Submission, generator: InputGenerator) -> None:
        inputs = comparisons(generator)
        reply = submission.probe(inputs, values=False)
        runs: list[Network] = [
            {**network, "dtype": dtype} for network in inputs.networks for dtype in ("float32", "float16")
        ]
        hint = (
            "the whole model is cast, and each precision starts from nothing: model, batch and optimizer of the run "
            "before must be gone"
        )
        for network, profiles in zip(inputs.networks, reply.profiles, strict=True):
            dtypes = [profile["dtype"] for profile in profiles]
            require_equal(dtypes, ["float32", "float16"], what="dtypes of compare_precisions()")
            for profile, bytes_per_element in zip(profiles, _ELEMENT_BYTES, strict=True):
                stages = allocated(profile, "compare_precisions()")
                names = [stage["stage"] for stage in profile["stages"]]
                require_equal(names, list(STAGES), what="stages of compare_precisions()")
                require_parameters(
                    stages["model"] - stages["baseline"],
                    network["widths"],
                    bytes_per_element,
                    f"bytes of the model in {profile['dtype']}, layers of {network['widths']}",
                    f"{bytes_per_element} bytes per number: {hint}",
                )
        compared = [profile for profiles in reply.profiles for profile in profiles]
        references = measured(submission, runs, inputs.kept, inputs.freed)
        sizes = _ELEMENT_BYTES * len(inputs.networks)
        for reference, profile, bytes_per_element in zip(references, compared, sizes, strict=True):
            require_equal(profile["device"], "cuda", what="MemoryProfile.device")
            # Whichever runs first finds no workspaces of cuBLAS.
            require_stages(reference, profile, "allocated_bytes", hint, share=_EITHER_FIRST / bytes_per_element)
        require_refused(['profile_training_memory(device="cpu")', 'compare_precisions(device="cpu")'], reply.endings)
        require(
            not reply.indexed,
            f'profile_training_memory(device="cuda:0") raised {reply.indexed}',
            "a GPU may be named with its index; torch.device(device).type tells a CPU from a GPU",
        )
        for profile, network in zip(_profiles(submission, generator), steps(generator).runs, strict=True):
            require_equal(profile["dtype"], network.get("dtype", "float32"), what="MemoryProfile.dtype")

    @requires("every_stage_present")
    def test_memory_timeline_saved(self, submission: Submission, generator: InputGenerator) -> None:
        plots = made_up_profiles(generator)
        reply = submission.probe(MemoryPictures(plots=plots), values=False)
        rows = picture_and_json(reply, "python -m labs.lab1_gpu_basics.memory_profiling")
        names = [str(row.get("dtype")).removeprefix("torch.") for row in rows if isinstance(row, dict)]
        require_equal(names, ["float32", "float16"], what="profiles in the results of memory_profiling")
        for profiles, axes in zip([rows, *plots], [reply.shown, *reply.plots], strict=True):
            require_memory_drawn(axes, profiles, f"plot_memory() of {len(profiles)} profiles")
        require_written("plot_memory", reply)


def _profiles(submission: Submission, generator: InputGenerator) -> list[Profile]:
    """What `profile_training_memory` says of this grading's steps."""
    profiles = submission.probe(steps(generator), values=False).profiles
    for profile in profiles:
        _require_stages(profile)
        require_equal(profile["device"], "cuda", what="MemoryProfile.device")
    return profiles


def _profiled(submission: Submission, generator: InputGenerator) -> list[tuple[Network, Reference, Profile]]:
    """This grading's steps, each with its reference and what the submission says of it."""
    inputs, profiles = steps(generator), _profiles(submission, generator)
    references = measured(submission, inputs.runs, inputs.kept, inputs.freed)
    return list(zip(inputs.runs, references, profiles, strict=True))


def _require_stages(profile: Profile) -> None:
    names = [stage["stage"] for stage in profile["stages"]]
    require_equal(names, list(STAGES), what="stages of profile_training_memory()")
