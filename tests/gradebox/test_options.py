"""What a person can ask for, as typed: what it means, and what is refused in one line before anything runs."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import grader
from gradebox.common import resources
from gradebox.common.configuration import ROOT
from gradebox.report import presenter
from gradebox.run import request_builder
from gradebox.run.grading import Grading
from gradebox.run.options import TIME_LIMIT_SECONDS, Options
from gradebox.run.request import GradingError
from gradebox.run.request_builder import build_request
from gradebox.sandbox.devices import CPU, Device, DeviceError
from tests.gradebox.small_course import write_course, write_submission

COURSE = Options(course=str(ROOT / "grader"), submission="labs", origin=str(ROOT), device="vgpu")
ENTRY = '[[override]]\nstudent = "{}"\ncriterion = "lab1.analysis"\npoints = 2\nreason = "shown at the board"\n'


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"device": "vgpu:Voodoo2"}, "Voodoo2"),
        ({"device": "tpu"}, "expected auto, cuda, vgpu or vgpu:MODEL"),
        ({"lab": "9"}, "there is no lab 9; the labs are 1, 2, 3, 4, 5"),
        ({"lab": "one"}, "--lab one: expected numbers"),
        ({"criterion": "lab1.memry"}, "there is no criterion lab1.memry; the criteria are lab1.benchmark, "),
        ({"lab": "1", "criterion": "lab1.memory"}, "--lab and --criterion exclude each other"),
        ({"seed": -1}, "--grade-seed -1: a seed is 0 or larger"),
        ({"time_limit": 0.0}, "--time-limit 0: expected seconds, more than 0"),
        ({"time_limit": -3.0}, "--time-limit -3: expected seconds, more than 0"),
        ({"time_limit": float("nan")}, "--time-limit nan: expected seconds, more than 0"),
        ({"jobs": 0}, "--jobs 0: expected 1 or more"),
        ({"course": "/nowhere"}, "/nowhere/course.toml cannot be read: No such file or directory"),
        ({"overrides": "nowhere.toml"}, "nowhere.toml cannot be read"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_in_one_line(options: dict[str, Any], said: str) -> None:
    with pytest.raises((GradingError, ValueError, DeviceError), match=r"^[^\n]*$") as refused:
        build_request(replace(COURSE, **options))
    assert said in str(refused.value)


def test_a_folder_that_is_not_there_is_refused_before_anything_is_started() -> None:
    with pytest.raises(GradingError, match=r"^there is no folder .*no/such/folder; name the folder to grade$"):
        Grading(build_request(replace(COURSE, submission="no/such/folder")))


def test_what_is_not_asked_for_has_a_default() -> None:
    order = build_request(COURSE)
    assert order.course is grader.course()
    assert (order.labs, order.name, order.submission) == (order.course.labs, "labs", ROOT / "labs")
    assert (order.device.simulated, order.time_limit_seconds, order.overrides) == (True, TIME_LIMIT_SECONDS, ())
    assert order.jobs >= 1
    assert {build_request(COURSE).seed for _ in range(5)} != {order.seed}


def test_what_is_asked_for_is_ordered() -> None:
    order = build_request(replace(COURSE, lab="2", seed=5, time_limit=7.5, jobs=3))
    assert [lab.id for lab in order.labs] == ["lab2"]
    assert (order.seed, order.time_limit_seconds, order.jobs) == (5, 7.5, 3)


def test_overrides_are_those_of_the_student_that_is_named(tmp_path: Path) -> None:
    file = tmp_path / "given.toml"
    file.write_text(ENTRY.format("ada") + ENTRY.format("labs"))
    for student, count in (("ada", 1), (None, 1), ("bob", 0)):
        order = build_request(replace(COURSE, overrides=str(file), student=student))
        assert [(override.student, override.points) for override in order.overrides] == [
            (student or "labs", Decimal(2))
        ] * count


def test_overrides_inside_the_submission_are_refused(tmp_path: Path) -> None:
    (tmp_path / "overrides.toml").write_text("")
    with pytest.raises(ValueError, match=r"^[^\n]*is in the submission"):
        build_request(replace(COURSE, submission=str(tmp_path), overrides=str(tmp_path / "overrides.toml")))


@pytest.mark.usefixtures("_courses_are_forgotten")
def test_points_given_by_hand_are_in_the_grade_with_their_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "given.toml"
    file.write_text(ENTRY.format("ada").replace("lab1.analysis", "basics.numbers"))
    options = Options(
        course=str(write_course(tmp_path)),
        submission=str(write_submission(tmp_path)),
        report=str(tmp_path / "report"),
        overrides=str(file),
        student="ada",
    )
    presenter.grade(options)
    said = capsys.readouterr().out
    assert "given by the instructor instead of 4: shown at the board" in said
    assert "Grade 8/10" in said


@pytest.mark.parametrize(
    ("cores", "gigabytes", "checks", "jobs"),
    [
        *((1, 64, 160, 1), (2, 24, 160, 2), (8, 8, 160, 2), (8, 2, 160, 1), (64, 256, 160, 4), (3, None, 160, 3)),
        *((4, 64, 7, 1), (4, 64, 29, 2), (4, 64, 30, 3)),  # a criterion, a lab
    ],
)
def test_sandboxes_that_nobody_asked_for_fit_the_machine_and_the_work(
    cores: int, gigabytes: int | None, checks: int, jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "cores", lambda: cores)
    monkeypatch.setattr(resources, "memory_bytes", lambda: gigabytes and gigabytes * 2**30)
    assert request_builder.jobs_on(Device(CPU, "CPU"), checks) == jobs


@pytest.mark.parametrize(
    ("cores", "device_gibibytes", "checks", "jobs"),
    [(16, 80, 160, 8), (16, 15, 160, 2), (16, None, 160, 8), (4, 80, 160, 2), (2, 80, 160, 1), (16, 80, 7, 2)],
)
def test_on_a_real_gpu_its_memory_counts_as_well(
    cores: int, device_gibibytes: int | None, checks: int, jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "cores", lambda: cores)
    monkeypatch.setattr(resources, "memory_bytes", lambda: 128 << 30)
    memory = None if device_gibibytes is None else device_gibibytes << 30
    device = Device("cuda", "a GPU", hardware="GPU-1", memory_bytes=memory)
    assert request_builder.jobs_on(device, checks) == jobs
