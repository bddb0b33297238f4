"""Wheels built from this checkout, and environments into which nothing else is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = ("vgpu", "gradebox", "gpu-computing-labs")
CONSTRAINTS = ROOT / "constraints.txt"
SECONDS = 600


def run(command: list[str | Path], **more: object) -> subprocess.CompletedProcess[str]:
    """Run a command that must not see this checkout."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        list(map(str, command)),
        **{"env": environment, "capture_output": True, "text": True, "timeout": SECONDS, "check": False} | more,  # type: ignore[arg-type]
    )


def succeed(command: list[str | Path], **more: object) -> str:
    """What a command prints that must end well."""
    done = run(command, **more)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@dataclass(frozen=True)
class Installer:
    """Makes environments with uv, of the versions that were tested."""

    uv: str
    wheels: Path
    room: Path

    def environment(self, name: str) -> Path:
        """The folder with the programs of a new environment that holds the distribution `name` and what it needs."""
        folder = self.room / name
        succeed([self.uv, "venv", "--quiet", "--python", sys.executable, folder])
        bin_ = folder / "bin"
        install = [self.uv, "pip", "install", "--quiet", "--python", bin_ / "python", "--constraints", CONSTRAINTS]
        succeed([*install, "--find-links", self.wheels, name])
        return bin_


@pytest.fixture(scope="session")
def installer(tmp_path_factory: pytest.TempPathFactory) -> Installer:
    """One that has built the three wheels; skips the test where uv is missing or packages cannot be had."""
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if uv is None:
        pytest.skip("uv is not here: pip install uv")
    room = tmp_path_factory.mktemp("wheels")
    succeed([uv, "venv", "--quiet", "--python", sys.executable, room / "trial"])
    trial = [uv, "pip", "install", "--dry-run", "--python", room / "trial" / "bin" / "python", "-c", CONSTRAINTS]
    if run([*trial, "hatchling", "numpy", "typer"]).returncode:
        pytest.skip("nothing can be installed here")
    wheels = room / "dist"
    for name in NAMES:
        build = [uv, "build", "--quiet", "--wheel", "--build-constraints", CONSTRAINTS, "--out-dir", wheels]
        succeed([*build, ROOT / "packaging" / name])
    return Installer(uv, wheels, room)


@pytest.fixture(scope="session")
def gradebox(installer: Installer) -> Path:
    """The programs of an environment that holds `gradebox` alone."""
    return installer.environment("gradebox")
