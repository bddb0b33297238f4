"""Mutants of one file: every way to change what a student writes once, as somebody would by a slip.

Each mutant is the file's text with one place replaced; places come from the syntax tree, and only those inside what
students write (`# --- solution ... ---`) count. No layout is touched but at that place, so that what survives can be
read. Not for judging: `survey.py` grades them.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gradebox.authoring.release import stubs
from tests.mutants import equivalent

Place = tuple[int, int]
"""Offsets of the first character, and of the first one after it."""
_EXCHANGED = {
    "mean": ("sum", "max"), "sum": ("len",), "median": ("mean",), "min": ("max",), "max": ("min",), "any": ("all",),
    "all": ("any",), "max_memory_allocated": ("memory_allocated", "max_memory_reserved"),
    "memory_allocated": ("memory_reserved",), "perf_counter": ("process_time",), "rank": ("local_rank", "world_size"),
    "local_rank": ("rank",), "world_size": ("rank",), "total": ("count",), "float16": ("bfloat16",),
    "bfloat16": ("float16",), "float32": ("float64",), "train": ("eval",), "eval": ("train",), "clip_grad_norm_":
    ("clip_grad_value_",), "reversed": ("list",), "log2": ("log10",), "floor": ("ceil",), "ceil": ("floor",),
    "argmax": ("argmin",), "first": ("last",), "last": ("first",), "children": ("modules",), "modules": ("children",),
    "self_device_time_total": ("device_time_total",), "device_time_total": ("cpu_time_total",),
}  # fmt: skip
"""Names for which another one is easily taken."""
_LAYERS = frozenset(("detach", "clone", "cpu", "float", "double", "contiguous", "item", "flatten", "eval", "train"))
"""Methods without arguments that are easily forgotten: `x.detach()` becomes `x`."""
_WRAPPERS = frozenset(("abs", "sorted", "reversed", "sqrt", "list", "set", "max", "min"))
_COMPARED = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Is: "is not", ast.IsNot: "is"}
_COUNTED = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "/", ast.Mod: "//"}


@dataclass(frozen=True)
class Mutant:
    """One file of a solution, changed once."""

    file: str
    """Below `solutions/`."""
    function: str
    line: int
    kind: str
    """What sort of slip it is."""
    old: str
    new: str
    text: str
    """The whole file."""

    @property
    def key(self) -> str:
        """Its name in reports and among the excused, the same as long as the changed lines are."""
        return f"{self.kind}: {_brief(self.old)} -> {_brief(self.new)}"


def mutants(path: Path, file: str) -> list[Mutant]:
    """All mutants of a file, in its order.

    Args:
        path: where it is.
        file: what it is called below `solutions/`.
    """
    return list(_File(path.read_text(encoding="utf-8"), path, file))


def _brief(text: str) -> str:
    return " ".join(text.split())


class _File:
    def __init__(self, source: str, path: Path, file: str) -> None:
        self.source, self.file = source, file
        self.tree = ast.parse(source)
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.lines = source.splitlines()
        # A region's marker lines are not part of it; lines count from 1.
        self.written = [range(region.start + 2, region.stop + 1) for region in stubs.regions(self.lines, path)]

    def __iter__(self) -> Iterator[Mutant]:
        for whole in self.tree.body:
            begin, end = self.place(whole)
            visited = {_parsed(self.source[begin:end])}
            for function, node, parent in self._nodes(whole, self.tree, "the module"):
                for make in _MAKERS:
                    for kind, (start, stop), new in make(self, node, parent):
                        # Only what stands around it is parsed again: files are long, and mutants many.
                        parsed = _parsed(self.source[begin:start] + new + self.source[stop:end])
                        if parsed and parsed not in visited:
                            visited.add(parsed)
                            text = self.source[:start] + new + self.source[stop:]
                            yield Mutant(self.file, function, node.lineno, kind, self.source[start:stop], new, text)

    def _nodes(self, node: ast.AST, parent: ast.AST, name: str) -> Iterator[tuple[str, ast.expr | ast.stmt, ast.AST]]:
        if equivalent.is_look(node):
            return
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            name = node.name if name == "the module" else f"{name}.{node.name}"
        if isinstance(node, ast.expr | ast.stmt):
            first, last = node.lineno, (node.end_lineno or 0) if isinstance(node, ast.FunctionDef) else node.lineno
            if any(first in lines or first < lines.start <= last for lines in self.written):
                yield name, node, parent
        for child in ast.iter_child_nodes(node):
            yield from self._nodes(child, node, name)

    def at(self, line: int, column: int) -> int:
        """The offset of a place that the syntax tree gives in bytes."""
        text = self.lines[line - 1]
        return self.starts[line - 1] + (column if text.isascii() else len(text.encode()[:column].decode()))

    def place(self, node: ast.expr | ast.stmt | ast.keyword | ast.excepthandler) -> Place:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)

    def text(self, node: ast.expr | ast.stmt | ast.keyword) -> str:
        start, stop = self.place(node)
        return self.source[start:stop]

    def between(self, left: ast.expr, right: ast.expr) -> Place:
        """What stands between two expressions, such as an operator."""
        return self.place(left)[1], self.place(right)[0]


Change = tuple[str, Place, str]
Maker = Callable[[_File, ast.expr | ast.stmt, ast.AST], Iterator[Change]]


def _statements(file: _File, node: ast.expr | ast.stmt, parent: ast.AST) -> Iterator[Change]:
    """Something left out, or done at another time."""
    if isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant | ast.Yield | ast.Await):
        yield "statement left out", file.place(node), "pass"
    elif isinstance(node, ast.AugAssign):
        yield "statement left out", file.place(node), "pass"
        yield "assigned, not added", file.place(node), f"{file.text(node.target)} = {file.text(node.value)}"
    elif isinstance(node, ast.Raise | ast.Continue | ast.Break) or (
        isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Name | ast.Tuple)
    ):
        yield "statement left out", file.place(node), "pass"
    elif isinstance(node, ast.If):
        test = file.place(node.test)
        yield "condition always true", test, "True"
        yield "condition never true", test, "False"
    elif isinstance(node, ast.IfExp):
        yield "one case only", file.place(node), f"({file.text(node.body)})"
        yield "one case only", file.place(node), f"({file.text(node.orelse)})"


def _order(file: _File, node: ast.expr | ast.stmt, parent: ast.AST) -> Iterator[Change]:
    """Two neighbouring statements in the other order, or one out of its block."""
    for body in (getattr(parent, name, None) for name in ("body", "orelse", "finalbody")):
        if not isinstance(body, list) or node not in body[:-1]:
            continue
        after = body[body.index(node) + 1]
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):  # a docstring
            continue
        if equivalent.is_look(after) or equivalent.are_independent(node, after):
            continue
        if isinstance(node, ast.Expr | ast.AugAssign) and isinstance(after, ast.Expr | ast.AugAssign | ast.Assign):
            gap = file.source[file.place(node)[1] : file.place(after)[0]]
            both = (file.place(node)[0], file.place(after)[1])
            yield "order of two steps", both, file.text(after) + gap + file.text(node)
    if isinstance(node, ast.With):
        contexts = (file.place(node.items[0].context_expr)[0], file.place(node.items[-1].context_expr)[1])
        if all(item.optional_vars is None for item in node.items):
            start = file.place(node)[0]
            yield "without its context", (start, contexts[1]), "if True"
        last = node.body[-1]
        if len(node.body) > 1 and last.col_offset > node.col_offset:
            lines = (file.at(last.lineno, 0), file.place(last)[1])
            shift = last.col_offset - node.col_offset
            moved = "\n".join(line[shift:] for line in file.source[slice(*lines)].split("\n"))
            yield "moved out of its context", lines, moved


def _calls(file: _File, node: ast.expr | ast.stmt, parent: ast.AST) -> Iterator[Change]:
    """Arguments and wrappers that are forgotten."""
    if not isinstance(node, ast.Call):
        return
    for index, keyword in enumerate(node.keywords):
        if keyword.arg in equivalent.ARGUMENTS:
            continue
        parts: list[ast.expr | ast.keyword] = [*node.args, *node.keywords]
        position = len(node.args) + index
        start, stop = file.place(keyword)
        if position:
            start = file.place(parts[position - 1])[1]
        elif len(parts) > 1:
            stop = file.place(parts[1])[0]
        yield "argument not given", (start, stop), ""
    for option, other in zip(node.keywords, node.keywords[1:], strict=False):
        if {option.arg, other.arg} & equivalent.ARGUMENTS:
            continue
        if option.arg and other.arg and file.text(option.value) != file.text(other.value):
            both = (file.place(option.value)[0], file.place(other.value)[1])
            gap = file.source[file.place(option.value)[1] : file.place(other.value)[0]]
            yield "one field for another", both, file.text(other.value) + gap + file.text(option.value)
    for one_argument, second in zip(node.args, node.args[1:], strict=False):
        if _can_be_taken_for(one_argument, second) and not (
            isinstance(node.func, ast.Attribute) and node.func.attr == "transpose"
        ):
            both = (file.place(one_argument)[0], file.place(second)[1])
            gap = file.source[slice(*file.between(one_argument, second))]
            yield "arguments exchanged", both, file.text(second) + gap + file.text(one_argument)
    if isinstance(node.func, ast.Attribute) and node.func.attr in _LAYERS and not node.args:
        yield f"without {node.func.attr}()", file.place(node), file.text(node.func.value)
    if isinstance(node.func, ast.Name) and node.func.id in _WRAPPERS and len(node.args) == 1 and not node.keywords:
        yield f"without {node.func.id}()", file.place(node), f"({file.text(node.args[0])})"
    if isinstance(node.func, ast.Name) and node.func.id in ("max", "min") and len(node.args) == 2:
        for argument in node.args:
            yield f"without {node.func.id}()", file.place(node), f"({file.text(argument)})"


def _can_be_taken_for(expression: ast.expr, other: ast.expr) -> bool:
    """Nobody takes a text, or all of a list, for something else."""
    if isinstance(expression, ast.Constant | ast.Starred) or isinstance(other, ast.Starred):
        return False
    return not (isinstance(other, ast.Constant) and isinstance(other.value, str))


def _numbers(file: _File, node: ast.expr | ast.stmt, parent: ast.AST) -> Iterator[Change]:
    """Operators, limits, ends and factors."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        new = _COMPARED.get(type(node.ops[0]))
        if new:
            yield "comparison", file.between(node.left, node.comparators[0]), f" {new} "
    elif isinstance(node, ast.BinOp):
        if new := _COUNTED.get(type(node.op)):
            yield "operator", file.between(node.left, node.right), f" {new} "
            yield "term left out", file.place(node), f"({file.text(node.left)})"
        if isinstance(node.op, ast.Pow) and file.text(node) in ("2**20", "2**30", "2**10"):
            power = {"2**20": "10**6", "2**30": "10**9", "2**10": "10**3"}[file.text(node)]
            yield "unit", file.place(node), power
    elif isinstance(node, ast.BoolOp):
        for left, right in zip(node.values, node.values[1:], strict=False):
            word = "or" if isinstance(node.op, ast.And) else "and"
            yield "and, or", file.between(left, right), f" {word} "
        for value in node.values:
            yield "condition left out", file.place(node), f"({file.text(value)})"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        if not isinstance(node.operand, ast.Constant):
            yield "sign", file.place(node), f"({file.text(node.operand)})"
    elif isinstance(parent, ast.keyword) and parent.arg in equivalent.ARGUMENTS:
        return
    elif isinstance(node, ast.Constant) and not isinstance(parent, ast.Expr | ast.FormattedValue):
        if type(node.value) is int and not isinstance(parent, ast.UnaryOp):
            yield "off by one", file.place(node), str(node.value + 1)
        elif type(node.value) is float and node.value:
            yield "unit", file.place(node), repr(node.value * 1000)
        elif isinstance(node.value, bool):
            yield "flag", file.place(node), str(not node.value)
    elif isinstance(node, ast.Subscript):
        index = file.text(node.slice)
        if index in ("0", "-1"):
            yield "first, last", file.place(node.slice), "-1" if index == "0" else "0"
        elif isinstance(node.slice, ast.Slice) and isinstance(node.ctx, ast.Load):
            yield "all of it", file.place(node), file.text(node.value)


