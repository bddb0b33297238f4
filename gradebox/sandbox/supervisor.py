"""Process 1 of a run: enters the namespaces, starts one worker per rank, enforces the limits, and ends everything.

Trusted and small: runs no code of the submission, and reads of its workers' results only a token and a length. Forked
from a template for each request; hands one frame back and ends.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
import secrets
import select
import signal
import socket
import struct
import time
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from gradebox.sandbox import channel, codec, device_process, linux, observer, processes, root, seccomp, wire, worker
from gradebox.sandbox.device_process import Ends
from gradebox.sandbox.prefork_state import PreforkState
from gradebox.sandbox.types import TEXT_BYTES

_FIRST_TICK_SECONDS = {True: 0.02, False: 0.1}
"""When usage is first looked at; without a namespace of our own that means reading all of `/proc`."""
_TICK_SECONDS = 0.1
"""How often it is looked at in the end. In between the ticks grow with the run's age, by `_TICK_GROWTH` of it."""
_TICK_GROWTH = 0.1
_TERM_SECONDS = 0.3
"""Between SIGTERM, which makes a worker say where it was, and SIGKILL."""
_TOKEN_BYTES = 16
_SIDE_BYTES = 64 * 1024
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class Run:
    """One request, as a template hands it to its supervisor."""

    task: worker.Task
    """For rank 0; the others differ in `rank`."""
    ready: PreforkState
    namespaces: bool
    view: root.View
    mount_point: str
    submission: str | None
    """Folder of the copy outside; None in a reference run."""
    out: int
    """Where the reply's frame goes."""
    device: Ends
    """The connections to the simulated device, if there is one."""
    skip_pids: int = 0
    """Numbers that no rank may get, up to this one, because a process above it has one of them."""


