"""The container exercise: right and wrong Dockerfiles, made-up checklists, the given programs, one whole grading."""

from __future__ import annotations

import contextlib
import json
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import jsonschema
import numpy as np
import pytest

import grader
from gradebox.assertions import CheckFailed, NeedsReview
from gradebox.report.document import SCHEMA_FILE
from gradebox.submission import Submission
from grader.container.checks import recipe
from grader.container.checks.command import require_command
from grader.container.checks.dockerfile import Dockerfile, parse
from grader.container.checks.exercise import TestReport as Report
from grader.container.checks.exercise import TestRun as Criteria
from solutions.container_exercise import checklist
from tests.deploy.conftest import ROOT
from tests.deploy.dockerfiles import MISTAKES, REFERENCE, STYLES, SUBTLE

EXERCISE = ROOT / "solutions" / "container_exercise"
REQUIREMENTS = (EXERCISE / "requirements.txt").read_text(encoding="utf-8")

RUN: dict[str, Any] = {
    "cuda_available": True,
    "simulated": False,
    "parameter_devices": ["cuda:0"],
    "utilization_ratio": 0.83,
    "utilization_samples": 400,
    "seconds": 41.5,
    "model_file": "mnist_cnn.safetensors",
    "model_bytes": 900712,
    "model_on_volume": True,
    "errors": [],
    "warnings": [],
    "compressed_bytes": 2_900_000_000,
    "unpacked_bytes": 5_700_000_000,
}
PROSE = "word " * 70
CLAIMS = (
    '```toml\n[claims]\ndevice = "L4"\ncuda = "13.2"\nseconds = 41.6\ncompressed_gb = 2.9\nunpacked_gb = 5.7\n```\n'
)


def dockerfile(text: str) -> Dockerfile:
    found = parse(text)
    assert found is not None
    return found


# What each check looks at, by its name in the rubric.
CHECKS: dict[str, Callable[[Dockerfile], None]] = {
    "gpu_base_image": recipe.require_gpu_base,
    "python_installed": recipe.require_python,
    "pytorch_pinned": lambda found: recipe.require_pytorch(found, {"requirements.txt": REQUIREMENTS}),
    "packages_below": recipe.require_order,
    "directories": recipe.require_directories,
    "environment": recipe.require_environment,
    "command": require_command,
    "user": recipe.require_user,
    "secrets": lambda found: recipe.require_no_secrets(found, context_is_limited=False),
    "left_over": recipe.require_nothing_left_over,
}


def refused(found: Dockerfile) -> set[str]:
    """The checks that fail."""
    failed = set()
    for name, check in CHECKS.items():
        try:
            check(found)
        except CheckFailed:
            failed.add(name)
    return failed


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_costs_its_check_and_no_other(mistake: str) -> None:
    old, new, expected = MISTAKES[mistake]
    assert REFERENCE.count(old) >= 1
    found = dockerfile(REFERENCE.replace(old, new))
    if mistake == "no place for models":
        found = dockerfile(REFERENCE.replace("/models /data", "/data").replace('"/models", "/data"', '"/data"'))
    failed = refused(found)
    assert expected in failed
    # Without a GPU base image its CUDA is unknown, and a foreign base says nothing of Python either.
    assert failed - {expected} <= ({"python_installed"} if expected == "gpu_base_image" else set())


@pytest.mark.parametrize("mistake", SUBTLE)
def test_a_mistake_that_looks_right_costs_its_check_and_no_other(mistake: str) -> None:
    old, new, expected = SUBTLE[mistake]
    assert REFERENCE.count(old) == 1
    assert refused(dockerfile(REFERENCE.replace(old, new))) == {expected}


@pytest.mark.parametrize("style", STYLES)
def test_another_style_costs_nothing(style: str) -> None:
    found = dockerfile(STYLES[style])
    for check in CHECKS.values():
        check(found)


