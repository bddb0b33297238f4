"""Runs of the course's own code are asked once for many submissions; what a submission takes part in always is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gradebook.grading.judge import SandboxJudge
from gradebook.results import Grading, Task
from gradebox.run.grade import CheckResult, Outcome
from gradebox.run.reference_cache import ReferenceCache
from gradebox.sandbox import Note, RankReply, Reply, Request, Sandbox
from tests.gradebox.small_course import NUMBERS, importing, write_course, write_submission

REFERENCE = Request("basics.numbers.reference", params={"base": 3}, student=False)

# A check that compares with a run of the course's own.
CHECK = (
    "basics/numbers/checks.py",
    '        require_equal(seen.result, base**3, what="power()")\n',
    "        reference = submission.probe('basics.numbers.reference', {'student': False}, base=base)\n"
    '        require_equal(seen.result, reference.result, what="power()")\n',
)
PROBE = (
    "basics/numbers/probes.py",
    "def noted(student):",
    "def reference(student, *, base):\n    return {'result': base**3}\n\n\ndef noted(student):",
)


class Asked:
    """Answers, and counts how often it had to."""

    def __init__(self, reply: Reply | None = None) -> None:
        self.reply = reply or Reply("ok", (RankReply("ok", {"result": 27}),), 0.1)
        self.count = 0

    def __call__(self, request: Request) -> Reply:
        self.count += 1
        return self.reply


def test_a_truth_is_asked_once() -> None:
    references, ask = ReferenceCache(), Asked()
    assert references.answer(REFERENCE, ask) == references.answer(REFERENCE, ask)
    references.answer(replace(REFERENCE, params={"base": 4}), ask)
    references.answer(replace(REFERENCE, device="vgpu:H100"), ask)
    assert ask.count == 3


def test_what_one_grading_does_to_an_answer_the_next_one_does_not_see() -> None:
    references, ask = (
        ReferenceCache(),
        Asked(Reply("ok", (RankReply("ok", {"parts": [1]}, tensors={"all": np.zeros(3)}),), 0.1)),
    )
    for _ in range(3):
        answer = references.answer(REFERENCE, ask)
        assert answer.value == {"parts": [1]}
        assert answer.tensors["all"].tolist() == [0, 0, 0]
        answer.value["parts"].append(2)
        answer.tensors["all"][:] = 1
        ask.reply = Reply("error", (RankReply("error"),), 0.1)  # it is not asked again
    assert ask.count == 1


def test_what_a_submission_takes_part_in_is_asked_each_time() -> None:
    references, ask = ReferenceCache(), Asked()
    for _ in range(3):
        references.answer(replace(REFERENCE, student=True), ask)
    assert ask.count == 3
    assert not len(references)


@pytest.mark.parametrize(
    "reply",
    [
        Reply("timeout", (RankReply("timeout"),), 60.0),
        Reply("ok", (RankReply("ok", {}),), 0.1, notes=(Note("restart", "the server ended"),)),
    ],
)
def test_what_went_wrong_is_asked_again(reply: Reply) -> None:
    references, ask = ReferenceCache(), Asked(reply)
    references.answer(REFERENCE, ask)
    references.answer(REFERENCE, ask)
    assert ask.count == 2


def test_the_oldest_go_when_there_are_too_many_bytes() -> None:
    large = Asked(Reply("ok", (RankReply("ok", {}, tensors={"all": np.zeros(1000)}),), 0.1))
    references = ReferenceCache(most_bytes=20_000)
    requests = [replace(REFERENCE, params={"base": base}) for base in range(3)]
    for request in requests:
        references.answer(request, large)
    assert len(references) == 2
    references.answer(requests[2], large)
    assert large.count == 3
    references.answer(requests[0], large)
    assert large.count == 4


def test_a_judge_asks_a_truth_once_for_all_submissions_and_grades_as_one_that_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    course = write_course(tmp_path, CHECK, PROBE)
    right = write_submission(tmp_path / "right")
    wrong = write_submission(tmp_path / "wrong", numbers=NUMBERS.replace("base**exponent", "base"))
    probes: list[str] = []
    run = Sandbox.run

    def counted(self: Sandbox, request: Request) -> Reply:
        probes.append(request.probe)
        return run(self, request)

    monkeypatch.setattr(Sandbox, "run", counted)
    monkeypatch.chdir(tmp_path)
    with importing():
        judge = SandboxJudge(tmp_path / "room", course)
        try:
            first, other, again = (_reports(judge.grade(_task(course, folder))) for folder in (right, wrong, right))
        finally:
            judge.close()
        alone = SandboxJudge(tmp_path / "another-room", course)
        try:
            other_alone = _reports(alone.grade(_task(course, wrong)))
        finally:
            alone.close()
    assert probes.count("basics.numbers.reference") == 2  # one for each judge
    assert probes.count("basics.numbers.power") == 4
    assert first == again
    assert other == other_alone
    assert first["basics.numbers.power"].outcome is Outcome.PASSED
    assert other["basics.numbers.power"].outcome is Outcome.FAILED


def _task(course: Path, folder: Path) -> Task:
    return Task(
        content=_content(folder), students=("ada",), folder=folder, course=course, labs=(1,), whole=False,
        criteria=("basics.numbers",), seed=7, device="cpu", seconds=60.0,
    )  # fmt: skip


def _content(folder: Path) -> str:
    with Sandbox(folder) as sandbox:
        return sandbox.submission_sha256


def _reports(grading: Grading) -> dict[str, CheckResult]:
    assert grading.grade is not None, grading.problem
    return {check.id: replace(check, seconds=0.0) for check in grading.grade.checks}
