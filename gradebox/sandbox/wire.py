"""Bytes over descriptors: frames with a length in front, and pipes that are always drained, up to a cap.

Knows nothing of what the bytes mean (`codec.py` does).
"""

from __future__ import annotations

import os
import select
import struct
import time

_LENGTH = struct.Struct("<Q")
_CHUNK = 1 << 18


class Closed(Exception):
    """The other side is gone."""


class TooLarge(Exception):
    """A frame says it is larger than allowed."""


def send(descriptor: int, data: bytes) -> None:
    """Write one frame.

    Raises:
        Closed: nobody reads any more.
    """
    try:
        for part in (memoryview(_LENGTH.pack(len(data))), memoryview(data)):
            while part:
                part = part[os.write(descriptor, part[:_CHUNK]) :]
    except (BrokenPipeError, ConnectionResetError):
        raise Closed from None


def receive(descriptor: int, *, max_bytes: int, timeout_seconds: float | None = None) -> bytes:
    """Read one frame.

    Raises:
        Closed: the other side ended before the frame was complete.
        TooLarge: the frame announces more than `max_bytes`.
        TimeoutError: it did not arrive within `timeout_seconds`.
    """
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    (length,) = _LENGTH.unpack(_read(descriptor, _LENGTH.size, deadline))
    if length > max_bytes:
        raise TooLarge(f"{length} bytes, allowed are {max_bytes}")
    return _read(descriptor, length, deadline)


def _read(descriptor: int, count: int, deadline: float | None) -> bytes:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    data = bytearray()
    while len(data) < count:
        wait = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1e3
        if not poller.poll(wait):
            raise TimeoutError
        try:
            chunk = os.read(descriptor, min(_CHUNK, count - len(data)))
        except ConnectionResetError:
            chunk = b""
        if not chunk:
            raise Closed
        data += chunk
    return bytes(data)


class Drain:
    """One pipe's reading end: keeps at most `keep_bytes`, counts everything, never stops reading.

    With `tail`, half of what is kept is the end of the stream.
    """

    def __init__(self, descriptor: int, keep_bytes: int, *, tail: bool = False) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.total_bytes = 0
        self.open = True
        self._head_bytes = keep_bytes // 2 if tail else keep_bytes
        self._tail_bytes = keep_bytes - self._head_bytes
        self._head = bytearray()
        self._tail = bytearray()

    def read(self) -> None:
        """Take a bounded amount of what is there now, so that one flood cannot keep the others waiting."""
        for _ in range(16):
            try:
                chunk = os.read(self.descriptor, _CHUNK)
            except BlockingIOError:
                return
            if not chunk:
                self.open = False
                return
            self.total_bytes += len(chunk)
            room = self._head_bytes - len(self._head)
            self._head += chunk[:room]
            self._tail += chunk[room:]
            if len(self._tail) > self._tail_bytes:
                del self._tail[: len(self._tail) - self._tail_bytes]

    @property
    def data(self) -> bytes:
        """What was kept, without a gap when nothing was dropped."""
        return bytes(self._head + self._tail)

    @property
    def text(self) -> str:
        """What was kept, as text that says where something is missing."""
        dropped = self.total_bytes - len(self._head) - len(self._tail)
        middle = f"\n[... {dropped} bytes ...]\n" if dropped else ""
        return self._head.decode("utf-8", "replace") + middle + self._tail.decode("utf-8", "replace")

    def close(self) -> None:
        os.close(self.descriptor)
