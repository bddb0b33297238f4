"""Exercises outside the 100 points: each has its own rubric and its own checks, and is graded by itself, `--lab NAME`.

Not for the five labs (`grader/rubric.toml`, `grader/checks/`): a run with an extension knows nothing of them.
"""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent

NAMES = tuple(sorted(folder.name for folder in _HERE.iterdir() if (folder / "rubric.toml").is_file()))
"""What `--lab` may say instead of numbers."""


def rubric_file(name: str) -> Path:
    """Where the points of an extension stand."""
    return _HERE / name / "rubric.toml"


def checks_folder(name: str) -> Path:
    """Where pytest finds its checks."""
    return _HERE / name
