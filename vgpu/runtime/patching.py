"""A list of replaced attributes that can be put back. Not here: what is replaced."""

from __future__ import annotations

import functools
import sys
import sysconfig
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
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
    return _put(((space, _holding(space, replacements.keys())) for space in spaces), replacements)


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


def _holding(space: dict[str, Any], identities: AbstractSet[int]) -> list[str]:
    # Most modules hold nothing of it, which is found out without a step of Python's for each name.
    if identities.isdisjoint(map(id, list(space.values()))):
        return []
    return [name for name, value in list(space.items()) if id(value) in identities]


_TORCH, _OURS = "torch", __name__.partition(".")[0]
"""PyTorch's package and this one."""


def _is_torch(module: ModuleType) -> bool:
    return str(module.__name__).partition(".")[0] == _TORCH


# Modules of neither, by name: the identity of what was imported then. A program may have thousands.
_foreign: dict[str, int] = {}


def _torch_and_program_modules() -> list[ModuleType]:
    """PyTorch and the program itself: nothing of Python's library or installed packages, and not this library."""
    modules = []
    known, imported = _foreign.get, sys.modules.get
    # Not `items()`: thousands of new pairs at once set off the collector of garbage, which took longer than all else.
    for name in list(sys.modules):
        module = imported(name)
        if known(name) == id(module) or not isinstance(module, ModuleType):
            continue
        file = module.__dict__.get("__file__")  # a module without one, such as `__main__`, may have it later
        if name == _TORCH or name.startswith(f"{_TORCH}."):
            modules.append(module)
        elif name == _OURS or name.startswith(f"{_OURS}.") or (isinstance(file, str) and file.startswith(_installed())):
            _foreign[name] = id(module)
        elif isinstance(file, str):
            modules.append(module)
    return modules


@functools.cache
def _installed() -> tuple[str, ...]:
    """Where Python's library and installed packages are."""
    paths = sysconfig.get_paths()
    return tuple({paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})
