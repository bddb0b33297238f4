"""The container exercise: right and wrong Dockerfiles, made-up checklists, the given programs, one whole grading."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import jsonschema
import numpy as np
import pytest
import torch

import grader
from gradebox.report.document import SCHEMA_FILE
from gradebox.run.assertions import CheckFailed, NeedsReview
from gradebox.run.submission import Submission
from grader.container.dockerfile import checks as recipe
from grader.container.hygiene.checks import require_no_secrets, require_nothing_left_over
from grader.container.report.checks import TestReport as Report
from grader.container.run.checks import TestRun as Criteria
from grader.container.shared.checks.command import start_words
from grader.container.shared.checks.dockerfile import Dockerfile, parse
from grader.container.shared.checks.recipe import NVIDIA_CUDA, final_user, installs, pinned_torch
from solutions.container_exercise import checklist
from solutions.container_exercise import train as train_program
from tests.deploy.conftest import ROOT
from tests.deploy.dockerfiles import MISTAKES, NEVER_RUN, REFERENCE, STYLES, SUBTLE

EXERCISE = ROOT / "solutions" / "container_exercise"
REQUIREMENTS = (EXERCISE / "requirements.txt").read_text(encoding="utf-8")

MIB = 2**20
GPU_RUN: dict[str, Any] = {
    "device": "cuda:0",
    "device_name": "L4",
    "cuda_available": True,
    "simulated": False,
    "torch": "2.15.0+cu132",
    "cuda": "13.2",
    "batch_size": 4096,
    "amp": False,
    "images": 60_000,
    "epochs": 2,
    "parameter_devices": ["cuda:0"],
    "utilization_ratio": 0.83,
    "utilization_samples": 400,
    "seconds": 41.5,
    "epoch_seconds": 20.75,
    "memory": 2 * [{"allocated_bytes": 184 * MIB, "reserved_bytes": 1672 * MIB, "peak_bytes": 1210 * MIB}],
    "models": [
        {"file": f"mnist_cnn{suffix}", "bytes": 900712, "sha256": "a" * 64, "loads_again": True}
        for suffix in (".pth", ".safetensors")
    ],
    "models_on_volume": True,
    "errors": [],
    "warnings": [],
}
CPU_RUN: dict[str, Any] = {
    **GPU_RUN,
    "device": "cpu",
    "device_name": "CPU",
    "cuda_available": False,
    "parameter_devices": ["cpu"],
    "utilization_ratio": None,
    "utilization_samples": 0,
    "seconds": 166.0,
    "epoch_seconds": 83.0,
    "memory": None,
}
IMAGE: dict[str, Any] = {
    "name": "gpu-training:v1.0",
    "id": "sha256:" + "0123456789abcdef" * 4,
    "user": "10001",
    "command": ["/opt/nvidia/nvidia_entrypoint.sh", "python", "train.py", "--batch-size", "4096", "--epochs", "40"],
    "stand_in": None,
    "compressed_bytes": 2_900_000_000,
    "unpacked_bytes": 5_700_000_000,
}
RECORDED: dict[str, Any] = {"engine": "Docker version 28.2.2", "system": "Linux x86_64", "gpus": ["L4"], "note": ""}
VIRTUAL: dict[str, Any] = {"gpu": {"simulated": True}, "recorded": {"gpus": []}}
"""On a machine without a GPU, on the course's virtual one."""
WITHOUT_ENGINE: dict[str, Any] = {"image": None, "recorded": {"engine": None}}
PROSE = " ".join(f"word{number}" for number in range(70))
CLAIMS = (
    '```toml\n[claims]\ndevice = "L4"\ncuda = "13.2"\nseconds = 41.6\ngpu_epoch_seconds = 20.8\n'
    "cpu_epoch_seconds = 83\nspeedup = 4.0\npeak_mib = 1210\ncompressed_gb = 2.9\nunpacked_gb = 5.7\n```\n"
)


