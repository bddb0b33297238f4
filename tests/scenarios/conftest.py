"""Every test grades with the one sandbox of its worker, and asks only what the store has no reply to."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from tests.scenarios import ours
from tests.scenarios.build import Scenario
from tests.scenarios.grading import Bench, Graded
from tests.scenarios.store import Store

# Submissions are graded, never collected: some bring a conftest.py of their own.
collect_ignore = ["exploits", "hand_out", "lab1", "lab2", "lab3", "lab4", "lab5", "kernels", "sharding"]

_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave for the night what shows nothing new.

    By day stay as many bugs as show each check at work, one right style of Lab 1, and one trick of each `kind`. Styles
    of the other labs are for the night: they share no reply with anybody, and each takes a core half a minute.
    So `make test` sees each check notice something, always the same, within minutes; `make test-all` asks everything.
    Of an exercise outside the points it sees each criterion do so, and no other style: Triton's interpreter takes its
    time.
    What takes long to grade says `dear` in its scenario.toml, and is left where another does; a dear trick always is,
    and so is a bug that is `dear = 2`: half a minute of a core.
    """
    tests = [(item, graded) for item in items if (graded := _scenario(item)) is not None]
    kept: set[Path] = set()
    shown: set[str] = set()
    styles: Counter[Path] = Counter()
    kinds: set[str] = set()
    # Those that show several checks at once are worth most.
    each = {scenario.folder: scenario for _, scenario in tests}.values()  # some tests grade the same
    for scenario in sorted(each, key=lambda scenario: (_dear(scenario), -len(scenario.fails), scenario.name)):
        if scenario.group == "exploits":
            kind = str(scenario.table.get("kind", scenario.name))
            is_news = kind not in kinds and not _dear(scenario)
            kinds.add(kind)
        elif scenario.group == "bugs":
            shows = _shows(scenario)
            is_news = not shows <= shown and _dear(scenario) < 2
            shown |= shows
        else:
            styles[scenario.folder.parent] += 1
            is_news = styles[scenario.folder.parent] == 1 and "lab1" in scenario.folder.parts
        if is_news:
            kept.add(scenario.folder)
    for item, scenario in tests:
        if scenario.folder not in kept:
            item.add_marker(pytest.mark.night)


def _scenario(item: pytest.Item) -> Scenario | None:
    """The planted bug, the right style or the trick that a test grades."""
    parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    parameter = next((parameters[name] for name in ("bug", "variant", "exploit") if name in parameters), None)
    return parameter if isinstance(parameter, Scenario) else None


def _shows(scenario: Scenario) -> set[str]:
    """What a bug shows at work: checks of a lab, criteria of an exercise."""
    if _is_of_a_lab(scenario):
        return set(scenario.fails)
    return {name.rpartition(".")[0] for name in scenario.fails}


def _is_of_a_lab(scenario: Scenario) -> bool:
    """Or of an exercise outside the points."""
    return any(part.startswith("lab") for part in scenario.folder.parts[-3:])


def _dear(scenario: Scenario) -> int:
    return int(scenario.table.get("dear", 0))


@pytest.fixture(scope="session")
def store(pytestconfig: pytest.Config) -> Iterator[Store]:
    store = Store(Path(pytestconfig.option.replies))
    ours.load(store.folder / "read.json")
    yield store
    ours.save(store.folder / "read.json")
    if not hasattr(pytestconfig, "workerinput") or pytestconfig.workerinput["workerid"] == "gw0":
        store.tidy()


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config, store: Store) -> Iterator[Bench]:
    with Bench(tmp_path_factory.mktemp("submission") / "student", store, int(pytestconfig.option.seed)) as bench:
        bench.asking.sandbox.side_by_side = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        yield bench


@pytest.fixture
def grade(bench: Bench, request: pytest.FixtureRequest) -> Iterator[Callable[..., Graded]]:
    """Build a scenario and grade it; of a test that fails no reply is kept."""

    def run(scenario: Scenario, labs: str | None = None, **how: object) -> Graded:
        return bench.grade(scenario, labs, **how)  # type: ignore[arg-type]

    bench.asking.store.begin()
    yield run
    if request.node.stash.get(_FAILED, False):
        bench.asking.store.forget()
