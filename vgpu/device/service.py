"""A device in a process of its own: takes work from the ranks of one program, and answers only what CUDA reports.

Only the process that starts it (a grader) knows how slow the device is made, and reads what ran: `Service.readings`.
Programs are not trusted: each message is checked, and a rank that sends nonsense is cut off, with a reason. Not here:
the program's side (`vgpu.device.remote`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from vgpu.device import messages
from vgpu.device.kernel_work import KernelWork
from vgpu.device.messages import Malformed, number, whole, word
from vgpu.device.pricing import Pricing
from vgpu.device.queue import DeviceQueue, Kernel, Slowdown
from vgpu.device.spec import Interconnect, Spec

MAX_ENTRIES = 4_000_000
"""Launches, events, marks and works that one rank may send: some hundred bytes each."""
MAX_STREAMS = 4096
MAX_READINGS = 10_000
MAX_READING_BYTES = 2**20
"""Of all readings of a rank."""
_COUNT = 2**62
_LAUNCH = b"L"[0]
_NEVER = math.inf

Reader = Callable[[str, Sequence[Kernel], int, int, Mapping[str, Any]], Any]
"""Makes a JSON value of what ran: (what is asked, all kernels so far, first and last of those meant, arguments)."""


@dataclass(frozen=True)
class Condition:
    """A slow device: a `Slowdown` that begins with a stage of a rank's program (0: at once)."""

    slowdown: Slowdown
    stage: int = 0
    rank: int | None = None
    """None: every rank's."""


def condition_of(fields: Mapping[str, Any]) -> Condition:
    """A condition from JSON: `factor`, and perhaps `skip`, `count`, `min_flops`, `name`, `on_host`, `stage`, `rank`."""
    rest = {**fields}
    stage, rank = rest.pop("stage", 0), rest.pop("rank", None)
    usual = {"skip": 0, "count": _COUNT, "min_flops": 0.0, "name": None}
    return Condition(Slowdown(**{**usual, **rest}), stage, rank)


