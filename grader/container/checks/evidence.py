"""Reads the checklist of a student's runs, and knows what each kind of run can show.

A run on a real GPU shows everything. A machine without one has the course's virtual GPU: a run on it shows that the
image and the command use a GPU well, and is accepted as in the labs. An image is paid for only if an engine described
it, and if what it says is what the Dockerfile and the requirements say.
"""

from __future__ import annotations

import re
from typing import Any

from gradebox.run.assertions import CheckFailed, number, require, require_close, require_equal
from gradebox.run.submission import Submission
from grader.container.checks.command import start_words
from grader.container.checks.dockerfile import Dockerfile
from grader.container.checks.recipe import NVIDIA_CUDA, final_user, pinned_torch
from grader.shared import reports

LAB = "container_exercise"
BUDGET_GB = 4.0
"""Compressed, as a registry keeps it; the exercise's README says why not unpacked."""
STAND_IN_GB = 0.5
"""Added for the base image that a stand-in saved. NVIDIA's `-base-` images hold a small Linux and little of CUDA."""
LEAST_UTILIZATION = 0.7
LEAST_SAMPLES = 10
"""A second of the training, after NVML's own window has passed: fewer say nothing."""
MOST_SECONDS = 120.0
MIB = 2**20
_FORMATS = (".pth", ".safetensors")
_SAME_WORK = ("batch_size", "amp", "images")
_RUN_AGAIN = "run the container, then the checklist, again"
_KINDS: reports.Kinds = {
    "device": (str,),
    "cuda": (str,),
    "seconds": (int, float),
    "gpu_epoch_seconds": (int, float),
    "cpu_epoch_seconds": (int, float),
    "speedup": (int, float),
    "peak_mib": (int, float),
    "compressed_gb": (int, float),
    "unpacked_gb": (int, float),
}
_WRITE = "why this base image, what the size is made of, and what the GPU brought"


