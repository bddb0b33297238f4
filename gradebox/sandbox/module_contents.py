"""What is in modules: functions, their code, and the names of others that this code uses.

For what is done once, before a submission runs.
"""

from __future__ import annotations

import builtins
import functools
import sys
from collections.abc import Iterator, Mapping, Set
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

_HOOKS = frozenset({"displayhook", "excepthook", "showwarning", "unraisablehook"})
"""Functions that are there to be replaced."""
_MISSING: Any = object()


class Used(NamedTuple):
    """What code uses of others, in columns: functions of modules, methods and properties of classes."""

    labels: tuple[str, ...]
    owners: tuple[object, ...]
    names: tuple[str, ...]
    values: tuple[object, ...]


class Lacking(NamedTuple):
    """The classes among the owners, in columns, and which names that code uses they lack: a property of such a name
    would answer in place of an object's own attribute."""

    labels: tuple[str, ...]
    spaces: tuple[Mapping[str, Any], ...]
    sizes: tuple[int, ...]
    names: tuple[frozenset[str], ...]


def codes_of(module: ModuleType) -> Iterator[CodeType]:
    """The code of all functions that a module defines, and of those that are made in them."""
    for function in functions_of(module):
        yield from _nested(function.__code__)


def functions_of(module: ModuleType) -> Iterator[FunctionType]:
    """The functions that a module defines, methods and those in tables among them."""
    waiting: list[Any] = list(vars(module).values())
    visited: set[int] = set()
    while waiting:
        value = waiting.pop()
        if id(value) in visited:
            continue
        visited.add(id(value))
        if isinstance(value, FunctionType):
            if value.__module__ == module.__name__:
                yield value
                waiting.append(getattr(value, "__wrapped__", None))
        elif isinstance(value, type):
            if value.__module__ == module.__name__:
                waiting += vars(value).values()
        elif isinstance(value, property):
            waiting += [value.fget, value.fset, value.fdel]
        elif isinstance(value, (staticmethod, classmethod)):
            waiting.append(value.__func__)
        elif isinstance(value, functools.cached_property):
            waiting.append(value.func)
        elif type(value) is dict:
            waiting += [member for member in value.values() if isinstance(member, FunctionType)]


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _nested(value)


def modules_of(module: ModuleType) -> Iterator[ModuleType]:
    """A package and what has been imported below it.

    Found by attributes: going through `sys.modules` would touch, and so copy, a page for each of thousands of names.
    """
    yield module
    for key, value in list(vars(module).items()):
        if is_below(module, key, value):
            yield from modules_of(value)


def is_below(module: ModuleType, key: str, value: Any) -> bool:
    """Whether an entry of a module's namespace is a module below it."""
    return isinstance(value, ModuleType) and value.__name__ == f"{module.__name__}.{key}"


def inner_functions(method: Any) -> tuple[Any, ...]:
    """The functions of a static method, a class method or a property."""
    if isinstance(method, property):
        return method.fget, method.fset, method.fdel
    return (method.__func__,)


def names_used(packages: tuple[ModuleType, ...], exchanged: Set[str], unread: Set[str]) -> tuple[Used, Lacking]:
    """What the code of probes, and of what they share with submissions, names of modules and classes that are not ours:
    a submission can replace it.

    By names alone: of each module and class that a probe's module knows, or names in it, whatever the probe also names
    somewhere. So a few are watched that no probe uses. Modules called `exchanged` are passed over, and so is the code
    of the packages called `unread`.
    """
    roots = {package.__name__ for package in packages}
    watched: dict[tuple[int, str], tuple[str, object, str, object]] = {
        (id(builtins), name): (f"builtins.{name}", builtins, name, value)
        for name, value in vars(builtins).items()
        if callable(value)
    }
    lacking: dict[int, tuple[type, set[str]]] = {}
    spared = {id(sys.modules[name]) for name in exchanged if name in sys.modules}
    read = [list(modules_of(package)) for package in packages if package.__name__ not in unread]
    for module in [one for modules in read for one in _of_probes(modules) or modules]:
        names = {name for code in codes_of(module) for name in code.co_names} - _HOOKS
        waiting, visited = list(vars(module).values()), set(spared)
        while waiting:
            owner = waiting.pop()
            if id(owner) in visited or not _is_foreign(owner, roots):
                continue
            visited.add(id(owner))
            for name in names & _names_in(owner):
                value = getattr(owner, name, _MISSING)
                if isinstance(value, (ModuleType, type)):
                    waiting.append(value)
                # One that is made anew each time says nothing.
                elif (callable(value) or _describes(value)) and getattr(owner, name, None) is value:
                    watched[id(owner), name] = (f"{_label(owner)}.{name}", owner, name, value)
            if isinstance(owner, type):
                lacking.setdefault(id(owner), (owner, set()))[1].update(names - vars(owner).keys())
    rows = [(_label(owner), vars(owner), len(vars(owner)), frozenset(names)) for owner, names in lacking.values()]
    nothing: tuple[tuple[Any, ...], ...] = ((), (), (), ())
    return (
        Used(*(tuple(zip(*watched.values(), strict=True)) or nothing)),
        Lacking(*(tuple(zip(*rows, strict=True)) or nothing)),
    )


def _of_probes(modules: list[ModuleType]) -> list[ModuleType]:
    return [module for module in modules if "probes" in module.__name__.split(".")]


def _describes(value: object) -> bool:
    """Whether something in a class answers for an attribute, as a property does."""
    return hasattr(type(value), "__get__") and hasattr(type(value), "__set__")


def _is_foreign(owner: object, roots: set[str]) -> bool:
    """Whether something is a module or a class of others, which can be changed."""
    if isinstance(owner, ModuleType):
        return owner.__name__.partition(".")[0] not in roots
    return isinstance(owner, type) and owner.__module__.partition(".")[0] not in roots


def _names_in(owner: object) -> Set[str]:
    """What a module or class has, without what a `__getattr__` of theirs would make."""
    if not isinstance(owner, type):
        return vars(owner).keys()
    return set().union(*map(vars, owner.__mro__))


def _label(owner: object) -> str:
    return owner.__name__ if isinstance(owner, ModuleType) else f"{owner.__module__}.{owner.__qualname__}"  # type: ignore[attr-defined]
