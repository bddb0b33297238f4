"""The queue without a GPU: in a copy of the checkout whose course takes a hidden virtual GPU for a real one.

    python -m benchmarks.on_a_gpu.rehearsal FOLDER [options of benchmarks.on_a_gpu]

Everything but the course's module of devices is as it is on a GPU machine: the same jobs, commands and files. Results
are written into the copy, so that no simulated figure is ever taken for a measured one. The folder is kept: the same
command goes on where the last one was stopped, and copies the checkout again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.on_a_gpu.job import ROOT

_LEFT_OUT = (".*", "build", "dist", "__pycache__", "data", "*.egg-info", "grade-report")
_REAL, _REHEARSED = 'module = "grader.shared.devices"', 'module = "grader.rehearsal.devices"'
_RESULTS = Path("benchmarks") / "results" / "gpu"


def main(folder: Path, arguments: Sequence[str]) -> int:
    """Copy and run; the queue's exit code."""
    checkout = copy(folder)
    command = [
        sys.executable,
        "-m",
        "benchmarks.on_a_gpu",
        "--program-path",
        str(checkout / "tests" / "rehearsal" / "stand_in"),
        "--slowness",
        "20",
    ]
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    try:
        return subprocess.run([*command, *arguments], cwd=checkout, env=environment, check=False).returncode
    except KeyboardInterrupt:  # the queue has heard of it as well, and says so
        return 130


def copy(folder: Path) -> Path:
    """A copy of the checkout in `folder`, with the results that are there."""
    checkout = folder.resolve() / "checkout"
    kept = folder.resolve() / "kept"
    shutil.rmtree(kept, ignore_errors=True)
    if (checkout / _RESULTS).is_dir():
        shutil.move(checkout / _RESULTS, kept)
    shutil.rmtree(checkout, ignore_errors=True)
    shutil.copytree(ROOT, checkout, ignore=shutil.ignore_patterns(*_LEFT_OUT), symlinks=True)
    shutil.rmtree(checkout / _RESULTS, ignore_errors=True)
    if kept.is_dir():
        shutil.move(kept, checkout / _RESULTS)
    course = checkout / "grader" / "course.toml"
    text = course.read_text(encoding="utf-8")
    if text.count(_REAL) != 1:
        raise ValueError(f"{course} does not say {_REAL}: the rehearsal cannot put its own module there")
    course.write_text(text.replace(_REAL, _REHEARSED), encoding="utf-8")
    return checkout


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
