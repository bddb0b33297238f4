"""The image's packages on a base image with PyTorch and without: what is decided, and what pip then really does.

NVIDIA's image is not here. A virtual environment stands in for it, with the names and versions of packages as NVIDIA
gives them; pip is real, and gets its packages from a folder of small wheels.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pip
import pytest
from packaging.version import Version

from deploy.docker import packages
from tests.deploy.conftest import DEPLOY

SCRIPT = DEPLOY / "docker" / "packages.py"
NVIDIAS = "2.11.0a0+eb65b36914.nv26.2"
IMAGE = {"torch": NVIDIAS, "torchvision": "0.26.0a0+ca221243", "numpy": "2.1.0", "rich": "13.7.1", "pytest": "8.1.1"}
COURSE = ["torch>=2.11", "torchvision>=0.26", "numpy>=1.26", "pytest>=8.4,<10", "typer>=0.15,<1", "safetensors>=0.5"]
TESTED = ["torch==2.15.0", "torchvision==0.29.2", "numpy==2.5.5", "pytest==9.0.1", "typer==0.20.0", "rich==14.2.0"]


def planned(image: Sequence[str] = (), **versions: str | None) -> packages.Plan:
    merged = {**IMAGE, **{name.replace("_", "-"): version for name, version in versions.items()}}
    installed = {name: Version(version) for name, version in merged.items() if version is not None}
    return packages.plan(COURSE, TESTED, installed, image)


def test_what_the_image_has_stays_and_the_rest_comes_at_the_tested_versions() -> None:
    plan = planned()
    assert plan.requirements == ("pytest<10,>=8.4", "typer<1,>=0.15", "safetensors>=0.5")
    # pytest of the image is too old: the tested one, in the environment. rich is the image's.
    assert set(plan.constraints) == {
        f"torch=={NVIDIAS}", "torchvision==0.26.0a0+ca221243", "numpy==2.1.0", "rich==13.7.1", "pytest==9.0.1",
        "typer==0.20.0",
    }  # fmt: skip


def test_a_package_that_fits_is_not_asked_for_again() -> None:
    assert "pytest" not in " ".join(planned(pytest="8.4.0").requirements)


def test_the_images_constraints_come_before_the_courses() -> None:
    image = ["typer==0.16.1", "safetensors==0.4.1", "# a comment", "", "pytest==8.1.1", "odd @ file:///opt/odd", "-e ."]
    plan = planned(image)
    assert "typer==0.16.1" in plan.constraints
    assert "typer==0.20.0" not in plan.constraints
    # NVIDIA says how to have another version: take the line out.
    assert not {"pytest==8.1.1", "safetensors==0.4.1"} & set(plan.constraints)


@pytest.mark.parametrize("version", ["2.10.0a0+b4e4ee81d3.nv25.12", "2.7.0", None])
def test_a_pytorch_that_is_too_old_is_refused_and_not_replaced(version: str | None) -> None:
    with pytest.raises(packages.PackagesError, match="take a newer base image"):
        planned(torch=version)


def test_an_image_without_torchvision_is_refused() -> None:
    with pytest.raises(packages.PackagesError, match="torchvision"):
        planned(torchvision=None)


def wheel(folder: Path, name: str, version: str, *needs: str) -> Path:
    """A package with nothing in it but its version."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {need}" for need in needs)]
    path = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{module}.py", f"version = {version!r}\n")
        archive.writestr(f"{info}/METADATA", "\n".join(["Metadata-Version: 2.1", *lines]) + "\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


class Base:
    """A base image: a Python of its own, the packages that it brings, and an index of what there is to install."""

    def __init__(self, folder: Path, brings: dict[str, str]) -> None:
        self.folder = folder
        self.index = folder / "wheels"
        self.index.mkdir(parents=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "system"], check=True)
        self.python = folder / "system" / "bin" / "python"
        (site,) = (folder / "system" / "lib").glob("python*/site-packages")
        for path in Path(pip.__file__).parents[1].glob("pip*"):
            (site / path.name).symlink_to(path)
        for name, version, *needs in (
            ("torch", "2.15.0"), ("torchvision", "0.29.2", "torch==2.15.0"), ("numpy", "2.5.5"), ("numpy", "2.1.0"),
            ("pytest", "9.0.1"), ("typer", "0.20.0", "rich>=13"), ("rich", "14.2.0"), ("safetensors", "0.8.0"),
            ("safetensors", "0.9.0"), ("trainer", "1.0", "torch>=2", "numpy>=2"),
        ):  # fmt: skip
            wheel(self.index, name, version, *needs)
        (folder / "brought").mkdir()
        for name, version in brings.items():
            with zipfile.ZipFile(wheel(folder / "brought", name, version)) as archive:
                archive.extractall(site)
        (folder / "requirements.txt").write_text("\n".join([*COURSE, "trainer>=1"]) + "\n")
        (folder / "constraints.txt").write_text("\n".join([*TESTED, "safetensors==0.8.0"]) + "\n")

    def _environment(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
        offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.index), "PIP_CONFIG_FILE": os.devnull}
        return {**kept, **offline, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **more}

    def install(self, **more: str) -> subprocess.CompletedProcess[str]:
        files = [f"--{name}={self.folder / name}.txt" for name in ("requirements", "constraints")]
        return subprocess.run(
            [self.python, SCRIPT, *files, f"--into={self.folder / 'venv'}"], env=self._environment(**more),
            capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip

    def own(self) -> set[str]:
        """The packages in the environment itself."""
        (site,) = (self.folder / "venv" / "lib").glob("python*/site-packages")
        return {path.name.removesuffix(".dist-info") for path in site.glob("*.dist-info")} - {"pip", "setuptools"}

    def imports(self, name: str) -> str:
        """The version of the module that the environment's Python imports."""
        command = [self.folder / "venv" / "bin" / "python", "-c", f"import {name}; print({name}.version)"]
        return subprocess.run(
            command, env=self._environment(), capture_output=True, text=True, check=True
        ).stdout.strip()


@pytest.fixture
def nvidia(tmp_path: Path) -> Base:
    base = Base(tmp_path, IMAGE)
    (tmp_path / "image.txt").write_text("numpy==2.1.0\npytest==8.1.1\n")
    return base


@pytest.mark.night
def test_nvidias_pytorch_is_seen_and_not_installed_again(nvidia: Base) -> None:
    done = nvidia.install(PIP_CONSTRAINT=str(nvidia.folder / "image.txt"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"brings torch {NVIDIAS}" in done.stdout
    assert nvidia.own() == {"pytest-9.0.1", "typer-0.20.0", "safetensors-0.8.0", "trainer-1.0"}
    expected = {"torch": NVIDIAS, "numpy": "2.1.0", "rich": "13.7.1", "pytest": "9.0.1", "trainer": "1.0"}
    assert {name: nvidia.imports(name) for name in expected} == expected
    torchrun = (nvidia.folder / "venv" / "bin" / "torchrun").read_text()
    assert f"exec {nvidia.folder}/venv/bin/python -m torch.distributed.run" in torchrun


@pytest.mark.night
def test_a_package_that_needs_another_pytorch_stops_the_build(nvidia: Base) -> None:
    wheel(nvidia.index, "trainer", "1.1", "torch>=2.14")
    (nvidia.folder / "requirements.txt").write_text("\n".join([*COURSE, "trainer>=1.1"]) + "\n")
    done = nvidia.install()
    assert done.returncode != 0
    assert "torch" in done.stdout + done.stderr
    assert not any(name.startswith("torch-") for name in nvidia.own())


def test_an_old_image_is_refused_in_one_line(tmp_path: Path) -> None:
    done = Base(tmp_path, {**IMAGE, "torch": "2.7.0a0+79aa17489c.nv25.4"}).install()
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: the course needs torch>=2.11, the base image has torch 2.7.0a0")


@pytest.mark.night
def test_a_plain_python_gets_everything_at_the_tested_versions(tmp_path: Path) -> None:
    base = Base(tmp_path, {})
    done = base.install()
    assert done.returncode == 0, done.stdout + done.stderr
    installed = {"torch-2.15.0", "numpy-2.5.5", "rich-14.2.0", "safetensors-0.8.0"}
    assert installed <= base.own()
    assert base.imports("torch") == "2.15.0"
