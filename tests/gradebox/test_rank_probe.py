"""Several ranks, one outcome: the rank that failed first explains, not those that waited for it."""

from __future__ import annotations

from typing import Any

import pytest

from gradebox.run.assertions import CheckFailed, NeedsReview
from gradebox.run.probe_cache import ProbeCache
from gradebox.run.submission import Submission
from gradebox.sandbox import Limits, RankReply, Reply, Request
from gradebox.sandbox.devices import Device


class Answers:
    """A sandbox that gives these answers."""

    limits = Limits()

    def __init__(self, *ranks: RankReply) -> None:
        self.ranks = ranks
        self.asked: list[Request] = []

    def run(self, request: Request) -> Reply:
        self.asked.append(request)
        return Reply("ok" if all(rank.kind == "ok" for rank in self.ranks) else "error", self.ranks, 0.0)


def submission(*ranks: RankReply) -> tuple[Submission, Answers]:
    sandbox: Any = Answers(*ranks)
    device = Device(name="vgpu:T4", label="virtual T4", simulated=True)
    return Submission(device, sandbox, ProbeCache(), "lab3.scaling.trains"), sandbox


def test_each_rank_tells_what_it_saw() -> None:
    handed_in, sandbox = submission(RankReply("ok", {"rank": 0}), RankReply("ok", {"rank": 1}))
    assert [reply.rank for reply in handed_in.rank_probe("lab3.setup.training.train", 2, {"device": "cpu"})] == [0, 1]
    assert (sandbox.asked[0].ranks, sandbox.asked[0].device) == (2, "cpu")


@pytest.mark.parametrize("waiting", ["error", "probe_error", "timeout"])
def test_the_rank_that_failed_first_explains(waiting: Any) -> None:
    left = RankReply(waiting, error="RuntimeError", message="Connection closed by peer [127.0.0.1]:4711")
    failed = RankReply("error", error="KeyError", message="'weight'", where="train.py:7 in train")
    for ranks in ((left, failed), (failed, left)):
        with pytest.raises(CheckFailed, match="KeyError: 'weight'"):
            submission(*ranks)[0].rank_probe("lab3.setup.training.train", 2)


def test_an_open_task_is_told_before_what_follows_from_it() -> None:
    stub = RankReply("stub", message="Task 3.1 is open")
    with pytest.raises(CheckFailed, match=r"Task 3\.1 is open"):
        submission(RankReply("timeout", message="no result within 60 s"), stub)[0].rank_probe(
            "lab3.setup.training.train", 2
        )


def test_ranks_that_waited_for_each_other_are_told_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradebox.run.endings._machine_is_busy", lambda: False)
    waited = RankReply("error", error="RuntimeError", message="Timed out waiting 10000ms", where="train.py:7 in train")
    left = RankReply("error", error="RuntimeError", message="Connection closed by peer", where="train.py:9 in train")
    with pytest.raises(CheckFailed) as caught:
        submission(waited, left, RankReply("ok", {}))[0].rank_probe("lab3.setup.training.train", 3)
    assert caught.value.message == (
        "the ranks did not meet: rank 0 was still at train.py:7 in train when time was up, "
        "rank 1 lost a connection at train.py:9 in train, rank 2 was done"
    )
    assert "same collectives in the same order" in caught.value.hint


@pytest.mark.parametrize(("kind", "outcome"), [("error", CheckFailed), ("timeout", NeedsReview)])
def test_ranks_that_waited_on_a_busy_machine_get_a_second_chance(
    kind: Any, outcome: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they gave up by themselves even then, they were not slow: a collective waits far longer than it takes."""
    monkeypatch.setattr("gradebox.run.endings._machine_is_busy", lambda: True)
    waited = RankReply(kind, error="RuntimeError", message="Timed out waiting 10000ms")
    handed_in, sandbox = submission(waited, waited)
    with pytest.raises(outcome, match="the ranks did not meet"):
        handed_in.rank_probe("lab3.setup.training.train", 2)
    assert len(sandbox.asked) == 2


def test_a_failed_probe_needs_review_when_no_submission_failed() -> None:
    broken = RankReply("probe_error", error="IndexError", message="list index out of range")
    with pytest.raises(NeedsReview, match="IndexError"):
        submission(RankReply("ok", {}), broken)[0].rank_probe("lab3.setup.training.train", 2)
