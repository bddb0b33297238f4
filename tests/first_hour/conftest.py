"""Machines that are not there: an interpreter that lacks a module, sees another driver, or has no disk space left."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WITHOUT = """
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

import sys
sys.meta_path.insert(0, Blocker())
"""
CPU_ONLY = """
import importlib.abc, importlib.machinery, sys

class CpuOnly(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "torch.version":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            module.cuda, module.__version__ = None, module.__version__.partition("+")[0] + "+cpu"
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, CpuOnly())
"""


@dataclass(frozen=True)
class Said:
    """What the doctor said."""

    code: int
    text: str

    def fact(self, name: str) -> str:
        """The line about `name`, with its commands."""
        rows = self.text.splitlines()
        start = next(i for i, row in enumerate(rows) if row[7:].startswith(f"{name} "))
        stop = next((i for i in range(start + 1, len(rows)) if not rows[i].startswith(" ")), len(rows))
        return "\n".join(rows[start:stop])


Doctor = Callable[..., Said]


@pytest.fixture
def doctor(tmp_path: Path) -> Doctor:
    """Asks the doctor in a process of its own: `customize` runs at its start, and in the processes that it starts."""

    def ask(customize: str = "", *, folder: Path = ROOT, command: tuple[str, ...] = (), **variables: str) -> Said:
        site = tmp_path / "site"
        site.mkdir(exist_ok=True)
        (site / "sitecustomize.py").write_text(customize)
        environment = {**os.environ, "PYTHONPATH": f"{site}:{ROOT}", **variables}
        done = subprocess.run(
            [sys.executable, *(command or ("-m", "grader.doctor"))],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert not done.stderr, done.stderr
        return Said(done.returncode, done.stdout)

    return ask


@pytest.fixture(scope="session")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a libnvidia-ml.so.1 with one GPU."""
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("gcc is not here, which builds the stand-in of NVIDIA's library")
    folder = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).with_name("nvml_stub.c")
    subprocess.run(
        [gcc, "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(folder / "libnvidia-ml.so.1"), str(source)], check=True
    )
    return folder
