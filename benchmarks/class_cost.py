"""What grading a class costs, and whether it changes a grade: `python -m benchmarks.class_cost --count 100 --jobs 2`.

Grades made-up submissions (correct variants, planted bugs, exploits, stubs; Lab 1) four times: undisturbed, killed by
SIGKILL on the way, on a simulated Ray cluster of three nodes that loses one (where Ray is installed), and each of them
alone. Gradebooks and grades must be equal.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.measure import load, save
from grader.classroom import results, standing
from grader.classroom.gradebook import FILE
from grader.classroom.memory import used_bytes
from tests.classroom.synthetic import Made, make_class

ROOT = Path(__file__).parents[1]
GPULABS = [sys.executable, "-c", "from grader.cli import app; app()"]
SEED = 20260301
_POLL_SECONDS = 0.5


def main(count: int = 8, jobs: int = 2, kills: int = 5, alone: int | None = None) -> Path:
    """Run all three and save the figures.

    Args:
        count: submissions.
        jobs: gradings at the same time.
        kills: how often the second run is killed.
        alone: how many submissions to grade alone, those that were made first; None: all.
    """
    # Root's children run as somebody else, who must be able to enter; /tmp may be small.
    with tempfile.TemporaryDirectory(prefix="class-", dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        made = make_class(folder, count)
        load_before = load()
        seconds, peak_bytes = _undisturbed(folder, jobs)
        killed = _killed(folder, jobs, kills)
        first, second = (standing.dump(folder / out) for out in ("undisturbed", "killed"))
        on_ray = _on_ray(folder, first) if importlib.util.find_spec("ray") else None
        compared = _compared_alone(folder, made[:alone])
        history = _history(folder / "undisturbed")
        return save(
            "class_cost",
            {
                "what": f"gpulabs class, Lab 1, device vgpu:T4, {jobs} jobs",
                "submissions": count,
                "gradings": len(history),
                "kinds": sorted({one.what.rpartition("/")[0] or one.what for one in made}),
                "load_before": load_before,
                "wall_seconds": round(seconds, 1),
                "wall_seconds_per_submission": round(seconds / count, 2),
                "grading_seconds": {
                    "median": round(statistics.median(one["seconds"] for one in history), 1),
                    "max": max(one["seconds"] for one in history),
                },
                "peak_bytes_of_all_processes": peak_bytes,
                "peak_bytes_of_one_judge": max(one["peak_bytes"] for one in history),
                "killed": {**killed, "gradebook_is_identical": first == second, "differences": _lines(first, second)},
                "ray": on_ray,
                "alone": compared,
            },
        )


@contextlib.contextmanager
def _started(
    folder: Path, out: str, jobs: int, *more: str, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A run of `gpulabs class`, which is killed at the end if it still runs."""
    asked = [f"--jobs={jobs}", f"--seed={SEED}", "--lab=1", "--device=vgpu:T4"]
    command = [*GPULABS, "class", str(folder / "submissions"), "--out", str(folder / out), *asked, *more]
    around = os.environ | dict(environment or {})
    nowhere = subprocess.DEVNULL
    with subprocess.Popen(command, cwd=ROOT, env=around, stdout=nowhere, stderr=nowhere) as process:
        try:
            yield process
        finally:
            process.kill()


def _undisturbed(folder: Path, jobs: int) -> tuple[float, int]:
    """Wall seconds, and the most memory that all processes had together."""
    started = time.perf_counter()
    with _started(folder, "undisturbed", jobs) as process:
        peak = 0
        while process.poll() is None:
            peak = max(peak, used_bytes(process.pid))
            time.sleep(_POLL_SECONDS)
    if process.returncode not in (0, 3):
        raise RuntimeError(f"gpulabs class ended with {process.returncode}")
    return time.perf_counter() - started, peak


