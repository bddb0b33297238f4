"""`pytest --grade`: starts the judge that grades; without the option the plugin does nothing. Hooks, and nothing else.

The pytest that a person starts has read files of the folder it was started in. So it only starts another one, in a
folder of its own (`launch.py`), whose items are the course's checks (`pytest_judge.py`).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import pytest

from gradebox.common import platforms

platforms.require()  # before what only such systems have is imported

from gradebox import launch
from gradebox.run.options import TIME_LIMIT_SECONDS

_OPTIONS = {
    "submission": ("DIR", "labs", "folder to grade (default: labs)"),
    "lab": ("N[,N]", None, "grade only these labs, for example 1,3; or an exercise by its name"),
    "criterion": ("ID[,ID]", None, "grade only these criteria, after the checks that they build on"),
    "device": ("DEVICE", "auto", "auto, or a device that the course names (cuda, vgpu or vgpu:MODEL)"),
    "grade-seed": ("N", None, "repeat a grading with its printed seed"),
    "grade-report": ("DIR", "grade-report", "where grade.json and grade.html go (default: grade-report)"),
    "overrides": ("FILE", None, "points given by hand (default: overrides.toml of the course's checkout)"),
    "student": ("NAME", None, "whose overrides apply (default: the folder's name)"),
    "time-limit": ("SECONDS", None, f"for the whole grading (default: {TIME_LIMIT_SECONDS:g}; none on a real GPU)"),
}
_TYPES = {"grade-seed": int, "time-limit": float}


class _Joined(argparse.Action):
    """Given twice, as if one option had both values with a comma."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, f"{before},{values}" if before else values)


_ACTIONS: dict[str, type[argparse.Action]] = {"lab": _Joined, "criterion": _Joined}


class Course:
    """Hooks of our own."""

    @pytest.hookspec(firstresult=True)
    def pytest_grade_course(self) -> Path | None:
        """The folder of the course that `--grade` grades; a course's own plugin says it."""


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(Course)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("grade", "grading labs")
    group.addoption("--grade", action="store_true", help="grade a submission against the course's rubric")
    for name, (metavar, default, text) in _OPTIONS.items():
        how: dict[str, Any] = {"action": _ACTIONS[name]} if name in _ACTIONS else {"type": _TYPES.get(name, str)}
        group.addoption(f"--{name}", metavar=metavar, default=default, help=text, **how)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Grade in a judge of its own, unless this is one: pytest here has found files of the folder it was started in."""
    if not early_config.known_args_namespace.grade or early_config.pluginmanager.hasplugin(launch.JUDGE):
        return
    capturing = early_config.pluginmanager.getplugin("capturemanager")
    if capturing is not None:  # it has turned standard output into a file, which the judge would inherit
        capturing.suspend_global_capture(in_=True)
    sys.stdout.flush()
    raise SystemExit(launch.from_pytest(early_config))
