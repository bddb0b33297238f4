"""Slurm by its own commands: `sbatch`, `squeue`, `scancel`, `scontrol`, and `sacct` where a site keeps accounts.

Partition, account and whatever else a site wants come from options of ours (`--sbatch=--partition=gpu`) or, as always
with `sbatch`, from variables (`SBATCH_PARTITION`). Sources: their manual pages, of Slurm 22.05 to 25.05.
"""

from __future__ import annotations

import math
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from gradebook.grading.cluster.engine import Full, Scheduler, State, TaskStatus, Unreachable
from gradebook.grading.cluster.shared_folder import Batch
from gradebook.grading.engine import EngineError

_SECONDS = 120
_REMEMBERED_SECONDS = 120.0
"""Well below what Slurm knows of jobs that have ended (`MinJobAge`, 300 s, and 2 s at the very least)."""
_UNREACHABLE = re.compile(
    r"unable to contact slurm controller|connection (refused|timed out|reset)|socket timed out|zero bytes were "
    r"transmitted|communication connection failure|protocol authentication error|backup controller",
    re.IGNORECASE,
)
_FULL = re.compile(
    r"job submit limit|QOSMaxSubmitJob|AssocMaxSubmitJob|AssocGrpSubmitJob|QOSGrpSubmitJob|temporarily unable to "
    r"accept|resource temporarily unavailable|violates accounting/QOS policy",
    re.IGNORECASE,
)
_STATES = {
    "PENDING": State.WAITS, "CONFIGURING": State.WAITS, "REQUEUED": State.WAITS, "REQUEUE_HOLD": State.WAITS,
    "REQUEUE_FED": State.WAITS, "SPECIAL_EXIT": State.WAITS, "RESV_DEL_HOLD": State.WAITS,
    "RUNNING": State.RUNS, "COMPLETING": State.RUNS, "SUSPENDED": State.RUNS, "STOPPED": State.RUNS,
    "SIGNALING": State.RUNS, "STAGE_OUT": State.RUNS, "RESIZING": State.RUNS,
    "TIMEOUT": State.TOO_LONG, "DEADLINE": State.TOO_LONG,
    "NODE_FAIL": State.LOST, "PREEMPTED": State.LOST, "BOOT_FAIL": State.LOST, "REVOKED": State.LOST,
    "CANCELLED": State.CANCELLED,
    "FAILED": State.BROKE, "OUT_OF_MEMORY": State.BROKE, "LAUNCH_FAILED": State.BROKE, "RECONFIG_FAIL": State.BROKE,
}  # fmt: skip
"""Those that are not here are over, as COMPLETED is."""


