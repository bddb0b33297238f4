"""The process that is begun before it is known what for: one, taken over by the first sandbox, gone with its judge."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradebox.common import prefork
from gradebox.sandbox import Request, Sandbox, starting
from tests.proc import proc


@pytest.fixture(autouse=True)
def nothing_waits() -> Iterator[None]:
    assert not prefork._waiting
    yield
    while prefork._waiting:
        _end(prefork._waiting.pop())


def _end(begun: prefork.Begun) -> int:
    begun.control.close()
    return begun.process.wait(20)


def test_the_module_needs_nothing_but_the_standard_library() -> None:
    program = (
        "import sys; import gradebox.common.prefork; print(sorted({'numpy', 'gradebox.sandbox'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"


def test_one_is_begun_and_taken() -> None:
    prefork.begin()
    prefork.begin()
    (waiting,) = prefork._waiting
    taken = prefork.take()
    assert taken is waiting
    assert not prefork._waiting
    assert _end(taken) == 0


def test_one_that_nobody_wants_ends_with_its_judge() -> None:
    begin = "from gradebox.common import prefork; prefork.begin(); print(prefork._waiting[0].process.pid, flush=True)"
    pid = int(subprocess.check_output([sys.executable, "-c", begin], text=True))
    deadline = time.monotonic() + 20
    while _runs(pid):
        assert time.monotonic() < deadline, "it has outlived its judge"
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        return (proc() / str(pid) / "stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def test_one_that_has_ended_is_not_taken() -> None:
    prefork.begin()
    ended = prefork._waiting[0]
    ended.process.kill()
    ended.process.wait(20)
    taken = prefork.take()
    assert taken.process.pid != ended.process.pid
    assert _end(taken) == 0


def test_one_of_another_environment_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    prefork.begin()
    before = prefork._waiting[0]
    monkeypatch.setenv("MPLCONFIGDIR", "/elsewhere")
    taken = prefork.take()
    assert taken.environment["MPLCONFIGDIR"] == "/elsewhere"
    assert before.process.returncode is not None
    assert _end(taken) == 0


def test_it_inherits_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANVAS_TOKEN", "secret")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    assert not {"CANVAS_TOKEN", "PYTHONPATH"} & set(prefork.variables())


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="no /proc here")
def test_a_sandbox_takes_it_over(tmp_path: Path) -> None:
    (tmp_path / "lab1").mkdir()
    prefork.begin()
    pid = prefork._waiting[0].process.pid
    with Sandbox(tmp_path, preload=["colorsys"]) as sandbox:  # which no other test imports
        assert not prefork._waiting
        request = Request("gradebox.run.device_trial", params={"left": [[2.0]], "right": [[3.0]]}, student=False)
        assert sandbox.run(request).kind == "ok"
        assert pid in [server._process.pid for server in starting._running.values()]


def test_what_it_says_before_it_serves_is_in_the_log(tmp_path: Path) -> None:
    prefork.begin()
    begun = prefork.take()
    log = tmp_path / "log"
    with log.open("wb") as file:
        socket.send_fds(begun.control, [b"l"], [file.fileno()])
    begun.control.sendall(b"\xff" * 64)  # no order
    assert begun.process.wait(20) != 0
    assert "TooLarge" in log.read_text()
    begun.control.close()


def test_an_import_that_fails_before_there_is_a_log_is_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "numpy.py").write_text("raise ImportError('this NumPy is broken')\n")
    find = prefork.folder_of
    monkeypatch.setattr(prefork, "folder_of", lambda name: str(tmp_path) if name == "numpy" else find(name))
    begun = prefork.take()
    time.sleep(0.5)  # it has met the error, and waits to say it
    log = tmp_path / "log"
    with log.open("wb") as file:
        socket.send_fds(begun.control, [b"l"], [file.fileno()])
    assert begun.process.wait(20) == 1
    assert "this NumPy is broken" in log.read_text()
    begun.control.close()
