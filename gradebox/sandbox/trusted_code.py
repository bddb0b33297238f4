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
from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import CodeType, FrameType, FunctionType, MethodType

from gradebox.sandbox.devices import Simulator
from gradebox.sandbox.identity import number_of
from gradebox.sandbox.module_contents import codes_of
from gradebox.sandbox.safe_text import plain_ascii, safe


@dataclass(frozen=True)
class TrustedCode:
    """Code that is not the submission's. Numbers are `number_of` code objects, which `_known` keeps alive."""

    libraries: tuple[str, ...]
    """Beginnings of the names of files of the standard library (the first two), installed packages and our own."""
    course: str = ""
    """Its package."""
    about: Simulator | None = None
    """What the course says of its simulator; None where it has none."""
    simulator: frozenset[int] = frozenset()
    """The simulator's."""
    instruments: frozenset[int] = frozenset()
    """Those of `about.instruments`."""
    entries: frozenset[int] = frozenset()
    """Those of `about.entries`."""
    engine: frozenset[int] = frozenset()
    """Those of `about.engine`, except for `entries`."""
    folder: str = ""
    """Where the files of the simulator lie."""
    probes: frozenset[int] = frozenset()
    between: frozenset[int] = frozenset()
    """What may stand between a probe and its functions: `contextlib`, and a module of probes that hands them out."""
    top: int = 0
    """The function that calls the probe: nothing above it is the submission's."""
    hidden: tuple[object, ...] = ()
    """The generators that hold the simulator's record."""
    secret: tuple[object, ...] = ()
    """Generators of our own: the way back for the result."""
    hidden_code: frozenset[int] = frozenset()


_BETWEEN = ("contextlib", ".probes.kept")
"""Ends of names of modules, for `TrustedCode.between`."""
_known: dict[str, tuple[CodeType, ...]] = {}
_remembered: list[TrustedCode] = []
"""What `remember` found last."""


def remember(course: str, about: Simulator | None) -> None:
    """Look at what is imported already, of ours, of the package `course`, and of the simulator.

    In the server, before it forks: to go through all modules and their code in a child would touch, and so copy, most
    of its memory.
    """
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("gradebox", course, "probes", about and about.package) or module is contextlib:
            _known.setdefault(name, tuple(codes_of(module)))
    stdlib = [sysconfig.get_path(name) + "/" for name in ("stdlib", "platstdlib")]
    base = TrustedCode(
        libraries=tuple(stdlib),
        course=course,
        probes=_ids(code for name, codes in _known.items() if _is_probe(name, course) for code in codes),
        between=_ids(code for name, codes in _known.items() if name.endswith(_BETWEEN) for code in codes),
    )
    _remembered[:] = [base if about is None else _with_simulator(base, about)]


def _with_simulator(base: TrustedCode, about: Simulator) -> TrustedCode:
    recorder = _known.get(about.recorder, ())
    entries = _ids(
        code for name, entry in about.entries.items() for code in _known.get(name, ()) if code.co_qualname == entry
    )
    engine = _ids(
        code for name, codes in _known.items() if any(_in(name, part) for part in about.engine) for code in codes
    )
    return replace(
        base,
        about=about,
        entries=entries,
        engine=engine - entries,
        folder=next((_folder_of_package(code.co_filename, about.recorder) for code in recorder), ""),
        simulator=_ids(code for name, codes in _known.items() if _in(name, about.package) for code in codes),
        instruments=_ids(
            code
            for name, starts in about.instruments.items()
            for code in _known.get(name, ())
            if code.co_qualname.startswith(starts)
        ),
        hidden_code=_ids(
            code
            for name, generators in about.generators.items()
            for code in _known.get(name, ())
            if code.co_name in generators
        ),
    )


def _folder_of_package(file: str, module: str) -> str:
    """The folder of the package of `module`, whose file is `file`."""
    for _ in range(module.count(".")):
        file = file.rpartition("/")[0]
    return file + "/"