class _Rank:
    """What one process has sent."""

    def __init__(self, queues: Sequence[DeviceQueue], conditions: Sequence[Condition], reader: Reader) -> None:
        self.queues = queues
        self.conditions = conditions
        self.readings: list[Any] = []
        self.fault = ""
        self._reader = reader
        self._read_bytes = 0
        self._works: list[KernelWork] = []
        self._threads: list[str] = []
        self._events: list[float] = []
        self._marks: list[tuple[int, ...]] = []
        self._memory: list[tuple[DeviceQueue, int, int]] = []
        self._entries = 0
        self._taken = 0
        self._asked = 0
        self._stage = 0
        self._apply()

    def take(self, data: bytes, *, open_record: bool) -> list[bytes]:
        """Do what a message says; the answers to what it asks. Raises Malformed."""
        answers, place, end = list[bytes](), 0, len(data)
        launches = messages.LAUNCH
        while place < end:
            if data[place] == _LAUNCH and place + launches.size <= end:  # nearly all
                self._count()
                self._launch(*launches.unpack_from(data, place))
                place += launches.size
                continue
            kind = data[place : place + 1]
            size = messages.SIZES.get(kind)
            if size is None or place + size > end:
                raise Malformed("a message of no known kind")
            self._count()
            if kind == b"T":
                after = place + size + messages.TEXT.unpack_from(data, place)[1]
                if after > end:
                    raise Malformed("a text without its end")
                answer = self._text(data[place + size : after], open_record, self._taken + place)
                if answer is not None:
                    answers.append(answer)
                place = after
                continue
            self._other(kind, data, place)
            place += size
        self._taken += end
        return answers

    def _count(self) -> None:
        self._entries += 1
        if self._entries > MAX_ENTRIES:
            raise Malformed(f"more than {MAX_ENTRIES} launches")

    def _queue(self, gpu: object) -> DeviceQueue:
        return self.queues[whole(gpu, len(self.queues) - 1)]

    def _stream(self, queue: DeviceQueue, stream: object) -> int:
        return whole(stream, queue.streams - 1)

    def _launch(
        self,
        _kind: bytes,
        gpu: int,
        thread: int,
        stream: int,
        work: int,
        launched_at: float,
        host_seconds: float,
        seconds: float,
    ) -> None:
        # Numbers of a fixed width are none below 0; and NaN is in no interval.
        if not (0.0 <= launched_at < _NEVER and 0.0 <= host_seconds < _NEVER) or seconds < 0 or seconds == _NEVER:
            raise Malformed("a launch at no time")
        try:
            queue, kernel, name = self.queues[gpu], self._works[work], self._threads[thread]
        except IndexError:
            raise Malformed("a launch of what there is not") from None
        if stream >= queue.streams:
            raise Malformed("a launch on no stream")
        queue.submit(kernel, stream, launched_at, host_seconds, name, seconds if seconds >= 0 else None)

    def _other(self, kind: bytes, data: bytes, place: int) -> None:
        if kind == b"M":
            self._marks.append(tuple(len(queue) for queue in self.queues))
            return
        queue = self._queue(data[place + 1])
        if kind == b"H":
            _, _, stream, moment = messages.HOLD.unpack_from(data, place)
            queue.hold_until(self._stream(queue, stream), number(moment))
        elif kind == b"h":
            _, _, stream, event = messages.HOLD_EVENT.unpack_from(data, place)
            queue.hold_until(self._stream(queue, stream), self._events[whole(event, len(self._events) - 1)])
        elif kind == b"E":
            _, _, stream, now = messages.EVENT.unpack_from(data, place)
            self._events.append(queue.event(self._stream(queue, stream), number(now)))
        elif kind == b"A":
            _, _, allocated, peak = messages.MEMORY.unpack_from(data, place)
            self._memory.append((queue, allocated, max(allocated, peak)))
        elif kind == b"S":
            if queue.streams >= MAX_STREAMS:
                raise Malformed(f"more than {MAX_STREAMS} streams")
            queue.new_stream(number(messages.STREAM.unpack_from(data, place)[2]))
        else:
            queue.level()

    def _text(self, data: bytes, open_record: bool, before: int) -> bytes | None:
        """`before`: bytes that came before this text."""
        try:
            kind, *items = json.loads(data)
            if kind in ("read", "memory") and items.pop() != before:
                raise Malformed("bytes that the program's side has not sent")
            if kind == "ask":
                self._asked += 1
                return json.dumps([self._asked - 1, self._answer(open_record, *items)]).encode()
            if kind == "work":
                self._works.append(messages.work_of(*items))
            elif kind == "thread":
                self._threads.append(word(*items))
            elif kind == "slow" and open_record:
                self._slow(*items)
            elif kind == "read":
                self._read(*items)
            elif kind == "memory":
                self._read_memory(*items)
            elif kind == "stage":
                self._stage += 1
                self._apply()
            else:
                raise Malformed(f"a text of kind {kind!r}")
        except (TypeError, ValueError, RecursionError):
            raise Malformed("a text that says nothing") from None
        return None

    def _answer(self, open_record: bool, what: str, gpu: Any = 0, *rest: Any) -> Any:
        if what == "greeting":
            return {
                "slows the host": any(condition.slowdown.on_host for condition in self.conditions),
                "open": open_record,
            }
        if what == "event":
            return self._events[whole(gpu, len(self._events) - 1)]
        queue = self._queue(gpu)
        if what == "ready":
            (stream,) = rest
            return queue.ready_at(None if stream is None else self._stream(queue, stream))
        if what == "pending":
            return queue.pending(self._stream(queue, *rest))
        if what == "slowed":
            name, seconds, flops = rest
            return queue.slowed(word(name), number(seconds), number(flops))
        if what == "late":
            (ranks,) = rest
            return queue.slowest_is_late_by(whole(ranks, 2**20))
        if what == "busy":
            return queue.busy_seconds
        if what == "between":
            begin, end = rest
            return queue.busy_between(number(begin), number(end))
        if what == "moved":
            begin, end, since, name = rest
            return queue.moved_between(number(begin), number(end), since=number(since), name=word(name))
        if what == "last":
            return astuple(queue.last()) if len(queue) else None
        if what == "kernels" and open_record:
            return [astuple(kernel) for kernel in queue.timeline]
        raise Malformed(f"a question about {what!r}")

    def _slow(self, gpu: Any, factor: Any, skip: Any, count: Any, min_flops: Any, name: Any, on_host: Any) -> None:
        if number(factor) <= 0:
            raise Malformed("a device that needs no time")
        named = None if name is None else word(name)
        slowdown = Slowdown(
            factor, whole(skip, _COUNT), whole(count, 2 * _COUNT), number(min_flops), named, on_host is True
        )
        self._queue(gpu).slow_down(slowdown)

    def _read(self, gpu: Any, what: Any, begin: Any, end: Any, arguments: Any) -> None:
        if not isinstance(arguments, dict):
            raise Malformed("a reading without arguments")
        queue, last = self._queue(gpu), len(self._marks) - 1
        first, stop = (self._marks[whole(mark, last)][gpu] for mark in (begin, end))
        self._add_reading(self._reader(word(what), queue.timeline, first, stop, arguments))

    def _read_memory(self, gpu: Any, what: Any, begin: Any, end: Any) -> None:
        queue, last = self._queue(gpu), len(self._memory) - 1
        first, stop = whole(begin, last), whole(end, last)
        rows = [(allocated, peak) for owner, allocated, peak in self._memory[first : stop + 1] if owner is queue]
        if not rows:
            raise Malformed("a reading of memory that nobody has marked")
        # The peak of the first row is that of the time before it.
        peak = max([rows[0][0], *(most for _, most in rows[1:])])
        figures = {"peak": peak, "added": peak - rows[0][0], "held": rows[-1][0] - rows[0][0]}
        if word(what) not in figures:
            raise Malformed(f"there is no memory {what!r}")
        self._add_reading(figures[what])

    def _add_reading(self, value: Any) -> None:
        if len(self.readings) >= MAX_READINGS:
            raise Malformed(f"more than {MAX_READINGS} readings")
        self._read_bytes += len(json.dumps(value))
        if self._read_bytes > MAX_READING_BYTES:
            raise Malformed(f"readings of more than {MAX_READING_BYTES} bytes")
        self.readings.append(value)

    def _apply(self) -> None:
        """Conditions that begin now: a queue counts its own hits."""
        for condition in self.conditions:
            if condition.stage == self._stage:
                for queue in self.queues:
                    queue.slow_down(Slowdown(*astuple(condition.slowdown)))


