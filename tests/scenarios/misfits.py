"""Submissions in which one function does not do what its docstring says: it raises, has other parameters, or returns
something else.

Each is the reference with one function put aside under another name and a misfit in its place. Whatever it is, its
author has to learn which function it was; nobody else has to do with it. Not for wrong values: planted bugs are.
"""

from __future__ import annotations

import ast
import functools
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grader
from tests.scenarios.reuse import REFERENCE

WAYS = (
    "raises",
    "without parameters",
    "one parameter too few",
    "positional alone",
    "returns None",
    "wrong type",
    "hollow",
)
"""How a function may not fit; `misfit` says what each of them is."""
_ASIDE = "_as_it_was_"
_HOLLOW = textwrap.dedent(
    """

    def _hollow_(value):
        import dataclasses as _dataclasses

        import torch as _torch

        if _dataclasses.is_dataclass(value):
            for field in _dataclasses.fields(value):
                object.__setattr__(value, field.name, None)
            return value
        if isinstance(value, dict):
            return dict.fromkeys(value)
        if isinstance(value, (list, tuple)):
            return type(value)([None] * len(value))
        if isinstance(value, _torch.Tensor):
            return _torch.zeros(0)
        return [value]


    """
)
"""What has the outer form of a result, and nothing in it."""


@dataclass(frozen=True)
class Function:
    """A function that students write, or a method."""

    file: str
    """Below `solutions/`."""
    name: str
    """`train_with_amp` or `CheckpointedTransformer.forward`."""

    @property
    def called(self) -> str:
        """What a message calls it: a constructor by its class."""
        return self.name.removesuffix(".__init__")

    def __str__(self) -> str:
        return f"{Path(self.file).stem}.{self.name}"


@functools.cache
def functions(package: str) -> tuple[Function, ...]:
    """All functions and methods of a lab with a TODO in them."""
    result = []
    for path in sorted((REFERENCE / package).glob("*.py")):
        if ".template." in path.name:
            continue
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for name, node in _definitions(ast.parse(text)):
            if any("# TODO" in line for line in lines[node.lineno - 1 : node.end_lineno]):
                result.append(Function(f"{package}/{path.name}", name))
    return tuple(result)


def packages() -> dict[str, str]:
    """The package of each lab and exercise that has code of students in it, by its id."""
    course = grader.course()
    labs = [lab for rubric in (course.rubric, *course.exercises) for lab in rubric.labs]
    return {lab.id: lab.package for lab in labs if functions(lab.package)}


def _definitions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from (
                (f"{node.name}.{method.name}", method) for method in node.body if isinstance(method, ast.FunctionDef)
            )


def misfit(function: Function, way: str) -> str | None:
    """The text of its file with the misfit in it; None where the way makes no difference.

    The ways: it raises; it has no parameters; its last parameter that may be given by place is missing; parameters that
    can be given by name alone are missing, and have their defaults; it does nothing and returns None; it returns a
    text, or a number instead of one; what it returns has the right type and holds nothing.
    """
    text = (REFERENCE / function.file).read_text(encoding="utf-8")
    node = dict(_definitions(ast.parse(text)))[function.name]
    made = _made(node, way)
    if made is None:
        return None
    lines = text.splitlines(keepends=True)
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1
    last = node.end_lineno or node.lineno
    indent = " " * node.col_offset
    decorators = "".join(lines[first : node.lineno - 1])
    head = lines[node.lineno - 1].replace(f"def {node.name}", f"def {_ASIDE}{node.name}", 1)
    whole = decorators + head + "".join(lines[node.lineno : last])
    new = decorators + textwrap.indent(made, indent)
    text = "".join([*lines[:first], whole, "\n", new, "\n", *lines[last:]])
    if way != "hollow":
        return text
    place = text.index(decorators + indent + f"def {_ASIDE}{node.name}") if not indent else 0
    return text[:place] + _HOLLOW + text[place:] if place else _after_imports(text)


def _after_imports(text: str) -> str:
    """Where a method needs it: before the first class."""
    tree = ast.parse(text)
    line = next(
        min([node.lineno, *(d.lineno for d in node.decorator_list)])
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    )
    lines = text.splitlines(keepends=True)
    return "".join([*lines[: line - 1], _HOLLOW, *lines[line - 1 :]])


def _made(node: ast.FunctionDef, way: str) -> str | None:
    arguments = node.args
    method = bool(arguments.args) and arguments.args[0].arg in ("self", "cls")
    places = [argument.arg for argument in arguments.args][method:]
    names = [argument.arg for argument in arguments.kwonlyargs]
    signature = ast.unparse(arguments)
    body = "return None"
    match way:
        case "raises":
            body = 'raise RuntimeError("planted")'
        case "returns None":
            if node.name == "__init__":
                body = "pass"
        case "wrong type":
            if node.name == "__init__":
                return None
            returns = "" if node.returns is None else ast.unparse(node.returns)
            if returns == "None":
                return None
            body = "return 17" if "str" in returns or "Path" in returns or "Literal" in returns else 'return "nonsense"'
        case "hollow":
            if node.name == "__init__" or (node.returns is not None and ast.unparse(node.returns) == "None"):
                return None
            body = f"return _hollow_({_call(node, places, names, method)})"
        case "without parameters":
            if not places and not names:
                return None
            signature = arguments.args[0].arg if method else ""
        case "one parameter too few":
            if len(places) == 0:
                return None
            kept = ast.arguments(**{name: getattr(arguments, name) for name in arguments._fields})
            kept.args = arguments.args[:-1]
            kept.defaults = arguments.defaults[:-1] if arguments.defaults else []
            signature = ast.unparse(kept)
            if arguments.defaults:
                body = f"return {_call(node, places[:-1], names, method)}"
        case "positional alone":
            if not names:
                return None
            kept = ast.arguments(**{name: getattr(arguments, name) for name in arguments._fields})
            kept.kwonlyargs, kept.kw_defaults, kept.kwarg = [], [], None
            signature = ast.unparse(kept)
            body = f"return {_call(node, places, [], method)}"
    return f"def {node.name}({signature}):\n    {body}\n"


def _call(node: ast.FunctionDef, places: list[str], names: list[str], method: bool) -> str:
    arguments = ", ".join([*places, *(f"{name}={name}" for name in names)])
    if node.args.kwarg is not None and names:
        arguments += f", **{node.args.kwarg.arg}"
    if node.args.vararg is not None:
        arguments += f", *{node.args.vararg.arg}"
    first = node.args.args[0].arg + "." if method else ""
    return f"{first}{_ASIDE}{node.name}({arguments})"
