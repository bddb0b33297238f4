"""What several test folders share."""

import gc
import itertools
import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradebox.sandbox import starting

pytest_plugins = ["pytester"]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Whoever starts the tests in the background of a script hands this down, also to the programs that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Small work, in several workers side by side: threads that find no core free would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

_ROOT = Path(__file__).parents[1]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("scenarios", "planted bugs, correct styles and exploits (tests/scenarios)")
    group.addoption(
        "--seed", default="20260", help="of the inputs that scenarios are graded with; `random`: another one"
    )
    group.addoption("--night", action="store_true", help="run tests marked night as well")
    group.addoption("--replies", default=str(_ROOT / "build" / "replies"), help="folder of replies that are kept")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "night: takes long and is seldom news; `make test-all` runs it (--night)")
    config.addinivalue_line("markers", "long: takes a worker a quarter of a minute or more, so it is run early")
    if config.option.seed == "random":
        # Workers of pytest-xdist read the same command line, and inherit this.
        config.option.seed = os.environ.setdefault("GPULABS_TEST_SEED", str(secrets.randbelow(2**31)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of the night, unless `--night` or the name of a test (`FILE::TEST`, `-k`) selects them."""
    is_named = config.option.keyword or any("::" in word for word in config.option.file_or_dir or ())
    if not (config.option.night or is_named):
        night = [item for item in items if item.get_closest_marker("night")]
        if night:
            config.hook.pytest_deselected(items=night)
            items[:] = [item for item in items if not item.get_closest_marker("night")]
    items[:] = _each_with_a_long_one_first(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def _each_with_a_long_one_first(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Let each worker begin with its share of the tests marked `long`: at the end all others would wait for them.

    pytest-xdist gives each worker as many neighbours as any other. What a worker has not begun, another may take.
    """
    long = [item for item in items if item.get_closest_marker("long")]
    others = iter([item for item in items if not item.get_closest_marker("long")])
    order: list[pytest.Item] = []
    for worker in range(workers):
        share, size = long[worker::workers], (len(items) - len(order)) // (workers - worker)
        order += [*share, *itertools.islice(others, max(0, size - len(share)))]
    return [*order, *others]


def pytest_collection_finish() -> None:
    """What has been imported by now stays: it need not be looked through again with every collection of garbage.

    The collector's cost grew with what a worker had imported: it was a fifth of the time that tests of `vgpu` took.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(scope="session", autouse=True)
def imported_once() -> Iterator[None]:
    """What a sandbox needs imported is imported once a worker, not once a sandbox: that takes seconds of a core."""
    with starting.kept():
        yield


def pytest_report_header(config: pytest.Config) -> str:
    return f"scenarios: seed {config.option.seed}, replies in {config.option.replies}"
