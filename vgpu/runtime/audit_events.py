"""What a program cannot read or set back unseen: the history of a device's memory, and the steps of a clock.

Each is held in the local variables of a suspended generator, which no attribute, copy or pickle shows. Code that asks
for the history raises READ_EVENT, and the other ways into a generator (`gi_frame`, the frames of a traceback,
`gc.get_referents`) raise audit events of Python's own; only native code sees it unseen. Not here: who may ask.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Generator
from typing import Any, Protocol

from vgpu.device.remote import LAUNCH_EVENT

READ_EVENT = "vgpu.record"
"""Audit event (`sys.addaudithook`) of somebody asking a GPU for what it has recorded; the argument says for what."""
BROKEN_EVENT = "vgpu.broken"
"""Audit event: a program has changed what the virtual GPU knows by itself; the argument says what."""
READ = object()
"""Sent to a history: asks for it."""
UNKNOWN = object()
"""The answer of `kernels` to what it does not know."""
_MOST_KNOWN = 20_000
LATEST = object()
"""Sent to a history of memory: asks for the bytes allocated now, and the most since it was asked the last time."""

# Bound here: a program may replace `sys.audit`.
_audit = sys.audit


def history(audit: Callable[..., None] = _audit) -> Generator[Any, Any, None]:
    """Keeps what is sent, or each item of a list; READ is answered with the list of it all, and raises READ_EVENT.

    So does LATEST, which is answered with two numbers: bytes allocated now, and the most since it was sent the last
    time. Both are added up here from what each address got and gave back. What an event says of the sum is a figure of
    the allocator, which code can write.
    """
    events: list[Any] = []
    live: dict[Any, int] = {}
    held = most = 0
    answer: Any = None
    while True:
        message = yield answer
        answer = None
        if message is READ:
            audit(READ_EVENT, "memory")
            answer = events
            continue
        if message is LATEST:
            audit(READ_EVENT, "memory")
            answer = held, most
            # Memory that is allocated now counts at the next reading as well.
            most = held
            continue
        if type(message) is list:
            events += message
            if len(message) == 2 and message[0][5] == message[1][5] and message[0][4] == -message[1][4] > 0:
                # The address gives back at once what it got: only the most can be another.
                most = max(most, held + message[0][4])
                continue
        else:
            events.append(message)
            message = (message,)
        for event in message:
            _, _, _, _, change, address, _ = event
            before = live.get(address, 0)
            after = before + change
            if after > 0:
                live[address] = after
            else:
                after = 0  # nobody gives back more than there is
                live.pop(address, None)
            held += after - before
            if held > most:
                most = held


def living(bytes_of: Callable[[Any], int], audit: Callable[..., None] = _audit) -> Generator[Any, Any, None]:
    """Knows the storages on a GPU by themselves, whatever a program writes into the registry or the allocator.

    `bytes_of` says how many bytes a storage has.

    A pair of a storage and its bytes is a new one, a list of one storage has another size now, and a list of two hands
    the bytes of the first to the second, which raises LAUNCH_EVENT. The answer to a set of addresses (`_cdata`) is
    whether one of them is of a storage that lives, to None the bytes of all that live.

    A message is lost if it comes while the generator runs: from a signal handler, a finalizer or another thread. So no
    storage counts more bytes than it really has, in case the lost message said that it was resized to fewer.
    """
    rows: dict[int, tuple[Any, int]] = {}
    reference, kind_of, found, total, least = weakref.ref, type, any, sum, min
    answer: Any = None
    while True:
        message: Any = yield answer
        answer = None
        try:
            if kind_of(message) is tuple:
                storage, size = message
                before = rows.get(storage._cdata)
                if before is not None and before[0]() is storage:
                    size = max(size, before[1])
                rows[storage._cdata] = reference(storage), size
            elif message is None:
                rows = {key: row for key, row in rows.items() if row[0]() is not None}
                alive: Any = [(row[0](), row[1]) for row in rows.values()]
                answer = total([least(size, bytes_of(storage)) for storage, size in alive if storage is not None])
            elif kind_of(message) is frozenset:
                answer = found(key in rows and rows[key][0]() is not None for key in message)
            else:
                *sources, storage = message
                size = bytes_of(storage)
                if sources:
                    audit(LAUNCH_EVENT)
                    (source,) = sources
                    size = rows[source._cdata][1]
                    rows[source._cdata] = reference(source), 0
                rows[storage._cdata] = reference(storage), size
        except Exception:  # a message that says nothing
            pass
        # Held here, the last storage would live until the next one comes.
        message = storage = source = sources = alive = None


def kernels(audit: Callable[..., None] = _audit) -> Generator[Any, Any, None]:
    """Remembers kernels by what decides them: a tuple is looked up (UNKNOWN if it is new), a list is a tuple and what
    to remember for it.

    To remember raises LAUNCH_EVENT: whoever could write into the table would choose what the device is asked to do.
    """
    known: dict[tuple[Any, ...], Any] = {}
    find, kind_of, unknown, answer = known.get, type, UNKNOWN, None
    while True:
        message = yield answer
        answer = None
        try:
            if kind_of(message) is tuple:
                answer = find(message, unknown)
            else:
                audit(LAUNCH_EVENT)
                if len(known) < _MOST_KNOWN:
                    known[message[0]] = message[1]
        except TypeError:  # it cannot be looked up
            continue


class Clock(Protocol):
    """Something that has a time."""

    now: float


class Keeper:
    """What a program holds of a history."""

    def __init__(self, kept: Generator[Any, Any, None]) -> None:
        next(kept)
        self.tell: Callable[[Any], Any] = kept.send
        self._late: list[Any] = []

    def keep(self, item: Any) -> None:
        """Send what needs no answer. A signal handler's or finalizer's waits until what it interrupted is kept."""
        late = self._late
        if not late:
            try:
                self.tell(item)
            except ValueError:  # the generator is running
                late.append(item)
                return
            if not late:  # nothing came in between
                return
        else:
            late.append(item)
        while late:
            first = late.pop(0)
            try:
                self.tell(first)
            except ValueError:
                late.insert(0, first)
                return


def steps(clock: Clock, audit: Callable[..., None] = _audit) -> Generator[bool, float | None, None]:
    """Moves `clock` to each moment that is sent; for None, the answer is whether nobody else has moved it.

    It does so itself, so that a signal handler or a finalizer finds both or none of the two moved. Going back raises
    READ_EVENT: only the virtual data loader has a reason to.
    """
    now = clock.now
    alone = True
    while True:
        moment = yield alone and clock.now == now
        if moment is None:
            continue
        if clock.now != now:
            alone = False
        if moment < now:
            audit(READ_EVENT, "a clock set back")
        clock.now = now = moment
