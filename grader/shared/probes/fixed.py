"""Values as tuples that nobody can change, and made again from these: a note is what it was when it was noted.

A list, a dictionary or a dataclass can be changed by whoever gets hold of it, a tuple cannot. Tensors and objects of
libraries stay as they are. Imports nothing of `grader`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

_PLAIN: frozenset[type] = frozenset({int, float, bool, str, bytes, complex, type(None)})


_KindOf = Callable[[object], type]


class _Fixed(NamedTuple):
    """A value that can be changed, as its parts."""

    kind: type
    parts: tuple[Any, ...]
    """Elements, pairs, or values of a dataclass's fields."""


def fixed(
    value: Any,
    plain: frozenset[type] = _PLAIN,
    made: type[_Fixed] = _Fixed,
    kind_of: _KindOf = type,
    space: Callable[[type], Mapping[str, Any]] = vars,
    look: Callable[[Any, str], Any] = object.__getattribute__,
) -> Any:
    """A value that cannot be changed, of which `again` makes an equal one."""
    kind = kind_of(value)
    if kind in plain:
        return value
    if kind is tuple:
        return tuple([fixed(each) for each in value])
    if kind in (list, set, frozenset):
        elements = tuple(value)
        # Weights by the thousands are numbers.
        return made(kind, elements if plain.issuperset(map(kind_of, elements)) else tuple(map(fixed, elements)))
    if kind is dict:
        return made(kind, tuple([(key, fixed(each)) for key, each in value.items()]))
    if fields := space(kind).get("__dataclass_fields__"):
        return made(kind, tuple([(name, fixed(look(value, name))) for name in fields]))
    return value


def again(value: Any, made: type[_Fixed] = _Fixed, kind_of: _KindOf = type) -> Any:
    """The value that `fixed` was given."""
    kind = kind_of(value)
    if kind is tuple:
        return tuple([again(each) for each in value])
    if kind is not made:
        return value
    original, parts = value
    if original is dict:
        return {key: again(each) for key, each in parts}
    if original in (list, set, frozenset):
        return original([again(each) for each in parts])
    copy = object.__new__(original)
    for name, each in parts:
        object.__setattr__(copy, name, again(each))
    return copy
