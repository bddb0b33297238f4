"""Ways to memory at any address: whoever takes one raises an audit event.

By themselves they raise none: `ctypes.memmove`, NumPy's `as_strided` beyond the end of an array, an object that has
`__array_interface__`. Libraries have imported the modules already, so that no import shows who wants one. Not for what
follows from the events (`memory_acts.py`).
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Callable, Iterable
from types import CodeType, ModuleType
from typing import Any

import numpy as np

EVENT = "ctypes.module"
"""Audit event: somebody looks up a name in one of `MODULES`; the arguments are the name and the module's."""
CALL = "ctypes.used"
"""Audit event: somebody calls one of `_FUNCTIONS`; the argument is its name."""
ADDRESS = "ctypes.address"
"""Audit event: NumPy makes an array at an address that it was given as a number, the argument."""
KIND = "a class of ctypes"
"""The argument of CALL where somebody makes a simple type of C that `ctypes` does not have."""
MODULES = (
    "ctypes",
    "_ctypes",
    "numpy.ctypeslib",
    "numpy.ctypeslib._ctypeslib",
    "triton._C.libtriton.interpreter",
)
_OF_IMPORTS = frozenset({"__spec__", "__path__", "__name__", "__file__", "__loader__", "__class__"})
"""What Python itself looks up whenever a module is imported."""
_FUNCTIONS = (
    *("memmove", "memset", "string_at", "wstring_at", "cast", "POINTER", "pointer", "CFUNCTYPE", "PYFUNCTYPE"),
)
"""Of `ctypes`; a library that imports all of its names (`pynvml`) has them too."""
_MASK = 2**64 - 1


class _Announcing(ModuleType):
    def __getattribute__(self, name: str) -> Any:
        if name not in _OF_IMPORTS:
            sys.audit(EVENT, name, ModuleType.__getattribute__(self, "__name__"))
        return ModuleType.__getattribute__(self, name)


def announced(name: str, call: Callable[..., Any], audit: Callable[..., None] = sys.audit) -> Callable[..., Any]:
    """`call`, which raises CALL before."""

    def announcing(*arguments: Any, **options: Any) -> Any:
        audit(CALL, name)
        return call(*arguments, **options)

    return announcing


def _told(
    number: Any,
    audit: Callable[..., None] = sys.audit,
    low_bits: Callable[[int, int], int] = int.__and__,
    mask: int = _MASK,
) -> int:
    """Python's `PyLong_AsVoidPtr`, for NumPy."""
    address = low_bits(number, mask)
    audit(ADDRESS, address)
    return address


def _of_its_own(cls: Any, /, audit: Callable[..., None] = sys.audit, **options: Any) -> None:
    if not issubclass(cls, _ARRAY) or issubclass(cls._type_, _ADDRESSES):
        audit(CALL, KIND)


def _an_object(self: Any, *value: Any, audit: Callable[..., None] = sys.audit) -> None:
    audit(CALL, "py_object")
    _SIMPLE.__init__(self, *value)


_SIMPLE: Any = ctypes.c_int.__base__
_FUNCTION: Any = ctypes.CFUNCTYPE(None).__base__
_ARRAY = ctypes.Array
_POINTER: Any = ctypes.POINTER(ctypes.c_int).__base__
_ADDRESSES = (ctypes.py_object, ctypes.c_char_p, ctypes.c_wchar_p, _POINTER)
_KINDS = (_SIMPLE, _POINTER, _FUNCTION, _ARRAY, ctypes.Structure, ctypes.Union)
"""What code makes classes of that lead to an address."""
BETWEEN: frozenset[CodeType] = frozenset(
    (
        _Announcing.__getattribute__.__code__,
        _told.__code__,
        _of_its_own.__code__,
        _an_object.__code__,
        *(const for const in announced.__code__.co_consts if isinstance(const, CodeType)),
    )
)
"""Code that stands between an event and who caused it."""
_kept_alive: list[Any] = []


def prepare() -> None:
    """Once, before a process is forked that is to be watched: functions and NumPy announce what they do."""
    if _kept_alive:
        return
    _kept_alive.append(True)
    made = {name: announced(name, getattr(ctypes, name)) for name in _FUNCTIONS}
    by_id = {id(getattr(ctypes, name)): (name, function) for name, function in made.items()}
    _kept_alive.extend(getattr(ctypes, name) for name in _FUNCTIONS)
    for module in list(sys.modules.values()):
        if type(module) is ModuleType:
            space = vars(module)
            for key, value in list(space.items()):
                if id(value) in by_id and by_id[id(value)][0] == key:
                    space[key] = by_id[id(value)][1]
    _watch_kinds()
    _watch_dtypes()
    watch_numpy()


def _watch_kinds() -> None:
    """By a class of its own for objects at an address, or for a function there, code needs nothing else of `ctypes`."""
    for kind in _KINDS:
        # Python lets nobody set attributes of a class that is written in C; this is the dictionary behind it.
        (methods, *_) = gc.get_referents(vars(kind))
        methods["__init_subclass__"] = classmethod(_of_its_own)
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))
    of_objects: Any = ctypes.py_object
    of_objects.__init__ = _an_object


def _stated(set_state: Callable[..., Any], bytes_of: Callable[[Any], int]) -> Callable[..., Any]:
    def stated(self: Any, state: Any, /, audit: Callable[..., None] = sys.audit) -> Any:
        before = bytes_of(self)
        returned = set_state(self, state)
        if bytes_of(self) > before:
            audit(CALL, "a dtype that grows")
        return returned

    return stated


def _watch_dtypes() -> None:
    """An array whose dtype gets another state keeps its memory: elements that have grown lie behind it."""
    (methods, *_) = gc.get_referents(vars(np.dtype))
    methods["__setstate__"] = _stated(methods["__setstate__"], methods["itemsize"].__get__)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(np.dtype))


class _At:
    """An array of one byte, by its address."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.__array_interface__ = dict(array.__array_interface__)


def watch_numpy() -> bool:
    """Let NumPy call `_told` where it makes a number an address; whether that could be done.

    NumPy's library has the addresses of Python's functions in a table, which can be written. The entry is there when
    the function has been called once. On a machine without `/proc`, or with another table, nothing changes.
    """
    kind = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)
    python = ctypes.cast(ctypes.pythonapi.PyLong_AsVoidPtr, ctypes.c_void_p).value
    np.asarray(_At(np.zeros(1, np.uint8)))
    file = os.path.realpath(str(sys.modules["numpy._core._multiarray_umath"].__file__))
    ours = kind(_told)
    ours_at = ctypes.cast(ours, ctypes.c_void_p).value or 0
    found = 0
    try:
        with open("/proc/self/maps") as lines:
            rows = [line.split(maxsplit=5) for line in lines if line.rstrip().endswith(file)]
    except OSError:
        return False
    for span, rights, *_ in rows:
        if rights != "rw-p":
            continue
        begin, end = (int(bound, 16) for bound in span.split("-"))
        words = (ctypes.c_uint64 * ((end - begin) // 8)).from_address(begin)
        for place in [place for place, word in enumerate(words) if word == python]:
            words[place] = ours_at
            found += 1
    _kept_alive.append(ours)
    return found > 0


def announce(modules: Iterable[str] = MODULES) -> None:
    """From now on these modules, as far as they are there, raise the event. To be called in a child."""
    for name in modules:
        module = sys.modules.get(name)
        if type(module) is ModuleType:
            module.__class__ = _Announcing