def checklist_of(
    gpu: Mapping[str, Any] | None = None,
    cpu: Mapping[str, Any] | None = None,
    image: Mapping[str, Any] | None = MappingProxyType({}),
    recorded: Mapping[str, Any] | None = None,
    without: tuple[str, ...] = (),
) -> dict[str, Any]:
    """A good checklist, with these entries of its parts changed, and without these runs."""
    runs = {"gpu": {**GPU_RUN, **(gpu or {})}, "cpu": {**CPU_RUN, **(cpu or {})}}
    provenance = {name: runs["gpu"][name] for name in ("device_name", "simulated", "torch", "cuda")}
    return {
        "schema": 2,
        "provenance": {**provenance, "recorded": {**RECORDED, **(recorded or {})}},
        "image": None if image is None else {**IMAGE, **image},
        "results": [run for name, run in runs.items() if name not in without],
    }


def dockerfile(text: str) -> Dockerfile:
    parsed = parse(text)
    assert parsed is not None
    return parsed


# What each check looks at, by its name in the rubric.
CHECKS: dict[str, Callable[[Dockerfile], None]] = {
    "gpu_base_image": recipe.require_gpu_base,
    "python_installed": recipe.require_python,
    "pytorch_pinned": lambda file: recipe.require_pytorch(file, {"requirements.txt": REQUIREMENTS}),
    "packages_below": recipe.require_order,
    "directories": recipe.require_directories,
    "environment": recipe.require_environment,
    "command": recipe.require_command,
    "user": recipe.require_user,
    "secrets": lambda file: require_no_secrets(file, context_is_limited=False),
    "left_over": require_nothing_left_over,
}


def refused(file: Dockerfile) -> set[str]:
    """The checks that fail."""
    failed = set()
    for name, check in CHECKS.items():
        try:
            check(file)
        except CheckFailed:
            failed.add(name)
    return failed


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_costs_its_check_and_no_other(mistake: str) -> None:
    old, new, expected = MISTAKES[mistake]
    assert REFERENCE.count(old) >= 1
    file = dockerfile(REFERENCE.replace(old, new))
    if mistake == "no place for models":
        file = dockerfile(REFERENCE.replace("/models /data", "/data").replace('"/models", "/data"', '"/data"'))
    failed = refused(file)
    assert expected in failed
    # Without a GPU base image its CUDA is unknown, and a foreign base says nothing of Python either.
    assert failed - {expected} <= ({"python_installed"} if expected == "gpu_base_image" else set())


@pytest.mark.parametrize("mistake", SUBTLE)
def test_a_mistake_that_looks_right_costs_its_check_and_no_other(mistake: str) -> None:
    old, new, expected = SUBTLE[mistake]
    assert REFERENCE.count(old) == 1
    assert refused(dockerfile(REFERENCE.replace(old, new))) == {expected}


@pytest.mark.parametrize("how", NEVER_RUN)
def test_packages_that_no_run_installs_are_not_installed(how: str) -> None:
    assert REFERENCE.count("&& pip install") == 1
    file = dockerfile(REFERENCE.replace("&& pip install", NEVER_RUN[how]))
    assert {"pytorch_pinned", "packages_below"} <= refused(file)


@pytest.mark.parametrize(
    "run",
    [
        "id -u me || pip install torch==1.0",
        "if true; then pip install torch==1.0; fi",
        "if [ -d /opt ]; then exit 0; fi; pip install torch==1.0",
        "if false; then :; elif test -d /opt; then :; else pip install torch==1.0; fi",
        "while ! curl x; do sleep 1; done; pip install torch==1.0",
        "for name in torch==1.0; do pip install torch==1.0; done",
        "install_all() { pip install torch==1.0; } && install_all",
        "exec 2>&1; set -eux; pip install torch==1.0",
        "test -d /opt && true || pip install torch==1.0",
        "echo begin && sudo -H pip install torch==1.0",
        "PIP_NO_INPUT=1 /opt/venv/bin/pip install torch==1.0",
        "curl x || exit 1; python3 -m pip install torch==1.0",
        "uv pip install torch==1.0",
    ],
)
def test_packages_that_a_run_may_install_are_installed(run: str) -> None:
    (found,) = installs(dockerfile(f"FROM x\nRUN {run}"))
    assert "torch==1.0" in found.arguments


@pytest.mark.parametrize("style", STYLES)
def test_another_style_costs_nothing(style: str) -> None:
    file = dockerfile(STYLES[style])
    for check in CHECKS.values():
        check(file)


