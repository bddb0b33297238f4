"""The program's side of a device in a process of its own: it sends work, and may ask only for what CUDA reports.

Launches are written down and sent by the thousand; a program asks the device only to wait for it. The record of what
ran, and of how slow the device is made, stays there. Not here: the device's side (`vgpu.device.service`).
"""

from __future__ import annotations

import _thread
import json
import os
import struct
import sys
from collections import deque
from collections.abc import Callable, Generator, Sequence
from multiprocessing.connection import Connection
from typing import Any

from vgpu.device import messages
from vgpu.device.kernel_work import KernelWork
from vgpu.device.pricing import Pricing
from vgpu.device.queue import LAUNCH_QUEUE_DEPTH, Kernel, Queue, Slowdown
from vgpu.device.timestamps import Later

LAUNCH_EVENT = "vgpu.tools.launch"
"""Audit event (`sys.addaudithook`) of a launch that is sent, and, with ASKED, of a question."""
ASKED = "asked"
_SENT_BYTES = 48 * 1024
"""So much is written down at most before it is sent."""

# Bound here: a program may replace `sys.audit`.
_audit = sys.audit
_NAN = float("nan")
_PACK = messages.LAUNCH.pack
_HEADER = struct.Struct("!i").pack
"""In front of what `Connection.recv_bytes` reads."""
_AT_ONCE = frozenset(("question", "reading"))
_NESTED = 4
"""Handlers and finalizers that may interrupt each other while they launch or ask."""


class DeviceLost(RuntimeError):
    """The device's process ends the connection: it has ended, or got a message that makes no sense."""


class Line:
    """A process's connection to its device's, shared by the queues of all GPUs that it sees.

    What is written to it, and the numbers of all that was written, are in the local variables of suspended generators
    (`_writer`): a program that could change them would choose what the device records. Each message raises LAUNCH_EVENT
    before it is written, by which a grader sees who writes it.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # A real lock, whose holder waits in real time.
        self._lock = _thread.RLock()
        self._answers: dict[int, Any] = {}
        self._writers = _writers(connection)
        self.tell: Callable[[Any], Any] = self._writers[0]
        """Takes what is to be written (`_writer`)."""
        greeting = self.ask("greeting")
        self.slows_the_host: bool = greeting["slows the host"]
        self.is_open: bool = greeting["open"]
        """Whether the record may be read here, and the device slowed down."""

    def put(self, message: bytes) -> None:
        """Send it, now or later."""
        self._say(message)

    def launch(self, entry: tuple[int, int, KernelWork, float, float, str, float]) -> None:
        """An entry for a stream: GPU, stream, work, when its launch began, how long that took the host, the thread, and
        seconds (NaN where the device has to say)."""
        # `_say`, written out: this is part of every launch.
        with self._lock:
            try:
                error = self.tell(entry)
            except ValueError:  # in a signal's handler or a finalizer that has interrupted it
                error = self._say_meanwhile(entry)
        if error is not None:
            raise error

    def numbered(self, kind: str, message: bytes) -> int:
        """Send an "event", a "mark" or "memory"; its number."""
        return int(self._say((kind, message)))

    def ask(self, *question: Any) -> Any:
        """The device's answer. Raises DeviceLost, and LAUNCH_EVENT."""
        with self._lock:
            number = self._say(("question", question))
            # A signal's handler that asks while we wait reads our answer, too.
            while number not in self._answers:
                try:
                    key, answer = json.loads(self._connection.recv_bytes())
                except (OSError, EOFError):
                    raise DeviceLost("the virtual GPU's process has ended") from None
                self._answers[key] = answer
            return self._answers.pop(number)

    def mark(self) -> int:
        """A place in the record of all GPUs; its number."""
        return self.numbered("mark", messages.MARK.pack(b"M"))

    def next_stage(self) -> None:
        """The program goes on to its next stage, with which conditions of the device may begin."""
        self.put(messages.text("stage"))

    def read(self, gpu: int, what: str, begin: int, end: int, arguments: dict[str, Any]) -> int:
        """Have the record between two marks read, for the process that started the device; the reading's number."""
        return int(self._say(("reading", ("read", gpu, what, begin, end, arguments))))

    def read_memory(self, gpu: int, what: str, begin: int, end: int) -> int:
        """Have bytes allocated between two marks read (`RemoteQueue.mark_memory`); the reading's number.

        `what` is the "peak" between them, what that "added", or what is "held" at the end, both beyond the beginning.
        """
        return int(self._say(("reading", ("memory", gpu, what, begin, end))))

    def _say(self, message: Any) -> Any:
        with self._lock:
            try:
                answer = self.tell(message)
            except ValueError:
                answer = self._say_meanwhile(message)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _say_meanwhile(self, message: Any) -> Any:
        for tell in self._writers[1:]:
            try:
                return tell(message)
            except ValueError:
                continue
        return DeviceLost("too many handlers have interrupted each other")