def test_a_secret_that_is_only_mounted_is_none() -> None:
    text = REFERENCE.replace(
        "COPY train.py .", "COPY train.py .\nRUN --mount=type=secret,id=HF_TOKEN cat /run/secrets/x"
    )
    CHECKS["secrets"](dockerfile(text))


def test_a_whole_folder_may_be_copied_where_a_dockerignore_limits_it() -> None:
    found = dockerfile(REFERENCE.replace("COPY train.py .", "COPY . ."))
    recipe.require_no_secrets(found, context_is_limited=True)
    with pytest.raises(CheckFailed, match="copies the whole folder"):
        recipe.require_no_secrets(found, context_is_limited=False)


def test_a_hostile_dockerfile_costs_no_time() -> None:
    text = "FROM nvidia/cuda:13.2.0-base-ubuntu24.04\nRUN " + "apt install pip install $x " * 800
    started = time.process_time()
    for check in CHECKS.values():
        with contextlib.suppress(CheckFailed):
            check(dockerfile(text))
    assert time.process_time() - started < 1


class Folder:
    """A submission that is a few texts."""

    def __init__(self, row: Mapping[str, Any], report: str = "") -> None:
        document = {"provenance": {"device_name": "L4", "cuda": "13.2"}, "results": [row]}
        self._texts = {"results/checklist.json": json.dumps(document), "REPORT.md": report}

    def read_text(self, path: str) -> str | None:
        return self._texts.get(path.removeprefix("container_exercise/"))


def outcomes(**changes: Any) -> dict[str, str]:
    """How each check of the run ends when these entries of a good checklist are others."""
    submission = cast(Submission, Folder({**RUN, **changes}))
    found = {}
    for name in [name for name in dir(Criteria) if name.startswith("test_")]:
        try:
            getattr(Criteria(), name)(submission)
            found[name.removeprefix("test_")] = "passed"
        except (CheckFailed, NeedsReview) as error:
            found[name.removeprefix("test_")] = type(error).__name__
    return found


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"cuda_available": False}, "cuda_seen"),
        ({"parameter_devices": ["cpu"]}, "trained_on_the_gpu"),
        ({"utilization_ratio": 0.7}, "utilization_above_70_percent"),
        ({"utilization_ratio": None}, "utilization_above_70_percent"),
        ({"utilization_ratio": 83}, "utilization_above_70_percent"),
        ({"utilization_samples": 9}, "utilization_above_70_percent"),
        ({"seconds": 120.0}, "under_two_minutes"),
        ({"model_on_volume": False}, "model_on_the_volume"),
        ({"warnings": ["UserWarning: x"]}, "no_errors_or_warnings"),
        ({"errors": ["RuntimeError: CUDA error"]}, "no_errors_or_warnings"),
        ({"compressed_bytes": 4_000_000_001}, "image_within_budget"),
        ({}, None),
    ],
)
def test_a_criterion_that_is_not_met_is_told_from_the_others(change: dict[str, Any], check: str | None) -> None:
    found = outcomes(**change)
    assert {name for name, outcome in found.items() if outcome != "passed"} == ({check} if check else set())


def test_a_simulated_run_shows_nothing_about_a_real_gpu() -> None:
    assert outcomes(simulated=True)["cuda_seen"] == "NeedsReview"


def test_a_report_must_agree_with_the_checklist() -> None:
    Report().test_report_agrees_with_checklist(cast(Submission, Folder(RUN, CLAIMS + PROSE)))
    wrong = Folder(RUN, CLAIMS.replace("5.7", "4.7") + PROSE)
    with pytest.raises(CheckFailed, match="unpacked_gb"):
        Report().test_report_agrees_with_checklist(cast(Submission, wrong))


def test_the_exercise_lies_outside_the_100_points() -> None:
    assert grader.course().rubric.points == 100
    assert "container" not in {lab.id for lab in grader.course().rubric.labs}
    exercise = grader.course().rubric_of("container")
    assert [lab.id for lab in exercise.labs] == ["container"]
    assert exercise.points == 20


