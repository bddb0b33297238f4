"""From a saved file to an answer: what `gpulabs watch` takes, lab by lab: `python -m benchmarks.watching [LABS]`.

A copy of the solutions is watched; in turn one of a lab's tasks gets a statement that does nothing, as if somebody had
worked on it, and the session grades again. Timed are the first check that reports and the last; how many of the lab's
checks were asked, says how much one function reaches. What `watch` waits for a file to settle (0.1 s, and 0.2 s between
looks) comes on top. Virtual T4, one sandbox, whose server is warm.
"""

from __future__ import annotations

import ast
import dataclasses
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grader
from benchmarks.measure import load, save
from gradebox.authoring.watch.session import Session
from gradebox.run.grade import CheckReport
from gradebox.run.grading import Watcher
from gradebox.run.options import Options
from gradebox.run.request_builder import build_request

ROOT = Path(__file__).parents[1]
EDITS = 8
"""Per lab: tasks in the order of files and lines, evenly spaced."""
LABS = ("1", "2", "3", "4", "5")


class _Clock(Watcher):
    """When checks report."""

    def __init__(self) -> None:
        self.begun = time.perf_counter()
        self.seconds: list[float] = []

    def finished(self, check: str, report: CheckReport) -> None:
        self.seconds.append(time.perf_counter() - self.begun)


def tasks(package: str) -> list[tuple[str, str]]:
    """File and name of each function or method that is a stub in what students get."""
    stubs = []
    for file in sorted((ROOT / "labs" / package).glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and _is_stub(node):
                stubs.append((f"{package}/{file.name}", node.name))
    return stubs


def _is_stub(node: ast.FunctionDef) -> bool:
    last = node.body[-1]
    return isinstance(last, ast.Raise) and last.exc is not None and "NotImplementedError" in ast.unparse(last.exc)


def _edit(file: Path, name: str) -> None:
    """Put a statement without effect at the beginning of a function's body, under its docstring."""
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    node = next(
        definition
        for definition in ast.walk(ast.parse("".join(lines)))
        if isinstance(definition, ast.FunctionDef) and definition.name == name
    )
    first = node.body[1] if ast.get_docstring(node) is not None else node.body[0]
    lines.insert(first.lineno - 1, f"{' ' * first.col_offset}_ = {time.monotonic_ns()}\n")
    file.write_text("".join(lines), encoding="utf-8")


def measure(lab: str, folder: Path) -> dict[str, Any]:
    """Seconds until the first and the last answer after each edit."""
    course = str(Path(grader.__file__).parent)
    order = build_request(Options(course=course, submission=str(folder), lab=lab, device="vgpu:T4", seed=1))
    package = order.labs[0].package
    stubs = tasks(package)
    chosen = [stubs[index * len(stubs) // EDITS] for index in range(min(EDITS, len(stubs)))]
    rows = []
    with Session(dataclasses.replace(order, jobs=1)) as session:
        session.again(Watcher())
        for file, name in chosen:
            _edit(folder / file, name)
            clock = _Clock()
            round_ = session.again(clock)
            rows.append((f"{file}: {name}", clock.seconds, len(round_.asked)))
    return _described(rows, len(session.plan))


def _described(rows: Sequence[tuple[str, list[float], int]], checks: int) -> dict[str, Any]:
    firsts = sorted(seconds[0] for _, seconds, _ in rows if seconds)
    lasts = sorted(seconds[-1] for _, seconds, _ in rows if seconds)
    return {
        "checks": checks,
        "edits": {name: {"asked": count, "first": _rounded(seconds[:1]), "last": _rounded(seconds[-1:])}
                  for name, seconds, count in rows},
        "checks_asked": {"mean": round(statistics.mean(count for _, _, count in rows), 1)},
        "seconds_to_the_first_answer": _spread(firsts),
        "seconds_to_the_last_answer": _spread(lasts),
    }  # fmt: skip


def _rounded(seconds: Sequence[float]) -> float | None:
    return round(seconds[0], 2) if seconds else None


def _spread(values: Sequence[float]) -> dict[str, float]:
    """Of a handful of values the 95th percentile is the largest."""
    return {"median": round(statistics.median(values), 2), "largest": round(max(values), 2)}


def main(labs: Sequence[str] = LABS) -> Path:
    """Measure the labs and save seconds."""
    before = load()
    with tempfile.TemporaryDirectory(prefix="watch-", dir="/var/tmp") as name:
        folder = Path(name) / "handed-in"
        Path(name).chmod(0o755)
        shutil.copytree(ROOT / "solutions", folder, ignore=shutil.ignore_patterns("__pycache__"))
        results: dict[str, Any] = {}
        for lab in labs:
            results[f"lab{lab}"] = result = measure(lab, folder)
            print(lab, result["seconds_to_the_first_answer"], result["seconds_to_the_last_answer"], flush=True)
            # After each lab: who has no more time keeps what there is.
            file = save(
                "watching",
                {
                    "what": "seconds from a change of one function to the answers of a session, virtual T4",
                    "load_average": {"before": before, "after": load()},
                    "results": results,
                },
            )
    return file


if __name__ == "__main__":
    print(main(sys.argv[1:] or LABS))
