"""Grading while somebody works: what a save may have changed is asked again, and nothing that is shown is stale."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gradebox.authoring.watch import Session, answer
from gradebox.common.configuration import ROOT
from gradebox.run.grade import CheckReport
from gradebox.run.grading import Grading, Watcher
from gradebox.run.options import Options
from gradebox.run.request import GradingError
from gradebox.sandbox import RankReply, Reply, Request, Sandbox, starting
from tests.gradebox.processes import descendants, eventually
from tests.gradebox.small_course import NUMBERS, SUMS, write_course, write_submission
from tests.gradebox.test_run import order
from tests.proc import is_there, proc

pytestmark = pytest.mark.usefixtures("_courses_are_forgotten")

PRODUCT, POWER, NOTED, TOTAL, NOTED_TOO = (
    *("basics.numbers.product", "basics.numbers.power", "basics.notes.noted"),
    *("further.sums.total", "further.sums.noted_too"),
)
READS = (
    "further/sums/checks.py",
    '    def test_noted_too(self, submission):\n        submission.probe("basics.numbers.noted")\n',
    "    def test_noted_too(self, submission):\n"
    '        require_equal(submission.read_text("further_week2/REPORT.md"), "done", what="it")\n',
)


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The probes that reach the sandbox."""
    probes: list[str] = []
    real = Sandbox.run

    def run(self: Sandbox, request: Request) -> Reply:
        if request.student:
            probes.append(request.probe)
        return real(self, request)

    monkeypatch.setattr(Sandbox, "run", run)
    return probes


PLAIN = NUMBERS.replace("import sys\n\n    sys._getframe(1)", "pass")
"""Without what makes a reader doubt."""


@contextlib.contextmanager
def session(tmp_path: Path, *changes: tuple[str, str, str], jobs: int = 1) -> Iterator[Session]:
    request = order(write_course(tmp_path, *changes), write_submission(tmp_path))
    with Session(replace(request, jobs=jobs)) as opened:
        yield opened


def test_the_first_round_asks_everything_and_the_next_what_has_left_notes(tmp_path: Path, reached: list[str]) -> None:
    with session(tmp_path) as watch:
        first = watch.again(Watcher())
        assert first.asked == (PRODUCT, POWER, NOTED, TOTAL, NOTED_TOO)
        assert first.grade.score == 10
        reached.clear()
        second = watch.again(Watcher())
        # What the sandbox has noticed something in is looked at each time.
        assert second.asked == (NOTED, NOTED_TOO)
        assert second.grade.score == 10
        assert [note.check for note in second.grade.integrity] == [note.check for note in first.grade.integrity]
        assert not reached


def test_a_change_reaches_those_checks_that_use_what_has_changed(tmp_path: Path, reached: list[str]) -> None:
    with session(tmp_path, READS) as watch:
        write_submission(tmp_path, PLAIN)
        watch.again(Watcher())
        reached.clear()
        write_submission(tmp_path, PLAIN.replace("base**exponent", "base + exponent"))
        changed = watch.again(Watcher())
        assert changed.asked == (POWER,)
        assert reached == ["basics.numbers.power"]
        assert "power()" in changed.reports[POWER].message


def test_what_was_right_before_is_not_asked_again(tmp_path: Path, reached: list[str]) -> None:
    with session(tmp_path) as watch:
        write_submission(tmp_path, PLAIN)
        watch.again(Watcher())
        write_submission(tmp_path, PLAIN.replace("base**exponent", "base + exponent"))
        assert watch.again(Watcher()).grade.score == 8.5
        reached.clear()
        write_submission(tmp_path, PLAIN)
        back = watch.again(Watcher())
        assert back.grade.score == 10
        assert back.asked == (POWER,)
        assert not reached


def test_where_reading_leaves_a_doubt_everything_counts(tmp_path: Path, reached: list[str]) -> None:
    with session(tmp_path) as watch:
        write_submission(tmp_path, f"{NUMBERS}\nglobals()\n")
        watch.again(Watcher())
        reached.clear()
        write_submission(tmp_path, f"{NUMBERS}\nglobals()\n", f"{SUMS}\nunused = 1\n")
        watch.again(Watcher())
        # What runs when the one module is imported may reach anything; the other module knows nothing of it.
        assert set(reached) == {f"basics.numbers.{name}" for name in ("product", "power", "noted")}


def test_a_text_that_a_check_reads_counts(tmp_path: Path) -> None:
    with session(tmp_path, READS) as watch:
        write_submission(tmp_path, PLAIN)
        assert watch.again(Watcher()).grade.score == 9
        (tmp_path / "handed-in/further_week2/REPORT.md").write_text("done")
        changed = watch.again(Watcher())
        assert changed.grade.score == 10
        assert TOTAL not in changed.asked


