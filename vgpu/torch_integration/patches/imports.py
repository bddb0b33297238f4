"""Patches for modules that may be imported later: done at once if the module is there, else when it comes.

So attaching imports nothing that the program does not. Not here: what is patched.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from vgpu.runtime.patching import PatchSet

Action = Callable[[ModuleType], None]


def when_imported(patches: PatchSet, actions: dict[str, Action]) -> None:
    """Run `actions[name](module)` for each module, now or right after its import."""
    later = {}
    for name, action in actions.items():
        module = sys.modules.get(name)
        if module is None:
            later[name] = action
        else:
            action(module)
    if later:
        finder = _Finder(later)
        sys.meta_path.insert(0, finder)
        patches.on_undo(lambda: sys.meta_path.remove(finder))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing itself: it lets the other finders look, and patches what they load."""

    def __init__(self, actions: dict[str, Action]) -> None:
        self._actions = actions

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        action = self._actions.pop(name, None)
        if action is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_patch(module: ModuleType) -> None:
            execute(module)
            action(module)

        spec.loader.exec_module = execute_and_patch  # type: ignore[method-assign]
        return spec
