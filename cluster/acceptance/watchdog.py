"""Starts the workers of some ranks, watches them by a real clock, and ends those that stand still.

A process of its own beside each worker: one that hangs in a collective, or in CUDA, can neither look at the clock nor
write a report. A virtual GPU's clock is not real either.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from cluster.acceptance.records import STAGES, TOGETHER, TOOK, Record
from cluster.acceptance.store import SurvivingStore, node_name

GRACE_SECONDS = 10.0
"""How long the others may go on when one rank is at its end: to find out by themselves, and to read their GPU."""
GRACE_AFTER_SIGNAL_SECONDS = 1.0
SETTLE_SECONDS = 1.0
"""Between calling the run off and ending what hangs: every watchdog notes its ranks' positions in between."""
START_SECONDS = 120.0
"""At least so long for importing PyTorch, from a slow network drive as well."""
POLL_SECONDS = 0.1
KILL_SECONDS = 5.0
TOLD = "ended by a signal"
ORPHANED = "the node where the ranks meet is gone"
UNKILLABLE = "even SIGKILL does not end it: it waits in the kernel (state D of ps), reboot the node"
LOG_CHARACTERS = 4000
STACK_SECONDS = 0.5
"""For a process that hangs to say where."""


@dataclass(kw_only=True)
class Watched:
    """A worker and what it told so far."""

    record: Record
    process: subprocess.Popen[bytes]
    pipe: int
    log: IO[bytes]
    stage: str = "start"
    since: float = field(default_factory=time.monotonic)
    hung_since: float | None = None
    done: bool = False
    over: bool = False
    unread: bytes = b""
    simulated: bool = False


