"""`make matrix`: what every planted bug costs in every criterion, and that every correct style keeps every point.

    python -m tests.scenarios.matrix [--labs 1,2] [--own-lab] [--new] [--whole] [--seeds 20] [--jobs 2] [--out FOLDER]

Each bug is graded with all labs, so that points lost in another lab would show too (`--own-lab`: with its own only); a
correct style, whose other labs are the reference's, with its own lab (`--whole`: with all). The reference and, of each
lab, the first and the last correct style are graded with `--seeds` different seeds. They and the other correct styles
are asked everything, whatever was answered before. A bug is asked only what it can have changed, see `asking.py`,
unless `--whole` treats it like the others: hours.
Writes `matrix.json` after every grading, so that an interrupted run goes on where it was. A run of all labs writes
`benchmarks/results/planted_bugs.json` at the end, from which the site makes its page. So does `--new`, which grades
what that file lacks, and keeps its other rows. Exits with 1 when anything is not as it should be.
"""

from __future__ import annotations

import ast
import atexit
import datetime
import functools
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import grader
from benchmarks.measure import RESULTS, save
from gradebox.course import hints
from gradebox.report import failing
from gradebox.run.request import GradingError
from gradebox.sandbox import SandboxError, linux
from tests.scenarios.build import ROOT, SCENARIOS, Scenario, load, scenarios
from tests.scenarios.grading import Bench, Graded, TooLong
from tests.scenarios.store import Store

_ROOM = "/var/tmp" if Path("/var/tmp").is_dir() else None
KINDS = ("bugs", "variants")
REFERENCE = "reference"
STYLES = "styles with seeds"


@dataclass(frozen=True)
class Row:
    """One grading: the points that each criterion lost, and whether that is as it should be."""

    lab: str
    kind: str
    name: str
    title: str
    fingerprint: str
    lost: dict[str, float]
    charged: list[str]
    """The checks that cost points; what follows from one of them does not."""
    loses: list[str]
    may_lose: list[str]
    first: str
    """What a report begins with."""
    leads_there: bool
    """Whether that names the function, or the file if it has none, that the bug changed."""
    problem: str
    seconds: float

    @property
    def key(self) -> str:
        return f"{self.lab}/{self.kind}/{self.name}"


@dataclass(frozen=True)
class Task:
    """One grading to be done."""

    lab: str
    kind: str
    name: str
    scenario: Scenario
    seed: int | None = None

    @property
    def key(self) -> str:
        return f"{self.lab}/{self.kind}/{self.name}"


def judge(task: Task, graded: Graded, fingerprint: str) -> Row:
    """Hold a grade against what the scenario expects."""
    criteria = [criterion for lab in graded.grade.labs for criterion in lab.criteria if criterion.available]
    lost = {
        criterion.id: round(float(criterion.max_points - criterion.points), 3)
        for criterion in criteria
        if criterion.points < criterion.max_points
    }
    scenario = task.scenario
    problems = []
    if task.kind != "bugs" and lost:
        problems.append(f"loses {lost}")
    if missing := sorted(scenario.loses - set(lost)):
        problems.append(f"loses nothing in {', '.join(missing)}")
    if surplus := sorted(set(lost) - scenario.loses - scenario.may_lose):
        problems.append(f"loses points in {', '.join(surplus)} too")
    if passed := sorted(graded.passed & set(scenario.fails)):
        problems.append(f"passes {', '.join(passed)}")
    if scenario.is_charged_once and (others := sorted(graded.charged - set(scenario.fails))):
        problems.append(f"charged in {', '.join(others)} too")
    if task.kind != "bugs" and graded.grade.integrity:
        problems.append("has integrity notes")
    mistakes = failing.mistakes(graded.grade, hints.known(grader.course()))
    return Row(
        lab=task.lab, kind=task.kind, name=task.name, title=str(scenario.table.get("title", "")),
        fingerprint=fingerprint, lost=lost, charged=sorted(graded.charged), loses=sorted(scenario.loses),
        may_lose=sorted(scenario.may_lose), first=mistakes[0].title if mistakes else "",
        leads_there=bool(mistakes) and _leads(mistakes[0].place, scenario),
        problem="; ".join(problems), seconds=graded.grade.seconds,
    )  # fmt: skip


