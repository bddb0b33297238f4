"""The peak of memory that an instructor reads counts no page twice."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gradebook.grading.memory import PeakMemory, used_bytes

MEGABYTE = 1_000_000
FORKS = 4
HELD = 200 * MEGABYTE
ORPHANS = f"""
import ctypes, os, sys, time
ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: orphans come to us, as they come to a sandbox's init
if os.fork() == 0:
    held = bytearray(b"x") * {HELD}
    for _ in range({FORKS}):
        if os.fork() == 0:
            time.sleep(600)
    os._exit(0)
os.wait()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").is_file(), reason="Linux alone counts shared pages")
def test_processes_whose_parent_is_gone_share_their_pages() -> None:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", ORPHANS]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            with PeakMemory(process.pid) as peak:
                pass
            assert HELD * 0.9 < peak.bytes < HELD * 1.5
            assert used_bytes(process.pid) > HELD * 0.9 * FORKS  # which is why it is looked at closely
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_process_that_is_not_there_uses_nothing() -> None:
    assert used_bytes(2**22 + 1, closely=True) == 0


def test_looking_takes_a_small_share_of_time_however_much_there_is_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []

    def look(self: PeakMemory) -> None:
        begun = time.thread_time()
        while time.thread_time() - begun < 0.1:
            pass
        looks.append(begun)

    monkeypatch.setattr(PeakMemory, "_look", look)
    with PeakMemory():
        time.sleep(1.5)
    assert len(looks) <= 2, "one at the beginning, one after a quarter of a second, the next after two more"
