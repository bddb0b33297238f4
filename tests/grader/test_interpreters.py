"""Interpreters that have imported already behave as new ones do: they know of their parent what they are told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, multiprocessing, os, pathlib, signal, subprocess, sys, tempfile, time
import torch
from grader.shared.probes import interpreters

HERE = pathlib.Path(__file__).parent


def answer(pipe, what):
    import worker
    print("printed by a child", flush=True)
    told = [what, worker.loaded_late(), os.environ.get("TOLD"), os.getcwd() == str(HERE / "elsewhere")]
    pipe.send([*told, os.getppid(), torch.initial_seed(), torch.get_num_threads()])


def fail():
    raise ValueError("on purpose")


def main():
    context = multiprocessing.get_context("spawn")
    torch.manual_seed(3)
    seen = {}
    with tempfile.TemporaryDirectory() as folder, interpreters.spawning(3):
        import late
        late.LOADED = True
        os.environ["TOLD"] = "before it was started"
        (HERE / "elsewhere").mkdir()
        os.chdir(HERE / "elsewhere")
        answers = []
        for number in range(4):  # one more than there are: a new one
            here, there = context.Pipe()
            child = context.Process(target=answer, args=(there, number))
            begun = time.process_time()
            child.start()
            answers.append(here.recv())
            child.join()
            assert child.exitcode == 0
        seen["answers"] = answers
        seen["folder_is_kept"] = os.path.isdir(folder)
    os.chdir(HERE)
    with interpreters.spawning(2):
        failing = context.Process(target=fail)
        failing.start()
        failing.join()
        seen["failed"] = failing.exitcode
    with interpreters.Interpreters(2) as warm, open("log", "w") as log:
        start = interpreters.popen(warm)
        environment = {**os.environ, "TOLD": "by torchrun", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-u", "-m", "worker", "some", "words"]
        first = start(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        seen["exit"] = first.wait(60)
        endless = start([sys.executable, "-c", "import time; time.sleep(600)"], env=environment, stdout=log, stderr=log)
        seen["still"] = endless.poll()
        endless.send_signal(signal.SIGTERM)
        seen["ended"] = endless.wait(60)
        other = start(["true"], env=environment, stdout=log, stderr=log)
        seen["other"] = [isinstance(other, subprocess.Popen), other.wait(60)]
    seen["log"] = pathlib.Path("log").read_text()
    seen["own"] = os.getpid()
    multiprocessing.resource_tracker._resource_tracker._stop()  # Python's own helper
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        seen["nobody_is_left"] = True
    pathlib.Path("seen.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
"""
WORKER = """
import json, os, sys


def loaded_late():
    late = sys.modules.get("late")
    return late is not None


if __name__ == "__main__":
    print(json.dumps([sys.argv[1:], os.environ["TOLD"], os.getsid(0) == os.getpid()]))
    sys.exit(7)
"""


@pytest.mark.night
def test_they_know_what_they_are_told_and_nothing_that_came_after_them(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "worker.py").write_text(WORKER)
    (tmp_path / "late.py").touch()
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{ROOT}:{tmp_path}", "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "seen.json").read_text())
    usual = [False, "before it was started", True, report["own"], 1]
    seeds = {each.pop(-2) for each in report["answers"]}
    assert len({*seeds, 3}) == 5  # that of the parent is 3
    assert report["answers"] == [[number, *usual] for number in range(4)]
    assert done.stdout.splitlines() == ["printed by a child"] * 4
    assert report["folder_is_kept"]
    assert report["failed"] == 1
    assert "ValueError: on purpose" in done.stderr
    assert report["exit"] == 7
    assert json.loads(report["log"].splitlines()[0]) == [["some", "words"], "by torchrun", True]
    assert (report["still"], report["ended"]) == (None, -15)
    assert report["other"] == [True, 0]
    assert report["nobody_is_left"]
