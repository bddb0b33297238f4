"""Threads of a submission: which there are, and modes of PyTorch that hold in them, too."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager


def running_threads() -> set[int]:
    """The threads that run Python code, by what the interpreter knows: `threading` can be made to forget one."""
    return set(sys._current_frames())


@contextmanager
def in_every_thread(mode: Callable[[], AbstractContextManager[object]]) -> Iterator[None]:
    """Enter a new `mode` here, and one in every thread that is started meanwhile: a mode is its thread's alone."""
    start = threading.Thread.start

    def start_within(thread: threading.Thread) -> None:
        run = thread.run

        def run_within() -> None:
            with mode():
                run()

        thread.run = run_within  # type: ignore[method-assign]
        start(thread)

    threading.Thread.start = start_within  # type: ignore[method-assign, assignment]
    try:
        with mode():
            yield
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]
