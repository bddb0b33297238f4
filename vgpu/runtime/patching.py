"""A list of replaced attributes that can be put back. Not here: what is replaced."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable, Container, Iterable
from types import ModuleType
from typing import Any

_MISSING: Any = object()


class PatchSet:
    """Replaces attributes, and undoes it all in reverse order."""

    def __init__(self, below: PatchSet | None = None) -> None:
        """`below`: patches that were made before and stay when these are undone."""
        self._undo: list[Callable[[], None]] = []
        # Those that do more than to put back what was bound before.
        self._actions: list[Callable[[], None]] = []
        self._rebound: list[tuple[Any, Any]] = []
        self._late: list[Callable[[], None]] = []
        self._below = below

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

    def at_begin(self, action: Callable[[], None]) -> None:
        """Have `begin` run `action`, which sets what depends on the kind of machine: cards, their number, values."""
        self._late.append(action)

    def begin(self) -> None:
        """It is known which machine it is."""
        for action in self._late:
            action()

    def rebind(self, old: Any, new: Any) -> None:
        """Where a module bound `old` by name (`from x import y`), `rebind_everywhere` will put `new`."""
        self._rebound.append((old, new))

    def replaced(self) -> list[tuple[Any, Any]]:
        """What `rebind` noted: (original, what is in its place)."""
        return list(self._rebound)

    def rebind_everywhere(self) -> None:
        """Do what `rebind` noted, in PyTorch's modules and the program's; undone also in modules imported later."""
        forward = {id(old): new for old, new in self._rebound}
        staying = {id(new) for _, new in self._below._rebound} if self._below is not None else set()
        known = _torch_and_program_modules()
        # Inside another attach names hold what that one put there: not what to remember them by.
        changed = _exchange(known, forward) if self._below is None else _exchange_new(known, forward)
        before = {id(module) for module in known}

        def undo() -> None:
            # Made here: modules that a program imports later are rebound later.
            backward = {id(new): old for old, new in self._rebound if id(new) not in staying}
            for space, name, old in changed:
                if id(space.get(name, _MISSING)) in backward:
                    space[name] = old
            program = [m for m in _torch_and_program_modules() if id(m) not in before or not _is_torch(m)]
            _exchange_new(program, backward)

        self._undo.append(undo)

    def on_undo(self, action: Callable[[], None]) -> None:
        """Run `action` when the patches are undone."""
        self._undo.append(action)
        self._actions.append(action)

    def undo(self) -> None:
        """Put everything back; goes on past an error and raises the first one at the end."""
        _do(self._undo)

    def end(self) -> None:
        """Only do what `on_undo` was given, for a process that is about to end: who replaced what is no matter then."""
        _do(self._actions)


def _do(actions: list[Callable[[], None]]) -> None:
    first: BaseException | None = None
    while actions:
        try:
            actions.pop()()
        except BaseException as error:
            first = first or error
    if first is not None:
        raise first


# PyTorch has two thousand modules, which rarely bind anything new once they are imported, so what was found in one is
# remembered: (how often `_sought` had grown, number of names then) -> names that held something of it. Whoever forks
# afterwards spares its children the search, and a copy of each page that it touches.
_found_in_torch: dict[int, tuple[int, int, list[str]]] = {}
# Identities that were ever looked for. One may be another object's by now: a name that holds it is looked at in vain.
_sought: set[int] = set()
_growths = 0


def _exchange(modules: list[ModuleType], replacements: dict[int, Any]) -> list[tuple[dict[str, Any], str, Any]]:
    """Put each replacement where its object is bound by name; returns (module's names, name, old object)."""
    global _growths
    if not _sought.issuperset(replacements):
        _sought.update(replacements)
        _growths += 1
    return _put(((vars(module), _names_of(module, vars(module))) for module in modules), replacements)


def _exchange_new(modules: list[ModuleType], replacements: dict[int, Any]) -> list[tuple[dict[str, Any], str, Any]]:
    """The same for objects that are new at each time, of which nothing is remembered."""
    spaces = [vars(module) for module in modules]
    return _put(((space, _holding(space, replacements)) for space in spaces), replacements)


def _put(
    holders: Iterable[tuple[dict[str, Any], list[str]]], replacements: dict[int, Any]
) -> list[tuple[dict[str, Any], str, Any]]:
    changed = []
    for space, names in holders:
        for name in names:
            old = space.get(name)
            if id(old) in replacements:
                changed.append((space, name, old))
                space[name] = replacements[id(old)]
    return changed


def _names_of(module: ModuleType, space: dict[str, Any]) -> list[str]:
    known = _found_in_torch.get(id(module))
    if known is not None and known[0] == _growths and known[1] == len(space):
        return known[2]
    names = _holding(space, _sought)
    if _is_torch(module):
        _found_in_torch[id(module)] = (_growths, len(space), names)
    return names


def _holding(space: dict[str, Any], identities: Container[int]) -> list[str]:
    return [name for name, value in list(space.items()) if id(value) in identities]


_TORCH = "torch"
"""PyTorch's package. Of thousands of modules most are its own, or a library's."""


def _is_torch(module: ModuleType) -> bool:
    return str(module.__name__).partition(".")[0] == "torch"


def _torch_and_program_modules() -> list[ModuleType]:
    """PyTorch and the program itself: nothing of Python's library or installed packages, and not this library."""
    paths = sysconfig.get_paths()
    foreign = tuple({paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"]})
    modules = []
    for name, module in list(sys.modules.items()):
        if not isinstance(module, ModuleType) or name.startswith("vgpu."):
            continue
        if name.startswith(_TORCH) and (name == "torch" or name[5] == "."):
            modules.append(module)
            continue
        file = module.__dict__.get("__file__")
        if isinstance(file, str) and not file.startswith(foreign) and name != "vgpu":
            modules.append(module)
    return modules
