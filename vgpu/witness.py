"""What a program cannot read or set back unseen: the record of a device's kernels, and the steps of a clock.

Each is held in the local variables of a suspended generator, which no attribute, copy or pickle shows. Whoever asks for
the record raises READ_EVENT, and the other ways into a generator (`gi_frame`, the frames of a traceback,
`gc.get_referents`) raise audit events of Python's own; only native code sees it unseen. Not here: who may ask.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from typing import Any, Protocol

READ_EVENT = "vgpu.record"
"""Audit event (`sys.addaudithook`) of somebody asking a GPU for what it has recorded; the argument says for what."""
LAUNCH_EVENT = "vgpu.launch"
"""Audit event of a launch that is kept, or will be."""
TIMELINE = "timeline"
TRACED = "launches, by tracing them"
READ = object()
"""Sent to a history: asks for it."""

# Bound here: a program may replace `sys.audit`.
_audit = sys.audit


def record(
    make: Callable[..., Any],
    audit: Callable[..., None] = _audit,
    traced: Callable[[], object] = sys.gettrace,
    profiled: Callable[[], object] = sys.getprofile,
) -> Generator[Any, Any, None]:
    """Keeps launches and hiccups. What is sent decides:

    - (name, seconds, flops): the answer is how long such a kernel takes with the hiccups that hit it.
    - a longer tuple, the arguments of `make`: a launch to keep. Raises LAUNCH_EVENT, and READ_EVENT while functions are
      traced, since a trace function is handed our frame.
    - TIMELINE: the answer is the list of everything that was launched, made by `make`; raises READ_EVENT.
    - None: the answer is whether what was kept can be so: on a stream, nothing overlaps.
    - anything else is a hiccup (`Slowdown`) to apply from now on; raises READ_EVENT.
    """
    entries: list[tuple[Any, ...]] = []
    made: list[Any] = []
    hiccups: list[Any] = []
    answer: Any = None
    while True:
        asked = yield answer
        answer = None
        if type(asked) is tuple:
            if len(asked) == 3:
                name, seconds, flops = asked
                for hiccup in hiccups:
                    if hiccup.applies(name, flops):
                        seconds *= hiccup.factor
                answer = seconds
                continue
            audit(LAUNCH_EVENT)
            if traced() is not None or profiled() is not None:
                audit(READ_EVENT, TRACED)
            entries.append(asked)
        elif asked is None:
            # Sorted, because a signal handler's launch may have been kept before the one that it interrupted.
            spans = sorted((stream, start, start + seconds) for _, _, start, seconds, stream, *_ in entries)
            answer = all(
                start <= end and (stream != before or start >= free)
                for (stream, start, end), (before, _, free) in zip(spans, [(-1, 0.0, 0.0), *spans], strict=False)
            )
        elif asked is TIMELINE:
            audit(READ_EVENT, TIMELINE)
            made += [make(*entry) for entry in entries[len(made) :]]
            answer = made
        else:
            audit(READ_EVENT, "pace")
            hiccups.append(asked)


def history(audit: Callable[..., None] = _audit) -> Generator[Any, Any, None]:
    """Keeps what is sent; READ is answered with the list of it all, and raises READ_EVENT."""
    events: list[Any] = []
    answer: Any = None
    while True:
        asked = yield answer
        answer = None
        if asked is READ:
            audit(READ_EVENT, "memory")
            answer = events
        else:
            events.append(asked)


class Clock(Protocol):
    """Something that has a time."""

    now: float


class Keeper:
    """What a program holds of a record or a history."""

    def __init__(self, kept: Generator[Any, Any, None], late_event: str = "") -> None:
        """`late_event` is raised where something has to wait: what keeps it later is not who sent it."""
        next(kept)
        self._late_event = late_event
        self.tell: Callable[[Any], Any] = kept.send
        self._late: list[Any] = []

    def keep(self, item: Any) -> None:
        """Send what needs no answer. A signal handler's or finalizer's waits until what it interrupted is kept."""
        late = self._late
        if not late:
            try:
                self.tell(item)
            except ValueError:  # the generator is running
                if self._late_event:
                    _audit(self._late_event)
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
                if self._late_event:
                    _audit(self._late_event)
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
