"""Runs of the acceptance test as processes that a test may kill, and what is left of them afterwards."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.proc import proc

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 900
MARK = "ACCEPTANCE_TEST_RUN"
"""A variable that all processes of one run inherit, and by which they are found."""


@dataclass
class Started:
    """One command of a run: the plain one, or torchrun on a node of its own."""

    process: subprocess.Popen[bytes]
    folder: Path
    mark: str
    """Of this command alone."""

    @property
    def output(self) -> str:
        """What it printed so far."""
        return (self.folder / "log").read_text(errors="replace")

    @property
    def report(self) -> dict[str, Any]:
        """The report in its folder."""
        report: dict[str, Any] = json.loads((self.folder / "reports" / "cluster_test_report.json").read_text())
        return report

    @property
    def reported(self) -> bool:
        """Whether there is one."""
        return (self.folder / "reports" / "cluster_test_report.json").is_file()

    def alive(self) -> dict[int, list[str]]:
        """Its processes with their command lines, zombies left out."""
        commands = {}
        for folder in proc().glob("[0-9]*"):
            try:
                if f"{MARK}={self.mark}".encode() not in (folder / "environ").read_bytes().split(b"\0"):
                    continue
                if (folder / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                    commands[int(folder.name)] = (folder / "cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
        return commands

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to every process of it, as a node that goes down."""
        for process in self.alive():
            os.kill(process, number)

    def wait_for(self, word: str) -> None:
        """Until it has printed so."""
        until(lambda: word in self.output or self.process.poll() is not None)
        assert word in self.output, self.output

    def ended(self) -> int:
        """Wait for its end; the exit code."""
        try:
            return self.process.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no end: {self.output}") from None


def until(holds: Callable[[], bool], seconds: float = LIMIT_SECONDS) -> None:
    """Wait until something holds; fails when it does not in time."""
    ends = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < ends, "it never came about"
        time.sleep(0.05)


@dataclass
class Launcher:
    """Starts runs below a folder, and ends what a failed test leaves."""

    folder: Path
    started: list[Started] = field(default_factory=list)

    def plain(self, *words: str, before: tuple[str, ...] = (), **environment: str) -> Started:
        """The plain command; `before` are the words of a command that runs it."""
        return self._start("plain", [*before, sys.executable, "-m", "cluster.acceptance", *words], environment)

    def nodes(self, count: int, *words: str) -> list[Started]:
        """A torchrun for each of `count` nodes of one rank, all on this machine; the first one has the store."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        launch = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={count}", "--nproc-per-node=1"]
        launch += ["--max-restarts=0", "--master-addr=127.0.0.1", f"--master-port={port}"]
        return [
            self._start(
                f"node{node}",
                [*launch, f"--node-rank={node}", "-m", "cluster.acceptance", *words],
                {"NODE_NAME": f"node{node}"},
            )
            for node in range(count)
        ]

    def _start(self, name: str, command: list[str], environment: dict[str, str]) -> Started:
        folder, mark = self.folder / name, uuid.uuid4().hex
        folder.mkdir(exist_ok=True)
        own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", MARK: mark, **environment}
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                command, cwd=folder, env={**os.environ, **own}, stdout=log, stderr=subprocess.STDOUT
            )
        self.started.append(Started(process, folder, mark))
        return self.started[-1]

    def end(self) -> None:
        """Nothing is left running."""
        for command in self.started:
            command.kill()
            command.process.wait()


def launcher(folder: Path) -> Iterator[Launcher]:
    """For a fixture."""
    starter = Launcher(folder)
    try:
        yield starter
    finally:
        starter.end()
