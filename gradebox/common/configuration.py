"""The place of the engine, and how paths and commands are shown to people."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The folder that holds this package: a checkout, or where packages are installed."""
MAX_STEPS = 3
"""Of a hint."""

ENGINE_COMMAND = "gradebox"
"""The command that grades any course, which its options name."""


def own_command(name: str, folder: Path | None = None) -> str:
    """How a shell in `folder` (the current one) calls the command `name`: by it where it is found, else by its path."""
    folder = folder or Path.cwd()
    beside = Path(sys.executable).with_name(name)
    if shutil.which(name) is not None or not beside.is_file():
        return name
    return as_seen_from(folder, beside)


def own_subcommand(command: str, course: Path, name: str, folder: Path | None = None) -> str:
    """How a shell in `folder` (the current one) calls a subcommand for a course, which is in the folder `course`."""
    words = f"{own_command(command, folder)} {name}"
    if command != ENGINE_COMMAND:
        return words  # a course's own command finds it by itself
    return f"{words} --course {shlex.quote(as_seen_from(folder or Path.cwd(), course))}"


def as_seen_from(folder: Path, path: Path) -> str:
    """`path` as one would type it in `folder`: relative if it is below."""
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)
