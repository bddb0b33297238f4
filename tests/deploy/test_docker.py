"""The image, the compose file and the workflow, in the hands of hadolint, promtool and the published schemas."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import labkit.monitoring
from tests.deploy.conftest import DEPLOY, ROOT, tool

DOCKER = DEPLOY / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
WORKFLOWS = ROOT / ".github" / "workflows"
WORKFLOW = WORKFLOWS / "image.yml"


def yaml_of(path: Path) -> Any:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: pip install pyyaml brings it")
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_hadolint_has_nothing_to_say(hadolint: str) -> None:
    done = subprocess.run(
        [hadolint, "--config", str(ROOT / ".hadolint.yaml"), str(DOCKER / "Dockerfile")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("schema", "file"),
    [
        ("vendor.compose-spec", DOCKER / "compose.yaml"),
        *(("vendor.github-workflows", path) for path in sorted(WORKFLOWS.glob("*.yml"))),
    ],
    ids=lambda file: file.name if isinstance(file, Path) else "",
)
def test_the_published_schema_accepts_it(schema: str, file: Path) -> None:
    program = tool("check-jsonschema", brings="pip install check-jsonschema")
    done = subprocess.run(
        [program, "--builtin-schema", schema, str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout


def test_every_file_that_compose_mounts_exists() -> None:
    services = yaml_of(DOCKER / "compose.yaml")["services"]
    # The reports are made by the run.
    mounted = {
        volume.split(":")[0]
        for service in services.values()
        for volume in service.get("volumes", ())
        if volume.startswith(".") and "reports" not in volume
    }
    assert len(mounted) >= 6
    for path in mounted:
        assert (DOCKER / path).exists(), path


def test_nothing_listens_beyond_this_machine() -> None:
    services = yaml_of(DOCKER / "compose.yaml")["services"]
    ports = [port for service in services.values() for port in service.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


@pytest.mark.parametrize(("gpus", "options"), [("", []), ("8", ["--expect-gpus=8"])])
def test_the_acceptance_test_is_told_how_many_gpus_there_should_be(gpus: str, options: list[str]) -> None:
    command = yaml_of(DOCKER / "compose.yaml")["services"]["acceptance"]["command"]
    # Compose fills in variables as a shell does, and takes the words apart as one does.
    done = subprocess.run(
        ["sh", "-c", f"printf '%s\\n' {command}"], env={"EXPECT_GPUS": gpus, "PATH": os.environ["PATH"]},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    program, *arguments = done.stdout.split("\n")[:-1]
    assert [program, *arguments] == ["python", "-m", "cluster.acceptance", "--report", "/output/reports", *options]


def test_prometheus_takes_its_configuration_and_the_labs_rules(tmp_path: Path) -> None:
    promtool = tool("promtool", brings="apt install prometheus")
    shutil.copy(DOCKER / "prometheus.yml", tmp_path)
    shutil.copy(Path(labkit.monitoring.__file__).with_name("alerts.rules.yml"), tmp_path)
    done = subprocess.run(
        [promtool, "check", "config", "prometheus.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_dependency_of_the_course_is_pinned() -> None:
    """By the constraints, for each Python that they tell apart."""
    named = [line for line in (DOCKER / "requirements.txt").read_text().splitlines() if not line.startswith("#")]
    pins = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines()]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == named
    assert "--constraints /tmp/constraints.txt" in DOCKERFILE
    for text in project["dependencies"]:
        requirement = Requirement(text)
        versions = [str(pin.specifier).removeprefix("==") for pin in pins if pin.name == requirement.name]
        assert versions, text
        assert all(Version(version) in requirement.specifier for version in versions), text


def test_the_image_has_what_the_build_context_lets_through_and_the_other_way_round() -> None:
    let_through = set(re.findall(r"^!(\S+)", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    copied = set()
    for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE):
        copied.update(line.split()[:-1])
    assert copied == let_through
    for name in copied:
        assert (ROOT / name).exists(), name


def test_the_image_has_every_package_of_the_course_and_what_these_import() -> None:
    copied = set(re.findall(r"^COPY (\w+) \w+$", DOCKERFILE, re.MULTILINE))
    ours = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks"}
    for package in sorted(copied & ours):
        for path in (ROOT / package).rglob("*.py"):
            named = set(re.findall(r"^\s*(?:from|import) (\w+)", path.read_text("utf-8"), re.MULTILINE))
            assert named & ours <= copied, path


def test_the_image_runs_as_an_ordinary_user_and_packages_lie_below_the_code() -> None:
    final = DOCKERFILE.rpartition("\nFROM ")[2]
    assert re.findall(r"^USER (.*)$", final, re.MULTILINE) == ["1000:1000"]
    assert DOCKERFILE.index("python /tmp/packages.py") < DOCKERFILE.index("COPY labkit")


def test_a_base_image_with_a_user_1000_keeps_it(tmp_path: Path) -> None:
    (run,) = re.findall(r"RUN (if ! grep.*?)\nCOPY", DOCKERFILE.replace("\\\n", " "), re.DOTALL)
    for name in ("groupadd", "useradd", "install"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/called\n')
        (tmp_path / name).chmod(0o755)
    called = {}
    for users in ("root:x:0:0::/root:/bin/sh\n", "root:x:0:0:::\nubuntu:x:1000:1000:Ubuntu:/home/ubuntu:/bin/bash\n"):
        (tmp_path / "passwd").write_text(users)
        (tmp_path / "called").write_text("")
        command = run.replace("/etc/passwd", str(tmp_path / "passwd"))
        subprocess.run(["sh", "-c", command], env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, check=True)
        called["ubuntu" in users] = [line.split()[0] for line in (tmp_path / "called").read_text().splitlines()]
    assert called == {False: ["groupadd", "useradd", "install"], True: ["install"]}


def test_nothing_is_pushed_before_the_acceptance_test_was_asked() -> None:
    jobs = yaml_of(WORKFLOW)["jobs"]
    assert set(jobs["push"]["needs"]) >= {"acceptance", "acceptance-without-gpu"}
    # One image for test and push: what is pushed was tested, not built again.
    builds = [step for job in jobs.values() for step in job["steps"] if "build-push" in step.get("uses", "")]
    assert len(builds) == 1
    assert "candidate" in json.dumps(jobs["push"]["steps"])


def test_a_pull_request_cannot_write_to_the_registry() -> None:
    jobs = yaml_of(WORKFLOW)["jobs"]
    for step in jobs["build"]["steps"]:
        if "login-action" in step.get("uses", ""):
            assert "pull_request" in step["if"]
        if "build-push" in step.get("uses", ""):
            assert "pull_request" in step["with"]["push"]
    for name in ("acceptance", "acceptance-without-gpu", "push"):
        assert "github.event_name != 'pull_request'" in jobs[name]["if"]
