"""Judges Lab 1's memory profile: every stage, each figure under its own name, equal to an independent count."""

from __future__ import annotations

from functools import partial

from gradebox.course.criterion import criterion, requires
from gradebox.run.assertions import number, recognising, require, require_equal
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
from grader.lab1.memory.checks.mistakes import CAST_AGAIN, RUN, Profiled, in_bytes, mistake_of
from grader.lab1.memory.checks.stages import allocated, require_falls, require_parameters, require_stages
from grader.lab1.shared.checks.pictures import require_visible, require_written
from grader.lab1.shared.checks.refusals import require_refused
from grader.shared.programs import picture_and_json
from labkit.results import STAGES

_STEP_FLOPS = 2 * 512 * (2 * 64 * 2048 + 3 * (2048 + 10) * 2048)
"""Of the lab's own model and batch: forward, and back to all but the inputs."""
_ELEMENT_BYTES = (4, 2)
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_EITHER_FIRST = 0.24
"""Share of the peak in float16 that two libraries' workspaces may take, times 2 bytes; in float32 half of it."""


@criterion("lab1.memory")
class TestMemory:
    def test_every_stage_present(self, submission: Submission) -> None:
        reply = submission.probe(DefaultProfile(), values=False)
        profile = reply.profile
        _require_stages(profile)
        for stage in profile["stages"]:
            figures = dict[str, object](stage)
            for field in FIGURES:
                number(figures[field], f"profile_training_memory(): {field} of {stage['stage']!r}")
        require(
            reply.product_flops >= _STEP_FLOPS,
            f"profile_training_memory(): matrix products of {reply.product_flops:,} FLOPs, fewer than the "
            f"{_STEP_FLOPS:,} of a forward and a backward pass",
            "Run the stages of a training step, and read the figures of each at its end.",
        )

    @requires("every_stage_present")
    def test_allocated_equals_reference(self, submission: Submission, generator: InputGenerator) -> None:
        hint = (
            "Read torch.cuda.memory_allocated() at the end of each stage. Until then keep what a training loop keeps "
            "(batch, output, loss) and nothing else, and no gradients after zero_grad."
        )
        profiled = _profiled(submission, generator)
        require_stages(profiled, "allocated_bytes", hint)
        for network, profile in zip(profiled.runs, profiled.profiles, strict=True):
            stages = allocated(profile, "profile_training_memory()")
            held, dtype = stages["model"] - stages["baseline"], network.get("dtype", "float32")
            what = f"bytes that the parameters added in stage 'model', in {dtype}"
            require_parameters(held, network["widths"], _BYTES[dtype], what)

    @requires("every_stage_present")
    def test_reserved_told_apart(self, submission: Submission, generator: InputGenerator) -> None:
        hint = (
            "Read torch.cuda.memory_reserved(), what the caching allocator keeps, freed tensors included. Begin the "
            "step with an empty cache."
        )
        require_stages(in_bytes(_profiled(submission, generator)), "reserved_bytes", hint)

    @requires("every_stage_present")
    def test_peak_equals_reference(self, submission: Submission, generator: InputGenerator) -> None:
        hint = "Read torch.cuda.max_memory_allocated(), and reset it where each stage begins."
        require_stages(in_bytes(_profiled(submission, generator)), "peak_bytes", hint)

    @requires("every_stage_present")
    def test_peak_reset_between_stages(self, submission: Submission, generator: InputGenerator) -> None:
        hint = "Call torch.cuda.reset_peak_memory_stats() where a stage begins: else it shows the largest peak so far."
        # Not every Adam takes more in the step than is there after it: the reference says how far the peak falls.
        require_falls(in_bytes(_profiled(submission, generator)), hint)

    @requires("every_stage_present")
    def test_precisions_compared(self, submission: Submission, generator: InputGenerator) -> None:
        inputs = comparisons(generator)
        reply = submission.probe(inputs, values=False)
        runs: list[Network] = [
            {**network, "dtype": dtype} for network in inputs.networks for dtype in ("float32", "float16")
        ]
        hint = (
            "Cast the whole model, and start each precision from nothing: model, batch and optimizer of the run before "
            "must be gone."
        )
        for profiles in reply.profiles:
            dtypes = [profile["dtype"] for profile in profiles]
            require_equal(dtypes, ["float32", "float16"], what="dtypes of compare_precisions()")
            for profile in profiles:
                allocated(profile, "compare_precisions()")
                names = [stage["stage"] for stage in profile["stages"]]
                require_equal(names, list(STAGES), what="stages of compare_precisions()")
                require_equal(profile["device"], "cuda", what="MemoryProfile.device")
        sizes = _ELEMENT_BYTES * len(inputs.networks)
        compared = in_bytes(
            Profiled(
                submission=submission,
                runs=runs,
                kept=inputs.kept,
                freed=inputs.freed,
                profiles=[profile for profiles in reply.profiles for profile in profiles],
                # Whichever runs first finds no workspaces of cuBLAS.
                shares=[_EITHER_FIRST / size for size in sizes],
            )
        )
        with recognising(lambda: mistake_of(compared, "allocated_bytes", tuple(RUN))):
            for run, profile, bytes_per_element in zip(runs, compared.profiles, sizes, strict=True):
                stages = allocated(profile, "compare_precisions()")
                added = stages["model"] - stages["baseline"]
                require_parameters(
                    added,
                    run["widths"],
                    bytes_per_element,
                    f"bytes of the model in {profile['dtype']}, layers of {run['widths']}",
                    CAST_AGAIN if added < 0 else hint,
                )
        require_stages(compared, "allocated_bytes", hint, tuple(RUN))
        require_refused(['profile_training_memory(device="cpu")', 'compare_precisions(device="cpu")'], reply.endings)
        require(
            not reply.indexed,
            f'profile_training_memory(device="cuda:0") raised {reply.indexed}',
            'Ask torch.device(device).type: a GPU may be named with its index, as in "cuda:0".',
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
            what = f"plot_memory() of {len(profiles)} profiles"
            require_visible("plot_memory", partial(require_memory_drawn, profiles=profiles, what=what), axes, what)
        require_written("plot_memory", reply)


def _profiles(submission: Submission, generator: InputGenerator) -> list[Profile]:
    """What `profile_training_memory` says of this grading's steps."""
    profiles = submission.probe(steps(generator), values=False).profiles
    for profile in profiles:
        _require_stages(profile)
        require_equal(profile["device"], "cuda", what="MemoryProfile.device")
    return profiles


def _profiled(submission: Submission, generator: InputGenerator) -> Profiled:
    """This grading's steps and what the submission says of them."""
    inputs = steps(generator)
    return Profiled(submission, inputs.runs, inputs.kept, inputs.freed, _profiles(submission, generator))


def _require_stages(profile: Profile) -> None:
    names = [stage["stage"] for stage in profile["stages"]]
    require_equal(names, list(STAGES), what="stages of profile_training_memory()")
