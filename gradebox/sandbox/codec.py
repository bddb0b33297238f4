"""Values as bytes: JSON for structure, safetensors for tensors, in length-prefixed parts. Never pickle.

A tensor inside a value travels next to it, and its path replaces it: `"gradients/weight"`. Both sides use it,
so it imports NumPy but not torch. JSON has no NaN and no infinities; they travel as `{"$float": "nan"}`, "inf", "-inf".
A dictionary with a key that begins with `$` is `{"$dict": [[key, value], ...]}`. Decoding is strict: what does not look
exactly like this raises `CodecError`. Not for files meant for people.
"""

from __future__ import annotations

import dataclasses
import json
import math
import struct
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

_MAX_DEPTH = 64
_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
_LENGTH = struct.Struct("<Q")
_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_NUMPY_TYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "C64": "<c8",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "<i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "<u1", "BOOL": "|b1",
}  # fmt: skip


class CodecError(ValueError):
    """Bytes that no honest side would have sent, or a value that cannot be sent."""


SplitTensor = Callable[[str, Any], bool]
"""Takes the path of a value and the value; true when it was a tensor and has been put aside under that path."""


def converter() -> Callable[..., Any]:
    """A function of its own that does what `to_json` does, and reaches all that it uses by local variables.

    A worker makes one before a submission runs. The submission may replace `isinstance` or `dataclasses.fields` when
    the last comparison is over: from a callback of the garbage collector, a signal's handler or a mode of PyTorch that
    is still on. Such a function would be given the whole reply, and could write into it.
    """
    of_field, deepest, failure = vars(dataclasses)["_FIELD"], _MAX_DEPTH, CodecError
    is_a, kind, attribute, numbered, is_finite, shown = isinstance, type, getattr, enumerate, math.isfinite, repr
    text, whole, number, truth, table, sequences, mapping = str, int, float, bool, dict, (list, tuple), Mapping
    scalars, array, listed = (np.bool_, np.integer, np.floating), np.ndarray, _listed

    def convert(value: Any, split: SplitTensor | None = None, path: str = "", depth: int = 0) -> Any:
        if depth > deepest:
            raise failure(f"value nested deeper than {deepest} levels at {path[:80]!r}")
        if value is None or value is True or value is False:
            return value
        if kind(value) is text or kind(value) is whole:
            return value
        if split is not None and split(path, value):
            return path
        if is_a(value, scalars):
            value = value.item()
        if is_a(value, truth):
            return truth(value)
        if is_a(value, whole):
            return whole.__int__(value)
        if is_a(value, number):
            value = number.__float__(value)
            return value if is_finite(value) else {"$float": shown(value)}
        if is_a(value, text):
            return text.__str__(value)

        def inner(item: Any, key: object) -> Any:
            return convert(item, split, f"{path}/{key}" if path else text(key), depth + 1)

        fields = None if is_a(value, kind) else attribute(kind(value), "__dataclass_fields__", None)
        if fields is not None:
            names = [name for name, entry in fields.items() if entry._field_type is of_field]
            value = {name: attribute(value, name, None) for name in names}
        if is_a(value, sequences):  # before a Mapping: to ask that looks at all classes below it
            return [inner(item, index) for index, item in numbered(value)]
        if kind(value) is table or is_a(value, mapping):
            pairs = [(key if kind(key) is text else text(key), inner(item, key)) for key, item in value.items()]
            if any_of(key.startswith("$") for key, _ in pairs):
                return {"$dict": [[key, item] for key, item in pairs]}
            return table(pairs)
        if is_a(value, array) and (plain := listed(value)) is not None:
            return [inner(item, index) for index, item in numbered(plain)] if is_a(plain, list_of) else inner(plain, 0)
        return f"<{kind(value).__name__}>"

    any_of, list_of = any, list
    return convert


def packer() -> Callable[[Any, Mapping[str, Any]], bytes]:
    """A function that makes bytes of a value in the form of `to_json`, and of arrays, as `join` puts them together.

    Like the function of `converter`, it reaches all that it uses by local variables. JSON comes first: whatever runs
    while arrays are packed is too late to change it.
    """
    tensors, pack, size, together, texts = dump_tensors, _LENGTH.pack, len, b"".join, "".join
    encode: Callable[[Any], Any] = _ENCODER.encode
    if make := vars(json.encoder).get("c_make_encoder"):
        basic = make(None, _refuse, json.encoder.encode_basestring_ascii, None, ":", ",", False, False, False)

        def encode(value: Any) -> str:
            return texts(basic(value, 0))

    def packed(value: Any, arrays: Mapping[str, Any]) -> bytes:
        parts = [encode(value).encode()]
        parts.append(tensors(arrays))
        return together([part for data in parts for part in (pack(size(data)), data)])

    return packed


def _refuse(value: object) -> object:
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


def _listed(array: NDArray[Any]) -> Any:
    """What safetensors has no type for, as lists: texts, dates as texts, and None where a mask hides a number."""
    if is_masked(array):
        return np.ma.MaskedArray.tolist(array)
    if array.dtype.kind in "mM":
        array = np.ndarray.astype(array, str)
    return np.ndarray.tolist(array) if array.dtype.kind in "UO" else None


def is_masked(array: NDArray[Any]) -> TypeGuard[np.ma.MaskedArray[Any, Any]]:
    """Whether an array has a mask, which its numbers alone would not show."""
    return isinstance(array, np.ma.MaskedArray)


