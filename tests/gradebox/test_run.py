"""One grading: what it asks, in what order, side by side, and what it leaves behind when it is interrupted."""

from __future__ import annotations

import functools
import glob
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import grader
from gradebox.common.configuration import ROOT
from gradebox.course import course as courses
from gradebox.course.criterion import CheckFunction
from gradebox.report.document import to_document
from gradebox.run import chance
from gradebox.run.check_reports import Blocked
from gradebox.run.check_runner import CheckRunner
from gradebox.run.grade import PASSED_IN_DOUBT, CheckReport, Grade, Outcome
from gradebox.run.grading import Grading, Watcher, run
from gradebox.run.request import GradingError, GradingRequest
from gradebox.run.request import check_groups as _lanes
from gradebox.sandbox import TAMPERING, Sandbox, starting
from gradebox.sandbox.devices import CPU, Device
from tests.gradebox import small_course
from tests.gradebox.processes import cpu_seconds, descendants, eventually
from tests.gradebox.small_course import NUMBERS, SUMS, write_course, write_submission
from tests.proc import is_there, proc

pytestmark = pytest.mark.usefixtures("_courses_are_forgotten")

SLOW = SUMS.replace("return", "import time; time.sleep(0.7); return")
PRODUCT = '[checks.product]\npoints = 2.5\ntitle = "Multiply two numbers"\n\n'
POWER = '[checks.power]\npoints = 1.5\ntitle = "Raise a number to a power"\n'
TWICE = "@criterion('basics.numbers')\nclass More:\n    def test_power(self):\n        pass\n\n\n"
WRONG = NUMBERS.replace("left * right", "left + right")
CRASHING = NUMBERS.replace("left * right", "left * right.real.imag.nothing")
CHECKS = ["basics.numbers.product", "basics.numbers.power", "basics.notes.noted", "further.sums.total",
          "further.sums.noted_too"]  # fmt: skip


def order(
    course: Path, submission: Path, *, jobs: int = 1, criterion: str | None = None, **options: Any
) -> GradingRequest:
    loaded = courses.load(course)
    rubric, labs = loaded.select(criteria=criterion)
    return GradingRequest(
        loaded, submission, rubric, labs, Device(CPU, "CPU"), seed=7, name="handed-in", jobs=jobs, **options
    )


def outcomes(grade: Grade) -> dict[str, str]:
    return {
        check.id: check.outcome.value for lab in grade.labs for criterion in lab.criteria for check in criterion.checks
    }


def document(grade: Grade) -> dict[str, Any]:
    """The grade without its times."""

    def timeless(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: timeless(inner) for name, inner in value.items() if name != "seconds"}
        return [timeless(inner) for inner in value] if isinstance(value, list) else value

    return timeless(to_document(grade))  # type: ignore[no-any-return]


class Told(Watcher):
    """Keeps what it hears, and by how many threads at once."""

    def __init__(self) -> None:
        self.total = 0
        self.started: list[str] = []
        self.finished_: dict[str, CheckReport] = {}
        self.threads: set[int] = set()

    def begins(self, total: int) -> None:
        self.total = total

    def starting(self, check: str) -> None:
        self.started.append(check)
        self.threads.add(threading.get_ident())

    def finished(self, check: str, report: CheckReport) -> None:
        self.finished_[check] = report


def test_a_course_that_the_engine_has_never_seen_is_graded(tmp_path: Path) -> None:
    watcher = Told()
    grade = run(order(write_course(tmp_path), write_submission(tmp_path)), watcher)
    assert outcomes(grade) == dict.fromkeys(CHECKS, "passed")
    assert (grade.score, grade.max_score, grade.pass_score, grade.passed) == (10, 10, 5, True)
    assert (watcher.total, watcher.started, list(watcher.finished_)) == (5, CHECKS, CHECKS)


def test_what_builds_on_a_wrong_answer_is_asked_all_the_same(tmp_path: Path) -> None:
    grade = run(order(write_course(tmp_path), write_submission(tmp_path, numbers=WRONG)))
    assert outcomes(grade) == {**dict.fromkeys(CHECKS, "passed"), "basics.numbers.product": "failed"}
    assert grade.score == Decimal("7.5")


