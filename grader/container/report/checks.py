"""Judges the report: it is filled in, and its claims are those of the checklist."""

from __future__ import annotations

from gradebox.course.criterion import criterion
from gradebox.run.assertions import require_close, require_equal
from gradebox.run.submission import Submission
from grader.container.shared.checks.checklist import Checklist, epoch_seconds, require_memory
from grader.container.shared.checks.files import LAB
from grader.shared import reports

MIB = 2**20
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


@criterion("container.report")
class TestReport:
    def test_report_agrees_with_checklist(self, submission: Submission) -> None:
        judge_report(submission)


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