class Slurm(Scheduler):
    """The Slurm that this machine may submit to."""

    def __init__(self, folder: Path, device: str, options: Sequence[str] = (), python: str = sys.executable) -> None:
        """Ask it how large an array may be.

        Args:
            folder: the shared one.
            device: what is graded on; `cuda` takes a GPU for each array task.
            options: for `sbatch`, besides ours.
            python: the interpreter on the nodes, with this project installed.

        Raises:
            EngineError: there is no Slurm here.
        """
        self._folder, self._device, self._options, self._python = folder.resolve(), device, tuple(options), python
        self._waited: dict[tuple[str, int], float] = {}
        """Array tasks that waited when we last looked, and when that was."""
        try:
            size = re.search(r"^MaxArraySize\s*=\s*(\d+)", self._run("scontrol", "show", "config"), re.MULTILINE)
        except Unreachable as error:
            raise EngineError(f"Slurm does not answer here: {error}") from None
        self.most = int(size[1]) if size else 1001
        if self.most < 1:
            raise EngineError("this Slurm takes no arrays of jobs (MaxArraySize = 0)")

    def submit(self, batch: Batch, at_once: int, seconds: float) -> str:
        command = [
            self._python, "-m", "gradebook.grading.cluster.array_task", str(self._folder), batch.name,
        ]  # fmt: skip
        script = f'exec {shlex.join(command)} "$SLURM_ARRAY_TASK_ID"'
        arguments = [
            "--parsable", f"--job-name={_name(batch)}", f"--array=0-{len(batch.keys) - 1}%{max(1, at_once)}",
            f"--time={math.ceil(seconds / 60)}", "--ntasks=1", "--requeue", "--open-mode=append", "--export=ALL",
            f"--output={self._folder}/logs/{batch.name}-%a.txt", f"--chdir={self._folder}",
            *(("--gres=gpu:1",) if self._device == "cuda" else ()), *self._options, f"--wrap={script}",
        ]  # fmt: skip
        if not any(option.startswith(("--cpus-per-task", "-c")) for option in self._options):
            arguments.insert(0, "--cpus-per-task=2")
        said = self._run("sbatch", *arguments)
        return said.strip().splitlines()[-1].split(";")[0]  # with the cluster's name behind it, where there are several

    def find(self, batch: Batch) -> str:
        said = self._run("squeue", "--me", "--noheader", "--states=all", f"--name={_name(batch)}", "--format=%F")
        return said.split()[0] if said.split() else ""

    def states(self, batches: Sequence[Batch]) -> Mapping[tuple[str, int], TaskStatus]:
        by_job = {batch.job: batch.name for batch in batches}
        said = self._run(
            "squeue", "--me", "--noheader", "--array", "--states=all", "--format=%F|%K|%T|%r",
            f"--name={','.join(_name(batch) for batch in batches)}",
        ) if batches else ""  # fmt: skip
        statuses: dict[tuple[str, int], TaskStatus] = {}
        for line in said.splitlines():
            job, index, state, reason = line.strip().split("|", 3)
            if job in by_job and index.isdecimal():
                why = f"{state}, {reason}" if reason not in ("", "None") else state
                statuses[by_job[job], int(index)] = TaskStatus(_state(state), why)
        for batch in batches:
            gone = [index for index in range(len(batch.keys)) if (batch.name, index) not in statuses]
            if gone:
                statuses |= self._withdrawn(batch, gone)
                statuses |= self._from_accounts(batch, [index for index in gone if (batch.name, index) not in statuses])
        now = time.monotonic()
        self._waited |= {place: now for place, status in statuses.items() if status.state is State.WAITS}
        for place, status in statuses.items():
            if status.state is not State.WAITS:
                self._waited.pop(place, None)
        return statuses

    def cancel(self, batch: Batch, indices: Sequence[int]) -> None:
        for start in range(0, len(indices), 200):
            some = [f"{batch.job}_{index}" for index in indices[start : start + 200]]
            subprocess.run(["scancel", "--quiet", *some], capture_output=True, timeout=_SECONDS, check=False)

    def how_to_stop(self, batches: Sequence[Batch]) -> str:
        return f"scancel {' '.join(batch.job for batch in batches if batch.job)}"

    def _withdrawn(self, batch: Batch, indices: Sequence[int]) -> dict[tuple[str, int], TaskStatus]:
        """Those that waited a moment ago: one that is cancelled before it begins leaves no trace in Slurm, while one
        that began and ended is known for minutes."""
        now = time.monotonic()
        places = [(batch.name, index) for index in indices]
        return {
            place: TaskStatus(State.CANCELLED, "it was taken out of the queue")
            for place in places
            if now - self._waited.get(place, -math.inf) < _REMEMBERED_SECONDS
        }

    def _from_accounts(self, batch: Batch, indices: Sequence[int]) -> dict[tuple[str, int], TaskStatus]:
        """What `squeue` has forgotten (after five minutes, by default); nothing where a site keeps no accounts."""
        try:
            said = self._run("sacct", "-X", "-n", "-P", "-j", batch.job, "-o", "JobID,State")
        except (Unreachable, EngineError):
            return {}
        statuses = {}
        for line in said.splitlines():
            job, _, state = line.partition("|")
            index = job.rpartition("_")[2]
            if index.isdecimal() and int(index) in indices:
                statuses[batch.name, int(index)] = TaskStatus(_state(state.split()[0] if state else ""), state)
        return statuses

    def _run(self, *command: str) -> str:
        """What a command prints. Raises Unreachable, Full, EngineError by what it says."""
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        except FileNotFoundError:
            raise EngineError(
                f"there is no {command[0]} here: give this command where you submit jobs to Slurm"
            ) from None
        except subprocess.TimeoutExpired:
            raise Unreachable(f"{command[0]} took longer than {_SECONDS} s") from None
        if done.returncode == 0:
            return done.stdout
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        said = lines[-1] if lines else f"{command[0]} ended with {done.returncode}"
        if _UNREACHABLE.search(done.stderr):
            raise Unreachable(said)
        if _FULL.search(done.stderr):
            raise Full(said)
        raise EngineError(f"{command[0]} refuses: {said}")


def _name(batch: Batch) -> str:
    return f"gpulabs-{batch.name}"


def _state(text: str) -> State:
    return _STATES.get(text.upper(), State.ENDED)
