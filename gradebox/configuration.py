"""The pytest configuration a grading runs under: the course's own, wherever pytest was started and whatever it grades.

Not for options of grading; those are in `plugin.py`.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def own_rootdir() -> Path:
    """The checkout that this package lies in; the current folder, which is then a private one, where there is none."""
    return ROOT if (ROOT / "pyproject.toml").is_file() else Path.cwd()


def own_inifile() -> Path:
    """The checkout's `pyproject.toml`; no configuration at all where there is none."""
    file = ROOT / "pyproject.toml"
    return file if file.is_file() else Path(os.devnull)


def own_configuration() -> list[str]:
    """The options that make pytest read nothing of a submission, nor of the folder it is started in."""
    return ["-c", str(own_inifile()), "--rootdir", str(own_rootdir()), "--noconftest", "-p", "gradebox.pytest_plugin"]


def own_command(folder: Path | None = None) -> str:
    """How a shell in `folder` (the current one) calls `gpulabs`: by its name where it finds it, else by its path."""
    folder = folder or Path.cwd()
    beside = Path(sys.executable).with_name("gpulabs")
    if shutil.which("gpulabs") is not None or not beside.is_file():
        return "gpulabs"
    return as_seen_from(folder, beside)


def as_seen_from(folder: Path, path: Path) -> str:
    """`path` as one would type it in `folder`: relative where it lies below."""
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)
