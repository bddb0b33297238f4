"""The preloaded server: imports torch once, then forks a supervisor for every request. Single-threaded throughout.

Started by the judge as a new interpreter. It is a small *guard*, which stays behind to clean up whatever happens; where
namespaces are allowed an *init*, process 1 of a pid namespace, so that nothing below can outlive it; and the *server*
proper. None of them runs a tensor operation, initialises CUDA, or executes code of a submission.

Many libraries notice that they were forked by comparing process ids, so no process may have the number of one above
it, although every pid namespace counts from 1: the supervisor is process 1 of its own, hence the server is not of
its. (torch imports filelock: a supervisor with the server's number took itself for the server in the middle of a fork,
and filelock forbade it to fork.)
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pkgutil
import select
import shutil
import signal
import sys
from typing import Any, NoReturn

from gradebox.sandbox import codec, linux, machine, ours, processes, supervisor, wire

MAX_REQUEST_BYTES = 2**30
_BACKSTOP_SECONDS = 15.0
"""How long after a run's own deadline the server stops trusting its supervisor."""
_PIDS_BELOW = 600
"""Numbers that are left to ranks, and to what they start, between those of the processes above them."""


def main(channel: int, lifeline: int) -> NoReturn:
    """Be the guard.

    Args:
        channel: a stream socket to the judge: configuration in, greeting out, then requests and replies.
        lifeline: the reading end of a pipe that only the judge holds open.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    config = machine.Config(**codec.load_json(wire.receive(channel, max_bytes=MAX_REQUEST_BYTES)))
    site = machine.explore(config)
    if linux.AVAILABLE:
        linux.adopt_orphans()
    if site.namespaces:
        machine.enter_outer()
    guard = os.getpid()
    below = os.fork()
    if below == 0:
        if linux.AVAILABLE:
            linux.die_with_parent(signal.SIGKILL)
        os.close(lifeline)
        if site.namespaces:
            _init(channel, above=guard)
        try:
            _Server(config, site, channel, above=guard).serve()
        except wire.Closed:
            os._exit(0)
    os.close(channel)
    _guard(below, lifeline)
    if not os.read(lifeline, 1):
        shutil.rmtree(config.home, ignore_errors=True)
    os._exit(0)


def _init(channel: int, *, above: int) -> None:
    """Fork the server and return in it only: process 1 stays, reaps what is orphaned, and ends when the server does."""
    linux.skip_pids(_PIDS_BELOW + _small(above))
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
    while not poller.poll(None if watched is not None else 500.0):
        if os.waitid(os.P_PID, below, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            break
    processes.send([below], signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(below, 0)
    processes.end_descendants()


class _Server:
    """Serves one judge, one request at a time, until it is gone."""

    def __init__(self, config: machine.Config, site: machine.Machine, channel: int, *, above: int) -> None:
        """`above` is the guard's number, where the guard lives."""
        self._above = above
        self._config = config
        self._site = site
        self._channel = channel
        self._count = 0
        self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY) if site.namespaces else -1

    def serve(self) -> NoReturn:
        if linux.AVAILABLE:
            linux.adopt_orphans()
        try:
            greeting = self._prepare()
        except Exception as error:
            greeting = {"error": f"{type(error).__name__}: {error}"}
        wire.send(self._channel, codec.dump_json(greeting))
        while True:
            request, tensors = self._next()
            wire.send(self._channel, self._run(request, tensors))

    def _next(self) -> tuple[dict[str, Any], bytes]:
        """The next request. Its bytes stay here: the frames below those of a worker are a copy of ours."""
        head, tensors = codec.split(wire.receive(self._channel, max_bytes=MAX_REQUEST_BYTES))
        return codec.load_json(head), tensors

    def _prepare(self) -> dict[str, Any]:
        """Import everything children will need, and make forking cheap; the greeting for the judge."""
        for name in self._config.preload:
            try:
                self._import(name)
            except ImportError:
                if name not in self._config.optional:
                    raise
        if "vgpu" in sys.modules:
            sys.modules["vgpu"].prepare()
        if not self._site.namespaces:
            packages = f"{self._config.home}/packages"
            os.makedirs(packages, exist_ok=True)
            for folder in self._site.view.packages:
                with contextlib.suppress(FileExistsError):
                    os.symlink(folder, f"{packages}/{os.path.basename(folder)}")
        ours.remember(self._config.of_course.course)
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            raise RuntimeError("a preloaded module initialised CUDA, which then does not work in forked children")
        if linux.AVAILABLE and (threads := len(os.listdir("/proc/self/task"))) > 1:
            raise RuntimeError(f"the server has {threads} threads after preloading, so forking it is not safe")
        # Objects that live as long as the server need not be visited, and so copied, by any child's collector.
        gc.collect()
        gc.freeze()
        if linux.AVAILABLE:
            linux.collapse_memory()
        user = "as an ordinary user" if os.geteuid() else f"as root, children run as uid {self._site.uid} or above"
        return {
            "mode": "namespaces" if self._site.namespaces else "limits",
            "reason": self._site.reason,
            "detail": user,
            "unfiltered": self._site.unfiltered,
        }

    @staticmethod
    def _import(name: str) -> None:
        package = name.removesuffix(".*")
        module = importlib.import_module(package)
        if name == "matplotlib":
            module.use("Agg")
        if name != package:
            for entry in pkgutil.walk_packages(module.__path__, f"{package}."):
                if not entry.name.endswith("__main__"):
                    importlib.import_module(entry.name)

    def _run(self, request: dict[str, Any], tensors: bytes) -> bytes:
        """Fork a supervisor, pass on its frame, and return only when every process of the run has ended."""
        self._count += 1
        namespaces = self._site.namespaces
        work = "/tmp/work" if namespaces else self._make_work()
        task = machine.task(
            request,
            self._config,
            self._site.view,
            self._site.uid_of(self._count),
            namespaces=namespaces,
            filtered=not self._site.unfiltered,
            tensors=tensors,
            work=work,
        )
        reader, writer = os.pipe()
        run = supervisor.Run(
            task=task,
            namespaces=namespaces,
            view=self._site.view,
            mount_point=f"{self._config.home}/root",
            submission=request.get("submission"),
            out=writer,
            skip_pids=_small(self._above),
        )
        if namespaces:
            linux.unshare(linux.CLONE_NEWPID)  # for our next child only, see below
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            os.close(self._channel)
            supervisor.main(run)
        os.close(writer)
        if namespaces:
            linux.setns(self._own_pids, linux.CLONE_NEWPID)
        wall_seconds = task.limits.wall_seconds + task.limits.rank_grace_seconds + _BACKSTOP_SECONDS
        try:
            return self._await(reader, wall_seconds)
        finally:
            processes.send([pid], signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)  # for process 1 of a namespace, this waits for everything in it
            os.close(reader)
            if not namespaces:
                processes.end_descendants()
                _remove(work)

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
            return codec.join(codec.dump_json({"failed": "the supervisor ended without a reply"}))

    def _make_work(self) -> str:
        work = f"{self._config.home}/work-{self._count}"
        os.mkdir(work, 0o700)
        uid = self._site.uid_of(self._count)
        if uid is not None:
            os.chown(work, uid, uid)
        return work


def _remove(folder: str) -> None:
    """Delete a run's folder although the submission may have taken permissions away."""
    for parent, folders, _ in os.walk(folder):
        for name in folders:
            path = os.path.join(parent, name)
            if not os.path.islink(path):
                with contextlib.suppress(OSError):
                    os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)
