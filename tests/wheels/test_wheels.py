"""The three distributions: each is whole, and works alone in an environment that holds nothing but what it names."""

from __future__ import annotations

import re
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.wheels.conftest import NAMES, ROOT, Installer, run, succeed


def _project(folder: Path) -> dict[str, Any]:
    with (folder / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)["project"]


def _requirements(project: dict[str, Any]) -> set[str]:
    return {re.sub(r"\s", "", line) for line in project["dependencies"]}


def test_the_parts_need_together_what_the_checkout_needs() -> None:
    whole = _project(ROOT)
    parts = [_project(ROOT / "packaging" / name) for name in NAMES]
    extras = {line for part in parts for lines in part.get("optional-dependencies", {}).values() for line in lines}
    own = {line for part in parts for line in _requirements(part) if not line.startswith(("vgpu", "gradebox"))}
    assert own <= _requirements(whole) <= own | extras


def test_the_course_has_each_extra_that_a_message_names() -> None:
    sources = [file for folder in ("gradebook", "grader", "labs") for file in (ROOT / folder).rglob("*.py")]
    named = {name for file in sources for name in re.findall(r"gpu-computing-labs\[([a-z-]+)\]", file.read_text())}
    assert {"canvas", "ray", "flash-attn"} <= named
    checkout, wheel = (_project(folder)["optional-dependencies"] for folder in (ROOT, ROOT / "packaging" / NAMES[-1]))
    assert named <= wheel.keys()
    assert {name: checkout[name] for name in wheel} == wheel


def test_the_course_wants_the_parts_of_its_own_version() -> None:
    version = _project(ROOT)["version"]
    course = _requirements(_project(ROOT / "packaging" / "gpu-computing-labs"))
    assert {line for line in course if line.startswith(("vgpu", "gradebox"))} == {
        f"vgpu[nvml,pictures]=={version}", f"gradebox[pytest]=={version}",
    }  # fmt: skip


def test_every_file_of_the_packages_is_in_exactly_one_wheel(installer: Installer) -> None:
    files: list[str] = []
    for wheel in sorted(installer.wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            files += [name for name in archive.namelist() if ".dist-info/" not in name]
    expected = sorted(
        path.relative_to(ROOT).as_posix()
        for package in ("vgpu", "gradebox", "gradebook", "grader", "labkit")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.name != ".DS_Store"
    )
    assert sorted(files) == expected
    assert len(list(installer.wheels.glob("*.whl"))) == len(NAMES)


@pytest.mark.night
def test_vgpu_alone_runs_an_example(installer: Installer, tmp_path: Path) -> None:
    python = installer.environment("vgpu") / "python"
    for absent in ("gradebox", "grader", "labkit", "matplotlib", "rich"):
        assert run([python, "-P", "-c", f"import {absent}"]).returncode
    example = [ROOT / "examples" / "benchmark_timer.py", "--sizes", "128", "512", "--repeats", "5"]
    printed = succeed([python, "-P", "-m", "vgpu", *example, "--min-run-time", "0.001"], cwd=tmp_path)
    small, large = (float(value) for value in re.findall(r"float32 +\d+: +([\d.]+) TFLOPS", printed))
    assert 0 < small < large


@pytest.mark.night
def test_gradebox_alone_has_all_its_modules_and_no_torch(gradebox: Path) -> None:
    program = (
        "import importlib, pkgutil, sys, gradebox, gradebook\n"
        "for package in (gradebox, gradebook):\n"
        "    for entry in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        if entry.name == 'gradebox.__main__':\n"
        "            continue\n"
        "        try:\n"
        "            importlib.import_module(entry.name)\n"
        "            print('has', entry.name)\n"
        "        except ModuleNotFoundError as error:\n"
        "            print('lacks', error.name)\n"
        "assert not {'torch', 'vgpu', 'labkit', 'grader'} & set(sys.modules)\n"
    )
    lines = succeed([gradebox / "python", "-P", "-c", program]).splitlines()
    assert {"has gradebox.run.grading", "has gradebox.sandbox.worker", "has gradebook.store"} <= set(lines)
    extras = _project(ROOT / "packaging" / "gradebox")["optional-dependencies"].values()
    optional = {re.split(r"[<>=]", line)[0] for lines_of in extras for line in lines_of}
    assert {line.removeprefix("lacks ") for line in lines if line.startswith("lacks ")} <= optional
    assert run([gradebox / "python", "-P", "-c", "import torch"]).returncode


@pytest.mark.night
def test_the_course_loads_with_what_its_wheel_names(installer: Installer, tmp_path: Path) -> None:
    bin_ = installer.environment("gpu-computing-labs")
    program = "import grader; course = grader.course(); course.prepare()\nfor lab in course.all_labs:\n"
    program += "    print(lab.id, len(course.checks(lab)))\nprint(grader.__file__)\n"
    *labs, where = succeed([bin_ / "python", "-P", "-c", program], cwd=tmp_path).split("\n")[:-1]
    assert Path(where).is_relative_to(bin_.parent)
    exercises = ["container", "kernels", "sharding"]
    assert [line.split()[0] for line in labs] == ["lab1", "lab2", "lab3", "lab4", "lab5", *exercises]
    assert all(int(line.split()[1]) > 5 for line in labs)
    assert "grade" in succeed([bin_ / "gpulabs", "--help"], cwd=tmp_path)


@pytest.mark.night
def test_the_course_grades_with_what_its_wheel_names(installer: Installer, tmp_path: Path) -> None:
    gpulabs = installer.environment("gpu-computing-labs") / "gpulabs"
    grade = [gpulabs, "grade", ROOT / "solutions", "--device=vgpu", "--jobs=1", "--criterion=lab1.analysis"]
    assert "passed" in succeed(grade, cwd=tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_a_distribution_says_what_it_is(name: str) -> None:
    project = _project(ROOT / "packaging" / name)
    assert project["name"] == name
    assert (ROOT / "packaging" / name / project["readme"]).read_text().startswith(f"# {name}:")
    assert (ROOT / "packaging" / name / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