def _leads(place: str, scenario: Scenario) -> bool:
    """Whether a place, "amp_training.py, train_with_amp", is one that a bug has changed."""
    file, _, function = place.partition(", ")
    changed = {(Path(edit["file"]).name, _function(edit)) for edit in scenario.table.get("edit", [])}
    changed |= {(path.name, "") for path in scenario.folder.rglob("*") if path.is_file() and path.suffix != ".toml"}
    return any(file == where and (not name or name in function.split(".")) for where, name in changed)


def _function(edit: Mapping[str, str]) -> str:
    """The function that an edit of the reference changes; "" in no function, or in a helper that students may lack."""
    file = ROOT / "solutions" / edit["file"]
    text = file.read_text(encoding="utf-8")
    if file.suffix != ".py" or edit["old"] not in text:
        return ""
    line = text.count("\n", 0, text.index(edit["old"])) + 1
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    around = [node for node in nodes if node.lineno <= line <= (node.end_lineno or line)]
    name = max(around, key=lambda node: node.lineno).name if around else ""
    return "" if name.startswith("_") and not name.startswith("__") else name


@functools.cache
def _bench() -> Bench:
    """One for each worker process; its server ends with the process."""
    folder = Path(tempfile.mkdtemp(prefix="matrix-", dir=_ROOM))
    folder.chmod(0o755)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    bench = Bench(folder / "student", Store(ROOT / "build" / "replies"))
    atexit.register(bench.__exit__)
    return bench


def _end_with_the_run() -> None:
    """A worker must not wait for ever for a run that was killed; its sandbox's guard ends the rest."""
    if linux.AVAILABLE:
        linux.die_with_parent(signal.SIGTERM)


def grade(task: Task, fingerprint: str, labs: str | None, whole: bool) -> Row:
    """Grade one scenario.

    Raises:
        RuntimeError: the grading could not be carried out.
    """
    try:
        graded = _bench().grade(task.scenario, labs, seed=task.seed, fresh=whole or task.kind != "bugs")
    except (OSError, ValueError, GradingError, SandboxError, TooLong) as error:
        raise RuntimeError(f"{task.key} could not be graded: {error}") from error
    return judge(task, graded, fingerprint)


def tasks(labs: Iterable[str], seeds: int) -> list[Task]:
    """The reference with each seed first, then two styles of each lab with each, then every bug and variant."""
    labs = list(labs)
    reference = load(SCENARIOS / "exploits" / "honest_right")
    result = [Task("all", REFERENCE, f"seed {seed}", reference, seed) for seed in range(seeds)]
    for lab in labs:
        styles = scenarios(f"lab{lab}/variants")
        for style in (styles[0], styles[-1]):
            result += [Task(f"lab{lab}", STYLES, f"{style.name}, seed {seed}", style, seed) for seed in range(seeds)]
    for lab in labs:
        for kind in KINDS:
            result += [Task(f"lab{lab}", kind, scenario.name, scenario) for scenario in scenarios(f"lab{lab}/{kind}")]
    return result


def _labs_of(task: Task, own_lab: bool, whole: bool) -> str | None:
    """The labs that a task is graded with, as `--lab` takes them; None: all."""
    if task.kind == REFERENCE:
        return None
    only_its_own = own_lab or task.kind == STYLES or (task.kind == "variants" and not whole)
    return task.lab.removeprefix("lab") if only_its_own else None


def fingerprint_of(task: Task, labs: str | None, whole: bool) -> str:
    """Changes when the scenario, the course's code or what is graded changes; gradings with the same one are kept."""
    digest = hashlib.sha256(f"{task.key} {labs} {task.seed} {whole} {_course()}".encode())
    _add_files(digest, task.scenario.folder)
    return digest.hexdigest()[:16]


@functools.cache
def _course() -> str:
    digest = hashlib.sha256()
    for name in ("solutions", "grader", "gradebox", "labkit", "vgpu"):
        _add_files(digest, ROOT / name)
    return digest.hexdigest()


def _add_files(digest: hashlib._Hash, folder: Path) -> None:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())