def _writers(connection: Connection) -> tuple[Callable[[Any], Any], ...]:
    """The `send` of writers to a connection that share what they have written: one interrupts the other."""
    state = _Written()
    made = [_writer(connection.fileno(), state) for _ in range(_NESTED)]
    for writer in made:
        next(writer)
    return tuple(writer.send for writer in made)


class _Written:
    """What a connection's writers share."""

    __slots__ = ("counts", "known", "sent", "threads", "unsent", "works")

    def __init__(self) -> None:
        self.unsent = bytearray()
        self.sent = 0
        """Bytes that were sent, or are about to be; the device counts them, too."""
        self.works: dict[KernelWork, int] = {}
        self.known = 0
        self.threads: dict[str, int] = {}
        self.counts = dict.fromkeys(("event", "mark", "memory", "reading", "question"), 0)


def _writer(descriptor: int, state: _Written) -> Generator[Any, Any, None]:
    """Writes down what it is sent, and answers with a number, None, or an exception.

    A tuple of seven is a launch, bytes a message without a number, a pair one that gets the next number of its kind: of
    a "reading" or a "question" it has the items, and sends all that is written. A signal's handler may run between any
    two calls: so what belongs together is changed without a call in between.
    """
    # Bound here: a program may replace these.
    audit, write, pack, text, kind_of, size = _audit, os.write, _PACK, messages.text, type, len
    header, fresh, as_bytes, view, view_of = _HEADER, bytearray, bytes, memoryview, OSError
    works, threads, counts = state.works, state.threads, state.counts
    answer: Any = None
    while True:
        message = yield answer
        answer = None
        try:
            if size(message) == 7 and kind_of(message) is tuple:
                audit(LAUNCH_EVENT)
                gpu, stream, work, launched_at, host_seconds, thread, seconds = message
                number = works.get(work)
                if number is None:
                    data = text("work", work)
                    state.unsent += data
                    works[work] = number = state.known
                    state.known += 1
                by = threads.get(thread)
                if by is None:
                    data = text("thread", thread)
                    by = size(threads)
                    state.unsent += data
                    threads[thread] = by
                state.unsent += pack(b"L", gpu, by, stream, number, launched_at, host_seconds, seconds)
                flush = size(state.unsent) > _SENT_BYTES
            elif kind_of(message) is as_bytes:
                audit(LAUNCH_EVENT, ASKED)
                state.unsent += message
                flush = size(state.unsent) > _SENT_BYTES
            else:
                audit(LAUNCH_EVENT, ASKED)
                kind, items = message
                flush = kind in _AT_ONCE
                if kind == "question":
                    items = text("ask", *items)
                elif kind == "reading":
                    # Whoever writes to the connection beside us is found out by the number of bytes.
                    items = text(*items, state.sent + size(state.unsent))
                answer = counts[kind]
                state.unsent += items
                counts[kind] = answer + 1
                flush = flush or size(state.unsent) > _SENT_BYTES
            while flush and state.unsent:
                empty = fresh()
                batch, state.unsent = state.unsent, empty
                state.sent += size(batch)
                left = view(header(size(batch)) + batch)
                while left:
                    left = left[write(descriptor, left) :]
        except view_of:
            answer = DeviceLost("the virtual GPU's process has ended")
        except Exception as error:  # the program's: it goes on without this message
            answer = error