def _killed(folder: Path, jobs: int, kills: int) -> dict[str, Any]:
    """Grade into another gradebook, killed after about every n-th grading; what was killed when."""
    total = len(_history(folder / "undisturbed"))
    chance = random.Random(SEED)
    found: list[int] = []
    for number in range(1, kills + 1):
        with _started(folder, "killed", jobs) as process:
            goal = number * total // (kills + 1)
            while process.poll() is None and _count(folder / "killed") < goal:
                time.sleep(_POLL_SECONDS)
            time.sleep(chance.uniform(0, 10))
        found.append(_count(folder / "killed"))
    with _started(folder, "killed", jobs) as process:
        exit_code = process.wait()
    return {
        "kills": kills,
        "gradings_before_each": found,
        "exit_code": exit_code,
        "gradings": _count(folder / "killed"),
    }


def _on_ray(folder: Path, undisturbed: str) -> dict[str, Any]:
    """Grade with `--engine ray` on three nodes of one CPU each, one of which is taken away in the middle."""
    from ray.cluster_utils import Cluster

    nodes, total = 3, len(_history(folder / "undisturbed"))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        doomed = [cluster.add_node(num_cpus=1) for _ in range(nodes - 1)][-1]
        cluster.wait_for_nodes()
        started = time.perf_counter()
        with _started(folder, "ray", nodes, "--engine=ray", environment={"RAY_ADDRESS": cluster.address}) as process:
            while process.poll() is None and _count(folder / "ray") < total // 2:
                time.sleep(_POLL_SECONDS)
            before = _count(folder / "ray")
            cluster.remove_node(doomed)
            exit_code = process.wait()
        seconds = time.perf_counter() - started
    finally:
        cluster.shutdown()
    dumped = standing.dump(folder / "ray")
    return {
        "nodes": nodes,
        "gradings_before_a_node_was_lost": before,
        "exit_code": exit_code,
        "gradings": _count(folder / "ray"),
        "wall_seconds": round(seconds, 1),
        "gradebook_is_identical": dumped == undisturbed,
        "differences": _lines(undisturbed, dumped),
    }


def _compared_alone(folder: Path, made: list[Made]) -> dict[str, Any]:
    """Each submission graded by `gpulabs grade`, and what differs from its grade in the class."""
    in_class = {one.student: one.grade for one in results.load(folder / "undisturbed").students}
    different_points, different_words = [], []
    for one in made:
        report = folder / "report"
        asked = [f"--seed={SEED}", "--lab=1", "--device=vgpu:T4", "--report", str(report)]
        command = [*GPULABS, "grade", str(one.folder), *asked]
        subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
        alone = json.loads((report / "grade.json").read_text()) | {"submission": one.student}
        mine = in_class[one.student]
        if mine is None or _outcomes(mine) != _outcomes(alone):
            different_points.append(f"{one.student} ({one.what})")
        elif standing.without_seconds(mine) != standing.without_seconds(alone):
            different_words.append(f"{one.student} ({one.what})")
    return {
        "submissions": len(made),
        "different_outcomes": different_points,
        "same_outcomes_in_other_words": different_words,
    }


def _outcomes(document: Any) -> dict[str, str]:
    return {
        check["id"]: check["outcome"]
        for lab in document["labs"]
        for criterion in lab["criteria"]
        for check in criterion["checks"]
    }


def _history(out: Path) -> list[dict[str, Any]]:
    with sqlite3.connect(out / FILE) as database:
        rows = database.execute("SELECT seconds, peak_bytes FROM gradings").fetchall()
    return [{"seconds": seconds, "peak_bytes": peak_bytes} for seconds, peak_bytes in rows]


def _count(out: Path) -> int:
    try:
        return len(_history(out))
    except sqlite3.Error:  # not there yet
        return 0


def _lines(first: str, second: str) -> list[str]:
    """The first lines that differ."""
    pairs = zip(first.splitlines(), second.splitlines(), strict=False)
    return [f"{one.strip()} | {other.strip()}" for one, other in pairs if one != other][:20]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--alone", type=int, default=None)
    print(main(**vars(parser.parse_args())))
