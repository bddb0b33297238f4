"""What a whole grade of Lab 1 costs: seconds and peak memory of all its processes, and where the seconds go."""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import save

ROOT = Path(__file__).parents[1]


def main(rounds: int = 3) -> Path:
    """Grade the reference a few times on the virtual T4 and save the figures."""
    walls, grades = [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            started = time.perf_counter()
            subprocess.run(
                [
                    *(sys.executable, "-m", "pytest", "--grade", "--lab=1", "--submission=solutions"),
                    *("--device=vgpu:T4", f"--grade-report={folder}"),
                ],
                cwd=ROOT,
                check=True,
                capture_output=True,
            )
            walls.append(time.perf_counter() - started)
            grades.append(json.loads(Path(folder, "grade.json").read_text()))
    checks: dict[str, list[float]] = {}
    for grade in grades:
        for name, seconds in _check_seconds(grade):
            checks.setdefault(name, []).append(seconds)
    return save(
        "grade_cost",
        {
            "what": "make grade SUBMISSION=solutions LAB=1 DEVICE=vgpu:T4, start of the sandbox included",
            "wall_seconds": {"median": statistics.median(walls), "all": walls},
            # Of the largest single process: the preloaded server shares its pages with every child.
            "largest_process_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
            "score": grades[-1]["score"],
            "isolation": grades[-1]["isolation"],
            "seconds_per_check": {name: statistics.median(values) for name, values in checks.items()},
        },
    )


def _check_seconds(grade: dict[str, Any]) -> list[tuple[str, float]]:
    return [
        (check["id"], check["seconds"])
        for lab in grade["labs"]
        for criterion in lab["criteria"]
        for check in criterion["checks"]
    ]


if __name__ == "__main__":
    print(main())
