"""Threads that the program starts get the modes, a clock that begins at the starter's time, and are joined in time.

Not here: the rules of waiting (`vgpu.clock`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from vgpu.patches.base import PatchSet
from vgpu.state import attached

_CLOCK = "_vgpu_clock"
_NEVER = 1_000_000


def install(patches: PatchSet, enter_modes: Callable[[], Callable[[], None]]) -> None:
    """`enter_modes` enters the two modes on the calling thread and returns what leaves them."""
    start, run, join, wait = (
        threading.Thread.start, threading.Thread._bootstrap_inner, threading.Thread.join, threading.Condition.wait,  # type: ignore[attr-defined]
    )  # fmt: skip

    def start_with_clock(thread: threading.Thread) -> None:
        gpu = attached()
        if gpu is None:
            start(thread)
            return
        setattr(thread, _CLOCK, gpu.clock.spawn())
        # `start` waits for the thread to run: that is not a wait in which virtual time may pass.
        mine = gpu.clock.mine()
        mine.waiting -= _NEVER
        try:
            start(thread)
        finally:
            mine.waiting += _NEVER

    def run_with_modes(thread: threading.Thread) -> None:
        gpu, clock = attached(), getattr(thread, _CLOCK, None)
        if gpu is None or clock is None:
            run(thread)
            return
        gpu.clock.adopt(clock)
        leave = enter_modes()
        try:
            run(thread)
        finally:
            gpu.clock.finish(clock)
            leave()

    def join_in_time(thread: threading.Thread, timeout: float | None = None) -> None:
        gpu, clock = attached(), getattr(thread, _CLOCK, None)
        if gpu is None or clock is None:
            join(thread, timeout)
            return
        mine = gpu.clock.mine()
        mine.waiting += 1
        try:
            join(thread, timeout)
        finally:
            mine.waiting -= 1
        if not thread.is_alive():
            gpu.clock.wait_until(clock.now)

    def wait_visibly(condition: threading.Condition, timeout: float | None = None) -> bool:
        gpu = attached()
        if gpu is None:
            return bool(wait(condition, timeout))
        mine = gpu.clock.mine()
        mine.waiting += 1
        try:
            return bool(wait(condition, timeout))
        finally:
            mine.waiting -= 1

    replacements: dict[str, Any] = {"start": start_with_clock, "_bootstrap_inner": run_with_modes, "join": join_in_time}
    for name, function in replacements.items():
        patches.set(threading.Thread, name, function)
    patches.set(threading.Condition, "wait", wait_visibly)
