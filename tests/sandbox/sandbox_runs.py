"""What the sandbox's tests share: where the fake submission lies, and a judge in another process.

The fake submission (`fake_submission/`) uses the hand-out's folder name and has no `__init__.py`; `probes/drive.py`
calls its functions.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import grader
from gradebox.sandbox import Limits, Note, RankReply, Reply, Request, Sandbox, SandboxError, device_process
from tests.proc import proc
from tests.sandbox.as_user import become_nobody

HERE = Path(__file__).parent
SUBMISSION = HERE / "fake_submission"
PROBES = HERE / "probes"
sys.path.append(str(HERE / "libraries"))  # a sandbox looks there for what it preloads
ENVIRONMENT = grader.course().environment
"""Of this course: its devices are what the tests watch."""
PRELOAD = ("numpy", "torch", "torch.distributed", "safetensors.numpy", "fork_guards")
LIMITS = Limits(wall_seconds=30.0, memory_bytes=2**30, tmp_bytes=64 * 2**20, processes=64)


class Runner(Protocol):
    """A sandbox, here or in another process."""

    def run(self, request: Request) -> Reply: ...


class UserSandbox:
    """A sandbox whose judge is an ordinary user: a helper process that takes requests as lines of JSON."""

    def __init__(self) -> None:
        self._helper = subprocess.Popen(
            [sys.executable, str(HERE / "as_user.py"), str(SUBMISSION), str(PROBES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=become_nobody,
            cwd="/",
            env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", "LANG": "C.UTF-8"},
        )
        self.isolation = self._read()

    def run(self, request: Request) -> Reply:
        assert self._helper.stdin is not None
        self._helper.stdin.write(json.dumps(asdict(request)) + "\n")
        self._helper.stdin.flush()
        fields = self._read()
        ranks = tuple(RankReply(**rank) for rank in fields.pop("ranks"))
        notes = tuple(Note(**note) for note in fields.pop("notes"))
        return Reply(ranks=ranks, notes=notes, **fields)

    def _read(self) -> dict[str, Any]:
        assert self._helper.stdout is not None
        answer: dict[str, Any] = json.loads(self._helper.stdout.readline() or '{"error": "the helper process ended"}')
        if "error" in answer:
            raise SandboxError(answer["error"])
        return answer

    def close(self) -> None:
        assert self._helper.stdin is not None
        # Said, because a process that was forked meanwhile may hold the other end of the pipe, too.
        self._helper.stdin.write("\n")
        self._helper.stdin.close()
        self._helper.wait(20)


def call(runner: Runner, module: str, function: str, *, limits: Limits | None = None, **arguments: Any) -> Reply:
    """Run `labs.lab1_gpu_basics.MODULE.FUNCTION(**arguments)` of the fake submission."""
    params = {"module": module, "function": function, **arguments}
    return runner.run(Request("drive.call", params=params, limits=limits))


def place(module: str, text: str, function: str) -> str:
    """Where `text` stands in a module of the fake submission, in the form of `RankReply.where`."""
    lines = (SUBMISSION / "lab1-gpu-basics" / f"{module}.py").read_text().splitlines()
    (number,) = (number for number, line in enumerate(lines, 1) if text in line)
    return f"{module}.py:{number} in {function}"


def children_of(pid: int) -> set[int]:
    """Processes below `pid`, by the machine's own numbers."""
    parents: dict[int, int] = {}
    for path in proc().glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    below: set[int] = set()
    while more := {child for child, parent in parents.items() if parent in below | {pid}} - below:
        below |= more
    return below


def templates_of(sandbox: Sandbox) -> set[int]:
    """The templates of a sandbox between two requests, when nothing is below them."""
    assert sandbox._server is not None
    below = children_of(sandbox._server.pid)
    devices = devices_of(sandbox)
    return {pid for pid in below - devices if children_of(pid) <= devices}


def devices_of(sandbox: Sandbox) -> set[int]:
    """The processes of simulated devices, one below each template that has had to do with one."""
    assert sandbox._server is not None
    return {pid for pid in children_of(sandbox._server.pid) if _name_of(pid) == device_process.NAME}


def _name_of(pid: int) -> str:
    try:
        return (proc() / str(pid) / "comm").read_text().strip()
    except OSError:
        return ""


def server_of(sandbox: Sandbox) -> int:
    """The server of a sandbox that has answered: the innermost process that has templates."""
    assert sandbox._server is not None
    devices = devices_of(sandbox)
    below = {pid: len(children_of(pid) - devices) for pid in children_of(sandbox._server.pid) - devices}
    return min((pid for pid, number in below.items() if number), key=lambda pid: below[pid])


def command_of(pid: int) -> str:
    """What a process was started as, for a message."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ") or Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return f"process {pid}, which has ended"


def is_alive(pid: int) -> bool:
    try:
        return (proc() / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
