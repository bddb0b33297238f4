"""What isolation this machine allows, found out by trying, and the task a worker gets accordingly.

Runs once per server, before anything large is imported. Not for doing the isolation (`supervisor.py`, `root.py`).
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gradebox.sandbox import linux, processes, root, seccomp, supervisor, worker
from gradebox.sandbox.types import Environment, Limits

_ADDRESS_SLACK_BYTES = 4 * 2**30
"""Address space beyond the memory limit: thread stacks and malloc arenas are reserved, not used."""
_UID_BASE = 1_900_000_000
_UIDS = 512
"""How many a server has to itself: one for each request, and then the first again."""
_NOBODY = 65534
_OURS = 16
"""More than the guard, the server, its templates and the supervisor, which live in a worker's user namespace too."""
_PORT = 29500


@dataclass(frozen=True)
class Config:
    """The judge's message to a new server."""

    home: str
    """Temporary folder of this sandbox; removed when the judge is gone."""
    isolation: str
    probe_paths: Sequence[str]
    readable: Sequence[str]
    environment: dict[str, Any]
    """The fields of `types.Environment`."""
    side_by_side: int = 1
    """How many sandboxes share the machine's cores."""

    @property
    def of_course(self) -> Environment:
        return Environment.from_json(self.environment)


@dataclass(frozen=True)
class Machine:
    """What the guard found out about where it runs."""

    namespaces: bool
    reason: str
    uid: int | None
    """What workers become, from here on; None: they keep the server's."""
    view: root.View
    unfiltered: str
    """Why system calls are not filtered; empty when they are."""

    def uid_of(self, request: int) -> int | None:
        """What the workers of the server's n-th request become: nothing of the one before belongs to them."""
        return self.uid if self.uid in (None, _NOBODY) else self.uid + request % _UIDS


def explore(config: Config) -> Machine:
    """Try, in processes that end again, what isolation is possible."""
    view = root.view(config.readable, config.probe_paths, config.of_course)
    os.makedirs(f"{config.home}/root", exist_ok=True)
    uid = _spare_uid() if os.geteuid() == 0 else None
    unfiltered = _attempt(seccomp.attempt).removeprefix("OSError: ")
    if not unfiltered:
        seccomp.prepare()
    if config.isolation == "limits":
        reason = "process limits were asked for"
    elif not linux.AVAILABLE:
        reason = f"{sys.platform} has no Linux namespaces"
    else:
        view = root.with_copy(view, f"{config.home}/course") if view.course else view
        reason = _attempt(lambda: _try_namespaces(config, view, uid))
        if not reason:
            return Machine(True, "", uid, view, unfiltered)
    spare = uid if uid is not None and not _attempt(lambda: _try_uid(config, uid)) else None
    return Machine(False, reason, spare, view, unfiltered)


def _spare_uid() -> int:
    """The first of uids nobody uses, so that the process limit counts one run alone; `nobody` where few ids exist."""
    if not linux.AVAILABLE:
        return _NOBODY
    uid = _UID_BASE + os.getpid() * _UIDS  # below 2**32 for every process id that Linux can have
    return uid if linux.id_is_mapped(uid) and linux.id_is_mapped(uid + _UIDS - 1) else _NOBODY


def _attempt(action: Callable[[], None]) -> str:
    """Run `action` in a child; why it failed, or an empty string."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            action()
            os.write(writer, b"done")
        except BaseException as error:
            os.write(writer, f"{type(error).__name__}: {error}"[:500].encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        text = file.read().decode(errors="replace")
    os.waitpid(child, 0)
    return "" if text == "done" else text or "a process that tried it was ended"


def enter_outer() -> None:
    """Make our next child process 1 of a new pid namespace, as an ordinary user inside a new user namespace."""
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        linux.unshare(linux.CLONE_NEWPID)
        return
    linux.set_dumpable(True)  # or the map below belongs to root
    linux.unshare(linux.CLONE_NEWUSER | linux.CLONE_NEWPID)
    linux.map_own_ids(uid, gid)


def _try_namespaces(config: Config, view: root.View, uid: int | None) -> None:
    """Go all the way to an unprivileged process in the new root, without torch.

    Raises:
        OSError: the step that is not allowed.
    """
    enter_outer()
    _in_child(lambda: _in_child(lambda: _try_inner(config, view, uid), new_pids=True))


def _try_inner(config: Config, view: root.View, uid: int | None) -> None:
    trial = task({"probe": "x.x", "device": "cpu", "limits": asdict(Limits())}, config, view, uid, namespaces=True)
    supervisor.enter(view, f"{config.home}/root", None, trial)
    linux.drop_privileges(uid)
    unreadable = [
        path for path in (sys.prefix, sys.base_prefix, *view.packages) if not os.access(path, os.R_OK | os.X_OK)
    ]
    if unreadable:
        raise PermissionError(f"{unreadable[0]} is not readable for an unprivileged user")


def _in_child(action: Callable[[], None], *, new_pids: bool = False) -> None:
    """Run `action` in a child and raise here what it raised there."""
    if new_pids:
        linux.unshare(linux.CLONE_NEWPID)
    if text := _attempt(action):
        raise OSError(text.removeprefix("OSError: "))


def _try_uid(config: Config, uid: int) -> None:
    """Become an unprivileged user who can still read the interpreter, as workers must when they import.

    Raises:
        PermissionError: this user could not.
    """
    needed = [config.home, *(entry for entry in sys.path if os.path.isdir(entry))]
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    for path in needed:
        if not os.access(path, os.X_OK):
            raise PermissionError(path)


def task(
    request: dict[str, Any],
    config: Config,
    view: root.View,
    uid: int | None,
    *,
    namespaces: bool,
    filtered: bool = False,
    tensors: bytes = b"",
    work: str = "/tmp/work",
) -> worker.Task:
    limits = Limits(**request["limits"])
    ranks = request.get("ranks", 1)
    cuda = request["device"] == "cuda"
    if uid is not None:
        process_limit: int | None = limits.processes
    elif namespaces:
        process_limit = limits.processes + _OURS
    elif os.geteuid() == 0 or not linux.AVAILABLE:
        process_limit = None  # root ignores it; elsewhere we cannot count what the user runs already
    else:
        process_limit = limits.processes + processes.tasks_of_user(os.geteuid())
    return worker.Task(
        probe=request["probe"],
        params=request.get("params", {}),
        tensors=tensors,
        device=request["device"],
        values=request.get("values", True),
        present=request.get("submission") is not None,
        rank=0,
        ranks=ranks,
        limits=limits,
        submission=root.SUBMISSION if namespaces else request.get("submission") or f"{config.home}/nothing",
        packages=root.PACKAGES if namespaces else f"{config.home}/packages",
        work=work,
        source_roots=view.source_roots,
        course=config.of_course,
        probe_folders=view.probes,
        probe_paths=tuple(config.probe_paths),
        port=_PORT if namespaces else _free_port(),
        threads=max(1, min(4, (os.cpu_count() or 1) // (ranks * config.side_by_side))),
        uid=uid,
        # CUDA reserves far more address space than any limit would allow.
        address_bytes=processes.vm_bytes() + limits.memory_bytes + _ADDRESS_SLACK_BYTES
        if linux.AVAILABLE and not cuda
        else None,
        process_limit=process_limit,
        filtered=filtered,
        secret=() if namespaces else view.secret,
        visible=view.visible,
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
