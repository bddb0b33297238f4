"""Private names of libraries in a submission's source: `torch._C`, `distributed_c10d._world`.

By them code reaches what a library keeps for itself: tables that it answers from, switches that hide work. No lab needs
one, and no list of such names is ever complete: so each counts that stands behind the name of an imported module. What
an object has counts for nothing: a training may well look into its own scaler. Reads syntax trees and runs nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

_DOCUMENTED = frozenset(
    (
        "_exit",  # os
        *("_asdict", "_field_defaults", "_fields", "_make", "_replace"),  # collections.namedtuple
        "_getframe",  # sys; a call of it is noted by itself
        *("_python_dispatch.TorchDispatchMode", "_dynamo", "_dynamo.reset"),  # PyTorch's pages
        "_C._cuda_clearCublasWorkspaces",  # given in the exercise of sharding
    )
)
_DOCUMENTED_BEGINNINGS = ("_foreach_", "_scaled_", "_pytree")
"""Of PyTorch's functions for many tensors, for products in 8 bits, and for nested containers."""
_SETTINGS = ("_dynamo.config.", "_inductor.config.", "_logging.")
"""Beginnings of what PyTorch's pages on `torch.compile` set."""
_IMPORTS = frozenset(("import_module", "__import__"))
_BY_TEXT = frozenset(("getattr", "setattr", "delattr", "hasattr"))
"""Functions that take an object, and a name as text."""
_DEEPEST = 40
"""Of what is put together: names are short."""


def named(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of each, from its first private part on: `_C._functorch`."""
    outer = _outer(tree)
    within: set[ast.expr] = set()  # parts of names that were looked at as a whole
    for node in ast.walk(tree):
        names: list[str] = []
        match node:
            case ast.Attribute() | ast.Subscript() if node not in within and _root(node) in outer:
                names = [_from_private(_parts(node, within))]
            case ast.Import(names=aliases):
                names = [_from_private(alias.name.split(".")) for alias in aliases]
            case ast.ImportFrom(module=str(module), level=0, names=aliases):
                names = [_from_private([*module.split("."), alias.name]) for alias in aliases]
            case ast.Call(func=ast.Name(id=function) | ast.Attribute(attr=function), args=[path, *_]) if (
                function in _IMPORTS
            ):
                names = [_from_private(put_together(path).split("."))]
            case ast.Call(func=ast.Name(id=function), args=[owner, name, *_]) if (
                function in _BY_TEXT and _root(owner) in outer
            ):
                names = [_from_private([put_together(name)])]
        line = getattr(node, "lineno", 0)
        yield from ((line, name) for name in names if name and not _is_documented(name))


def put_together(node: ast.expr, depth: int = 0) -> str:
    """The text that an expression makes of constants; with a NUL in it where it is made of something else."""
    if depth < _DEEPEST:
        match node:
            case ast.Constant(value=str(text)):
                return text
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return put_together(left, depth + 1) + put_together(right, depth + 1)
            case ast.JoinedStr(values=parts):
                return "".join(put_together(part, depth + 1) for part in parts)
            case ast.FormattedValue(value=value):
                return put_together(value, depth + 1)
            case ast.Call(
                func=ast.Attribute(value=ast.Constant(value=str(between)), attr="join"),
                args=[ast.List(elts=parts) | ast.Tuple(elts=parts)],
            ):
                return between.join(put_together(part, depth + 1) for part in parts)
    return "\0"


def _from_private(parts: list[str]) -> str:
    """A name from its first private part on; empty if it has none."""
    place = next((place for place, part in enumerate(parts) if _is_private(part)), len(parts))
    return ".".join(parts[place:])


def _is_documented(name: str) -> bool:
    return name in _DOCUMENTED or name.startswith(_SETTINGS)


def _is_private(name: str) -> bool:
    begins = name.startswith("_") and not name.startswith("__") and name.isidentifier() and name != "_"
    return begins and name not in _DOCUMENTED - {"_dynamo"} and not name.startswith(_DOCUMENTED_BEGINNINGS)


def _outer(tree: ast.Module) -> frozenset[str]:
    """Names of the file that stand for modules, or parts of modules, that are not the submission's."""
    names = {"import_module", "__import__"}
    others = []
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                outer = [alias for alias in aliases if alias.name.partition(".")[0] != "labs"]
                names.update(alias.asname or alias.name.partition(".")[0] for alias in outer)
            case ast.ImportFrom(module=str(module), level=0, names=aliases) if module.partition(".")[0] != "labs":
                names.update(alias.asname or alias.name for alias in aliases)
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.NamedExpr(target=ast.Name(id=name), value=value)
            ):
                others.append((name, value))
    names.update(name for name, value in others if _root(value) in names)
    return frozenset(names)


def _parts(node: ast.expr, within: set[ast.expr]) -> list[str]:
    """What follows the first name of an expression like `a.b["c"].d`; its inner parts are put into `within`."""
    parts: list[str] = []
    while True:
        within.add(node)
        match node:
            case ast.Attribute(value=inner, attr=name):
                parts.insert(0, name)
                node = inner
            case ast.Subscript(value=inner, slice=key):
                parts.insert(0, put_together(key))
                node = inner
            case ast.Call(func=ast.Name(id="vars"), args=[inner]):
                node = inner
            case _:
                return parts


def _root(node: ast.expr) -> str:
    """The name with which an expression such as `a.b["c"].d` begins; empty if it begins with something else.

    A call makes an object of its own, unless it imports a module, or shows a module's names.
    """
    while True:
        match node:
            case (
                ast.Attribute(value=inner)
                | ast.Subscript(value=inner)
                | ast.Call(func=ast.Name(id="vars"), args=[inner])
            ):
                node = inner
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _IMPORTS:
                return name
            case ast.Name(id=name):
                return name
            case _:
                return ""