def test_a_secret_that_is_only_mounted_is_none() -> None:
    text = REFERENCE.replace(
        "COPY train.py .", "COPY train.py .\nRUN --mount=type=secret,id=HF_TOKEN cat /run/secrets/x"
    )
    CHECKS["secrets"](dockerfile(text))


def test_a_whole_folder_may_be_copied_where_a_dockerignore_limits_it() -> None:
    file = dockerfile(REFERENCE.replace("COPY train.py .", "COPY . ."))
    require_no_secrets(file, context_is_limited=True)
    with pytest.raises(CheckFailed, match="copies the whole folder"):
        require_no_secrets(file, context_is_limited=False)


def test_a_hostile_dockerfile_costs_no_time() -> None:
    text = "FROM nvidia/cuda:13.2.0-base-ubuntu24.04\nRUN " + "apt install pip install $x " * 800
    started = time.process_time()
    for check in CHECKS.values():
        with contextlib.suppress(CheckFailed):
            check(dockerfile(text))
    assert time.process_time() - started < 1


class Folder:
    """A submission that is a few texts: the reference's Dockerfile, a checklist, a report."""

    def __init__(self, document: Mapping[str, Any], report: str = "", dockerfile: str = REFERENCE) -> None:
        self._texts = {
            "results/checklist.json": json.dumps(document),
            "REPORT.md": report,
            "Dockerfile": dockerfile,
            "requirements.txt": REQUIREMENTS,
        }

    def read_text(self, path: str) -> str | None:
        return self._texts.get(path.removeprefix("container_exercise/"))


def outcomes(dockerfile: str = REFERENCE, **changes: Any) -> dict[str, str]:
    """How each check of the run ends when these parts of a good checklist are others."""
    submission = cast(Submission, Folder(checklist_of(**changes), dockerfile=dockerfile))
    results = {}
    for name in [name for name in dir(Criteria) if name.startswith("test_")]:
        try:
            getattr(Criteria(), name)(submission)
            results[name.removeprefix("test_")] = "passed"
        except (CheckFailed, NeedsReview) as error:
            results[name.removeprefix("test_")] = type(error).__name__
    return results


def lost(**changes: Any) -> set[str]:
    return {name for name, outcome in outcomes(**changes).items() if outcome != "passed"}


MEMORY = GPU_RUN["memory"][0]
MODELS = GPU_RUN["models"]


@pytest.mark.parametrize(
    ("part", "change", "check"),
    [
        ("gpu", {"cuda_available": False}, "cuda_seen"),
        ("gpu", {"parameter_devices": ["cpu"]}, "trained_on_the_gpu"),
        ("gpu", {"memory": None}, "trained_on_the_gpu"),
        ("gpu", {"memory": [MEMORY]}, "trained_on_the_gpu"),
        ("gpu", {"memory": 2 * [{**MEMORY, "reserved_bytes": MIB}]}, "trained_on_the_gpu"),
        ("gpu", {"memory": 2 * [{**MEMORY, "peak_bytes": MIB}]}, "trained_on_the_gpu"),
        ("gpu", {"memory": [MEMORY, "much"]}, "trained_on_the_gpu"),
        ("gpu", {"utilization_ratio": 0.7}, "utilization_above_70_percent"),
        ("gpu", {"utilization_ratio": None}, "utilization_above_70_percent"),
        ("gpu", {"utilization_ratio": 83}, "utilization_above_70_percent"),
        ("gpu", {"utilization_samples": 9}, "utilization_above_70_percent"),
        ("gpu", {"seconds": 120.0}, "under_two_minutes"),
        ("gpu", {"models_on_volume": False}, "model_on_the_volume"),
        ("gpu", {"models": MODELS[:1]}, "model_on_the_volume"),
        ("gpu", {"models": MODELS[1:]}, "model_on_the_volume"),
        ("gpu", {"models": [MODELS[0], {**MODELS[1], "bytes": 0}]}, "model_on_the_volume"),
        ("gpu", {"models": [MODELS[0], {**MODELS[1], "loads_again": False}]}, "model_on_the_volume"),
        ("gpu", {"warnings": ["UserWarning: x"]}, "no_errors_or_warnings"),
        ("cpu", {"errors": ["RuntimeError: CUDA error"]}, "no_errors_or_warnings"),
        ("cpu", {"batch_size": 64}, "cpu_timed_against_the_gpu"),
        ("cpu", {"amp": True}, "cpu_timed_against_the_gpu"),
        ("cpu", {"images": 6000}, "cpu_timed_against_the_gpu"),
        ("cpu", {"epoch_seconds": 0}, "cpu_timed_against_the_gpu"),
        ("image", {"compressed_bytes": 4_000_000_001}, "image_within_budget"),
        ("image", {"compressed_bytes": 3_500_000_001, "stand_in": "a Debian"}, "image_within_budget"),
        ("image", {"user": "0"}, "image_built_from_the_dockerfile"),
        ("image", {"command": ["python", "train.py"]}, "image_built_from_the_dockerfile"),
        ("gpu", {"torch": "2.14.1+cu132"}, "image_built_from_the_dockerfile"),
        ("cpu", {"cuda": None}, "image_built_from_the_dockerfile"),
        ("cpu", {"cuda": "12.8"}, "image_built_from_the_dockerfile"),
        ("cpu", {"epochs": 3}, None),
        ("image", {"compressed_bytes": 3_400_000_000, "stand_in": "a Debian"}, None),
        ("image", {"command": ["python", "train.py", "--batch-size", "4096", "--epochs", "40"]}, None),
        ("image", {}, None),
    ],
)
def test_a_criterion_that_is_not_met_costs_its_check_and_no_other(
    part: str, change: dict[str, Any], check: str | None
) -> None:
    assert lost(**{part: change}) == ({check} if check else set())


