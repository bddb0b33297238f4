"""Seconds per submission of this grader, otter-grader and nbgrader: one trivial assignment, one machine, one run.

Each grader in the mode that its own documentation recommends without containers: `otter run` for each submission,
`nbgrader autograde` for all, and this grader for all with one preloaded sandbox (as `gpulabs class` does) and for each
alone. The others live in environments of their own under `build/other-graders/`. Half of the submissions hold one wrong
answer; a round counts only when every grader has given the right scores.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import three_questions
from benchmarks.measure import load, save
from gradebox.course import course as courses
from gradebox.run import grading
from gradebox.run.options import Options
from gradebox.run.request_builder import build_request
from gradebox.sandbox import Sandbox

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = ROOT / "build" / "other-graders"
REQUIREMENTS = {"otter": ["otter-grader>=6,<8", "ipykernel"], "nbgrader": ["nbgrader>=0.9.5,<1", "ipykernel"]}
SUBMISSIONS = 20
ROUNDS = 2


def main(rounds: int = ROUNDS, submissions: int = SUBMISSIONS) -> Path:
    """Measure in interleaved rounds and save the figures."""
    environments = {name: _environment(name) for name in REQUIREMENTS}
    answers = [three_questions.QUESTIONS if number % 2 == 0 else three_questions.WRONG for number in range(submissions)]
    expected = [3.0 if answer is three_questions.QUESTIONS else 2.0 for answer in answers]
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        together, alone = (_Ours(Path(folder, name), answers) for name in ("together", "alone"))
        otter = _Otter(Path(folder, "otter"), environments["otter"], answers)
        nbgrader = _Nbgrader(Path(folder, "nbgrader"), environments["nbgrader"], answers)
        candidates: dict[str, tuple[Callable[[], None], Callable[[], list[float]]]] = {
            "gpulabs_class": (together.all_in_one_sandbox, together.scores),
            "gpulabs_alone": (alone.one_by_one, alone.scores),
            "otter_run": (otter.grade, otter.scores),
            "nbgrader_autograde": (nbgrader.grade, nbgrader.scores),
        }
        before = load()
        for _ in range(rounds):
            for name, (grade, read_scores) in candidates.items():
                started = time.perf_counter()
                grade()
                seconds.setdefault(name, []).append((time.perf_counter() - started) / submissions)
                if (scores := read_scores()) != expected:
                    raise RuntimeError(f"{name} gave {scores}, expected {expected}")
    return save(
        "other_graders",
        {
            "what": "seconds per submission, three questions, NumPy only, no containers; start-up shared by a round",
            "submissions_per_round": submissions,
            "load_before": before,
            "load_after": load(),
            "versions": {name: _version(python, name) for name, python in environments.items()},
            "isolation": {
                "gpulabs_class": "a fork, with Linux namespaces and limits, per question",
                "gpulabs_alone": "the same, and a new server per submission",
                "otter_run": "a temporary folder",
                "nbgrader_autograde": "a kernel per submission",
            },
            "seconds_per_submission": {
                name: {"median": statistics.median(values), "all": values} for name, values in seconds.items()
            },
        },
    )


class _Ours:
    """This grader."""

    def __init__(self, folder: Path, answers: list[dict[str, str]]) -> None:
        self._scores: list[float] = []
        self._folders = []
        for number, answer in enumerate(answers):
            file = folder / f"student{number}" / three_questions.PLACE
            file.parent.mkdir(parents=True)
            file.write_text(three_questions.module(answer))
            self._folders.append(folder / f"student{number}")

    def all_in_one_sandbox(self) -> None:
        """One after the other in this process, as a worker of `gpulabs class` does it."""
        with Sandbox(self._folders[0], courses.load(three_questions.COURSE).environment) as sandbox:
            self._scores = [score(folder, sandbox) for folder in self._folders]

    def one_by_one(self) -> None:
        """Each by a command of its own, as `make grade` does it."""
        for folder in self._folders:
            command = [sys.executable, "-m", "gradebox", "grade", f"--course={three_questions.COURSE}", str(folder)]
            done = subprocess.run(
                [*command, f"--report={_report(folder)}"], cwd=ROOT, capture_output=True, text=True, check=False
            )
            if done.returncode not in (0, 1):
                raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        reports = (json.loads((_report(folder) / "grade.json").read_text()) for folder in self._folders)
        self._scores = [float(report["score"]) for report in reports]

    def scores(self) -> list[float]:
        return self._scores


def score(folder: Path, sandbox: Sandbox) -> float:
    """The points of one submission, graded in an entered sandbox."""
    options = Options(course=str(three_questions.COURSE), submission=str(folder))
    return float(grading.run(build_request(options), sandbox=sandbox).score)


def _report(folder: Path) -> Path:
    return folder.parent / f"{folder.name}-report"


class _Otter:
    """otter-grader: `otter assign` once, then `otter run` for each submission."""

    def __init__(self, folder: Path, python: Path, answers: list[dict[str, str]]) -> None:
        folder.mkdir()
        self._folder, self._python = folder, python
        (folder / "questions.ipynb").write_text(three_questions.otter_master())
        _run([_tool(python, "otter"), "assign", "questions.ipynb", "dist", "--no-run-tests"], folder, python)
        self._autograder = next((folder / "dist" / "autograder").glob("*.zip"))
        self._submissions = []
        for number, answer in enumerate(answers):
            path = folder / f"student{number}.ipynb"
            path.write_text(three_questions.otter_submission(answer))
            self._submissions.append(path)

    def grade(self) -> None:
        for path in self._submissions:
            out = self._folder / f"{path.stem}-out"
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir()
            command = [_tool(self._python, "otter"), "run", "-a", str(self._autograder), "-o", str(out), str(path)]
            _run(command, self._folder, self._python)

    def scores(self) -> list[float]:
        outs = (self._folder / f"{path.stem}-out" / "results.json" for path in self._submissions)
        tests = (json.loads(out.read_text())["tests"] for out in outs)
        return [float(sum(test.get("score", 0) for test in those)) for those in tests]


class _Nbgrader:
    """nbgrader: `generate_assignment` once, then `autograde` for the class."""

    def __init__(self, folder: Path, python: Path, answers: list[dict[str, str]]) -> None:
        self._folder, self._python, self._count = folder, python, len(answers)
        source = folder / "source" / "questions"
        source.mkdir(parents=True)
        (folder / "nbgrader_config.py").write_text("c = get_config()\nc.CourseDirectory.course_id = 'course'\n")
        (source / "questions.ipynb").write_text(
            three_questions.nbgrader_notebook(three_questions.QUESTIONS, release=False)
        )
        _run([_tool(python, "nbgrader"), "generate_assignment", "questions"], folder, python)
        for number, answer in enumerate(answers):
            submitted = folder / "submitted" / f"student{number}" / "questions"
            submitted.mkdir(parents=True)
            (submitted / "questions.ipynb").write_text(three_questions.nbgrader_notebook(answer, release=True))

    def grade(self) -> None:
        _run([_tool(self._python, "nbgrader"), "autograde", "questions", "--force"], self._folder, self._python)

    def scores(self) -> list[float]:
        _run([_tool(self._python, "nbgrader"), "export"], self._folder, self._python)
        with open(self._folder / "grades.csv", newline="") as file:
            scores = {row["student_id"]: float(row["score"]) for row in csv.DictReader(file)}
        return [scores[f"student{number}"] for number in range(self._count)]


def _environment(name: str) -> Path:
    """The Python of an environment that has this grader; made where there is none."""
    folder = ENVIRONMENTS / name
    python = folder / "bin" / "python"
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if uv is None:
        raise RuntimeError("uv is needed to install the other graders: pip install uv")
    if not python.exists():
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(folder)], check=True)
    command = [uv, "pip", "install", "--quiet", "--python", str(python), "numpy", *REQUIREMENTS[name]]
    subprocess.run(command, check=True)
    return python


def _tool(python: Path, name: str) -> str:
    return str(python.with_name(name))


def _run(command: list[str], folder: Path, python: Path) -> None:
    environment = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def _version(python: Path, name: str) -> str:
    package = {"otter": "otter-grader"}.get(name, name)
    program = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run([str(python), "-c", program], check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    options: dict[str, Any] = {}
    if len(sys.argv) > 1:
        options["rounds"], options["submissions"] = (int(value) for value in sys.argv[1:3])
    print(main(**options))
