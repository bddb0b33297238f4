"""What people see of a check. Apart from what decides it, so that better words in a docstring change no outcome."""

from __future__ import annotations

import inspect
from collections.abc import Callable


def of(function: Callable[..., object], name: str) -> str:
    """The first line of a function's docstring, else `name` as words."""
    text = inspect.getdoc(function)
    return text.splitlines()[0].rstrip(".") if text else name.replace("_", " ")
