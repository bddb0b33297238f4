"""Every test grades with the one sandbox of its worker, and asks only what the store has no reply to."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from tests.scenarios import ours
from tests.scenarios.build import Scenario
from tests.scenarios.grading import Bench, Graded
from tests.scenarios.store import Store

# Submissions are graded, never collected: some bring a conftest.py of their own.
collect_ignore = ["exploits", "lab1", "lab2", "lab3", "lab4", "lab5"]

_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave for the night: of the bugs that a check must notice all but the first, and every second right style.

    So `make test` sees each check notice something, always the same, within minutes; `make test-all` asks everything.
    """
    shown: set[str] = set()
    styles: set[str] = set()
    for item in items:
        parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        bug, style = parameters.get("bug"), parameters.get("variant")
        if isinstance(bug, Scenario):
            new = set(bug.fails) - shown
            shown |= new
            if not new:
                item.add_marker(pytest.mark.night)
        elif isinstance(style, Scenario):
            styles.add(style.name)
            if len(styles) % 2 == 0:
                item.add_marker(pytest.mark.night)


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
        yield bench


@pytest.fixture
def grade(bench: Bench, request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> Iterator[Callable[..., Graded]]:
    """Build a scenario and grade it; of a test that fails no reply is kept."""

    def run(scenario: Scenario, labs: str | None = None, **how: object) -> Graded:
        return bench.grade(scenario, labs, everything=pytestconfig.option.whole, **how)  # type: ignore[arg-type]

    bench.asking.store.begin()
    yield run
    if request.node.stash.get(_FAILED, False):
        bench.asking.store.forget()
