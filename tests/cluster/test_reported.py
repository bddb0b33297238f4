"""Machines after public reports, and unusual ones: nothing broken passes, nothing healthy fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.acceptance import expectations, report
from cluster.acceptance.records import apart
from cluster.acceptance.verdict import Check, decide
from tests.by_day import one_in
from tests.cluster import sound
from tests.cluster.faults import (
    alike,
    doubtful,
    hidden,
    incidents,
    issues,
    margins,
    near_limits,
    other_boards,
    outsider,
    overlooked,
    quiet,
    reported,
    settings,
    shared,
    threads,
    trackers,
    unseen,
    visitor,
)
from tests.cluster.faults.reported import Story

FILES = (
    reported,
    issues,
    threads,
    incidents,
    unseen,
    hidden,
    shared,
    doubtful,
    quiet,
    trackers,
    other_boards,
    near_limits,
    settings,
    alike,
    overlooked,
    margins,
    outsider,
    visitor,
)
BROKEN, HEALTHY, IN_THE_BANNER = (
    [story for file in FILES for story in getattr(file, kind, ())] for kind in ("BROKEN", "HEALTHY", "IN_THE_BANNER")
)
NO_NORM = ("latencies", "images per second", "nccl", "rate of ports", "number of nodes", "8 bits",
           "messages of", "NVLinks of each pair", "number of GPUs")  # fmt: skip
"""What the banner of every such run says."""


def judged(story: Story, folder: Path) -> tuple[str, list[Check]]:
    """The verdict, and the checks that are no pass."""
    records = story.records()
    story.change(records)
    standards = report.Standards()
    if story.expect:
        (folder / "cluster.toml").write_text(story.expect)
        standards = report.Standards(expected=expectations.read(folder / "cluster.toml"))
    checks = report.judge(sound.options(), apart(records), standards)
    verdict = decide(checks, device="cuda", simulated=False).outcome
    return verdict, [check for check in checks if check.status in ("fail", "unverified")]


@pytest.mark.parametrize("story", one_in(3, BROKEN), ids=lambda story: story.what)
def test_what_is_broken_does_not_pass_and_is_named(story: Story, tmp_path: Path) -> None:
    verdict, checks = judged(story, tmp_path)
    assert verdict != "PASS"
    assert any(story.named in check.subject for check in checks), [(check.name, check.subject) for check in checks]
    # --write-expectations makes it nobody's norm: something failed, or what was seen is doubtful.
    assert verdict == "FAIL" or any(not check.nothing_known for check in checks)


@pytest.mark.parametrize("story", IN_THE_BANNER, ids=lambda story: story.what)
def test_what_all_have_lost_is_named_in_the_banner(story: Story) -> None:
    """The best of such parts is known, and sound ones differ by more than was lost: no bound tells, the banner does."""
    sound_one = sound.report(story.records())["acceptance"]["summary"]
    records = story.records()
    story.change(records)
    acceptance = sound.report(records)["acceptance"]
    lines = [line for line in acceptance["summary"] if line.startswith("Not ")]
    assert acceptance["status"] == "PASS"
    assert any(story.named in line for line in lines), lines
    assert story.named in NO_NORM or any(line not in sound_one for line in lines), "no word of what was lost"


@pytest.mark.parametrize("story", one_in(3, HEALTHY), ids=lambda story: story.what)
def test_what_is_unusual_and_healthy_passes(story: Story, tmp_path: Path) -> None:
    verdict, checks = judged(story, tmp_path)
    assert verdict == "PASS", [(check.name, check.subject, check.status, check.evidence) for check in checks]


def test_there_are_enough_of_both() -> None:
    assert len({story.what for story in BROKEN}) == len(BROKEN) >= 526
    assert len({story.what for story in HEALTHY}) == len(HEALTHY) >= 374
