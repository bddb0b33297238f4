#!/usr/bin/env python3
"""Grades the reference and the stubs on each CPython from 3.11 on that this machine has: 100 and 0, or exit code 1.

    .ci/pythons.py [--all] [--tested] [--out FILE]

Looks on PATH, among pyenv's and uv's; takes the oldest and the newest version, or `--all`. Each gets an environment
under build/pythons/ with the newest of everything, or with `--tested` what constraints.txt names. Needs nothing but the
standard library.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OLDEST = (3, 11)
ASK = "import sys, ensurepip, venv; print(sys.implementation.name, *sys.version_info[:4])"
WANTED = {"solutions": (100, 0), "labs": (0, 1)}
"""What each folder must earn, and the exit code that goes with it."""


@dataclass(frozen=True)
class Python:
    """An interpreter that the course may run on."""

    version: tuple[int, int, int]
    path: Path

    @property
    def name(self) -> str:
        return ".".join(map(str, self.version))


@dataclass(frozen=True)
class Row:
    """What came out on one of them."""

    python: str
    versions: str
    user: str
    torch: str
    solutions: str
    labs: str
    solutions_seconds: float
    labs_seconds: float
    isolation: str
    right: bool


def candidates() -> Iterator[Path]:
    places = [(Path(folder), "python3*") for folder in os.environ.get("PATH", "").split(os.pathsep)]
    places.append((Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")), "versions/*/bin/python3"))
    places.append((Path.home() / ".local/share/uv/python", "*/bin/python3"))
    for folder, pattern in places:
        with contextlib.suppress(OSError):  # of another user
            yield from folder.glob(pattern)


def output_of(python: Path, program: str) -> str:
    """What an interpreter prints."""
    return subprocess.run([python, "-I", "-c", program], capture_output=True, text=True, timeout=60, check=True).stdout


def find_pythons() -> list[Python]:
    """One interpreter of each minor version, the newest of them, in their order."""
    by_minor: dict[tuple[int, int], Python] = {}
    for path in candidates():
        try:
            name, major, minor, micro, level = output_of(path, ASK).split()
        except (OSError, ValueError, subprocess.SubprocessError):
            continue
        version = (int(major), int(minor), int(micro))
        known = by_minor.get(version[:2])
        if (name, level) == ("cpython", "final") and version >= OLDEST and (known is None or version > known.version):
            by_minor[version[:2]] = Python(version, path)
    return [by_minor[minor] for minor in sorted(by_minor)]


def environment(python: Python, tested: bool) -> Path:
    """The interpreter of an environment in which the course is installed."""
    folder = ROOT / "build" / "pythons" / f"{python.name}-{'tested' if tested else 'newest'}"
    own = folder / "bin" / "python"
    if not own.exists():
        subprocess.run([python.path, "-m", "venv", folder], check=True)
    subprocess.run([own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "uv"], check=True)
    environ = os.environ | {"NEWEST": "" if tested else "1"}
    subprocess.run(["sh", ROOT / "install.sh", folder / "bin" / "uv", own], env=environ, check=True)
    return own


def graded(own: Path, submission: str) -> tuple[bool, str, float, str]:
    """Whether it earned what it must, what it earned, how long it took, and how it was isolated."""
    report = own.parents[1] / f"report-{submission}"
    shutil.rmtree(report, ignore_errors=True)
    started = time.monotonic()
    done = subprocess.run(
        [own.with_name("gpulabs"), "grade", submission, "--device=vgpu", f"--report={report}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - started
    try:
        grade = json.loads((report / "grade.json").read_text())
    except OSError:
        return False, (done.stderr.strip().splitlines() or ["no grade"])[-1], seconds, ""
    right = (grade["score"], done.returncode) == WANTED[submission] and grade["max_score"] == 100
    if not right:
        print(done.stdout + done.stderr, file=sys.stderr)
    return right, f"{grade['score']:g}/{grade['max_score']:g}", seconds, grade["isolation"]


def row(python: Python, tested: bool) -> Row:
    own = environment(python, tested)
    torch = output_of(own, "import importlib.metadata as m; print(m.version('torch'))").strip()
    right, solutions, seconds, isolation = graded(own, "solutions")
    stubs_right, labs, labs_seconds, _ = graded(own, "labs")
    return Row(
        python=python.name,
        versions="tested" if tested else "newest",
        user="root" if os.geteuid() == 0 else "ordinary",
        torch=torch,
        solutions=solutions,
        labs=labs,
        solutions_seconds=round(seconds, 1),
        labs_seconds=round(labs_seconds, 1),
        isolation=isolation,
        right=right and stubs_right,
    )


def _names(pythons: list[Python]) -> str:
    return ", ".join(python.name for python in pythons)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="every version that is here, not the oldest and newest only")
    parser.add_argument("--tested", action="store_true", help="what constraints.txt names, instead of the newest")
    parser.add_argument("--out", type=Path, help="also write the table as JSON to this file")
    options = parser.parse_args()
    pythons = find_pythons()
    if not pythons:
        print("no CPython from 3.11 on, with venv and ensurepip, was found", file=sys.stderr)
        return 1
    chosen = pythons if options.all else list(dict.fromkeys((pythons[0], pythons[-1])))
    print(f"found {_names(pythons)}; grading on {_names(chosen)}", flush=True)
    print(f"{'Python':9}{'torch':9}{'versions':10}{'user':10}{'isolation':12}{'solutions':>18}{'labs':>14}")
    rows = []
    for python in chosen:
        result = row(python, options.tested)
        rows.append(result)
        print(
            f"{result.python:9}{result.torch:9}{result.versions:10}{result.user:10}{result.isolation:12}"
            f"{result.solutions:>9}{result.solutions_seconds:7.0f} s{result.labs:>7}{result.labs_seconds:5.0f} s"
            f"{'' if result.right else '   WRONG'}",
            flush=True,
        )
    if options.out:
        options.out.write_text(json.dumps([asdict(result) for result in rows], indent=1) + "\n")
    return 0 if all(result.right for result in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
