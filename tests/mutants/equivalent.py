"""What is not worth a mutant: the looks of a plot, and the order of two statements that do not touch each other.

Both are read off the syntax tree. Not here: what need not be noticed for a reason that people see (`excused.toml`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

ARGUMENTS = frozenset(
    ("strict", "encoding", "frameon", "fontsize", "ncols", "linewidth", "zorder", "bbox_to_anchor", "textcoords",
     "xytext", "ha", "va", "padding", "bbox", "markersize", "alpha", "rotation", "loc", "linestyle", "labelpad")
)  # fmt: skip
"""Their loss shows nowhere but in code, or in the looks of a plot."""
_LOOKS = frozenset(
    ("annotate", "bar_label", "legend", "margins", "set_xticks", "set_yticks", "set_xlim", "set_ylim", "tick_params",
     "set_major_formatter", "set_minor_formatter", "set_major_locator", "set_xscale", "set_yscale", "set_title",
     "suptitle", "invert_yaxis")
)  # fmt: skip
"""Methods of a plot's axes that draw no data."""
_PURE = frozenset(
    ("len", "int", "float", "bool", "str", "sum", "min", "max", "range", "list", "tuple", "set", "sorted")
)
_WORLD = frozenset(("torch", "dist", "gc", "time", "os", "random", "np", "shutil"))
"""Modules whose functions see or change more than what they are given."""


def is_look(node: ast.AST) -> bool:
    """Whether a statement says nothing but how a plot looks."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
        and node.value.func.attr in _LOOKS
    )


def are_independent(statement: ast.AST, other: ast.AST) -> bool:
    """Whether two statements do the same in either order: neither changes what the other uses.

    A method called for its effect changes its object; a function that is not Python's own, or a module's, may change
    and see anything. What an expression calls on an object is taken to leave that as it is.
    """
    changed, used = _effects(statement)
    others_changed, others_used = _effects(other)
    return not (changed & (others_used | others_changed) or others_changed & used)


def _effects(statement: ast.AST) -> tuple[set[str], set[str]]:
    """Names whose objects a statement changes, and names that it uses; "*" for anything."""
    used = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    if any(_reaches_far(call) for call in calls):
        used.add("*")
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return {"*"} if _reaches_far(statement.value) else {_root(statement.value.func)}, used
    if isinstance(statement, ast.Assign):
        return {_root(part) for target in statement.targets for part in _parts(target)}, used
    if isinstance(statement, ast.AugAssign):
        return {_root(statement.target)}, used
    return {"*"}, used | {"*"}


def _reaches_far(call: ast.Call) -> bool:
    if isinstance(call.func, ast.Name):
        return call.func.id not in _PURE
    return _root(call.func) in _WORLD and not (isinstance(call.func, ast.Attribute) and call.func.attr in _MAKE)


_MAKE = frozenset(("tensor", "zeros", "stack", "device", "Adam", "SGD"))
"""Functions of torch that only make something of what they are given."""


def _parts(target: ast.expr) -> Iterator[ast.expr]:
    yield from target.elts if isinstance(target, ast.Tuple | ast.List) else (target,)


def _root(node: ast.expr) -> str:
    """The name with which an expression begins: `ctx` of `ctx.causal`."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else "*"
