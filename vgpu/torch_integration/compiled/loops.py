"""The index of a loop in a Triton kernel: an integer to Python, with what a compiled kernel's index has besides.

Compiled, `for i in range(n)` makes a tensor of `i`, which converts (`i.to(tl.int64)`) and has a dtype. In Triton's
interpreter it is an `int`, on which such a kernel ends. Not here: what else of a kernel's source is changed
(`vgpu.torch_integration.patches.triton`).
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_NAME = "_vgpu_indices"
# What gives an index again: on a card it stays a tensor.
_ARITHMETIC = ("add", "sub", "mul", "floordiv", "mod", "and", "or", "xor", "lshift", "rshift")


class LoopIndex(int):
    """An index, or what whole numbers make of it."""

    to_tensor: Callable[[int], Any]
    """Triton's, of the interpreter. Each index has it: the class stays as it is, so that a grader may compare it."""

    @classmethod
    def of(cls, value: int, to_tensor: Callable[[int], Any]) -> LoopIndex:
        """An index of this value."""
        index = cls(value)
        index.to_tensor = to_tensor
        return index

    def to(self, dtype: Any, *args: Any, **kwargs: Any) -> Any:
        """A tensor of another dtype."""
        return self.to_tensor(int(self)).to(dtype, *args, **kwargs)

    @property
    def dtype(self) -> Any:
        """Triton's int32, or int64 of a large index."""
        return self.to_tensor(int(self)).dtype


def _kept(name: str) -> Callable[[Any, Any], Any]:
    compute = getattr(int, name)

    def operation(left: Any, right: Any) -> Any:
        result = compute(left, right)
        return LoopIndex.of(result, left.to_tensor) if type(result) is int else result

    return operation


for _operator in _ARITHMETIC:
    for _form in (f"__{_operator}__", f"__r{_operator}__"):
        setattr(LoopIndex, _form, _kept(_form))


def _indices(values: Iterable[Any], to_tensor: Callable[[int], Any]) -> Iterator[Any]:
    for value in values:
        yield LoopIndex.of(value, to_tensor) if type(value) is int else value


class _Loops(ast.NodeTransformer):
    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        called = node.iter.func if isinstance(node.iter, ast.Call) else None
        name = getattr(called, "id", getattr(called, "attr", ""))
        if name == "range":  # Python's, and Triton's; an index of `static_range` is a constant
            node.iter = ast.Call(ast.Name(_NAME, ast.Load()), [node.iter], [])
        return node


def mark(tree: ast.Module) -> ast.Module:
    """A kernel's source whose loops go through a function of ours; `bind` gives it to the compiled kernel."""
    tree = _Loops().visit(tree)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            node.args.kwonlyargs.append(ast.arg(_NAME))
            node.args.kw_defaults.append(ast.Constant(None))
    return ast.fix_missing_locations(tree)


def bind(kernel: Any, to_tensor: Callable[[int], Any]) -> None:
    """Give a compiled kernel its function; it is no global, which a program could replace."""
    indices = functools.partial(_indices, to_tensor=to_tensor)
    kernel.__kwdefaults__ = {**(kernel.__kwdefaults__ or {}), _NAME: indices}