class Watchdog:
    """Watches the ranks whose workers this process starts.

    Attributes:
        signalled: whether somebody asked this process to end.
    """

    def __init__(self, store: SurvivingStore, *, stage_seconds: float, show: bool, load_seconds: float = 0.0) -> None:
        self.store = store
        self.load_seconds = load_seconds
        self.stage_seconds = stage_seconds
        self.show = show
        self.signalled = False
        self.watched: list[Watched] = []
        self._stop_at: float | None = None

    def signal(self, number: int, frame: object) -> None:
        """A signal handler: the workers end soon, and the report is still written."""
        self.signalled = True

    def start(self, environment: Mapping[str, str], argv: Sequence[str]) -> None:
        """Start the worker of the rank that `environment` describes (RANK and its like)."""
        reader, writer = os.pipe()
        log = _log()
        process = subprocess.Popen(
            [sys.executable, "-m", "cluster.acceptance.rank", str(os.getpid()), "--pipe", str(writer), *argv],
            env={**os.environ, **environment},
            pass_fds=(writer,),
            stdout=log,
            stderr=log,
        )
        os.close(writer)
        os.set_blocking(reader, False)
        record = Record(rank=int(environment["RANK"]), local_rank=int(environment["LOCAL_RANK"]), node=node_name())
        self.store.set(f"place/{record.rank}", record.dumps())
        self.watched.append(Watched(record=record, process=process, pipe=reader, log=log))

    def run(self) -> list[Record]:
        """Watch until every worker is over, and give each one's record to the store."""
        while not all(worker.over for worker in self.watched):
            time.sleep(POLL_SECONDS)
            for worker in self.watched:
                if not worker.over:
                    self._look(worker)
            if self._stop_at is None and (self.signalled or self._called_off()):
                self._note_positions()
        for worker in self.watched:
            self.store.set(f"record/{worker.record.rank}", worker.record.dumps())
        return [worker.record for worker in self.watched]

    @property
    def simulated(self) -> bool:
        """Whether any worker said that its GPU is virtual."""
        return any(worker.simulated for worker in self.watched)

    def _called_off(self) -> bool:
        """Whether some rank is at its end, or the store's node is gone and with it some ranks."""
        return self.store.check(["stop"]) or self.store.moved

    def _look(self, worker: Watched) -> None:
        self._read(worker)
        code = worker.process.poll()
        if code is not None:
            self._read(worker)
            if worker.done and code == 0:
                self._end(worker, "finished", "")
            elif -code in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # torchrun and Ctrl-C reach the worker, too
                self._end(worker, "stopped", TOLD)
            else:
                how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
                # NCCL and Gloo end a process whose store is gone: not this rank's doing.
                orphaned = self._called_off() and self.store.moved
                self._end(worker, "stopped" if orphaned else "died", f"{ORPHANED}: {how}" if orphaned else how)
        elif worker.hung_since is not None:
            if time.monotonic() - worker.hung_since > SETTLE_SECONDS:
                self._end(worker, "hung", f"no end of {worker.stage!r} within {self._limit_seconds(worker):g} s")
        elif self._stop_at is None and time.monotonic() - worker.since > self._limit_seconds(worker):
            worker.hung_since = time.monotonic()
            self._call_off(f"rank {worker.record.rank} hangs")
        elif self._stop_at is not None and time.monotonic() > self._stop_at:
            why = ORPHANED if self.store.moved else "because another rank had ended"
            self._end(worker, "stopped", TOLD if self.signalled else why)

    def _note_positions(self) -> None:
        """The run is called off: who is behind whom is known only now, before anybody is ended."""
        self._stop_at = time.monotonic() + (GRACE_AFTER_SIGNAL_SECONDS if self.signalled else GRACE_SECONDS)
        for worker in self.watched:
            if not worker.over:
                self._read(worker)
                worker.record.progress_at_stop, worker.record.at_stop = worker.record.progress, worker.record.at

    def _limit_seconds(self, worker: Watched) -> float:
        if worker.stage == "start":
            return max(self.stage_seconds, START_SECONDS)
        return self.stage_seconds + (self.load_seconds if worker.stage == "load" else 0.0)

    def _read(self, worker: Watched) -> None:
        try:
            while chunk := os.read(worker.pipe, 1 << 16):
                worker.unread += chunk
        except BlockingIOError:
            pass
        *lines, worker.unread = worker.unread.split(b"\n")
        for line in lines:
            self._hear(worker, json.loads(line))

    def _hear(self, worker: Watched, message: dict[str, Any]) -> None:
        if "at" in message:
            worker.record.at, worker.record.progress = message["at"], worker.record.progress + 1
            worker.record.skipped_collectives = message.get("skipped_collectives", 0)
            if message["at"] in STAGES:
                worker.stage, worker.since = message["at"], time.monotonic()
                if self.show and worker.record.rank == 0:
                    print(f"... {worker.stage}", file=sys.stderr, flush=True)
        elif "stage" in message:
            worker.record.results[message["stage"]] = message["result"]
            if "took" in message:
                worker.record.results.setdefault(TOOK, {})[message["stage"]] = message["took"]
            if "error" in message["result"] and message["stage"] in TOGETHER:
                # The others wait for this rank in a collective, and would for ever.
                self._call_off(f"rank {worker.record.rank} left the {message['stage']}")
        worker.simulated = worker.simulated or bool(message.get("simulated"))
        worker.done = worker.done or "done" in message

    def _end(self, worker: Watched, ending: str, detail: str) -> None:
        if ending != "finished":
            self._call_off(f"rank {worker.record.rank} {ending}")
        if worker.process.poll() is None:
            worker.process.send_signal(signal.SIGUSR1)
            time.sleep(STACK_SECONDS)
            worker.process.kill()
            try:
                worker.process.wait(KILL_SECONDS)
            except subprocess.TimeoutExpired:  # it waits in the kernel, for a driver or a file server that is stuck
                detail = f"{detail}; {UNKILLABLE} (process {worker.process.pid})"
        self._read(worker)
        worker.record.ending, worker.record.detail, worker.over = ending, detail, True
        worker.record.log = _end_of(worker.log)
        worker.log.close()
        os.close(worker.pipe)

    def _call_off(self, reason: str) -> None:
        self.store.set("stop", reason)


def _log() -> IO[bytes]:
    """Where a worker prints: in memory where there is such a file, since a full disk may be what is wrong."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("log"), "w+b")
    return tempfile.TemporaryFile()  # closed when the worker is over


def _end_of(log: IO[bytes]) -> str:
    log.seek(0)
    return log.read().decode(errors="replace")[-LOG_CHARACTERS:]
