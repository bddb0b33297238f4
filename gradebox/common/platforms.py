"""Systems on which nothing can be graded: the message comes before any import that they lack. Needs only Python."""

from __future__ import annotations

import os
import sys

WINDOWS_COMMANDS = (
    "wsl --install -d Ubuntu-24.04     (in a terminal of the administrator; then restart)",
    "wsl                               (then, in Linux:)",
    "sudo apt install make git python3-venv && git clone ADDRESS ~/labs && cd ~/labs && make grade LAB=1",
)
"""From Windows to a first grade. In Linux's own folders: those of Windows are slow from there."""


def problem() -> str:
    """Why nothing can be graded on this system, and what to do, in one sentence; empty where it can."""
    if hasattr(os, "fork"):
        return ""
    if sys.platform == "win32":
        return (
            "a submission runs in processes that are forked, which Windows does not do: grade in WSL2, a Linux within "
            "Windows (`wsl --install`, then as on Linux; `python -m grader.doctor` has the commands)"
        )
    return f"a submission runs in processes that are forked, which {sys.platform} does not do: grade on Linux or macOS"


def locale_problem() -> str:
    """Why names would be damaged here, and what to do; empty where they would not."""
    encoding = sys.getfilesystemencoding()
    if encoding == "utf-8":
        return ""
    return f"this locale reads names of files as {encoding}, which would damage them: set LC_ALL=C.UTF-8, and try again"


def require() -> None:
    """End the program with one of these sentences, and the exit code of what could not be graded."""
    if reason := problem() or locale_problem():
        print(f"could not grade: {reason}", file=sys.stderr)
        raise SystemExit(2)
