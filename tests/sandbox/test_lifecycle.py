"""Starting, dying and cleaning up: whatever happens to the judge or the server, nothing stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gradebox.sandbox import Limits, Request, Sandbox, SandboxError
from tests.proc import proc
from tests.sandbox.sandbox_runs import PROBES, SUBMISSION, call, children_of, is_alive, server_of

REPOSITORY = Path(__file__).parents[2]
JUDGE = f"""
import sys
sys.path.append({str(REPOSITORY)!r})
from pathlib import Path
from gradebox.sandbox import Sandbox, Request
submission, probes, isolation = sys.argv[1:]
with Sandbox(Path(submission), preload=("numpy",), probe_paths=[probes], isolation=isolation) as sandbox:
    print(sandbox._home, sandbox.isolation.mode, flush=True)
    print(sandbox.run(Request("drive.call", params=dict(module="endings", function="swallow_everything"))).kind)
"""


def light(isolation: str = "auto") -> Sandbox:
    """A sandbox that starts quickly, because it does not import torch."""
    return Sandbox(SUBMISSION, preload=("numpy",), probe_paths=[PROBES], isolation=isolation)  # type: ignore[arg-type]


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether `condition` became true in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


@pytest.mark.parametrize("isolation", ["auto", "limits"])
def test_closing_leaves_no_process_no_zombie_and_no_file(isolation: str) -> None:
    with light(isolation) as sandbox:
        assert call(sandbox, "honest", "double", x=2).value == {"returned": 4}
        call(sandbox, "endings", "leave_a_daemon", name="gl-left-behind")
        home = Path(str(sandbox._home))
        assert sandbox._server is not None
        below = children_of(sandbox._server.pid) | {sandbox._server.pid}
        assert {path.name for path in home.iterdir()} <= {"server.log", "root", "submission-1", "packages"}
    assert not any(is_alive(pid) for pid in below)
    assert not home.exists()


@pytest.mark.parametrize("isolation", ["auto", "limits"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_judge_that_is_killed_takes_everything_along(isolation: str, number: signal.Signals) -> None:
    proc()
    command = [sys.executable, "-c", JUDGE, str(SUBMISSION), str(PROBES), isolation]
    judge = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert judge.stdout is not None
    home, mode = judge.stdout.readline().split()
    # The guard, in namespaces its init, the server, its template, the supervisor and the worker.
    expected = 6 if mode == "namespaces" else 5
    assert wait_until(lambda: len(children_of(judge.pid)) >= expected)
    below = children_of(judge.pid)
    judge.send_signal(number)
    judge.wait(20)
    judge.stdout.close()
    assert wait_until(lambda: not any(is_alive(pid) for pid in below))
    assert wait_until(lambda: not Path(home).exists())


def test_a_judge_that_ends_while_it_closes_leaves_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    with light() as sandbox:
        assert call(sandbox, "honest", "double", x=2).value == {"returned": 4}
        home = Path(str(sandbox._home))

        class KilledError(Exception):
            """In place of a signal that nothing can handle, at the latest moment."""

        def killed(*_: object, **__: object) -> None:
            raise KilledError

        with monkeypatch.context() as patch:
            patch.setattr("gradebox.sandbox.sandbox.shutil.rmtree", killed)
            with pytest.raises(KilledError):
                sandbox.close()
        assert wait_until(lambda: not home.exists())


def test_an_interrupted_request_ends_its_processes_and_the_next_one_works() -> None:
    with light() as sandbox:
        assert call(sandbox, "honest", "double", x=1).kind == "ok"
        assert sandbox._server is not None
        below = children_of(sandbox._server.pid) | {sandbox._server.pid}
        previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            with pytest.raises(KeyboardInterrupt):
                call(sandbox, "endings", "swallow_everything")
        finally:
            signal.signal(signal.SIGALRM, previous)
        assert not any(is_alive(pid) for pid in below)
        assert call(sandbox, "honest", "double", x=1).kind == "ok"


@pytest.mark.parametrize("isolation", ["auto", "limits"])
def test_a_server_that_dies_is_restarted_once_and_the_reply_says_so(isolation: str) -> None:
    with light(isolation) as sandbox:
        assert call(sandbox, "honest", "double", x=1).notes == ()
        os.kill(server_of(sandbox), signal.SIGKILL)
        reply = call(sandbox, "honest", "double", x=1)
        assert reply.value == {"returned": 2}
        assert [note.kind for note in reply.notes] == ["restart"]
        assert call(sandbox, "honest", "double", x=1).notes == ()


def test_a_folder_that_a_server_has_left_is_in_nobodys_way() -> None:
    with light("limits") as sandbox:
        assert sandbox.isolation.mode == "limits"
        for number in range(1, 4):
            os.mkdir(f"{sandbox._home}/work-{number}")
        assert call(sandbox, "honest", "double", x=1).value == {"returned": 2}


def test_a_server_that_cannot_start_says_why() -> None:
    with (
        Sandbox(SUBMISSION, preload=("a_package_nobody_has",)) as sandbox,
        pytest.raises(SandboxError, match="No module named 'a_package_nobody_has'"),
    ):
        sandbox.run(Request("drive.about"))


def test_an_optional_module_may_be_missing() -> None:
    names = ("numpy", "a_package_nobody_has")
    with Sandbox(SUBMISSION, preload=names, optional=names[1:], probe_paths=[PROBES]) as sandbox:
        assert sandbox.run(Request("drive.about")).kind == "ok"


def test_the_judges_side_imports_no_torch() -> None:
    program = "import sys; sys.path.append(sys.argv[1]); import gradebox.sandbox; print('torch' in sys.modules)"
    command = [sys.executable, "-c", program, str(REPOSITORY)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"


def test_without_namespaces_the_report_says_so_and_why() -> None:
    with light("limits") as sandbox:
        assert sandbox.isolation.mode == "limits"
        assert "process limits only, because process limits were asked for" in sandbox.isolation.lines[0]


def test_a_child_is_told_its_device_and_rank() -> None:
    with light() as sandbox:
        reply = sandbox.run(Request("drive.about", ranks=2))
        expected = {"device": "cpu", "gpu": False, "ranks": 2, "present": True}
        assert [rank.value for rank in reply.ranks] == [expected | {"rank": 0}, expected | {"rank": 1}]


@pytest.mark.parametrize("probe", ["matmul", "lab1.", "lab1.a b", "../lab1.x", ""])
def test_a_probe_name_that_is_none_is_refused(probe: str) -> None:
    with pytest.raises(ValueError, match="must look like"):
        Request(probe)


def test_a_limit_must_be_positive() -> None:
    with pytest.raises(ValueError, match="wall_seconds must be positive"):
        Limits(wall_seconds=0)
