"""Tests that take long run in turns: a fifth of them with each commit, all of them within a few.

`tests/slow.txt` has those that took a second or more of the last run of all. One run takes those of one share, which
the commit decides, so that running it again asks the same; `make test SHARE=all`, `make test-all` and naming tests
leave none out. What is quick always runs, and so do a few that go through everything once (`ALWAYS`).

`python -m tests.shares LOG` writes the list anew, from what `pytest --durations=0 --durations-min=0.05` printed.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

SHARES = 5
SLOW_SECONDS = 1.0
LIST = Path(__file__).with_name("slow.txt")
ALWAYS = (
    "tests/release/test_release_repository.py::test_the_released_repository_grades_stubs_with_nothing_and_solutions",
    "tests/scenarios/test_lab1.py::test_the_reference_keeps_every_point",
    "tests/scenarios/test_inputs.py::test_a_grading_asks_each_value[2]",
    "tests/gradebox/test_pytest_plugin.py::test_stubs_earn_nothing",
)
"""Beginnings of node ids."""
_DURATION = re.compile(r"\s*([\d.]+)s (?:call|setup|teardown) +(\S.*?)\s*$")


def slow() -> list[str]:
    """Node ids, the slowest first."""
    return [line.partition(" ")[2] for line in LIST.read_text().splitlines()]


def share_of(commit: str) -> int:
    """Which share a commit's tests run, from its hash; the first where there is none."""
    return int(commit[:8], 16) % SHARES if commit else 0


def left_out(share: int) -> frozenset[str]:
    """The node ids that a run of this share leaves to others. Shares take turns in the list, so all are alike."""
    return frozenset(
        name for place, name in enumerate(slow()) if place % SHARES != share and not name.startswith(ALWAYS)
    )


def deselect(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is another commit's share."""
    wanted = config.option.share
    if wanted == "all":
        return
    others = left_out(share_of(_commit()) if wanted == "commit" else int(wanted) - 1)
    found = [item for item in items if item.nodeid in others]
    if found:
        config.hook.pytest_deselected(items=found)
        items[:] = [item for item in items if item.nodeid not in others]


def described(wanted: str) -> str:
    """For the head of a run."""
    if wanted == "all":
        return "slow tests: all of them"
    share = share_of(_commit()) + 1 if wanted == "commit" else int(wanted)
    return f"slow tests: share {share} of {SHARES} (tests/shares.py; all of them: make test SHARE=all)"


def _commit() -> str:
    command = ["git", "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, cwd=LIST.parent, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def write(log: str) -> int:
    """The list, from a log of a run with durations; returns how many tests are in it."""
    seconds: Counter[str] = Counter()
    for line in log.splitlines():
        found = _DURATION.match(line)
        if found:
            seconds[found[2]] += float(found[1])
    chosen = [(name, value) for name, value in seconds.most_common() if value >= SLOW_SECONDS]
    LIST.write_text("".join(f"{value:.1f} {name}\n" for name, value in chosen))
    return len(chosen)


def main(arguments: Sequence[str]) -> None:
    """Write the list from the log that is named."""
    print(f"{write(Path(arguments[0]).read_text())} tests took {SLOW_SECONDS:g} s or more: {LIST}")


if __name__ == "__main__":
    main(sys.argv[1:])
