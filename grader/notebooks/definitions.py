"""Top-level definitions of a module and of a cell, found by `ast` and exchanged as text, so that comments stay."""

from __future__ import annotations

import ast
from dataclasses import dataclass

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Cell:
    """What a marked cell holds."""

    definitions: dict[str, str]
    """Source by name, in the order of the cell: functions, classes, and constants with one name."""
    imports: list[str]
    """One per imported name: `from math import sqrt`."""


def read_cell(source: str) -> Cell:
    """Take a cell apart.

    Raises:
        SyntaxError: it does not parse, or holds something else than definitions and imports, such as a call; its line
            counts from the line below the mark.
    """
    definitions: dict[str, str] = {}
    imports: list[str] = []
    lines = source.splitlines()
    for node in ast.parse(source).body:
        name = _name(node)
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports += _single_imports(node)
        elif name:
            definitions[name] = _text(lines, node)
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            place = ("cell", node.lineno, node.col_offset, None)
            raise SyntaxError("only definitions and imports can be exported; move the rest to another cell", place)
    return Cell(definitions, imports)


class Module:
    """The text of a module, definition by definition."""

    def __init__(self, text: str) -> None:
        """Raises SyntaxError for a text that does not parse."""
        self._set(text)

    def _set(self, text: str) -> None:
        self.text = text
        self._tree = ast.parse(text)
        self._nodes = {name: node for node in self._tree.body if (name := _name(node))}

    @property
    def names(self) -> list[str]:
        """Of the definitions, in order."""
        return list(self._nodes)

    def source(self, name: str) -> str:
        """A definition with its decorators; empty where there is none."""
        node = self._nodes.get(name)
        return "" if node is None else _text(self.text.splitlines(), node)

    def is_bare_stub(self, name: str) -> bool:
        """Whether a function does nothing but say that its task is open."""
        node = self._nodes.get(name)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return False
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        return len(body) == 1 and isinstance(body[0], ast.Raise) and "is open: write" in ast.unparse(body[0])

    def with_docstring(self, name: str, source: str) -> str:
        """The new definition with the old one's docstring, where it has none of its own and its body starts a line."""
        old, new = self._nodes.get(name), ast.parse(source).body[0]
        if not isinstance(old, _Definition) or not isinstance(new, _Definition):
            return source
        first = new.body[0]
        is_inline = first.lineno == new.lineno
        if ast.get_docstring(old) is None or ast.get_docstring(new) is not None or is_inline:
            return source
        docstring = old.body[0]
        kept = self.text.splitlines()[docstring.lineno - 1 : docstring.end_lineno]
        lines = source.splitlines()
        at = _end_of_header(lines, new)
        return "\n".join([*lines[:at], *kept, *lines[at:]])

    def put(self, name: str, source: str, *, before: str | None) -> None:
        """Replace a definition; a new one goes before the definition called `before`, or to the end.

        The end is before a last `if __name__ == "__main__":`.
        """
        lines = self.text.splitlines()
        node = self._nodes.get(name)
        if node is not None:
            start, stop = _span(node)
            lines[start:stop] = source.splitlines()
        elif before is not None:
            start, _ = _span(self._nodes[before])
            while start > 0 and lines[start - 1].startswith("#"):
                start -= 1
            lines[start:start] = [*source.splitlines(), "", ""]
        else:
            last = self._tree.body[-1] if self._tree.body else None
            is_main = isinstance(last, ast.If) and "__main__" in ast.unparse(last.test)
            start = last.lineno - 1 if last is not None and is_main else len(lines)
            lines[start:start] = [*source.splitlines(), "", ""] if is_main else ["", "", *source.splitlines()]
        self._set("\n".join(lines) + "\n")

    def add_imports(self, imports: list[str]) -> None:
        """Add those that the module lacks, below its last import."""
        nodes = [node for node in self._tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        there = {line for node in nodes for line in _single_imports(node)}
        missing = [line for line in dict.fromkeys(imports) if line not in there]
        if not missing:
            return
        lines = self.text.splitlines()
        if nodes:
            at = nodes[-1].end_lineno or 0
        else:
            body = self._tree.body
            is_documented = ast.get_docstring(self._tree) is not None
            at = (body[0].end_lineno or 0) if is_documented else 0
            missing = ["", *missing] if is_documented else [*missing, ""]
        lines[at:at] = missing
        self._set("\n".join(lines) + "\n")


def _name(node: ast.stmt) -> str | None:
    if isinstance(node, _Definition):
        return node.name
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return node.target.id
    return None


def _span(node: ast.stmt) -> tuple[int, int]:
    """The lines of a definition, decorators included: first (from 0) and the one after the last."""
    decorators = node.decorator_list if isinstance(node, _Definition) else []
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    return first - 1, node.end_lineno or node.lineno


def _text(lines: list[str], node: ast.stmt) -> str:
    start, stop = _span(node)
    return "\n".join(lines[start:stop])


def _end_of_header(lines: list[str], node: _Definition) -> int:
    """The number of lines up to the colon that ends the head; comments below it belong to the body."""
    at = node.body[0].lineno - 1
    decorators = node.body[0].decorator_list if isinstance(node.body[0], _Definition) else []
    at = min([at, *(decorator.lineno - 1 for decorator in decorators)])
    while at > 0 and (not lines[at - 1].strip() or lines[at - 1].lstrip().startswith("#")):
        at -= 1
    return at


def _single_imports(node: ast.Import | ast.ImportFrom) -> list[str]:
    names = [f"{alias.name} as {alias.asname}" if alias.asname else alias.name for alias in node.names]
    if isinstance(node, ast.Import):
        return [f"import {name}" for name in names]
    return [f"from {'.' * node.level}{node.module or ''} import {name}" for name in names]