def test_a_run_on_the_virtual_gpu_is_accepted_on_a_machine_without_a_gpu() -> None:
    assert lost(**VIRTUAL) == set()


def test_a_virtual_gpus_empty_model_does_not_stand_for_the_trained_one() -> None:
    assert lost(**VIRTUAL, cpu={"models_on_volume": False}) == {"model_on_the_volume"}


def test_a_run_on_the_virtual_gpu_is_refused_on_a_machine_with_a_gpu() -> None:
    assert {"cuda_seen", "trained_on_the_gpu"} <= lost(gpu={"simulated": True})


def test_without_an_engine_no_image_is_paid_for() -> None:
    assert lost(**WITHOUT_ENGINE) == {"image_built_from_the_dockerfile", "image_within_budget", "cuda_seen"}


def test_a_claimed_image_that_no_engine_described_is_not_paid_for() -> None:
    for claimed in ({"recorded": {"engine": None}}, {"image": None}):
        assert {"image_built_from_the_dockerfile", "image_within_budget"} <= lost(**claimed)
    for identity in (None, "", "built", "sha256:1"):
        assert {"image_built_from_the_dockerfile", "image_within_budget"} <= lost(image={"id": identity})


def test_a_stand_in_counts_for_a_small_base_image_alone() -> None:
    large = REFERENCE.replace("13.2.0-base-", "13.2.0-runtime-")
    assert lost(dockerfile=large, image={"stand_in": "a Debian"}) == {"image_within_budget"}
    assert lost(dockerfile=large) == set()


def test_without_a_run_on_the_cpu_nothing_is_compared() -> None:
    assert lost(without=("cpu",)) == {"cpu_timed_against_the_gpu"}


def test_without_a_run_on_a_gpu_only_what_a_cpu_shows_is_paid_for() -> None:
    passed = {"image_built_from_the_dockerfile", "image_within_budget", "model_on_the_volume", "no_errors_or_warnings"}
    assert set(outcomes()) - lost(without=("gpu",)) == passed


@pytest.mark.parametrize("document", [[], {"results": [1], "provenance": {}}, {"results": [{}], "provenance": {}}])
def test_a_damaged_checklist_fails_in_words(document: Any) -> None:
    submission = cast(Submission, Folder(document))
    for name in [name for name in dir(Criteria) if name.startswith("test_")]:
        with pytest.raises(CheckFailed):
            getattr(Criteria(), name)(submission)


@pytest.mark.parametrize("style", STYLES)
def test_the_image_of_another_style_is_taken_for_built(style: str) -> None:
    file = dockerfile(STYLES[style])
    base = NVIDIA_CUDA.match(file.base_image)
    pins = pinned_torch(file, {"requirements.txt": REQUIREMENTS}) or {"2.9.0a0"}
    versions = {"torch": f"{min(pins)}+x", "cuda": f"{base['cuda'] if base else 12}.0"}
    image = {"user": final_user(file), "command": start_words(file)}
    assert lost(dockerfile=STYLES[style], gpu=versions, cpu=versions, image=image) == set()


