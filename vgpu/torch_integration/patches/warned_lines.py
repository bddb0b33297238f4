"""Warnings of PyTorch's C++ code, at the line of the program.

C++ takes the innermost Python frame for the place of a warning. With the modes on, that is a frame of this package, or
that of an overload which it calls. Such a warning is given once more at the program's line, so that filters and "once
per line" apply to that.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from vgpu.runtime import caller
from vgpu.runtime.patching import PatchSet

_INNER = (str(Path(__file__).parents[2]), str(torch._ops.__file__))
_NAME = "_showwarnmsg"


def install(patches: PatchSet) -> None:
    """Replace what shows a warning that filters let through (`warnings._showwarnmsg`, which C calls as well)."""
    show: Any = getattr(warnings, _NAME, None)
    if show is None:
        return

    def show_at_line(message: Any) -> None:
        if not message.filename.startswith(_INNER):
            show(message)
            return
        _forget(message)
        caller.warn(message.message, message.category)

    patches.set(warnings, _NAME, show_at_line)


def _forget(message: Any) -> None:
    """The module of this package in which the warning seemed to arise has not given it."""
    key = (str(message.message), message.category, message.lineno)
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == message.filename:
            vars(module).get("__warningregistry__", {}).pop(key, None)