def test_what_builds_on_a_crash_names_it_and_the_rest_is_graded(tmp_path: Path) -> None:
    grade = run(order(write_course(tmp_path), write_submission(tmp_path, numbers=CRASHING)))
    assert outcomes(grade) == {
        **dict.fromkeys(CHECKS, "passed"),
        "basics.numbers.product": "failed",
        "basics.numbers.power": "blocked",
    }
    failed, blocked = grade.labs[0].criteria[0].checks
    assert blocked.blocked_by == failed.id
    assert blocked.message == f"blocked by '{failed.title}' ({failed.id}): {failed.message}"
    assert grade.score == 6


@pytest.mark.parametrize("numbers", [NUMBERS, WRONG], ids=["right", "wrong"])
def test_side_by_side_gives_the_same_grade_as_one_after_the_other(numbers: str, tmp_path: Path) -> None:
    course, submission = write_course(tmp_path), write_submission(tmp_path, numbers=numbers, sums=SLOW)
    alone, beside = Told(), Told()
    first = run(order(course, submission), alone)
    second = run(order(course, submission, jobs=2), beside)
    assert document(first) == document(second)
    assert len(alone.threads) == 1 <= len(beside.threads) <= 2
    assert sorted(beside.started) == sorted(alone.started) == sorted(CHECKS)
    assert len(first.integrity) == 1


def test_an_early_criterion_is_begun_first_where_others_are_asked_beside_it(tmp_path: Path) -> None:
    early = ("further/sums/checks.py", '@criterion("further.sums")', '@criterion("further.sums", early=True)')
    course, submission = write_course(tmp_path, early), write_submission(tmp_path)
    alone, beside = Told(), Told()
    assert document(run(order(course, submission), alone)) == document(run(order(course, submission, jobs=2), beside))
    assert alone.started == CHECKS
    assert beside.started[0] == "further.sums.total"


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_check_that_is_void_leaves_the_others_of_its_criterion_to_a_person(jobs: int, tmp_path: Path) -> None:
    numbers = NUMBERS.replace("return base", "import time; time.perf_counter = lambda: 0.0; return base")
    grade = run(order(write_course(tmp_path), write_submission(tmp_path, numbers=numbers), jobs=jobs))
    assert outcomes(grade) == {
        **dict.fromkeys(CHECKS, "passed"),
        "basics.numbers.product": "needs_review",
        "basics.numbers.power": "failed",
    }
    assert grade.labs[0].criteria[0].checks[0].message == PASSED_IN_DOUBT
    assert [note.check for note in grade.integrity if note.kind == TAMPERING] == ["basics.numbers.power"]


@pytest.mark.parametrize("slow", ["basics", "further"])
def test_a_note_is_under_the_first_check_of_the_rubric_whoever_asked_first(slow: str, tmp_path: Path) -> None:
    """Two checks of different criteria ask one question; which of them comes first is decided by a pause."""
    asks = 'submission.probe("basics.numbers.noted")'
    later = f"time.sleep(1.5); {asks}"
    file, begin = {
        "basics": ("basics/notes/checks.py", "from gradebox.course.criterion"),
        "further": ("further/sums/checks.py", "from gradebox.run.assertions"),
    }[slow]
    changes = [(file, begin, f"import time\n{begin}"), (file, asks, later)]
    course = write_course(tmp_path, *changes)
    watcher = Told()
    grade = run(order(course, write_submission(tmp_path), jobs=3), watcher)
    ended = list(watcher.finished_)
    assert (ended.index("basics.notes.noted") < ended.index("further.sums.noted_too")) == (slow == "further")
    assert [(note.kind, note.check) for note in grade.integrity] == [("frames", "basics.notes.noted")]


def test_a_note_of_a_check_that_is_graded_alone_is_its_own(tmp_path: Path) -> None:
    grade = run(order(write_course(tmp_path), write_submission(tmp_path), criterion="further.sums"))
    assert [note.check for note in grade.integrity] == ["further.sums.noted_too"]


def test_checks_that_build_on_each_other_are_asked_in_order_and_all_others_beside_them() -> None:
    course = grader.course()
    grading = Grading(
        GradingRequest(course, ROOT / "solutions", course.rubric, course.labs, Device(CPU, "CPU"), seed=1)
    )
    lanes = _lanes(grading.plan)
    where = {check.id: number for number, lane in enumerate(lanes) for check in lane.checks}
    places = {check.id: place for lane in lanes for place, check in enumerate(lane.checks)}
    assert sorted(where) == sorted(check.id for check in course.rubric.checks())
    assert len(lanes) >= 10
    for check in grading.plan:
        for needed in check.requires:
            assert where[needed] == where[check.id]
            assert places[needed] < places[check.id]


