"""Both Dockerfiles, built for real by buildah, on a base image that stands in for those of a registry.

The base is busybox with programs that only note how they were called (`apt-get`, `pip`, `python`, ...): nothing is
downloaded, and no PyTorch is installed. What is real: the build context and what .dockerignore lets through, the order
of the layers, copies between stages, users and owners, and what the image says of itself.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.conftest import ROOT, tool
from tests.deploy.dockerfiles import REFERENCE, STYLES, SUBTLE

BASES = ("docker.io/library/python:3.12.11-slim-bookworm", "docker.io/nvidia/cuda:13.2.0-base-ubuntu24.04")

NOTE = '#!/bin/sh\necho "$(basename "$0") $*" >> /called\n'
PROGRAMS = {
    "apt-get": NOTE,
    # With two installs for real packages to leave something: a program, a header and a library that is not needed.
    "pip": NOTE
    + "mkdir -p /opt/venv/bin /opt/venv/lib/nvidia/cublas/include\n"
    + "touch /opt/venv/bin/torchrun /opt/venv/lib/libx.a /opt/venv/lib/nvidia/cublas/include/x.h\n",
    # What the course's packages.py does is tested in test_image_packages.py; here it leaves what pip leaves.
    "python": NOTE + '[ "$2" != venv ] || mkdir -p "$3"\ncase "$1" in */packages.py) exec pip install;; esac\n',
    "python3": NOTE + '[ "$2" != venv ] || mkdir -p "$3"\n',
    "groupadd": NOTE,
    "useradd": NOTE
    + 'uid=1000; for name; do [ "$before" != --uid ] || uid=$name; before=$name; done\n'
    + 'echo "$name:x:$uid:$uid::/:/bin/sh" >> /etc/passwd; echo "$name:x:$uid:" >> /etc/group\n',
    # That of busybox knows no long options.
    "install": NOTE
    + 'for word; do case "$word" in --owner=*) owner=${word#*=};; --group=*) group=${word#*=};;\n'
    + '--mode=*) mode=${word#*=};; /*) mkdir -p "$word" && chown "${owner:-0}:${group:-0}" "$word" &&\n'
    + 'chmod "${mode:-755}" "$word" || exit 1;; esac; done\n',
}


@dataclass(frozen=True)
class Builder:
    """A buildah with a store of its own."""

    command: tuple[str, ...]
    folder: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command, *arguments], cwd=self.folder, capture_output=True, text=True, timeout=300, check=False
        )

    def build(self, name: str, dockerfile: Path, context: Path) -> None:
        done = self.run(
            "build", "--isolation=chroot", "--pull-never", "--tag", name, "--file", str(dockerfile), str(context)
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def config(self, name: str) -> dict[str, Any]:
        done = self.run("inspect", "--type=image", name)
        settings: dict[str, Any] = json.loads(done.stdout)["OCIv1"]["config"]
        return settings

    def files(self, name: str) -> Path:
        """The image's file system, unpacked."""
        container = self.run("from", "--pull-never", name).stdout.strip()
        mounted = self.run("mount", container)
        assert mounted.returncode == 0, mounted.stderr
        return Path(mounted.stdout.strip())


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    buildah = tool("buildah", brings="apt install buildah")
    busybox = tool("busybox", brings="apt install busybox-static")
    if os.geteuid() != 0:
        pytest.skip("buildah needs root here")
    folder = tmp_path_factory.mktemp("buildah")
    store = ("--root", str(folder / "store"), "--runroot", str(folder / "run"), "--storage-driver", "vfs")
    builder = Builder((buildah, *store), folder)
    context = folder / "base"
    (context / "programs").mkdir(parents=True)
    shutil.copy(busybox, context / "busybox")
    for name, text in PROGRAMS.items():
        (context / "programs" / name).write_text(text)
        (context / "programs" / name).chmod(0o755)
    (context / "Dockerfile").write_text(
        "FROM scratch\nCOPY busybox /bin/busybox\nCOPY busybox /bin/sh\n"
        "RUN /bin/busybox mkdir -p /etc /tmp /usr/bin && /bin/busybox --install -s /usr/bin\n"
        "RUN touch /called && chmod 666 /called\n"
        "COPY programs/ /usr/local/bin/\nENV PATH=/usr/local/bin:/usr/bin:/bin\n"
    )
    first, *others = BASES
    builder.build(first, context / "Dockerfile", context)
    for name in others:
        assert builder.run("tag", first, name).returncode == 0
    yield builder
    builder.run("umount", "--all")
    builder.run("rm", "--all")


