"""Every test grades with the one sandbox of its run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.scenarios.build import Scenario
from tests.scenarios.grading import Bench, Graded

# Submissions are graded, never collected: some bring a conftest.py of their own.
collect_ignore = ["exploits", "lab1", "lab2", "lab3", "lab4", "lab5"]


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("submission") / "student")
    with bench.sandbox:
        yield bench


@pytest.fixture
def grade(bench: Bench, pytester: pytest.Pytester, tmp_path: Path) -> Callable[..., Graded]:
    """Build a scenario and grade it as `pytest --grade` does."""

    def run_pytest(arguments: list[str], plugins: list[object]) -> object:
        return pytester.inline_run(*arguments, plugins=plugins).ret

    def run(scenario: Scenario, *options: str, seed: int | None = None) -> Graded:
        return bench.grade(scenario, tmp_path / "report", options, run_pytest, seed, every_check=False)

    return run
