"""Who asked the simulator for its record, or gave it work: a probe or a library, as is usual, or somebody by hand.

Not for what follows from it (`audit.py`).
"""

from __future__ import annotations

from types import FrameType

from gradebox.sandbox.identity import number_of
from gradebox.sandbox.safe_text import safe
from gradebox.sandbox.trusted_code import TrustedCode, asks


def innocent(frame: FrameType | None, ours: TrustedCode) -> bool:
    """Whether the simulator was asked by a probe, or by an instrument that a real device has as well.

    A probe's frame alone says little: what it calls may be a function in C that was built to ask. So the frame must be
    at an instruction that asks, and nothing but our own code may have called it, unless it is a function that a running
    probe has made and handed out.
    """
    while frame is not None and number_of(frame.f_code) in ours.simulator:
        if number_of(frame.f_code) in ours.instruments:
            return True
        frame = frame.f_back
    names = ours.about.asked if ours.about is not None else frozenset[str]()
    if frame is None or number_of(frame.f_code) not in ours.probes or not asks(frame, names):
        return False
    handed_out = False
    while frame is not None and number_of(frame.f_code) != ours.top:
        code = number_of(frame.f_code)
        if code in ours.between or code in ours.simulator:
            pass
        elif code in ours.probes:
            handed_out = "<locals>" in frame.f_code.co_qualname
        else:
            return handed_out
        frame = frame.f_back
    return frame is not None


def is_by_hand(frame: FrameType | None, ours: TrustedCode, *, is_query: bool) -> bool:
    """Whether work was given to the device by somebody who is not the library, nor a part of the simulator's that may.

    Or, with `is_query`, whether the device was asked, which probes may do as well. Runs at every launch, of which there
    are many.
    """
    last = 0
    while frame is not None:
        code = frame.f_code
        number = number_of(code)
        if number in ours.entries:
            return False
        if number not in ours.simulator:
            if is_query and number in ours.probes:
                return False
            # A function of ours that nobody has listed is not the submission's.
            return last in ours.engine and not safe(code.co_filename, "?").startswith(ours.folder)
        last = number
        frame = frame.f_back
    return last in ours.engine