class Row:
    """What one run recorded, or the engine of the image; a value that is missing fails the check that reads it."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> Any:
        if self._values.get(name) is None:
            raise CheckFailed(f"the checklist does not say {name}", _RUN_AGAIN)
        return self._values[name]

    def get(self, name: str) -> Any:
        """The value, or None."""
        return self._values.get(name)

    def number(self, name: str) -> float:
        """The value as a finite number."""
        return number(self[name], f"{name} in the checklist")

    def entries(self, name: str) -> list[Any]:
        """The value as a list."""
        require(isinstance(self[name], list), f"the checklist's {name} is damaged", _RUN_AGAIN)
        return list(self[name])

    @property
    def simulated(self) -> bool:
        """Whether the GPU was a virtual one; a run that does not say so is damaged."""
        return bool(self["simulated"])


class Checklist:
    """results/checklist.json: the run on a GPU, the run on the CPU, the image."""

    def __init__(self, submission: Submission) -> None:
        document = reports.results(submission, LAB, "checklist.json")
        rows = document["results"]
        require(all(isinstance(row, dict) for row in rows), "results/checklist.json is damaged", _RUN_AGAIN)
        self.runs = [Row(row) for row in rows]
        self.provenance: dict[str, Any] = document["provenance"]
        recorded = self.provenance.get("recorded")
        self._recorded: dict[str, Any] = recorded if isinstance(recorded, dict) else {}
        image = document.get("image")
        self._image = Row(image) if isinstance(image, dict) else None

    @property
    def gpu(self) -> Row:
        """The run on the GPU, real or virtual; fails the check if there is none."""
        for run in self.runs:
            if str(run.get("device")).startswith("cuda"):
                self._require_no_unused_gpu(run)
                return run
        raise CheckFailed(
            "the checklist holds no run on a GPU",
            "docker run --gpus all ...; on a machine without a GPU, run it on the virtual one (README)",
        )

    @property
    def cpu(self) -> Row:
        """The run on the CPU; fails the check if there is none."""
        for run in self.runs:
            if run.get("device") == "cpu":
                return run
        raise CheckFailed(
            "the checklist holds no run on the CPU", 'docker run -e CUDA_VISIBLE_DEVICES="" ..., then the checklist'
        )

    @property
    def computed(self) -> Row:
        """The run whose model is worth keeping: a virtual GPU's has no values, the CPU's has."""
        gpu = next((run for run in self.runs if str(run.get("device")).startswith("cuda")), None)
        return gpu if gpu is not None and not gpu.get("simulated") else self.cpu

    def _require_no_unused_gpu(self, run: Row) -> None:
        gpus = self._recorded.get("gpus") or []
        require(
            not run.simulated or not gpus,
            f"the run was on a virtual GPU, on a machine with {', '.join(map(str, gpus))}",
            "run the container with --gpus all, then the checklist",
        )

    @property
    def has_image(self) -> bool:
        """Whether an engine described an image."""
        return self._image is not None and bool(self._recorded.get("engine"))

    def require_image(self) -> Row:
        """What an engine said of the image; without an engine there is none, whatever else was recorded."""
        if self._image is None or not self.has_image:
            raise CheckFailed(
                "no engine built an image: the programs ran outside of a container",
                "docker build, or buildah, which needs no daemon; then the checklist with --image NAME",
            )
        identity = str(self._image["id"]).removeprefix("sha256:")
        require(bool(re.fullmatch(r"[0-9a-f]{12,64}", identity)), f"the image's id is {identity!r}", _RUN_AGAIN)
        return self._image


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
    require(compressed > 0, "the image has no size", _RUN_AGAIN)
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
    require(not missing, f"the run saved no {' and no '.join(missing)} file", _RUN_AGAIN)
    require(
        run["models_on_volume"] is True,
        f"the volume does not hold what the run saved as {', '.join(files)}",
        "docker run -v $PWD/models:/models ..., and the same folder for the checklist",
    )
    damaged = [str(model.get("file")) for model in models if model.get("loads_again") is not True]
    require(not damaged, f"{', '.join(damaged)} could not be loaded again", "is the volume full?")


def epoch_seconds(checklist: Checklist) -> tuple[float, float]:
    """Seconds of an epoch on the GPU and on the CPU, of the same work."""
    gpu, cpu = checklist.gpu, checklist.cpu
    for name in _SAME_WORK:
        require(
            gpu[name] == cpu[name],
            f"{name} was {gpu[name]} on the GPU and {cpu[name]} on the CPU: that compares different work",
            "give both runs the same options; only the number of epochs may differ",
        )
    seconds = gpu.number("epoch_seconds"), cpu.number("epoch_seconds")
    require(min(seconds) > 0, f"an epoch took {min(seconds):g} s", _RUN_AGAIN)
    return seconds


def require_memory(run: Row) -> float:
    """The GPU's memory was recorded at each epoch, and its numbers fit together; the peak in bytes."""
    memory = [entry if isinstance(entry, dict) else {} for entry in run.entries("memory")]
    require(
        len(memory) == run["epochs"] and bool(memory), f"the run recorded its memory {len(memory)} times", _RUN_AGAIN
    )
    for entry in memory:
        allocated, reserved, peak = (
            Row(entry).number(name) for name in ("allocated_bytes", "reserved_bytes", "peak_bytes")
        )
        fits = 0 < allocated <= min(reserved, peak)
        require(fits, f"of {reserved:g} reserved bytes {allocated:g} are allocated, peak {peak:g}", _RUN_AGAIN)
    return Row(memory[-1]).number("peak_bytes")


def judge_report(submission: Submission) -> None:
    """Fail unless REPORT.md is filled in and its claims are those of the checklist."""
    claims = reports.claims(submission, LAB, _KINDS, task="REPORT", write=_WRITE)
    checklist = Checklist(submission)
    run = checklist.gpu
    reports.require_device(claims["device"], checklist.provenance)
    require_equal(claims["cuda"], checklist.provenance.get("cuda"), what="claim cuda")
    gpu, cpu = epoch_seconds(checklist)
    image = checklist.require_image() if checklist.has_image else None
    for name, expected in (
        ("seconds", run.number("seconds")),
        ("gpu_epoch_seconds", gpu),
        ("cpu_epoch_seconds", cpu),
        ("peak_mib", require_memory(run) / MIB),
        ("compressed_gb", image.number("compressed_bytes") / 1e9 if image else 0.0),
        ("unpacked_gb", image.number("unpacked_bytes") / 1e9 if image else 0.0),
    ):
        require_close(claims[name], expected, relative=0.02, what=f"claim {name}")
    # Of two rounded numbers.
    require_close(claims["speedup"], cpu / gpu, relative=0.05, what="claim speedup")
