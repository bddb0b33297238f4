"""Jobs that grade: the reference, right styles, planted bugs, other seeds. Their sandboxes live from job to job."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grader
from benchmarks.on_a_gpu.job import ROOT, Finding
from gradebox.run import request_builder
from gradebox.run.grade import CheckReport, Grade, Outcome
from gradebox.run.grading import Grading
from gradebox.run.request import GradingRequest
from gradebox.sandbox import Sandbox
from gradebox.sandbox.devices import Device
from tests.scenarios.build import SCENARIOS, load

if TYPE_CHECKING:
    from benchmarks.on_a_gpu.worker import Tools

SEED = 20260
"""Of gradings that name no other: what the scenarios of the tests are asked."""


@dataclass(frozen=True)
class Graded:
    """What came of a grading."""

    grade: Grade
    reports: dict[str, CheckReport]

    @property
    def is_full(self) -> bool:
        """Whether nothing lost points."""
        return self.grade.score == self.grade.max_score

    def details(self) -> dict[str, Any]:
        """For a result: what did not pass, and where the time went."""
        open_checks = {
            name: {"outcome": report.outcome.value, "message": report.message}
            for name, report in self.reports.items()
            if report.outcome is not Outcome.PASSED
        }
        return {
            "score": float(self.grade.score),
            "max_score": float(self.grade.max_score),
            "grading_seconds": self.grade.seconds,
            "seed": self.grade.seed,
            "isolation": self.grade.isolation,
            "not_passed": open_checks,
            "seconds_by_check": {name: round(report.seconds, 2) for name, report in self.reports.items()},
            "notes": [f"{note.kind}: {note.detail}" for note in self.grade.integrity],
        }


class Gradings:
    """Gradings on one device, one after the other, with the same sandboxes."""

    def __init__(self, device: Device, folder: Path) -> None:
        self._device = device
        self._folder = folder
        self._boxes: list[Sandbox] = []

    def grade(
        self, submission: Path, labs: str | None = None, *, checks: Collection[str] | None = None, seed: int = SEED
    ) -> Graded:
        """Grade a folder: these labs, or only these checks of theirs and what they build on."""
        course = grader.course()
        rubric, chosen = course.select(labs)
        count = sum(len(criterion.checks) for lab in course.rubric.labs for criterion in lab.criteria)
        jobs = request_builder.jobs_on(self._device, count)
        only = None if checks is None else frozenset(checks)
        order = GradingRequest(course, submission, rubric, tuple(chosen), self._device, seed, jobs=jobs, only=only)
        box, *clones = self._open(order)
        with Grading(order, sandbox=box, clones=clones) as grading:
            grading.carry_out()
            return Graded(grading.result(), dict(grading.reports))

    def scenario(self, name: str) -> Path:
        """The submission of a scenario, `lab1/bugs/no_warm_up`, built again."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        return load(SCENARIOS / name).build(self._folder)

    def close(self) -> None:
        for box in reversed(self._boxes):
            box.close()
        self._boxes.clear()

    def _open(self, order: GradingRequest) -> list[Sandbox]:
        if not self._boxes:
            first = Sandbox(order.submission, order.course.environment)
            first.side_by_side = order.jobs
            self._boxes.append(first.__enter__())
            self._boxes += [first.clone() for _ in range(order.jobs - 1)]
        return self._boxes


def full_marks(tools: Tools, *, submission: str = "solutions", labs: str | None = None, seed: int = SEED) -> Finding:
    """Grade a submission of this repository that is right: nothing may lose points."""
    return _full(tools.gradings.grade(ROOT / submission, labs, seed=seed))


def style(tools: Tools, *, scenario: str, lab: str) -> Finding:
    """Grade a right solution in another style."""
    return _full(tools.gradings.grade(tools.gradings.scenario(scenario), lab))


def _full(graded: Graded) -> Finding:
    grade = graded.grade
    summary = f"{grade.score} of {grade.max_score} in {grade.seconds:.0f} s"
    return Finding(graded.is_full, summary, graded.details())


def chosen_checks(tools: Tools, *, checks: Collection[str], seed: int) -> Finding:
    """Grade some checks of the reference: all must pass."""
    graded = tools.gradings.grade(ROOT / "solutions", checks=checks, seed=seed)
    passed = [name for name in checks if graded.reports[name].outcome is Outcome.PASSED]
    return Finding(len(passed) == len(checks), f"{len(passed)} of {len(checks)} passed", graded.details())


def caught(tools: Tools, *, scenario: str, check: str) -> Finding:
    """Grade one check of a planted bug: it must fail."""
    graded = tools.gradings.grade(tools.gradings.scenario(scenario), checks={check})
    report = graded.reports[check]
    return Finding(report.outcome is Outcome.FAILED, report.message[:200] or report.outcome.value, graded.details())


@functools.cache
def styles(lab: str) -> tuple[str, ...]:
    """The right solutions of a lab in other styles, as `scenario` takes them."""
    folder = SCENARIOS / lab / "variants"
    return tuple(sorted(path.relative_to(SCENARIOS).as_posix() for path in folder.iterdir() if path.is_dir()))
