"""Reads the checklist of a student's runs, and knows what each kind of run can show.

A run on a real GPU shows everything. A machine without one has the course's virtual GPU: a run on it shows that the
image and the command use a GPU well, and is accepted as in the labs. An image is paid for only if an engine described
it, and if what it says is what the Dockerfile and the requirements say.
"""

from __future__ import annotations

import re
from typing import Any

from gradebox.run.assertions import CheckFailed, number, require
from gradebox.run.submission import Submission
from grader.container.shared.checks.files import LAB
from grader.shared import reports

_SAME_WORK = ("batch_size", "amp", "images")
RUN_AGAIN = "run the container, then the checklist, again"


class Row:
    """What one run recorded, or the engine of the image; a value that is missing fails the check that reads it."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> Any:
        if self._values.get(name) is None:
            raise CheckFailed(f"the checklist does not say {name}", RUN_AGAIN)
        return self._values[name]

    def get(self, name: str) -> Any:
        """The value, or None."""
        return self._values.get(name)

    def number(self, name: str) -> float:
        """The value as a finite number."""
        return number(self[name], f"{name} in the checklist")

    def entries(self, name: str) -> list[Any]:
        """The value as a list."""
        require(isinstance(self[name], list), f"the checklist's {name} is damaged", RUN_AGAIN)
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
        require(all(isinstance(row, dict) for row in rows), "results/checklist.json is damaged", RUN_AGAIN)
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
        require(bool(re.fullmatch(r"[0-9a-f]{12,64}", identity)), f"the image's id is {identity!r}", RUN_AGAIN)
        return self._image


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
    require(min(seconds) > 0, f"an epoch took {min(seconds):g} s", RUN_AGAIN)
    return seconds


def require_memory(run: Row) -> float:
    """The GPU's memory was recorded at each epoch, and its numbers fit together; the peak in bytes."""
    memory = [entry if isinstance(entry, dict) else {} for entry in run.entries("memory")]
    require(
        len(memory) == run["epochs"] and bool(memory), f"the run recorded its memory {len(memory)} times", RUN_AGAIN
    )
    for entry in memory:
        allocated, reserved, peak = (
            Row(entry).number(name) for name in ("allocated_bytes", "reserved_bytes", "peak_bytes")
        )
        fits = 0 < allocated <= min(reserved, peak)
        require(fits, f"of {reserved:g} reserved bytes {allocated:g} are allocated, peak {peak:g}", RUN_AGAIN)
    return Row(memory[-1]).number("peak_bytes")