def to_json(value: Any, split: SplitTensor | None = None) -> Any:
    """`value` in the JSON form above. Tuples become lists, dataclasses dictionaries, NumPy scalars numbers.

    A value without a JSON form arrives as the text `<TypeName>`, so that a check can say what it found instead of a
    number.
    """
    return _convert(value, split)


_convert = converter()


def put_back(value: Any, tensors: Mapping[str, Any], path: str = "") -> Any:
    """`value` with each of `tensors` where its path stands: the inverse of what `split` did to `to_json`."""
    if isinstance(value, str):
        return tensors[path] if value == path and path in tensors else value
    if isinstance(value, dict):
        return {key: put_back(item, tensors, f"{path}/{key}" if path else str(key)) for key, item in value.items()}
    if isinstance(value, list):
        return [put_back(item, tensors, f"{path}/{index}" if path else str(index)) for index, item in enumerate(value)]
    return value


def from_json(value: Any, depth: int = 0) -> Any:
    """The inverse of `to_json`, on what `json.loads` gave.

    Raises:
        CodecError: for an unknown `$` form or excessive nesting.
    """
    if depth > 2 * _MAX_DEPTH:
        raise CodecError("value nested too deeply")
    if isinstance(value, list):
        return [from_json(item, depth + 1) for item in value]
    if isinstance(value, str):
        # Lone surrogates would fail much later, when a report is written.
        return value.encode("utf-8", "replace").decode("utf-8")
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        (key, item), *_ = value.items()
        if key == "$float" and isinstance(item, str) and item in _FLOATS:
            return _FLOATS[item]
        if key == "$dict" and isinstance(item, list):
            if not all(isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) for pair in item):
                raise CodecError("malformed $dict")
            return {from_json(pair[0]): from_json(pair[1], depth + 1) for pair in item}
    if any(key.startswith("$") for key in value):
        raise CodecError(f"unknown form {sorted(value)[:3]}")
    return {from_json(key): from_json(item, depth + 1) for key, item in value.items()}


def dump_json(value: Any) -> bytes:
    """JSON text of a value already in the form of `to_json`."""
    return _ENCODER.encode(value).encode()


def load_json(data: bytes) -> Any:
    """Parse and decode JSON text.

    Raises:
        CodecError: for anything but strict JSON in the form of `to_json`.
    """

    def refuse(constant: str) -> Any:
        raise CodecError(f"bare {constant} in JSON")

    try:
        return from_json(json.loads(data, parse_constant=refuse))
    except (ValueError, RecursionError) as error:
        raise error if isinstance(error, CodecError) else CodecError(f"not JSON: {error}") from None


def numbers_of(array: NDArray[Any]) -> NDArray[Any]:
    """An array in a type that safetensors has: long floats as float64, two of them for a complex number."""
    array = np.asarray(array)
    if array.dtype.kind == "c" and array.dtype.itemsize > 8:
        whole = np.asarray(array, dtype=np.complex128, order="C")
        return np.ndarray(shape=(*whole.shape, 2), dtype=np.float64, buffer=whole.tobytes())
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        return array.astype(np.float64)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def as_they_were(tensors: Mapping[str, NDArray[Any]], dtypes: Mapping[str, str]) -> dict[str, NDArray[Any]]:
    """Complex numbers made of the pairs that `numbers_of` made of them; `dtypes` says which those are.

    Raises:
        CodecError: some are no pairs.
    """
    arrays = dict(tensors)
    for name, array in tensors.items():
        if dtypes.get(name, "").startswith("complex") and array.dtype.kind != "c":
            if array.dtype != np.float64 or array.shape[-1:] != (2,):
                raise CodecError("complex numbers are not pairs")
            arrays[name] = np.ndarray(shape=array.shape[:-1], dtype=np.complex128, buffer=array.tobytes())
    return arrays


def dump_tensors(tensors: Mapping[str, NDArray[Any]]) -> bytes:
    """Arrays in the safetensors format; no bytes at all for no tensors."""
    if not tensors:
        return b""
    return safetensors.numpy.save({name: np.asarray(array, order="C") for name, array in tensors.items()})


def load_tensors(data: bytes) -> dict[str, NDArray[Any]]:
    """Arrays from the safetensors format. The library checks sizes and offsets; nothing is executed.

    Raises:
        CodecError: for a malformed file or a type NumPy does not have.
    """
    if not data:
        return {}
    try:
        entries = safetensors.deserialize(data)  # type: ignore[no-untyped-call]
    except Exception as error:  # the library's own exception type is not public
        raise CodecError(f"not safetensors: {error}") from None
    tensors = {}
    for name, entry in entries:
        code = _NUMPY_TYPES.get(entry["dtype"])
        if code is None:
            raise CodecError(f"tensor {name[:80]!r} has type {entry['dtype']}, which NumPy lacks")
        tensors[name] = np.ndarray(entry["shape"], dtype=code, buffer=entry["data"]).copy()
    return tensors


def join(*parts: bytes) -> bytes:
    """Several byte strings as one, each behind its length (8 bytes, little-endian)."""
    return b"".join(_LENGTH.pack(len(part)) + part for part in parts)


def split(data: bytes) -> list[bytes]:
    """The inverse of `join`.

    Raises:
        CodecError: when lengths and data disagree.
    """
    parts = []
    start = 0
    while start < len(data):
        if start + _LENGTH.size > len(data):
            raise CodecError("a length is cut off")
        (length,) = _LENGTH.unpack_from(data, start)
        start += _LENGTH.size
        if length > len(data) - start:
            raise CodecError("a part is cut off")
        parts.append(data[start : start + length])
        start += length
    return parts
