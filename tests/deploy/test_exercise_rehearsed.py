"""The container exercise from its Dockerfile to its grade, with a virtual GPU that passes for a real one.

Real are the build (on a base image that stands in for NVIDIA's, as in `test_image_build.py`), what the engine says of
the image, the command that it names, the program, the checklist and the grading. Played are the GPU and its driver; and
the program runs outside of the container, with this interpreter's PyTorch. So it shows that who does it right gets all
20 points; how busy a real GPU is, only a real one shows.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.conftest import ROOT, tool
from tests.deploy.test_container_exercise import PROSE
from tests.deploy.test_image_build import Builder, builder

__all__ = ["builder"]

EXERCISE = ROOT / "solutions" / "container_exercise"
STAND_IN = ROOT / "tests" / "rehearsal" / "stand_in"
FASHION = Path("/usr/share/datasets/fashion-mnist")


@pytest.fixture
def engine(builder: Builder, tmp_path: Path) -> Path:
    """Podman, which finds what buildah has built."""
    podman = tool("podman", brings="apt install podman")
    builder.build("exercise", EXERCISE / "Dockerfile", EXERCISE)
    path = tmp_path / "engine"
    path.write_text(f'#!/bin/sh\nexec {podman} {" ".join(builder.command[1:])} "$@"\n')
    path.chmod(0o755)
    return path


@pytest.mark.night
def test_who_does_it_right_gets_all_points(engine: Path, tmp_path: Path) -> None:
    if not FASHION.is_dir():
        pytest.skip("Fashion-MNIST is not on this machine: apt install dataset-fashion-mnist brings it")
    data, models, folder = tmp_path / "data", tmp_path / "models", tmp_path / "submission"
    _write_data(data / "MNIST" / "raw")
    models.mkdir()
    shutil.copytree(ROOT / "solutions", folder, ignore=shutil.ignore_patterns("__pycache__"))
    exercise = folder / "container_exercise"
    _train(_command_of(engine), data, models)
    _train_on_the_cpu(_command_of(engine), data, models)
    document = _checklist(engine, models, exercise / "results")
    row, provenance = document["results"][0], document["provenance"]
    assert document["image"]["stand_in"] is None
    assert (provenance["device_name"], provenance["simulated"]) == ("NVIDIA A100-SXM4-80GB", False)
    assert row["utilization_samples"] >= 10
    _report(exercise / "REPORT.md", document)
    grade = _grade(folder, tmp_path / "report")
    lost = [
        check
        for lab in grade["labs"]
        for criterion in lab["criteria"]
        for check in criterion["checks"]
        if not check["points"]
    ]
    assert (grade["score"], grade["max_score"], lost) == (20, 20, [])


@pytest.mark.night
def test_steps_that_are_too_short_for_a_large_gpu_cost_their_point_and_no_other(engine: Path, tmp_path: Path) -> None:
    if not FASHION.is_dir():
        pytest.skip("Fashion-MNIST is not on this machine: apt install dataset-fashion-mnist brings it")
    data, models = tmp_path / "data", tmp_path / "models"
    _write_data(data / "MNIST" / "raw", images=12_000)
    models.mkdir()
    _train(["python", "train.py", "--epochs", "20"], data, models)
    (row,) = _checklist(engine, models, tmp_path / "results")["results"]
    assert row["utilization_ratio"] < 0.7
    assert row["models_on_volume"]
    assert (row["errors"], row["warnings"]) == ([], [])


def _write_data(raw: Path, images: int = 60_000) -> None:
    """Fashion-MNIST in MNIST's place: the same format and size, and no download."""
    raw.mkdir(parents=True)
    for split, count in (("train", images), ("t10k", 1000)):
        pixels = gzip.decompress((FASHION / f"{split}-images-idx3-ubyte.gz").read_bytes())[16:]
        labels = gzip.decompress((FASHION / f"{split}-labels-idx1-ubyte.gz").read_bytes())[8:]
        header = struct.pack(">IIII", 2051, count, 28, 28)
        (raw / f"{split}-images-idx3-ubyte").write_bytes(header + pixels[: count * 784])
        (raw / f"{split}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, count) + labels[:count])


def _command_of(engine: Path) -> list[str]:
    done = subprocess.run([engine, "image", "inspect", "exercise"], capture_output=True, text=True, check=True)
    (image,) = json.loads(done.stdout)
    return list(image["Config"]["Cmd"])


def _train(command: list[str], data: Path, models: Path) -> None:
    """What the image's command does, on a virtual A100 without values: no CPU computes it in the time of a test."""
    program, script, *options = command
    assert (program, script) == ("python", "train.py")
    environment = {
        "PYTHONPATH": os.pathsep.join([str(STAND_IN), str(ROOT)]),
        "REHEARSED_GPUS": "1",
        "REHEARSED_VALUES": "0",
    }
    places = ["--offline", f"--data-dir={data}", f"--model-dir={models}"]
    done = subprocess.run(
        [sys.executable, str(EXERCISE / script), *options, *places], env=os.environ | environment, capture_output=True,
        text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def _train_on_the_cpu(command: list[str], data: Path, models: Path) -> None:
    """An epoch of the same batches, without the GPU; the last option counts."""
    places = ["--offline", f"--data-dir={data}", f"--model-dir={models}"]
    done = subprocess.run(
        [sys.executable, str(EXERCISE / command[1]), *command[2:], "--epochs=1", *places],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def _checklist(engine: Path, models: Path, results: Path) -> dict[str, Any]:
    arguments = ["--image=exercise", f"--engine={engine}", f"--models={models}", f"--out={results}"]
    done = subprocess.run(
        [sys.executable, "-m", "solutions.container_exercise.checklist", *arguments], cwd=ROOT, capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    document: dict[str, Any] = json.loads((results / "checklist.json").read_text())
    return document


def _report(path: Path, document: dict[str, Any]) -> None:
    """As a student fills the template in: the claims from the checklist, words of their own below."""
    (row, cpu), provenance, image = document["results"], document["provenance"], document["image"]
    claims = {
        "device": json.dumps(provenance["device_name"]),
        "cuda": json.dumps(provenance["cuda"]),
        "seconds": round(row["seconds"], 2),
        "gpu_epoch_seconds": row["epoch_seconds"],
        "cpu_epoch_seconds": cpu["epoch_seconds"],
        "speedup": cpu["epoch_seconds"] / row["epoch_seconds"],
        "peak_mib": row["memory"][-1]["peak_bytes"] / 2**20,
        "compressed_gb": image["compressed_bytes"] / 1e9,
        "unpacked_gb": image["unpacked_bytes"] / 1e9,
    }
    lines = "\n".join(f"{name} = {value}" for name, value in claims.items())
    path.write_text(f"# Report\n\n```toml\n[claims]\n{lines}\n```\n\n## Base image\n\n{PROSE}\n")


def _grade(folder: Path, report: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "pytest", "--grade", "--lab=container", "--device=vgpu"]
    done = subprocess.run(
        [*command, f"--submission={folder}", f"--grade-report={report}"], cwd=ROOT, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert (report / "grade.json").is_file(), done.stdout + done.stderr
    grade: dict[str, Any] = json.loads((report / "grade.json").read_text())
    return grade
