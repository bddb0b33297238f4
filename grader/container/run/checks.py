"""Judges what the checklist says of the image and of the runs on a GPU and on the CPU."""

from __future__ import annotations

from gradebox.course.criterion import criterion, requires
from gradebox.run.assertions import require
from gradebox.run.submission import Submission
from grader.container.shared.checks.checklist import RUN_AGAIN, Checklist, Row, epoch_seconds, require_memory
from grader.container.shared.checks.command import start_words
from grader.container.shared.checks.dockerfile import Dockerfile
from grader.container.shared.checks.files import read, requirements_of
from grader.container.shared.checks.recipe import NVIDIA_CUDA, final_user, pinned_torch

BUDGET_GB = 4.0
"""Compressed, as a registry keeps it; the exercise's README says why not unpacked."""
STAND_IN_GB = 0.5
"""Added for the base image that a stand-in saved. NVIDIA's `-base-` images hold a small Linux and little of CUDA."""
LEAST_UTILIZATION = 0.7
LEAST_SAMPLES = 10
"""A second of the training, after NVML's own window has passed: fewer say nothing."""
MOST_SECONDS = 120.0
_FORMATS = (".pth", ".safetensors")


@criterion("container.run")
class TestRun:
    def test_image_built_from_the_dockerfile(self, submission: Submission) -> None:
        require_built(Checklist(submission), read(submission), {"requirements.txt": requirements_of(submission)})

    def test_image_within_budget(self, submission: Submission) -> None:
        require_within_budget(Checklist(submission), read(submission))

    def test_cuda_seen(self, submission: Submission) -> None:
        checklist = Checklist(submission)
        require(checklist.gpu["cuda_available"] is True, "the container saw no GPU", "docker run --gpus all ...")
        checklist.require_image()

    def test_trained_on_the_gpu(self, submission: Submission) -> None:
        run = Checklist(submission).gpu
        devices = run["parameter_devices"]
        require(devices == ["cuda:0"], f"the parameters were on {devices}, expected cuda:0")
        require_memory(run)

    @requires("trained_on_the_gpu")
    def test_utilization_above_70_percent(self, submission: Submission) -> None:
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
        seconds = Checklist(submission).gpu.number("seconds")
        require(0 < seconds < MOST_SECONDS, f"training took {seconds:.0f} s, expected less than {MOST_SECONDS:.0f} s")

    def test_model_on_the_volume(self, submission: Submission) -> None:
        require_models(Checklist(submission).computed)

    def test_no_errors_or_warnings(self, submission: Submission) -> None:
        runs = Checklist(submission).runs
        reported = [text for run in runs for name in ("errors", "warnings") for text in run.entries(name)]
        require(
            not reported,
            f"the runs reported {len(reported)} errors or warnings, first: {str(reported[:1])[:200]}",
        )

    def test_cpu_timed_against_the_gpu(self, submission: Submission) -> None:
        epoch_seconds(Checklist(submission))


def require_built(checklist: Checklist, dockerfile: Dockerfile, requirements: dict[str, str]) -> None:
    """The image and the runs are those of this Dockerfile and these requirements."""
    image = checklist.require_image()
    hint = "the Dockerfile was changed after the image was built: build, run and make the checklist again"
    user = final_user(dockerfile)
    if any(True for _ in dockerfile.in_image("USER")):
        require(
            image.get("user") == user, f"the image runs as {image.get('user')!r}, the Dockerfile says {user!r}", hint
        )
    words = start_words(dockerfile)
    actual = [str(word) for word in image.entries("command")]
    # An entry point of the base image comes before what the Dockerfile says; `$` is the engine's to fill in.
    if words and not any("$" in word for word in actual):
        require(actual[-len(words) :] == words, f"the image starts {actual}, the Dockerfile says {words}", hint)
    pins = pinned_torch(dockerfile, requirements)
    base = NVIDIA_CUDA.match(dockerfile.base_image)
    for run in checklist.runs:
        version = str(run["torch"])
        require(
            not pins or version.partition("+")[0] in pins,
            f"the run had torch {version}, pinned is {', '.join(sorted(pins))}",
            hint,
        )
        cuda = str(run.get("cuda"))
        require(
            base is None or cuda.partition(".")[0] == base["cuda"],
            f"the run's torch was made for CUDA {cuda}, the base image is {dockerfile.base_image}",
            hint,
        )


def require_within_budget(checklist: Checklist, dockerfile: Dockerfile) -> None:
    """The image is small enough to download, NVIDIA's base image included."""
    image = checklist.require_image()
    compressed = image.number("compressed_bytes") / 1e9
    require(compressed > 0, "the image has no size", RUN_AGAIN)
    saved = 0.0
    if image.get("stand_in"):
        require(
            "-base-" in dockerfile.base_image,
            f"the image was built on a stand-in of {dockerfile.base_image}, whose size it does not have",
            "build it on NVIDIA's image; a stand-in counts for `-base-` images alone",
        )
        saved = STAND_IN_GB
    added = f", with {saved:g} GB for the base image that a stand-in replaced" if saved else ""
    require(
        compressed + saved <= BUDGET_GB,
        f"the image is {compressed + saved:.2f} GB compressed{added}, expected at most {BUDGET_GB:g} GB",
        "docker history shows the layers; the README says what 4 GB means and how to get there",
    )


def require_models(run: Row) -> None:
    """The volume holds the model in both formats, and both can be loaded."""
    models = run.entries("models")
    files = [str(model.get("file")) for model in models if isinstance(model, dict) and model.get("bytes")]
    missing = [suffix for suffix in _FORMATS if not any(file.endswith(suffix) for file in files)]
    require(not missing, f"the run saved no {' and no '.join(missing)} file", RUN_AGAIN)
    require(
        run["models_on_volume"] is True,
        f"the volume does not hold what the run saved as {', '.join(files)}",
        "docker run -v $PWD/models:/models ..., and the same folder for the checklist",
    )
    damaged = [str(model.get("file")) for model in models if model.get("loads_again") is not True]
    require(not damaged, f"{', '.join(damaged)} could not be loaded again", "is the volume full?")
