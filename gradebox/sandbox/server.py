"""The server of a sandbox: it has a template fork a supervisor for every request.

Forked from a process that has imported what the course needs (`forkserver.py`). It is a *guard*, which stays behind to
clean up whatever happens; where namespaces are allowed an *init*, process 1 of a pid namespace, so that nothing below
can outlive it; the *server* proper; and the *templates* that fork the supervisors (`templates.py`). None of them uses a
device, has several threads, or executes code of a submission.

Many libraries notice that they were forked by comparing process ids, so no process may have the number of one above
it, although every pid namespace counts from 1: the supervisor is process 1 of its own, hence the server is not of
its. (torch imports filelock: a supervisor with the server's number took itself for the server in the middle of a fork,
and filelock forbade it to fork.)
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
from typing import Any, NoReturn

from gradebox.sandbox import codec, devices, landlock, linux, machine, processes, templates, wire
from gradebox.sandbox.types import Failure

MAX_REQUEST_BYTES = 2**30
_BACKSTOP_SECONDS = 15.0
"""How long after a run's own deadline the server stops trusting its supervisor."""
_PIDS_BELOW = 600
"""Numbers that are left to ranks, and to what they start, between those of the processes above them."""


def main(channel: int, lifeline: int, life: int, failure: Failure | None) -> NoReturn:
    """Be the guard.

    Args:
        channel: a stream socket to the judge: configuration in, greeting out, then requests and replies.
        lifeline: the reading end of a pipe that only the judge holds open.
        life: the writing end of a pipe that the judge reads: the guard's process id, and its end when it has ended.
        failure: why imports failed, or None.
    """
    os.write(life, str(os.getpid()).encode())
    config = machine.Config(**codec.load_json(wire.receive(channel, max_bytes=MAX_REQUEST_BYTES)))
    os.chdir(config.home)
    site = machine.explore(config)
    if linux.AVAILABLE:
        linux.adopt_orphans()
    if site.namespaces:
        machine.enter_outer()
    above = max(_small(os.getpid()), _small(os.getppid()))
    below = os.fork()
    if below == 0:
        if linux.AVAILABLE:
            linux.die_with_parent(signal.SIGKILL)
        os.close(lifeline)
        os.close(life)
        if site.namespaces:
            _init(channel, above=above)
        try:
            _Server(config, site, channel, failure).serve()
        except wire.Closed:
            os._exit(0)
        except templates.Born as born:
            kind, way = born.kind, born.channel
        # Behind that block nothing holds the server's frames, with the request in them, any more.
        templates.live(kind, way, config, site, skip_pids=above)
    os.close(channel)
    _guard(below, lifeline)
    if not os.read(lifeline, 1):
        shutil.rmtree(config.home, ignore_errors=True)
    os._exit(0)


def _init(channel: int, *, above: int) -> None:
    """Fork the server and return in it only: process 1 stays, reaps what is orphaned, and ends when the server does."""
    linux.skip_pids(_PIDS_BELOW + above)
    server = os.fork()
    if server == 0:
        linux.die_with_parent(signal.SIGKILL)
        return
    os.close(channel)
    while os.waitpid(-1, 0)[0] != server:
        pass
    os._exit(0)


def _small(pid: int) -> int:
    """`pid` where a rank might come to the same number, else 0: the judge may be process 1 of a container."""
    return pid if pid < _PIDS_BELOW else 0


def _guard(below: int, lifeline: int) -> None:
    """Wait until the process `below` ends or the judge wants it to, then end what is left.

    On the lifeline, a byte means "stop, but leave the folder", and its end means that the judge is gone.
    """
    poller = select.poll()
    poller.register(lifeline, select.POLLIN)
    watched = os.pidfd_open(below) if hasattr(os, "pidfd_open") else None
    if watched is not None:
        poller.register(watched, select.POLLIN)
    collected = None
    while not poller.poll(None if watched is not None else 500.0):
        collected = processes.collected(below)
        if collected is not None:
            break
    if not collected:
        processes.send([below], signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(below, 0)
    processes.end_descendants()


class _Server:
    """Serves one judge, one request at a time, until it is gone."""

    def __init__(self, config: machine.Config, site: machine.Machine, channel: int, failure: Failure | None) -> None:
        self._config = config
        self._site = site
        self._channel = channel
        self._failure = failure
        self._count = 0
        self._devices = devices.load("" if failure else config.of_course.devices)
        self._templates = templates.Templates(namespaces=site.namespaces)

    def serve(self) -> NoReturn:
        if linux.AVAILABLE:
            linux.adopt_orphans()
        try:
            greeting = self._greeting()
        except OSError as error:
            greeting = {"error": f"{type(error).__name__}: {error}"}
        wire.send(self._channel, codec.dump_json(greeting))
        while True:
            request, frame = self._next()
            wire.send(self._channel, self._run(request, frame))

    def _next(self) -> tuple[dict[str, Any], bytes]:
        """The next request, and the frame it came in, which is passed on."""
        frame = wire.receive(self._channel, max_bytes=MAX_REQUEST_BYTES)
        return codec.load_json(codec.split(frame)[0]), frame

    def _greeting(self) -> dict[str, Any]:
        """For the judge, once everything is ready for requests."""
        if self._failure:
            return {"error": self._failure.text, "of_course": self._failure.of_course}
        if not self._site.namespaces:
            packages = f"{self._config.home}/packages"
            os.makedirs(packages, exist_ok=True)
            for folder in self._site.view.packages:
                with contextlib.suppress(FileExistsError):
                    os.symlink(folder, f"{packages}/{os.path.basename(folder)}")
        user = "as an ordinary user" if os.geteuid() else f"as root, children run as uid {self._site.uid} or above"
        return {
            "mode": "namespaces" if self._site.namespaces else "limits",
            "reason": self._site.reason,
            "detail": user,
            "unfiltered": self._site.unfiltered,
            "protected": not self._site.namespaces and landlock.available(),
        }

    def _run(self, request: dict[str, Any], frame: bytes) -> bytes:
        """Have a request carried out, and return its supervisor's frame only when every process of it has ended."""
        self._count += 1
        kind = self._devices.prepares(request["device"])
        limits = request["limits"]
        seconds = limits["wall_seconds"] + limits["rank_grace_seconds"] + _BACKSTOP_SECONDS
        reader, writer = os.pipe()
        try:
            template = self._templates.start(kind, self._count, frame, writer)
        except templates.Gone:
            self._templates.end_all()
            return _failed("a process that was to fork the supervisor ended")
        finally:
            os.close(writer)
        try:
            return self._await(reader, seconds)
        finally:
            os.close(reader)
            try:
                template.end()
            except templates.Gone:
                self._templates.end_all()

    def _await(self, reader: int, seconds: float) -> bytes:
        """The supervisor's frame, or one of our own that says why there is none.

        Raises:
            wire.Closed: the judge is gone.
        """
        poller = select.poll()
        poller.register(reader, select.POLLIN)
        poller.register(self._channel, select.POLLIN)
        ready = {descriptor for descriptor, _ in poller.poll(seconds * 1e3)}
        if self._channel in ready:
            # The judge says nothing while it waits for a reply, so this is its end.
            raise wire.Closed
        try:
            if reader not in ready:
                raise TimeoutError
            return wire.receive(reader, max_bytes=2**40, timeout_seconds=60.0)
        except (wire.Closed, TimeoutError):
            return _failed("the supervisor ended without a reply")


def _failed(why: str) -> bytes:
    return codec.join(codec.dump_json({"failed": why}))
