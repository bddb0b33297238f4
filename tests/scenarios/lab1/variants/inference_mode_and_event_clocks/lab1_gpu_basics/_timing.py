"""Helpers shared by the programs of this lab."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

import torch

log: Final = logging.getLogger("lab1")
log.addHandler(logging.NullHandler())
R = TypeVar("R")


class Clock(Protocol):
    def measure(self, work: Callable[[], object], count: int) -> float: ...


class EventClock:
    """CUDA events around a block; idle device before and after."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.start = torch.cuda.Event(enable_timing=True)
        self.stop = torch.cuda.Event(enable_timing=True)

    def measure(self, work: Callable[[], object], count: int) -> float:
        torch.cuda.synchronize(self.device)
        self.start.record()
        for _ in range(count):
            work()
        self.stop.record()
        self.stop.synchronize()
        return self.start.elapsed_time(self.stop) / 1000 / count


class HostClock:
    def measure(self, work: Callable[[], object], count: int) -> float:
        begin = time.perf_counter_ns()
        for _ in range(count):
            work()
        return (time.perf_counter_ns() - begin) / 1e9 / count


def clock_for(device: torch.device) -> Clock:
    return EventClock(device) if device.type == "cuda" else HostClock()


def logged(function: Callable[..., R]) -> Callable[..., R]:
    @functools.wraps(function)
    def wrapper(*args: object, **kwargs: object) -> R:
        log.info(f"{function.__name__} begins with {len(args)} arguments")
        try:
            return function(*args, **kwargs)
        finally:
            log.info(f"{function.__name__} ended")

    return wrapper


@functools.cache
def dtype_name(dtype: torch.dtype) -> str:
    return f"{dtype}".rpartition(".")[2]


def in_thread(function: Callable[[], R]) -> R:
    """Run in a thread of its own, so that a hanging driver cannot hang us."""
    box: deque[R] = deque()
    thread = threading.Thread(target=lambda: box.append(function()), daemon=True)
    thread.start()
    thread.join(timeout=10)
    return box[0]
