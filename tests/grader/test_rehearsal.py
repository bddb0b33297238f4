"""`--device cuda` without a GPU: the reference earns every point on a virtual one that passes for a real one."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from dataclasses import replace

import pytest

import grader
from benchmarks.on_a_gpu.jobs import BUGS
from gradebox.run.grading import Grading
from gradebox.run.request import GradingRequest
from gradebox.sandbox.measuring import measured_by
from grader.rehearsal import devices
from grader.rehearsal.__main__ import Disturbed
from tests.scenarios.build import ROOT

WITHOUT_A_BUG = {
    "lab1.benchmark.returns_result",  # judges no time
    "lab2.amp.returns_result",
    "lab1.measurements.never_above_the_roofline",  # what is too fast fails the checks before it as well
}
LABS = {lab.id: float(lab.points) for lab in grader.course().labs}


def _rehearse(submission: str, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "grader.rehearsal", submission, *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def _points(printed: str) -> tuple[float, float]:
    match = re.search(r"^rehearsal of --device cuda: ([\d.]+) of ([\d.]+), ", printed, re.MULTILINE)
    assert match, printed
    return float(match[1]), float(match[2])


def _earns_all(*arguments: str) -> float:
    code, printed = _rehearse("solutions", *arguments)
    earned, most = _points(printed)
    assert (code, earned) == (0, most), printed
    return most


@pytest.mark.night
@pytest.mark.parametrize(
    ("criterion", "points"),
    [
        ("lab1.benchmark", 5),  # times
        ("lab1.memory", 5),  # bytes
        ("lab4.analysis", 5),  # a program of an A100's size
    ],
)
def test_a_criterion(criterion: str, points: float) -> None:
    assert _earns_all("--criterion", criterion) == points


@pytest.mark.night
@pytest.mark.parametrize(("lab", "points"), LABS.items())
def test_the_reference_earns_every_point(lab: str, points: float) -> None:
    assert _earns_all("--lab", lab) == points


@pytest.mark.night
@pytest.mark.parametrize("lab", LABS)
def test_neighbours_on_the_card_cost_no_point(lab: str) -> None:
    """Every probe that measures says so: all others may be slowed down."""
    _earns_all("--lab", lab, "--disturbed")


@pytest.mark.night
def test_a_probe_that_measures_and_does_not_say_so_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("grader.rehearsal.__main__", "gradebox.run.device_use"):
        monkeypatch.setattr(f"{module}.measured_by", lambda folder, probe: frozenset())
    course = grader.course()
    rehearsed = replace(
        course, devices=devices.__name__, environment=replace(course.environment, devices=devices.__name__)
    )
    rubric, labs = rehearsed.select(criteria="lab1.measurements")
    order = GradingRequest(rehearsed, ROOT / "solutions", rubric, tuple(labs), devices.parse("cuda"), 1)
    with Grading(order, device_use=Disturbed(order)) as grading:
        grading.carry_out()
        assert grading.result().score < grading.result().max_score


@pytest.mark.night
def test_every_check_that_measures_has_a_planted_bug_for_a_visit_to_a_gpu() -> None:
    course = grader.course()
    rehearsed = replace(
        course, devices=devices.__name__, environment=replace(course.environment, devices=devices.__name__)
    )
    order = GradingRequest(rehearsed, ROOT / "solutions", course.rubric, course.labs, devices.parse("cuda"), 1, jobs=2)
    with Grading(order) as grading:
        grading.carry_out()
        measuring = {
            check.id
            for check in grading.plan
            if any(
                request.device == "cuda" and measured_by(course.folder, request.probe)
                for request in grading.grounds(check.id).requests
            )
        }
    listed = {check for checks in tomllib.loads(BUGS.read_text(encoding="utf-8")).values() for check in checks}
    assert measuring - listed <= WITHOUT_A_BUG, "benchmarks/on_a_gpu/bugs.toml"


@pytest.mark.night
def test_less_is_told_with_its_reason() -> None:
    code, printed = _rehearse("labs", "--criterion", "lab1.benchmark")
    assert code == 1
    assert "lab1.benchmark.returns_result: failed: " in printed


@pytest.mark.night
def test_stubs_earn_nothing() -> None:
    code, printed = _rehearse("labs")
    assert (code, *_points(printed)) == (1, 0, sum(LABS.values()))
