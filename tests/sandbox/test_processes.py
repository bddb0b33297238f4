"""A run's processes are found and ended where there is no `/proc`, and where Python has no `waitid` (macOS)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gradebox.sandbox import processes

ELSEWHERE = """
import os, signal, sys, time
from gradebox.sandbox import processes
processes._HAS_PROC = False
del os.waitid
"""
TREE = """
def busy():
    while True:
        pass

def child():
    os.setpgid(0, 0)  # a group of its own, which no signal to ours reaches
    if os.fork() == 0:
        busy()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)

if os.fork() == 0:
    child()
deadline = time.monotonic() + 60
while len(below := processes.descendants(os.getpid())) < 2 or processes.usage(below, held).cpu_seconds < 0.5:
    assert time.monotonic() < deadline, below
    time.sleep(0.05)
"""


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE + program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.night
def test_without_proc_a_tree_is_seen_with_its_time_and_ended() -> None:
    output = run(
        "held = processes.inherited()\n" + TREE + "below = processes.descendants(os.getpid())\n"
        "print(len(below), processes.have_children())\n"
        "processes.kill_descendants()\n"
        "while processes.have_children(): time.sleep(0.01)\n"
        "print(processes.descendants(os.getpid()), processes.have_children())\n"
    )
    assert output == "2 True\n[] False\n"


def test_an_orphan_is_found_by_the_group_that_its_parent_led() -> None:
    output = run(
        "inside, outside = os.pipe()\n"
        "leader = os.fork()\n"
        "if leader == 0:\n"
        "    os.setpgid(0, 0)\n"
        "    if os.fork() == 0: time.sleep(600)\n"
        "    os._exit(0)\n"
        "os.close(outside)\n"
        "os.waitpid(leader, 0)\n"
        "print(processes.have_children())\n"
        "processes.kill_groups([leader, leader])\n"
        "print(os.read(inside, 1))\n"  # only at the orphan's end does nobody hold the other end
    )
    assert output == "False\nb''\n"


def test_without_waitid_a_child_is_collected_once() -> None:
    output = run(
        "pid = os.fork()\n"
        "if pid == 0: time.sleep(600)\n"
        "print(processes.collected(pid))\n"
        "os.kill(pid, signal.SIGKILL)\n"
        "while (end := processes.collected(pid)) is None: time.sleep(0.01)\n"
        "print(end, processes.have_children())\n"
    )
    assert output == "None\nTrue False\n"


def test_with_waitid_a_child_that_has_ended_is_left_to_be_collected() -> None:
    if not hasattr(os, "waitid"):
        pytest.skip("this Python has no waitid")
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    assert processes.collected(child.pid) is None
    child.kill()
    while processes.collected(child.pid) is None:
        pass
    assert child.wait() == -9


def test_a_list_serves_those_who_look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_HAS_PROC", False)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        assert child.pid in processes.descendants(os.getpid())
        later = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        try:
            assert later.pid not in processes.descendants(os.getpid(), older=60.0)
            assert later.pid in processes.descendants(os.getpid())
        finally:
            later.kill()
            later.wait()
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize(
    ("used", "seconds"), [("0:00.00", 0.0), ("2:03.45", 123.45), ("00:01:02", 62.0), ("1-02:03:04", 93784.0)]
)
def test_time_is_read_as_linux_and_macos_write_it(used: str, seconds: float) -> None:
    fields = processes._as_stat("Ss+", "1", "7", used)
    assert fields[:3] == ["S", "1", "7"]
    assert int(fields[processes._TICKS]) == round(seconds * processes._TICKS_PER_SECOND)
