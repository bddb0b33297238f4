"""The process from which the servers of all sandboxes of a judge are forked: imports what the course needs, once.

Importing a framework costs seconds of a core, forking a process that has it milliseconds. Started by the judge as a new
interpreter (`starting.py`); uses no device, has one thread, and never meets a submission or a request, so that servers
forked from it have nothing in common but libraries. The manner of `multiprocessing.forkserver`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pkgutil
import select
import signal
import socket
import sys
import traceback
from typing import Any, NoReturn

from gradebox.sandbox import byte_access, codec, devices, linux, prefork_state, server, trusted_code, wire
from gradebox.sandbox.types import Environment, Failure

_START = b"s"
_DESCRIPTORS = 4
_MAX_BYTES = 2**20
_USING_CTYPES = ("scipy._lib._ccallback_c",)
"""Extensions that call functions of `ctypes` while they are imported. An extension has no frame, so that the line of a
submission that imports it would be blamed. Imported before: 10 ms where SciPy is installed."""


def main(control: int) -> NoReturn:
    """Import, then fork a server whenever the judge sends what it needs, until the judge closes its end.

    Args:
        control: a stream socket to the judge: first a byte with the descriptor of a log, then what to import, then for
            each server a byte with the descriptors of its channel, its lifeline, its life and its log (see
            `server.main`).
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended servers leave nothing to be waited for
    way = socket.socket(fileno=control)
    try:
        _, descriptors, _, _ = socket.recv_fds(way, 1, 1)
        _log_to(*descriptors)
        failure = _prepare(codec.load_json(wire.receive(control, max_bytes=_MAX_BYTES)), control)
    except (wire.Closed, ConnectionError):  # the judge is gone, or has never wanted a server
        os._exit(0)
    while True:
        word, descriptors, _, _ = socket.recv_fds(way, 1, _DESCRIPTORS)
        if not word:
            os._exit(0)
        if os.fork() == 0:
            _become_a_server(way, descriptors, failure)
        for descriptor in descriptors:
            os.close(descriptor)


def _log_to(*log: int) -> None:
    for descriptor in log:
        for stream in (1, 2):
            os.dup2(descriptor, stream)
        os.close(descriptor)


def _become_a_server(way: socket.socket, descriptors: list[int], failure: Failure | None) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    way.close()
    channel, lifeline, life, log = descriptors
    os.setsid()  # Ctrl-C is for the judge, which then ends the server in order
    _log_to(log)
    server.main(channel, lifeline, life, failure)


def _prepare(order: dict[str, Any], control: int) -> Failure | None:
    """Import everything that processes of submissions will need, and make forking cheap.

    Returns:
        Why that failed; None where it did not.

    Raises:
        wire.Closed: the judge is gone.
    """
    environment = Environment.from_json(order["environment"])
    name = ""
    first, last = order["first"], order["last"]
    sys.path[:] = [*first, *(path for path in sys.path if path not in first)]
    sys.path += [path for path in last if path not in sys.path]
    gc.disable()  # nearly all that imports make stays: to look through it again and again took a fifth of the time
    try:
        about = devices.load(environment.devices)
        about.before_imports()
        for name in order["preload"]:
            if _hung_up(control):
                raise wire.Closed
            try:
                _import(name)
            except ImportError:
                if name not in order["optional"]:
                    raise
        name = ""
        for extension in _USING_CTYPES:
            with contextlib.suppress(ImportError):
                _import(extension)
        byte_access.prepare()
        trusted_code.remember(environment.course, about.SIMULATOR)
        about.require_forkable()
        prefork_state.require_one_thread()
    except Exception as error:
        if isinstance(error, wire.Closed):
            raise
        gc.enable()
        return failed(error, name, environment)
    # Objects that live as long as this process need not be visited, and so copied, by any child's collector. What
    # imports leave behind is a fiftieth of them, and to find it takes a third of a second.
    gc.freeze()
    gc.enable()
    if linux.AVAILABLE and order["many"]:
        linux.collapse_memory()
    return None


def failed(error: Exception, name: str, environment: Environment) -> Failure:
    """What `error` means, which the import of the module `name` raised; of something else where that is empty."""
    text = f"{type(error).__name__}: {error}"
    folder = os.path.join(environment.course_parent, environment.course) if environment.course else ""
    if isinstance(error, SyntaxError):
        place, text = (error.filename or "", error.lineno), f"SyntaxError: {error.msg}"
    else:
        frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
        place = next((frame for frame in reversed(frames) if folder and frame[0].startswith(f"{folder}/")), ("", None))
    if folder and place[0].startswith(f"{folder}/"):
        return Failure(f"{place[0]}:{place[1]}: {text}", of_course=True)
    package = name.removesuffix(".*").partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and folder and name and error.name in (package, name.removesuffix(".*")):
        file = os.path.join(folder, "course.toml")
        return Failure(f"{file}: preload names {name!r}, which cannot be imported here: {text}", of_course=True)
    return Failure(text, of_course=False)


def _hung_up(control: int) -> bool:
    """Whether the judge is gone. It may have sent descriptors already, which are left where they are."""
    poller = select.poll()
    poller.register(control, 0)
    return any(event & select.POLLHUP for _, event in poller.poll(0))


def _import(name: str) -> None:
    package = name.removesuffix(".*")
    module = importlib.import_module(package)
    if name == "matplotlib":
        module.use("Agg")
    if name != package:
        for entry in pkgutil.walk_packages(module.__path__, f"{package}."):
            if not entry.name.endswith("__main__"):
                importlib.import_module(entry.name)
