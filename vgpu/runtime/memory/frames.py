"""The Python frames of the program that asked for memory, as PyTorch's snapshots have them. Pure Python."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

_OWN = str(Path(__file__).parents[2])


def of_program() -> list[dict[str, Any]]:
    """File, line and function of each frame, the innermost first; this package's are left out."""
    frames = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_OWN):
            frames.append({"filename": code.co_filename, "line": frame.f_lineno, "name": code.co_name})
        frame = frame.f_back
    return frames
