"""Call functions on several ranks from a notebook, whose own process cannot be copied: it has threads and a GPU.

A helper process has imported PyTorch once and copies itself for every job, so that a job takes well under a second.
Each job imports the labs again and so sees every edit. Not for what a lab program does by itself: see `ranks.py` of
Lab 3. Needs `os.fork`: Linux or macOS.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit import LabError

_helper: list[subprocess.Popen[str]] = []


class RankError(LabError):
    """A rank failed, or the job took too long."""

    def __init__(self, message: str, student_frames: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.student_frames = tuple(student_frames)
        """Where in the student's files it was, and the message: what `labkit.notebook.errors` shows."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the helper process is to do."""

    module: str
    function: str
    world_size: int
    alone: bool
    """Whether it is called once, in one process that may start ranks by itself."""
    machine: str
    values: bool
    limit_seconds: float
    arguments: dict[str, Any]
    search_path: tuple[str, ...]
    folder: str


@dataclass(frozen=True, kw_only=True)
class Failure:
    """How a job ended that did not return anything."""

    kind: str
    """Name of the exception."""
    message: str
    frames: tuple[str, ...]
    """Where it was, innermost last: those in the labs if there are any, else the last few."""


def run(
    function: Callable[..., Any],
    world_size: int,
    /,
    *,
    machine: str = "",
    values: bool = True,
    limit_seconds: float = 60.0,
    **arguments: Any,
) -> list[Any]:
    """Call `function(rank, world_size, init_method, **arguments)` in `world_size` processes.

    Args:
        function: of a module's top level: it travels by its name.
        world_size: number of ranks.
        machine: as `labkit.device.open_device` has it: "cpu", "vgpu:T4", ...; "": as GPULABS_DEVICE says, else "auto".
        values: whether virtual GPUs compute numbers, or shapes only.
        limit_seconds: after this time the ranks are ended.
        arguments: anything that can be pickled.

    Returns:
        What the ranks returned, in their order. What they printed is printed.

    Raises:
        NotImplementedError: a rank came to a task that is still open.
        RankError: a rank failed, or there was no answer in time.
    """
    answer: list[Any] = _ask(function, world_size, False, machine, values, limit_seconds, arguments)
    return answer


def call(
    function: Callable[..., Any],
    /,
    *,
    gpus: int,
    machine: str = "",
    values: bool = True,
    limit_seconds: float = 60.0,
    **arguments: Any,
) -> Any:
    """Call `function(**arguments)` once, in a process with `gpus` GPUs, which may start ranks by itself; see `run`."""
    return _ask(function, gpus, True, machine, values, limit_seconds, arguments)


def _ask(
    function: Callable[..., Any],
    world_size: int,
    alone: bool,
    machine: str,
    values: bool,
    limit_seconds: float,
    arguments: dict[str, Any],
) -> Any:
    if function.__module__ == "__main__":
        raise RankError(f"{function.__name__} is defined in the notebook: export its cell, for ranks import it by name")
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        job = Job(
            module=function.__module__,
            function=function.__qualname__,
            world_size=world_size,
            alone=alone,
            machine=machine or os.environ.get("GPULABS_DEVICE", "auto"),
            values=values,
            limit_seconds=limit_seconds,
            arguments=arguments,
            search_path=tuple(sys.path),
            folder=folder,
        )
        Path(folder, "job").write_bytes(pickle.dumps(job))
        _send(folder)
        print(Path(folder, "output").read_text(encoding="utf-8", errors="replace"), end="")
        # Our own processes wrote it, in a folder nobody else can write to: safe to unpickle.
        answer = pickle.loads(Path(folder, "answer").read_bytes())
    if isinstance(answer, Failure):
        if answer.kind == "NotImplementedError":
            raise NotImplementedError(answer.message)
        message = f"{answer.kind} on a rank: {answer.message}"
        raise RankError(message, (*answer.frames, message))
    return answer


def _send(folder: str) -> None:
    """Let the helper do the job in this folder; returns when it is done."""
    if not _helper or _helper[0].poll() is not None:
        _helper[:] = [_start()]
    helper = _helper[0]
    if helper.stdin is None or helper.stdout is None:
        raise RankError("the helper process has no pipes")
    try:
        helper.stdin.write(folder + "\n")
        helper.stdin.flush()
        answer = helper.stdout.readline().strip()
    except BaseException:  # an interrupt: the job must not go on, nor its answer be taken for that of the next one
        helper.terminate()
        _helper.clear()
        raise
    if answer != "done":
        raise RankError("the helper process that starts ranks has ended: run the cell once more")


def _start() -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-m", "labkit.notebook.ranks_helper"]
    helper = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,  # an interrupt of the notebook is told to it by `_send`
    )
    atexit.register(_end, helper)
    return helper


def _end(helper: subprocess.Popen[str]) -> None:
    with contextlib.suppress(OSError):
        if helper.stdin is not None:
            helper.stdin.close()  # it ends when there is nothing more to read
    helper.wait()