class _KeptPricing(Pricing):
    """Prices each work of a rank once: ranks keep all that they have sent, so that its identity says which it is."""

    def __init__(self, spec: Spec, link: Interconnect) -> None:
        super().__init__(spec, link)
        self._kept: dict[int, float] = {}

    def seconds(self, work: KernelWork) -> float:
        """See `Pricing`."""
        seconds = self._kept.get(id(work))
        if seconds is None:
            seconds = self._kept[id(work)] = super().seconds(work)
        return seconds


class Service:
    """The devices of all ranks of one program. Each rank sees `gpus` of them, equal ones, joined by `link`."""

    def __init__(
        self,
        spec: Spec,
        link: Interconnect,
        *,
        ranks: int,
        gpus: int,
        conditions: Sequence[Condition] = (),
        reader: Reader,
        open_record: bool = False,
    ) -> None:
        """`open_record`: programs may read it themselves, and slow the device down."""
        pricing = _KeptPricing(spec, link)
        self._open_record = open_record
        self._ranks = [
            _Rank(
                [DeviceQueue(pricing, index) for index in range(gpus)],
                [condition for condition in conditions if condition.rank in (None, rank)],
                reader,
            )
            for rank in range(ranks)
        ]

    def serve(self, lines: Sequence[Connection], control: Connection) -> None:
        """Be there for the ranks at the other ends of `lines` until somebody at `control` says a word."""
        open_lines = dict(zip(lines, self._ranks, strict=True))
        while True:
            ready = wait([control, *open_lines])
            for line in [connection for connection in ready if connection in open_lines]:
                self._hear(line, open_lines)
            if control in ready:
                break
        for line in list(open_lines):
            while line in open_lines and line.poll():
                self._hear(line, open_lines)

    def _hear(self, line: Connection, open_lines: dict[Connection, _Rank]) -> None:
        rank = open_lines[line]
        try:
            for answer in rank.take(line.recv_bytes(2**27), open_record=self._open_record):
                line.send_bytes(answer)
            return
        except Malformed as error:
            rank.fault = str(error)
        except (OSError, EOFError):
            pass  # it has ended
        del open_lines[line]
        line.close()

    @property
    def readings(self) -> list[list[Any]]:
        """What each rank has had read, in the order in which it did."""
        return [rank.readings for rank in self._ranks]

    def shown(self, count: int) -> list[list[tuple[str, float, float, str]]]:
        """For each rank what ran last on the GPU that it used most, `count` kernels at most, to be drawn.

        Rows of lane, begin and duration in seconds, and name: one of the lane `host` for each launch, one of
        `stream N` for the kernel. Time begins with the first launch.
        """
        return [_rows(max(rank.queues, key=len).recent(count)) for rank in self._ranks]

    @property
    def faults(self) -> list[str]:
        """Why a rank was cut off; empty where it was not."""
        return [rank.fault for rank in self._ranks]


def _rows(kernels: Sequence[Kernel]) -> list[tuple[str, float, float, str]]:
    zero = min((kernel.launched_at for kernel in kernels), default=0.0)
    return [
        row
        for kernel in kernels
        for row in (
            ("host", kernel.launched_at - zero, kernel.host_seconds, kernel.name),
            (f"stream {kernel.stream}", kernel.start - zero, kernel.seconds, kernel.name),
        )
    ]
