"""Are the instruments what they were before the submission ran? Fingerprints of functions, taken twice and compared.

The probe shares its process with the submission, so clocks, calls of a device, its simulator and our own functions
could be replaced. A name that means something else afterwards is found here and voids the reading; one that was put
back, or a change made in C, is not (`docs/threat-model-limits.md`). Code and defaults that a function gets at run time
raise an audit event, in which `audit.py` looks for our functions (`Fingerprint.functions`). Data are not compared, only
code: caches may fill and defaults may change.

Whatever a comparison touches is a page that a forked process has to copy, so it looks at the memory of dictionaries, or
at columns, in C, and at labels only where something has changed.
"""

from __future__ import annotations

import builtins
import gc
import itertools
import os
import random
import sys
from collections.abc import Callable, Iterable, Mapping
from operator import eq, is_, itemgetter
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, NamedTuple, TypeVar

from gradebox.sandbox import dictionary_memory
from gradebox.sandbox.devices import DeviceModule, Simulator
from gradebox.sandbox.identity import number_of
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
_CONSTANT = (int, float, str, bytes, tuple, frozenset)
_NAMED_BY = (BuiltinFunctionType, ModuleType, WrapperDescriptorType, type)
_ONE_IN = 8
_MISSING: Any = object()
_Row = TypeVar("_Row")

Parts = dict[str, tuple[Any, ...]]
"""Label to objects, compared by identity."""
Seal = tuple[tuple[tuple[FunctionType, CodeType], ...], tuple[tuple[dict[str, Any], str, Any], ...]]
"""Functions with their code, and entries of namespaces with their value: see `seal`."""


class Quick(NamedTuple):
    """What quick looks ask, put together before the fork: whoever goes through all entries copies their pages."""

    touched: Callable[[], list[int]]
    """The ids of what may have changed: namespaces of packages and classes, keyword defaults, methods of other kinds.
    """
    of_packages: Callable[[], bool]
    """Whether the namespaces of packages and classes have their values, all of them; or a KeyError."""
    of_others: Callable[[], set[int]]
    """Positions in `used` of what may be another: what probes use of modules and classes of others."""


class Fingerprint(NamedTuple):
    """What code consists of, each part with a label. Compared by identity; holding the objects keeps their ids unique.

    Plain tuples, which nobody changes. Not shown as text: that would be each namespace once for each of its names, and
    code that fingerprints the variables of all frames would wait for it.
    """

    looked_up: tuple[tuple[str, str, str, Any], ...]
    """Names to look up in `sys.modules`."""
    labels: tuple[str, ...]
    """Of entries of namespaces, which the next three columns hold."""
    spaces: tuple[dict[str, Any], ...]
    keys: tuple[str, ...]
    values: tuple[Any, ...]
    functions: Mapping[int, str]
    """Labels by id, of all whose code and defaults nobody may exchange. `values` and `others` keep them alive."""
    keywords: Mapping[int, tuple[str, Mapping[str, Any], tuple[Any, ...]]]
    """Defaults of keyword-only arguments, which are a dictionary's: no event is raised when one is set in place. By the
    dictionary's id."""
    others: Mapping[int, tuple[str, Any, tuple[Any, ...]]]
    """Methods of other kinds, with their functions. By the method's id."""
    classes: Mapping[int, tuple[str, Mapping[str, Any], tuple[str, ...], int]]
    """Their namespaces, with the names in them and the number of their methods. By the namespace's id."""
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
    entries: list[tuple[str, dict[str, Any], str, Any]] = []
    classes: list[tuple[str, type]] = []
    for module_name, names in devices.CLASSES.items():
        for name in names:
            if isinstance(cls := getattr(sys.modules.get(module_name), name, None), type):
                classes.append((f"{module_name}.{name}", cls))
    for package in packages:
        # What else is in a simulator's modules does not answer probes.
        is_read = devices.SIMULATOR is None or package.__name__ != devices.SIMULATOR.package
        for module in modules_of(package):
            space = vars(module)
            for key, value in list(space.items()):
                own = isinstance(value, type) and value.__module__ == module.__name__
                read = is_read and ((key.isupper() and type(value) in _CONSTANT) or isinstance(value, _NAMED_BY))
                if own or read or isinstance(value, FunctionType) or is_below(module, key, value):
                    entries.append((f"{module.__name__}.{key}", space, key, value))
                if own:
                    classes.append((f"{module.__name__}.{key}", value))
    for label, cls in classes:
        space = _dictionary(cls)
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
    keywords = {
        id(function.__kwdefaults__): (label, function.__kwdefaults__, _values(function.__kwdefaults__))
        for label, function in functions
        if function.__kwdefaults__
    }
    namespaces = {id(space): (label, space) for label, space in ((label, _dictionary(cls)) for label, cls in classes)}
    watched = [*(space for _, space in namespaces.values()), *(defaults for _, defaults, _ in keywords.values())]
    return Fingerprint(
        tuple(looked_up),
        *(labels, spaces, keys, values),
        MappingProxyType({id(function): label for label, function in functions}),
        MappingProxyType(keywords),
        MappingProxyType({id(row[1]): row for row in others}),
        MappingProxyType(
            {at: (label, space, tuple(space), _count(space)) for at, (label, space) in namespaces.items()}
        ),
        used,
        grown,
        quick(spaces, keys, values, used, watched, [method for _, method, _ in others]),
    )


