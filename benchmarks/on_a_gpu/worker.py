"""The process that carries jobs out, one after the other, as its parent names them.

    python -m benchmarks.on_a_gpu.worker DESCRIPTOR FOLDER MODULE_OF_JOBS [PROGRAM_PATH]

It is a process of its own because a job may hang or crash: then the parent ends it, with all that it has started, and
starts another one. It keeps the sandboxes from job to job, because they take seconds to start. Reads one JSON object
from each line of standard input and writes one to DESCRIPTOR. If its parent is killed, it ends as well. Not here: which
job comes next (`schedule`).
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import grader
from benchmarks.on_a_gpu.gradings import Gradings
from benchmarks.on_a_gpu.job import ROOT, Finding, Job
from gradebox.sandbox import devices

_KEPT_CHARACTERS = 2000
"""Of what a command printed, next to a result: its end."""


class CommandFailed(Exception):
    """A command of a job ended with an exit code that it should not have."""


class Tools:
    """What a job works with."""

    def __init__(self, folder: Path, program_path: str = "") -> None:
        """`folder` is for files that nobody needs later; `program_path` comes first on the path of programs."""
        self.folder = folder
        self._program_path = program_path
        self.seconds = 0.0
        """How long an elastic job may take."""
        self.known: list[dict[str, Any]] = []
        """What an elastic job has measured before."""

    @cached_property
    def device(self) -> devices.Device:
        """The real GPU. Raises `DeviceError` where there is none."""
        return devices.parse("cuda", grader.course().devices)

    @cached_property
    def gradings(self) -> Gradings:
        """Gradings that share their sandboxes."""
        return Gradings(self.device, self.folder / "gradings")

    def command(
        self,
        arguments: Sequence[str],
        *,
        accepted: Sequence[int] = (0,),
        program: bool = False,
        values: bool = True,
    ) -> str:
        """Run Python with these arguments, in the checkout; what it printed.

        `program` says that it uses the GPU by itself: in a rehearsal it then gets the virtual one, which computes
        values only if somebody looks at them.

        Raises:
            CommandFailed: its exit code is none of those that are accepted.
        """
        environment = dict(os.environ)
        if program and self._program_path:
            environment["PYTHONPATH"] = os.pathsep.join([self._program_path, str(ROOT)])
            environment["REHEARSED_VALUES"] = str(int(values))
        done = subprocess.run(
            [sys.executable, *arguments], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
        )  # fmt: skip
        if done.returncode not in accepted:
            end = done.stdout[-_KEPT_CHARACTERS:]
            raise CommandFailed(f"python {' '.join(arguments)} ended with exit code {done.returncode}: {end}")
        return done.stdout


class _Orders:
    """Lines of standard input. When it ends during a job, this process and all that it has started end at once."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._is_busy = False
        threading.Thread(target=self._read, daemon=True).start()

    def __iter__(self) -> Iterator[str]:
        while line := self._lines.get():
            self._is_busy = True
            yield line
            self._is_busy = False

    def _read(self) -> None:
        for line in sys.stdin:
            self._lines.put(line)
        if self._is_busy:
            os.killpg(0, signal.SIGKILL)
        self._lines.put("")


def main(descriptor: int, folder: str, module: str, program_path: str = "") -> None:
    """Serve until standard input ends. The worker leads a process group of its own."""
    jobs: Mapping[str, Job] = {job.name: job for job in importlib.import_module(module).JOBS}
    tools = Tools(Path(folder), program_path)
    with os.fdopen(descriptor, "w", encoding="utf-8") as replies:
        for line in _Orders():
            order = json.loads(line)
            tools.seconds, tools.known = order["seconds"], order["known"]
            try:
                reply = asdict(jobs[order["job"]].run(tools))
            except Exception as error:
                text = f"{type(error).__name__}: {error}"
                reply = asdict(Finding(False, text.splitlines()[0][:200], {"error": traceback.format_exc()[-4000:]}))
                reply["broke"] = True
            replies.write(json.dumps(reply) + "\n")
            replies.flush()
    if "gradings" in vars(tools):
        tools.gradings.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
