"""Modules whose functions read and write memory at any address: a look at one of them raises an audit event.

What they do then raises none: `ctypes.memmove`, or NumPy's `as_strided` beyond the end of an array. And libraries have
imported them already, so that no import shows who wants one. Not for what follows from the event (`audit.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

EVENT = "ctypes.module"
"""Audit event: somebody looks up a name in such a module; the argument is the name."""
MODULES = ("ctypes", "_ctypes", "numpy.ctypeslib", "numpy.lib.stride_tricks", "triton._C.libtriton.interpreter")
_OF_IMPORTS = frozenset({"__spec__", "__path__", "__name__", "__file__", "__loader__", "__class__"})
"""What Python itself looks up whenever a module is imported."""


class _Announcing(ModuleType):
    def __getattribute__(self, name: str) -> Any:
        if name not in _OF_IMPORTS:
            sys.audit(EVENT, name)
        return ModuleType.__getattribute__(self, name)


CODE = _Announcing.__getattribute__.__code__
"""Stands between the event and who looks."""


def announce(modules: Iterable[str] = MODULES) -> None:
    """From now on these modules, as far as they are there, raise the event. To be called in a child."""
    for name in modules:
        module = sys.modules.get(name)
        if type(module) is ModuleType:
            module.__class__ = _Announcing
