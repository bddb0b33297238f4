"""A submission that hangs costs minutes, not hours: imports that do not end, and the time limit of a whole grading."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from gradebox.run.assertions import CheckFailed, NeedsReview
from gradebox.run.probe_cache import ProbeCache
from gradebox.run.submission import Submission
from gradebox.sandbox import Limits, RankReply, Reply, Request, Sandbox
from gradebox.sandbox.devices import Device

HANGS = RankReply("timeout", message="no result within 60 s", where="benchmark.py:3", importing=True)
FINE = RankReply("ok", {"answer": 42})


@pytest.fixture(autouse=True)
def _quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradebox.run.endings._machine_is_busy", lambda: False)


class Answers:
    """A sandbox that gives these answers, one after the other, and the last one for ever."""

    limits = Limits()
    pause = 0.0
    """Seconds that an answer takes."""
    took = 0.0
    """Seconds that an answer says it took."""

    def __init__(self, *answers: RankReply) -> None:
        self.answers = list(answers)
        self.asked: list[Request] = []

    def run(self, request: Request) -> Reply:
        self.asked.append(request)
        time.sleep(self.pause)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return Reply(answer.kind, (answer,), self.took)


class Asking:
    """A grading whose checks get these answers."""

    def __init__(self, *answers: RankReply, time_limit: float | None = None) -> None:
        self.sandbox: Any = Answers(*answers)
        self._probe_cache = ProbeCache(time_limit)

    def check(self, name: str = "lab1.benchmark.first") -> Submission:
        """The submission as one of its checks sees it."""
        device = Device(name="vgpu:T4", label="virtual T4", simulated=True)
        return Submission(device, self.sandbox, self._probe_cache, name)


def test_after_two_imports_that_do_not_end_the_rest_of_that_lab_is_decided() -> None:
    grading = Asking(HANGS, HANGS, FINE)
    submission = grading.check("lab1.benchmark.first")
    for number in range(2):
        with pytest.raises(CheckFailed, match="no answer in time"):
            submission.probe("lab1.shared.benchmark.matmul", number=number)
    with pytest.raises(CheckFailed, match=r"importing the lab's modules did not end, 2 times, last at benchmark\.py:3"):
        grading.check("lab1.memory.second").probe("lab1.shared.benchmark.matmul", number=2)
    assert len(grading.sandbox.asked) == 2
    assert grading.check("lab2.amp.other").probe("lab2.amp.train").answer == 42


def test_a_function_that_hangs_decides_nothing_about_others() -> None:
    slow = RankReply("timeout", message="no result within 60 s", where="benchmark.py:30 in run")
    grading = Asking(slow, slow, slow, FINE)
    submission = grading.check()
    for number in range(3):
        with pytest.raises(CheckFailed):
            submission.probe("lab1.shared.benchmark.matmul", number=number)
    assert submission.probe("lab1.shared.benchmark.matmul", number=3).answer == 42
    assert len(grading.sandbox.asked) == 4


@pytest.mark.parametrize(
    ("cpu", "starved", "error", "says"),
    [
        (
            0.4,
            0.1,
            CheckFailed,
            r"at benchmark\.py:30 in run; your code was waiting \(processor time 0\.4 s of 60\.0 s\)",
        ),
        (58.0, 1.0, CheckFailed, r"your code was computing \(processor time 58\.0 s of 60\.0 s\)"),
        (110.0, 40.0, CheckFailed, r"your code was computing \(processor time 110\.0 s of 60\.0 s\)"),
        (30.0, 29.0, NeedsReview, "the machine was busy"),
    ],
    ids=["waits", "computes", "its own threads take it from each other", "lacks a processor"],
)
def test_who_is_to_blame_for_a_time_out_is_measured(
    cpu: float, starved: float, error: type[Exception], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradebox.run.endings._machine_is_busy", lambda: True)  # it is no longer looked at
    slow = RankReply(
        "timeout",
        message="no result within 60 s",
        where="benchmark.py:30 in run",
        cpu_seconds=cpu,
        starved_seconds=starved,
    )
    grading = Asking(slow)
    grading.sandbox.took = 60.0
    with pytest.raises(error, match=says):
        grading.check().probe("lab1.shared.benchmark.matmul")


def test_a_question_that_two_checks_have_is_asked_once_though_they_ask_at_the_same_time() -> None:
    grading = Asking(FINE)
    grading.sandbox.pause = 0.2
    meet = threading.Barrier(4)
    answers = []

    def ask(number: int) -> None:
        submission = grading.check(f"lab1.benchmark.check{number}")
        meet.wait()
        answers.append(submission.probe("lab1.shared.benchmark.matmul").answer)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [42] * 4
    assert len(grading.sandbox.asked) == 1


def test_an_import_that_hangs_is_told_from_a_function_that_does(tmp_path: Path) -> None:
    lab = tmp_path / "lab1_gpu_basics"
    lab.mkdir()
    (lab / "hangs.py").write_text("def wait():\n    while True:\n        pass\n\n\nwait()\n")
    (lab / "slow.py").write_text("def wait():\n    while True:\n        pass\n")
    probes = Path(__file__).parents[1] / "sandbox" / "probes"
    limits = Limits(wall_seconds=1.0)
    with Sandbox(tmp_path, preload=("numpy",), probe_paths=[probes], limits=limits) as sandbox:
        timeouts = {}
        for module in ("hangs", "slow"):
            reply = sandbox.run(Request("drive.call", params={"module": module, "function": "wait"}))
            assert reply.kind == "timeout"
            timeouts[module] = (reply.ranks[0].importing, reply.where)
    assert timeouts["hangs"][0] is True
    assert timeouts["slow"][0] is False
    assert timeouts["hangs"][1] is not None
    assert timeouts["hangs"][1].startswith("hangs.py:")


def test_a_probe_gets_no_more_time_than_the_grading_has_left() -> None:
    grading = Asking(FINE, time_limit=20.0)
    grading.check().probe("lab1.shared.benchmark.matmul")
    (request,) = grading.sandbox.asked
    assert request.limits is not None
    assert request.limits.wall_seconds <= 20.0


def test_what_is_cut_off_by_the_time_limit_is_a_persons_to_judge() -> None:
    submission = Asking(HANGS, time_limit=20.0).check()
    with pytest.raises(NeedsReview, match="left out: the time limit of 20 s for the whole grading was reached"):
        submission.probe("lab1.shared.benchmark.matmul")


def test_after_the_time_limit_no_check_begins() -> None:
    grading = Asking(FINE, time_limit=0.5)
    with pytest.raises(NeedsReview, match=r"the time limit of 0\.5 s"):
        grading.check()
    assert grading.sandbox.asked == []


def test_without_a_time_limit_a_probe_has_its_own() -> None:
    grading = Asking(FINE)
    grading.check().probe("lab1.shared.benchmark.matmul")
    assert grading.sandbox.asked[0].limits is None
