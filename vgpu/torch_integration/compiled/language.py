"""What a Triton kernel may call: only what Triton's compiler takes.

Its interpreter runs kernels as plain Python, so NumPy would work there, and its work would cost nothing. On a card such
a kernel does not compile, so the virtual GPU refuses to launch it. A function is looked at once; afterwards only the
global names that it uses are compared. Not here: how kernels are run (`vgpu.torch_integration.patches.triton`).
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import sys
import textwrap
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np
import torch

TritonModule: TypeAlias = Any
"""A module of Triton's, which is not imported here."""

_PLAIN = (bool, int, float, str, type(None), torch.dtype)
_BUILTINS = (
    "abs", "bool", "divmod", "enumerate", "float", "int", "isinstance", "len", "list", "max", "min", "pow", "print",
    "range", "reversed", "round", "slice", "sum", "tuple", "zip",
)  # fmt: skip
_NO_KERNEL = (
    ast.AsyncFor, ast.AsyncFunctionDef, ast.AsyncWith, ast.Await, ast.ClassDef, ast.Delete, ast.DictComp,
    ast.GeneratorExp, ast.Global, ast.Import, ast.ImportFrom, ast.Lambda, ast.Nonlocal, ast.Raise, ast.SetComp, ast.Try,
    ast.With, ast.Yield, ast.YieldFrom,
)  # fmt: skip
_HOST = frozenset({"handle"})
"""Attributes of tensors behind which the interpreter keeps arrays."""
_INJECTED = ("interpreter_semantic", "_InterpreterComparison")
"""Names that the interpreter puts among the globals of a kernel's module."""
_CHANGED = "Triton's own {} was replaced: the virtual GPU runs kernels with Triton's functions only"
_ABSENT = object()
Globals: TypeAlias = tuple[dict[str, Any], str, Any]


