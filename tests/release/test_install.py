"""What was tested is what is installed: by make, in the students' repository and in every export."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from gradebook.export import gradescope_autograder
from grader.doctor import software
from grader.release import contents

ROOT = Path(__file__).parents[2]
PIN = re.compile(r"[a-z0-9._-]+==[a-z0-9.+!]+( ; [^#]+)?")
WORKS = 'echo "$*" >>"$CALLS"\n'
NO_WHEEL = WORKS + 'case "$*" in *--constraints*) echo "no wheel of torch==2.15.0" >&2; exit 1;; esac\n'
NO_NETWORK = WORKS + 'echo "no network" >&2; exit 2\n'


@dataclass(frozen=True)
class Run:
    exit_code: int
    errors: str
    calls: list[str]


@pytest.fixture
def install(tmp_path: Path):
    """Run `install.sh` with a stand-in for uv."""

    def run(uv: str, *extras: str, newest: str = "") -> Run:
        program, calls = tmp_path / "uv", tmp_path / "calls"
        program.write_text(f"#!/bin/sh\n{uv}")
        program.chmod(0o755)
        environment = {**os.environ, "CALLS": str(calls), "NEWEST": newest}
        command = ["sh", str(ROOT / "install.sh"), str(program), "python", *extras]
        done = subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, check=False)
        return Run(done.returncode, done.stderr, calls.read_text().splitlines())

    return run


def test_the_tested_versions_are_installed(install) -> None:
    done = install(WORKS, "dev")
    assert (done.exit_code, done.errors, len(done.calls)) == (0, "", 1)
    assert "--constraints constraints.txt" in done.calls[0]
    assert done.calls[0].endswith("--editable .[dev]")


def test_the_newest_are_installed_on_request(install) -> None:
    done = install(WORKS, newest="1")
    assert (done.exit_code, len(done.calls)) == (0, 1)
    assert "--upgrade" in done.calls[0]
    assert "constraints" not in done.calls[0]
    assert done.calls[0].endswith("--editable .")


def test_where_a_platform_lacks_a_version_the_ranges_hold_and_a_line_says_so(install) -> None:
    done = install(NO_WHEEL)
    assert done.exit_code == 0
    assert ["--constraints" in call for call in done.calls] == [True, False]
    assert done.errors.strip().startswith("note: this platform cannot have every version of constraints.txt")
    assert len(done.errors.strip().splitlines()) == 1


def test_an_installation_that_fails_says_why_once(install) -> None:
    done = install(NO_NETWORK)
    assert done.exit_code == 2
    assert done.errors == "no network\n"


def test_constraints_are_names_and_versions_and_nothing_else() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert [line for line in lines if not PIN.fullmatch(line)] == []
    names = {line.partition("==")[0] for line in lines}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    requirements = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    for extra, packages in project["project"]["optional-dependencies"].items():
        requirements += packages if extra != "flash-attn" else []
    for text in requirements:
        assert re.match(r"[a-z0-9-]+", text.lower())[0] in names, text


def test_students_and_exports_get_them_too() -> None:
    assert {"constraints.txt", "install.sh"} <= set(contents.for_students(ROOT))
    assert {"constraints.txt", "install.sh"} <= set(gradescope_autograder._FILES)
    for script in (
        ROOT / "Makefile",
        ROOT / "grader/release/templates/Makefile",
        ROOT / "gradebook/export/scripts/setup.sh",
    ):
        text = script.read_text()
        assert "install.sh" in text
        assert "uv pip install" not in text, script


def test_doctor_names_the_pythons_that_are_graded_on() -> None:
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    named = [text.rpartition(" ")[2] for text in classifiers if "Python :: 3." in text]
    assert named == list(software.TESTED)
