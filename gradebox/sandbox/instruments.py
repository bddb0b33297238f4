"""Are the instruments what they were before the submission ran? Fingerprints of functions, taken twice and compared.

The probe shares its process with the submission, so clocks, calls of a device, its simulator and our own functions
could be replaced. A name that means something else afterwards is found here and voids the reading; one that was put
back, or a change made in C, is not (`docs/threat-model-limits.md`). Code and defaults that a function gets at run time
raise an audit event, in which `audit.py` looks for our functions (`Fingerprint.functions`). Data are not compared, only
code: caches may fill and defaults may change.

Whatever a comparison touches is a page that a forked process has to copy, so it looks at columns, in C, and at labels
only where something has changed.
"""

from __future__ import annotations

import builtins
import itertools
import os
import random
import sys
from collections.abc import Callable, Iterable, Mapping
from operator import call, eq, is_, itemgetter
from types import BuiltinFunctionType, CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any, NamedTuple

from gradebox.sandbox.devices import DeviceModule, Simulator
from gradebox.sandbox.module_contents import Lacking, Used, inner_functions, is_below, modules_of, names_used
from gradebox.sandbox.types import Environment

_NAMED = {
    "time": ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time",
             "process_time_ns", "thread_time", "thread_time_ns", "sleep"),
    "timeit": ("default_timer",),
    "json": ("dumps", "dump", "loads", "load"),
    "safetensors": ("serialize", "deserialize"),
    "safetensors.numpy": ("save",),
    "numpy": ("asarray",),
    # These hand frames to code that has replaced one of them.
    "traceback": ("extract_stack", "extract_tb", "format_stack", "print_stack", "walk_stack", "walk_tb"),
    "logging": ("currentframe",),
    "inspect": ("currentframe", "stack", "trace", "getouterframes", "getinnerframes", "getframeinfo"),
}  # fmt: skip
"""Functions of others that the result's way home relies on, or through which frames are reached; and `INSTRUMENTS` of
the course's devices. The names that probes use of others are found in their code (`names_used`). Of our package, the
course's and the simulator's every function and method counts."""

_METHODS = (FunctionType, staticmethod, classmethod, property)
_CONSTANT, _NAMED_BY = (int, float, str, bytes, tuple, frozenset), (BuiltinFunctionType, ModuleType, type)
_ONE_IN = 8
_MISSING: Any = object()
_HEAP_TYPE, _IMMUTABLE_TYPE = 1 << 9, 1 << 8
"""Of `type.__flags__`, by Python's Include/object.h. A class with the first and without the second can be changed."""

Parts = dict[str, tuple[Any, ...]]
"""Label to objects, compared by identity."""
Seal = tuple[tuple[tuple[FunctionType, CodeType], ...], tuple[tuple[dict[str, Any], str, Any], ...]]
"""Functions with their code, and entries of namespaces with their value: see `seal`."""


class Quick(NamedTuple):
    """What quick looks ask, put together before the fork: whoever goes through all entries copies their pages."""

    of_packages: Callable[[], bool]
    """Whether the namespaces of packages and classes have their values, all of them; or a KeyError."""
    of_modules: Callable[[], bool]
    """Whether modules of others have what probes use of them; or a KeyError."""
    of_others: tuple[Any, Any, Any]
    """Owners, names and values of what probes use of all else."""


class Fingerprint(NamedTuple):
    """What code consists of, each part with a label. Compared by identity; holding the objects keeps their ids unique.

    Plain tuples, which nobody changes. Not shown as text: that would be each namespace once for each of its names, and
    code that fingerprints the variables of all frames would wait for it.
    """

    looked_up: tuple[tuple[str, str, str, Any], ...]
    """Names to look up in `sys.modules`."""
    labels: tuple[str, ...]
    """Of entries of namespaces, which the next three columns hold."""
    spaces: tuple[Mapping[str, Any], ...]
    keys: tuple[str, ...]
    values: tuple[Any, ...]
    functions: Mapping[int, str]
    """Labels by id, of all whose code and defaults nobody may exchange. `values` and `others` keep them alive."""
    keywords: tuple[tuple[str, Mapping[str, Any], tuple[Any, ...]], ...]
    """Defaults of keyword-only arguments, which are a dictionary's: no event is raised when one is set in place."""
    others: tuple[tuple[str, Any, tuple[Any, ...]], ...]
    """Methods of other kinds, with their functions."""
    classes: tuple[tuple[str, Mapping[str, Any], tuple[str, ...], int], ...]
    """Their namespaces, with the names in them and the number of their methods."""
    used: Used
    grown: Lacking
    quick: Quick

    def __repr__(self) -> str:
        return "a fingerprint"


