"""`--device cuda` without a GPU: the reference earns every point on a virtual one that passes for a real one."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import grader
from tests.scenarios.build import ROOT

LABS = {lab.id: float(lab.points) for lab in grader.course().labs}


def _rehearse(submission: str, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "grader.rehearsal", submission, *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def _points(printed: str) -> tuple[float, float]:
    found = re.search(r"^rehearsal of --device cuda: ([\d.]+) of ([\d.]+), ", printed, re.MULTILINE)
    assert found, printed
    return float(found[1]), float(found[2])


def _earns_all(*arguments: str) -> float:
    code, printed = _rehearse("solutions", *arguments)
    earned, most = _points(printed)
    assert (code, earned) == (0, most), printed
    return most


@pytest.mark.parametrize(
    ("criterion", "points"),
    [
        ("lab1.benchmark", 5),  # times
        pytest.param("lab1.memory", 5, marks=pytest.mark.night),  # bytes
        ("lab4.analysis", 5),  # a program of an A100's size
    ],
)
def test_a_criterion(criterion: str, points: float) -> None:
    assert _earns_all("--criterion", criterion) == points


@pytest.mark.night
@pytest.mark.parametrize(("lab", "points"), LABS.items())
def test_the_reference_earns_every_point(lab: str, points: float) -> None:
    assert _earns_all("--lab", lab) == points


def test_less_is_told_with_its_reason() -> None:
    code, printed = _rehearse("labs", "--criterion", "lab1.benchmark")
    assert code == 1
    assert "lab1.benchmark.returns_result: failed: " in printed


@pytest.mark.night
def test_stubs_earn_nothing() -> None:
    code, printed = _rehearse("labs")
    assert (code, *_points(printed)) == (1, 0, sum(LABS.values()))
