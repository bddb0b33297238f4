"""Every test grades with the one sandbox of its run."""

from __future__ import annotations

import os
import secrets
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.scenarios.build import Scenario
from tests.scenarios.grading import Bench, Graded

# Submissions are graded, never collected: some bring a conftest.py of their own.
collect_ignore = ["exploits", "lab1", "lab2", "lab3", "lab4", "lab5"]


_HALVED = (
    "test_a_planted_bug_loses_points_in_its_criterion_and_in_no_other",
    "test_a_correct_solution_keeps_every_point_in_any_style",
    "test_a_trick_gains_no_point_and_is_noted",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With GPULABS_SCENARIOS=half, deselect half of the planted bugs, styles and exploits, another in each run."""
    if os.environ.get("GPULABS_SCENARIOS") != "half":
        return
    # All workers of a run must collect the same tests; pytest-xdist gives the run a name of its own.
    run = zlib.crc32(os.environ.get("PYTEST_XDIST_TESTRUNUID", secrets.token_hex()).encode())
    left_out = [item for item in items if item.name.partition("[")[0] in _HALVED][run % 2 :: 2]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


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