def main(
    labs: Annotated[str, typer.Option(help="Labs whose scenarios are graded.")] = "",
    own_lab: Annotated[bool, typer.Option("--own-lab", help="Grade only the scenario's own lab.")] = False,
    new: Annotated[bool, typer.Option("--new", help="Grade only what the recorded table lacks.")] = False,
    whole: Annotated[bool, typer.Option("--whole", help="Ask every question of every bug: hours.")] = False,
    seeds: Annotated[int, typer.Option(min=0, help="Seeds of the reference and of two styles a lab.")] = 20,
    jobs: Annotated[int, typer.Option(min=1, help="Gradings at the same time.")] = os.cpu_count() or 2,
    out: Annotated[Path, typer.Option(help="Folder of matrix.json.")] = Path("build/matrix"),
) -> None:
    """Grade every scenario and record what each costs."""
    console = Console()
    known = [folder.name.removeprefix("lab") for folder in sorted(SCENARIOS.glob("lab[0-9]"))]
    chosen = [name.strip() for name in labs.split(",") if name.strip()] or known
    if unknown := [name for name in chosen if name not in known]:
        console.print(f"No scenarios for lab {', '.join(unknown)}; there are some for {', '.join(known)}.")
        raise typer.Exit(2)
    out.mkdir(parents=True, exist_ok=True)
    file = out / "matrix.json"
    recorded = _recorded_rows() if new else {}
    order = [task for task in tasks(chosen, 0 if new else seeds) if task.key not in recorded]
    graded_labs = {task.key: _labs_of(task, own_lab, whole) for task in order}
    prints = {task.key: fingerprint_of(task, graded_labs[task.key], whole) for task in order}
    rows = {key: row for key, row in _read(file).items() if prints.get(key) == row.fingerprint}
    todo = [task for task in order if task.key not in rows]
    failures = 0
    context = multiprocessing.get_context("spawn")
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress, ProcessPoolExecutor(jobs, context, _end_with_the_run) as pool:
        bar = progress.add_task("grading", total=len(order), completed=len(rows))
        running = [pool.submit(grade, task, prints[task.key], graded_labs[task.key], whole) for task in todo]
        try:
            for future in as_completed(running):
                progress.advance(bar)
                try:
                    row = future.result()
                except (RuntimeError, ValueError) as error:
                    failures += 1
                    console.print(str(error), markup=False)
                    continue
                rows[row.key] = row
                _write(file, order, rows)
                if row.problem:
                    console.print(f"{row.key}: {row.problem}", markup=False)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            console.print(f"Stopped; {len(rows)} of {len(order)} are in {file}, and the next run goes on from there.")
            raise typer.Exit(130) from None
    ordered = [rows[task.key] for task in order if task.key in rows]
    wrong = [row for row in ordered if row.problem]
    console.print(f"{len(ordered) - len(wrong)} of {len(order)} as they should be; the rows are in {file}")
    if (new or chosen == known) and len(ordered) == len(order):
        file = save("planted_bugs", {"own_lab": own_lab, "rows": _with_those(recorded, ordered, known)})
        console.print(f"{file} is written")
    if wrong or failures:
        raise typer.Exit(1)


def _recorded(row: Row) -> dict[str, object]:
    """What the page shows of a row."""
    shown = {name: value for name, value in asdict(row).items() if name not in ("fingerprint", "may_lose", "seconds")}
    return shown | {"date": datetime.date.today().isoformat()}


def _recorded_rows() -> dict[str, dict[str, object]]:
    """The rows of the table that was recorded last, each with the date of its grading."""
    table = json.loads((RESULTS / "planted_bugs.json").read_text(encoding="utf-8"))
    rows = [{"date": table["machine"]["date"]} | row for row in table["rows"]]
    return {f"{row['lab']}/{row['kind']}/{row['name']}": row for row in rows}


def _with_those(
    recorded: Mapping[str, dict[str, object]], graded: Iterable[Row], labs: Iterable[str]
) -> list[dict[str, object]]:
    """What was recorded and what has been graded since, in the order of a whole run; without what is there no more."""
    rows = dict(recorded) | {row.key: _recorded(row) for row in graded}
    there = [task.key for task in tasks(labs, 0)]
    seeded = [key for key in rows if key.split("/")[1] in (REFERENCE, STYLES)]
    return [rows[key] for key in dict.fromkeys([*seeded, *there]) if key in rows]


def _read(file: Path) -> dict[str, Row]:
    try:
        rows = [Row(**row) for row in json.loads(file.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError):  # none yet, or from another version: everything is graded again
        return {}
    return {row.key: row for row in rows}


def _write(file: Path, order: list[Task], rows: dict[str, Row]) -> None:
    """Whole or not at all, so that an interruption loses nothing."""
    ordered = [asdict(rows[task.key]) for task in order if task.key in rows]
    new = file.with_suffix(".new")
    new.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    new.replace(file)


if __name__ == "__main__":
    typer.run(main)
