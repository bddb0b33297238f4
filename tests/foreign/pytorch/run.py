"""Runs PyTorch's own databases of test cases on the virtual GPU, next to the CPU.

    python -m tests.foreign.pytorch.run [PATTERN ...] [--database NAME] [--samples 4] [--jobs 2] [--out FILE]

The databases (`torch.testing._internal`) are those of the installed release, so nothing is downloaded; they need
`expecttest` in addition to PyTorch. `known.toml` lists what is known to be refused or to differ, each with its reason.
Exits with 1 if a case ends in another way. Each worker is a process of its own: a crash costs one case.
"""

from __future__ import annotations

import fnmatch
import json
import signal
import subprocess
import sys
import time
import tomllib
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import vgpu
from tests.foreign.pytorch.databases import NOT_ON_THE_CPU, cases

HERE = Path(__file__).parent
GPU = "A100-80GB"
_SECONDS = 60
_ENOUGH = 4
_clock = time.monotonic  # before the virtual GPU brings its own


@dataclass(frozen=True)
class Ended:
    """How a case ended: "passed", "refused" by name, "differs", "not compared", "too slow" or "crashed", and why."""

    key: str
    outcome: str
    why: list[str] = field(default_factory=list)
    seconds: float = 0.0


class _TooSlow(Exception):
    pass


def known() -> list[dict[str, str]]:
    """What does not pass, with its reason: tables of `cases` (a pattern), `outcome` and `why`."""
    return list(tomllib.loads((HERE / "known.toml").read_text(encoding="utf-8"))["known"])


def expected(key: str, table: list[dict[str, str]]) -> str:
    """How a case should end."""
    return next((row["outcome"] for row in table if fnmatch.fnmatchcase(key, row["cases"])), "passed")


def work(part: int, parts: int, start: int, samples: int, patterns: list[str], database: str) -> None:
    """Run every case whose place is `part` modulo `parts`, from `start` on; a line of JSON before and after each."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)

    def interrupt(*_: object) -> None:
        raise _TooSlow

    signal.signal(signal.SIGALRM, interrupt)
    with vgpu.attach(GPU):
        torch.backends.cudnn.allow_tf32 = False
        chosen = [
            case for case in cases()
            if database in ("", case.database)
            and (not patterns or any(fnmatch.fnmatchcase(case.name, pattern) for pattern in patterns))
        ]  # fmt: skip
        print(json.dumps({"cases": len(chosen)}), flush=True)
        for place, case in enumerate(chosen):
            if place % parts != part or place < start:
                continue
            print(json.dumps({"place": place, "key": case.key}), flush=True)
            begin = _clock()
            outcome, why = "passed", []
            signal.alarm(_SECONDS)
            try:
                why = list(case.run(samples))
                outcome = _outcome(why)
            except _TooSlow:
                outcome, why = "too slow", [f"still running after {_SECONDS} s"]
            except Exception as error:
                outcome, why = "differs", [f"the case itself: {type(error).__name__}: {error}"]
            finally:
                signal.alarm(0)
            print(json.dumps(asdict(Ended(case.key, outcome, why[:3], round(_clock() - begin, 3)))), flush=True)


def _outcome(why: list[str]) -> str:
    if not why:
        return "passed"
    if why == [NOT_ON_THE_CPU]:
        return "not compared"
    return "refused" if all("Unsupported: the virtual GPU does not support" in reason for reason in why) else "differs"


def results(part: int, parts: int, samples: int, patterns: list[str], database: str) -> Iterator[Ended | int]:
    """What a worker found, started again behind a case that it did not survive. First the number of cases."""
    start = 0
    while True:
        arguments = [part, parts, start, samples, database, *patterns]
        command = [sys.executable, "-m", "tests.foreign.pytorch.run", "--work", *map(str, arguments)]
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        at: dict[str, object] = {}
        assert worker.stdout is not None
        for line in worker.stdout:
            if not line.startswith("{"):
                continue
            said = json.loads(line)
            if "outcome" in said:
                yield Ended(**said)
                at = {}
            elif "place" in said:
                at = said
            elif start == 0:
                yield int(said["cases"])
        if worker.wait() == 0:
            return
        if not at:
            raise SystemExit(f"a worker ended with {worker.returncode}: is expecttest installed?")
        yield Ended(str(at["key"]), "crashed", [f"exit code {worker.returncode}"])
        start = int(str(at["place"])) + 1


def main(
    patterns: Annotated[list[str] | None, typer.Argument(help="names of operators, layers, optimizers, with *")] = None,
    database: Annotated[str, typer.Option(help="operators, refusals, layers or optimizers")] = "",
    samples: Annotated[int, typer.Option(min=1, help="of each case, the first so many")] = 4,
    jobs: Annotated[int, typer.Option(min=1)] = 2,
    out: Annotated[Path | None, typer.Option(help="write the results as JSON")] = None,
) -> None:
    """Run PyTorch's own databases of test cases on the virtual GPU."""
    table = known()
    console = Console()
    ended: list[Ended] = []
    # With few samples the one that differs may not be among them.
    allowed = ("not compared", "passed") if samples < _ENOUGH else ("not compared",)

    def is_surprise(case: Ended) -> bool:
        return case.outcome not in (expected(case.key, table), *allowed)

    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress, ThreadPoolExecutor(jobs) as pool:
        bar = progress.add_task("cases", total=None)

        def take(part: int) -> None:
            for result in results(part, jobs, samples, patterns or [], database):
                if isinstance(result, int):
                    progress.update(bar, total=result)
                    continue
                ended.append(result)
                progress.advance(bar)
                if is_surprise(result):
                    console.print(
                        f"{result.outcome}: {result.key}: {result.why[0] if result.why else ''}", markup=False
                    )

        list(pool.map(take, range(jobs)))
    ended.sort(key=lambda case: case.key)
    if out is not None:
        report = {
            "torch": torch.__version__, "gpu": GPU, "samples": samples,
            "outcomes": {name: _counts(ended, name) for name in sorted({case.key.partition(":")[0] for case in ended})},
            "not passed": [asdict(case) for case in ended if case.outcome != "passed"],
        }  # fmt: skip
        out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    surprises = [case for case in ended if is_surprise(case)]
    counts = ", ".join(f"{count} {name}" for name, count in sorted(Counter(case.outcome for case in ended).items()))
    console.print(f"{len(ended)} cases: {counts}; {len(surprises)} not as known.toml has it")
    raise typer.Exit(1 if surprises or not ended else 0)


def _counts(ended: list[Ended], database: str) -> dict[str, int]:
    return dict(sorted(Counter(case.outcome for case in ended if case.key.startswith(database + ":")).items()))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        part, parts, start, samples = map(int, sys.argv[2:6])
        work(part, parts, start, samples, sys.argv[7:], sys.argv[6])
    else:
        typer.run(main)
