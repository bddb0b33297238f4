"""Probes that start Lab 3's programs as students do: `python -m`, which spawns ranks, and torchrun."""

from __future__ import annotations

import multiprocessing
import os
import re
import resource
import signal
import socket
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Sequence
from multiprocessing import resource_tracker
from pathlib import Path

import torch

from gradebox.sandbox.probe_loader import Student
from grader.lab3.shared.cases.programs import Program, SpawnReply, Torchrun, TorchrunReply
from grader.shared.probes import interpreters
from grader.shared.probes.figures import watch_png, words_of
from grader.shared.probes.looks import files_below
from grader.shared.probes.record import system
from grader.shared.probes.support import describe_files, run_program

_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_TAIL = 600
_PATIENCE_SECONDS, _POLL_SECONDS = 150.0, 0.02
"""A small training takes a second or two, and far more on a machine that others use, too: so nearly all that a request
may take (`setup.COLD`). Ranks that both think they are the first wait for each other for half an hour."""
_RANKS = 4
"""Processes that a program starts with PyTorch imported already; further ones are new interpreters."""
_TABLE = re.compile(r"Data-parallel training|^┏━|^\+--")
"""The title of the table that the training's program prints, or what a table of `labkit.program` begins with."""
_ABORTED = "SIGABRT"
"""PyTorch's doing, now and then, on a machine with too much to do: a rank that ends while Gloo's threads still hold its
last collective's tensors is aborted (https://github.com/pytorch/pytorch/pull/179291). Such a program is started once
more; one that always aborts fails."""
_ERROR = re.compile(r"(\[rank\d+\]:\s*)?([\w.]+(Error|Exception)\b|terminate called|Fatal Python error)")


def program(student: Student, inputs: Program) -> SpawnReply:
    """Run a program that starts ranks by itself; describe what it wrote, the words in its figures, and what its
    processes took of processors."""
    torch.set_num_threads(1)
    forget_ranks()
    # A spawned child begins by importing its parent's main module, which here is ours.
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        return _program(student, inputs, _RANKS)
    except Exception as error:
        if _ABORTED not in str(error):
            raise
        return _program(student, inputs, 0)  # by now this process has imported the submission


def _program(student: Student, inputs: Program, ready: int) -> SpawnReply:
    """With so many processes that have imported PyTorch already."""
    with tempfile.TemporaryDirectory() as folder:
        before = _children_seconds()
        try:
            with interpreters.spawning(ready), watch_png(words_of) as words:
                files = run_program(student, inputs.module, inputs.argv, Path(folder, "results"))
            return SpawnReply(
                **files,
                words=words,
                children_seconds=_children_seconds() - before,
                loopback_bytes=system("loopback_bytes"),
            )
        finally:
            _end_resource_tracker()


def _children_seconds() -> float:
    """Processor time of all processes that were started here and have ended."""
    multiprocessing.active_children()  # takes note of those that nobody has joined
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def torchrun(student: Student, inputs: Torchrun) -> TorchrunReply:
    """Run a program under torchrun; describe what it wrote.

    All machines are this one, but no rank can know that: on each its local rank is 0, and its results have a folder of
    their own.
    """
    forget_ranks()
    reply, log = _under_torchrun(inputs)
    if reply.exit_code and _ABORTED in log:
        reply, log = _under_torchrun(inputs)
    if reply.exit_code != 0:
        student.module(inputs.module)  # raises where it cannot be imported
    return reply


def _under_torchrun(inputs: Torchrun) -> tuple[TorchrunReply, str]:
    """The reply, and the whole log."""
    with tempfile.TemporaryDirectory() as folder:
        folders = [Path(folder, f"machine-{machine}") for machine in range(inputs.machines)]
        outs, logs = [each / "results" for each in folders], [each / "log" for each in folders]
        meeting = (f"--nnodes={inputs.machines}", "--master-addr=127.0.0.1", f"--master-port={_free_port()}")
        agents = {}
        for machine, (out, path) in enumerate(zip(outs, logs, strict=True)):
            path.parent.mkdir()
            command = [
                *(*meeting, f"--node-rank={machine}", "--nproc-per-node=1"),
                "--local-addr=127.0.0.1",  # the host's name means nothing where there is no network
                *("-m", f"labs.{inputs.module}", *inputs.argv, "--out", str(out)),
            ]
            agents[_torchrun(command, path)] = machine
        exit_code = _first_failure(set(agents))
        texts = [path.read_text(errors="replace") for path in logs]
        log, files = "".join(texts), describe_files(outs[0])
        by_others = [name for out in outs[1:] for name in files_below(out)]
        by_others += [line for text in texts[1:] for line in text.splitlines() if _TABLE.search(line)]
    reply = TorchrunReply(
        exit_code=exit_code,
        **files,
        tail=_reason(log),
        by_others=by_others,
        loopback_bytes=system("loopback_bytes"),
    )
    return reply, log


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _first_failure(agents: set[int]) -> int | None:
    """Wait for all of them. Once one has failed the others are told to end: their ranks would wait for a lost one.

    None: none had failed when they were told to end, for they had waited for each other.
    """
    failure: int | None = 0
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while agents:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            if time.monotonic() > deadline and failure == 0:
                failure = None
                for other in agents:
                    os.kill(other, signal.SIGTERM)
            time.sleep(_POLL_SECONDS)
        if pid not in agents:
            continue
        agents.remove(pid)
        code = os.waitstatus_to_exitcode(status)
        if code and failure == 0:
            failure = code
            for other in agents:
                os.kill(other, signal.SIGTERM)
    return failure


def _reason(log: str) -> str:
    """The first error that a rank told of; torchrun ends with a summary that does not say it."""
    errors = [line for line in log.splitlines() if _ERROR.match(line) and "ChildFailedError" not in line]
    return (errors[0] if errors else log)[-_TAIL:]


def _torchrun(command: Sequence[str], log: Path) -> int:
    """Begin what the console script `torchrun` does, in a copy of this process: PyTorch is imported already.

    The rank that it starts is another copy, which has not imported anything of the submission either. Returns the
    copy's number.
    """
    log.touch()  # it may be told to end before it has begun
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        descriptor = os.open(log, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(descriptor, stream)
        from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler
        from torch.distributed.run import main

        with interpreters.Interpreters(1) as warm:
            vars(subprocess_handler)["Popen"] = interpreters.popen(warm)
            main(list(command))
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _end_resource_tracker() -> None:
    """Python starts this helper with the first spawned process and ends it with its parent; nobody left it behind."""
    tracker = getattr(resource_tracker, "_resource_tracker", None)
    if stop := getattr(tracker, "_stop", None):
        stop()


def forget_ranks() -> None:
    """The sandbox describes every process as a rank; a student's shell does not."""
    for name in _RANK_VARIABLES:
        os.environ.pop(name, None)