def test_a_check_that_fails_names_the_line_as_it_is_now(tmp_path: Path) -> None:
    wrong = NUMBERS.replace("left * right", "left * right.nothing")
    with session(tmp_path) as watch:
        write_submission(tmp_path, wrong)
        assert "numbers.py:2" in watch.again(Watcher()).reports[PRODUCT].message
        write_submission(tmp_path, f"# a line\n{wrong}")
        assert "numbers.py:3" in watch.again(Watcher()).reports[PRODUCT].message


EDITS = (
    NUMBERS,
    NUMBERS.replace("left * right", "left + right"),
    NUMBERS.replace("left * right", "left * FACTOR * right") + "\n\nFACTOR = 2\n",
    NUMBERS.replace("left * right", "left * FACTOR * right") + "\n\nFACTOR = 1\n",
    NUMBERS.replace("return left * right", "return helper(left, right)") + "\n\ndef helper(a, b):\n    return a * b\n",
    NUMBERS.replace("return left * right", "return helper(left, right)") + "\n\ndef helper(a, b):\n    return a\n",
    f"import nothing_of_this_name\n{NUMBERS}",
    NUMBERS.replace("def product(left, right):\n    return left * right\n", ""),
    f"{NUMBERS}\nproduct = lambda left, right: 0\n",
    f"{NUMBERS}\nglobals()['product'] = lambda left, right: 0\n",
    NUMBERS.replace("def power", "from further_week2.sums import total\n\n\ndef power"),
    NUMBERS.replace("def power", "from labs.further_week2.sums import total\n\n\ndef power")
    .replace("left * right", "total([left] * right)"),
)  # fmt: skip


@pytest.mark.night
@pytest.mark.parametrize("jobs", [1, 2])
def test_after_any_edit_it_says_what_a_grading_from_the_beginning_says(tmp_path: Path, jobs: int) -> None:
    with session(tmp_path, jobs=jobs) as watch, Sandbox(watch.order.submission, watch.order.course.environment) as anew:
        for number, numbers in enumerate((*EDITS, *reversed(EDITS))):
            for sums in (SUMS, SUMS.replace("sum(values)", "sum(values) + 1"))[: 1 + (number % 3 == 0)]:
                folder = write_submission(tmp_path, numbers, sums)
                with Grading(replace(watch.order, submission=folder, jobs=1), sandbox=anew) as grading:
                    grading.carry_out()
                    expected = {name: (known.outcome, known.message) for name, known in grading.reports.items()}
                round_ = watch.again(Watcher())
                assert {name: (known.outcome, known.message) for name, known in round_.reports.items()} == expected


def test_it_gives_up_when_the_files_change_again(tmp_path: Path) -> None:
    with session(tmp_path) as watch:
        given_up = watch.again(Watcher(), stale=lambda: True)
        assert not given_up.over
        assert given_up.asked == (PRODUCT,)
        whole = watch.again(Watcher())
        assert whole.over
        assert PRODUCT not in whole.asked
        assert whole.grade.score == 10


def test_two_sandboxes_ask_side_by_side_and_the_same(tmp_path: Path, reached: list[str]) -> None:
    with session(tmp_path, READS, jobs=2) as watch:
        write_submission(tmp_path, PLAIN)
        first = watch.again(Watcher())
        assert first.asked == tuple(check.id for check in watch.plan)
        assert len(watch._clones) == 1
        reached.clear()
        assert watch.again(Watcher()).asked == ()
        write_submission(tmp_path, PLAIN.replace("base**exponent", "base + exponent"), SUMS.replace("sum(", "max("))
        assert watch.again(Watcher()).asked == (POWER, TOTAL)
        assert sorted(reached) == ["basics.numbers.power", "further.sums.total"]


def test_two_sandboxes_give_up_when_the_files_change_again(tmp_path: Path) -> None:
    with session(tmp_path, jobs=2) as watch:
        given_up = watch.again(Watcher(), stale=lambda: True)
        assert not given_up.over
        assert 1 <= len(given_up.asked) < len(watch.plan)
        assert watch.again(Watcher()).grade.score == 10


def test_whoever_interrupts_two_sandboxes_waits_for_no_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "_kept", 0)  # tests share what is imported
    pressed: list[str] = []

    class Interrupting(Watcher):
        def starting(self, check: str) -> None:
            if threading.current_thread() is not threading.main_thread() and not pressed:
                pressed.append(check)
                os.kill(os.getpid(), signal.SIGINT)

    slow = NUMBERS.replace("return left * right", "import time\n\n    time.sleep(600)")
    before, begun = set(descendants(os.getpid())), time.monotonic()
    with session(tmp_path, jobs=2) as watch:
        write_submission(tmp_path, slow)
        with pytest.raises(KeyboardInterrupt):
            watch.again(Interrupting())
    assert time.monotonic() - begun < 60
    assert eventually(lambda: set(descendants(os.getpid())) <= before, 30)


