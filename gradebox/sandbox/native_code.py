"""Which native code is loaded that was not there before the submission, whoever loads it.

Native code sees and changes all of the process, and raises no event. Not for what follows (`audit.py`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from gradebox.sandbox.safe_text import plain_ascii, safe
from gradebox.sandbox.trusted_code import TrustedCode

_FILE = {"import": 1, "ctypes.dlopen": 0, "sqlite3.load_extension": 1}
"""Audit events of loading native code, and which of their arguments is the file's name."""
_COMPILERS = {
    "/torch/_inductor/": ("/torch/_inductor/compile_fx.py", ""),
    "/triton/": ("/triton/runtime/jit.py", "run"),
}
"""By the folder of a library that compiles, and loads what it has made: the file, and the function if it is one, that
does so with a program's own functions. What else loads code there takes any that it is handed."""
_GENERATED = "/.inductor/"
"""In the names of the Python files that TorchInductor writes (`worker.py`), which load what it has compiled."""
_MAX_NAME = 120


def installed(*written: str) -> tuple[str, ...]:
    """Folders of Python, its packages and the system, without those that a submission has `written`, or may write."""
    paths = (entry for entry in sys.path if os.path.isabs(entry) and entry not in written)
    return ("/usr", "/lib", "/lib64", sys.prefix, sys.base_prefix, *paths)


def folders(paths: tuple[str, ...]) -> tuple[str, ...]:
    """Beginnings of the names of files in these folders.

    By both names where a link leads to a folder (an environment, say): imports name files as `sys.path` does.
    """
    names = [name for path in paths for name in (os.path.normpath(path), os.path.realpath(path))]
    return tuple(dict.fromkeys(name.rstrip("/") + "/" for name in names))


def file_of(
    event: str,
    arguments: tuple[Any, ...],
    there: tuple[str, ...],
    frame: FrameType | None,
    ours: TrustedCode,
    *,
    normpath: Callable[[str], str] = os.path.normpath,
) -> str | None:
    """The file of native code that an event loads, if it is in none of the folders `there`; None if it is.

    A library loads code for anybody, so it does not matter who asks, unless it is a compiler that loads what it has
    made. A name without a folder is one of the system's libraries.
    """
    place = _FILE.get(event)
    if place is None or len(arguments) <= place or arguments[place] is None:
        return None
    file = arguments[place]
    if type(file) is bytes:
        file = file.decode("utf-8", "replace")
    if type(file) is not str:
        return "named by an object of its own"
    if "/" not in file or (file.startswith("/") and normpath(file).startswith(there)):
        return None
    while frame is not None and _is_stdlib(frame, ours):
        frame = frame.f_back
    if frame is not None and _is_made(frame, ours):
        return None
    return plain_ascii(safe(file, "?"), _MAX_NAME)


def _is_made(frame: FrameType, ours: TrustedCode) -> bool:
    """Whether a library loads what it has made from functions of a program."""
    name = safe(frame.f_code.co_filename, "")
    begins = next((begin for part, begin in _COMPILERS.items() if part in name), None)
    above: FrameType | None = frame
    while begins is not None and above is not None and (name.startswith(ours.libraries) or _GENERATED in name):
        if name.endswith(begins[0]) and begins[1] in ("", above.f_code.co_name):
            return True
        above = above.f_back
        name = "" if above is None else safe(above.f_code.co_filename, "")
    return False


def _is_stdlib(frame: FrameType, ours: TrustedCode) -> bool:
    name = safe(frame.f_code.co_filename, "")
    return name.startswith("<frozen ") or (name.startswith(ours.libraries[:2]) and "-packages/" not in name)