class Language:
    """Triton as it was imported, before a program could change it."""

    def __init__(self) -> None:
        with suppress(ImportError):
            importlib.import_module("triton.language.extra.libdevice")
        names = [name for name in sys.modules if name == "triton" or name.startswith("triton.language")]
        self._modules = {id(module): module for name in names if (module := sys.modules[name]) is not None}
        own = [
            value
            for module in self._modules.values()
            for value in vars(module).values()
            if str(getattr(value, "__module__", "")).startswith("triton") and callable(value)
        ]
        self._own = {id(value): value for value in own}
        self._own |= {id(value.fn): value for value in own if hasattr(value, "fn")}
        interpreter = importlib.import_module("triton.runtime.interpreter")
        self._helpers = (sys.modules["triton.runtime.jit"].JITFunction, interpreter.InterpretedFunction)
        core: TritonModule = sys.modules["triton.language.core"]
        self._dtype, self._constant = core.dtype, core.constexpr
        self._injected = {name: vars(interpreter).get(name) for name in _INJECTED}
        classes = [value for value in own if isinstance(value, type)]
        self._attributes = {name for kind in classes for name in dir(kind) if not name.startswith("_")} - _HOST
        self._attributes |= {"value", "type", "dtype", "shape", "element_ty", "scalar", "T"}
        self._parts: list[tuple[Mapping[str, Any], dict[str, Any]]] = [
            (vars(module), dict(vars(module))) for module in (*self._modules.values(), interpreter)
        ]
        for kind in {id(kind): kind for kind in (*classes, *_classes_of(interpreter))}.values():
            self._parts.append((vars(kind), dict(vars(kind))))
        self._known: dict[types.FunctionType, tuple[Globals, ...]] = {}

    def require_unchanged(self) -> None:
        """Raise RuntimeError if a part of Triton is not what it was when it was imported."""
        for now, before in self._parts:
            for name, value in before.items():
                if now.get(name, _ABSENT) is not value and name not in _MOVING:
                    raise RuntimeError(_CHANGED.format(name))

    def require_arguments(self, function: str, arguments: Mapping[str, Any]) -> None:
        """Raise TypeError for an argument that a compiled kernel cannot be given; look at functions among them."""
        for name, value in arguments.items():
            if not self._is_argument(value):
                raise TypeError(f"{function}: {type(value).__name__} is no type of an argument of a kernel: {name}")

    def _is_argument(self, value: object) -> bool:
        kind = type(value)
        if kind in (tuple, list):
            return all(map(self._is_argument, value))  # type: ignore[call-overload]
        if kind.__name__ == "TensorDescriptor" and kind.__module__.startswith("triton."):
            return True
        return isinstance(value, (torch.Tensor, np.generic)) or kind in (torch.SymInt,) or self._is_allowed(value)

    def require_compiles(self, function: types.FunctionType, lines: Sequence[str]) -> None:
        """Raise what Triton's compiler raises, if a function or one that it calls uses what is not Triton's.

        `lines` are the ones of its source that will be run.
        """
        for name, value in self._injected.items():
            if function.__globals__.get(name, value) is not value:
                raise RuntimeError(_CHANGED.format(name))
        known = self._known.get(function)
        if known is not None and all(where.get(name, _ABSENT) is value for where, name, value in known):
            return
        self._known[function] = ()  # it may call itself
        try:
            self._known[function] = tuple(self._look(function, lines))
        except BaseException:
            del self._known[function]
            raise

    def _look(self, function: types.FunctionType, lines: Sequence[str]) -> Iterator[Globals]:
        source = textwrap.dedent("".join(lines))
        definition = next(node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef))
        refuse = _Refusal(function, source)
        names = _words(definition)
        if type(function) is not types.FunctionType or function.__code__.co_freevars:
            refuse(definition, "a kernel is a function of a module, without names of other functions")
        if missing := _names_of(function.__code__) - names:
            refuse(definition, f"{sorted(missing)} is in its code and not in its source")
        local = _locals(definition)
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            if not self._is_argument(default):
                refuse(definition, f"a default value of the type {type(default).__name__}")
        for statement in definition.body:
            for node, value in self._used(statement, function, local, refuse):
                if not self._is_allowed(value):
                    refuse(node, f"{ast.unparse(node)} is not Triton's")
                root = _root(node)
                yield function.__globals__, root, function.__globals__.get(root, _ABSENT)

    def _used(
        self, node: ast.AST, function: types.FunctionType, local: Collection[str], refuse: _Refusal
    ) -> Iterator[tuple[ast.expr, Any]]:
        """The global names, with the attributes behind them that are known, and their values."""
        if isinstance(node, (*_NO_KERNEL, ast.FunctionDef)):
            refuse(node, f"{type(node).__name__} has no place in a kernel")
        if isinstance(node, ast.Name) and node.id not in local:
            yield node, self._value(node, function, refuse)
            return
        if isinstance(node, ast.Attribute):
            base: ast.expr = node
            while isinstance(base, ast.Attribute):
                base = base.value
            if isinstance(base, ast.Name) and base.id not in local:
                yield self._longest(node, function, refuse)
                return
            if node.attr not in self._attributes:
                refuse(node, f"there is no attribute {node.attr!r} in Triton's language")
        for child in ast.iter_child_nodes(node):
            yield from self._used(child, function, local, refuse)

    def _longest(self, node: ast.Attribute, function: types.FunctionType, refuse: _Refusal) -> tuple[ast.expr, Any]:
        """What a chain of attributes of a global name is, as far as they are attributes of modules and classes."""
        chain: list[ast.Attribute] = []
        base: ast.expr = node
        while isinstance(base, ast.Attribute):
            chain.insert(0, base)
            base = base.value
        assert isinstance(base, ast.Name)
        value, shown = self._value(base, function, refuse), base
        for place, link in enumerate(chain):
            if link.attr.startswith("__"):
                refuse(link, f"there is no attribute {link.attr!r} in Triton's language")
            if not isinstance(value, (types.ModuleType, type)):
                for rest in chain[place:]:
                    if rest.attr not in self._attributes:
                        refuse(rest, f"there is no attribute {rest.attr!r} in Triton's language")
                break
            value, shown = getattr(value, link.attr, _ABSENT), link  # type: ignore[assignment]
            if value is _ABSENT:
                refuse(link, f"{ast.unparse(link)} does not exist")
        return shown, value

    def _value(self, node: ast.Name, function: types.FunctionType, refuse: _Refusal) -> Any:
        value = function.__globals__.get(node.id, _ABSENT)
        if value is _ABSENT:
            value = getattr(builtins, node.id, _ABSENT)
            if node.id not in _BUILTINS and value is not _ABSENT:
                refuse(node, f"{node.id}() is not Triton's")
        if value is _ABSENT:
            refuse(node, f"{node.id} is not defined")
        return value

    def _is_allowed(self, value: object) -> bool:
        kind = type(value)
        if kind in _PLAIN or id(value) in self._own or id(value) in self._modules:
            return True
        if kind in (tuple, list):
            return all(map(self._is_allowed, value))  # type: ignore[call-overload]
        if kind is self._constant:
            return self._is_allowed(value.value)  # type: ignore[attr-defined]
        if kind in self._helpers:
            python = value.fn  # type: ignore[attr-defined]
            if type(python) is types.FunctionType:
                self.require_compiles(python, source_of(python))
                return True
            return False
        if any(value is getattr(builtins, name) for name in _BUILTINS):
            return True
        return isinstance(value, self._dtype) and id(kind) in self._own

    def is_own(self, function: types.FunctionType) -> bool:
        """Whether a helper of a kernel is Triton's own."""
        return id(function) in self._own


_MOVING = frozenset({"__builtins__", "__dict__", "__weakref__", "__annotations__", "__warningregistry__"})
"""What Python writes into modules and classes itself."""


class _Refusal:
    """Raises Triton's own error, with the line."""

    def __init__(self, function: Callable[..., Any], source: str) -> None:
        self._source = source
        self._name = getattr(function, "__name__", "a kernel")

    def __call__(self, node: ast.AST, why: str) -> None:
        error: Any = sys.modules["triton.compiler.errors"].CompilationError
        raise error(self._source, node, f"{self._name} does not compile: {why}")


def source_of(function: types.FunctionType) -> list[str]:
    """The lines of a kernel's source. Raises OSError where there is none, as Triton does."""
    return inspect.getsourcelines(function)[0]


def _classes_of(module: types.ModuleType) -> list[type]:
    return [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__]


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    assert isinstance(node, ast.Name)
    return node.id


def _locals(definition: ast.FunctionDef) -> set[str]:
    """Names that are assigned somewhere in a function, its parameters included."""
    named = {argument.arg for argument in ast.walk(definition.args) if isinstance(argument, ast.arg)}
    return named | {
        node.id for node in ast.walk(definition) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def _words(definition: ast.FunctionDef) -> set[str]:
    names = {node.id for node in ast.walk(definition) if isinstance(node, ast.Name)}
    return names | {node.attr for node in ast.walk(definition) if isinstance(node, ast.Attribute)}


def _names_of(code: types.CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*map(_names_of, inner))
