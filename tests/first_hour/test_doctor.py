"""The doctor says what is wrong and what fixes it, on machines that lack something: each of them is simulated whole."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.first_hour.conftest import CPU_ONLY, ROOT, WITHOUT, Doctor

NO_LIBRARIES = WITHOUT.format(
    names={"torch", "torchvision", "numpy", "typer", "rich", "pynvml", "pytest", "jinja2", "sklearn", "matplotlib"}
)
NO_TORCH = WITHOUT.format(names={"torch", "torchvision"})
"""Most questions have nothing to do with PyTorch, whose import is what costs."""


@pytest.mark.night
def test_on_a_good_machine_labs_can_be_worked_on(doctor: Doctor) -> None:
    said = doctor(command=("-c", "import sys; sys.argv = ['gpulabs', 'doctor']; from grader.cli import app; app()"))
    assert said.code == 0, said.text
    assert "wrong" not in said.text
    assert "works: a simulated Tesla T4" in said.fact("virtual GPU")
    assert "could not be tried" not in said.fact("sandbox")
    assert "The labs can be worked on" in said.text


def test_without_torch_it_says_how_to_install_it(doctor: Doctor) -> None:
    said = doctor(NO_TORCH, command=("-c", "import sys; sys.argv = ['x', 'doctor']; from grader.cli import app; app()"))
    assert said.code == 1
    assert said.fact("PyTorch").startswith("wrong  PyTorch          is not installed")
    assert "could not be tried" not in said.fact("sandbox")  # torch is not needed for a look at it
    assert "uv pip install --python" in said.fact("PyTorch")
    assert "--torch-backend=auto" in said.fact("PyTorch")
    assert said.text.splitlines()[-1].startswith("First: ")


def test_in_a_fresh_checkout_nothing_is_wrong(tmp_path: Path) -> None:
    """The Python of the system, before make has installed anything."""
    for name in ("Makefile", "pyproject.toml", "grader/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "grader/doctor", tmp_path / "grader/doctor")
    shutil.copytree(ROOT / "labs", tmp_path / "labs")
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(f"{NO_LIBRARIES}\nsys.prefix = sys.base_prefix\n")
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-m", "grader.doctor"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "to do  libraries        not installed yet" in done.stdout, done.stdout + done.stderr
    assert "to do  PyTorch          not installed yet" in done.stdout
    if "wrong  " not in done.stdout:  # of the machine itself
        assert done.stdout.splitlines()[-1] == "Install it: make grade LAB=1"
        assert done.returncode == 0


def test_a_torch_that_does_not_load_is_reinstalled(doctor: Doctor) -> None:
    said = doctor(BROKEN)
    assert "does not load: ImportError: libcudart.so.13: cannot open shared object file" in said.fact("PyTorch")
    assert "--reinstall torch torchvision" in said.fact("PyTorch")


BROKEN = """
class Broken:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ImportError("libcudart.so.13: cannot open shared object file")

import sys
sys.meta_path.insert(0, Broken())
"""


ANOTHER_NUMPY = """
import importlib.metadata
real = importlib.metadata.version
importlib.metadata.version = lambda name: "1.2.3" if name == "numpy" else real(name)
"""


def test_versions_that_were_not_tested_are_named(doctor: Doctor) -> None:
    said = doctor(NO_TORCH + ANOTHER_NUMPY)
    assert said.fact("libraries").startswith("note")
    _, named, others = said.fact("libraries").partition("not the versions that were tested (constraints.txt): ")
    assert named
    assert "numpy 1.2.3 (" in others


def test_a_python_that_was_not_tested_is_named(doctor: Doctor) -> None:
    said = doctor(NO_TORCH + "import platform\nplatform.python_version = lambda: '3.99.1'\n")
    assert said.fact("Python").startswith("note")
    assert "tested: 3.11, 3.12, 3.13" in said.fact("Python")


@pytest.mark.night
def test_a_sandbox_that_cannot_run_checks_is_wrong(doctor: Doctor) -> None:
    said = doctor(CANNOT_FORK)
    assert said.code == 1
    assert said.fact("sandbox").startswith("wrong")
    assert "this machine cannot run checks: the sandbox could not run shared.trial.product" in said.fact("sandbox")
    assert "os.fork is unsafe" in said.fact("sandbox")


CANNOT_FORK = """
import importlib.abc, importlib.machinery, sys

