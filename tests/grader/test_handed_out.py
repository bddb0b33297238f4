"""Whatever a probe hands out that notes something takes a submission's modes off meanwhile."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import grader

_ROOT = Path(grader.__file__).parent
_PROBES = [path for path in sorted(_ROOT.rglob("*.py")) if "kept import" in path.read_text()]
_WITHOUT_MODES = ("function", "method", "started", "loader", "sized_loader")
"""What runs a function without modes of a submission's; a thread has none but its own."""


def unguarded(tree: ast.AST) -> Iterator[str]:
    """Calls of a function that `notes()` made in an inner function, unless that is given to `function` or `method`."""
    given = {
        argument.id
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and ast.unparse(call.func) in _WITHOUT_MODES
        for argument in _functions(call)
        if isinstance(argument, ast.Name)
    }
    for outer in ast.walk(tree):
        if isinstance(outer, ast.FunctionDef):
            yield from _calls(outer, _noting(outer), given, inner=False)


def _functions(call: ast.Call) -> Iterator[ast.expr]:
    """Its arguments; of a `partial` the function."""
    for argument in call.args:
        is_partial = isinstance(argument, ast.Call) and ast.unparse(argument.func) == "partial"
        yield argument.args[0] if is_partial else argument  # type: ignore[attr-defined]


def _noting(outer: ast.FunctionDef) -> set[str]:
    """Names in it of functions that note."""
    names = set()
    for node in ast.walk(outer):
        if isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
            both = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
            pairs = zip(target.elts, value.elts, strict=False) if both else [(target, value)]  # type: ignore[attr-defined]
            names |= {
                ast.unparse(left.elts[0])
                for left, right in pairs
                if ast.unparse(right) == "notes()" and isinstance(left, ast.Tuple)
            }
    return names


def _calls(node: ast.AST, noting: set[str], given: set[str], *, inner: bool) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            if ast.unparse(child.func) in _WITHOUT_MODES:
                continue
            if inner and ast.unparse(child.func) in noting:
                yield f"line {child.lineno}: {ast.unparse(child)}"
        if isinstance(child, ast.FunctionDef):
            decorators = {ast.unparse(each) for each in child.decorator_list}
            if child.name in given or not decorators.isdisjoint(_WITHOUT_MODES):
                continue
        is_inner = inner or isinstance(child, (ast.FunctionDef, ast.Lambda))
        yield from _calls(child, noting, given, inner=is_inner)


@pytest.mark.parametrize(
    ("handed_out", "count"),
    [
        ("def hook(): note(1)", 1),
        ("hook = lambda: note(1)", 1),
        ("@function\n    def hook(): note(1)", 0),
        ("hook = function(lambda: note(1))", 0),
        ("def hook(): note(1)\n    forward = method(hook)", 0),
        ("def passes(): note(1)\n    batches = loader(passes)", 0),
        ("def passes(n): note(n)\n    batches = loader(partial(passes, 1))", 0),
        ("note(1)", 0),
    ],
)
def test_the_look_finds_what_is_not_wrapped(handed_out: str, count: int) -> None:
    """In each form in which a probe may hand something out."""
    source = f"def probe():\n    (take, taken), (note, noted) = notes(), notes()\n    {handed_out}\n"
    assert len(list(unguarded(ast.parse(source)))) == count


def test_no_probe_hands_out_a_plain_function_that_notes() -> None:
    """With a submission's torch function mode on, such a note would void its check, whatever the mode does."""
    found = {str(path.relative_to(_ROOT)): list(unguarded(ast.parse(path.read_text()))) for path in _PROBES}
    assert len(_PROBES) > 20
    assert not {path: calls for path, calls in found.items() if calls}
