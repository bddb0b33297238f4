"""The way back for a result serves the one frame that opened it; whoever else uses it voids the check."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable

import pytest

from gradebox.sandbox.channel import ReplyChannel, open_channel

TOKEN, CLOSING, TAMPERED = b"0123456789abcdef", b"the end\n", b"tampered"


def framed(payload: bytes) -> bytes:
    return TOKEN + struct.pack("<Q", len(payload)) + payload


def sent(use: Callable[[ReplyChannel], None]) -> tuple[bytes, bytes]:
    """What arrives as result and as notes if the frame that opened a channel calls `use`."""
    result, notes = os.pipe(), os.pipe()
    channel = open_channel(TOKEN, CLOSING, TAMPERED)
    next(channel)
    channel.send((result[1], notes[1]))
    use(channel)
    with contextlib.suppress(StopIteration):
        channel.send(b"right")
    os.close(result[1])
    os.close(notes[1])
    with os.fdopen(result[0], "rb") as of_result, os.fdopen(notes[0], "rb") as of_notes:
        return of_result.read(), of_notes.read()


def test_the_frame_that_opened_it_sends_its_result() -> None:
    assert sent(lambda channel: None) == (framed(b"right"), CLOSING)


def test_another_frame_sends_nothing_but_that_the_process_was_tampered_with() -> None:
    assert sent(lambda channel: channel.send(b"forged")) == (framed(TAMPERED), b"")


def test_an_exception_that_is_thrown_in_is_no_result_and_shows_no_frame() -> None:
    def throw(channel: ReplyChannel) -> None:
        channel.throw(ValueError("show me your frame"))

    assert sent(throw) == (framed(TAMPERED), b"")


def test_a_channel_that_was_closed_sends_nothing() -> None:
    with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
        sent(lambda channel: channel.close())


def test_what_is_no_bytes_is_no_result() -> None:
    class Bytes(bytes):
        """Has methods of its own."""

    def replace(channel: ReplyChannel) -> None:
        channel.send(Bytes(b"forged"))

    assert sent(replace)[0] == framed(TAMPERED)
