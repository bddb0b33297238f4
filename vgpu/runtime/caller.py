"""The line of the program that is running: whom warnings and reports are about.

Not here: whole stacks (`vgpu.runtime.memory.frames`).
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from types import FrameType

import torch

_INNER = (str(Path(__file__).parents[1]), str(Path(torch.__file__).parent))
_known: dict[str, bool] = {}


def program_frame() -> FrameType:
    """The innermost frame that is neither this package's nor PyTorch's; the outermost, if there is none."""
    frame = sys._getframe(1)
    while True:
        name = frame.f_code.co_filename
        inner = _known.get(name)
        if inner is None:
            inner = _known[name] = name.startswith(_INNER) or name.startswith("<frozen")
        if not inner or frame.f_back is None:
            return frame
        frame = frame.f_back


def warn(message: str | Warning, category: type[Warning] = UserWarning) -> None:
    """A warning at the program's line, whatever lies between."""
    frame = program_frame()
    names = frame.f_globals
    warnings.warn_explicit(
        message, category, frame.f_code.co_filename, frame.f_lineno, names.get("__name__"),
        names.setdefault("__warningregistry__", {}),
    )  # fmt: skip
