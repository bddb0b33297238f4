"""What a probe keeps to itself beside what it hands out: notes of what was called, and how long something takes.

They lie in the local variables of suspended generators, which no attribute, closure or copy shows; the ways into one
(`gi_frame`, the collector) raise audit events. Imports nothing of `grader`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeAlias

Noted: TypeAlias = Any
"""What a probe notes: what it is, the probe itself knows."""


def notes() -> tuple[Callable[[Noted], None], Callable[[], list[Noted]]]:
    """A function that notes a value, to be handed out, and one that lists what was noted, for the probe alone."""
    key, lock = object(), threading.Lock()
    noting = _noting(key)
    next(noting)

    def note(value: Noted) -> None:
        with lock:  # a generator runs in one thread at a time
            noting.send(value)

    def noted() -> list[Noted]:
        with lock:
            return noting.send(key)

    return note, noted


def _noting(key: object) -> Generator[list[Noted], object]:
    values: list[Noted] = []
    value = yield []
    while True:
        if value is key:
            value = yield list(values)
        else:
            values.append(value)
            value = yield []


def in_turn(values: Sequence[float], rest: float) -> Callable[[], float]:
    """A function that returns these values one after the other, and `rest` from then on."""
    turns, lock = _turns(values, rest), threading.Lock()
    next(turns)

    def take() -> float:
        with lock:  # a generator runs in one thread at a time
            return next(turns)

    return take


def _turns(values: Sequence[float], rest: float) -> Generator[float]:
    values = list(values)
    yield rest
    yield from values
    while True:
        yield rest


def nap(seconds: float) -> Callable[[], None]:
    """A function that sleeps for so long, and does not say beforehand for how long."""
    napping, lock = _napping(seconds), threading.Lock()
    next(napping)

    def wait() -> None:
        with lock:  # a generator runs in one thread at a time
            next(napping)

    return wait


def _napping(seconds: float) -> Generator[None]:
    while True:
        yield
        time.sleep(seconds)