def test_a_submission_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(GradingError, match="there is no folder"):
        Session(order(write_course(tmp_path), tmp_path / "nowhere"))


class Watching:
    """`gradebox watch`, as a person sees it."""

    def __init__(self, tmp_path: Path, *options: str) -> None:
        proc()
        self.log = tmp_path / "seen.txt"
        command = [sys.executable, "-m", "gradebox", "watch", "handed-in", *options]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, cwd=tmp_path, env=environment, stdout=log, stderr=subprocess.STDOUT
            )

    @property
    def text(self) -> str:
        return self.log.read_text()

    def await_text(self, pattern: str) -> None:
        deadline = time.monotonic() + 120
        while not re.search(pattern, self.text):
            assert self.process.poll() is None, self.text
            assert time.monotonic() < deadline, self.text
            time.sleep(0.05)

    def interrupt(self) -> int:
        below = descendants(self.process.pid)
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(60)
        assert eventually(lambda: not any(map(is_there, below)))
        return code


@pytest.mark.night
def test_the_command_shows_what_each_save_brings_and_ends_with_an_interruption(tmp_path: Path) -> None:
    course = write_course(tmp_path)
    write_submission(tmp_path)
    watching = Watching(tmp_path, "--course", str(course), "--lab", "1", "--device", "cpu")
    try:
        watching.await_text(r"Grade 6/6[\s\S]*took")
        write_submission(tmp_path, NUMBERS.replace("left * right", "left + right"))
        watching.await_text(r"✓ → ✗ Multiply two numbers[\s\S]*product\(\)[\s\S]*Basics [\d.]+/6")
        write_submission(tmp_path, NUMBERS.replace("left * right", "left + + (right"))
        watching.await_text(r"✗ basics_week1/numbers.py:2: .*never closed")
        write_submission(tmp_path)
        watching.await_text(r"✗ → ✓ Multiply two numbers[\s\S]*Basics 6/6")
        assert watching.interrupt() == 0
    finally:
        watching.process.kill()
    assert "no grade was written" in watching.text
    assert "Traceback" not in watching.text
    assert not (tmp_path / "grade-report").exists()


def test_what_cannot_be_watched_is_said_in_a_line(tmp_path: Path) -> None:
    course = write_course(tmp_path)
    watching = Watching(tmp_path, "--course", str(course), "--device", "cpu")
    assert watching.process.wait(60) == 2
    assert re.fullmatch(
        r"could not grade: there is no folder .*handed-in; name the folder with your labs\n", watching.text
    )


def test_reports_come_with_the_checks_in_the_rubrics_order(tmp_path: Path) -> None:
    heard: list[tuple[str, CheckReport]] = []

    class Hearing(Watcher):
        def finished(self, check: str, report: CheckReport) -> None:
            heard.append((check, report))

    with session(tmp_path) as watch:
        round_ = watch.again(Hearing())
    assert [check for check, _ in heard] == list(round_.asked) == list(round_.reports)


def test_questions_are_answered_line_by_line(tmp_path: Path) -> None:
    course = write_course(tmp_path)
    write_submission(tmp_path, PLAIN.replace("left * right", "left + right"))
    options = Options(course=str(course), submission="handed-in", device="cpu", origin=str(tmp_path), seed=7)
    questions, answers = io.StringIO("basics.numbers\nbasics.numbers\nbasics.nothing\n\n"), io.StringIO()
    assert answer(options, questions, answers) == 0
    first, second, wrong, whole = map(json.loads, answers.getvalue().splitlines())
    assert first["asked"] == [PRODUCT, POWER]
    assert (first["grade"]["score"], first["grade"]["max_score"]) == (1.5, 4)
    assert second["asked"] == []
    assert second["grade"]["labs"] == first["grade"]["labs"]
    assert "basics.nothing" in wrong["error"]
    assert whole["grade"]["max_score"] == 10
    assert PRODUCT not in whole["asked"]
    assert TOTAL in whole["asked"]


def test_an_answer_of_which_a_rank_took_too_long_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, late = RankReply("error", message="connection closed"), RankReply("timeout", message="no result within 1 s")
    replies = [Reply("error", (lost, late), 1.0), Reply("ok", (RankReply("ok"), RankReply("ok")), 1.0)]
    with session(tmp_path) as watch:
        watch.again(Watcher())
        monkeypatch.setattr(Sandbox, "run", lambda *_: replies.pop(0))
        question = Request("further.sums.total", params={"numbers": [1]}, ranks=2)
        assert [watch._box.run(question).kind for _ in range(3)] == ["error", "ok", "ok"]
