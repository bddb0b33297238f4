"""`python -m vgpu.tools.child ...`: a Python program that another program on a virtual GPU has started by `subprocess`.

Gets the arguments of the interpreter (`script.py ...`, `-m module ...`, `-c code ...`), and its parent's machine by the
environment. It attaches when PyTorch is imported, so that children which do not use it begin as fast as ever. Not here:
who sends a child here (`vgpu.runtime.children`).
"""

from __future__ import annotations

import atexit
import base64
import importlib.abc
import importlib.util
import os
import pickle
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from vgpu.runtime.children import VARIABLE
from vgpu.tools import run


class _Loader(importlib.abc.Loader):
    """Loads PyTorch, then attaches."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def create_module(self, spec: ModuleSpec) -> Any:
        """As usual."""
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """As usual, and attach."""
        self._inner.exec_module(module)
        from vgpu.runtime import children
        from vgpu.tools import launch

        launch.enter(pickle.loads(base64.b64decode(os.environ[VARIABLE])))
        atexit.register(children.finish)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Finder(importlib.abc.MetaPathFinder):
    """Sees PyTorch being imported."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """Of torch alone."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def main(arguments: Sequence[str]) -> int:
    """Run what the interpreter was asked to run; returns its exit status."""
    sys.meta_path.insert(0, _Finder())
    first, *rest = arguments
    if first == "-c":
        code, *rest = rest
        sys.argv = ["-c", *rest]
        sys.path.insert(0, "")
        namespace: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
        exec(compile(code, "<string>", "exec"), namespace)
        return 0
    if first == "-m":
        return run.run(rest[0], rest[1:], module=True)
    return run.run(first, rest, module=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
