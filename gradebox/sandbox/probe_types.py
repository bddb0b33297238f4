"""The typed border between a check and a probe: one dataclass for what the probe is given, one for what it returns.

    @dataclass(frozen=True, kw_only=True)
    class ProductReply:
        result: Array
        seconds: float

    @dataclass(frozen=True, kw_only=True)
    class Product(ProbeInputs[ProductReply], probe="lab1.benchmark.product"):
        left: Array
        sizes: list[int]

The check calls `submission.probe(Product(left=..., sizes=...))` and gets a `ProductReply`. The probe is written as
`def product(student: Student, inputs: Product) -> ProductReply`. Both classes are in the criterion's `cases.py`, which
imports no PyTorch.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Generic, TypeAlias, TypeVar

import numpy as np

Reply = TypeVar("Reply")
T = TypeVar("T")

Array: TypeAlias = Annotated[Any, "array"]
"""A NumPy array in the judge, and next to the submission what the course's devices make of it: a tensor."""


class ProbeInputs(Generic[Reply]):
    """What one probe is given: a base for frozen dataclasses, whose type parameter is what the probe returns."""

    probe: ClassVar[str]
    """The probe's name: "lab1.benchmark.product"."""

    def __init_subclass__(cls, *, probe: str = "", **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.probe = probe or cls.probe

    @classmethod
    def reply_type(cls) -> type[Reply]:
        """The dataclass of what the probe returns."""
        for base in cls.__dict__.get("__orig_bases__", ()):
            if isinstance(typing.get_origin(base), type) and issubclass(typing.get_origin(base), ProbeInputs):
                return typing.cast("type[Reply]", typing.get_args(base)[0])
        raise TypeError(f"{cls.__name__} does not say what its probe returns: class {cls.__name__}(ProbeInputs[...])")

    def fields_by_name(self) -> dict[str, Any]:
        """The fields by name."""
        return {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(typing.cast(Any, self))}


def inputs_type(probe: Callable[..., object]) -> type[ProbeInputs[Any]] | None:
    """The dataclass that a probe takes as its second argument; None if it takes keyword arguments."""
    parameters = list(inspect.signature(probe).parameters.values())[1:2]
    if not parameters or parameters[0].kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
        return None
    annotation = parameters[0].annotation
    if isinstance(annotation, str):
        annotation = eval(annotation, inspect.unwrap(probe).__globals__)
    return annotation if isinstance(annotation, type) and issubclass(annotation, ProbeInputs) else None


def build(kind: type[T], values: Mapping[str, Any], what: str, arrays: Mapping[str, Any] | None = None) -> T:
    """A dataclass of `kind` from plain values; dataclasses in its fields, and in lists and dictionaries, are built too.

    Args:
        kind: a dataclass.
        values: its fields by name. Fields with a default may be missing.
        what: who has sent it, as a message begins.
        arrays: values of the fields that may hold arrays (`holds_arrays`), where they differ from `values`.

    Raises:
        AttributeError: a field is missing, or there is one that `kind` does not have.
    """
    hints, fields = (
        _hints(typing.cast(Any, kind)),
        {entry.name: entry for entry in dataclasses.fields(typing.cast(Any, kind))},
    )
    if unknown := [name for name in values if name not in fields]:
        raise AttributeError(f"{what} {unknown[0]!r}, which {kind.__name__} does not have{_near(unknown[0], fields)}")
    arguments: dict[str, Any] = {}
    for name, entry in fields.items():
        if name in values:
            source = arrays if arrays is not None and holds_arrays(hints[name]) else values
            arguments[name] = _converted(hints[name], source[name], what)
        elif entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING:
            raise AttributeError(f"{what} no {name!r}, which {kind.__name__} has{_near(name, values)}")
    return kind(**arguments)


@functools.cache
def holds_arrays(kind: Any) -> bool:
    """Whether a value of this type may be an array, or have one inside."""
    if typing.get_origin(kind) is Annotated:
        return "array" in kind.__metadata__ or holds_arrays(kind.__origin__)
    if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind):
        return any(holds_arrays(inner) for inner in _hints(typing.cast(type, kind)).values())
    return any(holds_arrays(inner) for inner in typing.get_args(kind) if inner is not kind)


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def _converted(kind: Any, value: Any, what: str) -> Any:
    """`value` with dictionaries made dataclasses where `kind` says so; what does not fit stays as it is."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return build(kind, value, what) if isinstance(value, Mapping) else value
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (list, tuple) or (isinstance(origin, type) and issubclass(origin, Sequence)):
        if not isinstance(value, (list, tuple)) or not inner:
            return value
        if origin is tuple and inner[-1] is not Ellipsis:
            return (
                tuple(map(functools.partial(_converted, what=what), inner, value))
                if len(inner) == len(value)
                else value
            )
        items = list(value) if inner[0] in _TYPES else [_converted(inner[0], item, what) for item in value]
        return tuple(items) if origin is tuple else items
    if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(value, Mapping):
        return {key: _converted(inner[1], item, what) for key, item in value.items()}
    if origin in (types.UnionType, typing.Union):
        made = next((each for each in inner if dataclasses.is_dataclass(each) or typing.get_origin(each)), None)
        return value if made is None or value is None else _converted(made, value, what)
    return value


def misfit(kind: Any, value: Any, arrays: Any, path: str = "") -> str | None:
    """What of a reply is not of the type that its probe declares, in words; None if all is.

    A probe declares `object` or `Array` where it passes on what a submission returned; everything else it makes itself,
    so that a value of another type was put there by somebody else.

    Args:
        kind: the declared type.
        value: plain values, with something that is no plain value instead of each array.
        arrays: the same with the arrays themselves.
        path: the place of `value` in the reply.
    """
    if kind in (Any, object) or isinstance(kind, TypeVar):
        return None
    if kind is None or kind is type(None):
        return None if value is None else _not("nothing", value, path)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if hasattr(origin, "__value__"):  # `type X[T] = ...` of Python 3.12, as NumPy's NDArray is there
        return misfit(origin.__value__, value, arrays, path)
    if origin is Annotated:
        return None if "array" in kind.__metadata__ else misfit(inner[0], value, arrays, path)
    if origin in (types.UnionType, typing.Union):
        found = [misfit(each, value, arrays, path) for each in inner]
        return None if None in found else _not(" or ".join(map(_name, inner)), value, path)
    if origin is typing.Literal:
        return None if any(type(value) is type(each) and value == each for each in inner) else _not(
            " or ".join(map(repr, inner)), value, path
        )  # fmt: skip
    if origin in (typing.Required, typing.NotRequired):
        return misfit(inner[0], value, arrays, path)
    if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind):
        return _misfit_of_fields(kind, value, arrays, path)
    if isinstance(origin or kind, type):
        return _misfit_of_class(origin or kind, inner, value, arrays, path)
    return None


def _misfit_of_fields(kind: Any, value: Any, arrays: Any, path: str) -> str | None:
    if not isinstance(value, Mapping) or not isinstance(arrays, Mapping):
        return _not(_name(kind), value, path)
    hints = _hints(kind)
    return next(
        (
            problem
            for name, hint in hints.items()
            if name in value and (problem := misfit(hint, value[name], arrays[name], _below(path, name)))
        ),
        None,
    )


def _misfit_of_class(kind: type, inner: tuple[Any, ...], value: Any, arrays: Any, path: str) -> str | None:
    if kind in _TYPES:
        return None if type(value) in _TYPES[kind] else _not(_WORDS[kind], value, path)
    if issubclass(kind, np.ndarray):
        return None if isinstance(arrays, np.ndarray) else _not("an array", value, path)
    if issubclass(kind, Mapping):
        if not isinstance(value, Mapping):
            return _not("a table", value, path)
        items = [(key, inner[1], item, arrays[key]) for key, item in value.items()] if inner else []
    elif issubclass(kind, Sequence):
        if not isinstance(value, (list, tuple)):
            return _not("a list", value, path)
        if kind is tuple and inner and inner[-1] is not Ellipsis:
            if len(inner) != len(value):
                return _not(f"{len(inner)} values", value, path)
            items = [(str(place), *row) for place, row in enumerate(zip(inner, value, arrays, strict=True))]
        elif inner and inner[0] in _TYPES and _TYPES[inner[0]].issuperset(map(type, value)):
            return None  # thousands of numbers, often
        else:
            rows = zip(value, arrays, strict=True)
            items = [(str(place), inner[0], *row) for place, row in enumerate(rows)] if inner else []
    else:
        return None
    return next(
        (problem for name, hint, *row in items if (problem := misfit(hint, row[0], row[1], _below(path, name)))), None
    )


_TYPES: Mapping[Any, frozenset[type]] = {
    float: frozenset({int, float}),
    **{kind: frozenset({kind}) for kind in (int, str, bool)},
}
"""What a plain value that is declared as the key may be."""
_WORDS: Mapping[type, str] = {float: "a number", int: "a whole number", str: "a text", bool: "true or false"}


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", str(kind))


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _not(what: str, value: Any, path: str) -> str:
    return f"{path or 'it'} is not {what} but {type(value).__name__}"


def _near(name: str, known: Iterable[str]) -> str:
    """What may have been meant, as a message ends."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
