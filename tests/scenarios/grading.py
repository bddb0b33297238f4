"""Grades many scenarios with one sandbox; the submission is rebuilt in its folder for each.

All are asked the same questions, those of one seed, and what was answered before is not asked again (`asking.py`).
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast
from unittest import mock

import grader
from gradebox.run.grade import CheckResult, Grade, Outcome
from gradebox.run.grading import Grading, GradingRequest
from gradebox.sandbox import Sandbox
from gradebox.sandbox.devices import parse
from tests.scenarios.asking import Asking, Turn
from tests.scenarios.build import Scenario
from tests.scenarios.reuse import REFERENCE, code_of
from tests.scenarios.store import Store

SEED = 20260
"""Of every scenario, unless another is asked for."""


class TooLong(AssertionError):
    """Something did not end in time, and its scenario does not say that it would."""


@dataclass(frozen=True)
class Graded:
    """What a grading said, by check and by criterion."""

    grade: Grade
    asked: frozenset[str]
    """The checks that were run; nothing is known of the others."""

    @property
    def score(self) -> float:
        return float(self.grade.score)

    @property
    def checks(self) -> dict[str, CheckResult]:
        """Those that were run."""
        return {
            check.id: check
            for lab in self.grade.labs
            for criterion in lab.criteria
            for check in criterion.checks
            if check.id in self.asked
        }

    @property
    def left_out(self) -> set[str]:
        """Those that were not run."""
        every = {check.id for lab in self.grade.labs for criterion in lab.criteria for check in criterion.checks}
        return every - self.asked

    @property
    def passed(self) -> set[str]:
        return {name for name, check in self.checks.items() if check.outcome is Outcome.PASSED}

    @property
    def charged(self) -> set[str]:
        """Those that cost points: what follows from another one does not."""
        return {name for name, check in self.checks.items() if check.is_charged}

    @property
    def losing_criteria(self) -> set[str]:
        return {name.rpartition(".")[0] for name in set(self.checks) - self.passed}

    @property
    def needs_review(self) -> set[str]:
        return {name for name, check in self.checks.items() if check.outcome is Outcome.NEEDS_REVIEW}

    @property
    def noted(self) -> set[str]:
        """Kinds of integrity notes."""
        return {note.kind for note in self.grade.integrity}

    @property
    def problems(self) -> str:
        """Everything that did not pass, for the message of a failing test, with the seed that repeats it."""
        return f"seed {self.grade.seed}\n" * (len(self.passed) < len(self.checks)) + "\n".join(
            f"{name}: {check.outcome}: {check.message}"
            for name, check in self.checks.items()
            if name not in self.passed
        )


class Bench:
    """A folder for submissions, and the sandbox that they are graded in. Use as a context manager."""

    def __init__(self, folder: Path, store: Store, seed: int = SEED) -> None:
        """`folder` must not exist yet."""
        self.folder = folder
        self.seed = seed
        shutil.copytree(REFERENCE, folder, ignore=shutil.ignore_patterns("__pycache__"))
        # Its server is started by the first request that reaches it.
        self.asking = Asking(Sandbox(folder, grader.course().environment), store)

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *error: object) -> None:
        self.asking.sandbox.close()

    def order(
        self,
        labs: str | None = None,
        criteria: Collection[str] = (),
        *,
        device: str = "vgpu",
        seed: int | None = None,
    ) -> GradingRequest:
        """The order to grade what the folder holds; all labs when neither labs nor criteria are named."""
        course = grader.course()
        rubric, chosen = course.select(labs, ",".join(criteria) or None)
        return GradingRequest(
            course=course,
            submission=self.folder,
            rubric=rubric,
            labs=tuple(chosen),
            device=parse(device, course.devices),
            seed=self.seed if seed is None else seed,
        )

    def grade(
        self,
        scenario: Scenario,
        labs: str | None = None,
        criteria: Collection[str] = (),
        *,
        device: str = "vgpu",
        seed: int | None = None,
        own_checks_only: bool = False,
        cold: bool = False,
        fresh: bool = False,
    ) -> Graded:
        """Build a scenario and grade it.

        With `own_checks_only`, the checks that the scenario must fail are run, with what these build on, and no others.

        With `cold`, programs that start new interpreters are run for every planted bug, not only for those whose
        scenario says so: for the others the reference's reply is taken, because it costs more than all other checks.

        With `fresh`, everything is asked now, whatever was answered before and by whomever.

        Raises:
            TooLong: something did not end in time, and the scenario does not say that it would.
        """
        rebuild(scenario, self.folder)
        order = self.order(labs, criteria, device=device, seed=seed)
        if own_checks_only:
            order = replace(order, only=_own_checks(scenario, order))
        turn = turn_of(scenario, self.folder)
        self.asking.begin(replace(turn, fresh=fresh, cold=turn.cold or cold or fresh))
        graded = self.carry_out(order)
        if self.asking.too_long:
            places = ", ".join(self.asking.too_long)
            raise TooLong(f"{scenario.name}: {places} did not end in time; a busy machine, or `hangs` is not said")
        return graded

    def grade_folder(self, submission: Path, labs: str) -> Graded:
        """Grade a folder as it is."""
        shutil.rmtree(self.folder)
        shutil.copytree(submission, self.folder, ignore=shutil.ignore_patterns("__pycache__"))
        self.asking.begin(Turn(code_of(self.folder)))
        return self.carry_out(self.order(labs))

    def carry_out(self, order: GradingRequest, asking: Asking | None = None, kind: type[Grading] = Grading) -> Graded:
        """Grade what the folder holds. Whether the machine is busy is no part of the answer: it is asked once."""
        asking = asking or self.asking
        with (
            mock.patch("gradebox.run.endings.was_starved", return_value=False),
            kind(order, asking, sandbox=cast(Sandbox, asking)) as grading,
        ):
            grading.carry_out()
            result = grading.result()
        return Graded(result, frozenset(check.id for check in grading.plan))


def _own_checks(scenario: Scenario, order: GradingRequest) -> frozenset[str]:
    """The checks that a scenario must fail; all of a criterion that must lose points if it names none of them."""
    unnamed = scenario.loses - {check.rpartition(".")[0] for check in scenario.fails}
    checks = {check.id for lab in order.labs for criterion in lab.criteria for check in criterion.checks}
    return frozenset({*scenario.fails, *(name for name in checks if name.rpartition(".")[0] in unnamed)})


def turn_of(scenario: Scenario, folder: Path) -> Turn:
    """How the sandbox treats a scenario, which `folder` holds."""
    return Turn(
        code=code_of(folder) if scenario.is_honest else None,
        hangs=frozenset(scenario.table.get("hangs", [])),
        cold=scenario.group != "bugs" or bool(scenario.table.get("cold")),
    )


def rebuild(scenario: Scenario, folder: Path) -> None:
    shutil.rmtree(folder)
    scenario.build(folder)
