"""What a grade of the reference costs, all labs and Lab 1 alone: seconds, processor time, memory, and where it goes."""

from __future__ import annotations

import json
import os
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
    """Grade the reference a few times on the virtual T4 and save the figures. The machine must be idle otherwise."""
    return save(
        "grade_cost",
        {
            "what": "pytest --grade --submission=solutions --device=vgpu:T4, start of the sandbox included",
            "all_labs": _measured(rounds, []),
            "lab1": _measured(rounds, ["--lab=1"]),
            # Of the largest single process: the preloaded server shares its pages with every child.
            "largest_process_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
        },
    )


def _measured(rounds: int, options: list[str]) -> dict[str, Any]:
    walls, busy, grades = [], [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            started, used = time.perf_counter(), machine_seconds()
            subprocess.run(
                [
                    *(sys.executable, "-m", "pytest", "--grade", "--submission=solutions", *options),
                    *("--device=vgpu:T4", f"--grade-report={folder}"),
                ],
                cwd=ROOT,
                check=True,
                capture_output=True,
            )
            walls.append(time.perf_counter() - started)
            busy.append(machine_seconds() - used)
            grades.append(json.loads(Path(folder, "grade.json").read_text()))
    checks: dict[str, list[float]] = {}
    for grade in grades:
        for name, seconds in _check_seconds(grade):
            checks.setdefault(name, []).append(seconds)
    return {
        "wall_seconds": {"median": statistics.median(walls), "all": walls},
        "machine_cpu_seconds": {"median": statistics.median(busy), "all": busy},
        "score": grades[-1]["score"],
        "isolation": grades[-1]["isolation"],
        "seconds_per_check": {name: statistics.median(values) for name, values in checks.items()},
    }


def machine_seconds() -> float:
    """Processor time that all processes of this machine have had: children of children are nobody's to wait for."""
    user, nice, system, _idle, _waiting, irq, softirq, *_ = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return sum(map(int, (user, nice, system, irq, softirq))) / os.sysconf("SC_CLK_TCK")


def _check_seconds(grade: dict[str, Any]) -> list[tuple[str, float]]:
    return [
        (check["id"], check["seconds"])
        for lab in grade["labs"]
        for criterion in lab["criteria"]
        for check in criterion["checks"]
    ]


if __name__ == "__main__":
    print(main())
