"""`--device cuda` without a GPU: the reference earns every point on a virtual one that passes for a real one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.scenarios.build import ROOT


def _rehearse(*arguments: str) -> str:
    command = [sys.executable, "-m", "grader.rehearsal", "solutions", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_criterion_of_memory() -> None:
    assert "rehearsal of --device cuda: 5" in _rehearse("--criterion", "lab1.memory")


@pytest.mark.night
def test_a_criterion_of_times() -> None:
    """A check has a minute, and the products of a real GPU take a slow CPU longer: not in every run of the tests."""
    assert "rehearsal of --device cuda: 5" in _rehearse("--criterion", "lab1.benchmark")


def test_less_is_told_with_its_reason() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "grader.rehearsal", "labs", "--criterion", "lab1.benchmark"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "lab1.benchmark.returns_result: failed: " in done.stdout


@pytest.mark.night
def test_all_labs_but_for_what_no_cpu_computes_in_time() -> None:
    command = [sys.executable, "-m", "grader.rehearsal", "solutions"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lost = [line for line in done.stdout.splitlines() if line.startswith("lab")]
    assert all("no answer in time" in line or "too much memory" in line for line in lost), done.stdout
    score = float(done.stdout.rpartition("rehearsal of --device cuda: ")[2].split()[0])
    assert score >= 98
