"""Who got a frame, a generator's variables or the collector's objects: by these a submission would reach the probe.

A frame shows the one below it without an audit event (`f_back`), so whoever has one has the probe's. The way in always
raises an event: `sys._getframe`, `tb_frame` of a traceback, `gi_frame`. Libraries ask as well, and some hand on what
they got. So a library that asks while code of the submission is on the stack counts as the submission, unless it is
known to keep frames to itself (`_KEEPS`). Not for what is done with that (`audit.py`).
"""

from __future__ import annotations

import _lsprof
import sys
from collections.abc import Callable
from types import BuiltinFunctionType, CodeType, FrameType, GeneratorType
from typing import Any

from gradebox.sandbox.identity import number_of
from gradebox.sandbox.safe_text import safe
from gradebox.sandbox.trusted_code import TrustedCode

ATTRIBUTE = "object.__getattr__"
FRAME_ATTRIBUTES = frozenset({"tb_frame", "gi_frame", "cr_frame", "ag_frame"})
_HANDS_ON = {
    "/inspect.py": (),
    "/traceback.py": ("walk_stack", "walk_tb", "extract_stack", "format_stack", "print_stack"),
    "/logging/__init__.py": ("currentframe", "<lambda>"),
}
"""Functions of the standard library that hand frames to their caller, all of a file if none is named: it is their
caller that asks."""
_TEXT = frozenset({"extract_stack", "format_stack", "print_stack"})
"""Functions of which a library gets lines and names of files, but no frame."""
_KEEPS: dict[str, tuple[str, ...]] = {
    "/absl/flags/": (),
    "/collections/__init__.py": ("namedtuple",),
    "/enum.py": ("_create_",),
    "/gradebox/sandbox/channel.py": (),
    "/logging/__init__.py": ("findCaller",),
    "/traceback.py": (
        *("_walk_tb_with_full_positions", "walk_tb", "__init__", "format_exception", "print_exception", "clear_frames"),
    ),
    "/typing.py": ("_caller",),
    "/sympy/multipledispatch/core.py": (),
    "/typing_extensions.py": (),
    "/prometheus_client/decorator.py": (),
    "/matplotlib/_api/__init__.py": (),
    "/numpy/testing/_private/utils.py": (),
    "/torch/_custom_op/impl.py": (),
    "/torch/_dynamo/": (),
    "/torch/_export/": (),
    "/torch/_functorch/": (),
    "/torch/_guards.py": (),
    "/torch/_inductor/": (),
    "/torch/_library/": (),
    "/torch/_refs/__init__.py": (),
    "/torch/_subclasses/": (),
    "/torch/cuda/_sanitizer.py": (),
    "/torch/export/": (),
    "/torch/fx/": (),
    "/torch/library.py": (),
    "/torch/utils/_traceback.py": (),
    "/triton/compiler/compiler.py": (),
}
"""Files, or folders, and their functions that look at frames and hand none on; all functions if none is named."""


def culprit(frame: FrameType | None, ours: TrustedCode, function: str) -> str | None:
    """Where the submission asked, by itself or through a library that may hand on what it gets; None if it did not.

    Args:
        frame: of the call that raised the event.
        ours: whose code is whose.
        function: what was called or read.
    """
    is_library = True
    while frame is not None and (is_library := _is_of_library(frame.f_code, ours)):
        code = frame.f_code
        if not _hands_on(code, ours):
            break
        # That of `logging` has its name in the module alone.
        function, frame = "currentframe" if code.co_name == "<lambda>" else code.co_name, frame.f_back
    if frame is None:
        return None
    names_it = function in frame.f_code.co_names
    if is_library and names_it and (function in _TEXT or _keeps(frame.f_code, ours)):
        return None
    # Somebody handed the function in, or the library may hand on what it gets.
    handed_in = is_library and not names_it
    while frame is not None and number_of(frame.f_code) != ours.top:
        code = frame.f_code
        if not _is_of_library(code, ours):
            return f"{safe(code.co_filename, '?').rpartition('/')[2]}:{frame.f_lineno} in {safe(code.co_name, '?')}"
        if safe(code.co_filename, "").startswith("<frozen importlib"):
            return None  # a library asks while it is imported
        frame = frame.f_back
    return "a function that is not Python's" if handed_in else None


def interrupts(frame: FrameType | None, ours: TrustedCode, hook: CodeType) -> bool:
    """Whether the submission's code runs in the midst of the audit hook: a signal's handler, a finalizer."""
    while frame is not None and frame.f_code is not hook:
        if not _is_of_library(frame.f_code, ours):
            return True
        frame = frame.f_back
    return False


def _is_of_library(code: CodeType, ours: TrustedCode) -> bool:
    name = code.co_filename
    return type(name) is str and name.startswith(ours.libraries)


def _hands_on(code: CodeType, ours: TrustedCode) -> bool:
    name = safe(code.co_filename, "")
    return name.startswith(ours.libraries[:2]) and "-packages/" not in name and any(
        name.endswith(end) and (code.co_name in names or not names) for end, names in _HANDS_ON.items()
    )  # fmt: skip


def _keeps(code: CodeType, ours: TrustedCode) -> bool:
    """Whether code asks for frames and gives none away."""
    if number_of(code) in ours.simulator or number_of(code) in ours.probes:
        return True
    name = safe(code.co_filename, "")
    return any(
        (part in name if part.endswith("/") else name.endswith(part)) and (code.co_name in names or not names)
        for part, names in _KEEPS.items()
    )


def reaches_hidden(event: str, arguments: tuple[Any, ...], ours: TrustedCode) -> str | None:
    """What a frame, or the collector, would show of what our generators hold; None if nothing.

    The generators of probes hold what these note: nobody may ask for their frames, no library either.
    """
    title = ours.about.title if ours.about is not None else ""
    candidates: tuple[object, ...] = ()
    if event == ATTRIBUTE:
        value = arguments[0]
        if arguments[1] == "tb_frame":
            return f"{title}'s record" if number_of(value.tb_frame.f_code) in ours.hidden_code else None
        candidates = (value,)
    elif event == "gc.get_referents" and arguments and type(arguments[0]) is tuple:
        candidates = arguments[0]
    for candidate in candidates:
        for generator in ours.secret:
            if candidate is generator:
                return "the way back for the result"
        for generator in ours.hidden:
            if candidate is generator:
                return f"{title}'s record"
        if type(candidate) is GeneratorType and number_of(candidate.gi_code) in ours.probes:
            return "what a probe notes"
    return None


def is_traced(
    trace: Callable[[], object] = sys.gettrace,
    profile: Callable[[], object] = sys.getprofile,
) -> bool:
    """Whether functions of somebody's see each step; cProfile's are in C and see no values."""
    profiler = profile()
    return trace() is not None or (profiler is not None and callable(profiler))


def is_profilers(arguments: tuple[Any, ...]) -> bool:
    """Whether a callback is that of `cProfile`, which from Python 3.12 on learns of calls in this way, or is none."""
    callback = arguments[0] if arguments else None
    if callback is None:
        return True
    return type(callback) is BuiltinFunctionType and issubclass(type(callback.__self__), _lsprof.Profiler)