def trusted(
    course: str,
    folders: Iterable[str],
    probe: str,
    top: CodeType,
    about: Simulator | None = None,
    hidden: Iterable[object] | None = None,
    secret: Iterable[object] = (),
) -> TrustedCode:
    """Everything that is there now is ours.

    Args:
        course: the course's package.
        folders: of libraries, besides the standard library's.
        probe: the name of the probe's module.
        top: the code that will call the probe.
        about: the course's simulator.
        hidden: the generators that hold its record; None where it is not attached.
        secret: generators of our own that nobody may look into.
    """
    if probe not in _known or (hidden is not None and about is not None and about.recorder not in _known):
        remember(course, about)  # something was not imported in the server
    (base,) = _remembered
    return replace(
        base,
        libraries=(*base.libraries, *(folder.rstrip("/") + "/" for folder in folders), "<frozen "),
        top=number_of(top),
        hidden=tuple(hidden or ()),
        secret=tuple(secret),
    )


def asks(frame: FrameType, names: frozenset[str]) -> bool:
    """Whether a frame is just now reading or calling something of these names, by its own instructions."""
    offsets, asking = _instructions(frame.f_code, names)
    # The frame may point behind the instruction, into its cache.
    return asking[bisect.bisect_right(offsets, frame.f_lasti) - 1]


@functools.cache
def _instructions(code: CodeType, names: frozenset[str]) -> tuple[list[int], list[bool]]:
    """Offsets of the instructions, and whether each reads one of `names` or calls what was read under it."""
    offsets, asking = [], []
    begins: set[tuple[int | None, int | None]] = set()
    for instruction in dis.get_instructions(code):
        place = instruction.positions and (instruction.positions.lineno, instruction.positions.col_offset)
        reads = instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and instruction.argval in names
        if reads and place:
            begins.add(place)
        offsets.append(instruction.offset)
        # `student.gpu.now()`: the call begins where the expression that it calls begins.
        asking.append(reads or ("CALL" in instruction.opname and place in begins))
    return offsets, asking


def foreign_mode(ours: TrustedCode, genuine: tuple[object, ...], handler: str, mode: object) -> str:
    """In words, a mode of a library's that is on and may answer as the submission wants; nothing if it cannot.

    A mode answers by its class's `handler`. All methods must be a library's, and nothing on the instance may take their
    place. A mode of the simulator's class answers by what it holds as well: only the `genuine` ones, which were there
    before the submission, are let through. If there are none, a program attaches a device by itself. In a tuple there
    is a library's evaluator of frames, or None: it must be the library's own, and may call nothing else directly.
    """
    if type(mode) is tuple:
        return _foreign_evaluator(ours, *mode)
    if any(mode is each for each in genuine):
        return ""
    kind = type(mode)
    answers: object = None
    foreign, is_attached = False, bool(genuine)
    for base in reversed(type.mro(kind)):
        for name, method in list(vars(base).items()):
            function = method.__func__ if type(method) in (classmethod, staticmethod) else method
            if type(function) is FunctionType:
                code = function.__code__
                foreign |= not safe(code.co_filename, "").startswith(ours.libraries)
                foreign |= is_attached and number_of(code) in ours.simulator
            if name == handler:
                answers = method
    hides = any(name in vars(base) for base in type.mro(kind) for name in getattr(mode, "__dict__", ()))
    if foreign or hides or type(answers) is not FunctionType:
        return f"a {plain_ascii(safe(kind.__name__, 'class'), 40)} that is on while a probe looks at tensors"
    return ""


def _foreign_evaluator(ours: TrustedCode, evaluator: object) -> str:
    parts = [evaluator, *getattr(evaluator, "__dict__", {}).values(), *vars(type(evaluator)).values()]
    for part in parts:
        function = part.__func__ if type(part) is MethodType else part
        if type(function) is FunctionType and not safe(function.__code__.co_filename, "").startswith(ours.libraries):
            return "an evaluator that sees each frame before it runs"
    return ""


def _is_probe(name: str, course: str) -> bool:
    package, _, inner = name.partition(".")
    return package == "probes" or (package == course and ".probes." in f".{inner}.")


def _in(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def _ids(codes: Iterable[CodeType]) -> frozenset[int]:
    return frozenset(map(number_of, codes))
