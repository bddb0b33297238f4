"""What grading a class costs, and whether it changes a grade: `python -m benchmarks.class_cost --count 100 --jobs 2`.

Grades made-up submissions (correct variants, planted bugs, exploits, stubs; Lab 1) four times: undisturbed, killed by
SIGKILL on the way, on a simulated Ray cluster of three nodes that loses one (where Ray is installed), and each of them
alone. Gradebooks and grades must be equal.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import load, save
from gradebook.grading import class_summary
from gradebook.grading.memory import PeakMemory
from gradebook.store import FILE
from gradebox.report.document import to_document
from tests.gradebook.synthetic import make_class

ROOT = Path(__file__).parents[1]
GPULABS = [sys.executable, "-c", "from grader.cli import app; app()"]
SEED = 20260301
_POLL_SECONDS = 0.5
_MADE = "made.json"
PHASES = ("undisturbed", "killed", "ray", "alone")


def main(
    count: int = 8, jobs: int = 2, kills: int = 5, folder: Path | None = None, phases: Sequence[str] = PHASES
) -> Path | None:
    """Run phases, and save the figures once all have been run.

    Args:
        count: submissions.
        jobs: gradings at the same time.
        kills: how often the second run is killed.
        folder: where everything is kept, so that phases can be run one by one; None: a temporary folder.
        phases: of `PHASES`.

    Returns:
        The file with the results; None as long as a phase is missing.
    """
    with contextlib.ExitStack() as stack:
        if folder is None:
            # Root's children run as somebody else, who must be able to enter; /tmp may be small.
            name = stack.enter_context(tempfile.TemporaryDirectory(prefix="class-", dir="/var/tmp"))
            folder = Path(name)
            folder.chmod(0o755)
        if not (folder / _MADE).is_file():
            made = make_class(folder, count)
            (folder / _MADE).write_text(
                json.dumps([[submission.student, submission.what, str(submission.folder)] for submission in made])
            )
        run = {
            "undisturbed": lambda: _undisturbed(folder, jobs),
            "killed": lambda: _killed(folder, jobs, kills, count),
            "ray": lambda: _on_ray(folder, count),
            "alone": lambda: _alone(folder),
        }
        for phase in phases:
            load_before = load()
            (folder / f"{phase}.json").write_text(json.dumps({"load_before": load_before, **run[phase]()}))
        if not all((folder / f"{phase}.json").is_file() for phase in PHASES):
            return None
        return save("class_cost", _compared(folder, jobs))


def _compared(folder: Path, jobs: int) -> dict[str, Any]:
    """The figures of all phases, and what differs from the undisturbed run."""
    figures = {phase: json.loads((folder / f"{phase}.json").read_text()) for phase in PHASES}
    made, history = _made(folder), _history(folder / "undisturbed")
    first = class_summary.dump(folder / "undisturbed")
    for phase in ("killed", "ray"):
        if figures[phase].get("gradings"):
            other = class_summary.dump(folder / phase)
            figures[phase] |= {
                "gradebook_is_identical": first == other,
                "grades_are_identical": _grades(first) == _grades(other),
                "differences": _lines(first, other),
            }
    figures["undisturbed"]["wall_seconds_per_submission"] = round(figures["undisturbed"]["wall_seconds"] / len(made), 2)
    figures["undisturbed"]["grading_seconds"] = {
        "median": round(statistics.median(grading["seconds"] for grading in history), 1),
        "max": max(grading["seconds"] for grading in history),
    }
    peaks = [grading["peak_bytes"] for grading in history]
    figures["undisturbed"]["peak_bytes_of_one_judge"] = {"median": statistics.median_low(peaks), "largest": max(peaks)}
    figures["alone"] |= _compared_alone(folder, made)
    return {
        "what": f"gpulabs class, Lab 1, device vgpu:T4, {jobs} jobs",
        "submissions": len(made),
        "gradings": len(history),
        "second_looks": {phase: _second_looks(folder / phase) for phase in PHASES if (folder / phase / FILE).is_file()},
        "kinds": sorted({what.rpartition("/")[0] or what for _, what, _ in made}),
        **figures,
    }


@contextlib.contextmanager
def _started(
    folder: Path, out: str, jobs: int, *more: str, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A run of `gpulabs class`, which is killed at the end if it still runs."""
    options = [f"--jobs={jobs}", f"--seed={SEED}", "--lab=1", "--device=vgpu:T4"]
    command = [*GPULABS, "class", str(folder / "submissions"), "--out", str(folder / out), *options, *more]
    around = os.environ | dict(environment or {})
    nowhere = subprocess.DEVNULL
    with subprocess.Popen(command, cwd=ROOT, env=around, stdout=nowhere, stderr=nowhere) as process:
        try:
            yield process
        finally:
            process.kill()