class _Rank:
    """A worker, seen from its supervisor."""

    def __init__(self, run: Run, rank: int) -> None:
        token = secrets.token_bytes(_TOKEN_BYTES)
        closing = f"the end {secrets.token_hex(_TOKEN_BYTES)}\n".encode()
        reply = channel.open_channel(token, closing, worker.TAMPERED)
        next(reply)
        self.page = mmap.mmap(-1, mmap.PAGESIZE)
        limits = run.task.limits
        ends = {name: os.pipe() for name in ("result", "notes", "trace", "stdout", "stderr")}
        control, far_control = socket.socketpair()
        task = replace(run.task, rank=rank)
        device = run.device.ranks[rank] if run.device.ranks else None
        self.pid = os.fork()
        if self.pid == 0:
            del token, closing  # what a submission may see of this frame does not show them
            writers = {name: writer for name, (_, writer) in ends.items()}
            pipes = worker.Pipes(**writers, control=far_control.detach(), device=device)
            linux.close_all_but(
                {0, 1, 2, *(descriptor for descriptor in vars(pipes).values() if descriptor is not None)}
            )
            worker.main(task, run.ready, pipes, reply, self.page)
        self.token, self.closing = token, closing
        for _, writer in ends.values():
            os.close(writer)
        far_control.close()
        if device is not None:
            os.close(device)
        self.refusals = seccomp.Refusals(control)
        readers = {name: reader for name, (reader, _) in ends.items()}
        frame_bytes = limits.result_bytes + _TOKEN_BYTES + _LENGTH.size
        self.result = wire.Drain(readers["result"], frame_bytes + _LENGTH.size * 2)
        self.notes = wire.Drain(readers["notes"], _SIDE_BYTES)
        self.trace = wire.Drain(readers["trace"], _SIDE_BYTES)
        self.stdout = wire.Drain(readers["stdout"], TEXT_BYTES, tail=True)
        self.stderr = wire.Drain(readers["stderr"], TEXT_BYTES, tail=True)
        self.pidfd = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else None
        self.status: int | None = None
        self.failed = False
        """Whether the rank has ended in a way that may leave others waiting: a crash, or a result that is not "ok"."""
        self.cpu_seconds = 0.0
        self.starved_seconds: float | None = None
        self.verdict: tuple[str, str] | None = None
        self.kill_at: float | None = None

    @property
    def drains(self) -> tuple[wire.Drain, ...]:
        return (self.result, self.notes, self.trace, self.stdout, self.stderr)

    @property
    def running(self) -> bool:
        return self.status is None

    def condemn(self, kind: str, message: str, *, ask_first: bool) -> None:
        """Decide how this rank ends and begin to end it; the first reason stands."""
        if not self.running or self.verdict is not None:
            return
        self.verdict = (kind, message)
        # Read while the process is there: whether it was slow by itself, or for want of a processor.
        self.starved_seconds = processes.starved_seconds(self.pid)
        self.kill_at = time.monotonic() + (_TERM_SECONDS if ask_first else 0.0)
        # A stopped process would not get round to answering.
        processes.send([self.pid], signal.SIGTERM if ask_first else signal.SIGKILL)
        processes.send([self.pid], signal.SIGCONT)

    def collect(self) -> None:
        """Note the end of the worker, if it has ended."""
        if not self.running:
            return
        with contextlib.suppress(ChildProcessError):
            pid, status, used = os.wait4(self.pid, os.WNOHANG)
            if pid == 0:
                return
            self.cpu_seconds = used.ru_utime + used.ru_stime
            self.status = status
        if self.status is None:
            self.status = 0
        self.result.read()
        payload = self.payload()
        self.failed = self.verdict is not None or payload is None or b'"kind":"ok"' not in payload[:64]
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None

    def payload(self) -> bytes | None:
        """The complete result behind our token, or None."""
        data = self.result.data
        header = _TOKEN_BYTES + _LENGTH.size
        if len(data) < header or not secrets.compare_digest(data[:_TOKEN_BYTES], self.token):
            return None
        (length,) = _LENGTH.unpack_from(data, _TOKEN_BYTES)
        return data[header : header + length] if len(data) >= header + length else None

    def outcome(self) -> tuple[dict[str, Any], bytes]:
        """How the rank ended, and its result where there is one."""
        payload = self.payload()
        if self.verdict is not None:
            kind, message = self.verdict
        elif payload is not None:
            kind, message = "result", ""
        else:
            kind, message = _end(self.status or 0)
        flooded = self.notes.total_bytes > _SIDE_BYTES
        silenced = kind == "result" and not flooded and self.closing not in self.notes.data
        side = {
            "kind": kind,
            "message": message,
            "stdout": self.stdout.text,
            "stderr": self.stderr.text,
            "trace": self.trace.text,
            "notes": self.notes.text.replace(self.closing.decode(), "\n") + self.refusals.notes,
            "flooded": flooded,
            "silenced": silenced or self.page[worker.LOST] != 0,
            "voided": self.page[worker.VOIDED] != 0,
            "cpu_seconds": self.cpu_seconds,
            "starved_seconds": self.starved_seconds,
        }
        return side, payload if kind == "result" and payload is not None else b""


