"""`CUDA_VISIBLE_DEVICES`, which a program may set until it uses CUDA: which of a machine's GPUs it sees.

What the variable was when the machine was attached concerns the computer's own GPUs; only a program that changes it
hides virtual ones. The driver reads it once, at the first call (CUDA C++ Programming Guide, "CUDA Environment
Variables"). Not here: who calls (`vgpu.runtime.machine`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence

VARIABLE = "CUDA_VISIBLE_DEVICES"
# What the parent of this process found, which a child process compares with.
_inherited: list[str | None] = []


def inherit(value: str | None) -> None:
    """This process is a child: its parent's machine was attached while the variable had `value`."""
    _inherited[:] = [value]


class VisibleDevices:
    """The choice of one machine with GPUs of these UUIDs."""

    def __init__(self, uuids: Sequence[str]) -> None:
        self.uuids = tuple(uuids)
        self.at_attach = _inherited[0] if _inherited else os.environ.get(VARIABLE)

    def read(self) -> tuple[int, ...]:
        """The numbers of the GPUs that a program would see which used CUDA now, in its order."""
        text = os.environ.get(VARIABLE)
        if text is None or text == self.at_attach:
            return tuple(range(len(self.uuids)))
        numbers: list[int] = []
        for part in text.split(","):
            number = self._number(part.strip())
            if number is None:  # the first that is none ends the list
                break
            if number in numbers:  # a GPU that is named twice empties it
                return ()
            numbers.append(number)
        return tuple(numbers)

    def _number(self, text: str) -> int | None:
        """An index as `strtoul` reads it, or the beginning of one UUID."""
        if text.startswith("GPU-"):
            matches = [number for number, uuid in enumerate(self.uuids) if f"GPU-{uuid}".startswith(text)]
            return matches[0] if len(matches) == 1 else None
        digits = text[: len(text) - len(text.lstrip("0123456789"))]
        return int(digits) if digits and int(digits) < len(self.uuids) else None

    def physical(self, index: int) -> int:
        """The number on the computer of the GPU with this index, where the program has not changed the variable."""
        visible = [part.strip() for part in (self.at_attach or "").split(",")]
        return int(visible[index]) if index < len(visible) and visible[index].isdigit() else index