def quick(
    spaces: Iterable[dict[str, Any]],
    keys: Iterable[str],
    values: Iterable[object],
    used: Used,
    more: Iterable[dict[str, Any]] = (),
    methods: Iterable[object] = (),
) -> Quick:
    """What quick looks at these entries, at what probes use of others, at `more` dictionaries and at `methods` ask."""
    spaces = tuple(spaces)
    touched = dictionary_memory.remember([*spaces, *more], methods)
    return Quick(touched, _comparing(touched, spaces, keys, values), _touched_rows(used))


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
    touched = looks.touched()
    differences = [
        *(label for label, module, name, value in looked_up if _get(module, name) is not value),
        *(label for label, space, saved in _of(touched, keywords) if not _same(saved, _values(space))),
        *(label for label, method, inner in _of(touched, others) if not _same(inner, inner_functions(method))),
        # With all entries as before, another number means that methods were added: a __getattribute__ of another class.
        *(
            f"{label} (methods)"
            for label, space, names, count in _of(touched, classes)
            if tuple(space) != names and _count(space) != count
        ),
        *(label for label, part in before.items() if not _same(part, now.get(label))),
    ]
    for label, space, count, lacking in zip(*grown, strict=True):
        differences += [f"{label}.{key}" for key in space if key in lacking] if len(space) != count else []
    for row in looks.of_others():
        if getattr(used.owners[row], used.names[row], _MISSING) is not used.values[row]:
            differences.append(used.labels[row])
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
    may be there: `own` are the numbers of their code. What `others` list (a simulator's answers) is compared each time.
    """
    # As locals, which nobody reaches: otherwise another `all` would hide what else is exchanged.
    every, some, same, attribute, missing = all, any, is_, getattr, _MISSING
    mapped, zipped, repeated, ordered, kind, absent = map, zip, itertools.repeat, sorted, type, KeyError
    function, method, modules, equal, size, number = FunctionType, MethodType, sys.modules.get, eq, len, number_of
    looked_up, labels, spaces, keys, values, *_, used, grown, looks = fingerprints
    _, packages_are_there, of_others = looks
    _, homes, called, originals = zip(*looked_up, strict=True)
    used_labels, owners, names, expected = used
    _, grown_spaces, sizes, _ = grown
    draw, share = random.Random(os.urandom(8)).random, 1 / _ONE_IN

    def is_ours(found: Any) -> bool:
        inner = found.__func__ if kind(found) is method else found
        made = kind(inner) is function and number(inner.__code__) in own
        return made or some(mapped(same, values, repeated(found)))

    def exchanged(whole: bool) -> list[str]:
        now: list[tuple[str, Any]] = [row for listed in others for row in listed()]
        if not every(mapped(same, mapped(attribute, mapped(modules, homes), called, repeated(missing)), originals)):
            for label, module, name, value in looked_up:
                if (found := attribute(modules(module), name, missing)) is not value:
                    now.append((label, found))
        for row in of_others():
            if (found := attribute(owners[row], names[row], missing)) is not expected[row]:
                now.append((used_labels[row], found))
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
    touched: Callable[[], list[int]], spaces: Iterable[dict[str, Any]], keys: Iterable[str], values: Iterable[object]
) -> Callable[[], bool]:
    """A function that says whether each namespace has that value under that key; a KeyError says that it has none.

    It looks at those alone whose memory is not what it was.
    """
    columns: dict[int, tuple[dict[str, Any], list[str], list[object]]] = {}
    for space, key, value in zip(spaces, keys, values, strict=True):
        _, names, expected = columns.setdefault(id(space), (space, [], []))
        names.append(key)
        expected.append(value)
    # Of a single key, a getter would return the value alone.
    rows = {
        number: (itemgetter(*names, names[0]), space, (*expected, expected[0]))
        for number, (space, names, expected) in columns.items()
    }
    every, mapped, same = all, map, is_

    def are_there() -> bool:
        for number in touched():
            if number in rows:
                getter, space, expected = rows[number]
                if not every(mapped(same, getter(space), expected)):
                    return False
        return True

    return are_there


def _touched_rows(used: Used) -> Callable[[], set[int]]:
    """A function that lists the positions of those whose attribute may have another value.

    An attribute of a class is looked up in it and its bases, and in its own class and that one's bases.
    """
    positions: dict[int, list[int]] = {}
    spaces: dict[int, dict[str, Any]] = {}
    for position, owner in enumerate(used.owners):
        kind: type = type(owner)
        here = [_dictionary(cls) for cls in owner.__mro__ + kind.__mro__] if isinstance(owner, type) else [vars(owner)]
        spaces |= {id(space): space for space in here}
        for number in {id(owner), *map(id, here)}:
            positions.setdefault(number, []).append(position)
    touched = dictionary_memory.remember(spaces.values(), used.owners)

    def rows() -> set[int]:
        return {row for number in touched() for row in positions[number]}

    return rows


def _holds(are_there: Callable[[], bool]) -> bool:
    try:
        return are_there()
    except KeyError:
        return False


def _of(numbers: Iterable[int], rows: Mapping[int, _Row]) -> list[_Row]:
    return [rows[number] for number in numbers if number in rows]


def _dictionary(cls: type) -> dict[str, Any]:
    """A class's namespace itself, of which `vars` shows a view."""
    (space,) = gc.get_referents(vars(cls))
    return space  # type: ignore[no-any-return]


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