@pytest.fixture
def own_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where all temporary files of a grading go."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


ENDLESS = "import time\nbegun = time.monotonic()\nwhile time.monotonic() < begun + 50:\n    pass\n"


def test_a_parallel_grading_that_is_interrupted_leaves_nothing_running(tmp_path: Path, own_tmp: Path) -> None:
    course = write_course(tmp_path)
    submission = write_submission(tmp_path, numbers=ENDLESS + NUMBERS, sums=ENDLESS + SUMS)
    threads, processes = threading.active_count(), descendants(os.getpid())
    watcher = Told()

    def started() -> set[int]:
        return set(descendants(os.getpid())) - set(processes)

    begun = time.monotonic()
    with Grading(order(course, submission, jobs=2), watcher) as grading:
        grading.begin()
        assert eventually(lambda: len(watcher.started) == 2)  # each in a sandbox of its own
        assert eventually(lambda: len(glob.glob(f"{own_tmp}/gpulabs-*")) == 2)
        time.sleep(1.0)
        assert len(started()) >= 4
        assert watcher.finished_ == {}
    assert time.monotonic() - begun < 40  # neither was waited for
    starting.end_unused()  # kept for the sandboxes of other tests
    assert eventually(lambda: not started(), 10)
    assert threading.active_count() == threads
    assert list(own_tmp.iterdir()) == []
    assert set(outcomes(grading.result("it was interrupted")).values()) == {"needs_review"}


GRADE = """\
import sys
from gradebox import launch
from gradebox.run.options import Options
sys.exit(launch.run(Options(course=sys.argv[1], submission=sys.argv[2], report=sys.argv[3], jobs=2)))
"""


@pytest.mark.night
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_so_does_one_that_is_ended_from_outside(number: signal.Signals, tmp_path: Path, own_tmp: Path) -> None:
    """With two endless checks, each in a sandbox of its own; SIGKILL is meant for the process that was started."""
    proc()
    course = write_course(tmp_path)
    submission = write_submission(tmp_path, numbers=ENDLESS + NUMBERS, sums=ENDLESS + SUMS)
    command = [sys.executable, "-c", GRADE, str(course), str(submission), str(tmp_path / "report")]
    front = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert eventually(lambda: len([pid for pid in descendants(front.pid) if cpu_seconds(pid) > 1.5]) == 2)
    running = descendants(front.pid)
    front.send_signal(number)
    said = "".join(front.communicate(timeout=60))
    assert front.returncode == (2 if number == signal.SIGINT else -signal.SIGKILL), said
    assert "Traceback" not in said
    assert eventually(lambda: not any(map(is_there, running)))


def test_a_check_that_is_at_fault_itself_is_a_persons_to_judge_and_the_others_go_on(tmp_path: Path) -> None:
    course = write_course(tmp_path, ("further/sums/checks.py", "sum(values), what", "sum(None), what"))
    grade = run(order(course, write_submission(tmp_path), jobs=2))
    assert outcomes(grade) == {**dict.fromkeys(CHECKS, "passed"), "further.sums.total": "needs_review"}
    check = grade.labs[1].criteria[0].checks[0]
    assert check.message.startswith("the check itself failed at further/sums/checks.py:11: TypeError: ")
    assert check.hint.startswith("a mistake of the course, not of the submission: fix it if the course is yours")


def test_one_sandbox_serves_one_submission_after_the_other(tmp_path: Path) -> None:
    course = write_course(tmp_path)
    right, wrong = write_submission(tmp_path / "a"), write_submission(tmp_path / "b", numbers=WRONG)
    request = order(course, right)
    with Sandbox(right, request.course.environment) as sandbox:
        scores = [run(replace(request, submission=folder), sandbox=sandbox).score for folder in (right, wrong, right)]
    assert scores == [10, 7.5, 10]