def own_packages(course: Environment, simulator: Simulator | None) -> tuple[ModuleType, ...]:
    """Our package, the course's, the simulator's, and what of the course's a submission may import.

    To be called before the submission runs; later there may be others.
    """
    names = dict.fromkeys(("gradebox", course.course, simulator.package if simulator else "", *course.importable))
    return tuple(sys.modules[name] for name in names if name in sys.modules)


def seal(*modules: ModuleType) -> Seal:
    """What a comparison relies on: the functions of `modules` and of this one, and Python's builtins.

    The caller compares it by itself, in a function that is running already, with nothing but `is` and loops: code that
    a submission has put instead of this module's would find nothing.
    """
    entries = [
        (vars(module), name, value)
        for module in (*modules, sys.modules[__name__], builtins)
        for name, value in vars(module).items()
        if name != "_" and (module is builtins or isinstance(value, (FunctionType, BuiltinFunctionType)))
    ]
    functions = [value for _, _, value in entries if isinstance(value, FunctionType)]
    return tuple((function, function.__code__) for function in functions), tuple(entries)


def snapshot(packages: tuple[ModuleType, ...], devices: DeviceModule) -> Fingerprint:
    """Fingerprint the code of every instrument as it is now, and that of `packages` (`own_packages`).

    Other modules that `devices` relies on count as well. To be taken before a fork: it goes through thousands of
    objects.
    """
    looked_up = [
        (f"{module}.{name}", module, name, getattr(sys.modules.get(module), name))
        for module, names in (*_NAMED.items(), *devices.INSTRUMENTS.items())
        for name in names
        if hasattr(sys.modules.get(module), name)
    ]
    entries: list[tuple[str, Mapping[str, Any], str, Any]] = []
    classes: list[tuple[str, type]] = []
    for module_name, names in devices.CLASSES.items():
        for name in names:
            if isinstance(cls := getattr(sys.modules.get(module_name), name, None), type):
                classes.append((f"{module_name}.{name}", cls))
    for package in packages:
        # What else is in a simulator's modules does not answer probes.
        is_read = devices.SIMULATOR is None or package.__name__ != devices.SIMULATOR.package
        for module in modules_of(package):
            space: Mapping[str, Any] = vars(module)
            for key, value in list(space.items()):
                own = isinstance(value, type) and value.__module__ == module.__name__
                read = is_read and ((key.isupper() and type(value) in _CONSTANT) or isinstance(value, _NAMED_BY))
                if own or read or isinstance(value, FunctionType) or is_below(module, key, value):
                    entries.append((f"{module.__name__}.{key}", space, key, value))
                if own:
                    classes.append((f"{module.__name__}.{key}", value))
    for label, cls in classes:
        space = vars(cls)
        entries += [(f"{label}.{key}", space, key, value) for key, value in space.items() if _is_method(value)]
    held = {id(value): (label, value) for label, *_, value in [*looked_up, *entries]}
    others = [
        (label, value, inner_functions(value)) for label, value in held.values() if isinstance(value, _METHODS[1:])
    ]
    inner = {id(part): (label, part) for label, _, parts in others for part in parts}
    functions = [(label, function) for label, function in (inner | held).values() if isinstance(function, FunctionType)]
    labels, spaces, keys, values = zip(*entries, strict=True)
    unread = {"gradebox", devices.SIMULATOR.package if devices.SIMULATOR else ""}
    used, grown = names_used(packages, devices.EXCHANGED, unread)
    return Fingerprint(
        tuple(looked_up),
        *(labels, spaces, keys, values),
        MappingProxyType({id(function): label for label, function in functions}),
        tuple(
            (label, function.__kwdefaults__, _values(function.__kwdefaults__))
            for label, function in functions
            if function.__kwdefaults__
        ),
        tuple(others),
        tuple((label, vars(cls), tuple(vars(cls)), _count(vars(cls))) for label, cls in classes),
        used,
        grown,
        quick(spaces, keys, values, used),
    )


