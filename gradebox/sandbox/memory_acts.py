"""Who read or wrote memory by its address: the submission, which no right code does, or a library for itself.

From the events of `byte_access.py` and Python's own of `ctypes`. Whatever is here voids the check; a look at a module
that may well be harmless is not (`audit.py` notes it). Not for how the events come about.
"""

from __future__ import annotations

import os
import re
from types import FrameType
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from gradebox.sandbox.byte_access import ADDRESS, BETWEEN, CALL, EVENT, KIND
from gradebox.sandbox.identity import number_of
from gradebox.sandbox.safe_text import plain_ascii, safe
from gradebox.sandbox.trusted_code import TrustedCode

_HARMLESS = re.compile(
    r"c_\w+|sizeof|alignment|byref|Array|ARRAY|[cCw]\w*(dll|DLL)|LibraryLoader|util"
    r"|[gs]et_errno|create_(string|unicode)_buffer|ArgumentError|as_array|_?as_ctypes_type|__\w+__(?<!__dict__)"
)
"""Names of modules that move bytes, which reach no memory but their own, or only what a library's function does."""
_OF_LIBRARIES = re.compile(r"cuda\w+|cu[A-Z]\w*|nvml\w+|nvtx\w+|nccl\w+|malloc_trim|sched_\w+|gettid|prctl")
"""Functions in C that a program may call by `ctypes`."""
_ASKING = {
    "ctypes.cdata": ("from_address", "in_dll", "from_buffer", "from_buffer_copy"),
    "ctypes.cdata/buffer": ("from_buffer", "from_buffer_copy"),
    "ctypes.string_at": ("string_at", "_string_at"),
    "ctypes.wstring_at": ("wstring_at", "_wstring_at"),
    "ctypes.PyObj_FromPtr": ("PyObj_FromPtr",),
    "ctypes.call_function": ("call_function", "call_cdeclfunction"),
    "code.__new__": ("CodeType", "replace", "code"),
    "marshal.loads": ("loads", "load"),
}
"""By event, names of the functions that raise it: a library that names one calls it for itself."""
EVENTS = frozenset({*_ASKING, ADDRESS, CALL, EVENT, "ctypes.dlsym", "ctypes.storage", "open", "sys.addaudithook"})
_MEMORY = re.compile(r"/proc/(self|thread-self|\d+)/(task/\d+/)?mem")
_interface = np.ndarray.__dict__["__array_interface__"].__get__
_base = np.ndarray.__dict__["base"].__get__
_strided = as_strided.__code__
_DUMMIES = "/numpy/lib/_function_base_impl.py"
"""Makes arrays of which only the shape counts."""


def act_of(
    event: str, arguments: tuple[Any, ...], frame: FrameType | None, ours: TrustedCode
) -> tuple[str, FrameType | None] | None:
    """In words, what the submission did with memory, and its frame; None if it did nothing, or if a library did it."""
    while frame is not None and frame.f_code in BETWEEN:
        frame = frame.f_back
    first = safe(arguments[0], "?") if arguments else ""
    if event == "open":
        if not first.endswith("mem") or not _MEMORY.fullmatch(os.path.normpath(os.path.join(os.getcwd(), first))):
            return None
        return _by("the memory of a process, as a file", frame, ours)
    if event == EVENT:
        if _is_library(frame, ours) or _HARMLESS.fullmatch(first):
            return None
        return _by(f"{safe(arguments[1], '?')}.{first}", frame, ours)
    if event == ADDRESS:
        if frame is not None and frame.f_code is _strided and _is_library(frame, ours):
            caller = safe(frame.f_back.f_code.co_filename, "") if frame.f_back is not None else ""
            if caller.startswith(ours.libraries) and caller.endswith(_DUMMIES):
                return None
            if _is_within(frame.f_locals, arguments[0]):
                return None
        return _by("an array of NumPy at an address", frame, ours)
    if event == "ctypes.dlsym":
        if len(arguments) > 1 and _OF_LIBRARIES.fullmatch(first := safe(arguments[1], "?")):
            return None
        frame = _above_ctypes(frame, ours)
        # Which name it asks for is in the library's own code.
        return None if _is_library(frame, ours) else _by(f"the function {first} in C", frame, ours)
    by_ctypes = frame is not None and _is_of_ctypes(frame, ours)
    frame = _above_ctypes(frame, ours)
    if first == KIND:
        return None if _is_imported(frame, ours) or by_ctypes else _by(first, frame, ours)
    names = (first,) if event == CALL else _ASKING.get(event, ())
    if frame is None or (_is_library(frame, ours) and any(name in frame.f_code.co_names for name in names)):
        return None
    if event in ("code.__new__", "marshal.loads", "sys.addaudithook") and _is_library(frame, ours):
        return None
    return _by(first if event == CALL else event, frame, ours)


