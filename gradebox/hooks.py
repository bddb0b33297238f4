"""Hooks of our own, for tools that grade many submissions in one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradebox.sandbox import Sandbox


@pytest.hookspec(firstresult=True)
def pytest_grade_course() -> tuple[Path, Path] | None:
    """Return the rubric's file and the folder of its checks, to grade another course than this one; None for our own.

    Probes of their own need a sandbox that knows them (`probe_paths`), given by `pytest_grade_sandbox`.
    """


@pytest.hookspec(firstresult=True)
def pytest_grade_sandbox(folder: Path) -> Sandbox | None:
    """Return an entered sandbox over `folder` to grade in, or None for a new one.

    Whoever returns one keeps it: its preloaded server, which takes seconds to start, then serves several gradings.
    """
