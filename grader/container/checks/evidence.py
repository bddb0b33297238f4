"""Reads the checklist of a student's run, and knows which of it a simulated run cannot show."""

from __future__ import annotations

from typing import Any

from gradebox.assertions import CheckFailed, NeedsReview, number, require, require_close, require_equal
from gradebox.submission import Submission
from grader.shared import reports

LAB = "container_exercise"
BUDGET_GB = 4.0
"""Compressed, as a registry keeps it; the exercise's README says why not unpacked."""
LEAST_UTILIZATION = 0.7
LEAST_SAMPLES = 10
"""A second of the training, after NVML's own window has passed: fewer say nothing."""
MOST_SECONDS = 120.0
_KINDS: reports.Kinds = {
    "device": (str,),
    "cuda": (str,),
    "seconds": (int, float),
    "compressed_gb": (int, float),
    "unpacked_gb": (int, float),
}
_WRITE = "why this base image, what the size is made of, and what the GPU brought"


class Run:
    """One row of results/checklist.json; a value that is missing fails the check that asks for it."""

    def __init__(self, submission: Submission) -> None:
        document = reports.results(submission, LAB, "checklist.json")
        row = document["results"][0]
        require(isinstance(row, dict), "results/checklist.json is damaged", "run the checklist again")
        self._row: dict[str, Any] = row
        self.provenance: dict[str, Any] = document["provenance"]

    def __getitem__(self, name: str) -> Any:
        if self._row.get(name) is None:
            raise CheckFailed(f"the checklist does not say {name}", "run the container, then the checklist, again")
        return self._row[name]

    def number(self, name: str) -> float:
        return number(self[name], f"{name} in the checklist")

    def require_real(self) -> None:
        """A simulated GPU is no evidence that a container sees a real one: a person decides."""
        if self["simulated"]:
            raise NeedsReview(
                "the run was simulated: nobody has seen this container use a GPU",
                "run it on a machine with an NVIDIA GPU, then run the checklist",
            )


def judge_report(submission: Submission) -> None:
    """Fail unless REPORT.md is filled in and its claims are those of the checklist."""
    claims = reports.claims(submission, LAB, _KINDS, task="REPORT", write=_WRITE)
    run = Run(submission)
    reports.require_device(claims["device"], run.provenance)
    require_equal(claims["cuda"], run.provenance.get("cuda"), what="claim cuda")
    for name, expected in (
        ("seconds", run.number("seconds")),
        ("compressed_gb", run.number("compressed_bytes") / 1e9),
        ("unpacked_gb", run.number("unpacked_bytes") / 1e9),
    ):
        require_close(claims[name], expected, relative=0.02, what=f"claim {name}")
