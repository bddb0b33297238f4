"""Which job comes next: in the order of the list, none that is known, none that would not end in time.

The work is done in another process (`worker`); this one only waits, so that it can end what hangs.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from benchmarks.on_a_gpu.job import ROOT, Job
from benchmarks.on_a_gpu.results import Document, Results

_MARGIN = 1.15
"""A job is started only if this many times its usual time is left."""
_PATIENCE = 4.0
"""A job that takes so many times its usual time hangs."""
_LEAST_PATIENCE_SECONDS = 90.0
_RESERVE_SECONDS = 5.0
"""For writing results down at the end."""
_TIDY_SECONDS = 10.0
"""An idle worker may take so long to close its sandboxes."""
_SHOWN_LEFT = 12
"""So many of the jobs that are left are named."""


@dataclass
class Visit:
    """One run of the queue."""

    results: Results
    jobs: Sequence[Job]
    ends: float
    """When it must be over, by `time.monotonic`."""
    folder: Path
    """For files that nobody needs later, and the worker's log."""
    out: Path | None = None
    """Where the results are written as well."""
    program_path: str = ""
    slowness: float = 1.0
    """How many times longer than on a GPU machine a job may take before it hangs: a rehearsal computes on a CPU."""
    module: str = "benchmarks.on_a_gpu.jobs"
    """Where the worker finds the jobs."""
    say: Callable[[str], None] = print
    done: list[str] = field(default_factory=list)
    """Names of the jobs of this visit, in order."""

    def run(self) -> bool:
        """Do what there is time for; whether every verdict of this visit is good. What is left is printed."""
        good = True
        try:
            with Worker(self.folder, self.module, self.program_path) as worker:
                while (job := self._next()) is not None:
                    good &= self._carry_out(job, worker)
        finally:
            self._write()
            self.say(self._left())
        return good

    @property
    def seconds_left(self) -> float:
        return self.ends - time.monotonic() - _RESERVE_SECONDS

    def _next(self) -> Job | None:
        """The first job that is open and would end in time. Elastic ones come again when no other is left."""
        open_ = list(self._open())
        for job in open_:
            if job.name not in self.done and self._needs(job) <= self.seconds_left:
                return job
        return next((job for job in open_ if job.is_elastic and job.shortest <= self.seconds_left), None)

    def _open(self) -> Iterator[Job]:
        return (job for job in self.jobs if not self.results.is_known(job) and not self._broke(job))

    def _broke(self, job: Job) -> bool:
        """Whether it ended without a verdict in this visit; once is enough."""
        entry = self.results.jobs.get(job.name, {})
        return job.name in self.done and entry.get("outcome") not in ("passed", "failed")

    def _needs(self, job: Job) -> float:
        return job.shortest if job.is_elastic else _MARGIN * self.results.seconds_of(job)

    def _carry_out(self, job: Job, worker: Worker) -> bool:
        usual = self.results.seconds_of(job)
        limit = self.slowness * max(_LEAST_PATIENCE_SECONDS, _PATIENCE * usual)
        seconds = self.seconds_left
        if job.is_elastic:
            if any(other is not job and other.name not in self.done for other in self._fitting()):
                seconds = min(seconds, job.share)
            limit = seconds + self.slowness * _LEAST_PATIENCE_SECONDS
        about = f"{seconds:.0f} s" if job.is_elastic else f"usually {usual:.0f} s"
        self.say(f"{job.group}  {job.title} ({about}; {self.seconds_left:.0f} s left)")
        started, is_last = time.monotonic(), self.seconds_left < limit
        reply = worker.carry_out(job, seconds, self.results.measured.get(job.name, []), min(limit, self.seconds_left))
        if is_last and reply.get("timed_out"):
            self.done.append(job.name)
            self.say("   took longer than usual, and no time is left: nothing is recorded")
            return True
        outcome = "passed" if reply["passed"] else "failed"
        if reply.get("broke"):
            outcome = "no answer"
        self.done.append(job.name)
        result: Document = {
            "outcome": outcome,
            "summary": reply["summary"],
            "details": reply["details"],
            "complete": reply["complete"],
            "digest": job.digest,
            "seconds": round(time.monotonic() - started, 1),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        self.results.add(job, result)
        self._write()
        self.say(f"   {outcome}: {result['summary']}  [{result['seconds']:.0f} s]")
        return outcome == "passed"

    def _fitting(self) -> Iterator[Job]:
        return (job for job in self._open() if self._needs(job) <= self.seconds_left)

    def _write(self) -> None:
        self.results.write()
        if self.out is not None:
            self.results.write(self.out)

    def _left(self) -> str:
        open_ = [job for job in self.jobs if not self.results.is_known(job)]
        if not open_:
            return "nothing is left: every job has a result for this card and this content"
        seconds = sum(self.results.seconds_of(job) for job in open_)
        lines = [f"left: {len(open_)} of {len(self.jobs)} jobs, usually {seconds / 60:.0f} minutes"]
        lines += [f"  {job.group}  {job.name}, {self.results.seconds_of(job):.0f} s" for job in open_[:_SHOWN_LEFT]]
        if len(open_) > _SHOWN_LEFT:
            lines.append(f"  and {len(open_) - _SHOWN_LEFT} more")
        return "\n".join(lines)


class Worker:
    """The process that carries jobs out; a new one after each that hangs or ends. Use as a context manager."""

    def __init__(self, folder: Path, module: str, program_path: str = "") -> None:
        """`module` defines `JOBS`; the rest is what `Visit` has."""
        self._folder, self._module, self._program_path = folder, module, program_path
        self._process: subprocess.Popen[bytes] | None = None
        self._replies: IO[bytes] | None = None

    def __enter__(self) -> Worker:
        self._folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *error: object) -> None:
        self._end(tidy=error[0] is None)

    def carry_out(self, job: Job, seconds: float, known: Sequence[Document], limit: float) -> Document:
        """The job's finding. `broke` says that there is none; `timed_out`, that `limit` seconds passed."""
        process, replies = self._started()
        assert process.stdin is not None
        order = {"job": job.name, "seconds": seconds, "known": list(known)}
        try:
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()
            line = replies.readline() if select.select([replies], [], [], max(0.0, limit))[0] else None
        except BrokenPipeError:
            line = b""
        if line:
            reply: Document = json.loads(line)
            return reply
        self._end(tidy=False)
        why = f"no answer within {limit:.0f} s" if line is None else f"its process ended; see {self._log}"
        nothing: Document = {"passed": False, "summary": why, "details": {}, "complete": True}
        return {**nothing, "broke": True, "timed_out": line is None}

    @property
    def _log(self) -> Path:
        return self._folder / "worker.log"

    def _started(self) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
        if self._process is None or self._replies is None:
            reader, writer = os.pipe()
            command = [sys.executable, "-m", "benchmarks.on_a_gpu.worker", str(writer), str(self._folder), self._module]
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    [*command, self._program_path], cwd=ROOT, stdin=subprocess.PIPE, stdout=log, stderr=log,
                    pass_fds=(writer,), start_new_session=True,
                )  # fmt: skip
            os.close(writer)
            self._replies = os.fdopen(reader, "rb")
        return self._process, self._replies

    def _end(self, *, tidy: bool) -> None:
        """End the worker and whatever it has started; `tidy` lets it close its sandboxes first."""
        process, self._process = self._process, None
        replies, self._replies = self._replies, None
        if process is None:
            return
        with contextlib.suppress(BrokenPipeError):
            assert process.stdin is not None
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_TIDY_SECONDS if tidy else 0.1)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if replies is not None:
            replies.close()