def quick(spaces: Iterable[Mapping[str, Any]], keys: Iterable[str], values: Iterable[object], used: Used) -> Quick:
    """What quick looks at these entries, and at what probes use of others, ask."""
    return Quick(_comparing(spaces, keys, values), *_by_kind_of_owner(used))


def parts(
    gpu: object, packages: tuple[ModuleType, ...], of_gpu: Callable[[Any], Mapping[str, tuple[Any, ...]]]
) -> Parts:
    """What else must stay: the names of `packages` in `sys.modules`, and what an attached `gpu` measures with."""
    entries: Parts = {f"sys.modules[{package.__name__}]": (sys.modules.get(package.__name__),) for package in packages}
    if gpu is not None:
        entries[f"{type(gpu).__name__} object"] = tuple(_shadowed(gpu))
        entries.update(of_gpu(gpu))
    return entries


def changed(
    fingerprints: Fingerprint,
    before: Parts,
    gpu: object,
    packages: tuple[ModuleType, ...],
    of_gpu: Callable[[Any], Mapping[str, tuple[Any, ...]]],
) -> list[str]:
    """Labels of the instruments that are not what they were, sorted; empty when all is well."""
    looked_up, labels, spaces, keys, values, _, keywords, others, classes, used, grown, looks = fingerprints
    now = parts(gpu, packages, of_gpu)
    differences = [
        *(label for label, module, name, value in looked_up if _get(module, name) is not value),
        *(label for label, space, saved in keywords if not _same(saved, _values(space))),
        *(label for label, method, inner in others if not _same(inner, inner_functions(method))),
        # With all entries as before, another number means that methods were added: a __getattribute__ of another class.
        *(
            f"{label} (methods)"
            for label, space, names, count in classes
            if tuple(space) != names and _count(space) != count
        ),
        *(label for label, part in before.items() if not _same(part, now.get(label))),
    ]
    for label, space, count, lacking in zip(*grown, strict=True):
        differences += [f"{label}.{key}" for key in space if key in lacking] if len(space) != count else []
    if not all(map(is_, map(getattr, used[1], used[2], itertools.repeat(_MISSING)), used[3])):
        differences += [
            label for label, owner, key, value in zip(*used, strict=True) if getattr(owner, key, _MISSING) is not value
        ]
    if not _holds(looks.of_packages):
        columns = zip(labels, spaces, keys, values, strict=True)
        differences += [label for label, space, key, value in columns if space.get(key, _MISSING) is not value]
    return sorted(set(differences))


def watch(
    fingerprints: Fingerprint, own: frozenset[int], *others: Callable[[], list[tuple[str, object]]]
) -> Callable[[bool], list[str]]:
    """A function that lists the labels of instruments that are others just now, sorted.

    Quick, because it is called often: it compares names alone, and the thousands of our packages if it is asked for
    all, else in one call of `_ONE_IN`, which nobody can foresee. Classes and functions of probes and of the simulator
    may be there: `own` are the ids of their code. What `others` list (a simulator's answers) is compared each time.
    """
    # As locals, which nobody reaches: otherwise another `all` would hide what else is exchanged.
    every, some, same, attribute, missing = all, any, is_, getattr, _MISSING
    mapped, zipped, repeated, ordered, kind, identity, absent = map, zip, itertools.repeat, sorted, type, id, KeyError
    function, method, modules, equal, size = FunctionType, MethodType, sys.modules.get, eq, len
    looked_up, labels, spaces, keys, values, *_, used, grown, looks = fingerprints
    packages_are_there, modules_are_there, of_others = looks
    of_all, (_, homes, called, originals) = used[1:], zip(*looked_up, strict=True)
    _, grown_spaces, sizes, _ = grown
    draw, share = random.Random(os.urandom(8)).random, 1 / _ONE_IN

    def is_ours(found: Any) -> bool:
        inner = found.__func__ if kind(found) is method else found
        made = kind(inner) is function and identity(inner.__code__) in own
        return made or some(mapped(same, values, repeated(found)))

    def exchanged(whole: bool) -> list[str]:
        now: list[tuple[str, Any]] = [row for listed in others for row in listed()]
        if not every(mapped(same, mapped(attribute, mapped(modules, homes), called, repeated(missing)), originals)):
            for label, module, name, value in looked_up:
                if (found := attribute(modules(module), name, missing)) is not value:
                    now.append((label, found))
        rows = of_all if whole else of_others
        try:
            as_before = every(mapped(same, mapped(attribute, rows[0], rows[1], repeated(missing)), rows[2]))
            as_before = as_before and modules_are_there()
        except absent:
            as_before = False
        if not as_before:
            for label, owner, name, value in zipped(*used):
                if (found := attribute(owner, name, missing)) is not value:
                    now.append((label, found))
        if not every(mapped(equal, mapped(size, grown_spaces), sizes)):
            for label, space, count, lacking in zipped(*grown):
                if size(space) != count:
                    now += [(f"{label}.{key}", found) for key, found in space.items() if key in lacking]
        as_before = True
        try:
            if whole or draw() < share:
                as_before = packages_are_there()
        except absent:
            as_before = False
        if not as_before:
            for label, space, key, value in zipped(labels, spaces, keys, values):
                if (found := space.get(key, missing)) is not value:
                    now.append((label, found))
        return ordered([label for label, found in now if not is_ours(found)])

    return exchanged


