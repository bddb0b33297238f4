"""Turn parsed JSON back into the dataclasses it was written from, checking every value on the way.

Not a general serialiser: it knows what the result classes are made of (numbers, strings, booleans, None, tuples,
dictionaries with string keys, dataclasses) and nothing else.
"""

import dataclasses
import types
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")


class DecodeError(ValueError):
    """A value does not have the type it should; the message says where it stands."""


def decode(kind: type[T], value: object, where: str) -> T:
    """Check `value` against the type `kind` and build it.

    Args:
        kind: a dataclass, int, float, str, bool, `X | None`, `tuple[X, ...]`, `tuple[X, Y]` or `dict[str, X]`.
        value: what `json.loads` gave.
        where: path of the value in its document, for messages.

    Raises:
        DecodeError: naming the place, the expected type and what was found.
    """
    return cast(T, _decode(kind, value, where))


def _decode(kind: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _dataclass(cast(type, kind), value, where)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is types.UnionType:
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return None if value is None else _decode(inner, value, where)
    if origin is tuple:
        return _tuple(arguments, value, where)
    if origin is dict:
        _expect(isinstance(value, dict), "an object", value, where)
        return {key: _decode(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if kind is float:  # JSON does not tell 1 from 1.0, and a bool is an int to isinstance
        _expect(isinstance(value, int | float) and not isinstance(value, bool), "a number", value, where)
        return float(value)
    _expect(type(value) is kind, {int: "a whole number", str: "a string", bool: "true or false"}[kind], value, where)
    return value


def _dataclass(kind: type, value: Any, where: str) -> Any:
    _expect(isinstance(value, dict), f"an object ({kind.__name__})", value, where)
    hints = get_type_hints(kind)
    optional = {field.name for field in dataclasses.fields(kind) if field.default is not dataclasses.MISSING}
    if missing := hints.keys() - value.keys() - optional:
        raise DecodeError(f"{where} lacks {', '.join(sorted(missing))}")
    if unknown := value.keys() - hints.keys():
        raise DecodeError(f"{where} has {', '.join(sorted(unknown))}, which {kind.__name__} does not know")
    there = {name: hint for name, hint in hints.items() if name in value}
    return kind(**{name: _decode(hint, value[name], f"{where}.{name}") for name, hint in there.items()})


def _tuple(arguments: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    _expect(isinstance(value, list), "a list", value, where)
    kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else list(arguments)
    _expect(len(value) == len(kinds), f"{len(kinds)} values", value, where)
    return tuple(
        _decode(kind, item, f"{where}[{index}]") for index, (kind, item) in enumerate(zip(kinds, value, strict=True))
    )


def _expect(holds: bool, expected: str, value: object, where: str) -> None:
    if not holds:
        text = repr(value)
        raise DecodeError(f"{where} should be {expected}, found {text if len(text) <= 40 else text[:37] + '...'}")
