"""Which processes a run has, what they use, and how to end them all. Reads `/proc`, or asks `ps` where there is none.

Without `/proc` (macOS) memory and threads of a run are not seen, only its processes and their time. Used by the
supervisor and the server. Not for deciding what is too much.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_READ_BYTES = 2**14
_FIGURES = re.compile(r"^(RssAnon|RssShmem|Threads):\s*(\d+)", re.MULTILINE)

_START_OF_STACK = 25
"""Position in `/proc/PID/stat`, counted from the state: kept by fork, changed by exec."""
_TICKS = 11
"""Position of the user's time there; the system's and that of ended children follow."""

_HAS_PROC = os.path.isdir("/proc/self")
_PS = ("/bin/ps", "-A", "-o", "pid=,ppid=,pgid=,state=,time=")
LISTED_SECONDS = 0.5
"""How long a list of `ps` serves those who look often: it takes some milliseconds."""
_listed: tuple[float, dict[int, list[str]]] = (float("-inf"), {})
"""When `ps` was asked last, and its answer, in the order of `/proc/PID/stat`."""


@dataclass(frozen=True)
class Inherited:
    """What those that we fork have of us. Looked at once: what we take later is little, and no excuse for them."""

    stack: str
    """Where our stack starts, which distinguishes a fork from a process that called exec."""
    resident_bytes: int


@dataclass(frozen=True)
class Usage:
    """What some processes use together."""

    tasks: int
    """Processes and threads."""
    cpu_seconds: float
    added_bytes: int
    """Anonymous and shared memory beyond what each inherited; pages that several map are counted several times."""


def others() -> list[int]:
    """Every process of this `/proc` but ourselves: all of a run, where it has a pid namespace of its own."""
    own = os.getpid()
    return [pid for pid in _pids() if pid != own]


def descendants(ancestor: int, *, older: float = 0.0) -> list[int]:
    """Every process below `ancestor`; without `/proc`, as it was at most `older` seconds ago.

    Only where `/proc` counts as we do: not for process 1 of a namespace whose `/proc` is still the outer one.
    """
    children: dict[int, list[int]] = {}
    for pid in _pids(older):
        fields = _stat(pid)
        if fields is not None:
            children.setdefault(int(fields[1]), []).append(pid)
    pids: list[int] = []
    queue = [ancestor]
    while queue:
        below = children.pop(queue.pop(), [])
        pids += below
        queue += below
    return pids


def inherited() -> Inherited:
    """What our children begin with."""
    fields = _stat(os.getpid())
    return Inherited(fields[_START_OF_STACK] if fields else "", _resident(os.getpid())[0])


def usage(pids: Iterable[int], held: Inherited) -> Usage:
    """What `pids`, descendants of ours, use. Those that we held count as inherited, unless a process called exec."""
    tasks, ticks, added = 0, 0, 0
    for pid in pids:
        fields = _stat(pid)
        if fields is None:
            continue
        resident, threads = _resident(pid)
        tasks += threads
        ticks += sum(int(field) for field in fields[_TICKS : _TICKS + 4])
        forked = fields[_START_OF_STACK] in (held.stack, "0")  # 0: we may not know
        added += max(0, resident - held.resident_bytes) if forked else resident
    return Usage(tasks, ticks / _TICKS_PER_SECOND, added)


def starved_seconds(pid: int) -> float | None:
    """How long the thread of a process that waited most could have run, but had no processor; None if nobody counts it.

    Second field of `/proc/PID/task/*/schedstat` (Documentation/scheduler/sched-stats.rst in the kernel's source).
    """
    delays = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            fields = _read(f"/proc/{pid}/task/{task}/schedstat").split()
            if len(fields) == 3:
                delays.append(int(fields[1]) / 1e9)
    return max(delays, default=None)


def _resident(pid: int) -> tuple[int, int]:
    """Anonymous and shared memory in bytes, and threads."""
    figures = dict.fromkeys(("RssAnon", "RssShmem", "Threads"), 0)
    for name, value in _FIGURES.findall(_read(f"/proc/{pid}/status")):
        figures[name] = int(value)
    return (figures["RssAnon"] + figures["RssShmem"]) * 1024, figures["Threads"]


def added_bytes_shared_out(pids: Collection[int]) -> int:
    """Like `Usage.added_bytes`, but with each page divided by the number of processes that map it.

    Stops the processes meanwhile: one that forks all the time holds the lock that this needs for most of it.
    """
    total = 0
    send(pids, signal.SIGSTOP)
    for pid in pids:
        for line in _read(f"/proc/{pid}/smaps_rollup").splitlines():
            if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                total += int(line.split()[1]) * 1024
    send(pids, signal.SIGCONT)
    return max(0, total - _resident(os.getpid())[0])


def tasks_of_user(uid: int) -> int:
    """Processes and threads of `uid` on this machine, as `RLIMIT_NPROC` counts them."""
    total = 0
    for pid in _pids():
        status = _read(f"/proc/{pid}/status")
        values = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        if "Uid" in values and int(values["Uid"].split()[0]) == uid:
            total += int(values["Threads"])
    return total


def vm_bytes() -> int:
    """Our own virtual size."""
    return int(_read("/proc/self/statm").split()[0]) * os.sysconf("SC_PAGE_SIZE")


def send(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def kill_groups(leaders: Iterable[int]) -> None:
    """Send SIGKILL to the process groups that these processes have led, also if a leader has ended."""
    for leader in leaders:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)


def have_children() -> bool:
    """Whether any child is left, ended or not. With `adopt_orphans` that is: whether any descendant is.

    Python has no `waitid` on macOS before 3.13. There this collects a child that has ended.
    """
    try:
        if not hasattr(os, "waitid"):
            os.waitpid(-1, os.WNOHANG)
            return True
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def collected(pid: int) -> bool | None:
    """Whether a child has ended: None if not, False if it is still to be collected, True if it is collected."""
    if hasattr(os, "waitid"):
        return None if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None else False
    return None if os.waitpid(pid, os.WNOHANG)[0] == 0 else True


def kill_descendants() -> None:
    """Send SIGKILL to everything below us, even if it forks faster than we look.

    Whole process groups go at once. Processes that left their group are stopped first, until a look finds nothing new:
    stopped processes still fill the process limit, so a limited flood runs dry.
    """
    own_group = os.getpgid(0)
    stopped: set[int] = set()
    while True:
        below = descendants(os.getpid())
        for group in {int(fields[2]) for fields in map(_stat, below) if fields is not None} - {own_group, 0}:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        fresh = set(below) - stopped
        if not fresh:
            break
        send(fresh, signal.SIGSTOP)
        stopped |= fresh
    send(stopped, signal.SIGKILL)


def end_descendants() -> None:
    """Kill everything below us and wait for it; needs `adopt_orphans`, or what was orphaned is not below us."""
    reap()
    while have_children():
        kill_descendants()
        reap()
        time.sleep(0.001)


def reap() -> None:
    """Collect every child that has ended, without waiting."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def reap_orphans(pids: Iterable[int], *, keep: Iterable[int]) -> None:
    """Collect those of `pids` that we adopted and that have ended, but not `keep`: others want their status."""
    for pid in set(pids).difference(keep):
        fields = _stat(pid)
        if fields is not None and fields[0] == "Z" and int(fields[1]) == os.getpid():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def folder_bytes(folder: str, *, stop_bytes: int) -> int:
    """Size of all files below `folder`; stops counting beyond `stop_bytes`."""
    total = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
            if total > stop_bytes:
                return total
    return total


def _pids(older: float = 0.0) -> list[int]:
    if _HAS_PROC:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return list(_list(older))


def _list(older: float) -> dict[int, list[str]]:
    """What `ps` says of each process but itself, at most `older` seconds ago."""
    global _listed
    if time.monotonic() - _listed[0] > older:
        # Without `close_fds` this is posix_spawn: a fork of a process that has imported torch takes longer than `ps`.
        with subprocess.Popen(_PS, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, close_fds=False) as asked:
            printed = asked.communicate()[0].decode("ascii", "replace")
        rows = [line.split() for line in printed.splitlines()]
        _listed = (
            time.monotonic(),
            {int(row[0]): _as_stat(row[3], row[1], row[2], row[4]) for row in rows if int(row[0]) != asked.pid},
        )
    return _listed[1]


def _as_stat(state: str, parent: str, group: str, used: str) -> list[str]:
    """Fields in the order of `/proc/PID/stat`, from the state on. `used`: 1-02:03:04 (Linux), 2:03.45 (macOS)."""
    days, _, clock = used.rpartition("-")
    seconds = 86400.0 * int(days or 0)
    for power, part in enumerate(reversed(clock.split(":"))):
        seconds += float(part) * 60**power
    fields = [state[0], parent, group, *["0"] * (_START_OF_STACK - 2)]
    fields[_TICKS] = str(round(seconds * _TICKS_PER_SECOND))
    return fields


def _stat(pid: int) -> list[str] | None:
    """Fields of `/proc/PID/stat` from the state on; None when the process is gone."""
    if not _HAS_PROC:
        return _listed[1].get(pid)
    text = _read(f"/proc/{pid}/stat")
    return text.rpartition(")")[2].split() if text else None


def _read(path: str) -> str:
    """A file of `/proc`, whole. A run is looked at every few milliseconds, and `open` takes five times as long."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        parts = []
        while part := os.read(descriptor, _READ_BYTES):
            parts.append(part)
        return b"".join(parts).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)
