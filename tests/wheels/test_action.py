"""The composite action of vgpu and the workflow that shows it: valid, and what it runs runs in another repository."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.conftest import tool
from tests.wheels.conftest import ROOT, Installer, run, succeed

FOLDER = ROOT / "packaging" / "vgpu"
ACTION, WORKFLOW = FOLDER / "action.yml", FOLDER / "github" / "cuda-tests.yml"
_TEST = """import pytest, torch

@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_addition() -> None:
    print("on", torch.cuda.get_device_name(), torch.cuda.device_count())
    assert (torch.ones(2, device="cuda") + 1).tolist() == [2.0, 2.0]
"""
_RACE = """import torch

x = torch.ones(4, device="cuda") * 2
with torch.cuda.stream(torch.cuda.Stream()):
    x + 1
"""


def _yaml(path: Path) -> Any:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: pip install pyyaml brings it")
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("schema", "file"), [("vendor.github-actions", ACTION), ("vendor.github-workflows", WORKFLOW)])
def test_the_published_schema_accepts_it(schema: str, file: Path) -> None:
    program = tool("check-jsonschema", brings="pip install check-jsonschema")
    done = run([program, "--builtin-schema", schema, file])
    assert done.returncode == 0, done.stdout


def test_the_workflow_gives_the_action_what_it_takes() -> None:
    known = _yaml(ACTION)["inputs"]
    steps = [step for job in _yaml(WORKFLOW)["jobs"].values() for step in job["steps"]]
    used = [step for step in steps if "packaging/vgpu" in step.get("uses", "")]
    assert len(used) == 2
    assert all(set(step["with"]) <= set(known) for step in used)
    inputs = {name for step in _yaml(ACTION)["runs"]["steps"] for name in step["env"].values()}
    assert inputs == {f"${{{{ inputs.{name} }}}}" for name in known}  # nothing is put into a script as text


def _step(number: int, folder: Path, python: Path, **chosen: str) -> subprocess.CompletedProcess[str]:
    """One of the action's steps as a runner starts it, in the folder of another repository."""
    action = _yaml(ACTION)
    values = {name: chosen.get(name.replace("-", "_"), field["default"]) for name, field in action["inputs"].items()}
    step = action["runs"]["steps"][number]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    environment |= {key: values[name[len("${{ inputs.") : -len(" }}")]] for key, name in step["env"].items()}
    environment |= {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}", "GITHUB_ACTION_PATH": str(FOLDER)}
    if not python.is_relative_to(folder):
        environment.setdefault("PYTHONPATH", str(ROOT))
    script = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    return run(script, cwd=folder, env=environment)


def _repository(folder: Path) -> Path:
    (folder / "test_cuda.py").write_text(_TEST)
    (folder / "race.py").write_text(_RACE)
    return folder


@pytest.mark.night
def test_another_repositorys_tests_and_programs_run(tmp_path: Path) -> None:
    folder, python = _repository(tmp_path), Path(sys.executable)
    done = _step(1, folder, python, tests="-q -s -p no:cacheprovider", gpu="A100-80GB", gpus="2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "on NVIDIA A100-SXM4-80GB 2" in done.stdout
    assert "1 passed" in done.stdout
    done = _step(1, folder, python, run="race.py", races="error")
    assert done.returncode == 1
    assert "StreamHazard" in done.stderr


@pytest.mark.night
def test_the_action_installs_what_it_runs(installer: Installer, tmp_path: Path) -> None:
    python = installer.environment("vgpu") / "python"
    succeed([installer.uv, "pip", "install", "--quiet", "--python", python, "pip"])
    folder = _repository(tmp_path)
    done = _step(0, folder, python, requirements="--no-deps --force-reinstall --quiet")
    assert done.returncode == 0, done.stdout + done.stderr
    assert _step(1, folder, python, run="race.py").returncode == 0
