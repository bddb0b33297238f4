"""Answers that have nothing to do with a submission: runs of the course's own code, kept for the submissions after it.

A reference run (`Request.student` is False) never meets a submission. A simulated device or the CPU gives it the same
answer each time, so a judge that grades many submissions with one seed runs it once. Not for what a real device
measures, and not for answers that went wrong: those are run again.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

from gradebox.run.probe_cache import key_of
from gradebox.sandbox import Reply, Request

_MOST_BYTES = 64 * 2**20
"""All labs' references of one seed are below one MiB."""


class ReferenceCache:
    """The answers so far, by question; may be used by several threads."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        """Arrays of more than `most_bytes` in all are not kept: the oldest answers go first."""
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._replies: dict[str, Reply] = {}
        self._bytes = 0

    def answer(self, request: Request, ask: Callable[[Request], Reply]) -> Reply:
        """The answer that is known, or else what `ask` gets; anything that a submission takes part in is asked."""
        if request.student:
            return ask(request)
        key = key_of(request)
        with self._lock:
            known = self._replies.get(key)
        if known is not None:
            return copy.deepcopy(known)
        reply = ask(request)
        if reply.kind == "ok" and not reply.notes:
            with self._lock:
                # A copy, as every answer is: what one grading does to its own, the next one does not see.
                self._keep(key, copy.deepcopy(reply))
        return reply

    def _keep(self, key: str, reply: Reply) -> None:
        if key in self._replies:  # two threads have asked at once
            return
        self._replies[key] = reply
        self._bytes += _size(reply)
        while self._bytes > self._most_bytes:
            oldest = next(iter(self._replies))
            self._bytes -= _size(self._replies.pop(oldest))

    def __len__(self) -> int:
        return len(self._replies)


def _size(reply: Reply) -> int:
    """Bytes of its arrays, and roughly of its values."""
    arrays = sum(array.nbytes for rank in reply.ranks for array in rank.tensors.values())
    return arrays + sum(_characters(rank.value) for rank in reply.ranks)


def _characters(value: Any) -> int:
    return len(repr(value))
