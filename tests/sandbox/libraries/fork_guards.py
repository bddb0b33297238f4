"""A library that the server imports in tests: like filelock, it knows from its process id whether it was forked.

Before a fork it notes that one is under way; in the child it believes that it is one only if the number has changed,
and until then an audit hook forbids every further fork.
"""

from __future__ import annotations

import os
import sys

numbers = [os.getpid()]
"""Of every process from the one that imported this down to the one that asks."""
_forking: list[int] = []


def _before() -> None:
    _forking.append(os.getpid())


def _in_parent() -> None:
    _forking.clear()


def _in_child() -> None:
    numbers.append(os.getpid())
    if _forking and _forking[-1] != os.getpid():
        _forking.clear()


def _forbid(event: str, arguments: tuple[object, ...]) -> None:
    if event == "os.fork" and _forking:
        raise RuntimeError("os.fork is unsafe while a fork is under way")


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
sys.addaudithook(_forbid)