class RemoteQueue(Queue):
    """The streams of one GPU, as its program knows them."""

    def __init__(self, line: Line, pricing: Pricing, index: int = 0) -> None:
        super().__init__(pricing, index)
        self.line = line
        # For each stream the moments at which it has room for the launches to come, as far as they are known.
        self._room: list[deque[float]] = []
        self._add_stream()

    def _add_stream(self) -> int:
        self._room.append(deque([0.0] * LAUNCH_QUEUE_DEPTH))
        return len(self._room) - 1

    def new_stream(self, now: float) -> int:
        """See `Queue`."""
        self.line.put(messages.STREAM.pack(b"S", self._index, now))
        self.has_several_streams = True
        return self._add_stream()

    def submit(
        self,
        work: KernelWork,
        stream: int,
        launched_at: float,
        host_seconds: float,
        thread: str,
        seconds: float | None = None,
    ) -> float:
        """See `Queue`. Raises LAUNCH_EVENT."""
        room = self._room[stream]
        if not room:
            # The stream has taken as many as it holds: each launch to come waits until one more of these is done.
            room.extend(self.line.ask("pending", self._index, stream))
        free = room.popleft()
        self.line.launch(
            (self._index, stream, work, launched_at, host_seconds, thread, _NAN if seconds is None else seconds)
        )
        return max(launched_at + host_seconds, free)

    def slowed(self, name: str, seconds: float, flops: float = 0.0) -> float:
        """See `Queue`."""
        return float(self.line.ask("slowed", self._index, name, seconds, flops))

    def slow_down(self, slowdown: Slowdown) -> None:
        """See `Queue`."""
        _audit(LAUNCH_EVENT, ASKED)
        if not self.line.is_open:
            raise RuntimeError("how fast the virtual GPU is, is not a submission's to say while it is graded")
        self.line.put(
            messages.text(
                "slow", self._index, slowdown.factor, slowdown.skip, slowdown.count, slowdown.min_flops, slowdown.name,
                slowdown.on_host,
            )
        )  # fmt: skip
        self.line.slows_the_host |= slowdown.on_host

    def ready_at(self, stream: int | None = None) -> float:
        """See `Queue`."""
        return float(self.line.ask("ready", self._index, stream))

    def event(self, stream: int, now: float) -> Later:
        """See `Queue`."""
        number = self.line.numbered("event", messages.EVENT.pack(b"E", self._index, stream, now))
        return Later(number, self._moment)

    def _moment(self, number: int) -> float:
        return float(self.line.ask("event", number))

    def hold_until(self, stream: int, moment: float | Later) -> None:
        """See `Queue`."""
        if isinstance(moment, Later):
            self.line.put(messages.HOLD_EVENT.pack(b"h", self._index, stream, moment.number))
        else:
            self.line.put(messages.HOLD.pack(b"H", self._index, stream, moment))

    def slowest_is_late_by(self, ranks: int) -> float:
        """See `Queue`."""
        return float(self.line.ask("late", self._index, ranks))

    def level(self) -> None:
        """See `Queue`."""
        self.line.put(messages.LEVEL.pack(b"V", self._index))

    def mark_memory(self, allocated_bytes: int, peak_bytes: int) -> int:
        """A place in the record of memory, with what is allocated and the most since the place before; its number."""
        return self.line.numbered("memory", messages.MEMORY.pack(b"A", self._index, allocated_bytes, peak_bytes))

    @property
    def busy_seconds(self) -> float:  # type: ignore[override]
        """See `Queue`."""
        return float(self.line.ask("busy", self._index))

    @property
    def timeline(self) -> list[Kernel]:
        """See `Queue`."""
        _audit(LAUNCH_EVENT, ASKED)
        if not self.line.is_open:
            raise RuntimeError("the virtual GPU keeps its record to itself while a submission is graded")
        return [_kernel(fields) for fields in self.line.ask("kernels", self._index)]

    def last(self) -> Kernel:
        """See `Queue`."""
        return _kernel(self.line.ask("last", self._index))

    def busy_between(self, begin: float, end: float) -> float:
        """See `Queue`."""
        return float(self.line.ask("between", self._index, begin, end))

    def moved_between(self, begin: float, end: float, *, since: float, name: str = "") -> float:
        """See `Queue`."""
        return float(self.line.ask("moved", self._index, begin, end, since, name))


def _kernel(fields: Sequence[Any]) -> Kernel:
    name, launched_at, start, seconds, stream, flops, moved, dtype, shapes, thread, host_seconds, _ = fields
    return Kernel(
        name, launched_at, start, seconds, stream, flops, moved, dtype, tuple(map(tuple, shapes)), thread, host_seconds
    )
