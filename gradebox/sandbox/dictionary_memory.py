"""Have dictionaries the entries that they had, and objects their parts? Memory says so, and no object is touched.

Python counts a reference when code takes a value out of a dictionary. In a forked process each such count copies a page
of memory: 9 ms for the functions of our packages, where this takes 1.4 (and 0.3 instead of 1.7 when it is asked again).
The layout is that of `Include/internal/pycore_dict.h` since CPython 3.11; tests ran with 3.11 to 3.13. It is tried on
each dictionary before it is relied on. Where it is another one, callers look at the objects themselves.
"""

from __future__ import annotations

import ctypes
import itertools
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

_KEYS = 32
"""Where a dictionary object has the address of its keys. Behind it is that of separate values, which none of ours has.
"""
_INDEX_BYTES, _KIND, _COUNT, _INDICES = 9, 10, 24, 32
"""In the memory of its keys: the logarithm of the size of the index, the kind of the entries, their number, and the
index, behind which they lie."""
_WORDS = {0: 3, 1: 2}
"""Of an entry, by kind: a hash, a key and a value; only text as keys, which has its hash in it."""
_WORD = 8
_IS_KNOWN = (
    sys.implementation.name == "cpython"
    and sys.version_info < (3, 15)
    and (object.__basicsize__, dict.__basicsize__) == (2 * _WORD, 6 * _WORD)
)
_CLASS, _FUNCTIONS, _CLASS_WORDS = 8, 16, 64
"""Where an object has the address of its class, a method that of its functions, and of how many words a class consists
at least."""
_GROUP_BYTES = 64 * 1024
"""Read and compared at once. Larger blocks would be memory of the system's each time, and so new pages."""


class _Row(NamedTuple):
    """One dictionary or object. For a view of memory no class of the submission's making can answer."""

    id: int
    addresses: memoryview
    """Of its keys; of another object, that of its class."""
    entries: memoryview
    """Of another object, the addresses of its parts."""


def remember(dictionaries: Iterable[dict[Any, Any]], objects: Iterable[object] = ()) -> Callable[[], list[int]]:
    """A function that lists the ids of those dictionaries whose entries may be others than now, and of those `objects`
    that may have another class, order of bases (a class) or functions (a property, a static or class method).

    The caller keeps all of them and their values alive. What has an unexpected layout is listed each time, and so is
    what was listed once.
    """
    rows, unknown = [], []
    for thing in {id(one): one for one in objects}.values():
        row = _parts(thing)
        if row is None:
            unknown.append(id(thing))
        else:
            rows.append(row)
    for dictionary in {id(one): one for one in dictionaries}.values():
        place = _entries(dictionary)
        if place is None:
            unknown.append(id(dictionary))
        else:
            rows.append(_Row(id(dictionary), _at(id(dictionary) + _KEYS, 2 * _WORD), _at(*place)))
    groups = [_comparing(group) for group in _grouped(rows)]

    def changed() -> list[int]:
        return [*unknown, *[number for compare in groups for number in compare()]]

    return changed


def _comparing(rows: Sequence[_Row]) -> Callable[[], list[int]]:
    """A function that lists those of some dictionaries that have changed, from the first time it sees that."""
    join, zipped, chosen = b"".join, zip, itertools.compress
    ids, addresses, entries = zip(*rows, strict=True)
    before = [(join((row.addresses,)), join((row.entries,))) for row in rows]
    nothing: list[int] = []
    # Exchanged as a whole: threads may ask at the same time, and each needs columns that belong together.
    state = ([*ids], [*addresses], [*entries], before, join(addresses), join(entries), nothing)

    def changed() -> list[int]:
        nonlocal state
        ids, addresses, entries, before, addresses_before, entries_before, listed = state
        # Where a dictionary has got new memory, the old one must not be read any more.
        if join(addresses) == addresses_before and join(entries) == entries_before:
            return listed
        same = [
            join((address,)) == was[0] and join((entry,)) == was[1]
            for address, entry, was in zipped(addresses, entries, before)
        ]
        listed = [*listed, *[number for number, is_same in zipped(ids, same) if not is_same]]
        # What is listed is not looked at again: it differs for good, and would cost this loop each time.
        kept = [*chosen(before, same)]
        state = (
            [*chosen(ids, same)], [*chosen(addresses, same)], [*chosen(entries, same)], kept,
            join([was[0] for was in kept]), join([was[1] for was in kept]), listed,
        )  # fmt: skip
        return listed

    return changed


def _grouped(rows: Iterable[_Row]) -> Iterator[list[_Row]]:
    group: list[_Row] = []
    size = 0
    for row in rows:
        group.append(row)
        size += len(row.entries)
        if size >= _GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _parts(thing: object) -> _Row | None:
    if not _IS_KNOWN:
        return None
    place = _CLASS
    parts: list[object] = [type(thing)]
    if isinstance(thing, type):
        place, parts = _BASES, [thing.__mro__]
    elif isinstance(thing, property):
        place, parts = _FUNCTIONS, [thing.fget, thing.fset, thing.fdel]
    elif isinstance(thing, (staticmethod, classmethod)):
        place, parts = _FUNCTIONS, [thing.__func__]
    row = _Row(id(thing), _at(id(thing) + _CLASS, _WORD), _at(id(thing) + place, _WORD * len(parts)))
    addresses = tuple(0 if part is None else id(part) for part in parts)
    known = struct.unpack("N", row.addresses) == (id(type(thing)),)
    return row if known and struct.unpack(f"{len(parts)}N", row.entries) == addresses else None


def _entries(dictionary: dict[Any, Any]) -> tuple[int, int] | None:
    """Address and size of what to compare of a dictionary: the number of entries, the index, and the entries.

    None where they do not lie as expected.
    """
    if not _IS_KNOWN or type(dictionary) is not dict or not dictionary:
        return None
    keys, values = struct.unpack("NN", _at(id(dictionary) + _KEYS, 2 * _WORD))
    if values:
        return None
    head = _at(keys, _INDICES)
    words, index = _WORDS.get(head[_KIND], 0), 1 << head[_INDEX_BYTES]
    (count,) = struct.unpack_from("N", head, _COUNT)
    if not words or not len(dictionary) <= count <= min(index, 4 * len(dictionary) + 64):
        return None
    row = struct.unpack(f"{count * words}N", _at(keys + _INDICES + index, count * words * _WORD))
    pairs = list(zip(row[words - 2 :: words], row[words - 1 :: words], strict=True))
    if 0 in row[words - 1 :: words]:  # of an entry that was taken out
        pairs = [pair for pair in pairs if pair[1]]
    if pairs != list(zip(map(id, dictionary), map(id, dictionary.values()), strict=True)):
        return None
    return keys + _COUNT, _INDICES - _COUNT + index + count * words * _WORD


def _at(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B").toreadonly()


def _place_of_bases() -> int:
    """Where a class has the address of its order of bases (`tp_mro`)."""
    words = struct.unpack(f"{_CLASS_WORDS}N", _at(id(bool), _CLASS_WORDS * _WORD)) if _IS_KNOWN else ()
    return words.index(id(bool.__mro__)) * _WORD if id(bool.__mro__) in words else _CLASS


_BASES = _place_of_bases()
