"""What a class costs in which everybody handed in all labs: `python -m benchmarks.whole_class --count 20 --jobs 3`.

The submissions are the solutions with one planted mistake, one exploit or one other style of any lab, and stubs; so
most of their checks pass, which takes longest. Each judge's first grading also asks for what all others share. What 200
would take is the mean of the rest, times 200. Measured twice: as they are, where labs that are the same in several are
graded once, and where no two submissions have a lab in common.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import load, save
from gradebook.grading.memory import PeakMemory
from gradebook.store import FILE
from tests.gradebook.synthetic import Made, make_class

ROOT = Path(__file__).parents[1]
GPULABS = [sys.executable, "-c", "from grader.cli import app; app()"]
SEED = 20260301
LABS = (1, 2, 3, 4, 5)
_CLASS = 200
_WAYS = ("alike", "distinct")


def main(count: int = 20, jobs: int = 3, only: str = "", save_as: str = "whole_class") -> Path:
    """Grade `count` submissions with `jobs` judges, twice or only in one way, and save the figures."""
    before = load()
    figures = {name: _measured(count, jobs, distinct=name == "distinct") for name in ([only] if only else _WAYS)}
    what = f"gpulabs class, all labs, device vgpu:T4, {jobs} jobs"
    return save(save_as, {"what": what, "load_before": before, **figures})


def _measured(count: int, jobs: int, *, distinct: bool) -> dict[str, Any]:
    # Root's children run as somebody else, who must be able to enter; /tmp may be small.
    with tempfile.TemporaryDirectory(prefix="class-", dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        made = make_class(folder, count, LABS, distinct=distinct)
        started = time.perf_counter()
        options = [f"--jobs={jobs}", f"--seed={SEED}", "--device=vgpu:T4", "--out", str(folder / "out")]
        command = [*GPULABS, "class", str(folder / "submissions"), *options]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process, PeakMemory(process.pid) as peak:
            process.wait()
        if process.returncode not in (0, 3):
            raise RuntimeError(f"gpulabs class ended with {process.returncode}")
        wall = time.perf_counter() - started
        return _figures(folder / "out", made, jobs, wall, peak.bytes)


def _figures(out: Path, made: list[Made], jobs: int, wall: float, peak: int) -> dict[str, Any]:
    with sqlite3.connect(out / FILE) as database:
        rows = database.execute("SELECT seconds, peak_bytes FROM gradings ORDER BY rowid").fetchall()
        labs = sum(
            len({name.partition(".")[0] for name in json.loads(row[0])})
            for row in database.execute("SELECT criteria FROM gradings WHERE retry = 0")
        )
    seconds, peaks = [row[0] for row in rows], [row[1] for row in rows]
    settled = seconds[jobs:] or seconds
    return {
        "submissions": len(made),
        "gradings": len(rows),
        "kinds": sorted({submission.what.rpartition("/")[0] or submission.what for submission in made}),
        "wall_seconds": round(wall, 1),
        "grading_seconds": {
            "first_of_each_judge": seconds[:jobs],
            "mean_of_the_others": round(statistics.mean(settled), 1),
            "median_of_the_others": round(statistics.median(settled), 1),
            "max": max(seconds),
        },
        "labs_graded": labs,
        f"hours_for_{_CLASS}_from_the_mean": round(statistics.mean(settled) * _CLASS / jobs / 3600, 2),
        "peak_bytes_of_one_judge": {"median": statistics.median_low(peaks), "largest": max(peaks)},
        "peak_bytes_of_all_processes": peak,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--only", choices=_WAYS, default="", help="in this way alone")
    parser.add_argument(
        "--save-as", default="whole_class", help="name of the results' file: with another interpreter, say"
    )
    print(main(**vars(parser.parse_args())))
