"""Judges Lab 1's memory profile: every stage, each figure under its own name, equal to an independent count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradebox.assertions import mebibytes, number, require, require_equal
from gradebox.criterion import criterion, requires
from gradebox.fresh import Fresh
from gradebox.submission import Submission
from grader.lab1.truth.memory import network, networks, require_parameters, truth
from grader.shared.programs import picture_and_json
from labkit.results import STAGES


@criterion("lab1.memory")
class TestMemory:
    def test_every_stage_present(self, submission: Submission, fresh: Fresh) -> None:
        """Profiles every stage of a training step."""
        seen = submission.probe("lab1.gpu_basics.memory", values=False, **network(fresh))
        names = [stage["stage"] for stage in seen.profile["stages"]]
        require_equal(names, list(STAGES), what="stages of profile_training_memory()")
        require_equal(str(seen.profile["dtype"]).removeprefix("torch."), "float32", what="MemoryProfile.dtype")

    @requires("every_stage_present")
    def test_allocated_equals_truth(self, submission: Submission, fresh: Fresh) -> None:
        """Tells the bytes allocated after each stage."""
        case = network(fresh)
        seen = submission.probe("lab1.gpu_basics.memory", values=False, **case)
        real = truth(submission, case)
        hint = (
            "torch.cuda.memory_allocated() at the end of each stage; until then keep what a training loop keeps "
            "(batch, output, loss) and nothing else, and no gradients after zero_grad"
        )
        real.compare(seen.profile, "allocated_bytes", hint)
        stages = _allocated(seen.profile, "profile_training_memory()")
        held = stages["model"] - stages["baseline"]
        require_parameters(held, case["widths"], 4, "bytes that the parameters added in stage 'model'")

    @requires("every_stage_present")
    def test_reserved_told_apart(self, submission: Submission, fresh: Fresh) -> None:
        """Tells reserved bytes apart from allocated ones."""
        case = network(fresh)
        seen = submission.probe("lab1.gpu_basics.memory", values=False, **case)
        truth(submission, case).compare(
            seen.profile, "reserved_bytes", "reserved is what the caching allocator keeps, freed tensors included"
        )

    @requires("every_stage_present")
    def test_peak_equals_truth(self, submission: Submission, fresh: Fresh) -> None:
        """Tells the peak of each stage."""
        case = network(fresh)
        seen = submission.probe("lab1.gpu_basics.memory", values=False, **case)
        truth(submission, case).compare(
            seen.profile, "peak_bytes", "torch.cuda.max_memory_allocated(), reset where each stage begins"
        )

    @requires("every_stage_present")
    def test_peak_reset_between_stages(self, submission: Submission, fresh: Fresh) -> None:
        """Begins each stage with a new peak."""
        case = network(fresh)
        seen = submission.probe("lab1.gpu_basics.memory", values=False, **case)
        hint = "torch.cuda.reset_peak_memory_stats() where a stage begins, or every stage shows the largest so far"
        peaks = {stage["stage"]: number(stage["peak_bytes"], "peak_bytes") for stage in seen.profile["stages"]}
        require(
            peaks["loss"] < 0.9 * max(peaks.values()) and peaks["zero_grad"] < max(peaks.values()),
            f"the peak never falls: {mebibytes(peaks['zero_grad'])} in 'zero_grad', which needs less than 'step'",
            hint,
        )
        truth(submission, case).compare_falls(seen.profile, hint)

    @requires("every_stage_present")
    def test_precisions_compared(self, submission: Submission, fresh: Fresh) -> None:
        """Compares the memory of float32 and float16."""
        cases = networks(fresh)
        seen = submission.probe("lab1.gpu_basics.memory_precisions", values=False, networks=cases)
        for case, profiles in zip(cases, seen.profiles, strict=True):
            names = [str(profile["dtype"]).removeprefix("torch.") for profile in profiles]
            require_equal(names, ["float32", "float16"], what="dtypes of compare_precisions()")
            for profile, bytes_per_element in zip(profiles, (4, 2), strict=True):
                stages = _allocated(profile, "compare_precisions()")
                require_parameters(
                    stages["model"] - stages["baseline"],
                    case["widths"],
                    bytes_per_element,
                    f"bytes of the model in {profile['dtype']}, layers of {case['widths']}",
                    f"{bytes_per_element} bytes per number: the whole model is cast. And each precision starts from "
                    "nothing: model, batch and optimizer of the run before must be gone",
                )

    @requires("every_stage_present", "precisions_compared")
    def test_memory_timeline_saved(self, submission: Submission) -> None:
        """Saves the results and the memory timeline."""
        seen = submission.probe(
            "shared.programs.run", values=False, module="lab1_gpu_basics.memory_profiling", arguments=[]
        )
        rows = picture_and_json(seen, "python -m labs.lab1_gpu_basics.memory_profiling")
        names = [str(row.get("dtype")).removeprefix("torch.") for row in rows if isinstance(row, dict)]
        require_equal(names, ["float32", "float16"], what="profiles in the results of memory_profiling")


def _allocated(profile: Mapping[str, Any], what: str) -> dict[str, float]:
    """Allocated bytes by stage, of all stages."""
    stages = {stage["stage"]: stage for stage in profile["stages"] if isinstance(stage["stage"], str)}
    missing = [name for name in STAGES if name not in stages]
    require(not missing, f"{what}: there is no stage {', '.join(missing)}", "one StageMemory for each of STAGES")
    return {name: number(stages[name]["allocated_bytes"], f"{what}: allocated_bytes of {name!r}") for name in STAGES}
