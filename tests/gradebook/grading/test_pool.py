"""The local engine: processes that grade, die, break, hang, and are replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gradebook.cli import classroom
from gradebook.grading.engine import EngineError, Judge
from gradebook.grading.pool import Pool
from gradebook.grading.processes import local_pool
from tests.gradebook.conftest import SmallClass
from tests.gradebook.fakes import FakeJudge


def pool(jobs: int, room: Path, device: str) -> Pool:
    return local_pool(jobs, room, FakeJudge)


def no_judge(room: Path) -> Judge:
    raise OSError("there is no more memory")


def test_several_processes_grade_a_class_as_one_does(small_class: SmallClass) -> None:
    for number in range(5):
        small_class.hands_in(f"student {number}")
    alone = [student.score for student in small_class.grade().students]
    together = small_class.grade(pool, jobs=2, out=small_class.out.with_name("other"))
    assert [student.score for student in together.students] == alone


def test_what_checks_print_is_not_among_the_lines_of_the_class(
    small_class: SmallClass, capfd: pytest.CaptureFixture[str]
) -> None:
    small_class.hands_in("ada", behaviour="prints")
    (ada,) = small_class.grade(pool).students
    assert ada.status == "graded"
    assert "SECRET" not in "".join(capfd.readouterr())


def test_a_process_that_dies_is_replaced_and_its_submission_graded_once_more(small_class: SmallClass) -> None:
    small_class.hands_in("ada", behaviour="dies once")
    small_class.hands_in("bob")
    result = small_class.grade(pool)
    assert [student.status for student in result.students] == ["graded", "graded"]
    assert sorted(line.partition(":")[0] for line in small_class.graded) == ["ada", "ada", "bob"]


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("dies", "its grading process ended with SIGKILL, and so it did the time before"),
        ("breaks", "its grading broke: RuntimeError: the disk is full"),
    ],
)
def test_who_cannot_be_graded_twice_over_gets_no_grade_and_a_reason(
    small_class: SmallClass, behaviour: str, reason: str
) -> None:
    small_class.hands_in("ada", behaviour=behaviour)
    small_class.hands_in("bob")
    ada, bob = small_class.grade(pool).students
    assert (ada.status, ada.score, ada.grade) == ("could_not_grade", None, None)
    assert ada.reason.startswith(reason)
    assert bob.status == "graded"
    assert small_class.grade(pool).students[0].status == "could_not_grade"
    assert len(small_class.graded) == 3  # twice, and bob; a later run does not try it again by itself


def test_a_submission_that_takes_too_long_is_given_up(small_class: SmallClass, tmp_path: Path) -> None:
    small_class.hands_in("ada", behaviour="hangs")
    (tmp_path / "class.toml").write_text("[limits]\nminutes_per_submission = 0.02\n")
    (ada,) = small_class.grade(pool, configuration=tmp_path / "class.toml").students
    assert ada.reason.startswith("it took longer than 0.02 minutes")


def test_a_judge_that_cannot_start_is_one_line(small_class: SmallClass) -> None:
    small_class.hands_in("ada")
    with pytest.raises(EngineError, match="no grading process can be started here: OSError: there is no more memory"):
        small_class.grade(lambda jobs, room, device: local_pool(jobs, room, no_judge))


@pytest.mark.night
@pytest.mark.skipif(sys.platform != "linux", reason="a process dies with its parent on Linux only")
def test_grading_processes_end_with_the_run_that_was_killed(small_class: SmallClass) -> None:
    small_class.hands_in("ada", behaviour="hangs")
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from rich.console import Console\n"
        "import grader\n"
        "from gradebook.grade_class import grade_class\n"
        "from gradebook.grading.description import ClassRequest\n"
        "from tests.gradebook.grading.test_pool import pool\n"
        "if __name__ == '__main__':\n"
        "    asked = {'submissions': Path(sys.argv[1]), 'out': Path(sys.argv[2]), 'labs': (1,), 'device': 'vgpu'}\n"
        "    request = ClassRequest(course=grader.course(), **asked)\n"
        "    grade_class(request, pool, Console(quiet=True))\n"
    )
    command = [sys.executable, "-c", program, str(small_class.submissions), str(small_class.out)]
    with subprocess.Popen(command, start_new_session=True) as run:
        until(lambda: bool(small_class.graded))
        run.kill()
    until(lambda: not session(run.pid))


PROGRAM = """\
from gradebook.cli import classroom
from grader.cli import app
from tests.gradebook.grading.test_pool import pool

if __name__ == "__main__":
    classroom._local_engine = lambda: pool
    app()
"""


@pytest.mark.parametrize(
    "sent",
    [pytest.param(signal.SIGINT, id="Ctrl-C"), pytest.param(signal.SIGTERM, id="SIGTERM", marks=pytest.mark.night)],
)
def test_a_run_that_is_interrupted_says_how_to_go_on_and_leaves_nothing_behind(
    small_class: SmallClass, sent: signal.Signals
) -> None:
    small_class.hands_in("ada", behaviour="hangs")
    command = [sys.executable, "-c", PROGRAM, "class", str(small_class.submissions), "--out", str(small_class.out)]
    command += ["--lab=1", "--regrade", "ada"]
    with subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True) as run:
        until(lambda: bool(small_class.graded))
        os.killpg(run.pid, sent)  # as a terminal does it: to all processes of the run
        _, said = run.communicate(timeout=60)
    assert run.returncode == 130
    assert said.splitlines()[-1] == (
        f"stopped; what was graded is kept in {small_class.out}. Go on with: "
        f"gpulabs class {small_class.submissions} --out {small_class.out} --lab=1"
    )
    until(lambda: not session(run.pid))  # Python's own helper for shared memory ends a moment later
    assert not (small_class.out / ".work").exists()


def test_the_command_that_goes_on_names_the_course_once() -> None:
    typed = ["--course", "my", "class", "those", "--regrade", "ada", "--out", "it"]
    assert classroom._going_on(typed, "class") == ["class", "those", "--out", "it"]
    assert classroom._going_on(["those", "--regrade=ada"], "class") == ["those"]


def until(condition: object, seconds: float = 60.0) -> None:
    """Wait for something that other processes do."""
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def session(leader: int) -> list[int]:
    """The living processes of a session."""
    processes = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader and fields[0] != "Z":
            processes.append(int(name))
    return processes