def _by(what: str, frame: FrameType | None, ours: TrustedCode) -> tuple[str, FrameType | None] | None:
    """With the line of the submission that did it, or had a library do it; None if nobody but a library is there."""
    nearest = frame
    while nearest is not None and _is_library(nearest, ours):
        if number_of(nearest.f_code) == ours.top:
            return None
        nearest = nearest.f_back
    if nearest is None:
        return plain_ascii(f"memory by its address: {_quotable(what)}", 120), frame
    place = f"{safe(nearest.f_code.co_filename, '?').rpartition('/')[2]}:{nearest.f_lineno}"
    return plain_ascii(f"memory by its address: {_quotable(what)} at {_quotable(place)}", 160), nearest


def _quotable(text: str) -> str:
    """As a part of JSON that nothing escapes."""
    return re.sub(r"[^\w ./:,_<>-]", "?", text, flags=re.ASCII)


def _is_library(frame: FrameType | None, ours: TrustedCode) -> bool:
    name = frame.f_code.co_filename if frame is not None else ""
    return type(name) is str and name.startswith(ours.libraries)


def _is_imported(frame: FrameType | None, ours: TrustedCode) -> bool:
    """Whether a module of a library does it while it is imported."""
    while frame is not None and _is_library(frame, ours):
        if safe(frame.f_code.co_filename, "").startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _above_ctypes(frame: FrameType | None, ours: TrustedCode) -> FrameType | None:
    """Who called a function of `ctypes` that is written in Python."""
    while frame is not None and (frame.f_code in BETWEEN or _is_of_ctypes(frame, ours)):
        frame = frame.f_back
    return frame


def _is_of_ctypes(frame: FrameType, ours: TrustedCode) -> bool:
    return _is_library(frame, ours) and safe(frame.f_code.co_filename, "").endswith("/ctypes/__init__.py")


def _is_within(variables: dict[str, Any], address: int) -> bool:
    """Whether what `as_strided` is about to make lies in the memory of the array that it was given."""
    array, interface = variables.get("x"), variables.get("interface")
    if not issubclass(type(array), np.ndarray) or type(interface) is not dict:
        return False
    own = _interface(array)
    if address != own["data"][0] or interface["typestr"] != own["typestr"]:
        return False
    size = np.ndarray.__dict__["itemsize"].__get__(array)
    span = _span(address, interface["shape"], interface["strides"], size)
    low, high = address, address
    while issubclass(type(array), np.ndarray):
        known = _interface(array)
        held = _span(known["data"][0], known["shape"], known["strides"], np.ndarray.__dict__["itemsize"].__get__(array))
        if held is not None:
            low, high = min(low, held[0]), max(high, held[1])
        array = _base(array)
    return span is not None and (span[0] == span[1] or (low <= span[0] and span[1] <= high))


def _span(address: int, shape: Any, strides: Any, size: int) -> tuple[int, int] | None:
    """The first byte of an array and the one behind its last; None if a number is not a plain one."""
    if not all(type(number) is int or issubclass(type(number), np.integer) for number in (*shape, *(strides or ()))):
        return None
    sides = [int(side) for side in shape]
    if 0 in sides:
        return address, address
    if strides is None:
        return address, address + int(np.prod(sides, dtype=object) if sides else 1) * size
    reaches = [(side - 1) * int(stride) for side, stride in zip(sides, strides, strict=True)]
    return address + sum(min(0, reach) for reach in reaches), address + sum(max(0, reach) for reach in reaches) + size
