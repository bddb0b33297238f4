"""The one way back for a rank's result: its parts are in a suspended generator, not in any frame above.

A worker runs a submission's code, which may look at frames. So the secrets by which the supervisor knows a result are
in no variable that a frame shows. They are local to a generator, and reaching into one (`gi_frame`, the collector)
raises audit events. It sends for the one frame that opened it, and for no other, even of the same code. Bytes that
anybody else writes to the pipe are no result. Code that reads this process's memory byte by byte can still find the
secrets: `docs/threat-model.md`.
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
from collections.abc import Generator

_LENGTH = struct.Struct("<Q")
_CHUNK_BYTES = 1 << 18

ReplyChannel = Generator[None, "tuple[int, int] | bytes | None", None]


def open_channel(token: bytes, closing: bytes, tampered: bytes) -> ReplyChannel:
    """The way back, not begun; to be made before the process is forked that will use it.

    First it takes the descriptors of the result and of the notes, from the frame that it will serve. Then it takes the
    result, once; or None, and so does anything from another frame, for the result `tampered`.

    Args:
        token: goes in front of the result.
        closing: the last line of the notes, without which no result counts.
        tampered: the result of a rank whose process is not what it was.
    """
    # Bound before a submission runs.
    write, caller, pack, view, size, void = os.write, sys._getframe, _LENGTH.pack, memoryview, len, tampered
    suppress = contextlib.suppress
    descriptors = yield
    owner = caller(1)
    result, notes = descriptors  # type: ignore[misc]
    payload: object = None
    try:
        payload = yield
        if caller(1) is not owner:
            payload = None
    except BaseException:  # thrown in by somebody who holds this generator
        payload = None
    if type(payload) is bytes:
        with suppress(OSError):
            write(notes, closing)
    else:
        payload = void
    data = view(token + pack(size(payload)) + payload)
    while data:
        data = data[write(result, data[:_CHUNK_BYTES]) :]
    yield