class Fails(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "gradebox.run.device_trial":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            class Sandbox:
                tried = set()
                def run(self, request):
                    raise module.SandboxError(f"the sandbox could not run {request.probe}: os.fork is unsafe")
            real = module.problem
            module.problem = lambda sandbox, probe, device: real(Sandbox(), probe, device)
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Fails())
"""


def test_only_python_is_needed_to_ask(doctor: Doctor) -> None:
    said = doctor(NO_LIBRARIES)
    assert said.code == 1
    assert "missing: numpy, pytest, matplotlib, scikit-learn, nvidia-ml-py, rich, typer" in said.fact("libraries")
    assert said.fact("GPU").startswith("note")


@pytest.mark.night
def test_a_cpu_build_beside_a_driver_is_wrong(doctor: Doctor, nvml: Path) -> None:
    said = doctor(CPU_ONLY + WITHOUT.format(names={"torchvision"}), LD_LIBRARY_PATH=str(nvml))
    assert said.code == 1
    assert "Stub GPU (12.0 GB of 16.0 GB free); driver 550.54, up to CUDA 12.4" in said.fact("GPU")
    assert "+cpu, without CUDA" in said.fact("PyTorch")
    cuda = said.fact("CUDA")
    assert cuda.startswith("wrong")
    assert "built without CUDA" in cuda
    assert "--reinstall torch torchvision --torch-backend=auto" in cuda
    assert "DEVICE=vgpu" in cuda
    assert said.fact("virtual GPU").startswith("ok")


NEWER = """
import sys, types
torch = types.ModuleType("torch")
torch.__version__, torch.version = "2.13.0+cu991", types.SimpleNamespace(cuda="99.1")
torch.cuda = types.SimpleNamespace(is_available=lambda: False)
sys.modules["torch"] = torch
"""


def test_a_cuda_newer_than_the_driver_is_wrong(doctor: Doctor, nvml: Path) -> None:
    said = doctor(NEWER, LD_LIBRARY_PATH=str(nvml), NVML_STUB_CUDA="12040")
    assert said.code == 1
    cuda = said.fact("CUDA")
    assert "built for CUDA 99.1, and the driver knows CUDA 12.4 at most" in cuda
    assert "--torch-backend=auto" in cuda


def test_a_driver_that_was_updated_under_us_wants_a_reboot(doctor: Doctor, nvml: Path) -> None:
    said = doctor(NO_TORCH, LD_LIBRARY_PATH=str(nvml), NVML_STUB_INIT="18")
    assert "sudo reboot" in said.fact("GPU")


def test_hidden_gpus_are_wrong(doctor: Doctor, nvml: Path) -> None:
    said = doctor(NO_TORCH, LD_LIBRARY_PATH=str(nvml), CUDA_VISIBLE_DEVICES="")
    assert "unset CUDA_VISIBLE_DEVICES" in said.fact("GPU")


NO_ROOM = (
    "import tempfile; tempfile._candidate_tempdir_list = lambda: ['.']; from grader import doctor; exit(doctor.main())"
)
"""Python falls back to /tmp and others when a folder is full: here all of them are."""


def test_a_full_disk_is_wrong(tmp_path: Path) -> None:
    """A checkout on a real file system of 4 MB that is full, in a mount namespace of its own."""
    small, site = tmp_path / "small", tmp_path / "site"
    small.mkdir()
    site.mkdir()
    (site / "sitecustomize.py").write_text(NO_TORCH)
    unshare = shutil.which("unshare")
    namespace = [unshare or "", "--mount"] + ([] if os.geteuid() == 0 else ["--user", "--map-root-user"])
    script = f"""set -e
        mount -t tmpfs -o size=4m tmpfs {small}
        mkdir -p {small}/grader {small}/labs/lab1
        cp {ROOT}/grader/__init__.py {small}/grader/
        cp -r {ROOT}/grader/doctor {small}/grader/
        cd {small}
        dd if=/dev/zero of=full bs=64k 2>/dev/null || true
        TMPDIR={small} exec {sys.executable} -c "{NO_ROOM}"
    """
    if unshare is None or subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespaces here")
    environment = {**os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("TMPDIR", None)
    command = [*namespace, "sh", "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"wrong  disk             nothing can be written to {small}, 0 MB are free" in done.stdout
    assert "wrong  temporary files" in done.stdout
    assert "pip cache purge" in done.stdout
    assert "export TMPDIR=$HOME/tmp" in done.stdout


def test_too_little_space_to_install_torch_is_wrong(doctor: Doctor) -> None:
    little = "import shutil\nusage = shutil.disk_usage\nshutil.disk_usage = lambda p: usage(p)._replace(free=4e9)\n"
    said = doctor(little + NO_TORCH)
    assert "4.0 GB free" in said.fact("disk")
    assert "too little to install PyTorch (9.0 GB)" in said.fact("disk")
    assert "pip cache purge" in said.fact("disk")


def test_a_taken_port_of_the_monitor_is_noted_with_another_one(doctor: Doctor) -> None:
    taken = "import socket\nbind = socket.socket.bind\n" + (
        "def refuse(self, address):\n    if address[1] == 9400:\n        raise OSError(98, 'in use')\n"
        "    return bind(self, address)\nsocket.socket.bind = refuse\n"
    )
    said = doctor(taken + NO_TORCH)
    assert said.fact("ports").startswith("note")
    assert "--port 9401" in said.fact("ports")


def test_little_memory_and_one_core_are_noted(doctor: Doctor) -> None:
    small = "import os\nos.sysconf = lambda name: 1 if name == 'SC_PAGE_SIZE' else 10**9\n"
    small += "os.sched_getaffinity = lambda process: {0}\n"
    said = doctor(small + NO_TORCH)
    assert "1.0 GB: too little" in said.fact("memory")
    assert said.fact("cores").startswith("note")


def test_a_folder_without_labs_is_told_where_they_are(doctor: Doctor, tmp_path: Path) -> None:
    said = doctor(NO_TORCH, folder=tmp_path)
    assert f"cd {ROOT}" in said.fact("labs")


def test_an_old_python_can_run_it_and_is_told_so() -> None:
    for file in (ROOT / "grader/doctor").glob("*.py"):
        ast.parse(file.read_text(), feature_version=(3, 8))
    fake = "import sys, platform; sys.version_info = (3, 9, 2, 'final', 0); platform.python_version = lambda: '3.9.2'\n"
    script = fake + "from grader.doctor import software, line\nprint(line(software._python()))"
    said = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "3.9.2 is too old: the course needs 3.11 or newer" in said
    assert "fix: " in said