@pytest.fixture
def submission(tmp_path: Path) -> Path:
    """The reference with the checklist and the report of a run that nobody has made."""
    folder = tmp_path / "submission"
    shutil.copytree(ROOT / "solutions", folder, ignore=shutil.ignore_patterns("__pycache__"))
    results = folder / "container_exercise" / "results"
    results.mkdir(exist_ok=True)
    document = {"provenance": {"device_name": "L4", "cuda": "13.2"}, "results": [RUN]}
    (results / "checklist.json").write_text(json.dumps(document))
    (folder / "container_exercise" / "REPORT.md").write_text(CLAIMS + PROSE)
    return folder


def test_it_is_graded_by_its_name(submission: Path, tmp_path: Path, hadolint: str) -> None:
    command = [sys.executable, "-m", "pytest", "--grade", "--lab=container", "--device=vgpu"]
    done = subprocess.run(
        [*command, f"--submission={submission}", f"--grade-report={tmp_path}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    grade = json.loads((tmp_path / "grade.json").read_text())
    jsonschema.validate(grade, json.loads(SCHEMA_FILE.read_text()))
    assert (grade["score"], grade["max_score"]) == (20, 20)
    assert [lab["id"] for lab in grade["labs"]] == ["container"]
    assert "Lab container" in (tmp_path / "grade.html").read_text()


def write_mnist(folder: Path, images: int) -> None:
    """Files of MNIST's format with noise in them: for running the program, not for learning anything."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    random = np.random.default_rng(0)
    for split in ("train", "t10k"):
        pixels = random.integers(0, 256, (images, 28, 28)).astype(np.uint8)
        labels = random.integers(0, 10, images).astype(np.uint8)
        (raw / f"{split}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, images, 28, 28) + pixels.tobytes())
        (raw / f"{split}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, images) + labels.tobytes())


ENGINE = """#!/bin/sh
# Stands in for docker: one image, whose layers are a million zeros.
case "$1 $2" in
"image inspect") echo '[{"Id": "sha256:1", "Size": 1000000, "Config": {"User": "10001", "Cmd": ["python"]}}]';;
"image save") head -c 1000000 /dev/zero;;
esac
"""


@pytest.mark.night
def test_the_given_programs_fill_in_the_checklist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_mnist(tmp_path / "data", 64)
    (tmp_path / "models").mkdir()
    options = ["--offline", "--epochs=1", f"--data-dir={tmp_path}/data", f"--model-dir={tmp_path}/models"]
    done = subprocess.run([sys.executable, str(EXERCISE / "train.py"), *options], timeout=240, check=False)
    assert done.returncode == 0
    engine = tmp_path / "engine"
    engine.write_text(ENGINE)
    engine.chmod(0o755)
    arguments = ["--image=x", f"--engine={engine}", f"--models={tmp_path}/models", f"--out={tmp_path}/results"]
    assert checklist.main(arguments) == 0
    (row,) = json.loads((tmp_path / "results" / "checklist.json").read_text())["results"]
    assert row["model_on_volume"] is True
    assert row["unpacked_bytes"] == 1_000_000
    assert 0 < row["compressed_bytes"] < 10_000
    assert row["errors"] == []
    shown = capsys.readouterr().out
    assert "[x] the model is on the volume" in shown
    if not row["cuda_available"]:
        assert "[ ] the container sees a GPU" in shown
    (tmp_path / "models" / "mnist_cnn.safetensors").write_bytes(b"another file")
    assert checklist.read_run(tmp_path / "models")["model_on_volume"] is False


@pytest.mark.night
def test_a_run_that_fails_is_noted_too(tmp_path: Path) -> None:
    command = [sys.executable, str(EXERCISE / "train.py"), "--offline", f"--data-dir={tmp_path}"]
    done = subprocess.run([*command, f"--model-dir={tmp_path}"], capture_output=True, timeout=240, check=False)
    assert done.returncode == 1
    assert "Dataset not found" in json.loads((tmp_path / "run.json").read_text())["errors"][0]