def test_a_few_checks_are_asked_after_what_they_build_on(tmp_path: Path) -> None:
    watcher = Told()
    request = order(write_course(tmp_path), write_submission(tmp_path), only=frozenset({"basics.numbers.power"}))
    grade = run(request, watcher)
    assert watcher.started == ["basics.numbers.product", "basics.numbers.power"]
    assert outcomes(grade)["basics.numbers.power"] == "passed"
    assert outcomes(grade)["further.sums.total"] == Outcome.NEEDS_REVIEW


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            ("basics/numbers/checks.py", "def test_power", "def test_root"),
            "basics/numbers/criterion.toml:8: basics.numbers.power has points, but {}/basics/numbers/checks.py has",
        ),
        (
            ("basics/numbers/criterion.toml", "[checks.power]", "[checks.root]"),
            "criterion.toml:8: basics.numbers.root has points, but {}/basics/numbers/checks.py has no such check",
        ),
        (
            (
                "basics/numbers/checks.py",
                "    @requires",
                "    def test_root(self, submission):\n        pass\n\n    @requires",
            ),
            "basics/numbers/checks.py:13: {}/basics/numbers/criterion.toml gives basics.numbers.root no points",
        ),
        (
            ("basics/notes/checks.py", '"basics.notes"', '"further.files"'),
            "further.files.noted belongs to another criterion's folder",
        ),
        (
            ("basics/numbers/checks.py", '@requires("product")', '@requires("produce")'),
            "requires basics.numbers.produce, which no rubric has; did you mean basics.numbers.product?",
        ),
        (
            ("basics/notes/checks.py", '@criterion("basics.notes")', '@criterion("basics.numbers")'),
            "basics/notes/checks.py:6: basics.numbers.noted belongs to another criterion's folder",
        ),
        (
            ("basics/numbers/checks.py", '@criterion("basics.numbers")', f"{TWICE}@criterion('basics.numbers')"),
            "basics.numbers.power is already written at ",
        ),
        (
            ("basics/notes/checks.py", "def test_noted(self, submission)", "def test_noted(self, rng)"),
            "basics/notes/checks.py:6: a check may take submission, generator, without, not rng",
        ),
        (
            ("basics/notes/checks.py", "def test_noted(self, submission):", "def test_noted(self, submission):("),
            "basics/notes/checks.py:6: the checks do not load: ",
        ),
        (
            ("basics/numbers/criterion.toml", PRODUCT + POWER, f"{POWER}\n{PRODUCT}"),
            "basics.numbers.power requires basics.numbers.product, which does not come before it in the rubric",
        ),
    ],
    ids=[
        "not written",
        "called otherwise",
        "not paid",
        "of another lab",
        "requires what is not there",
        "wrong criterion",
        "written twice",
        "takes what is not given",
        "no syntax",
        "requires a later one",
    ],
)
def test_checks_and_rubric_that_disagree_are_refused_in_one_line(
    change: tuple[str, str, str], said: str, tmp_path: Path
) -> None:
    course = write_course(tmp_path, change)
    with pytest.raises(GradingError) as refused:
        run(order(course, write_submission(tmp_path)))
    assert said.format(course.name) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_titles_stand_beside_points(tmp_path: Path) -> None:
    grading = Grading(order(write_course(tmp_path), write_submission(tmp_path)))
    assert [check.title for check in grading.plan][:3] == [
        "Multiply two numbers",
        "Raise a number to a power",
        "Leave a note by looking at the stack",
    ]


def test_a_grade_is_the_same_when_it_is_read_again(tmp_path: Path) -> None:
    grade = run(order(write_course(tmp_path), write_submission(tmp_path)))
    assert json.loads(json.dumps(to_document(grade))) == to_document(grade)


@pytest.mark.parametrize("answered", [False, True])
def test_only_a_check_without_an_answer_blocks_those_that_build_on_it(answered: bool) -> None:
    runner = object.__new__(CheckRunner)
    runner._reports = {"a.b.base": CheckReport(Outcome.FAILED, "wrong", answered=answered)}
    runner._titles = {"a.b.base": "base"}
    check = CheckFunction("a.b.other", ("a.b.base",), object, "test_other", ())
    if answered:
        runner._stop_if_blocked(check)
    else:
        with pytest.raises(Blocked, match="blocked by 'base'"):
            runner._stop_if_blocked(check)


COIN = "import os\n\nCOIN = os.urandom(1)\n\n"
FAILED = CheckReport(Outcome.FAILED, "saw 4, expected 6", answered=True)
OTHER = CheckReport(Outcome.FAILED, "saw 5, expected 6", answered=True)
CRASH = CheckReport(Outcome.FAILED, "crash", answered=False)
PASSED = CheckReport(Outcome.PASSED)


