"""The processes of this machine, by `/proc`. A test that looks there is skipped on a system without it (macOS)."""

from __future__ import annotations

from pathlib import Path

import pytest

AVAILABLE = Path("/proc/self/stat").is_file()
REASON = "finds processes in /proc, which this system does not have"


def proc() -> Path:
    """The folder. Call it before a process is started that the test would have to end."""
    if not AVAILABLE:
        pytest.skip(REASON)
    return Path("/proc")


def is_there(pid: int) -> bool:
    """Whether a process has this number, also one that has ended and is not collected yet."""
    return (proc() / str(pid)).exists()