def _undisturbed(folder: Path, jobs: int) -> dict[str, Any]:
    """Wall seconds, and the most memory that all processes had together."""
    started = time.perf_counter()
    with _started(folder, "undisturbed", jobs) as process, PeakMemory(process.pid) as peak:
        process.wait()
    if process.returncode not in (0, 3):
        raise RuntimeError(f"gpulabs class ended with {process.returncode}")
    return {"wall_seconds": round(time.perf_counter() - started, 1), "peak_bytes_of_all_processes": peak.bytes}


def _killed(folder: Path, jobs: int, kills: int, count: int) -> dict[str, Any]:
    """Grade into another gradebook, killed after about every n-th grading; what was killed when."""
    chance = random.Random(SEED)
    counts: list[int] = []
    for number in range(1, kills + 1):
        with _started(folder, "killed", jobs) as process:
            goal = number * count // (kills + 1)
            while process.poll() is None and _count(folder / "killed") < goal:
                time.sleep(_POLL_SECONDS)
            time.sleep(chance.uniform(0, 10))
        counts.append(_count(folder / "killed"))
    with _started(folder, "killed", jobs) as process:
        exit_code = process.wait()
    gradings = _count(folder / "killed")
    return {"kills": kills, "gradings_before_each": counts, "exit_code": exit_code, "gradings": gradings}


def _on_ray(folder: Path, count: int) -> dict[str, Any]:
    """Grade with `--engine ray` on three nodes of one CPU each, one of which is taken away in the middle."""
    if importlib.util.find_spec("ray") is None:
        return {"left_out": "Ray is not installed"}
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")
    from ray.cluster_utils import Cluster

    nodes = 3
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        doomed = [cluster.add_node(num_cpus=1) for _ in range(nodes - 1)][-1]
        cluster.wait_for_nodes()
        with _started(folder, "ray", nodes, "--engine=ray", environment={"RAY_ADDRESS": cluster.address}) as process:
            while process.poll() is None and _count(folder / "ray") < count // 2:
                time.sleep(_POLL_SECONDS)
            before = _count(folder / "ray")
            cluster.remove_node(doomed)
            exit_code = process.wait()
    finally:
        cluster.shutdown()
    return {
        "nodes": nodes,
        "gradings_before_a_node_was_lost": before,
        "exit_code": exit_code,
        "gradings": _count(folder / "ray"),
    }


def _alone(folder: Path) -> dict[str, Any]:
    """Each submission graded by `gpulabs grade`."""
    started, made = time.perf_counter(), _made(folder)
    for student, _, submission in made:
        report = folder / "reports" / student
        if (report / "grade.json").is_file():
            continue  # from a run that was interrupted
        options = [f"--seed={SEED}", "--lab=1", "--device=vgpu:T4", "--report", str(report)]
        command = [*GPULABS, "grade", submission, *options]
        subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    return {"submissions": len(made), "wall_seconds": round(time.perf_counter() - started, 1)}


def _compared_alone(folder: Path, made: Sequence[Sequence[str]]) -> dict[str, Any]:
    """What differs from each submission's grade in the class."""
    students = class_summary.read(folder / "undisturbed").students
    in_class = {student.student: student.grade and to_document(student.grade) for student in students}
    different_points, different_words = [], []
    for student, what, _ in made:
        alone = json.loads((folder / "reports" / student / "grade.json").read_text()) | {"submission": student}
        mine = in_class[student]
        if mine is None or _outcomes(mine) != _outcomes(alone):
            different_points.append(f"{student} ({what})")
        elif class_summary.comparable(mine) != class_summary.comparable(alone):
            different_words.append(f"{student} ({what})")
    return {"different_outcomes": different_points, "same_outcomes_in_other_words": different_words}


def _made(folder: Path) -> list[list[str]]:
    """Student, scenario, and the folder to grade alone."""
    made: list[list[str]] = json.loads((folder / _MADE).read_text())
    return made


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


def _grades(dump: str) -> list[dict[str, Any]]:
    """The students with points, outcomes and messages, without the notes for the instructor's eyes."""
    students: list[dict[str, Any]] = json.loads(dump)["students"]
    return [{**student, "grade": {**(student["grade"] or {}), "integrity": None}} for student in students]


def _second_looks(out: Path) -> int:
    """Gradings of what a busy machine had left open; only those may differ between gradebooks that are alike."""
    with sqlite3.connect(out / FILE) as database:
        return int(database.execute("SELECT count(*) FROM gradings WHERE retry").fetchone()[0])


def _count(out: Path) -> int:
    try:
        return len(_history(out))
    except sqlite3.Error:  # not there yet
        return 0


def _lines(first: str, second: str) -> list[str]:
    """The first lines that differ."""
    pairs = difflib.unified_diff(first.splitlines(), second.splitlines(), n=0, lineterm="")
    return [line for line in pairs if not line.startswith(("---", "+++", "@@"))][:20]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None, help="keep everything here; phases may be run one by one")
    parser.add_argument("--phases", nargs="+", choices=PHASES, default=PHASES)
    print(main(**vars(parser.parse_args())))
