"""Whose code is whose: what was there before the submission, by identity, since names of files can be forged.

Taken in the server where it costs nobody time, and completed in the child before the submission is imported. Not for
deciding what follows from it (`audit.py`, `instruments.py`).
"""

from __future__ import annotations

import bisect
import contextlib
import dis
import functools
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

NAMES = frozenset(
    (
        *("timeline", "memory_timeline", "category_timeline", "memory_by_category", "peak_by_category", "utilization"),
        *("now", "summary", "inject_slowdown", "inject_host_slowdown"),
    )
)
"""What a probe reads or calls of the virtual GPU."""
_INSTRUMENTS = {
    "vgpu.instruments.nvml": ("Nvml.",),
    "vgpu.instruments.recorder": ("Recorder.",),
    "vgpu.gpu": ("VirtualGPU.launch",),
    "vgpu.memory.categories": ("Ledger.after_step",),
    "vgpu.memory.snapshot": ("_trace",),
    "vgpu.patches.loaders": ("install.<locals>.get_data",),
}
"""Parts of the virtual GPU that read its record for what a real one tells as well, or for themselves. None of them may
call what it is handed, or a function in C that was built to ask would be taken for it."""


_ENTRIES = {
    "vgpu.operations.dispatch_mode": "DispatchMode.__torch_dispatch__",
    "vgpu.operations.function_mode": "FunctionMode.__torch_function__",
}
"""Where PyTorch calls the virtual GPU with an operation of a program's."""
_ENGINE = ("vgpu.gpu", "vgpu.machine", "vgpu.timing", "vgpu.memory", "vgpu.operations.dispatch_mode")
"""Parts that launch kernels because another part of the virtual GPU tells them to, and nobody else."""


@dataclass(frozen=True)
class Ours:
    """Code that is not the submission's. Numbers are ids of code objects, which `_known` keeps alive."""

    libraries: tuple[str, ...]
    """Beginnings of the names of files of the standard library (the first two), installed packages and our own."""
    simulator: frozenset[int] = frozenset()
    """The virtual GPU's."""
    instruments: frozenset[int] = frozenset()
    """Those of `_INSTRUMENTS`."""
    entries: frozenset[int] = frozenset()
    """Those of `_ENTRIES`."""
    engine: frozenset[int] = frozenset()
    """Those of `_ENGINE`, but for `entries`."""
    folder: str = ""
    """Where the files of the virtual GPU lie."""
    probes: frozenset[int] = frozenset()
    between: frozenset[int] = frozenset()
    """What may stand between a probe and another of its functions: `contextlib`."""
    top: int = 0
    """The function that calls the probe: nothing above it is the submission's."""
    hidden: tuple[object, ...] = ()
    """The generators that hold the virtual GPU's record."""
    hidden_code: frozenset[int] = frozenset()


_known: dict[str, tuple[CodeType, ...]] = {}
_remembered: list[Ours] = []
"""What `remember` found last."""


def remember(course: str) -> None:
    """Look at what is imported already, of ours and of the package `course`.

    In the server, before it forks: to go through all modules and their code in a child would touch, and so copy, most
    of its memory.
    """
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("vgpu", "gradebox", course, "probes") or module is contextlib:
            _known.setdefault(name, tuple(_codes(module)))
    stdlib = [sysconfig.get_path(name) + "/" for name in ("stdlib", "platstdlib")]
    witness = _known.get("vgpu.timing.witness", ())
    entries = _ids(
        code for name, entry in _ENTRIES.items() for code in _known.get(name, ()) if code.co_qualname == entry
    )
    engine = _ids(code for name, codes in _known.items() if any(_in(name, part) for part in _ENGINE) for code in codes)
    found = Ours(
        libraries=tuple(stdlib),
        entries=entries,
        engine=engine - entries,
        folder=next((code.co_filename.rpartition("/timing/")[0] + "/" for code in witness), ""),
        simulator=_ids(code for name, codes in _known.items() if _in(name, "vgpu") for code in codes),
        instruments=_ids(
            code
            for name, starts in _INSTRUMENTS.items()
            for code in _known.get(name, ())
            if code.co_qualname.startswith(starts)
        ),
        probes=_ids(code for name, codes in _known.items() if _is_probe(name, course) for code in codes),
        between=_ids(_known["contextlib"]),
        hidden_code=_ids(code for code in witness if code.co_name in ("record", "history", "steps")),
    )
    _remembered[:] = [found]


def know(course: str, folders: Iterable[str], probe: str, top: CodeType, gpu: Any = None) -> Ours:
    """Everything that is there now is ours.

    Args:
        course: the course's package.
        folders: of libraries, besides the standard library's.
        probe: the name of the probe's module.
        top: the code that will call the probe.
        gpu: the attached virtual GPU.
    """
    if probe not in _known or (gpu is not None and "vgpu.timing.witness" not in _known):
        remember(course)  # something was not imported in the server
    (found,) = _remembered
    hidden: list[object] = []
    if gpu is not None:
        kept = [keeper for one in gpu.machine.gpus for keeper in (one.queue.record, one.memory.history)]
        hidden = [*(keeper.tell.__self__ for keeper in kept), gpu.clock.mine().step.__self__]
    return replace(
        found,
        libraries=(*found.libraries, *(folder.rstrip("/") + "/" for folder in folders), "<frozen "),
        top=id(top),
        hidden=tuple(hidden),
    )


def asks(frame: FrameType) -> bool:
    """Whether a frame is just now reading or calling something of `NAMES`, by its own instructions."""
    offsets, asking = _instructions(frame.f_code)
    # The frame may point behind the instruction, into its cache.
    return asking[bisect.bisect_right(offsets, frame.f_lasti) - 1]


@functools.cache
def _instructions(code: CodeType) -> tuple[list[int], list[bool]]:
    """Offsets of the instructions, and whether each reads a name of `NAMES` or calls what was read under it."""
    offsets, asking = [], []
    begins: set[tuple[int | None, int | None]] = set()
    for instruction in dis.get_instructions(code):
        place = instruction.positions and (instruction.positions.lineno, instruction.positions.col_offset)
        reads = instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and instruction.argval in NAMES
        if reads and place:
            begins.add(place)
        offsets.append(instruction.offset)
        # `student.gpu.now()`: the call begins where the expression that it calls begins.
        asking.append(reads or ("CALL" in instruction.opname and place in begins))
    return offsets, asking


def _is_probe(name: str, course: str) -> bool:
    package, _, inner = name.partition(".")
    return package == "probes" or (package == course and ".probes." in f".{inner}.")


def _in(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def _ids(codes: Iterable[CodeType]) -> frozenset[int]:
    return frozenset(id(code) for code in codes)


def _codes(module: ModuleType) -> Iterator[CodeType]:
    for function in _functions(module):
        yield from _nested(function.__code__)


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    waiting: list[Any] = list(vars(module).values())
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
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
            waiting += [one for one in value.values() if isinstance(one, FunctionType)]


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _nested(value)
