"""A list of replaced attributes that can be put back. Not here: what is replaced."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable
from types import ModuleType
from typing import Any

_MISSING: Any = object()


class PatchSet:
    """Replaces attributes, and undoes it all in reverse order."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self._rebound: list[tuple[Any, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of a module or class (also one that was not there)."""
        before = vars(owner).get(name, _MISSING)
        if before is _MISSING:
            self._undo.append(lambda: delattr(owner, name))
        else:
            self._undo.append(lambda: setattr(owner, name, before))
        setattr(owner, name, value)

    def set_attribute_of(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute that is not in the owner's `__dict__`, such as a function's `__defaults__`."""
        before = getattr(owner, name)
        self._undo.append(lambda: setattr(owner, name, before))
        setattr(owner, name, value)

    def set_existing(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute only where this version of PyTorch has it."""
        if hasattr(owner, name):
            self.set(owner, name, value)

    def rebind(self, old: Any, new: Any) -> None:
        """Where a module bound `old` by name (`from x import y`), `rebind_everywhere` will put `new`."""
        self._rebound.append((old, new))

    def rebind_everywhere(self) -> None:
        """Do what `rebind` noted, in PyTorch's modules and the program's; undone also in modules imported later."""
        forward = {id(old): new for old, new in self._rebound}
        backward = {id(new): old for old, new in self._rebound}
        _exchange(forward)
        self._undo.append(lambda: _exchange(backward))

    def on_undo(self, action: Callable[[], None]) -> None:
        """Run `action` when the patches are undone."""
        self._undo.append(action)

    def undo(self) -> None:
        """Put everything back; goes on past an error and raises the first one at the end."""
        first: BaseException | None = None
        while self._undo:
            try:
                self._undo.pop()()
            except BaseException as error:
                first = first or error
        if first is not None:
            raise first


def _exchange(replacements: dict[int, Any]) -> None:
    for module in _torch_and_program_modules():
        space = vars(module)
        for name in [name for name, value in list(space.items()) if id(value) in replacements]:
            space[name] = replacements[id(space[name])]


def _torch_and_program_modules() -> list[ModuleType]:
    """PyTorch and the program itself: nothing of Python's library or installed packages, and not this library."""
    paths = sysconfig.get_paths()
    foreign = tuple({paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"]})
    found = []
    for name, module in list(sys.modules.items()):
        package = name.partition(".")[0]
        if not isinstance(module, ModuleType) or package == "vgpu":
            continue
        if package == "torch":
            found.append(module)
            continue
        file = module.__dict__.get("__file__")
        if isinstance(file, str) and not file.startswith(foreign):
            found.append(module)
    return found
