"""What a check hands to a probe, made ready for its journey: plain values on one side, arrays on the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ARRAYS = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8")
"""Types of arrays that travel."""
_SENT = "numbers, texts, None, lists, dictionaries with texts as keys, and NumPy arrays"


def apart(inputs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Keyword arguments as values that JSON has, and the arrays among and inside them, by path: `rows/0`.

    The path of an array replaces it inside a list or a dictionary. NumPy's numbers become Python's.

    Raises:
        TypeError: an argument cannot be sent; the message names it.
    """
    arrays: dict[str, NDArray[Any]] = {}
    plain = {name: _plain(value, name, arrays) for name, value in inputs.items()}
    return {name: value for name, value in plain.items() if name not in arrays}, arrays


def _plain(value: Any, path: str, arrays: dict[str, NDArray[Any]]) -> Any:
    if isinstance(value, np.ndarray):
        arrays[path] = _sendable(value, path)
        return path
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{_named(path)} has the key {key!r}; a probe can be sent {_SENT}")
        return {key: _plain(item, f"{path}/{key}", arrays) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{path}/{index}", arrays) for index, item in enumerate(value)]
    raise TypeError(f"{_named(path)} is a {type(value).__name__}; a probe can be sent {_SENT}")


def _sendable(array: NDArray[Any], path: str) -> NDArray[Any]:
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if f"{array.dtype.kind}{array.dtype.itemsize}" not in _ARRAYS:
        remedy = "send its .tolist()" if array.dtype.kind in "UO" else "send it as another type"
        raise TypeError(f"{_named(path)} is an array of {array.dtype}, which does not travel: {remedy}")
    return array


def _named(path: str) -> str:
    name, _, inner = path.partition("/")
    return f"the argument {name}" + (f", at {inner}," if inner else "")
