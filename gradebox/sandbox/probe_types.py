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

Reply = TypeVar("Reply")
T = TypeVar("T")

Array: TypeAlias = Annotated[Any, "array"]
"""A NumPy array in the judge, and beside the submission what the course's devices make of it: a tensor."""


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
        values: its fields by name. What has a default may be missing.
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
        items = [_converted(inner[0], item, what) for item in value]
        return tuple(items) if origin is tuple else items
    if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(value, Mapping):
        return {key: _converted(inner[1], item, what) for key, item in value.items()}
    if origin in (types.UnionType, typing.Union):
        made = next((each for each in inner if dataclasses.is_dataclass(each) or typing.get_origin(each)), None)
        return value if made is None or value is None else _converted(made, value, what)
    return value


def _near(name: str, known: Iterable[str]) -> str:
    """What may have been meant, as a message ends."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
