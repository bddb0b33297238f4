"""A process that imports what every sandbox's server needs, while the judge still reads its options.

Begun first of all in a judge's process (`launch.judge`), and taken over when the first server is needed, which sends it
the rest (`gradebox.sandbox.starting`). Only of the standard library: the process that begins it must not wait for
imports.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
from typing import NamedTuple

_KEPT = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CUDA_HOME",
         "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "XDG_CACHE_HOME", "MPLCONFIGDIR")  # fmt: skip
"""What the process inherits. Children can read it in `/proc`, so tokens and passwords must not be there."""
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_NO_SPINNING = {"OMP_WAIT_POLICY": "passive"}
"""Threads that wait for work sleep: work is small, and other processes need the cores."""
_NEEDED = ("gradebox", "numpy")
_LIBRARIES = ("site-packages", "dist-packages")


_PROGRAM = """
import sys
sys.path[:0] = {first!r}
sys.path += [path for path in {last!r} if path not in sys.path]
try:
    from gradebox.sandbox.forkserver import main
except BaseException:
    import os, socket, traceback
    for log in socket.recv_fds(socket.socket(fileno={control}), 1, 1)[1]:
        os.dup2(log, 2)
    traceback.print_exc()
    os._exit(1)
main({control})
"""
"""Where an import fails, that is said in the log, which comes later; without it, nobody wants to know."""


class Begun(NamedTuple):
    """The process, and a stream socket to `gradebox.sandbox.forkserver.main` in it."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    environment: dict[str, str]


_waiting: list[Begun] = []


def begin() -> None:
    """Begin one, unless one waits. If that fails, the caller that takes it gets the error."""
    if not _waiting:
        with contextlib.suppress(OSError):
            _waiting.append(_start())


def take() -> Begun:
    """The one that waits, if it still lives and is as one begun now would be; else a new one.

    Raises:
        OSError: no process can be started.
    """
    while _waiting:
        begun = _waiting.pop()
        if begun.process.poll() is None and begun.environment == variables():
            return begun
        begun.control.close()
        begun.process.kill()
        begun.process.wait()
    return _start()


def variables() -> dict[str, str]:
    """The environment of such a process."""
    inherited = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return inherited | _ONE_THREAD | _NO_SPINNING | {"MPLBACKEND": "Agg", "PYTHONDONTWRITEBYTECODE": "1"}


def in_order(folders: list[str]) -> tuple[list[str], list[str]]:
    """Source trees, to be searched first, so that the process runs the same code as we do although another copy may be
    installed; and site folders, to be searched last, so that they shadow nothing.
    """
    last = [folder for folder in folders if os.path.basename(folder) in _LIBRARIES]
    return [folder for folder in folders if folder not in last], last


def folder_of(name: str) -> str | None:
    """The folder in which Python finds a module or package by that name; None where it finds none."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.origin or not os.path.isfile(spec.origin):
        return None
    folder = os.path.dirname(os.path.abspath(spec.origin))
    return os.path.dirname(folder) if spec.submodule_search_locations else folder


def _start() -> Begun:
    folders = dict.fromkeys(folder for name in _NEEDED if (folder := folder_of(name)) is not None)
    first, last = in_order(list(folders))
    control, there = socket.socketpair()
    program = _PROGRAM.format(first=first, last=last, control=there.fileno())
    environment = variables()
    try:
        # Isolated (-I): neither PYTHONPATH nor the working directory adds modules.
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", program],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=environment,
            pass_fds=(there.fileno(),),
            start_new_session=True,
        )
    except OSError:
        control.close()
        raise
    finally:
        there.close()
    return Begun(process, control, environment)
