"""On a system that forks no processes one sentence says what to do, whatever was typed, and no traceback."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gradebox.common import platforms
from tests.first_hour.conftest import ROOT

WINDOWS = """
import os, sys
del os.fork
sys.platform = "win32"
for name in ("resource", "fcntl", "grp", "pwd", "termios"):
    sys.modules[name] = None
"""
"""A Python that lacks what Windows' lacks."""
TYPED = {
    "gpulabs": "sys.argv = ['gpulabs', 'grade']; from grader.cli import app; app()",
    "gradebox": "import runpy; sys.argv = ['gradebox', 'grade']; runpy.run_module('gradebox', run_name='__main__')",
    "pytest": "sys.argv = ['pytest', '--grade']; import gradebox.pytest_plugin",
}


@pytest.mark.parametrize("program", TYPED)
def test_windows_is_told_of_wsl_in_one_sentence(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{WINDOWS}\n{TYPED[program]}"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("could not grade: a submission runs in processes that are forked, which Windows does not do")
    assert "wsl --install" in line


@pytest.mark.parametrize("program", ["gpulabs", "gradebox"])
def test_a_locale_that_damages_names_is_refused_in_one_sentence(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {TYPED[program]}"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "LC_ALL": "POSIX", "PYTHONUTF8": "0",
             "PYTHONCOERCECLOCALE": "0"},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line == (
        "could not grade: this locale reads names of files as ascii, which would damage them: set LC_ALL=C.UTF-8, and "
        "try again"
    )


def test_the_doctor_has_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    from grader import doctor

    monkeypatch.delattr(os, "fork")
    monkeypatch.setattr(sys, "platform", "win32")
    (fact,) = doctor.examine()  # and nothing else: what is installed there is of no use
    assert (fact.name, fact.state) == ("system", "wrong")
    assert any("wsl --install" in command for command in fact.fix)


def test_here_is_no_problem() -> None:
    assert platforms.problem() == platforms.locale_problem() == ""
