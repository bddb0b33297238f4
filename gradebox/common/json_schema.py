"""The JSON Schema of a dataclass, from its types and from the texts below its fields in the source."""

from __future__ import annotations

import ast
import collections.abc
import dataclasses
import enum
import inspect
import itertools
import textwrap
import types
import typing
from decimal import Decimal
from typing import Any, Literal, Union


def of(kind: Any, title: str) -> dict[str, Any]:
    """The JSON Schema of a dataclass's `plain` form; the texts below its fields in the source describe them."""
    defs: dict[str, Any] = {}
    body = _schema_of(kind, defs)
    root = defs.pop(body["$ref"].rpartition("/")[2])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **root, "$defs": defs}


def _schema_of(kind: Any, defs: dict[str, Any]) -> dict[str, Any]:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if kind.__name__ not in defs:
            defs[kind.__name__] = {}  # first, for what contains itself
            defs[kind.__name__] = _schema_of_fields(kind, defs)
        return {"$ref": f"#/$defs/{kind.__name__}"}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema_of(part, defs) if part is not type(None) else {"type": "null"} for part in inner]}
    if origin is tuple:
        return {"type": "array", "items": _schema_of(inner[0], defs)}
    if origin in (dict, collections.abc.Mapping):
        return {"type": "object", "additionalProperties": _schema_of(inner[1], defs)}
    if origin is Literal:
        return {"enum": list(inner)}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {"enum": [member.value for member in kind]}
    return {"type": {str: "string", int: "integer", float: "number", Decimal: "number", bool: "boolean"}[kind]}


def _schema_of_fields(kind: type, defs: dict[str, Any]) -> dict[str, Any]:
    texts, hints, properties, required = _descriptions(kind), typing.get_type_hints(kind), {}, []
    for field in dataclasses.fields(kind):
        field_schema = _schema_of(hints[field.name], defs) | field.metadata.get("schema", {})
        properties[field.name] = field_schema | ({"description": texts[field.name]} if field.name in texts else {})
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            required.append(field.name)
    schema = {"type": "object", "required": required, "properties": properties, "additionalProperties": False}
    written = (
        "" if (kind.__doc__ or "").startswith(f"{kind.__name__}(") else kind.__doc__ or ""
    )  # else made by dataclass
    return schema | ({"description": " ".join(written.split())} if written else {})


def _descriptions(kind: type) -> dict[str, str]:
    """The texts below the fields of a class, by field."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    texts = {}
    for before, after in itertools.pairwise(tree.body):
        match before, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                texts[name] = " ".join(text.split())
    return texts