@pytest.mark.parametrize(
    ("code", "further", "runs", "said"),
    [
        (COIN, [PASSED], 2, "Run again with the same inputs, it passed; so your code behaves"),
        (COIN, [FAILED] * 4 + [PASSED], 6, "Run again with the same inputs, it passed; so your code behaves"),
        (COIN, [CRASH], 2, "the result was another one: crash; so your code"),
        (COIN, [OTHER] * 20, 9, ""),
        ("", [PASSED], 1, ""),
    ],
)
def test_code_that_draws_at_import_is_run_again_where_it_failed(
    code: str, further: list[CheckReport], runs: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    product, judge = "basics.numbers.product", CheckRunner._judge
    reports, asked = [FAILED, *further], list[str]()

    def judged(runner: CheckRunner, check: CheckFunction, box: Sandbox, *without: frozenset[str]) -> CheckReport | None:
        report = judge(runner, check, box, *without)
        if check.id != product:
            return report
        asked.append(check.id)
        return reports[len(asked) - 1]

    monkeypatch.setattr(CheckRunner, "_judge", judged)
    grade = run(order(write_course(tmp_path), write_submission(tmp_path, numbers=code + NUMBERS)))
    assert outcomes(grade) == {**dict.fromkeys(CHECKS, "passed"), product: "failed"}
    check = grade.labs[0].criteria[0].checks[0]
    assert check.message.startswith("saw 4, expected 6")
    assert (said in check.message) if said else check.message == "saw 4, expected 6"
    assert len(asked) == runs
    if said:
        assert "numbers.py:3 draws at random, or looks at the clock, while the module is imported" in check.hint


def test_checks_of_one_lab_share_the_further_runs_of_a_draw() -> None:
    draw = chance.Draw("numbers.py:3")
    assert [len(list(draw.runs())) for _ in range(3)] == [8, 1, 1]


def test_a_coin_is_recognised_if_it_loses_and_noted_in_any_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real coin: each run of a check imports the module again, so that it falls again."""
    monkeypatch.setattr(chance, "Draw", functools.partial(chance.Draw, runs_left=40))  # by eight the test could fail
    coin = NUMBERS.replace("left * right", "left * right + (left > 1) * RIGHT") + "\nRIGHT = 1 if FALLS else 0\n"
    code = f"import os\n\nFALLS = os.urandom(1)[0] & 1\n{coin}"
    grade = run(order(write_course(tmp_path), write_submission(tmp_path, numbers=code)))
    product = grade.labs[0].criteria[0].checks[0]
    failed = product.outcome is Outcome.FAILED
    assert ("your code behaves differently from run to run" in product.message) == failed
    assert "chance" in [note.kind for note in grade.integrity]


CONTROLLED = """\
    @builds_on("product")
    def test_power(self, submission, generator, without):
        base = 1 if "product" in without else generator.integer(2, 9)
        seen = submission.probe("basics.numbers.power", base=base, exponent=3)
        require_equal(seen.result, base**3, what="power()")
"""


@pytest.mark.parametrize(
    ("power", "follows"),
    [
        ("product(base, product(base, base))", "basics.numbers.product"),  # right except for product()
        ("base * exponent", ""),  # 3 of 1, without product() as well: a mistake of its own
    ],
)
def test_a_check_that_passes_without_what_another_one_is_about_follows_from_it(
    power: str, follows: str, tmp_path: Path
) -> None:
    file = "basics/numbers/checks.py"
    text = small_course.NUMBERS_CHECKS
    change = (file, text[text.index("    @requires") :], CONTROLLED)
    imported = (file, "import criterion, requires", "import builds_on, criterion")
    wrong = NUMBERS.replace("left * right", "left * right + (left > 1)").replace("base**exponent", power)
    course = write_course(tmp_path, change, imported)
    grade = run(order(course, write_submission(tmp_path, numbers=wrong)))
    first, second = grade.labs[0].criteria[0].checks[:2]
    assert (first.outcome, second.outcome) == (Outcome.FAILED, Outcome.FAILED)
    assert (second.follows_from, second.built_on) == (follows, follows)
    crashing = run(order(course, write_submission(tmp_path / "crashing", numbers=CRASHING)))
    assert outcomes(crashing)["basics.numbers.power"] == "passed"  # it is run in any case