def _comparing(
    spaces: Iterable[Mapping[str, Any]], keys: Iterable[str], values: Iterable[object]
) -> Callable[[], bool]:
    """A function that says whether each namespace has that value under that key; a KeyError says that it has none.

    Neighbours of one namespace are looked up together, which is quicker.
    """
    rows_of = itertools.groupby(zip(spaces, keys, values, strict=True), lambda row: id(row[0]))
    groups = [list(rows) for _, rows in rows_of]
    # Of a single key, a getter would return the value alone.
    groups = [rows if len(rows) > 1 else rows * 2 for rows in groups]
    watched = tuple(rows[0][0] for rows in groups)
    getters = tuple(itemgetter(*[key for _, key, _ in rows]) for rows in groups)
    expected = tuple(value for rows in groups for *_, value in rows)
    every, mapped, same, called, chained = all, map, is_, call, itertools.chain.from_iterable

    def are_there() -> bool:
        return every(mapped(same, chained(mapped(called, getters, watched)), expected))

    return are_there


def _by_kind_of_owner(used: Used) -> tuple[Callable[[], bool], tuple[Any, Any, Any]]:
    """For quick looks at what probes use: `_comparing` what modules have; and owners, names and values of all else.

    Without classes that Python lets nobody change (`int`, most of NumPy's): slow looks compare them. A module that gets
    a class of its own may answer otherwise than its namespace, so that is compared too.
    """
    rows = list(zip(*used[1:], strict=True))
    of_modules = [(vars(owner), name, value) for owner, name, value in rows if type(owner) is ModuleType]
    modules = tuple({id(row[0]): row[0] for row in rows if type(row[0]) is ModuleType}.values())
    of_others = [row for row in rows if type(row[0]) is not ModuleType and _can_change(row[0])]
    names_are_there = _comparing(*_columns(of_modules))
    every, mapped, same, kind, plain = all, map, is_, type, itertools.repeat(ModuleType)

    def are_there() -> bool:
        return every(mapped(same, mapped(kind, modules), plain)) and names_are_there()

    return are_there, _columns(of_others)


def _can_change(owner: object) -> bool:
    """Whether attributes of a module or a class can be set at all."""
    if not isinstance(owner, type):
        return True
    return bool(owner.__flags__ & _HEAP_TYPE) and not owner.__flags__ & _IMMUTABLE_TYPE


def _columns(rows: list[tuple[Any, Any, Any]]) -> tuple[Any, Any, Any]:
    first, second, third = zip(*rows, strict=True) if rows else ((), (), ())
    return first, second, third


def _holds(are_there: Callable[[], bool]) -> bool:
    try:
        return are_there()
    except KeyError:
        return False


def _get(module: str, name: str) -> Any:
    return getattr(sys.modules.get(module), name, _MISSING)


def _same(before: tuple[Any, ...], now: tuple[Any, ...] | None) -> bool:
    if before is now:
        return True
    return now is not None and len(before) == len(now) and all(a is b for a, b in zip(before, now, strict=True))


def _is_method(value: Any) -> bool:
    return isinstance(value, _METHODS)


def _count(space: Mapping[str, Any]) -> int:
    return sum(map(_is_method, list(space.values())))


def _values(space: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(space.values())


def _shadowed(gpu: object) -> list[str]:
    """Methods of the class that an attribute of the object hides."""
    return [sys.intern(name) for name in sorted(vars(gpu)) if callable(getattr(type(gpu), name, None))]