def _end(status: int) -> tuple[str, str]:
    """What a worker's exit status means when it sent no result."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGXCPU:
            return "timeout", "the CPU time limit was reached"
        if number == signal.SIGXFSZ:
            return "output", "a file grew over the size limit"
        return "crashed", f"the process was ended by {_signal_name(number)}"
    code = os.waitstatus_to_exitcode(status)
    return "crashed", f"the process ended itself with exit status {code} before the probe was done (os._exit?)"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def main(run: Run) -> NoReturn:
    """Carry out one run in a process forked for it. Never returns."""
    try:
        linux.close_all_but({0, 1, 2, run.out, *run.device.all})
        os.setsid()
        if linux.AVAILABLE:
            linux.die_with_parent(signal.SIGKILL)
            linux.adopt_orphans()
            linux.come_first()
            linux.join_fresh_keyring()
        if run.namespaces:
            enter(run.view, run.mount_point, run.submission, run.task)
            linux.skip_pids(run.skip_pids)
        if linux.AVAILABLE:
            # Workers of the same user must not trace us; those of root's have another uid anyway.
            linux.set_dumpable(False)
        frame = _supervise(run)
    except Exception as error:
        frame = codec.join(codec.dump_json({"failed": f"{type(error).__name__}: {error}"}))
        with contextlib.suppress(Exception):
            _end_all(run.namespaces)
    with contextlib.suppress(wire.Closed):
        wire.send(run.out, frame)
    os._exit(0)


def enter(view: root.View, mount_point: str, submission: str | None, task: worker.Task) -> None:
    """Enter fresh namespaces (the pid namespace is ours already) and the root made for `task`.

    Raises:
        OSError: this machine does not allow a step.
    """
    linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWIPC | linux.CLONE_NEWNET | linux.CLONE_NEWUTS)
    uid = os.getuid() if task.uid is None else task.uid
    root.enter(
        mount_point,
        view,
        submission=submission,
        uid=uid,
        cuda=task.device == "cuda",
        tmp_bytes=task.limits.tmp_bytes,
        work=task.work,
    )
    linux.raise_loopback()
    socket.sethostname("sandbox")


def _supervise(run: Run) -> bytes:
    """Start the ranks, watch them to their end, end everything else; the reply's frame."""
    started = time.monotonic()
    ranks: list[_Rank] = []
    observed = observer.Observer(run.task.work, own_network=run.namespaces)
    try:
        for number in range(run.task.ranks):
            ranks.append(_Rank(run, number))
        _watch(run, ranks, started, observed)
        for rank in ranks:
            for drain in rank.drains:
                drain.read()
        strays = _alive(run.namespaces)
        if strays and all(rank.verdict is None for rank in ranks):
            processes.send(strays, signal.SIGTERM)
            time.sleep(0.05)
    finally:
        if not linux.AVAILABLE:
            # Orphans are not handed to us there. Those that stayed in a rank's process group are found by it.
            processes.kill_groups(rank.pid for rank in ranks)
        _end_all(run.namespaces)
    outcomes = [rank.outcome() for rank in ranks]
    report = {"ranks": [side for side, _ in outcomes], "strays": len(strays), "system": observed.readings()}
    report["hidden"] = observed.flooded
    device = device_process.report(run.device)
    return codec.join(codec.dump_json(report), device, *(payload for _, payload in outcomes))


def _alive(namespaces: bool) -> list[int]:
    processes.reap()
    if not processes.have_children():
        return []
    return processes.others() if namespaces else processes.descendants(os.getpid())


def _kill_all(namespaces: bool) -> None:
    if namespaces:
        # From process 1, this reaches everything in the namespace at once: no fork can outrun it.
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
    else:
        processes.kill_descendants()


def _end_all(namespaces: bool) -> None:
    if not namespaces:
        processes.end_descendants()
        return
    _kill_all(namespaces)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def _watch(run: Run, ranks: list[_Rank], started: float, observed: observer.Observer) -> None:
    """Drain pipes and enforce limits until every rank has ended."""
    limits = run.task.limits
    tick = _FIRST_TICK_SECONDS[run.namespaces]
    deadline = started + limits.wall_seconds
    next_look = started + tick
    grace_ends: float | None = None
    held = processes.inherited()
    while any(rank.running for rank in ranks):
        _poll(ranks, max(0.0, min(next_look, deadline) - time.monotonic()), observed)
        now = time.monotonic()
        for rank in ranks:
            rank.collect()
            printed = rank.stdout.total_bytes + rank.stderr.total_bytes
            if printed > limits.output_bytes:
                rank.condemn("output", f"printed more than {limits.output_bytes / 2**20:g} MiB", ask_first=False)
            if rank.result.total_bytes > limits.result_bytes + 4096:
                rank.condemn("output", f"sent back more than {limits.result_bytes / 2**20:g} MiB", ask_first=False)
            if rank.running and rank.kill_at is not None and now >= rank.kill_at:
                processes.send([rank.pid], signal.SIGKILL)
        if now >= deadline:
            _condemn_all(ranks, "timeout", f"no result within {limits.wall_seconds:g} s", ask_first=True)
            deadline = now + 3600.0
        if grace_ends is None and any(rank.failed for rank in ranks):
            grace_ends = now + limits.rank_grace_seconds
        if grace_ends is not None and now >= grace_ends:
            failed = [index for index, rank in enumerate(ranks) if rank.failed]
            because = f"rank {failed[0]} had failed, and this one went on for {limits.rank_grace_seconds:g} s"
            _condemn_all(ranks, "timeout", because, ask_first=True)
            grace_ends = now + 3600.0
        if now >= next_look:
            _look(run, ranks, held)
            next_look = now + min(max(tick, _TICK_GROWTH * (now - started)), _TICK_SECONDS)


