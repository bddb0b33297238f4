"""Interpreters that have imported already: for programs that start `python -c` and `python -m` as processes of theirs.

A new interpreter imports PyTorch for two seconds of a core before the submission's first line runs, and a program that
spawns ranks starts several. The ones of this module are copies of the probe's process from before it imported anything
of the submission, which wait until they are told what a command line, an environment and descriptors tell a new one.
The manner of `multiprocessing.forkserver`, but each is a child of the process that asked for it. Not here: which
programs are run with them (`lab3/shared/probes/launch.py`).
"""

from __future__ import annotations

import builtins
import fcntl
import json
import os
import random
import runpy
import signal
import socket
import subprocess
import sys
import time
import traceback
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import util
from typing import Any, NoReturn, TypeAlias

import numpy as np
import torch

from labkit import program

_SPAWNED = "from multiprocessing.spawn import spawn_main"
"""How the command of a process begins that `multiprocessing` spawns; its other helper imports nothing that is dear."""
_MOST_DESCRIPTORS = 64


class Interpreters:
    """So many interpreters, for a command each; used in a `with`, at whose end those that nobody needed are gone."""

    def __init__(self, count: int) -> None:
        self._waiting: list[tuple[int, socket.socket]] = []
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # or each copy would write it again
        for _ in range(count):
            ours, theirs = socket.socketpair()
            pid = os.fork()
            if pid == 0:
                for _, way in self._waiting:
                    way.close()
                ours.close()
                _wait(theirs)
            theirs.close()
            self._waiting.append((pid, ours))

    def __enter__(self) -> Interpreters:
        return self

    def __exit__(self, *_: object) -> None:
        while self._waiting:
            pid, way = self._waiting.pop()
            with suppress(OSError):  # whoever was copied from us has a copy of the socket, too
                way.shutdown(socket.SHUT_RDWR)
            way.close()
            with suppress(ChildProcessError):  # somebody has waited for any child
                os.waitpid(pid, 0)

    def start(
        self,
        command: Sequence[str | bytes],
        *,
        environment: Mapping[str, str],
        descriptors: Mapping[int, int],
        own_session: bool = False,
    ) -> int | None:
        """Have one do what a new interpreter would do that is started by `command`.

        Args:
            command: the interpreter, its flags, `-c` or `-m`, and what follows.
            environment: all of it.
            descriptors: those it has besides the standard ones, by number: which of ours it is.
            own_session: whether it begins a session.

        Returns:
            The number of the process, a child of this one; None if there is none left, or for another command.
        """
        words = [os.fsdecode(word) for word in command]
        place = next((index for index, word in enumerate(words) if word in ("-c", "-m")), None)
        if not self._waiting or place is None or len(words) < place + 2 or words[0] != sys.executable:
            return None
        pid, way = self._waiting.pop(0)
        numbers = {0: 0, 1: 1, 2: 2, **descriptors}
        order = {
            "command": words[place:],
            "environment": dict(environment),
            "folder": os.getcwd(),
            "numbers": list(numbers),
            "own_session": own_session,
        }
        with way:
            socket.send_fds(way, [b"s"], list(numbers.values()))
            way.sendall(json.dumps(order).encode())
        return pid


@contextmanager
def spawning(count: int) -> Iterator[None]:
    """The first `count` processes that `multiprocessing` spawns in this block are such interpreters."""
    spawn = util.spawnv_passfds

    def start(path: bytes, args: Sequence[str | bytes], passfds: Sequence[int]) -> int:
        pid = None
        if any(os.fsdecode(word).startswith(_SPAWNED) for word in args):
            same = {int(descriptor): int(descriptor) for descriptor in passfds}
            pid = warm.start(args, environment=os.environ, descriptors=same)
        return pid or spawn(path, args, passfds)

    with Interpreters(count) as warm:
        util.spawnv_passfds = start  # type: ignore[assignment]  # of texts alone, as multiprocessing calls it
        try:
            yield
        finally:
            util.spawnv_passfds = spawn


class Started:
    """What torchrun asks of a process that it has started: a part of `subprocess.Popen`."""

    def __init__(self, pid: int, args: Sequence[str]) -> None:
        self.pid = pid
        self.args = args
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit status, negative after a signal; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit status. Raises subprocess.TimeoutExpired after so many seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if end is not None and timeout is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired(list(self.args), timeout)
            time.sleep(0.01)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Nothing happens to one that has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


Option: TypeAlias = Any
"""An option of `subprocess.Popen`: each has a type of its own."""
Popen: TypeAlias = Started | subprocess.Popen[Any]


def popen(warm: Interpreters) -> Callable[..., Popen]:
    """A stand-in for `subprocess.Popen` where torchrun calls it; what is no command for an interpreter, Popen does."""

    def start(
        args: Sequence[str],
        env: Mapping[str, str],
        stdout: Option,
        stderr: Option,
        **kwargs: Option,
    ) -> Popen:
        if set(kwargs) <= {"start_new_session"}:
            files = {1: stdout, 2: stderr}
            descriptors = {number: file.fileno() for number, file in files.items() if file is not None}
            pid = warm.start(args, environment=env, descriptors=descriptors, own_session=bool(kwargs))
            if pid is not None:
                return Started(pid, args)
        return subprocess.Popen(args, env=env, stdout=stdout, stderr=stderr, **kwargs)

    return start


# ---- in the copy -----------------------------------------------------------------------------------------------------


def _wait(way: socket.socket) -> NoReturn:
    """Until there is an order, which is done, or the other end is closed. Never comes back to the probe."""
    code = 1
    try:
        word, descriptors, _, _ = socket.recv_fds(way, 1, _MOST_DESCRIPTORS)
        if not word:
            os._exit(0)
        order = json.loads(b"".join(iter(lambda: way.recv(1 << 16), b"")))
        way.close()
        _take(descriptors, order["numbers"])
        if order["own_session"]:
            os.setsid()
        os.chdir(order["folder"])
        os.environ.clear()
        os.environ.update(order["environment"])
        _be_new()
        code = _run(*order["command"])
        program.end_process(code)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code or 1)


def _take(descriptors: Sequence[int], numbers: Sequence[int]) -> None:
    """Give what was received the numbers that it has at the other end."""
    above = max(*numbers, *descriptors) + 1
    for descriptor, number in [
        (fcntl.fcntl(d, fcntl.F_DUPFD, above), n) for d, n in zip(descriptors, numbers, strict=True)
    ]:
        os.dup2(descriptor, number)
        os.close(descriptor)
    for descriptor in set(descriptors) - set(numbers):
        os.close(descriptor)


def _be_new() -> None:
    """As an interpreter is at its start: generators, threads for as many cores as the environment says, and nothing to
    tidy up at the end that is the original's (a temporary folder)."""
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    torch.seed()  # nobody knows beforehand what a new process draws
    random.seed()
    np.random.seed()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1))


def _run(kind: str, what: str, *arguments: str) -> int:
    """Run a program's text (`-c`) or a module (`-m`) as the main module; its exit status."""
    sys.argv = ["-c" if kind == "-c" else "-m", *arguments]
    main = types.ModuleType("__main__")
    vars(main)["__builtins__"] = builtins
    sys.modules["__main__"] = main
    try:
        if kind == "-c":
            exec(compile(what, "<string>", "exec"), vars(main))
        else:
            runpy.run_module(what, run_name="__main__", alter_sys=True)
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1
    except BaseException as error:
        own = error.__traceback__
        traceback.print_exception(type(error), error, own.tb_next if own else None)
        return 1
    return 0