@pytest.mark.night
def test_the_course_image(builder: Builder) -> None:
    builder.build("course", ROOT / "deploy" / "docker" / "Dockerfile", ROOT)
    config = builder.config("course")
    environment = dict(entry.split("=", 1) for entry in config["Env"])
    assert config["User"] == "1000:1000"
    assert config["Cmd"][:3] == ["python", "-m", "cluster.acceptance"]
    assert config["WorkingDir"] == "/workspace"
    assert environment["PATH"].startswith("/opt/venv/bin:")
    assert environment["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
    files = builder.files("course")
    code = {"cluster", "gradebook", "gradebox", "grader", "labkit", "labs", "solutions", "vgpu"}
    expected = {*code, "conftest.py", "pyproject.toml"}
    assert {path.name for path in (files / "workspace").iterdir()} == expected
    assert not list((files / "workspace").rglob("__pycache__"))
    assert (files / "opt/venv/bin/torchrun").exists()
    assert not list((files / "opt/venv").rglob("*.a"))
    assert not (files / "opt/venv/lib/nvidia/cublas/include").exists()
    for name in ("data", "output"):
        assert (files / name).stat().st_uid == 1000
    # The packages were installed in a stage that is thrown away, with everything that this leaves behind.
    called = (files / "called").read_text()
    assert "pip" not in called
    assert "apt-get install --yes --no-install-recommends ibverbs-providers libibverbs1 perftest" in called


@pytest.mark.night
def test_the_exercises_reference(builder: Builder) -> None:
    context = ROOT / "solutions" / "container_exercise"
    builder.build("exercise", context / "Dockerfile", context)
    config = builder.config("exercise")
    assert config["User"] == "10001"
    assert config["Cmd"] == ["python", "train.py", "--batch-size", "4096", "--epochs", "40"]
    assert set(config["Volumes"]) == {"/models", "/data"}
    files = builder.files("exercise")
    assert {path.name for path in (files / "app").iterdir()} == {"requirements.txt", "train.py"}
    assert (files / "models").stat().st_uid == 10001
    called = (files / "called").read_text()
    assert "whl/cu132" in called
    assert called.index("pip install") < called.index("useradd")


# What the judge reads about /models, and what an image does; each is built on the stand-in and asked as its user.
_FOLDERS = {
    **{name: SUBTLE[name][2] for name in SUBTLE if SUBTLE[name][2] == "directories"},
    "the reference": "",
    "open to everybody": "",
    "root's group, as OpenShift wants it": "",
    "a user by its name": "",
    "in the user's hands before it becomes the user": "",
}


@pytest.mark.night
@pytest.mark.parametrize("name", _FOLDERS)
def test_what_is_read_about_the_models_folder_is_so_in_the_image(builder: Builder, tmp_path: Path, name: str) -> None:
    text = REFERENCE.replace(*SUBTLE[name][:2]) if name in SUBTLE else STYLES[name]
    for file in ("requirements.txt", "train.py"):
        shutil.copy(ROOT / "solutions" / "container_exercise" / file, tmp_path)
    (tmp_path / "Dockerfile").write_text(text)
    done = builder.run("build", "--isolation=chroot", "--pull-never", "--tag", "asked", str(tmp_path))
    if done.returncode != 0:
        assert _FOLDERS[name] == "directories", done.stderr
        assert "/models" in done.stderr
        return
    container = builder.run("from", "--pull-never", "asked").stdout.strip()
    # Without the volumes of the image, which an engine fills with what the image has there, owner and mode included.
    user = builder.config("asked")["User"]
    wrote = builder.run("run", "--isolation=chroot", "--user", user, container, "--", "touch", "/models/probe")
    builder.run("rm", container)
    assert (wrote.returncode != 0) == (_FOLDERS[name] == "directories"), wrote.stderr


@pytest.mark.night
def test_a_changed_program_installs_nothing_again(builder: Builder, tmp_path: Path) -> None:
    context = tmp_path / "exercise"
    shutil.copytree(ROOT / "solutions" / "container_exercise", context)
    done = builder.run("build", "--isolation=chroot", "--pull-never", "--layers", "--tag", "one", str(context))
    assert done.returncode == 0, done.stderr
    (context / "train.py").write_text("print('changed')\n")
    again = builder.run("build", "--isolation=chroot", "--pull-never", "--layers", "--tag", "two", str(context))
    steps = again.stdout.split("STEP ")
    (install,) = [step for step in steps if "pip install" in step]
    (copy,) = [step for step in steps if "COPY train.py" in step]
    assert "Using cache" in install, again.stdout
    assert "Using cache" not in copy
