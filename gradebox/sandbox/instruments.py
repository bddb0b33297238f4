"""Are the instruments what they were before the submission ran? Fingerprints of functions, taken twice and compared.

The probe shares its process with the submission, so clocks, calls of a device, its simulator and our own functions
could be replaced. A change that is still there afterwards is found here and voids the reading; one that was undone, or
was made in C, is not (see `docs/threat-model.md`). Data are not compared, only code: caches may fill and defaults may
change.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from gradebox.devices import DeviceModule, Simulator

_NAMED = {
    "time": ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time",
             "process_time_ns", "thread_time", "thread_time_ns", "sleep"),
    "timeit": ("default_timer",),
    "json": ("dumps", "dump", "loads", "load"),
    "safetensors": ("serialize", "deserialize"),
    "safetensors.numpy": ("save",),
    "numpy": ("asarray",),
}  # fmt: skip
"""Functions of others that probes, checks' truths or the result's way home rely on; and `INSTRUMENTS` of the course's
devices. Of our package, the course's and the simulator's every function and method counts."""

_METHODS = (FunctionType, staticmethod, classmethod, property)
_MISSING: Any = object()

Parts = dict[str, tuple[Any, ...]]
"""Label to objects, compared by identity."""
Seal = tuple[tuple[tuple[FunctionType, CodeType], ...], tuple[tuple[dict[str, Any], str, Any], ...]]
"""Functions with their code, and entries of namespaces with their value: see `seal`."""


class Fingerprint(NamedTuple):
    """What code consists of, each part with a label. Compared by identity; holding the objects keeps their ids unique.

    Plain tuples, which nobody changes. Not shown as text: that would be each namespace once for each of its names, and
    whoever prints the variables of all frames would wait for it.
    """

    looked_up: tuple[tuple[str, str, str, Any], ...]
    """Names to look up in `sys.modules`."""
    entries: tuple[tuple[str, Mapping[str, Any], str, Any], ...]
    """Of namespaces."""
    functions: tuple[tuple[str, FunctionType, CodeType, tuple[Any, ...], tuple[Any, ...]], ...]
    """With their code and defaults."""
    others: tuple[tuple[str, Any, tuple[Any, ...]], ...]
    """Methods of other kinds, with their functions."""
    classes: tuple[tuple[str, type, int], ...]
    """With the number of their methods."""

    def __repr__(self) -> str:
        return "a fingerprint"


def own_packages(course: str, simulator: Simulator | None) -> tuple[ModuleType, ...]:
    """Our package, the course's and the simulator's, before the submission runs; later there may be others."""
    names = ("gradebox", course, simulator.package if simulator is not None else "")
    return tuple(sys.modules[name] for name in names if name in sys.modules)


def seal(*modules: ModuleType) -> Seal:
    """What a comparison relies on: the functions of `modules` and of this one, and Python's builtins.

    The caller compares it by itself, in a function that is running already, with nothing but `is` and loops: code that
    a submission has put in the place of this module's would find nothing.
    """
    entries = [
        (vars(module), name, value)
        for module in (*modules, sys.modules[__name__], builtins)
        for name, value in vars(module).items()
        if name != "_" and (module is builtins or isinstance(value, FunctionType))
    ]
    functions = [value for _, _, value in entries if isinstance(value, FunctionType)]
    return tuple((function, function.__code__) for function in functions), tuple(entries)


def snapshot(packages: tuple[ModuleType, ...], devices: DeviceModule) -> Fingerprint:
    """Fingerprint the code of every instrument as it is now, and that of `packages` (`own_packages`).

    What else `devices` relies on counts as well. To be taken before a fork: it goes through thousands of objects.
    """
    looked_up = [
        (f"{module}.{name}", module, name, getattr(sys.modules.get(module), name))
        for module, names in (*_NAMED.items(), *devices.INSTRUMENTS.items())
        for name in names
        if hasattr(sys.modules.get(module), name)
    ]
    entries: list[tuple[str, Mapping[str, Any], str, Any]] = []
    classes: list[tuple[str, type, int]] = []
    for module_name, names in devices.CLASSES.items():
        for name in names:
            if isinstance(cls := getattr(sys.modules.get(module_name), name, None), type):
                classes.append((f"{module_name}.{name}", cls, 0))
    for package in packages:
        for module in _modules(package):
            space: Mapping[str, Any] = vars(module)
            for key, value in list(space.items()):
                own = isinstance(value, type) and value.__module__ == module.__name__
                if own or isinstance(value, FunctionType) or _is_below(module, key, value):
                    entries.append((f"{module.__name__}.{key}", space, key, value))
                if own:
                    classes.append((f"{module.__name__}.{key}", value, 0))
    for label, cls, _ in classes:
        space = vars(cls)
        entries += [(f"{label}.{key}", space, key, value) for key, value in space.items() if _is_method(value)]
    held = {id(value): (label, value) for label, *_, value in [*looked_up, *entries]}
    others = [(label, value, _inner(value)) for label, value in held.values() if isinstance(value, _METHODS[1:])]
    inner = {id(part): (label, part) for label, _, parts in others for part in parts}
    functions = [(label, one) for label, one in (inner | held).values() if isinstance(one, FunctionType)]
    return Fingerprint(
        tuple(looked_up),
        tuple(entries),
        tuple((label, one, one.__code__, one.__defaults__ or (), _keywords(one)) for label, one in functions),
        tuple(others),
        tuple((label, cls, _count(cls)) for label, cls, _ in classes),
    )


def parts(
    gpu: object, packages: tuple[ModuleType, ...], of_gpu: Callable[[Any], Mapping[str, tuple[Any, ...]]]
) -> Parts:
    """What else must stay: the names of `packages` in `sys.modules`, and what an attached `gpu` measures with."""
    found: Parts = {f"sys.modules[{one.__name__}]": (sys.modules.get(one.__name__),) for one in packages}
    if gpu is not None:
        found[f"{type(gpu).__name__} object"] = tuple(_shadowed(gpu))
        found.update(of_gpu(gpu))
    return found


def changed(
    prints: Fingerprint,
    before: Parts,
    gpu: object,
    packages: tuple[ModuleType, ...],
    of_gpu: Callable[[Any], Mapping[str, tuple[Any, ...]]],
) -> list[str]:
    """Labels of the instruments that are not what they were, sorted; empty when all is well."""
    looked_up, entries, functions, others, classes = prints
    now = parts(gpu, packages, of_gpu)
    found = [
        *(label for label, module, name, value in looked_up if _get(module, name) is not value),
        *(label for label, space, key, value in entries if space.get(key, _MISSING) is not value),
        *(
            label
            for label, one, code, defaults, keywords in functions
            if one.__code__ is not code
            or not _same(defaults, one.__defaults__ or ())
            or not _same(keywords, _keywords(one))
        ),
        *(label for label, one, inner in others if not _same(inner, _inner(one))),
        # With all entries as before, another number means that methods were added: a __getattribute__ of another class.
        *(f"{label} (methods)" for label, cls, count in classes if _count(cls) != count),
        *(label for label, one in before.items() if not _same(one, now.get(label))),
    ]
    return sorted(set(found))


def _get(module: str, name: str) -> Any:
    return getattr(sys.modules.get(module), name, _MISSING)


def _same(before: tuple[Any, ...], now: tuple[Any, ...] | None) -> bool:
    if before is now:
        return True
    return now is not None and len(before) == len(now) and all(a is b for a, b in zip(before, now, strict=True))


def _is_method(value: Any) -> bool:
    return isinstance(value, _METHODS)


def _count(cls: type) -> int:
    return sum(map(_is_method, list(vars(cls).values())))


def _keywords(function: FunctionType) -> tuple[Any, ...]:
    """Defaults of its keyword-only arguments."""
    values = function.__kwdefaults__
    return tuple(values.values()) if values else ()


def _inner(method: Any) -> tuple[Any, ...]:
    """The functions of a static method, a class method or a property."""
    if isinstance(method, property):
        return method.fget, method.fset, method.fdel
    return (method.__func__,)


def _modules(module: ModuleType) -> Iterator[ModuleType]:
    """A package and what has been imported below it.

    Found by attributes: going through `sys.modules` would touch, and so copy, a page for each of thousands of names.
    """
    yield module
    for key, value in list(vars(module).items()):
        if _is_below(module, key, value):
            yield from _modules(value)


def _is_below(module: ModuleType, key: str, value: Any) -> bool:
    return isinstance(value, ModuleType) and value.__name__ == f"{module.__name__}.{key}"


def _shadowed(gpu: object) -> list[str]:
    """Methods of the class that an attribute of the object hides."""
    return [sys.intern(name) for name in sorted(vars(gpu)) if callable(getattr(type(gpu), name, None))]
