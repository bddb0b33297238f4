"""Where the processor time of a grade goes: the judge, ranks with the submission, reference runs, and all around them.

The reference is graded in this process, whose own time is the judge's. What each rank used comes back with its reply.
The rest is everything else on this machine, which must be idle otherwise: imports at the start (measured next to it, by
a grade of one small check), templates, supervisors, the simulated device's process, and the kernel's work for them.
"""

from __future__ import annotations

import dataclasses
import resource
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any
from unittest import mock

import grader
from benchmarks.grade_cost import machine_seconds
from benchmarks.measure import load, save
from gradebox.run.grading import run
from gradebox.run.options import Options
from gradebox.run.request_builder import build_request
from gradebox.sandbox import Reply, Request, Sandbox

ROOT = Path(__file__).parents[1]
SMALL = "lab1.analysis.crossover_found"
SHOWN = 25
"""Probes in the result, those that used most."""


def _counted() -> tuple[int, int]:
    """Processes and threads made, and pages brought in, on this machine since it was started."""
    made = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("processes "))
    faults = next(line for line in Path("/proc/vmstat").read_text().splitlines() if line.startswith("pgfault "))
    return int(made.split()[1]), int(faults.split()[1])


def _own_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(only: frozenset[str] | None = None) -> dict[str, Any]:
    """One grade of the reference on a virtual T4; CPU seconds by who used them."""
    course = str(Path(grader.__file__).parent)
    order = build_request(Options(course=course, submission=str(ROOT / "solutions"), device="vgpu:T4", seed=1))
    ask = Sandbox.run
    used = {"submission": 0.0, "reference": 0.0}
    requests: Counter[str] = Counter()
    seconds: defaultdict[str, float] = defaultdict(float)

    def counted(sandbox: Sandbox, request: Request) -> Reply:
        reply = ask(sandbox, request)
        cpu = sum(rank.cpu_seconds for rank in reply.ranks)
        used["submission" if request.student else "reference"] += cpu
        seconds[request.probe] += cpu
        requests[request.probe] += 1
        return reply

    made, faults = _counted()
    busy, own, begun = machine_seconds(), _own_seconds(), time.perf_counter()
    with mock.patch.object(Sandbox, "run", counted):
        grade = run(dataclasses.replace(order, only=only))
    wall, judge, whole = time.perf_counter() - begun, _own_seconds() - own, machine_seconds() - busy
    made_now, faults_now = _counted()
    return {
        "score": float(grade.score),
        "wall_seconds": round(wall, 2),
        "cpu_seconds": round(whole, 2),
        "processes_and_threads_made": made_now - made,
        "page_faults": faults_now - faults,
        "requests": sum(requests.values()),
        "cpu_seconds_of": {
            "judge": round(judge, 2),
            "ranks_with_the_submission": round(used["submission"], 2),
            "ranks_of_reference_runs": round(used["reference"], 2),
            "all_else": round(whole - judge - sum(used.values()), 2),
        },
        "probes": {
            name: {"requests": requests[name], "cpu_seconds": round(value, 2)}
            for name, value in sorted(seconds.items(), key=lambda pair: -pair[1])[:SHOWN]
        },
    }


def main() -> Path:
    """Measure a whole grade, and one small check for what every grade costs, and save both."""
    before = load()
    small, whole = measure(frozenset({SMALL})), measure()
    for name, value in whole["cpu_seconds_of"].items():
        print(f"  {name.replace('_', ' '):28s}{value:8.2f} s of {whole['cpu_seconds']:.2f}", flush=True)
    del small["probes"]
    return save(
        "grade_breakdown",
        {
            "what": "CPU seconds of a grade of the reference, virtual T4; and of one that asks one small check",
            "load_average": {"before": before, "after": load()},
            "one_small_check": small,
            "all_labs": whole,
        },
    )


if __name__ == "__main__":
    print(main())