def test_the_command_of_a_shell_form_is_compared_as_the_engine_keeps_it() -> None:
    text = REFERENCE[: REFERENCE.index("CMD")] + "CMD python train.py --epochs 40\n"
    image = {"command": ["/bin/sh", "-c", "python train.py --epochs 40"]}
    assert lost(dockerfile=text, image=image) == set()


def test_a_report_must_agree_with_the_checklist() -> None:
    Report().test_report_agrees_with_checklist(cast(Submission, Folder(checklist_of(), CLAIMS + PROSE)))


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("unpacked_gb = 5.7", "unpacked_gb = 4.7"),
        ("compressed_gb = 2.9", "compressed_gb = 5.7"),
        ("gpu_epoch_seconds = 20.8", "gpu_epoch_seconds = 41.6"),
        ("cpu_epoch_seconds = 83", "cpu_epoch_seconds = 20.8"),
        ("speedup = 4.0", "speedup = 0.25"),
        ("speedup = 4.0", "speedup = 5"),
        ("peak_mib = 1210", "peak_mib = 1672"),
        ("peak_mib = 1210", "peak_mib = 1269"),
        ('cuda = "13.2"', 'cuda = "12.8"'),
        ('device = "L4"', 'device = "T4"'),
    ],
)
def test_a_wrong_claim_is_named(right: str, wrong: str) -> None:
    assert CLAIMS.count(right) == 1
    folder = Folder(checklist_of(), CLAIMS.replace(right, wrong) + PROSE)
    with pytest.raises(CheckFailed, match=right.partition(" ")[0]):
        Report().test_report_agrees_with_checklist(cast(Submission, folder))


def test_a_report_without_an_engine_claims_no_size() -> None:
    document = checklist_of(**WITHOUT_ENGINE)
    honest = CLAIMS.replace("= 2.9", "= 0").replace("= 5.7", "= 0")
    Report().test_report_agrees_with_checklist(cast(Submission, Folder(document, honest + PROSE)))
    with pytest.raises(CheckFailed, match="compressed_gb"):
        Report().test_report_agrees_with_checklist(cast(Submission, Folder(document, CLAIMS + PROSE)))


def test_the_exercise_lies_outside_the_100_points() -> None:
    assert grader.course().rubric.points == 100
    assert "container" not in {lab.id for lab in grader.course().rubric.labs}
    exercise = grader.course().rubric_of("container")
    assert [lab.id for lab in exercise.labs] == ["container"]
    assert exercise.points == 20


@pytest.fixture
def submission(tmp_path: Path) -> Path:
    """The reference with a made-up checklist and its report, instead of its own."""
    folder = tmp_path / "submission"
    shutil.copytree(ROOT / "solutions", folder, ignore=shutil.ignore_patterns("__pycache__"))
    results = folder / "container_exercise" / "results"
    results.mkdir(exist_ok=True)
    (results / "checklist.json").write_text(json.dumps(checklist_of()))
    (folder / "container_exercise" / "REPORT.md").write_text(CLAIMS + PROSE)
    return folder


@pytest.mark.night
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
"--version ") echo 'engine 1.0';;
"image inspect")
    echo '[{"Id": "sha256:1", "Size": 1000000, "Config":
        {"User": "10001", "Cmd": ["python"], "Labels": {"org.gpulabs.stand-in": "zeros"}}}]';;
