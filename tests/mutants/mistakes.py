"""Mistakes that readers wrote down who had seen nothing of the grader: what share of them a grading notices.

`python -m tests.mutants.mistakes FILE.toml --lab lab2`. A file holds edits of the reference:

    [[mistake]]
    name = "last_window_dropped"
    title = "the windows are counted by whole division"
    promise = "a shorter window is a window, too"
    [[mistake.edit]]
    file = "lab2_mixed_precision/amp_training.py"
    old = "..."
    new = "..."
"""

from __future__ import annotations

import argparse
import functools
import sys
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.mutants.survey import PATIENCE_SECONDS, REPLIES, be_patient, costs, judge
from tests.scenarios.reuse import REFERENCE


@dataclass(frozen=True)
class Mistake:
    """A reader's mistake."""

    name: str
    title: str
    files: dict[str, str]
    """What is changed below `solutions/`, and how it reads then."""


def load(file: Path) -> Iterator[Mistake]:
    """The mistakes of a file; one whose place has changed since is left out, and said to be."""
    for entry in tomllib.loads(file.read_text(encoding="utf-8"))["mistake"]:
        if (files := _edited(entry)) is None:
            print(f"        {entry['name']} fits no longer: its place has changed")
        else:
            yield Mistake(entry["name"], entry["title"], files)


def _edited(entry: dict[str, Any]) -> dict[str, str] | None:
    files: dict[str, str] = {}
    for edit in entry["edit"]:
        text = files.get(edit["file"]) or (REFERENCE / edit["file"]).read_text(encoding="utf-8")
        if text.count(edit["old"]) != 1:
            return None
        files[edit["file"]] = text.replace(edit["old"], edit["new"])
    return files


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.mistakes", description="Grade readers' mistakes.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--lab", required=True)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--patience", type=float, default=PATIENCE_SECONDS, help="seconds for a probe: on a busy machine more"
    )
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this mistake alone; repeatable")
    parser.add_argument("--costs", action="store_true", help="ask every check, and say what each mistake costs")
    options = parser.parse_args()
    mistakes = [mistake for mistake in load(options.file) if not options.only or mistake.name in options.only]
    if options.costs:
        return _show_costs(options.lab, mistakes, options.jobs, options.patience)
    noticed = 0
    begin = functools.partial(be_patient, options.patience)
    with ProcessPoolExecutor(options.jobs, initializer=begin) as pool:
        verdicts = [pool.submit(judge, options.lab, mistake.files, REPLIES) for mistake in mistakes]
        for mistake, verdict in zip(mistakes, verdicts, strict=True):
            check, message = verdict.result()
            noticed += bool(check)
            print(f"{'noticed' if check else 'OPEN   '} {mistake.name}: {check or mistake.title}", flush=True)
            if check:
                print(f"        {message[:160]}")
    print(f"{noticed} of {len(mistakes)} noticed")
    return 0


def _show_costs(lab: str, mistakes: Sequence[Mistake], jobs: int, patience: float) -> int:
    with ProcessPoolExecutor(jobs, initializer=functools.partial(be_patient, patience)) as pool:
        verdicts = [pool.submit(costs, lab, mistake.files, REPLIES) for mistake in mistakes]
        for mistake, verdict in zip(mistakes, verdicts, strict=True):
            missed = verdict.result()
            print(f"{sum(points for points, _ in missed.values()):5g}  {mistake.name}: {mistake.title}", flush=True)
            for check, (points, message) in missed.items():
                print(f"         {points:g} {check}: {message[:160]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
