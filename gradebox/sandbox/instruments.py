"""Are the instruments what they were before the submission ran? Fingerprints of functions, taken twice and compared.

The probe shares its process with the submission, so clocks, CUDA calls, the virtual GPU and our own functions could be
replaced. A change that is still there afterwards is found here and voids the reading; one that was undone, or was made
in C, is not (see `docs/threat-model.md`). Data are not compared, only code: caches may fill and defaults may change.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

_NAMED = {
    "time": ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time",
             "process_time_ns", "thread_time", "thread_time_ns", "sleep"),
    "timeit": ("default_timer",),
    "json": ("dumps", "dump", "loads", "load"),
    "torch": ("allclose", "equal", "isclose"),
    "torch.testing": ("assert_close",),
    "torch.cuda": ("synchronize", "is_available", "Event", "Stream", "memory_allocated", "memory_reserved",
                   "max_memory_allocated", "max_memory_reserved", "memory_stats", "mem_get_info", "empty_cache",
                   "reset_peak_memory_stats", "reset_accumulated_memory_stats", "get_device_properties",
                   "get_device_name", "device_count", "current_device"),
    "torch.cuda.memory": ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved",
                          "memory_stats", "reset_peak_memory_stats", "empty_cache"),
    "torch.distributed": ("all_reduce", "all_gather", "broadcast", "barrier", "reduce", "reduce_scatter",
                          "all_gather_into_tensor", "reduce_scatter_tensor", "get_rank", "get_world_size"),
    "safetensors": ("serialize", "deserialize"),
    "safetensors.numpy": ("save",),
    "numpy": ("asarray",),
}  # fmt: skip
"""Functions of others that probes, checks' truths or the result's way home rely on."""

_CLASSES = {"torch.cuda": ("Event", "Stream")}
_OWN = ("vgpu", "gradebox")
"""Packages of which every function and method counts; and those of the course."""

Fingerprint = dict[str, tuple[Any, ...]]
"""Name of an instrument to the objects it consists of, compared by identity; holding them keeps their ids unique."""
Seal = tuple[tuple[tuple[FunctionType, CodeType], ...], tuple[tuple[dict[str, Any], str, Any], ...]]
"""Functions with their code, and entries of namespaces with their value: see `seal`."""


def own_packages(course: str) -> tuple[ModuleType, ...]:
    """Our packages and the course's as they are before the submission runs; later `sys.modules` may name others."""
    return tuple(sys.modules[name] for name in (*_OWN, course) if name in sys.modules)


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


def snapshot(gpu: object = None, packages: tuple[ModuleType, ...] = ()) -> Fingerprint:
    """Fingerprint every instrument as it is now.

    Args:
        gpu: the attached virtual GPU, whose own attributes count too.
        packages: those of `own_packages`.
    """
    prints: Fingerprint = {}
    for module_name, names in _NAMED.items():
        module = sys.modules.get(module_name)
        for name in names:
            if hasattr(module, name):
                prints[f"{module_name}.{name}"] = _function(getattr(module, name))
    for module_name, names in _CLASSES.items():
        for name in names:
            if isinstance(cls := getattr(sys.modules.get(module_name), name, None), type):
                prints.update(_class(f"{module_name}.{name}", cls))
    for package in packages:
        name = package.__name__
        prints[f"sys.modules[{name}]"] = (sys.modules.get(name),)
        for module in _modules(package):
            prints.update(_module(module.__name__, module))
    if gpu is not None:
        prints[f"{type(gpu).__name__} object"] = tuple(_shadowed(gpu))
        for one in getattr(getattr(gpu, "machine", None), "gpus", ()):
            prints.update(_device(one))
    return prints


def changed(before: Fingerprint, gpu: object = None, packages: tuple[ModuleType, ...] = ()) -> list[str]:
    """Names of the instruments that are not what they were, sorted; empty when all is well."""
    now = snapshot(gpu, packages)
    return sorted(name for name, parts in before.items() if not _same(parts, now.get(name)))


def _same(before: tuple[Any, ...], now: tuple[Any, ...] | None) -> bool:
    return now is not None and len(before) == len(now) and all(a is b for a, b in zip(before, now, strict=True))


def _function(value: Any) -> tuple[Any, ...]:
    """The parts of a function whose exchange would change what it does."""
    if isinstance(value, (staticmethod, classmethod)):
        return (value, *_function(value.__func__))
    if isinstance(value, property):
        return (value, *(part for getter in (value.fget, value.fset) for part in _function(getter)))
    if isinstance(value, FunctionType):
        defaults = value.__defaults__ or ()
        keywords = value.__kwdefaults__ or {}
        return (value, value.__code__, *defaults, *keywords.values())
    return (value,)


def _modules(module: ModuleType) -> Iterator[ModuleType]:
    """A package and what has been imported below it.

    Found by attributes: going through `sys.modules` would touch, and so copy, a page for each of thousands of names.
    """
    yield module
    for key, value in list(vars(module).items()):
        if isinstance(value, ModuleType) and value.__name__ == f"{module.__name__}.{key}":
            yield from _modules(value)


def _module(name: str, module: ModuleType) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for key, value in list(vars(module).items()):
        if isinstance(value, FunctionType):
            yield f"{name}.{key}", _function(value)
        elif isinstance(value, type) and value.__module__ == name:
            yield f"{name}.{key}", (value,)
            yield from _class(f"{name}.{key}", value)


def _class(name: str, cls: type) -> Iterator[tuple[str, tuple[Any, ...]]]:
    methods = {
        key: value
        for key, value in list(vars(cls).items())
        if isinstance(value, (FunctionType, staticmethod, classmethod, property))
    }
    # The names themselves count: an added __getattribute__ changes a class without touching any method.
    yield f"{name} (methods)", tuple(sys.intern(key) for key in sorted(methods))
    for key, value in methods.items():
        yield f"{name}.{key}", _function(value)


def _device(gpu: Any) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The parts that a virtual GPU measures with: the same objects, a clock that only its own functions moved."""
    clock, record = gpu.clock, gpu.queue.record
    mine = clock.mine()
    name = f"the virtual GPU {gpu.index}"
    parts = (gpu.machine, clock, gpu.registry, gpu.queue, gpu.queue._clock, gpu.memory, gpu.memory._clock, gpu.spec)
    yield f"{name}'s parts", (*parts, record, gpu.memory.history, clock.turns)
    yield f"{name}'s data sheet", (sys.intern(repr(gpu.spec)),)
    yield f"{name}'s clock", (mine, mine.step, _answer(mine.step))
    yield f"{name}'s record", (record.tell, gpu.memory.history.tell, _answer(record.tell))


def _answer(ask: Any) -> object:
    """What a witness (`vgpu.timing.witness`) says to None: whether all is as it can be."""
    try:
        return ask(None)
    except Exception:  # it has been ended
        return None


def _shadowed(gpu: object) -> list[str]:
    """Methods of the class that an attribute of the object hides."""
    return [sys.intern(name) for name in sorted(vars(gpu)) if callable(getattr(type(gpu), name, None))]