def _names(file: _File, node: ast.expr | ast.stmt, parent: ast.AST) -> Iterator[Change]:
    """One thing taken for another."""
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    if not name or not isinstance(getattr(node, "ctx", None), ast.Load):
        return
    stop = file.place(node)[1]
    for other in _EXCHANGED.get(name, ()):
        yield "one for another", (stop - len(name), stop), other


def _functions(file: _File, node: ast.expr | ast.stmt, parent: ast.AST) -> Iterator[Change]:
    """Parameters that are ignored, and errors that are swallowed."""
    if isinstance(node, ast.FunctionDef):
        arguments = node.args
        plain = [*arguments.posonlyargs, *arguments.args]
        pairs = list(zip(plain[len(plain) - len(arguments.defaults) :], arguments.defaults, strict=True))
        pairs += [
            (parameter, value)
            for parameter, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            if value
        ]
        first = next((child for child in node.body if any(child.lineno in lines for lines in file.written)), None)
        for argument, default in pairs if first else ():
            assert first is not None
            start = file.place(first)[0]
            indent = " " * first.col_offset
            yield "argument ignored", (start, start), f"{argument.arg} = {file.text(default)}\n{indent}"
    elif isinstance(node, ast.Try):
        for handler in node.handlers:
            if handler.type is not None and file.text(handler.type) not in ("Exception", "BaseException"):
                yield "catches too much", file.place(handler.type), "Exception"
        for statement in node.finalbody:
            yield "not cleaned up", file.place(statement), "pass"
    elif isinstance(node, ast.For) and not isinstance(node.iter, ast.Constant):
        for end in ("[1:]", "[:-1]"):
            yield "one too few", file.place(node.iter), f"list({file.text(node.iter)}){end}"


_MAKERS: tuple[Maker, ...] = (_statements, _order, _calls, _numbers, _names, _functions)


def _parsed(text: str) -> str:
    """A digest of what a text means to Python, whatever its layout; empty where it is no Python."""
    try:
        compile(text, "mutant", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return ""
    return hashlib.sha256(ast.dump(ast.parse(text)).encode()).hexdigest()
