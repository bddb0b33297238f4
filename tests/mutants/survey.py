"""Grades mutants until somebody notices: a check that does not pass. Replies are kept as those of scenarios are.

What a change cannot reach is answered by the store, so that a mutant costs what the questions about its function cost,
and nothing after the first that it fails. The checks that noticed other mutants of a function are asked first.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import functools
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast
from unittest import mock

import grader
from gradebox.run.grade import CheckReport, Outcome
from gradebox.run.grading import Grading
from gradebox.sandbox import Sandbox
from tests.mutants.mutators import Mutant, mutants
from tests.scenarios import ours
from tests.scenarios.asking import Turn
from tests.scenarios.build import ROOT
from tests.scenarios.grading import Bench
from tests.scenarios.reuse import REFERENCE, code_of
from tests.scenarios.store import Store

REPLIES = ROOT / "build" / "replies-mutants"
_FIRST = 3
"""So many checks that have noticed most mutants of a function are asked, one by one, before all others."""
_noticed_before: dict[tuple[str, str], collections.Counter[str]] = collections.defaultdict(collections.Counter)
"""By file and function, in this process, how many mutants each check noticed."""
PATIENCE_SECONDS = 20.0
"""For a probe: what the slowest needs, several times over. A mutant that takes longer is noticed."""


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant."""

    mutant: Mutant
    noticed: str
    """The first check that did not pass; empty if all passed."""
    message: str = ""


def of_lab(lab: str) -> list[Mutant]:
    """All mutants of what students write in a lab."""
    folder = REFERENCE / grader.course().select(lab, None)[1][0].package
    files = [file for file in sorted(folder.rglob("*.py")) if ".template." not in file.name]
    return [mutant for file in files for mutant in mutants(file, str(file.relative_to(REFERENCE)))]


def survey(lab: str, chosen: Iterable[Mutant], jobs: int, replies: Path = REPLIES) -> Iterator[Verdict]:
    """Grade mutants of one lab side by side; verdicts as they come."""
    pool = ProcessPoolExecutor(max_workers=jobs)
    try:
        waiting = {pool.submit(judge_mutant, lab, mutant, replies): mutant for mutant in chosen}
        for done in as_completed(waiting):
            yield Verdict(waiting[done], *done.result())
    finally:  # interrupted, it judges no other
        pool.shutdown(cancel_futures=True)
        Store(replies).tidy()


_Grading = TypeVar("_Grading", bound=Grading)


class _UntilNoticed(Grading):
    """A grading that ends with the first check that does not pass."""

    noticed: tuple[str, str] | None = None

    def _record(self, check: str, report: CheckReport) -> None:
        super()._record(check, report)
        if report.outcome is not Outcome.PASSED and self.noticed is None:
            self.noticed = check, report.message
            self.stop("a check noticed")


@functools.cache
def _bench(replies: Path) -> Bench:
    """This process's; its server and folder end with the process."""
    folder = Path(tempfile.mkdtemp(prefix="mutants-"))
    store = Store(replies)
    ours.load(store.folder / "read.json")
    bench = Bench(folder / "student", store)
    bench.asking.patience_seconds = PATIENCE_SECONDS
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(bench.__exit__)
    return bench


def be_patient(seconds: float, replies: Path = REPLIES) -> None:
    """Wait so long for each probe in this process.

    A probe that gets no answer in time counts as noticed, so that on a busy machine everything would be noticed.
    """
    _bench(replies).asking.patience_seconds = seconds


def judge_mutant(lab: str, mutant: Mutant, replies: Path = REPLIES) -> tuple[str, str]:
    """As `judge`; asks first what noticed other mutants of the same function. The outcome is the same."""
    files = {mutant.file: mutant.text}
    before = _noticed_before[mutant.file, mutant.function]
    for check, _ in before.most_common(_FIRST):
        noticed = judge(lab, files, replies, only=check)
        if noticed[0]:
            break
    else:
        noticed = judge(lab, files, replies)
    if noticed[0]:
        before[noticed[0]] += 1
    return noticed


def judge(lab: str, files: dict[str, str], replies: Path = REPLIES, only: str = "") -> tuple[str, str]:
    """Grade a lab of the reference with other contents in some of its files: the first check that did not pass.

    Args:
        lab: its id.
        files: contents by name in the submission.
        replies: the store's folder.
        only: a check; without it all of the lab.

    Returns:
        Its id and its message; two empty texts if all passed.
    """
    with _begun(_UntilNoticed, lab, files, replies) as grading:
        if only:
            grading.keep([only])
        grading.carry_out()
        return grading.noticed or ("", "")


def costs(lab: str, files: dict[str, str], replies: Path = REPLIES) -> dict[str, tuple[float, str]]:
    """What such a change costs: of each check that it does not pass the points and the message."""
    with _begun(Grading, lab, files, replies) as grading:
        grading.carry_out()
        missed = [check for check in grading.result().checks if check.outcome is not Outcome.PASSED]
        return {check.id: (float(check.max_points), check.message) for check in missed}


@contextlib.contextmanager
def _begun(kind: type[_Grading], lab: str, files: dict[str, str], replies: Path) -> Iterator[_Grading]:
    os.environ["OMP_NUM_THREADS"] = "1"
    bench = _bench(replies)
    shutil.rmtree(bench.folder)
    shutil.copytree(REFERENCE, bench.folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in files.items():
        (bench.folder / name).write_text(text, encoding="utf-8")
    bench.asking.begin(Turn(code_of(bench.folder), hangs=frozenset("*")))
    with (
        mock.patch("gradebox.run.endings.was_starved", return_value=False),
        kind(bench.order(lab), bench.asking, sandbox=cast(Sandbox, bench.asking)) as grading,
    ):
        yield grading