def _condemn_all(ranks: list[_Rank], kind: str, message: str, *, ask_first: bool) -> None:
    for rank in ranks:
        rank.condemn(kind, message, ask_first=ask_first)


def _poll(ranks: list[_Rank], seconds: float, observed: observer.Observer) -> None:
    """Wait for something to read or to end, at most `seconds`, and read it."""
    poller = select.poll()
    by_descriptor = {drain.descriptor: drain for rank in ranks for drain in rank.drains if drain.open}
    for descriptor in by_descriptor:
        poller.register(descriptor, select.POLLIN)
    for rank in ranks:
        if rank.pidfd is not None:
            poller.register(rank.pidfd, select.POLLIN)
    refusals = {rank.refusals.descriptor: rank.refusals for rank in ranks if rank.refusals.descriptor >= 0}
    for descriptor in refusals:
        poller.register(descriptor, select.POLLIN)
    if observed.descriptor >= 0:
        poller.register(observed.descriptor, select.POLLIN)
    for descriptor, events in poller.poll(seconds * 1e3):
        if descriptor in by_descriptor:
            by_descriptor[descriptor].read()
        elif descriptor == observed.descriptor:
            observed.read()
        elif descriptor in refusals:
            refusals[descriptor].answer(events)


def _look(run: Run, ranks: list[_Rank], held: processes.Inherited) -> None:
    """Compare what all processes use with the limits."""
    limits = run.task.limits
    pids = processes.others() if run.namespaces else processes.descendants(os.getpid(), older=processes.LISTED_SECONDS)
    processes.reap_orphans(pids, keep=[rank.pid for rank in ranks])
    used = processes.usage(pids[: limits.processes + 1], held)  # reading a whole flood would take longer than it has
    if used.tasks > limits.processes:
        _condemn_all(ranks, "crashed", f"more than {limits.processes} processes and threads", ask_first=False)
        _kill_all(run.namespaces)
    elif used.added_bytes > limits.memory_bytes and _really_added(pids, used) > limits.memory_bytes:
        _condemn_all(ranks, "memory", f"more than {limits.memory_bytes / 2**20:.0f} MiB in use", ask_first=False)
        _kill_all(run.namespaces)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    if used.cpu_seconds + ended.ru_utime + ended.ru_stime > limits.cpu_seconds:
        _condemn_all(ranks, "timeout", f"more than {limits.cpu_seconds:g} s of CPU time", ask_first=True)
    if not run.namespaces:
        size = processes.folder_bytes(run.task.work, stop_bytes=limits.tmp_bytes)
        if size > limits.tmp_bytes:
            _condemn_all(ranks, "output", f"wrote more than {limits.tmp_bytes} bytes to files", ask_first=False)


def _really_added(pids: list[int], used: processes.Usage) -> int:
    """Memory added, where processes that share pages make the quick figure too large."""
    return used.added_bytes if len(pids) == 1 else processes.added_bytes_shared_out(pids)