"image save") head -c 1000000 /dev/zero;;
esac
"""


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    path = tmp_path / "engine"
    path.write_text(ENGINE)
    path.chmod(0o755)
    return path


def write_runs(models: Path, *names: str) -> None:
    """What train.py leaves on the volume: records and models."""
    models.mkdir(exist_ok=True)
    for name in names:
        run = {"run.json": GPU_RUN, "run-virtual.json": {**GPU_RUN, "simulated": True}, "run-cpu.json": CPU_RUN}[name]
        saved = []
        for suffix in (".pth", ".safetensors"):
            path = models / (name.replace("run", "mnist_cnn").removesuffix(".json") + suffix)
            path.write_bytes(name.encode())
            saved.append({**MODELS[0], "file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()})
        (models / name).write_text(json.dumps({**run, "models": saved}))


def made(models: Path, out: Path, *arguments: str) -> dict[str, Any]:
    assert checklist.main([*arguments, f"--models={models}", f"--out={out}"]) == 0
    document: dict[str, Any] = json.loads((out / "checklist.json").read_text())
    return document


def test_the_checklist_says_how_it_was_recorded(
    tmp_path: Path, engine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = tmp_path / "models"
    write_runs(models, "run-virtual.json", "run-cpu.json")
    document = made(models, tmp_path / "out", "--image=x", f"--engine={engine}", "--note=as a test")
    recorded = document["provenance"]["recorded"]
    assert (recorded["engine"], recorded["note"]) == ("engine 1.0", "as a test")
    assert document["provenance"]["simulated"] is True
    assert document["image"]["stand_in"] == "zeros"
    assert document["image"]["unpacked_bytes"] == 1_000_000
    assert 0 < document["image"]["compressed_bytes"] < 10_000
    assert [run["device"] for run in document["results"]] == ["cuda:0", "cpu"]
    shown = capsys.readouterr().out
    assert "[x] the container sees a virtual GPU" in shown
    assert "nobody has seen the container use a real GPU" in shown
    assert "[x] an epoch timed on GPU and CPU, speedup: 4.0" in shown


def test_a_real_gpus_run_comes_before_a_virtual_ones(tmp_path: Path) -> None:
    write_runs(tmp_path, "run.json", "run-virtual.json", "run-cpu.json")
    assert [run["simulated"] for run in checklist.read_runs(tmp_path)] == [False, False]


def test_without_an_engine_the_checklist_has_no_image(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_runs(tmp_path / "models", "run.json", "run-cpu.json")
    document = made(tmp_path / "models", tmp_path / "out", "--engine=none")
    assert document["image"] is None
    assert document["provenance"]["recorded"]["engine"] is None
    shown = capsys.readouterr().out
    assert "no image was built" in shown
    assert "[ ] the container sees a real GPU" in shown


@pytest.mark.parametrize("arguments", [["--engine=none", "--image=x"], []])
def test_an_image_and_no_engine_contradict_each_other(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        checklist.main(arguments)


def test_a_model_that_is_another_or_gone_is_not_on_the_volume(tmp_path: Path) -> None:
    write_runs(tmp_path, "run-cpu.json")
    assert checklist.read_run(tmp_path, "run-cpu.json")["models_on_volume"] is True
    (tmp_path / "mnist_cnn-cpu.pth").write_bytes(b"another")
    assert checklist.read_run(tmp_path, "run-cpu.json")["models_on_volume"] is False
    (tmp_path / "mnist_cnn-cpu.pth").unlink()
    assert checklist.read_run(tmp_path, "run-cpu.json")["models_on_volume"] is False


@pytest.mark.parametrize("change", ["batch_size", "amp", "images"])
def test_different_work_has_no_speedup(change: str) -> None:
    assert checklist.speedup([GPU_RUN, CPU_RUN]) == 4.0
    assert checklist.speedup([GPU_RUN, {**CPU_RUN, change: 7}]) is None
    assert checklist.speedup([GPU_RUN]) is None


@pytest.mark.parametrize(
    ("arguments", "says"), [(["--engine=none"], "run the container"), (["--image=x", "--engine=/no"], "--engine")]
)
def test_what_is_missing_is_said_in_one_line(
    tmp_path: Path, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "--image=x" in arguments:
        write_runs(tmp_path, "run.json")
    assert checklist.main([*arguments, f"--models={tmp_path}"]) == 1
    assert says in capsys.readouterr().err


def train(folder: Path, *options: str, vgpu: bool = False) -> subprocess.CompletedProcess[str]:
    """Run the given program as a container does, on the CPU or on the virtual GPU."""
    before = ["-m", "vgpu", "--shapes-only"] if vgpu else []
    places = ["--offline", f"--data-dir={folder}/data", f"--model-dir={folder}/models"]
    return subprocess.run(
        [sys.executable, *before, str(EXERCISE / "train.py"), *options, *places],
        env=os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


@pytest.mark.night
def test_the_given_programs_fill_in_the_checklist(tmp_path: Path, engine: Path) -> None:
    write_mnist(tmp_path / "data", 64)
    models = tmp_path / "models"
    models.mkdir()
    on_cpu, on_gpu = train(tmp_path, "--epochs=1"), train(tmp_path, "--epochs=2", vgpu=True)
    assert (on_cpu.returncode, on_gpu.returncode) == (0, 0), on_cpu.stderr + on_gpu.stderr
    assert "GPU memory" not in on_cpu.stdout
    assert len(re.findall(r"MiB: [\d.]+ allocated, [\d.]+ reserved, peak [\d.]+", on_gpu.stdout)) == 3
    document = made(models, tmp_path / "out", "--image=x", f"--engine={engine}")
    gpu, cpu = document["results"]
    assert (gpu["simulated"], gpu["device"], cpu["simulated"], cpu["device"]) == (True, "cuda:0", False, "cpu")
    assert (gpu["models_on_volume"], cpu["models_on_volume"]) == (True, True)
    assert cpu["memory"] is None
    assert all(0 < entry["allocated_bytes"] <= entry["reserved_bytes"] for entry in gpu["memory"])
    assert len(gpu["memory"]) == 2
    for run in (gpu, cpu):
        assert run["epoch_seconds"] == pytest.approx(run["seconds"] / run["epochs"])
        assert all(model["loads_again"] for model in run["models"])
        assert (run["errors"], run["warnings"]) == ([], [])
    # Another user than the container's reads them.
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in models.iterdir())
    submission = cast(Submission, Folder({**document, "image": IMAGE}))
    Criteria().test_trained_on_the_gpu(submission)
    Criteria().test_model_on_the_volume(submission)
    Criteria().test_cpu_timed_against_the_gpu(submission)


@pytest.fixture
def on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The given program in this process, which is faster; it sees no GPU, also on a machine that has one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (tmp_path / "models").mkdir()
    places = ["--offline", f"--data-dir={tmp_path}/data", f"--model-dir={tmp_path}/models"]
    return lambda *options: train_program.main([*places, *options])


def test_both_formats_hold_the_same_model_and_a_pickled_program_is_refused(
    tmp_path: Path, on_the_cpu: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    write_mnist(tmp_path / "data", 64)
    assert on_the_cpu("--epochs=1") == 0
    capsys.readouterr()
    shares = []
    for suffix in (".pth", ".safetensors"):
        assert on_the_cpu(f"--evaluate={tmp_path}/models/mnist_cnn-cpu{suffix}") == 0
        shares.append(capsys.readouterr().out.partition(": ")[2])
    assert shares[0] == shares[1]
    assert re.match(r"[\d.]+% of the test images", shares[0])
    torch.save({"weight": _Evil(str(tmp_path / "ran"))}, tmp_path / "evil.pth")
    (tmp_path / "broken.safetensors").write_bytes(b"not one")
    for name in ("evil.pth", "broken.safetensors", "missing.pth"):
        assert on_the_cpu(f"--evaluate={tmp_path}/{name}") == 1, name
        error = capsys.readouterr().err
        assert error.startswith("error: "), error
        assert "weights_only" not in error  # PyTorch's own advice is to switch it off
    assert not (tmp_path / "ran").exists()


def test_a_file_that_loads_as_another_model_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = train_program.make_model()
    assert [entry["loads_again"] for entry in train_program.save_model(model, tmp_path, "right")] == [True, True]
    right = train_program.load_parameters
    monkeypatch.setattr(train_program, "load_parameters", lambda path: {name: 2 * t for name, t in right(path).items()})
    assert [entry["loads_again"] for entry in train_program.save_model(model, tmp_path, "wrong")] == [False, False]


class _Evil:
    """Whoever unpickles it makes a folder."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self._path,)


def test_a_run_that_fails_is_noted_too(tmp_path: Path, on_the_cpu: Callable[..., int]) -> None:
    assert on_the_cpu() == 1
    assert "Dataset not found" in json.loads((tmp_path / "models" / "run-cpu.json").read_text())["errors"][0]


@pytest.mark.parametrize("epochs", ["0", "-1"])
def test_no_epochs_are_no_training(
    on_the_cpu: Callable[..., int], epochs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        on_the_cpu(f"--epochs={epochs}")
    assert "not a positive" in capsys.readouterr().err
